"""How a grid of captioned pictures is laid out, so that a picture can be found again in it. Imports no torch."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

COLUMNS, GAP, LINE = 8, 8, 11
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


def found_in(size: tuple[int, int], captions: Sequence[str], columns: int = COLUMNS) -> Sheet | None:
    """The layout of a grid of that size, which was made with these captions; None where it was made otherwise."""
    count = len(captions)
    if not count:
        return None
    columns, rows = min(columns, count), math.ceil(count / min(columns, count))
    width = (size[0] - GAP) // columns - GAP
    height = (size[1] - GAP) // rows - GAP - laid_out((max(1, width), 1), captions, columns).text_height
    sheet = laid_out((width, height), captions, columns)
    return sheet if width > 0 and height > 0 and sheet.size == tuple(size) else None
