"""Files of one JSON object a line: read so that damage names its line, and added to so that a kill loses no line before.

No more of a file is in memory at a time than a line may have: a hole of gigabytes is a line without an end.
"""

from __future__ import annotations

import logging
import os
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


def append_line(path: Path, line: str) -> None:
    """Adds a line, and returns once the disk has it. Processes that add to it wait for each other, by a `.lock` beside it.

    What a kill left of a last line is removed before, and so are blank lines at the end.

    Raises:
        OSError: it cannot be written, and no half of it is left; or what stands there is not a plain file of lines.
    """
    new = not files.present(path)
    descriptor = files.open_plain(path, os.O_RDWR | os.O_CREAT)
    with files.alone(path.with_suffix(".lock")), open(descriptor, "r+b", buffering=0) as file:
        end = _end_of_lines(file)
        try:
            file.truncate(end)
            file.seek(end)
            rest = line.encode() + b"\n"
            while rest:
                rest = rest[file.write(rest) :]
            os.fsync(descriptor)
        except OSError:
            file.truncate(end)
            raise
    if new:
        files.flush(path.parent)


def _end_of_lines(file) -> int:
    """Where the last whole line ends, after its line break, which it gets where it lacks one."""
    start = file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_LINE))
    content = file.read()
    body, ended = _without_blank_end(content)
    begin = body.rfind(b"\n") + 1
    if start and not begin:
        raise OSError(f"its last line is longer than the {MOST_LINE:,} bytes that are read. Fix: remove that line")
    try:
        json_files.parse(body[begin:] or b"{}")
    except ValueError as error:
        if ended or not _cut_short(error):
            raise OSError(f"its last line {error}. Fix: correct or remove that line") from error
        body, _ = _without_blank_end(body[:begin])
    if not body:
        return start + begin if start else 0
    if content[len(body) : len(body) + 1] != b"\n":
        file.seek(start + len(body))
        file.write(b"\n")
    return start + len(body) + 1


def _without_blank_end(content: bytes) -> tuple[bytes, bool]:
    """A file without the blank lines at its end, and whether its last line has its line break."""
    body = content.rstrip(b" \t\r\n")
    return body, b"\n" in content[len(body) :]


def _cut_short(error: ValueError) -> bool:
    return str(error).startswith(("is not JSON", "is not text"))
