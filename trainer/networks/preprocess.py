"""Pictures prepared as in the training of the networks that score them.

Each is scored as the 8-bit picture that would be saved of it, as the published scores were; resizing is done on the CPU, where
it gives the same on every machine.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from ..pictures.media import eight_bits
from . import RewardError

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


def pil(images: Tensor) -> list[Image.Image]:
    return [Image.fromarray(picture) for picture in eight_bits(images).numpy()]


def prepared(processor: Any, images: Tensor) -> Tensor:
    """[B, 3, h, w] of pictures [B, H, W, 3], by an image processor of transformers: told their layout, which versions before 5
    guess, and of a picture three pixels high guess wrong."""
    return processor(pil(images), return_tensors="pt", input_data_format="channels_last").pixel_values


def centre_crop(images: Tensor, size: int) -> Tensor:
    """[B, 3, size, size], normalised: short side to `size` by Pillow's bicubic filter, then the middle of the long one.

    Roundings are torchvision's (`Resize`, `CenterCrop`); where an odd number of pixels goes, transformers' can differ by one.
    """
    height, width = images.shape[1:3]
    short = min(height, width)
    resized = (int(size * width / short), int(size * height / short))
    left, top = (round((side - size) / 2) for side in resized)
    box = (left, top, left + size, top + size)
    cropped = [np.array(picture.resize(resized, Image.Resampling.BICUBIC).crop(box)) for picture in pil(images)]
    return _normalised(torch.from_numpy(np.stack(cropped)).permute(0, 3, 1, 2) / 255)


def with_gradient(processor: Any, images: Tensor) -> Tensor:
    """`prepared` with a gradient in the pictures, which may be on any device.

    Raises:
        RewardError: the processor resizes by a filter that is neither Pillow's bilinear nor its bicubic one.
    """
    levels, (height, width) = _levels(images), images.shape[1:3]
    if processor.do_resize:
        if processor.resample not in _FILTERS:
            raise RewardError(
                f"its network's pictures are resized by Pillow's filter {processor.resample}, which has no gradient here. Fix: "
                "choose another network, or hold the reward out"
            )
        if short := processor.size.get("shortest_edge"):
            sides = int(short * height / min(height, width)), int(short * width / min(height, width))
        else:
            sides = processor.size["height"], processor.size["width"]
        levels = _resized(levels, sides, processor.resample)
    if getattr(processor, "do_center_crop", False):  # not every processor of transformers 4 can crop
        crop = processor.crop_size["height"], processor.crop_size["width"]
        above, left = ((side - part) // 2 for side, part in zip(levels.shape[2:], crop, strict=True))
        levels = levels[:, :, above : above + crop[0], left : left + crop[1]]
    pictures = levels / 255
    return _normalised(pictures, processor.image_mean, processor.image_std) if processor.do_normalize else pictures


def centre_crop_with_gradient(images: Tensor, size: int) -> Tensor:
    """`centre_crop` with a gradient in the pictures, which may be on any device."""
    height, width = images.shape[1:3]
    sides = int(size * height / min(height, width)), int(size * width / min(height, width))
    levels = _resized(_levels(images), sides, Image.Resampling.BICUBIC)
    above, left = (round((side - size) / 2) for side in sides)
    return _normalised(levels[:, :, above : above + size, left : left + size] / 255)


def _levels(images: Tensor) -> Tensor:
    """[B, 3, H, W] whole numbers from 0 to 255, of pictures [B, H, W, 3], with the gradient of what they were rounded from."""
    levels = (images.float() * 255).permute(0, 3, 1, 2)
    return _through(levels, levels.round())


def _through(values: Tensor, rounded: Tensor) -> Tensor:
    return values + (rounded - values).detach()


def _resized(levels: Tensor, sides: tuple[int, int], resample: int) -> Tensor:
    """[B, 3, *sides], as Pillow resizes: one axis after the other, with 8 bits after each."""
    first = _first_axis(*levels.shape[2:], *sides, resample)
    # float64, which Apple's GPUs lack, holds Pillow's sums of integers, so that halves are rounded as it rounds them.
    exact = levels.to("cpu" if levels.device.type == "mps" else levels.device, torch.float64)
    return _along(exact, sides, resample, (first, 5 - first)).to(levels)


def _along(levels: Tensor, sides: tuple[int, int], resample: int, axes: Sequence[int]) -> Tensor:
    for axis in axes:
        if levels.shape[axis] != sides[axis - 2]:
            weights = _weights(levels.shape[axis], sides[axis - 2], resample).to(levels.device)
            levels = (levels.movedim(axis, -1) @ weights).movedim(-1, axis).clamp(0, 255)
            levels = _through(levels, (levels + 0.5).floor())
    return levels


@functools.lru_cache(maxsize=32)
def _first_axis(height: int, width: int, tall: int, wide: int, resample: int) -> int:
    """Along which of [B, 3, H, W] Pillow resizes first: for some sizes its versions differ, so this one is shown noise."""
    noise = torch.randint(0, 256, (height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    resized = np.array(Image.fromarray(noise.numpy()).resize((wide, tall), resample))
    across = _along(noise[None, None].double(), (tall, wide), resample, (3, 2))
    return 3 if (across[0, 0].numpy() == resized).all() else 2


@functools.lru_cache(maxsize=32)
def _weights(size: int, wanted: int, resample: int) -> Tensor:
    """[size, wanted] float64: the share that each pixel of a row has in each pixel of the resized row; Pillow's are multiples
    of 2**-22."""
    scale = size / wanted
    centres = (torch.arange(wanted, dtype=torch.float64) + 0.5) * scale
    pixels = torch.arange(size, dtype=torch.float64)[:, None] + 0.5
    shares = _FILTERS[resample](((pixels - centres) / max(scale, 1.0)).abs())
    return (shares / shares.sum(0) * 2**22).round() / 2**22


_FILTERS: dict[int, Callable[[Tensor], Tensor]] = {
    Image.Resampling.BILINEAR: lambda x: (1 - x).clamp(min=0),
    # Keys' cubic convolution with a = -1/2.
    Image.Resampling.BICUBIC: lambda x: torch.where(
        x < 1, (1.5 * x - 2.5) * x**2 + 1, torch.where(x < 2, ((2.5 - 0.5 * x) * x - 4) * x + 2, 0.0)
    ),
}


def letterbox(images: Tensor, size: int) -> Tensor:
    """[B, 3, size, size], normalised: long side to `size` by torch's bicubic filter with antialiasing, the rest black.

    As HPSv2's `ResizeMaxSize`: black is set before normalising, and overshoot of the filter stays. It has a gradient in the
    pictures.
    """
    height, width = images.shape[1:3]
    scale = size / max(height, width)
    resized = [round(side * scale) for side in (height, width)]
    pictures = _levels(images) / 255
    if scale != 1:
        pictures = F.interpolate(pictures, resized, mode="bicubic", antialias=True)
    above, left = ((size - side) // 2 for side in resized)
    below, right = size - resized[0] - above, size - resized[1] - left
    return _normalised(F.pad(pictures, (left, right, above, below)))


def _normalised(pictures: Tensor, mean: Sequence[float] = CLIP_MEAN, std: Sequence[float] = CLIP_STD) -> Tensor:
    return (pictures - pictures.new_tensor(mean).view(3, 1, 1)) / pictures.new_tensor(std).view(3, 1, 1)
