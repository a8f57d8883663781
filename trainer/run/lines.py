"""The JSON-lines files of a run, which grow by a line at a time, and stay as the run has them in memory."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from ...host import files
from ...host.files import write_text
from .layout import json_line

logger = logging.getLogger(__name__)


class Lines:
    """One file and its rows, which rise by their iteration.

    Args:
        rows: what the file holds.
        writes: whether this process is the one that writes; the others have the rows in memory alone.
    """

    def __init__(self, path: Path, rows: list[dict], writes: bool):
        self.path, self.rows, self.writes = path, rows, writes
        self._left: tuple[int, int] | None = None  # which file it was, and how long, when we last wrote it

    def append(self, row: dict) -> None:
        """Adds a row to those in memory and on disk: to both, or where that fails to neither."""
        if self.rows and row["iteration"] <= self.rows[-1]["iteration"]:
            # Such as the evaluation before training, where that line was lost.
            rows = sorted([*self.rows, row], key=lambda other: other["iteration"])
            if self.writes:
                self._write(rows)
            self.rows[:] = rows
            return
        if self.writes:
            self._append(json_line(row).encode())
        self.rows.append(row)

    def _append(self, line: bytes) -> None:
        self.restore()
        descriptor = files.open_plain(self.path, os.O_WRONLY | os.O_APPEND)
        # Without a buffer, which would write the rest of a line when the file is closed.
        with open(descriptor, "ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                while line:
                    line = line[file.write(line) :]
            except OSError:
                file.truncate(end)
                raise
            self._left = _which(os.fstat(descriptor))

    def restore(self) -> None:
        """Writes the file again where somebody has removed or changed it."""
        try:
            there = _which(os.lstat(self.path))
        except FileNotFoundError:
            there = None
        if there is None or there != self._left:
            what = "gone" if there is None else "not as this run left it: somebody has cut, prolonged or exchanged it"
            logger.warning("%s is %s, and is written again from memory", self.path, what)
            self.write()

    def write(self) -> None:
        """The whole file, as the rows are."""
        self._write(self.rows)

    def _write(self, rows: list[dict]) -> None:
        write_text(self.path, "".join(map(json_line, rows)))
        self._left = _which(os.lstat(self.path))


def _which(state: os.stat_result) -> tuple[int, int]:
    return state.st_ino, state.st_size
