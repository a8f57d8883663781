"""Pictures and videos of 8 bits, as they are shown, saved and judged, turned as their EXIF says. Imports no torch."""

from __future__ import annotations

import contextlib
import io
import itertools
import logging
import math
import time
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from ...host import errors, extras
from ...host.access.permissions import PICTURE_SUFFIXES

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

PICTURES = PICTURE_SUFFIXES
VIDEOS = (".mp4", ".webm", ".mov", ".mkv")
ANIMATIONS = (".gif", ".webp", ".apng")  # to share: what is written of videos, and of before and after
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF")  # of PICTURES, as PIL calls them
LIGHT = {b"v/1\x01": "EXR", b"#?RADIANCE": "HDR", b"#?RGBE": "HDR"}  # of PICTURES by their beginning; PIL reads neither
# Said in every video: players take BT.601 or BT.709 by the size of one that says neither.
COLOURS = {"colorspace": "bt709", "color_primaries": "bt709", "color_trc": "bt709", "color_range": "tv"}
MOST_PIXELS = 64_000_000  # of one picture, or one frame
MOST_SECONDS = 10.0  # of a processor's time for one picture: of 64 million pixels it takes about two
MOST_TOGETHER = 4 * MOST_PIXELS  # of all pictures and frames of one request: 768 MB
SIGNS = {"png": (0, b"\x89PNG\r\n\x1a\n"), "mp4": (4, b"ftyp")}  # where a file says what it is, and how


class TooLarge(errors.Expected, ValueError):
    """A picture or video of more pixels than are read, or whose decoder works for too long."""


class _Bounded:
    """A file to decode, which ends the work of a thread that reads on after MOST_SECONDS."""

    def __init__(self, file: BinaryIO):
        self._file, self._end = file, time.thread_time() + MOST_SECONDS

    def read(self, size: int = -1) -> bytes:
        if time.thread_time() > self._end:
            raise TooLarge(f"takes longer than {MOST_SECONDS:g} s to decode")
        return self._file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def eight_bits(images: Tensor) -> Tensor:
    """uint8 on the CPU, of values in [0, 1]."""
    return (images.cpu() * 255).round().byte()


def read(file: Path) -> np.ndarray:
    """Returns uint8 [H, W, 3], of a video [F, H, W, 3], of a file of the user's own: a picture as `upright` has it.

    Raises:
        ValueError: names the file, and says what is wrong with it.
    """
    try:
        if file.suffix.lower() in VIDEOS:
            return np.stack([*_frames(file, None, math.inf)])
        with open(file, "rb") as content:
            return np.asarray(upright(content.read(), str(file)))
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise ValueError(f"{file} cannot be read: it {error}") from error


def frame_rate(file: Path) -> float:
    """Returns the frames a second that a video's file says, on average; 0 of a picture, and where it says none."""
    import av

    if file.suffix.lower() not in VIDEOS:
        return 0.0
    with av.open(file, "r") as container:
        return float(container.streams.video[0].average_rate or 0)


def sent(media: str, contents: Sequence[bytes]) -> Iterator[np.ndarray]:
    """Yields what a stranger sent, one by one: uint8 [H, W, 3] of each `png`, [F, H, W, 3] of each `mp4`.

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
                raise ValueError(f"does not begin as a {media} file does")
            if media == "png":
                pixels = np.asarray(upright(content, formats=("PNG",), left=left))
            else:
                pixels = np.stack([*_frames(io.BytesIO(content), "mp4", left)])
        except ValueError as error:
            raise ValueError(f"sample {number} cannot be read as {media}: it {error}") from error
        left -= pixels.size // 3
        yield pixels


def _within(size: tuple[int, int], left: float, kind: str = "a picture") -> None:
    width, height = size
    if (pixels := width * height) > MOST_PIXELS:
        raise TooLarge(f"has {width} x {height} pixels, and {kind} may have {MOST_PIXELS:,}")
    if pixels > left:
        raise TooLarge(
            f"is one too many: all pictures and frames of one request may have {MOST_TOGETHER:,} pixels together"
        )


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
                raise ValueError("has no pictures")
            # Before a frame has its memory; FFmpeg counts a margin of its own around it.
            stream.codec_context.options = {"max_pixels": str(MOST_PIXELS + 2**22)}
            frame = None
            for frame in container.decode(stream):
                _within((frame.width, frame.height), left, "a frame")
                left -= frame.width * frame.height
                # The stored picture, which players turn as the file says: counterclockwise, by so many degrees.
                yield np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90)
            if frame is None:
                raise ValueError("has no pictures")
    except av.FFmpegError as error:
        raise ValueError(f"is damaged ({error.strerror or type(error).__name__})") from error


def fitted(content: bytes, width: int, height: int) -> np.ndarray:
    """`fit` of a picture's file. Raises ValueError as `upright`."""
    return fit(upright(content), width, height)


def fit(picture: Image.Image, width: int, height: int) -> np.ndarray:
    """uint8 [height, width, 3]: scaled until it just covers that size, and cropped about its centre."""
    return np.asarray(ImageOps.fit(picture, (width, height), Image.Resampling.LANCZOS))


