"""The trackers: TensorBoard and, where a project is named, Weights & Biases. Both get the values of a run's own files."""

from __future__ import annotations

import functools
import json
import logging
import math
import uuid
from collections.abc import Mapping
from pathlib import Path

from ...host import extras
from ...host.access import permissions
from ...host.access.wants import figures_go_out
from ...host.files import write_text
from .folder import TENSORBOARD, WANDB, read_own

logger = logging.getLogger(__name__)


class Trackers:
    """Both get the same values under the same names, at the step of their iteration.

    Steps must not go down, but for a run that went back to a checkpoint. TensorBoard then forgets what came after it; wandb
    keeps what it has, which is the same.

    Args:
        folder: of the run.
        project: of wandb; empty: none.
        start: the iteration that the run continues from.
        settings: what wandb shows as the run's configuration.

    Raises:
        NotAllowed: the user has not allowed that values go there.
        ValueError: wandb was asked for and is not installed, or the user is not logged in.
    """

    def __init__(self, folder: Path, project: str, start: int, settings: Mapping):
        self.project = project
        self._wandb = _begin_wandb(folder, project, settings) if project else None
        self._folder = folder / TENSORBOARD
        self._tensorboard = _begin_tensorboard(self._folder, start + 1 if start else 0)

    def write(self, iteration: int, values: Mapping[str, float | None]) -> None:
        """Writes a row. A figure that could not be measured was NaN, and is None where it was read back."""
        if self._tensorboard is not None and not self._folder.is_dir():  # it was removed: the writer would fail
            self._tensorboard.close()
            self._tensorboard = _begin_tensorboard(self._folder, iteration)
        if self._tensorboard is not None:
            for name, value in values.items():
                self._tensorboard.add_scalar(name, math.nan if value is None else value, iteration)
            self._tensorboard.flush()  # its thread has nothing left to write when the folder is removed or the run killed
        if self._wandb is not None:
            self._wandb.log(dict(values), step=iteration)

    def close(self) -> None:
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()


def _begin_tensorboard(folder: Path, purge: int):
    """A writer whose values TensorBoard shows in place of earlier files' from step `purge` on; None if it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        _say_once(
            f"no run is written for TensorBoard: it cannot be imported ({error}). Fix: {extras.command('tensorboard')}"
        )
        return None
    return SummaryWriter(str(folder), purge_step=purge)


_say_once = functools.cache(logger.info)


def _begin_wandb(folder: Path, project: str, settings: Mapping):
    """The run of wandb that this folder's values have gone to so far, or a new one. WANDB_MODE=offline is left to wandb."""
    for want in figures_go_out(project):
        permissions.check(want)
    try:
        import wandb
    except ImportError as error:
        raise ValueError(
            f"wandb_project = {project!r}, but wandb cannot be imported ({error}). Fix: {extras.command('wandb')}, or leave it "
            "empty"
        ) from error
    before = read_own(folder, WANDB) or {}
    name = before["id"] if before.get("project") == project else uuid.uuid4().hex[:8]
    try:
        run = wandb.init(
            project=project, id=name, resume="allow", dir=str(folder), name=folder.name, config=dict(settings)
        )
    except wandb.errors.Error as error:
        raise ValueError(
            f"wandb_project = {project!r}, but wandb could not begin ({error}). Fix: wandb login, or set WANDB_MODE=offline, "
            "or leave it empty"
        ) from error
    write_text(folder / WANDB, json.dumps({"project": project, "id": name}))
    return run
