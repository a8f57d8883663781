"""What a user does with runs as with files: notes and a star, another name, the trash, the folder's window.

A run's folder is its identity: its checkpoints and adapters say by an id whose they are, so that a renamed run is resumed as
before. Only what names a run by its folder's name is lost by another name, and so is refused.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..host.files import Damaged, beside, present
from ..trainer.run import layout
from ..trainer.run.layout import NOTES, WORKFLOW
from ..trainer.run.status import REMOTE
from ..trainer.types import MODEL_NODES
from . import desktop
from .checks import Refused
from .jobs import Jobs
from .remote.watching import forget_token
from .runs import Run, Runs

MOST_NOTES = 2000  # characters
LORAS = "otca"  # the folder of copied adapters in ComfyUI's loras


@dataclass(frozen=True)
class Library:
    """`live` is the module nodes.results, which may have a run of the canvas in hand."""

    runs: Runs
    jobs: Jobs
    live: Any
    _noting: threading.Lock = field(default_factory=threading.Lock)

    def note(self, run: Run, notes: str | None, starred: bool | None) -> dict[str, Any]:
        """Writes down what is given, and keeps the rest; returns both."""
        _refuse_link(run)
        with self._noting, _disk(run, "noted"):
            noted = run.noted()
            noted |= {name: value for name, value in (("notes", notes), ("starred", starred)) if value is not None}
            run.write(NOTES, noted)
        return noted

    def rename(self, run: Run, name: str) -> Run:
        """The same run under another name. Raises Refused (409) where it would not be the same any more."""
        if name == run.id:
            return run
        target = self.runs.folder() / name
        with self._at_rest(run), _disk(run, "renamed"):
            if users := self.begun_with(run):
                fix = "keep the name, or delete them first"
                raise Refused(409, f"{_which(users)} {run.id} by its name, and could not be resumed. Fix: {fix}")
            if present(target) and not _same(
                target, run.folder
            ):  # another case of the same letters is the same to some disks
                raise Refused(409, f"{name!r} is there already, in {target.parent}. Fix: choose another name")
            os.rename(run.folder, target)
        self.runs.forget(run)
        return self.runs.run(name)

    def removal(self, run: Run) -> dict[str, Any]:
        """What is about to be deleted, for who has to confirm it: {folder, bytes, files, trash, begun_with}."""
        sizes = [os.lstat(Path(folder) / file).st_size for folder, _, files in os.walk(run.folder) for file in files]
        return {
            "folder": str(run.folder),
            "bytes": sum(sizes),
            "files": len(sizes),
            "trash": desktop.trash_command() is not None,
            "begun_with": self.begun_with(run),
        }

    def remove(self, run: Run, for_good: bool) -> None:
        """Moves the folder into the system's trash, or removes it where the user said so. Raises Refused (409)."""
        with self._at_rest(run), _disk(run, "deleted"):
            forget_token(run.folder)
            if for_good:
                _remove(run.folder)
            else:
                try:
                    desktop.move_to_trash(run.folder)
                except OSError as error:
                    message = f"{run.folder} could not be moved into the trash: {error}. Fix: delete it for good"
                    raise Refused(409, message, trash=False) from error
        self.runs.forget(run)

    def begun_with(self, run: Run) -> list[str]:
        """Other runs that begin with this one's adapter: they read it again whenever they are resumed."""
        return sorted(other.id for other in self.runs.all() if other.id != run.id and _begins_with(other, run))

    @contextlib.contextmanager
    def _at_rest(self, run: Run) -> Iterator[None]:
        """While nobody has the run in hand: what the canvas still has is saved and let go."""
        _refuse_link(run)
        summary = run.summary()
        # A copy of what trains elsewhere is only a copy.
        if summary["place"] != REMOTE and summary["status"] in ("running", "queued"):
            raise Refused(409, f"run {run.id} is training, or about to. Fix: stop it first")
        try:
            self.live.let_go(run.id)
        except self.live.Busy as error:
            raise Refused(409, str(error)) from error
        with self.jobs.at_rest(run):
            yield


def notes_text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MOST_NOTES:
        raise ValueError(f"must be text. Fix: at most {MOST_NOTES} characters")
    return value


def _refuse_link(run: Run) -> None:
    if os.path.islink(run.folder):
        raise Refused(409, f"{run.folder} is a link, and is left alone. Fix: do that in the folder that it leads to")


@contextlib.contextmanager
def _disk(run: Run, done: str) -> Iterator[None]:
    """What the disk refuses is said to who asked."""
    try:
        yield
    except OSError as error:
        where, why = error.filename or run.folder, error.strerror or error
        fix = "close what has a file there open, or make the folder writable"
        raise Refused(409, f"run {run.id} was not {done} ({why}: {where}). Fix: {fix}") from error


def _remove(folder: Path) -> None:
    """Under another name first, so that no list shows a run of which half is gone. No link in it is followed."""
    aside = beside(folder)
    os.rename(folder, aside)
    shutil.rmtree(aside)


def _same(one: Path, other: Path) -> bool:
    return os.path.samestat(os.lstat(one), os.lstat(other))


def _begins_with(other: Run, run: Run) -> bool:
    try:
        graph = layout.read_own(other.folder, WORKFLOW) or {}
    except Damaged:
        return False
    names = [entry["inputs"].get("start_from") for entry in graph.values() if entry["class_type"] in MODEL_NODES]
    return any(isinstance(name, str) and name and _names(Path(name), run) for name in names)


def _names(path: Path, run: Run) -> bool:
    """Whether what a workflow calls by that path lies in the run's folder: NAME, NAME/lora.safetensors, or the whole path."""
    return path.is_relative_to(run.folder) if path.is_absolute() else path.parts[:1] == (run.id,)


def _which(users: list[str]) -> str:
    shown = ", ".join(users[:3]) + (f" and {len(users) - 3} more" if len(users) > 3 else "")
    return f"{shown} {'begins' if len(users) == 1 else 'begin'} with the adapter of"
