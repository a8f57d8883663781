"""Pictures and videos of 8 bits, as they are shown, saved and judged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
VIDEOS = (".mp4", ".webm", ".mov", ".mkv")


def eight_bits(images: Tensor) -> Tensor:
    """uint8 on the CPU, of values in [0, 1]."""
    return (images.cpu() * 255).round().to(torch.uint8)


def read(file: Path) -> np.ndarray:
    """uint8 [H, W, 3] or, of a video, [F, H, W, 3]."""
    if file.suffix.lower() in VIDEOS:
        import imageio.v3 as iio

        return iio.imread(file, plugin="FFMPEG")
    import numpy as np
    from PIL import Image

    return np.asarray(Image.open(file).convert("RGB"))


def mp4(frames: np.ndarray, fps: float, quality: int = 9) -> bytes:
    """H.264 of frames [F, H, W, 3] uint8; an odd side loses a pixel, which the codec cannot keep."""
    import imageio.v3 as iio

    height, width = (side // 2 * 2 for side in frames.shape[1:3])
    return iio.imwrite(
        "<bytes>",
        frames[:, :height, :width],
        extension=".mp4",
        plugin="FFMPEG",
        fps=fps,
        codec="libx264",
        quality=quality,
        macro_block_size=2,
    )
