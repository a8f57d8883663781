"""Pictures and videos of 8 bits, as they are shown, saved and judged. Imports no torch."""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

if TYPE_CHECKING:
    from torch import Tensor

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
VIDEOS = (".mp4", ".webm", ".mov", ".mkv")
FORMATS = ("PNG", "JPEG", "WEBP", "BMP")  # of PICTURES, as PIL calls them
MOST_PIXELS = 64_000_000  # of one picture, or one frame
MOST_TOGETHER = 4 * MOST_PIXELS  # of all pictures and frames of one request: 768 MB
SIGNS = {"png": (0, b"\x89PNG\r\n\x1a\n"), "mp4": (4, b"ftyp")}  # where a file says what it is, and how
# What PIL raises of files that are not pictures.
DAMAGES = (OSError, SyntaxError, EOFError, IndexError, struct.error, zlib.error, Image.DecompressionBombError)


def eight_bits(images: Tensor) -> Tensor:
    """uint8 on the CPU, of values in [0, 1]."""
    return (images.cpu() * 255).round().byte()


def read(file: Path) -> np.ndarray:
    """uint8 [H, W, 3] or, of a video, [F, H, W, 3], of a file of the user's own, however large. Raises ValueError, OSError."""
    if file.suffix.lower() in VIDEOS:
        try:
            return np.stack([*_frames(file, None, math.inf)])
        except ValueError as error:
            raise ValueError(f"{file} cannot be read: {error}") from error
    return np.asarray(Image.open(file).convert("RGB"))


def sent(media: str, contents: Sequence[bytes]) -> Iterator[np.ndarray]:
    """What a stranger sent, one by one: uint8 [H, W, 3] of each `png`, [F, H, W, 3] of each `mp4`.

    A file's first bytes must say that it is of this kind, and no other kind is tried. So a text that names other files, which
    some formats of videos are, is never followed. Sizes are read before anything is decoded.

    Raises:
        ValueError: it is of another kind, damaged, or larger than MOST_TOGETHER allows; says which of them.
    """
    left = MOST_TOGETHER
    place, sign = SIGNS[media]
    for number, content in enumerate(contents):
        try:
            if content[place : place + len(sign)] != sign:
                raise ValueError(f"its first bytes are not those of a {media} file")
            if media == "png":
                with Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
                    _within(picture.width * picture.height, left)
                    pixels = np.asarray(picture.convert("RGB"))
            else:
                pixels = np.stack([*_frames(io.BytesIO(content), "mp4", left)])
        except ValueError as error:
            raise ValueError(f"sample {number} cannot be read as {media}: {error}") from error
        except DAMAGES as error:
            raise ValueError(f"sample {number} cannot be read as {media}: it is damaged ({error})") from error
        left -= pixels.size // 3
        yield pixels


def _within(pixels: int, left: float, one: str = "a picture") -> None:
    if pixels > MOST_PIXELS:
        raise ValueError(f"it has {pixels:,} pixels, and {one} may have {MOST_PIXELS:,}")
    if pixels > left:
        raise ValueError(f"all pictures and frames of one request may have {MOST_TOGETHER:,} pixels together")


def _frames(file: Path | io.BytesIO, kind: str | None, left: float) -> Iterator[np.ndarray]:
    """The frames [H, W, 3] uint8 of a video. `kind`: its format; None: whatever it says, which is for our own files alone.

    Raises:
        ValueError: it cannot be read, has no frame, or has more pixels than are `left`.
    """
    import av

    try:
        with av.open(file, "r", format=kind) as container:
            stream = next(iter(container.streams.video), None)
            if stream is None:
                raise ValueError("it has no pictures")
            # Before a frame has its memory; FFmpeg counts a margin of its own around it.
            stream.codec_context.options = {"max_pixels": str(MOST_PIXELS + 2**22)}
            frame = None
            for frame in container.decode(stream):
                _within(frame.width * frame.height, left, "a frame")
                left -= frame.width * frame.height
                yield frame.to_ndarray(format="rgb24")
            if frame is None:
                raise ValueError("it has no pictures")
    except av.FFmpegError as error:
        raise ValueError(f"it is damaged ({error.strerror or type(error).__name__})") from error


def fitted(content: bytes, width: int, height: int) -> np.ndarray:
    """`fit` of a picture's file. Raises ValueError as `upright`."""
    return fit(upright(content), width, height)


def fit(picture: Image.Image, width: int, height: int) -> np.ndarray:
    """uint8 [height, width, 3]: scaled until it just covers that size, and cropped about its centre."""
    return np.asarray(ImageOps.fit(picture, (width, height), Image.Resampling.LANCZOS))


def upright(content: bytes) -> Image.Image:
    """The picture of a file as it is looked at, in red, green and blue; its texts are in `info`.

    Raises:
        ValueError: it is not one of PICTURES, is damaged, or would take too much memory.
    """
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise ValueError(f"has {picture.width} x {picture.height} pixels, and {MOST_PIXELS:,} may be read")
            turned = _upright(picture)
            if turned.mode.startswith("I"):  # grey of 16 bits, which PIL would cut off at 255
                turned = Image.fromarray((np.asarray(turned) // 257).astype(np.uint8))
            seen = turned.convert("RGB")
    except UnidentifiedImageError as error:
        raise ValueError(f"is not one of {', '.join(FORMATS)}") from error
    except DAMAGES as error:
        raise ValueError(f"is damaged ({error})") from error
    seen.info |= {key: text for key, text in picture.info.items() if isinstance(text, str)}
    return seen


def check_still(file: BinaryIO) -> None:
    """Looks at the head of a file alone. Raises ValueError if it is not one of PICTURES, is animated or has too many pixels."""
    try:
        with Image.open(file, formats=FORMATS) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise ValueError(f"has {picture.width} x {picture.height} pixels, and {MOST_PIXELS:,} may be read")
            frames = getattr(picture, "n_frames", 1)
            if frames > 1 and picture.format != "MPO":  # a JPEG of a telephone, whose second picture is not shown
                raise ValueError(f"is animated: it has {frames} frames, and a plain picture has 1")
    except UnidentifiedImageError as error:
        raise ValueError(f"is not one of {', '.join(FORMATS)}") from error
    except DAMAGES as error:
        raise ValueError(f"is damaged ({error})") from error


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
    """H.264 of frames [F, H, W, 3] uint8; an odd side loses a pixel, which the codec cannot keep.

    Args:
        quality: 0 … 10, the best.
    """
    import av

    height, width = (side // 2 * 2 for side in frames.shape[1:3])
    content = io.BytesIO()
    with av.open(content, "w", format="mp4") as container:
        # libx264's quantizer goes from 51, the worst, to 0.
        options = {"crf": str(round((10 - quality) * 5.1))}
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001), options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for frame in frames[:, :height, :width]:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")))
        container.mux(stream.encode())
    return content.getvalue()
