"""Pictures prepared as in the training of the networks that score them.

Each is scored as the 8-bit picture that would be saved of it, as the published scores were; resizing is done on the CPU, where
it gives the same on every machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from ..pictures.media import eight_bits

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


def with_gradient(images: Tensor, processor: Any) -> Tensor:
    """What transformers' `CLIPImageProcessor` makes of pictures [B, H, W, 3], [B, 3, h, w], differentiable.

    Torch's antialiased bicubic filter is Pillow's. The gradient goes through the rounding to 8 bits as if it did nothing.
    """
    pictures = _rounded(images.float()).permute(0, 3, 1, 2)
    if processor.do_resize:
        size, (height, width) = processor.size, images.shape[1:3]
        if short := size.get("shortest_edge"):
            sides = [int(short * side / min(height, width)) for side in (height, width)]
        else:
            sides = [size["height"], size["width"]]
        for side in ([height, sides[1]], sides):  # rows first, then columns, each rounded, as Pillow does it
            if side != list(pictures.shape[2:]):
                pictures = _rounded(F.interpolate(pictures, side, mode="bicubic", antialias=True).clamp(0, 1))
    if processor.do_center_crop:
        crop = processor.crop_size["height"], processor.crop_size["width"]
        above, left = ((side - part) // 2 for side, part in zip(pictures.shape[2:], crop, strict=True))
        pictures = pictures[:, :, above : above + crop[0], left : left + crop[1]]
    mean, std = (pictures.new_tensor(values).view(3, 1, 1) for values in (processor.image_mean, processor.image_std))
    return (pictures - mean) / std


def _rounded(pictures: Tensor) -> Tensor:
    return pictures + (eight_bits(pictures).to(pictures.device) / 255 - pictures).detach()


def letterbox(images: Tensor, size: int) -> Tensor:
    """[B, 3, size, size], normalised: long side to `size` by torch's bicubic filter with antialiasing, the rest black.

    As HPSv2's `ResizeMaxSize`: black is set before normalising, and overshoot of the filter stays.
    """
    height, width = images.shape[1:3]
    scale = size / max(height, width)
    resized = [round(side * scale) for side in (height, width)]
    pictures = (eight_bits(images) / 255).permute(0, 3, 1, 2)
    if scale != 1:
        pictures = F.interpolate(pictures, resized, mode="bicubic", antialias=True)
    above, left = ((size - side) // 2 for side in resized)
    below, right = size - resized[0] - above, size - resized[1] - left
    return _normalised(F.pad(pictures, (left, right, above, below)))


def _normalised(pictures: Tensor) -> Tensor:
    return (pictures - torch.tensor(CLIP_MEAN).view(3, 1, 1)) / torch.tensor(CLIP_STD).view(3, 1, 1)
