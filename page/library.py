"""A user's work with runs as files: notes, and deleting them."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..host.access import wants
from ..host.files import Damaged, beside
from ..nodes import NODE_CLASS_MAPPINGS
from ..trainer.run.folder import NOTES, WORKFLOW, read_own
from ..trainer.run.status import REMOTE
from .before_after import BeforeAfter
from .jobs import Jobs
from .remote.watching import forget_token
from .requests import Field, Refused, disk, text
from .runs import Run, Runs, holds_a_run

MOST_NOTES = 2000  # characters
CLOSE = "close what has a file there open, or make the folder writable"
NOTE = {"notes": Field(text(MOST_NOTES, "shorten them", least=0), required=True)}


@dataclass(frozen=True)
class Library:
    """`live` is the module nodes.results, which may have a run of the canvas in hand."""

    runs: Runs
    jobs: Jobs
    live: Any
    made: BeforeAfter

    def note(self, run: Run, notes: str) -> None:
        """Writes down what the user says of the run."""
        _refuse_link(run)
        with disk(f"run {run.id} was not noted", CLOSE):
            run.write(NOTES, {"notes": notes})

    def removal(self, run: Run) -> dict[str, Any]:
        """The things that would be deleted, for the person who has to confirm it: {folder, bytes, files, begun_with}."""
        sizes = [os.lstat(Path(folder) / file).st_size for folder, _, files in os.walk(run.folder) for file in files]
        return {"folder": str(run.folder), "bytes": sum(sizes), "files": len(sizes), "begun_with": self.begun_with(run)}

    def remove(self, run: Run) -> None:
        """Removes the run's folder for good. Raises Refused (409)."""
        if not holds_a_run(run.folder):
            raise Refused(409, f"{run.folder} holds no run, and nothing else is deleted here. Fix: remove it yourself")
        with self._at_rest(run), disk(f"run {run.id} was not deleted", CLOSE):
            self.made.cancel(run)  # else they would keep their place, and nobody could ask for an end
            forget_token(run.folder)
            # Under another name first, so that no list shows a run of which half is gone. No link in it is followed.
            aside = beside(run.folder)
            os.rename(run.folder, aside)
            shutil.rmtree(aside)
        self.runs.forget(run)

    def begun_with(self, run: Run) -> list[str]:
        """Other runs that begin with this one's adapter: they read it again whenever they are resumed."""
        return sorted(other.id for other in self.runs.all() if other.id != run.id and _begins_with(other, run))

    @contextlib.contextmanager
    def _at_rest(self, run: Run) -> Iterator[None]:
        """Keeps the run from being trained meanwhile. If the canvas still has it, it is saved and let go first."""
        _refuse_link(run)
        summary = run.summary()
        # A copy of what trains elsewhere is only a copy.
        if summary["place"] != REMOTE and summary["status"] in ("running", "queued"):
            raise Refused(409, f"run {run.id} is training, or about to. Fix: stop it first")
        self.live.let_go(run.id)
        with self.jobs.at_rest(run):
            yield


def _refuse_link(run: Run) -> None:
    if os.path.islink(run.folder):
        raise Refused(409, f"{run.folder} is a link, and is left alone. Fix: do that in the folder that it leads to")


def _begins_with(other: Run, run: Run) -> bool:
    try:
        graph = read_own(other.folder, WORKFLOW) or {}
    except Damaged:
        return False
    named = wants.named(graph, NODE_CLASS_MAPPINGS)
    paths = [Path(want.what) for want in named if want.why == wants.ADAPTER and not want.linked]
    # NAME, NAME/lora.safetensors, or the whole path
    return any(path.is_relative_to(run.folder) if path.is_absolute() else path.parts[:1] == (run.id,) for path in paths)
