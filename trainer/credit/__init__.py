"""When, where and how much: the credit that each denoising step of a sample gets."""

from .steps import tcd

__all__ = ["tcd"]
