"""Files of one JSON object a line: read so that damage names its line, and added to so that a kill loses no line before."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from . import files, json_files
from .checks import check
from .files import Damaged

logger = logging.getLogger(__name__)

MOST_BYTES = 4 * 1024**3


def read_lines(
    path: Path,
    row_check: Callable[[dict], None],
    say: Callable[[str], None] = logger.warning,
    fix: str = "remove that line",
) -> list[dict]:
    """The objects of a file; none where there is no file. A last line that a kill cut short is left out, and that is said.

    Args:
        row_check: raises ValueError for a row that is none.

    Raises:
        Damaged: names the line.
    """
    lines = (files.read_bytes(path, MOST_BYTES) or b"").split(b"\n")
    if not lines[-1]:
        lines.pop()
    rows: list[dict] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json_files.parse(line)
            check(row, dict, {})
            row_check(row)
        except ValueError as error:
            if number == len(lines) and _cut_short(error):
                say(f"{path}, line {number}: the last line was cut short, and is left out")
                break
            raise Damaged(path, f"is damaged: line {number} {error}", fix) from error
        rows.append(row)
    return rows


def append_line(path: Path, line: str) -> None:
    """Adds a line, and returns once the disk has it. What a kill left of a last line is removed before.

    Raises:
        OSError: it cannot be written, and no half of it is left; or what stands there is no plain file of lines.
    """
    new = not files.present(path)
    descriptor = files.open_plain(path, os.O_RDWR | os.O_CREAT)
    with open(descriptor, "r+b", buffering=0) as file:
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
    file.seek(0)
    content = file.read()
    body = content.removesuffix(b"\n")
    begin = body.rfind(b"\n") + 1
    try:
        json_files.parse(body[begin:] or b"{}")
    except ValueError as error:
        if _cut_short(error):
            return begin
        raise OSError(f"its last line {error}") from error
    if body == content and body:
        file.write(b"\n")
    return len(body) + 1 if body else 0


def _cut_short(error: ValueError) -> bool:
    return str(error).startswith(("is no JSON", "is no text"))
