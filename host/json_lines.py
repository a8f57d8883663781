"""Files of one JSON object a line: read so that damage names its line, and what a kill cut short is left out.

No more of a file is in memory at a time than a line may have: a hole of gigabytes is a line without an end.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from . import files, json_files
from .errors import Expected
from .files import Damaged
from .json_files import check

logger = logging.getLogger(__name__)

MOST_BYTES = 4 * 1024**3  # of a file
MOST_LINE = 64 * 1024**2  # bytes of a line


class TooLong(Expected, ValueError):
    """A line, or a file, of more bytes than are read."""


def lines(file: BinaryIO, most_bytes: int = MOST_BYTES, most_line: int = MOST_LINE) -> Iterator[bytes]:
    """The lines from where a file stands, with their line breaks; the last may lack its own.

    Raises:
        TooLong: where a line has more than `most_line` bytes, or all together more than `most_bytes`.
    """
    while line := file.readline(most_line + 1):
        most_bytes -= len(line)
        if len(line) > most_line or most_bytes < 0:
            what = f"is longer than the {most_line:,}" if len(line) > most_line else "goes beyond the number of"
            raise TooLong(f"{what} bytes that are read")
        yield line


def read_lines(
    path: Path,
    row_check: Callable[[dict], None],
    say: Callable[[str], None] = logger.warning,
    fix: str = "remove that line",
) -> list[dict]:
    """The objects of a file, an empty list if it is missing. A last line that a kill cut short is left out, and that is said.

    Only a line without its line break was cut short. Blank lines are skipped.

    `row_check`: raises ValueError for a row that is wrong.

    Raises:
        Damaged: names the line.
    """
    rows: list[dict] = []
    with files.opened(path) as file:
        number, line = 0, b""
        try:
            for line in lines(file) if file else ():
                number += 1
                if line.strip():
                    row = json_files.parse(line)
                    check(row, dict, {})
                    row_check(row)
                    rows.append({sys.intern(name): value for name, value in row.items()})  # names are once in memory
        except TooLong as error:
            raise Damaged(path, f"is damaged: line {number + 1} {error}", fix) from error
        except ValueError as error:
            if line.endswith(b"\n") or not _cut_short(error):
                raise Damaged(path, f"is damaged: line {number} {error}", fix) from error
            say(f"{path}, line {number}: the last line was cut short, and is left out")
    return rows


def _cut_short(error: ValueError) -> bool:
    return str(error).startswith(("is not JSON", "is not text"))
