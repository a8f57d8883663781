"""The one reader of a run's files. It remembers what it has read, so that a poll, or a list of hundreds of runs, reads only what
is new. A line of a file that is damaged, or that a kill cut short, is left out; at one that is too long the file counts as cut.
"""

from __future__ import annotations

import bisect
import codecs
import contextlib
import math
import os
import stat
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..host import claim, json_files, json_lines
from ..trainer import keys
from ..trainer.run import verdicts
from ..trainer.run.folder import CHANGES, EVALUATIONS, METRICS, check_evaluation, check_iteration

MOST_ROWS, MOST_ANSWER = 10_000, 32 * 1024**2  # of metrics in one answer, and their bytes
TAIL = 16 * 1024  # bytes that hold the last row of nearly every run
MOST_LINE = 4 * 1024**2  # bytes of one row
MOST_BYTES = {METRICS: 512 * 1024**2, EVALUATIONS: 64 * 1024**2, CHANGES: 64 * 1024**2}  # of a file
MOST_CELLS = 16 * 1024**2  # figures of one run in memory: of 60 in an iteration, a quarter of a million iterations
NAME_CELLS = 32  # that the name of a figure takes
SETTLED = frozenset({"finished", "stopped", "failed"})  # how a run stands whatever its process does
_MISSING = math.nan

Summary = dict[str, Any]
State = tuple[tuple, ...]  # of all that lies in a folder


class Reader:
    """A reader of one run: the rows of its metrics.jsonl, and its summary once it has ended.

    A resumed run rewrites metrics.jsonl; that shows by the last known line, whose timings never come twice. Only a request for
    rows or figures has the whole file parsed: for the last row, which the list of all runs asks for, its end is enough.

    Attributes:
        rewrites: how often the file turned out to be another one than before.
        cut: from where on the file is not read, in a sentence; empty where it is read to its end.
    """

    def __init__(self) -> None:
        self.rewrites = 0
        self._lock = threading.RLock()
        self._end, self._last_line = 0, b""  # of the last complete line that is known
        self._known: tuple[State, Summary] | None = None
        self.let_go()

    def let_go(self) -> None:
        """Forgets rows and figures, which take some 5 MB for ten thousand rows; they are read again when asked for."""
        with self._lock:  # and not while another thread adds to them
            self._starts, self._stops, self._iterations = array("Q"), array("Q"), array("q")  # of each row
            self._figures: dict[str, array] = {}  # by name, at most one a row
            self._parsed = self._lines = self._cells = 0  # bytes, lines, and figures
            self.cut = ""

    def last(self, path: Path | None) -> dict | None:
        """The last row; None before the first one."""
        if path is None:
            return None
        with self._lock, open(path, "rb") as file:
            self._notice_rewrite(file)
            self._read_end(file)
            return parsed(self._last_line) if self._last_line else None

    def texts(self, path: Path | None, after: int) -> tuple[list[bytes], bool]:
        """The rows of the iterations after that one as they stand in the file, and whether there are more than fit into one
        answer."""
        if path is None:
            return [], False
        with self._lock, open(path, "rb") as file:
            self._parse(file)
            first = bisect.bisect_right(self._iterations, after)
            starts, stops = self._starts[first : first + MOST_ROWS], self._stops[first : first + MOST_ROWS]
            if not starts:
                return [], False
            fitting = max(1, bisect.bisect_right(stops, starts[0] + MOST_ANSWER))
            starts, stops = starts[:fitting], stops[:fitting]
            file.seek(starts[0])
            content = file.read(stops[-1] - starts[0])
            rows = [content[a - starts[0] : b - starts[0]] for a, b in zip(starts, stops, strict=True)]
            return [row.removeprefix(codecs.BOM_UTF8) for row in rows], first + len(rows) < len(self._starts)

    def figures(self, path: Path | None, names: Iterable[str], after: int) -> dict[str, Any]:
        """{iterations, columns: {name: [figure or None]}, names: of all figures, rewrites} after an iteration.

        A name that the run does not have has no column.
        """
        with self._lock:
            if path is not None:
                with open(path, "rb") as file:
                    self._parse(file)
            first = bisect.bisect_right(self._iterations, after)
            chosen = {name: self._figures[name][first:] for name in names if name in self._figures}
            lacks = {name: [None] * (len(self._iterations) - first - len(column)) for name, column in chosen.items()}
            return {
                "iterations": self._iterations[first:].tolist(),
                "columns": {n: [None if v != v else v for v in column] + lacks[n] for n, column in chosen.items()},
                "names": list(self._figures),
                "rewrites": self.rewrites,
            }

    def summary(self, folder: Path, read: Callable[[], Summary]) -> Summary:
        """The result of `read`; of a run that has ended it is remembered until the folder changes."""
        with self._lock:
            state = _state(folder)
            if self._known is not None and self._known[0] == state:
                return self._known[1]
            summary = read()
            lasts = summary["status"] in SETTLED and all(name != claim.CLAIM for name, *_ in state or ())
            self._known = (state, summary) if state is not None and lasts else None
            return summary

    def _notice_rewrite(self, file: BinaryIO) -> None:
        file.seek(self._end - len(self._last_line))
        if file.read(len(self._last_line)) != self._last_line:
            self._end, self._last_line = 0, b""
            self.let_go()
            self.rewrites += 1

    def _read_end(self, file: BinaryIO) -> None:
        """Takes note of the last complete line."""
        size = file.seek(0, os.SEEK_END)
        for length in (TAIL, MOST_LINE):
            start = max(self._end, size - length)
            file.seek(start)
            tail = file.read(size - start)
            whole = tail[: tail.rfind(b"\n") + 1]
            begin = whole.rfind(b"\n", 0, -1) + 1  # 0: in this tail no earlier line ends
            if not whole or begin == 0 and start > self._end:
                continue
            self._end, self._last_line = start + len(whole), whole[begin:]
            return

    def _parse(self, file: BinaryIO) -> None:
        """Reads on from where the parsed lines end, unless the file is cut there."""
        self._notice_rewrite(file)
        file.seek(self._parsed)
        self.cut = ""
        try:
            for line in json_lines.lines(file, MOST_BYTES[METRICS] - self._parsed, MOST_LINE):
                if not line.endswith(b"\n"):  # still being written
                    break
                if row := parsed(line):
                    self._add(row, len(line))
                self._parsed, self._lines = self._parsed + len(line), self._lines + 1
                if self._parsed >= self._end:
                    self._end, self._last_line = self._parsed, line
        except json_lines.TooLong as error:
            self.cut = _cut(METRICS, self._lines, error)

    def _add(self, row: dict[str, Any], length: int) -> None:
        count = len(self._iterations)
        self._make_room(3)
        self._iterations.append(row["iteration"])
        self._starts.append(self._parsed)
        self._stops.append(self._parsed + length - 1)
        for name, value in row.items():
            if name != "iteration" and (value is None or isinstance(value, bool) or json_files.is_number(value)):
                column = self._figures.get(name, array("d"))
                lacks = count - len(column)  # iterations that lacked it
                self._make_room(lacks + 1 if column else lacks + NAME_CELLS)
                column.extend([_MISSING] * lacks)
                column.append(_MISSING if value is None else value)
                self._figures[name] = column

    def _make_room(self, cells: int) -> None:
        self._cells += cells
        if self._cells > MOST_CELLS:
            raise json_lines.TooLong("has more figures than are kept")


