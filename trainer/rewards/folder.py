"""A folder of pictures of any sizes, ranked by several rewards, and pictures saved best first with their scores.

The folder is named by a workflow, which may be a stranger's: `host.access` says what it may be.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from ...host import errors, paths, stopping
from ...host.access import folders, opening, permissions
from ...host.access.opening import shown
from ...host.files import write_bytes, write_text
from ..pictures import media
from . import ranking
from .base import Columns, Reward, one_by_one, score_part, trained_first

logger = logging.getLogger(__name__)

WHY = permissions.PICTURES
TOGETHER = 16  # pictures of one size that a reward sees at a time
LONGEST_SIDE = 1024  # of the batch that goes on: a thousand photographs would not fit into main memory
TEXT, TABLE = "otca_scores", "scores.csv"


class FolderError(errors.Expected, ValueError):
    """A folder that has no pictures to rank, with the fix."""


@dataclass(frozen=True)
class Found:
    """Pictures of a folder by their names in it, and how many more there are beyond the limit."""

    folder: Path
    names: tuple[str, ...]
    left: int


class RankedFolder(NamedTuple):
    """The ranking of a folder.

    Attributes:
        images: [B, H, W, 3], the pictures that could be read in the first one's shape: scaled until they cover it, and cropped
            about their centre.
        ranked: the same.
        names: theirs.
        said: which were left out, and why.
    """

    images: Tensor
    ranked: ranking.Ranking
    names: tuple[str, ...]
    said: list[str]


def find(name: str, limit: int) -> Found:
    """The first pictures by name of a folder and those below it, `limit` at most.

    Raises:
        NotAllowed: a folder that workflows may not read.
        FolderError: there is no folder of that name, or it holds no picture.
    """
    try:
        path = opening.in_time(lambda: folders.input_folder(name, WHY))
        names = opening.in_time(lambda: folders.names_below(path, permissions.PICTURE_SUFFIXES))
    except permissions.NotAllowed:
        raise
    except OSError as error:
        raise FolderError(
            f"{error}. Fix: name a folder of ComfyUI's input or output folder, as in input/cats, output or output/cats"
        ) from error
    if not names:
        kinds = ", ".join(permissions.PICTURE_SUFFIXES)
        raise FolderError(f"{path} holds no picture ({kinds}), nor does a folder below it. Fix: name another folder")
    return Found(path, tuple(names[:limit]), max(0, len(names) - limit))


def state(name: str, limit: int) -> list[tuple[str, int, int]]:
    """Changes when a picture does. Raises as `find`."""
    folder = find(name, limit)
    stats = opening.in_time(lambda: [os.stat(folder.folder / file) for file in folder.names])
    return [(file, stat.st_mtime_ns, stat.st_size) for file, stat in zip(folder.names, stats, strict=True)]


def read(folder: Path, name: str) -> Image.Image:
    """One of a folder's pictures, upright. Raises ValueError, with what is wrong."""
    try:
        return opening.in_time(
            lambda: media.upright(folders.read_below(folder, name, permissions.MOST_PICTURE_BYTES), name)
        )
    except (OSError, opening.Refused) as error:
        raise ValueError(str(getattr(error, "strerror", None) or error)) from error


def reader(found: Found, names: Sequence[str]) -> Callable[[int], Image.Image]:
    """Gives one of these pictures of the folder by its number."""
    return lambda number: read(found.folder, names[number])


