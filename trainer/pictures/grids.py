"""Pictures and videos in grids with captions, and how a picture is saved. Pictures are [H, W, 3] uint8."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...host.files import write_bytes
from .media import mp4
from .sheet import COLUMNS, LINE, laid_out

if TYPE_CHECKING:
    from torch import Tensor

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
