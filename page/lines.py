"""Reads the JSON-lines files of a run while its trainer writes them. A line that is damaged, or cut short, is left out."""

from __future__ import annotations

import codecs
import itertools
import os
import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from ..host import json_files
from ..trainer.run.folder import check_iteration

MOST_ROWS = 10_000  # of metrics in one answer: some 20 MB
TAIL = 16 * 1024  # bytes that hold the last row of nearly every run


NO_ROW = -1  # in place of the iteration of a line that is none
MOST_LINE = 1024**2  # bytes of one row; a longer line is no row


@dataclass
class LineIndex:
    """Where the lines of a growing JSON-lines file begin, so that a poll reads only what is new.

    Line k holds iteration k + 1, as the trainer writes them. A resumed run rewrites the file; that shows by its last known
    line, whose timings never come twice. Who asks for the last row alone, as the list of all runs does, has the file read from
    its end, and not indexed.
    """

    starts: array = field(default_factory=lambda: array("Q"))
    end: int = 0  # of the last complete line
    last_line: bytes = b""
    rewrites: int = 0  # how often the file turned out to be another one than before
    _iterations: array = field(default_factory=lambda: array("q"))  # of the lines that were checked, from the first one
    _indexed: int = 0  # up to where `starts` knows all lines
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def rows(self, path: Path | None, after: int) -> tuple[list[dict], bool]:
        with self._lock:
            if path is None or self._index(path) <= after:
                return [], False
            more = len(self.starts) - after > MOST_ROWS
            first, end = self.starts[after], self.starts[after + MOST_ROWS] if more else self.end
        with open(path, "rb") as file:
            file.seek(first)
            rows = map(parsed, file.read(end - first).splitlines())
        return [row for row in rows if row and row["iteration"] > after], more

    def texts(self, path: Path | None, after: int) -> tuple[list[bytes], bool]:
        """As `rows`, each as it stands in the file. A line is checked once: a long run is shown again without parsing it."""
        with self._lock:
            count = 0 if path is None else self._index(path)
            if path is None or count <= after:
                return [], False
            more = count - after > MOST_ROWS
            until = after + MOST_ROWS if more else count
            with open(path, "rb") as file:
                file.seek(self.starts[after])
                lines = file.read((self.starts[until] if more else self.end) - self.starts[after]).splitlines()
            if len(self._iterations) < after:  # whoever asks first asks from the beginning; else the rest is read now
                self._check(path)
            for line in lines[len(self._iterations) - after :]:
                self._iterations.append((parsed(line) or {}).get("iteration", NO_ROW))
            kept = zip(lines, self._iterations[after:until], strict=True)
            return [line.removeprefix(codecs.BOM_UTF8) for line, iteration in kept if iteration > after], more

    def _check(self, path: Path) -> None:
        with open(path, "rb") as file:
            for line in itertools.islice(file, len(self._iterations), len(self.starts)):
                self._iterations.append((parsed(line) or {}).get("iteration", NO_ROW))

    def last(self, path: Path | None) -> dict | None:
        with self._lock:
            if path is None:
                return None
            with open(path, "rb") as file:
                self._notice_rewrite(file)
                self._read_end(file)
            return parsed(self.last_line) if self.last_line else None

    def _notice_rewrite(self, file: BinaryIO) -> None:
        file.seek(self.end - len(self.last_line))
        if file.read(len(self.last_line)) != self.last_line:
            self.starts, self.end, self.last_line, self._indexed = array("Q"), 0, b"", 0
            self._iterations = array("q")
            self.rewrites += 1

    def _read_end(self, file: BinaryIO) -> None:
        """Takes note of the last complete line."""
        size = file.seek(0, os.SEEK_END)
        for length in (TAIL, 2 * MOST_LINE):
            start = max(self.end, size - length)
            file.seek(start)
            tail = file.read(size - start)
            whole = tail[: tail.rfind(b"\n") + 1]
            begin = whole.rfind(b"\n", 0, -1) + 1  # 0: in this tail no earlier line ends
            if not whole or begin == 0 and start > self.end:
                continue
            self.end, self.last_line = start + len(whole), whole[begin:]
            return

    def _index(self, path: Path) -> int:
        """Reads on from where the index ends; returns the number of complete lines."""
        with open(path, "rb") as file:
            self._notice_rewrite(file)
            file.seek(self._indexed)
            for line in file:
                if not line.endswith(b"\n"):  # still being written
                    break
                self.starts.append(self._indexed)
                self._indexed += len(line)
                self.last_line = line
            self.end = self._indexed
        return len(self.starts)


def parsed(line: bytes, check: Callable[[dict], None] = check_iteration) -> dict | None:
    """A row that is as the trainer writes them; None for one that is not, such as one that a kill cut short."""
    try:
        row = json_files.parse(line)
        check(row)
    except ValueError:
        return None
    return row


def all_rows(path: Path | None, check: Callable[[dict], None]) -> list[dict]:
    """Of a small file, which is read as a whole; none where there is no file."""
    lines = path.read_bytes().splitlines() if path else ()
    return list(filter(None, (parsed(line, check) for line in lines)))
