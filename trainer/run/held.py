"""`Held`: the folder of a run that is ours. It is made by claiming the folder, which judges and reads it once, and is handed on.
What works on the run asks it, and opens, claims and judges nothing again.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...host import claim, distributed, files
from ...host.files import Damaged
from ..workflow import lineage
from . import checkpoint, status
from .best import put_back
from .folder import (
    CANVAS,
    CHANGES,
    CHECKPOINTS,
    EVALUATIONS,
    FILES,
    METRICS,
    WORKFLOW,
    WRITTEN,
    Lines,
    RunError,
    Say,
    check_links,
    not_writable,
    read_changes,
    read_lines,
    read_own,
)

logger = logging.getLogger(__name__)

Asked = tuple[Path, str]  # the folder of the name in a graph, and the graph's structure


class Taken(RunError):
    """A folder in which no new run begins, since something is there that it would write over."""


@dataclass
class Held:
    """A run's folder, as it stood when this process got it.

    Attributes:
        claim: of the process that writes; None in all others.
        resume: what to do next: go on from the last checkpoint, or else begin.
        id: of the run.
        status: what was said of it last.
        graph, canvas: on record, in API form and as ComfyUI's canvas has it; None where that is not known.
        metrics, evaluations, changes: the iterations so far.
        node: the Training Run that records it on the canvas; None headlessly.
        asked: on the canvas, what its graph asks for.
    """

    folder: Path
    claim: claim.Claim | None
    resume: bool
    id: str
    status: status.Status
    graph: Mapping | None
    canvas: Mapping | None
    metrics: Lines
    evaluations: Lines
    changes: Lines
    node: str | None = None
    asked: Asked | None = None

    def check(self) -> None:
        """Raises RunError where the folder was removed or taken over, and belongs to another run by now."""
        if self.claim is None or not self.folder.is_dir() or self.claim.stands():
            return
        raise RunError(
            f"{self.folder} is not this run's any more: it was removed or taken over, and what is there now is another's. "
            "Nothing was written. Fix: on the canvas press New run; headlessly choose another --output"
        )

    def make_again(self) -> None:
        """Makes and claims the folder anew, which was removed."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.claim is not None:
            self.claim = claim.take(self.folder, say=logger.warning, place=status.CANVAS)

    def close(self) -> None:
        """Any other process may go on with the run."""
        if self.claim is not None:
            self.claim.release()


def hold(
    folder: Path,
    *,
    resume: bool,
    judge: Callable[[Path, status.Status], object],
    place: str | None = None,
    take_over: bool = False,
    say: Say = logger.warning,
) -> Held:
    """Claims a folder in which a run can begin or go on, and reads it. A folder that is refused stays as it was.

    `judge`: called with the folder and its status where a new run is to begin; raises Taken.
    `place`: canvas or headless.
    `take_over`: see `claim.take`.

    Raises:
        Claimed: another process trains there, or may.
        RunError: it cannot be written, or `judge` refuses it.
        Damaged: a file that the run cannot do without.
    """
    try:
        claimed = claim.take(folder, take_over=take_over, say=say, place=place)
    except OSError as error:
        raise not_writable(folder, error) from error
    try:
        check_links(folder)
        written = status.read(folder)
        if not resume:
            judge(folder, written)
        held = read(folder, claimed, resume, written)
    except BaseException:
        if not claimed.kept:
            claimed.release(leave_nothing=not resume)
        raise
    claimed.kept = True
    return held


def read(folder: Path, taken: claim.Claim | None, resume: bool, written: status.Status | None = None) -> Held:
    """Reads a folder that this process, or the one that writes, has claimed. `written`: its status, where that is known."""
    writes = distributed.is_main()
    if taken is not None:
        put_back(folder)
    say = logger.warning if writes else logger.debug  # once, and not by every process
    written = written or status.read(folder, say)
    graph = read_own(folder, WORKFLOW) if resume else None
    if graph is not None and not lineage.runs(graph):
        raise Damaged(folder / WORKFLOW, "has no Training Run: it is another run's", FILES[WORKFLOW].fix)
    metrics, evaluations = (
        Lines(folder / name, read_lines(folder / name, say=say), writes) for name in (METRICS, EVALUATIONS)
    )
    return Held(
        folder=folder,
        claim=taken,
        resume=resume,
        id=written.id or (checkpoint.run_id(folder, written) if resume else None) or uuid.uuid4().hex,
        status=written,
        graph=graph,
        canvas=read_own(folder, CANVAS, say),
        metrics=metrics,
        evaluations=evaluations,
        changes=Lines(folder / CHANGES, read_changes(folder, say), writes),
    )


# --- folders in which a new run may begin -------------------------------------------------------------------------------


def judge(folder: Path, written: status.Status) -> None:
    """Raises Taken where a run has iterations, is about to begin, or would write over what is not ours."""
    if on_record(folder) or status.now(folder, written) == "queued":
        raise Taken(f"{folder} already holds a run. Fix: resume it, or choose another folder")
    if names := in_the_way(folder, written):
        raise Taken(f"{folder} holds {', '.join(names)} already. Fix: choose another folder, or move it elsewhere")


def is_free(folder: Path) -> bool:
    """Whether a new run could begin there; claims nothing."""
    try:
        claim.check(folder)
        judge(folder, status.read(folder, logger.debug))
    except (claim.Claimed, Taken):
        return False
    return True


def on_record(folder: Path) -> bool:
    """Whether a run has iterations there."""
    try:
        metrics = os.lstat(folder / METRICS).st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        metrics = False
    return metrics or bool(checkpoint.complete(folder / CHECKPOINTS))


def in_the_way(folder: Path, written: status.Status) -> list[str]:
    """The files that a new run would write over; nothing where one of ours was begun or prepared, which its status.json says."""
    names = [name for name in WRITTEN if files.present(folder / name)]
    return names if written.status == status.UNKNOWN else []