def upright(content: bytes, name: str = "", *, formats: Sequence[str] = FORMATS, left: float = math.inf) -> Image.Image:
    """Returns the picture of a file as it is looked at, in red, green and blue: the only reader of pictures.

    It is turned as its EXIF says, lies on white where it is transparent, and is the first one of several. `info` has its texts.

    `name`: what the log calls it where it is the first of several.
    `left`: pixels that it may have, if fewer than MOST_PIXELS.

    Raises:
        ValueError: it is not one of `formats`, is damaged, or would take too much memory. The text continues a sentence.
    """
    with _decoding(content, formats) as picture:
        _within(picture.size, left)
        frames = getattr(picture, "n_frames", 1)
        if name and frames > 1 and picture.format != "MPO":  # the second one of a telephone's JPEG is not shown
            logger.warning("%s has %d pictures, of which the first is taken", name, frames)
        texts = {key: text for key, text in picture.info.items() if isinstance(text, str)}
        image = _on_white(_turned(picture))
    image.info |= texts
    return image


def stored_size(file: BinaryIO) -> tuple[int, int]:
    """Returns the width and height that the head of a picture's file says, as it lies there. Raises ValueError as `upright`."""
    with _decoding(file, FORMATS) as picture:
        _within(picture.size, math.inf)
        return picture.size


@contextlib.contextmanager
def _decoding(file: bytes | BinaryIO, formats: Sequence[str]) -> Iterator[Image.Image]:
    """Opens a picture. Whatever its decoder raises, the documented and the other, is a ValueError about the file."""
    content: Any = _Bounded(io.BytesIO(file) if isinstance(file, bytes) else file)
    beginning = content.read(10)
    content.seek(0)
    kind = next((kind for sign, kind in LIGHT.items() if formats == FORMATS and beginning.startswith(sign)), None)
    if kind and (lack := extras.wrong(f"is of the kind {kind}, which", "media")):
        raise ValueError(lack)
    try:
        with _light(content.read(), kind) if kind else Image.open(content, formats=[*formats]) as picture:
            yield picture
    except (TooLarge, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise ValueError(f"is not one of {', '.join(formats)}, or its beginning is damaged") from error
    except Exception as error:
        raise ValueError(f"is damaged ({error})") from error


def _light(content: bytes, kind: str) -> Image.Image:
    """Returns what EXR and HDR show: their light as sRGB has it (IEC 61966-2-1), 1 as white, on white where it is transparent."""
    import imageio.v3 as imageio

    how: dict[str, Any] = {"extension": f".{kind.lower()}", "plugin": "pyav"}
    height, width = imageio.improps(content, **how).shape[1:3]
    _within((width, height), math.inf)
    green, blue, red, alpha = imageio.imread(content, format="gbrapf32le", **how)[0]  # [H, W] each
    light = np.nan_to_num(np.stack([red, green, blue], axis=-1) + (1 - alpha[..., None])).clip(0, 1)
    shown = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    return Image.fromarray((shown * 255).round().astype(np.uint8))


def _on_white(picture: Image.Image) -> Image.Image:
    if picture.mode == "F":  # grey in [0, 1], as float TIFF has it
        picture = Image.fromarray((np.nan_to_num(np.asarray(picture)).clip(0, 1) * 255).round().astype(np.uint8))
    if picture.mode.startswith("I"):  # grey of 16 bits, which PIL would cut off at 255
        levels, clear = np.asarray(picture), picture.info.get("transparency")
        picture = Image.fromarray((levels // 257).astype(np.uint8))
        if clear is not None:
            picture.putalpha(Image.fromarray(np.where(levels == clear, 0, 255).astype(np.uint8)))
    if picture.has_transparency_data:
        layer = picture.convert("RGBA")
        picture = Image.new("RGBA", layer.size, "white")
        picture.alpha_composite(layer)
    return picture.convert("RGB")


def _turned(picture: Image.Image) -> Image.Image:
    """Returns it turned as its EXIF says. `ImageOps.exif_transpose` also writes EXIF anew, and fails where that is odd."""
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
    except Exception as error:  # of its EXIF, and not of the picture
        logger.debug("EXIF that cannot be read: %s", error)
        return picture
    turn = turns.get(orientation) if isinstance(orientation, int) else None
    return picture if turn is None else picture.transpose(turn)


def animation(frames: np.ndarray, fps: float, kind: str) -> bytes:
    """A file of one of ANIMATIONS, repeated for ever, of frames [F, H, W, 3] uint8. WebP and APNG keep them to the bit."""
    import imageio.v3 as imageio

    # GIF has hundredths of a second, and Pillow cuts off: so each frame ends at the hundredth next to its end.
    unit = 10 if kind == ".gif" else 1
    ends = [round(number * 1000 / fps / unit) * unit for number in range(len(frames) + 1)]
    durations = [end - begin for begin, end in itertools.pairwise(ends)]
    how: dict[str, Any] = {"extension": kind, "plugin": "pillow", "duration": durations, "loop": 0, "lossless": True}
    return imageio.imwrite("<bytes>", frames, **how)


def mp4(frames: np.ndarray, fps: float, quality: int = 9) -> bytes:
    """H.264 of frames [F, H, W, 3] uint8; an odd side loses a pixel, which the codec cannot keep.

    `quality`: 0 … 10, the best.
    """
    import av
    from av.video.reformatter import Colorspace

    height, width = (side // 2 * 2 for side in frames.shape[1:3])
    content = io.BytesIO()
    with av.open(content, "w", format="mp4") as container:
        # libx264's quantizer goes from 51, the worst, to 0.
        options = {"crf": str(round((10 - quality) * 5.1))} | COLOURS
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001), options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for frame in frames[:, :height, :width]:
            picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
            container.mux(stream.encode(picture.reformat(format="yuv420p", dst_colorspace=Colorspace.ITU709)))
        container.mux(stream.encode())
    return content.getvalue()
