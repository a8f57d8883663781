"""What makes a list of many runs quick: of a run that has ended nothing is read again until something in its folder changes."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..host import claim
from ..trainer import keys
from ..trainer.run import verdicts
from ..trainer.run.folder import check_evaluation
from .lines import parsed

Summary = dict[str, Any]
State = tuple[tuple, ...]  # of all that lies in a folder

SETTLED = frozenset({"finished", "stopped", "failed"})  # how a run stands whatever its process does
MOST_LINE = 1024**2  # bytes of one evaluation


class Remembered:
    """Summaries of runs that have ended, each with the state of the folder that it was read from."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[State, Summary]] = {}

    def summary(self, folder: Path, read: Callable[[], Summary]) -> Summary:
        """What `read` gives, or gave while the folder was as it is now."""
        state = _state(folder)
        known = self._known.get(folder)
        if known is not None and known[0] == state:
            return known[1]
        summary = read()
        self._known.pop(folder, None)
        claimed = state is not None and any(name == claim.CLAIM for name, *_ in state)
        if state is not None and summary["status"] in SETTLED and not claimed:
            self._known[folder] = state, summary
        return summary

    def forget(self, folder: Path) -> None:
        self._known.pop(folder, None)


def _state(folder: Path) -> State | None:
    """Changes when a file of the folder does, or a checkpoint comes or goes; None where a link makes that unknowable."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            seen = entry.stat(follow_symlinks=False)
            if stat.S_ISLNK(seen.st_mode):
                return None
            found.append((entry.name, seen.st_ino, seen.st_size, seen.st_mtime_ns))
    return tuple(sorted(found))


def score(path: Path | None) -> float | None:
    """What the last evaluation of a run came to: evaluation/sum, by which runs of other rewards can be compared too.

    Only the first and the last line are read: an evaluation of many prompts is long, and there may be hundreds.
    """
    ends = _ends(path) if path is not None else None
    first, last = (parsed(line, check_evaluation) for line in ends or (b"", b""))
    return verdicts.metric_value([first], last, keys.EVALUATION_SUM) if first and last else None


def _ends(path: Path) -> tuple[bytes, bytes] | None:
    """The first and the last whole line of a file."""
    with open(path, "rb") as file:
        first = file.readline(MOST_LINE)
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 2 * MOST_LINE))
        tail = file.read(2 * MOST_LINE)
    whole = tail[: tail.rfind(b"\n") + 1].rstrip(b"\n")
    return (first, whole[whole.rfind(b"\n") + 1 :]) if whole else None
