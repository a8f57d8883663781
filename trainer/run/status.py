"""How a run stands: what status.json says, how it is written, and what it means at this moment. Imports no torch."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ...host import claim
from ...host.files import Damaged, write_text
from .folder import STATUS, read_own

CANVAS, HEADLESS = "canvas", "headless"
REMOTE = "remote"  # on another machine: this folder is a copy that the page keeps, and says what that machine said
UNKNOWN = "unknown"  # there is no status.json, or none that can be read

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Status:
    """The content of status.json, as `folder.FILES` checks it.

    Attributes:
        status: one of `folder.STATES`, or UNKNOWN.
        place: CANVAS, HEADLESS or REMOTE.
        total: iterations that the run should have in all.
        pid, process_started: the process that trains, or in whose queue the run waits; a number and seconds since 1970.
        error: why it failed.
        node: the id of the node that it failed at, in the run's workflow.
        reason: why it ended before its last iteration, or should.
        at: while it runs, the node that its process began last, and what memory it needs and there was.
        who: how many processes train it, where, and what.
        started: when its first process began, in seconds since 1970.
        id: of the run; only the trainer writes it.
    """

    status: str = UNKNOWN
    place: str = HEADLESS
    total: int | None = None
    pid: int | None = None
    process_started: float | None = None
    error: str | None = None
    node: str | None = None
    reason: str | None = None
    at: str | None = None
    who: str | None = None
    started: float | None = None
    id: str | None = None

    @property
    def process_lives(self) -> bool:
        return claim.alive(self.pid, self.process_started)


def read(folder: Path, say: Callable[[str], None] = logger.warning) -> Status:
    """Reads the status of the run in that folder. Where it cannot be read it is UNKNOWN, and `say` gets the reason."""
    content = read_own(folder, STATUS, say) or {}
    return Status(**{name: content[name] for name in Status.__dataclass_fields__ if content.get(name) is not None})


def write(folder: Path, status: Status) -> None:
    content = asdict(status)
    if status.id is None:
        del content["id"]
    write_text(folder / STATUS, json.dumps(content, indent=1))


def following(before: Status, status: str, pid: int | None, *, total: int | None, **about: str | None) -> Status:
    """The next status of a run, by or for the process of that number. When the run started stays as it was before.

    `about`: place, error, node, reason, at and id, as `Status` has them.
    """
    import psutil

    born = None if pid is None else psutil.Process(pid).create_time()
    started = before.started or time.time()
    return replace(Status(status, total=total, pid=pid, process_started=born, started=started), **about)


def killed(status: Status) -> str | None:
    """The node that a headless process was at when it ended without a word; None where it said how it ended, or lives."""
    if status.status != "running" or not status.at or status.process_lives:
        return None
    return f"its last process was killed while it was at {status.at}. The system kills so where main memory runs out"


def now(
    folder: Path, status: Status, *, done: int = 0, planned: int | None = None, executing: bool | None = None
) -> str:
    """The state that a status means at this moment: one of `folder.STATES`.

    A process that was killed could not say so. Hence "running" and "queued" hold only while their process is there. Where
    status.json is lost or damaged, the iterations decide.

    `done`, `planned`: numbers of iterations, by metrics.jsonl and by the workflow.
    `executing`: whether ComfyUI executes a prompt of this run, which is made on its canvas; None where that is not known.
    """
    if status.place == REMOTE:
        return status.status
    if status.status == "queued":
        return "queued" if status.process_lives else "stopped"
    if status.status == UNKNOWN:
        return "finished" if planned is not None and done >= planned else "interrupted"
    if status.status not in ("running", "idle"):
        return status.status
    if not (status.process_lives or _holder(folder) is not None):
        # An idle run was between two prompts, so that nothing was interrupted.
        return "interrupted" if status.status == "running" else "stopped"
    if status.place == CANVAS and executing is not None:
        return "running" if executing else "idle"
    return status.status


def busy(folder: Path, status: Status) -> bool:
    """Whether a process is at work there, be it on the last checkpoint of a run that counts as stopped."""
    # The process of a run on the canvas is ComfyUI, which lives on. Whether it still holds the run, its claim says.
    ended_on_canvas = status.place == CANVAS and status.status != "running"
    return _holder(folder) is not None or not ended_on_canvas and status.process_lives


def _holder(folder: Path) -> claim.Holder | None:
    try:
        return claim.holder(folder)
    except Damaged:  # whoever resumes the run gets the message
        return None
