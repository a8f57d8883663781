"""Rewards that are read off the pixels, without a model."""

from __future__ import annotations

import io
from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from ..networks.preprocess import pil
from .base import Reward

JPEG_QUALITY = 95


class JpegCompressibility(Reward):
    """Minus the size of the picture as a JPEG of quality 95, in kilobytes (DDPO, 2305.13301)."""

    reads_prompt = False

    def __init__(self, name: str = "compressibility", coefficient: float = 1.0, held_out: bool = False):
        super().__init__(name, coefficient, held_out)

    def score(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        return -jpeg_kilobytes(images)


class JpegIncompressibility(Reward):
    """The size of the picture as a JPEG of quality 95, in kilobytes (DDPO, 2305.13301)."""

    reads_prompt = False

    def __init__(self, name: str = "incompressibility", coefficient: float = 1.0, held_out: bool = False):
        super().__init__(name, coefficient, held_out)

    def score(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        return jpeg_kilobytes(images)


class SmoothReward(Reward):
    """Its score is read off the pixels by a formula that has a gradient itself."""

    reads_prompt = False

    @abstractmethod
    def score(self, images: Tensor, prompts: Sequence[str]) -> Tensor: ...

    def differentiable(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        return self.score(images, prompts)


class Colorfulness(SmoothReward):
    """Hasler and Süsstrunk (2003): √(σ_rg² + σ_yb²) + 0.3·√(μ_rg² + μ_yb²) on 0 … 255, rg = R-G, yb = (R+G)/2 - B."""

    def __init__(self, name: str = "colorfulness", coefficient: float = 1.0, held_out: bool = False):
        super().__init__(name, coefficient, held_out)

    def score(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        red, green, blue = (255 * images.float()).flatten(1, 2).unbind(-1)
        opponents = torch.stack([red - green, (red + green) / 2 - blue], -1)
        return _root(opponents.var(1, correction=0).sum(-1)) + 0.3 * _root(opponents.mean(1).square().sum(-1))


class Sharpness(SmoothReward):
    """Variance of the Laplacian of the luma on 0 … 255 (Pech-Pacheco et al., 2000)."""

    def __init__(self, name: str = "sharpness", coefficient: float = 1.0, held_out: bool = False):
        super().__init__(name, coefficient, held_out)

    def score(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        pixels = images.float()
        luma = 255 * pixels @ pixels.new_tensor([0.299, 0.587, 0.114])
        kernel = luma.new_tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])
        return torch.nn.functional.conv2d(luma[:, None], kernel[None, None]).flatten(1).var(1, correction=0)


def _root(squares: Tensor) -> Tensor:
    """The square root; at 0, where its slope is infinite and a grey picture is, with the gradient 0."""
    return torch.where(squares > 0, squares, 1.0).sqrt() * (squares > 0)


def jpeg_kilobytes(images: Tensor) -> Tensor:
    """Size of each picture [B, H, W, 3] as a JPEG of quality 95, in units of 1000 bytes, [B]."""
    sizes = []
    for picture in pil(images):
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=JPEG_QUALITY)
        sizes.append(buffer.tell() / 1000)
    return torch.tensor(sizes)
