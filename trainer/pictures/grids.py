"""Pictures and videos in grids with captions, and how a picture is saved. Pictures are [H, W, 3] uint8."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...host.files import write_bytes
from .media import mp4

if TYPE_CHECKING:
    from torch import Tensor

FRAMES_PER_SECOND = 16  # of videos, as Wan makes them


def sample_grid(images: Tensor, captions: Sequence[str], columns: int = 8, scale: int | None = None) -> np.ndarray:
    """Pictures [N, H, W, 3] in rows, each with its caption beneath; small ones are enlarged by whole pixels."""
    from PIL import Image, ImageDraw, ImageFont

    count, height, width = images.shape[:3]
    columns = min(columns, count)
    scale = scale or max(1, 120 // width)
    cell, line, gap = (width * scale, height * scale), 11, 8
    font = ImageFont.load_default(10)
    wrapped = [textwrap.wrap(caption, max(10, cell[0] // 5))[:3] for caption in captions]
    text_height = line * max((len(lines) for lines in wrapped), default=0) + gap
    sheet = Image.new(
        "RGB",
        (columns * (cell[0] + gap) + gap, math.ceil(count / columns) * (cell[1] + text_height + gap) + gap),
        "white",
    )
    pen = ImageDraw.Draw(sheet)
    for number, (picture, lines) in enumerate(zip(images, wrapped, strict=True)):
        x = gap + number % columns * (cell[0] + gap)
        y = gap + number // columns * (cell[1] + text_height + gap)
        thumbnail = Image.fromarray((picture.clamp(0, 1) * 255).round().byte().numpy())
        sheet.paste(thumbnail.resize(cell, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS), (x, y))
        for row, text in enumerate(lines):
            pen.text((x, y + cell[1] + 2 + row * line), text, fill="#333333", font=font)
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
    """Videos [N, F, H, W, 3] side by side, as `sample_grid` lays them out, in one mp4."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sheets = np.stack([sample_grid(frame, captions) for frame in videos.transpose(0, 1)])
    write_bytes(path, mp4(sheets, FRAMES_PER_SECOND, quality=5))


def save(picture: np.ndarray, path: Path) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    Image.fromarray(picture).save(content, format=Image.registered_extensions().get(path.suffix.lower()))
    write_bytes(path, content.getvalue())


def as_image(picture: np.ndarray) -> Tensor:
    """ComfyUI's IMAGE [1, H, W, 3] in [0, 1]."""
    return torch.from_numpy(picture.astype(np.float32) / 255)[None]
