"""Pictures and videos of 8 bits, as they are shown, saved and judged. Imports no torch."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

if TYPE_CHECKING:
    from torch import Tensor

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
VIDEOS = (".mp4", ".webm", ".mov", ".mkv")
FORMATS = ("PNG", "JPEG", "WEBP", "BMP")  # of PICTURES, as PIL calls them
MOST_PIXELS = 64_000_000
# What PIL raises of files that are not pictures.
DAMAGES = (OSError, SyntaxError, EOFError, IndexError, struct.error, zlib.error, Image.DecompressionBombError)


def eight_bits(images: Tensor) -> Tensor:
    """uint8 on the CPU, of values in [0, 1]."""
    return (images.cpu() * 255).round().byte()


def read(file: Path) -> np.ndarray:
    """uint8 [H, W, 3] or, of a video, [F, H, W, 3]."""
    if file.suffix.lower() in VIDEOS:
        import imageio.v3 as iio

        return iio.imread(file, plugin="FFMPEG")
    return np.asarray(Image.open(file).convert("RGB"))


def fitted(content: bytes, width: int, height: int) -> np.ndarray:
    """uint8 [height, width, 3] of a picture's file: upright, scaled until it just covers that size, and cropped about its centre.

    Raises:
        ValueError: it is not one of PICTURES, is damaged, or would take too much memory.
    """

    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise ValueError(f"has {picture.width} x {picture.height} pixels, and {MOST_PIXELS:,} may be read")
            upright = _upright(picture)
            if upright.mode.startswith("I"):  # grey of 16 bits, which PIL would cut off at 255
                upright = Image.fromarray((np.asarray(upright) // 257).astype(np.uint8))
            fit = ImageOps.fit(upright.convert("RGB"), (width, height), Image.Resampling.LANCZOS)
    except UnidentifiedImageError as error:
        raise ValueError(f"is not one of {', '.join(FORMATS)}") from error
    except DAMAGES as error:
        raise ValueError(f"is damaged ({error})") from error
    return np.asarray(fit)


def _upright(picture: Image.Image) -> Image.Image:
    """Turned as its EXIF says. `ImageOps.exif_transpose` also writes EXIF anew, and fails where that is odd."""
    turns = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }
    try:
        orientation = picture.getexif().get(0x0112)
    except (*DAMAGES, ValueError, TypeError):  # of its EXIF, and not of the picture
        return picture
    turn = turns.get(orientation) if isinstance(orientation, int) else None
    return picture if turn is None else picture.transpose(turn)


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
