"""What a tiny family is made of: plain values, no ComfyUI."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Text:
    """The form in which a family's text encoder hands a prompt on."""

    width: int
    pooled: int | None = None  # width of pooled_output, None where the encoder gives none
    least: int = 0  # shorter prompts are filled up to this many tokens, as T5's min_length does
    mask: bool = False  # an attention_mask rides along, 0 at the filling
    zeros: bool = False  # the filling's embeddings are zero, as Wan's text encoder makes them
    extra: Callable | None = None  # (embeddings, token ids) -> further keys of the cond


@dataclass(frozen=True)
class Family:
    """A tiny network of one class of comfy.supported_models, its text and its latents."""

    network: dict
    text: Text
    height: int = 64
    width: int = 64
    frames: int = 1
    down: int = 8  # pixels to a latent, along height and width
    down_time: int = 4  # frames to a latent of a video
    of: str = ""  # class in comfy.supported_models, where this is a variant of it
    conditions: Callable | None = (
        None  # (shape of the latent, seeded random numbers of a shape) -> further keys of a cond
    )
    channels: int = 0  # of the latent, where they are not those of ComfyUI's latent format
    buffers: Callable | None = None  # (network, seeded random numbers of a shape): fill what a checkpoint would fill
    smaller: Callable | None = None  # a context in which a part of fixed size is built smaller
    later: tuple[str, ...] = ()  # keys of the network's config that ComfyUI 0.3 does not know yet
    new: bool = False  # a variant of a class that ComfyUI 0.3 has without it
    batch: int = 2  # samples that the network takes in one call: 1 or any number
