"""Where a run's figures go beside its own files: TensorBoard and, where a project is named, Weights & Biases."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path

from . import permissions
from .files import read_own
from .layout import WANDB, write_text
from .wants import figures_go_out


class Figures:
    """Both get the same numbers under the same names, at the step of their iteration. Steps must not go down, but for a run
    that went back to a checkpoint: TensorBoard then forgets what came after it, wandb keeps what it has, which is the same.

    Args:
        folder: of the run.
        project: of wandb; empty: none.
        start: the iteration that the run goes on from.
        settings: what wandb shows as the run's configuration.

    Raises:
        NotAllowed: the user has not allowed that figures go there.
        ValueError: wandb was asked for and is not installed, or nobody is logged in.
    """

    def __init__(self, folder: Path, project: str, start: int, settings: Mapping):
        self.project = project
        self._wandb = _begin_wandb(folder, project, settings) if project else None
        from torch.utils.tensorboard import SummaryWriter

        self._tensorboard = SummaryWriter(str(folder / "tensorboard"), purge_step=start + 1 if start else 0)

    def write(self, iteration: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._tensorboard.add_scalar(name, value, iteration)
        if self._wandb is not None:
            self._wandb.log(dict(figures), step=iteration)

    def close(self) -> None:
        self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()


def _begin_wandb(folder: Path, project: str, settings: Mapping):
    """The run there that this folder's figures have gone to so far, or a new one; WANDB_MODE=offline is wandb's own affair."""
    for want in figures_go_out(project):
        permissions.check(want)
    try:
        import wandb
    except ImportError as error:
        raise ValueError(
            f"wandb_project = {project!r}, but wandb cannot be imported ({error}). Fix: pip install wandb, or leave it empty"
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
