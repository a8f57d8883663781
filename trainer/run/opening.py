"""Opening runs: the run of a folder in this process, whose a folder is, and whether it is free for a new one."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Mapping
from pathlib import Path

from ...host import claim, files
from ..families.base import FlowModel
from . import checkpoint, status
from .folder import CHECKPOINTS, METRICS, WRITTEN, RunError
from .record import Run, RunSettings

logger = logging.getLogger(__name__)

_open: dict[Path, Run] = {}
_trained: weakref.WeakKeyDictionary[FlowModel, Run] = weakref.WeakKeyDictionary()


def open_run(folder: Path, settings: RunSettings, workflow: Mapping, *, resume: bool = False) -> Run:
    """The run of that folder in this process, opened at the first call; later calls may change its intervals.

    The folder is the one that the user named, and never another. `resume`: the training loop begins it.

    Raises:
        RunError: the folder holds another run.
    """
    run = run_at(folder)
    if run is None:
        if not resume and taken(folder):
            raise RunError(f"{folder} already holds a run. Fix: resume it, or choose another folder")
        run = Run(folder, settings, workflow)
        keep_open(run)
        if not resume:
            run.begin()
    run.settings = settings
    return run


def keep_open(run: Run) -> None:
    _open[files.real(run.folder)] = run


def run_at(folder: Path) -> Run | None:
    """The run of that folder, if it is open in this process."""
    return _open.get(files.real(folder))


def run_of(model: FlowModel) -> Run | None:
    """The run that records what the model learns; a model itself does not know."""
    return _trained.get(model)


def belongs(model: FlowModel, run: Run | None) -> None:
    """From now on that run records what the model learns; None: no run does."""
    if run is None:
        _trained.pop(model, None)
    else:
        _trained[model] = run


def close_run(run: Run) -> None:
    """The run ends in this process, and any other process may resume it."""
    _open.pop(files.real(run.folder), None)
    run.close()
    if run.claim is not None:
        run.claim.release()


def taken(folder: Path) -> bool:
    """Whether the folder has a run on record or files that are not ours, or another process is about to begin a run there."""
    return on_record(folder) or bool(in_the_way(folder)) or queued(folder) or held(folder)


def on_record(folder: Path) -> bool:
    """Whether a run has iterations there."""
    try:
        metrics = os.lstat(folder / METRICS).st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        metrics = False
    return metrics or bool(checkpoint.complete(folder / CHECKPOINTS))


def in_the_way(folder: Path) -> list[str]:
    """What a new run would write over; nothing where one of ours was begun or prepared, which its status.json says."""
    names = [name for name in WRITTEN if files.present(folder / name)]
    return names if names and status.read(folder, logger.debug).status == status.UNKNOWN else []


def queued(folder: Path) -> bool:
    """Whether the folder waits in the queue of a ComfyUI that is there, for a training to begin in it."""
    return status.now(folder, status.read(folder, logger.debug)) == "queued"


def held(folder: Path) -> bool:
    """Whether another process trains there, or may."""
    try:
        claim.check(folder)
    except claim.Claimed:
        return True
    return False
