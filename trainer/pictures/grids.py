"""Pictures and videos in grids with captions, where each picture is in a grid, and how one is saved.

Pictures are [H, W, 3] uint8. Imports no torch.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...host.files import write_bytes
from .media import ANIMATIONS, animation, mp4

if TYPE_CHECKING:
    from torch import Tensor


COLUMNS, GAP, LINE = 8, 8, 11
MOST_SHOWN = 32  # pictures of an evaluation in a grid
MOST_LINES = 3  # of a caption
Box = tuple[int, int, int, int]  # left, top, width, height in pixels


@dataclass(frozen=True)
class Sheet:
    """A grid of pictures of one size, `cell`: [width, height], each with its caption beneath."""

    cell: tuple[int, int]
    captions: tuple[tuple[str, ...], ...]  # lines of each
    columns: int

    @property
    def text_height(self) -> int:
        return LINE * max(map(len, self.captions), default=0) + GAP

    @property
    def size(self) -> tuple[int, int]:
        rows = math.ceil(len(self.captions) / self.columns)
        width, height = self.cell
        return self.columns * (width + GAP) + GAP, rows * (height + self.text_height + GAP) + GAP

    def box(self, number: int) -> Box:
        """Where that picture is."""
        width, height = self.cell
        row, column = divmod(number, self.columns)
        return GAP + column * (width + GAP), GAP + row * (height + self.text_height + GAP), width, height


def laid_out(cell: tuple[int, int], captions: Sequence[str], columns: int = COLUMNS) -> Sheet:
    lines = (tuple(textwrap.wrap(caption, max(10, cell[0] // 5))[:MOST_LINES]) for caption in captions)
    return Sheet(cell, tuple(lines), min(columns, len(captions)))


def found_in(size: tuple[int, int], captions: Sequence[str]) -> Sheet | None:
    """The layout of a grid of that size, which was made with these captions; None if it was made otherwise."""
    count = len(captions)
    if not count:
        return None
    columns = min(COLUMNS, count)
    rows = math.ceil(count / columns)
    width = (size[0] - GAP) // columns - GAP
    height = (size[1] - GAP) // rows - GAP - laid_out((max(1, width), 1), captions).text_height
    sheet = laid_out((width, height), captions)
    return sheet if width > 0 and height > 0 and sheet.size == tuple(size) else None


FRAMES_PER_SECOND = 16  # of videos, as Wan makes them


def sample_grid(
    images: Tensor, captions: Sequence[str], columns: int = COLUMNS, scale: int | None = None
) -> np.ndarray:
    """Pictures [N, H, W, 3] in rows, each with its caption beneath; small ones are enlarged by whole pixels."""
    from PIL import Image, ImageDraw, ImageFont

    height, width = images.shape[1:3]
    scale = scale or max(1, 120 // width)
    layout, font = laid_out((width * scale, height * scale), captions, columns), ImageFont.load_default(10)
    grid = Image.new("RGB", layout.size, "white")
    pen = ImageDraw.Draw(grid)
    for number, (picture, lines) in enumerate(zip(images, layout.captions, strict=True)):
        x, y, *_ = layout.box(number)
        thumbnail = Image.fromarray((picture.clamp(0, 1) * 255).round().byte().numpy())
        enlarged = thumbnail.resize(layout.cell, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS)
        grid.paste(enlarged, (x, y))
        for row, text in enumerate(lines):
            pen.text((x, y + layout.cell[1] + 2 + row * LINE), text, fill="#333333", font=font)
    return np.asarray(grid)


def note(text: str) -> np.ndarray:
    """A picture of a text, in the place of one that cannot be drawn."""
    from PIL import Image, ImageDraw, ImageFont

    lines, font = textwrap.wrap(text, 60), ImageFont.load_default(15)
    sheet = Image.new("RGB", (480, 20 + 20 * len(lines)), "white")
    for row, line in enumerate(lines):
        ImageDraw.Draw(sheet).text((10, 10 + 20 * row), line, fill="#333333", font=font)
    return np.asarray(sheet)


def before_after(
    before: Tensor,
    after: Tensor,
    captions: Sequence[str],
    limit: int = 16,
    titles: tuple[str, str] = ("before training", "after training"),
) -> np.ndarray:
    """Two sample grids of the same prompts and seeds under each other, with a heading each."""
    from PIL import Image, ImageDraw, ImageFont

    sheets = [sample_grid(pictures[:limit], captions[:limit]) for pictures in (before, after)]
    band, font = 24, ImageFont.load_default(15)
    parts = []
    for title, sheet in zip(titles, sheets, strict=True):
        heading = Image.new("RGB", (sheet.shape[1], band), "white")
        ImageDraw.Draw(heading).text((8, 5), title, fill="#000000", font=font)
        parts += [np.asarray(heading), sheet]
    return np.concatenate(parts)


def stills(images: Tensor) -> Tensor:
    """[N, H, W, 3]: pictures as they are, and the middle frame of videos [N, F, H, W, 3]."""
    return images if images.ndim == 4 else images[:, images.shape[1] // 2]


def save_video(videos: Tensor, captions: Sequence[str], path: Path) -> None:
    """Videos [N, F, H, W, 3] side by side, as `sample_grid` lays them out, in one mp4, or one of ANIMATIONS."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sheets = np.stack([sample_grid(frame, captions) for frame in videos.transpose(0, 1)])
    kind, fps = path.suffix.lower(), FRAMES_PER_SECOND
    write_bytes(path, animation(sheets, fps, kind) if kind in ANIMATIONS else mp4(sheets, fps, quality=5))


def save(picture: np.ndarray, path: Path) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    Image.fromarray(picture).save(content, format=Image.registered_extensions().get(path.suffix.lower()))
    write_bytes(path, content.getvalue())


def as_image(picture: np.ndarray) -> Tensor:
    """ComfyUI's IMAGE [1, H, W, 3] in [0, 1]."""
    import torch

    return torch.from_numpy(picture.astype(np.float32) / 255)[None]
