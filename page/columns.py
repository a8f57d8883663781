"""The figures of a run by their names, one list each: what curves are drawn of, without ten thousand objects."""

from __future__ import annotations

import bisect
import math
import threading
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .lines import LineIndex

MOST_RUNS = 8  # whose figures are kept; ten thousand iterations of sixty figures are 5 MB
_MISSING = math.nan


class Columns:
    """Figures of a growing metrics.jsonl. Only lines that are new are parsed."""

    def __init__(self) -> None:
        self._iterations: array = array("q")
        self._columns: dict[str, array] = {}
        self._rewrites = 0
        self._index: LineIndex | None = None
        self._lock = threading.Lock()

    def read(self, index: LineIndex, path: Path | None, names: Iterable[str], after: int) -> dict[str, Any]:
        """{iterations, columns: {name: [figure or None]}, names: of all figures, rewrites} after an iteration.

        A name that the run does not have has no column.
        """
        with self._lock:
            self._refresh(index, path)
            first = bisect.bisect_right(self._iterations, after)
            for column in self._columns.values():
                column.extend([_MISSING] * (len(self._iterations) - len(column)))  # the last iterations lacked it
            chosen = {name: self._columns[name] for name in names if name in self._columns}
            return {
                "iterations": self._iterations[first:].tolist(),
                "columns": {name: list(map(_or_none, column[first:])) for name, column in chosen.items()},
                "names": list(self._columns),
                "rewrites": self._rewrites,
            }

    def _refresh(self, index: LineIndex, path: Path | None) -> None:
        index.last(path)  # notices a file that was written anew
        if index is not self._index or index.rewrites != self._rewrites:  # another run of that name, or written anew
            self._iterations, self._columns = array("q"), {}
            self._index, self._rewrites = index, index.rewrites
        more = True
        while more:
            rows, more = index.rows(path, self._iterations[-1] if self._iterations else 0)
            for row in rows:
                self._add(row)
            more = more and bool(rows)

    def _add(self, row: dict[str, Any]) -> None:
        count = len(self._iterations)
        self._iterations.append(row["iteration"])
        for name, value in row.items():
            if name == "iteration" or not isinstance(value, int | float | None):
                continue
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = array("d", [_MISSING]) * count
            column.extend([_MISSING] * (count - len(column)))  # iterations that lacked it
            column.append(_MISSING if value is None else value)


def _or_none(value: float) -> float | None:
    return None if value != value else value


class ColumnsOfRuns:
    """Those of the runs that were looked at last."""

    def __init__(self) -> None:
        self._kept: dict[Path, Columns] = {}
        self._lock = threading.Lock()

    def of(self, folder: Path) -> Columns:
        with self._lock:
            columns = self._kept.pop(folder, None) or Columns()
            self._kept[folder] = columns
            while len(self._kept) > MOST_RUNS:
                del self._kept[next(iter(self._kept))]
            return columns
