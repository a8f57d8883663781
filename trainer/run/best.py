"""best/, in the folder of a run: the adapter as the best evaluation found it, and what that evaluation came to.

Where a run keeps the best by several metrics, those of the second and so on are in best-2/ …
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...host import files, own_folders
from ..families.base import FlowModel
from ..policy import saved
from . import verdicts
from .folder import BEST, BEST_FIGURES, CHECKPOINTS, EVALUATIONS, SAMPLES, read_own

logger = logging.getLogger(__name__)


def put_back(run_folder: Path) -> None:
    """Gives the folders their names back that a killed process had set aside, and removes what it had left half written."""
    left = {path.name.split(".")[1] for path in run_folder.glob(f".{BEST}-*.old")}
    for name in (BEST, *left):
        own_folders.put_back(run_folder / name)
    own_folders.clear(run_folder, run_folder / SAMPLES, run_folder / CHECKPOINTS)


class BestAdapter:
    """The folder best/ of a run. `kept` is the content of its best.json; None where no adapter is kept.

    Args:
        number: of the metric, from 0.
        writes: whether this process is the one that writes.
    """

    def __init__(self, run_folder: Path, number: int, writes: bool, say: Callable[[str], None]):
        self.folder, self.writes = run_folder / (f"{BEST}-{number + 1}" if number else BEST), writes
        self.kept: Mapping | None = read_own(self.folder, BEST_FIGURES, say)

    def check_folder(self) -> None:
        """Raises NotOurs where best/ is something else. A folder that lost its marker when it was copied gets it back."""
        if not self.writes or not files.present(self.folder) or own_folders.is_own(self.folder):
            return
        if self.folder.is_symlink() or self.kept is None:
            raise files.NotOurs(f"{self.folder} was not made by a training. Fix: move it elsewhere, and resume")
        own_folders.mark_own(self.folder)

    def check_kept(self, metric: str, evaluations: Sequence[Mapping]) -> None:
        """Deletes an adapter that does not belong to the run as it is now: of later iterations, or by another metric."""
        if self.kept is None:
            return
        wanted = metric or self.kept["metric"]
        if self.kept["metric"] == wanted and verdicts.is_on_record(evaluations, self.kept):
            return
        if self.writes:
            other = f"the best is kept by {wanted} now"
            reason = other if self.kept["metric"] != wanted else f"{EVALUATIONS} has no such evaluation"
            values = (self.kept[name] for name in ("metric", "value", "iteration"))
            logger.warning("%s is deleted, with the best by %s, %.4g at iteration %d: %s", self.folder, *values, reason)
            own_folders.remove_own(self.folder)
        self.kept = None

    def keep(self, model: FlowModel, metric: str, evaluations: Sequence[Mapping], metadata: Mapping) -> None:
        """Saves the adapter as it was just evaluated, if it is better than the one that is kept."""
        new = verdicts.last_evaluation(evaluations, metric)
        if new is None:
            logger.warning("%s could not be measured, so this adapter is not kept as the best", metric)
            return
        if not verdicts.is_better(evaluations, new, self.kept):
            return
        # A sharded model is put together by all processes, and written by one.
        with own_folders.new_folder(self.folder) if self.writes else contextlib.nullcontext(self.folder) as aside:
            saved.save(model, aside, metadata)
            if self.writes:
                (aside / BEST_FIGURES).write_text(json.dumps(new, indent=1), encoding="utf-8")
        self.kept = new
