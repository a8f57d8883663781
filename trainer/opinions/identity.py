"""Which picture is it: known by its pixels, so that a new name, another folder or other metadata change nothing.

Imports no torch.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from ...host import files
from ...host.access import opening, permissions
from ..pictures import media
from .kinds import Picture


def picture_id(content: bytes) -> str:
    """64 hexadecimal digits for a picture's file: of the pixels as they are looked at, in red, green and blue.

    A copy, a new name, or a file that was saved again without loss (PNG to PNG or to lossless WebP, with or without its texts)
    keeps it. Saved again with loss (as JPEG), scaled or cropped, it is another picture. The first frame of an animation counts.

    Raises:
        ValueError: it is not a picture, is damaged, or would take too much memory.
    """
    return pixels_id(np.asarray(media.upright(content)))


def pixels_id(pixels: np.ndarray) -> str:
    """The same for uint8 pixels [H, W, 3], or [F, H, W, 3] of a video.

    SHA-256 of the shape in text, as `64x64x3`, a line break, and the raw bytes. A folder of votes has the first 16 digits.
    """
    shape = "x".join(map(str, pixels.shape))
    return hashlib.sha256(f"{shape}\n".encode() + pixels.tobytes()).hexdigest()


def read_picture(picture: Picture) -> bytes:
    """The file at a picture's path, whatever it holds by now. Raises OSError or ValueError if it cannot be read."""
    opening.check_name(picture.path)  # a list of a stranger's may have been imported
    content = files.read_bytes(Path(picture.path), permissions.MOST_PICTURE_BYTES) if picture.path else None
    if content is None:
        raise FileNotFoundError(picture.path)
    return content
