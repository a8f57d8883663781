"""Pictures that an edit model works on, as ComfyUI's own nodes hand them over: to the text encoder, where it looks at pictures,
and as `reference_latents`.

Which sizes a family wants is neither in its weights nor in its code: it is what its own nodes and workflows do. WAYS says it for
the families that are known. Where their workflows make pictures of 1024 x 1024, references are scaled to that area; here to the
area of what is sampled, so that at 1024 x 1024 it is the same.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ..families.given import Picture
from ..families.options import FlowModelError
from ..families.sizes import kontext_size

if TYPE_CHECKING:
    from comfy.sd import CLIP

REFERENCES, METHOD = "reference_latents", "reference_latents_method"
SEEN_AREA = 384 * 384  # pixels of a picture as the text encoder sees it
# TextEncodeQwenImageEditPlus puts this before a prompt for each picture, and asks in these words.
SIGHT = "Picture {}: <|vision_start|><|image_pad|><|vision_end|>"
QUESTION = (
    "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, background), then "
    "explain how the user's text instruction should alter or modify the image. Generate a new image that meets the user's "
    "requirements while maintaining consistency with the original input where appropriate.<|im_end|>\n<|im_start|>user\n{}"
    "<|im_end|>\n<|im_start|>assistant\n"
)


@dataclass(frozen=True)
class Asked:
    """A text, the pictures that it is about, and the area in pixels that references are scaled to."""

    text: str
    pictures: tuple[Picture, ...] = ()
    area: int = 0


@dataclass(frozen=True)
class Way:
    """How a family's own nodes take a picture.

    Attributes:
        size: (width, height) of the reference, by those of the picture, the area, and the pixels of a token's side.
        scaling: by which it gets that size, as `comfy.utils.common_upscale` calls it.
        crop: "center" where it is cropped to the shape first, "disabled" where it is stretched.
        seen: whether the text encoder sees it too: None, "small" (TextEncodeQwenImageEditPlus) or "whole" (…QwenImageEdit).
        method: how the network places references, where it has to be told.
        most: of pictures.
    """

    size: Callable[[int, int, int, int], tuple[int, int]]
    scaling: str
    crop: str = "disabled"
    seen: str | None = None
    method: str = ""
    most: int = 10


def by_area(multiple: int) -> Callable[[int, int, int, int], tuple[int, int]]:
    """The picture's own shape; sides are multiples of so many pixels."""

    def size(width: int, height: int, area: int, unit: int) -> tuple[int, int]:
        scale = math.sqrt(area / (width * height))
        across, down = (max(1, round(side * scale / multiple)) * multiple for side in (width, height))
        return across, down

    return size


# By the class of ComfyUI's model: after FluxKontextImageScale, ImageScaleToTotalPixels, TextEncodeQwenImageEdit(Plus).
WAYS = {
    "Flux": Way(kontext_size, "lanczos", "center"),
    "Flux2": Way(by_area(1), "lanczos"),
    "QwenImage": Way(by_area(8), "area", seen="small", most=3),
    "Krea2": Way(by_area(8), "area", seen="small", method="index_timestep_zero", most=3),
    "LongCatImage": Way(by_area(1), "area", seen="whole", most=1),
    "Omnigen2": Way(by_area(1), "area"),
}

EDITORS = "FLUX Kontext, FLUX.2, Qwen-Image-Edit, Krea 2, LongCat-Image-Edit or OmniGen2"


def way_of(core: Any, clip: CLIP) -> Way:
    """How this model takes pictures. Raises FlowModelError if it takes none, or its text encoder does not look at them."""
    kind, network = type(core).__name__, type(core.diffusion_model)
    calls = [getattr(network, name) for name in ("forward", "_forward") if hasattr(network, name)]
    takes = any("ref_latents" in inspect.signature(call).parameters for call in calls)
    if not takes or kind not in WAYS:
        wrong = "takes pictures in a way that is not known here" if takes else "takes no pictures"
        raise FlowModelError(
            f"prompts name pictures, and {kind} {wrong}. Fix: take `image` and `images` out of the prompts' lines, or load a "
            f"model that edits: {EDITORS}"
        )
    way = WAYS[kind]
    if way.seen and "images" not in inspect.signature(clip.tokenizer.tokenize_with_weights).parameters:
        raise FlowModelError(
            f"clip: the text encoder of {kind} has to see the pictures that prompts name, and this one looks at none. Fix: load "
            "the encoder that belongs to the model, with its type in the loader"
        )
    return way


def conditioning(way: Way, clip: CLIP, encode: Callable[[Tensor], Tensor], asked: Asked, unit: int) -> list[list[Any]]:
    """The CONDITIONING that a family's own nodes make of a text and its pictures.

    `encode`: pictures [1, H, W, 3] in [0, 1] to the latents that the autoencoder makes of them.
    `unit`: pixels of a side of one of the network's tokens.

    Raises:
        FlowModelError: more pictures than the family takes.
    """
    if len(asked.pictures) > way.most:
        raise FlowModelError(
            f"prompt {asked.text[:60]!r} names {len(asked.pictures)} pictures, and this model takes {way.most}. Fix: name fewer"
        )
    whole = [picture.pixels[None].float() / 255 for picture in asked.pictures]
    references = [scaled(image, way.size(image.shape[2], image.shape[1], asked.area, unit), way) for image in whole]
    if way.seen == "small":
        small = by_area(1)
        small_ones = [scaled(image, small(image.shape[2], image.shape[1], SEEN_AREA, unit), way) for image in whole]
        before = "".join(SIGHT.format(number) for number in range(1, len(small_ones) + 1))
        tokens = clip.tokenize(before + asked.text, images=small_ones, llama_template=QUESTION)
    else:
        tokens = clip.tokenize(asked.text, **({"images": references} if way.seen else {}))
    keys = {REFERENCES: [encode(reference) for reference in references], **({METHOD: way.method} if way.method else {})}
    return [[cond, entries | keys] for cond, entries in clip.encode_from_tokens_scheduled(tokens)]


def scaled(picture: Tensor, size: tuple[int, int], way: Way) -> Tensor:
    """A picture [1, H, W, 3] at (width, height), as ComfyUI's nodes scale it."""
    import comfy.utils

    return comfy.utils.common_upscale(picture.movedim(-1, 1), *size, way.scaling, way.crop).movedim(1, -1)