def _state(folder: Path) -> State | None:
    """Changes when a file of the folder does, or a checkpoint comes or goes; None if a link makes that unknowable."""
    with os.scandir(folder) as entries:
        files = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
    if any(stat.S_ISLNK(state.st_mode) for _, state in files):
        return None
    return tuple(sorted((name, state.st_ino, state.st_size, state.st_mtime_ns) for name, state in files))


def parsed(line: bytes, check: Callable[[dict], None] = check_iteration) -> dict | None:
    """A row that is as the trainer writes them; None for one that is not, such as one that a kill cut short."""
    try:
        row = json_files.parse(line)
        check(row)
    except ValueError:
        return None
    return row


def rows(path: Path | None, check: Callable[[dict], None], say: Callable[[str], object] = str) -> Iterator[dict]:
    """The rows of a file that is read again at each request; none without a file. `say` hears where it is cut."""
    number = 0
    if path is None:
        return
    with open(path, "rb") as file:
        try:
            for line in json_lines.lines(file, MOST_BYTES[path.name], MOST_LINE):
                number += 1
                if row := parsed(line, check):
                    yield row
        except json_lines.TooLong as error:
            say(_cut(path.name, number, error))


def _cut(name: str, number: int, error: Exception) -> str:
    return f"{name} is shown up to line {number}: the next one {error}. Fix: remove it"


def score(path: Path | None) -> float | None:
    """The evaluation/sum of a run's last evaluation, which compares runs of other rewards, too; None before the second one."""
    lines: list[bytes] = []
    with contextlib.suppress(json_lines.TooLong), open(path or os.devnull, "rb") as file:
        lines.extend(json_lines.lines(file, MOST_BYTES[EVALUATIONS], MOST_LINE))  # of a thousand runs: two are parsed
    ways = ((parsed(line, check_evaluation) for line in way) for way in (lines, reversed(lines)))
    ends = [next(filter(None, way), {}) for way in ways]
    return verdicts.metric_value(ends[:1], ends[1], keys.EVALUATION_SUM) if ends[0] != ends[1] else None
