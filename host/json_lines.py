"""Files of one JSON object a line: read so that damage names its line, and added to so that a kill loses no line before."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from . import files, json_files
from .files import Damaged
from .json_files import check

logger = logging.getLogger(__name__)

MOST_BYTES = 4 * 1024**3


def read_lines(
    path: Path,
    row_check: Callable[[dict], None],
    say: Callable[[str], None] = logger.warning,
    fix: str = "remove that line",
) -> list[dict]:
    """The objects of a file, an empty list if it is missing. A last line that a kill cut short is left out, and that is said.

    Only a line without its line break was cut short. Blank lines are skipped.

    Args:
        row_check: raises ValueError for a row that is wrong.

    Raises:
        Damaged: names the line.
    """
    content = files.read_bytes(path, MOST_BYTES) or b""
    body, ended = _without_blank_end(content)
    lines = body.split(b"\n") if body else []
    rows: list[dict] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json_files.parse(line)
            check(row, dict, {})
            row_check(row)
        except ValueError as error:
            if number == len(lines) and not ended and _cut_short(error):
                say(f"{path}, line {number}: the last line was cut short, and is left out")
                break
            raise Damaged(path, f"is damaged: line {number} {error}", fix) from error
        rows.append(row)
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
    file.seek(0)
    content = file.read()
    body, ended = _without_blank_end(content)
    begin = body.rfind(b"\n") + 1
    try:
        json_files.parse(body[begin:] or b"{}")
    except ValueError as error:
        if ended or not _cut_short(error):
            raise OSError(f"its last line {error}. Fix: correct or remove that line") from error
        body, _ = _without_blank_end(body[:begin])
    if not body:
        return 0
    if content[len(body) : len(body) + 1] != b"\n":
        file.seek(len(body))
        file.write(b"\n")
    return len(body) + 1


def _without_blank_end(content: bytes) -> tuple[bytes, bool]:
    """A file without the blank lines at its end, and whether its last line has its line break."""
    body = content.rstrip(b" \t\r\n")
    return body, b"\n" in content[len(body) :]


def _cut_short(error: ValueError) -> bool:
    return str(error).startswith(("is not JSON", "is not text"))