def rank(
    found: Found, rewards: Sequence[Reward], prompt: str, one_a_line: bool, on_step: Callable[[], None] = lambda: None
) -> RankedFolder:
    """Ranks a folder's pictures. Rewards judge each in its own size; those that compare pictures see `images`.

    `prompt`, `one_a_line`: as `ranking.prompts_of` takes them, for all names of `found`.
    `on_step`: called once a picture.

    Raises:
        FolderError: none can be read.
        RewardError, ValueError: as `ranking.rank` and `ranking.prompts_of`.
    """
    ranking.check(rewards)
    of_name = dict(zip(found.names, ranking.prompts_of(prompt, len(found.names), one_a_line), strict=True))
    single = one_by_one(trained_first(rewards))
    names: list[str] = []
    images: list[np.ndarray] = []
    unread: dict[str, str] = {}
    parts: list[Columns] = []
    waiting: list[np.ndarray] = []

    def score_those_waiting() -> None:
        if waiting:
            first = len(names) - len(waiting)
            texts = [of_name[name] for name in names[first:]]
            with stopping.one_bar():
                parts.append(score_part(single, _floats(waiting), texts, first, stopping.check_stop))
            waiting.clear()

    for name in found.names:
        on_step()
        try:
            picture = read(found.folder, name)
        except ValueError as error:
            unread[name] = str(error)
            logger.warning("Score Images: %s is left out: it %s", found.folder / name, error)
            continue
        pixels = np.asarray(picture)
        if waiting and (waiting[0].shape != pixels.shape or len(waiting) == TOGETHER):
            score_those_waiting()
        names.append(name)
        waiting.append(pixels)
        scale = min(1.0, LONGEST_SIDE / max(picture.size))
        size = images[0].shape[1::-1] if images else [max(1, round(side * scale)) for side in picture.size]
        images.append(media.fit(picture, *size))
    score_those_waiting()
    if not names:
        first = next(iter(unread))
        raise FolderError(
            f"no picture of the {len(unread)} in {found.folder} can be read: {shown(first)} {unread[first]}. Fix: name a "
            "folder with plain pictures"
        )
    batch = _floats(images)
    ranked = ranking.rank(rewards, batch, [of_name[name] for name in names], stopping.check_stop, parts)
    notes = [f"Left out, since it {wrong}: {name}" for name, wrong in unread.items()]
    if found.left:
        notes.append(f"{found.left} more pictures, by name, are beyond the limit of {len(found.names)}.")
    return RankedFolder(batch, ranked, tuple(names), notes)


def _floats(pictures: Sequence[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.stack(pictures)).float() / 255


# --- saved, best first ------------------------------------------------------------------------------------------------


def save(name: str, ranked: ranking.Ranking, names: Sequence[str], picture: Callable[[int], Image.Image]) -> str:
    """Writes pictures into a new folder, best first, each with its scores in its text; beside them TABLE. Returns a line on it.

    `names`: of the B pictures; empty: they are called by their numbers.
    `picture`: gives one of them by its number, from 0; a PNG's own text is kept.

    Raises:
        ValueError: the name of the folder is not a plain one.
        OSError: it cannot be written.
    """
    folder = paths.ranking_folder(name)
    folder.mkdir(parents=True)
    called: list[str] = list(names) or [f"image_{number}" for number in range(1, len(ranked.order) + 1)]
    values = torch.cat([ranked.scores.values, ranked.scores.held_out], 1)
    columns = [*ranked.scores.names, *ranked.scores.held_out_names]
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["place", "file", "saved_as", "total", *columns])
    for place, number in enumerate(ranked.order.tolist(), 1):
        stopping.check_stop()
        scores = dict(zip(columns, map(_known, values[number].tolist()), strict=True))
        total = _known(float(ranked.totals[number]))
        saved = f"{place:04d}_{Path(called[number]).stem}.png"
        image = picture(number)
        text = PngInfo()
        for key, own in image.info.items():
            if isinstance(key, str) and isinstance(own, str) and key != TEXT:
                text.add_text(key, own)
        about: dict[str, Any] = {"place": place, "of": len(called), "total": total, "scores": scores}
        text.add_text(TEXT, json.dumps(about, ensure_ascii=False))
        content = io.BytesIO()
        image.convert("RGB").save(content, "PNG", pnginfo=text, compress_level=4)
        write_bytes(folder / saved, content.getvalue())
        writer.writerow([place, called[number], saved, total, *scores.values()])
    write_text(folder / TABLE, table.getvalue())
    return f"Saved, best first: {len(called)} pictures and {TABLE} in {folder.parent.name}/{folder.name}."


def _known(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None
