"""The trackers: TensorBoard and, where a project is named, Weights & Biases. Both get the values of a run's own files."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import socket
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from ...host.access import permissions
from ...host.access.wants import figures_go_out
from ...host.files import write_text
from .folder import TENSORBOARD, WANDB, read_own


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
        self._tensorboard = _Events(folder / TENSORBOARD, start + 1 if start else 0)

    def write(self, iteration: int, values: Mapping[str, float]) -> None:
        self._tensorboard.write(iteration, values)
        if self._wandb is not None:
            self._wandb.log(dict(values), step=iteration)

    def close(self) -> None:
        self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()


class _Events:
    """A file that TensorBoard reads, written by this thread: a thread of its own would print a traceback if the folder went.

    Args:
        purge: TensorBoard forgets what files before this one have from that step on.
    """

    def __init__(self, folder: Path, purge: int):
        self.folder, self._purge = folder, purge
        self._file: io.FileIO | None = None
        self._path = folder
        self._begin()

    def write(self, step: int, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue] # protobuf makes it

        if not self._path.is_file():  # somebody has removed it; the disk would take the rest of it nowhere
            self.close()
            self._purge = step
            self._begin()
        # What could not be measured was NaN, and is null where it was read back.
        numbers = {name: math.nan if value is None else float(value) for name, value in values.items()}
        summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()])
        self._add(step=step, summary=summary)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog  # pyright: ignore[reportAttributeAccessIssue] # protobuf makes it

        self.folder.mkdir(parents=True, exist_ok=True)
        now, host = int(time.time()), socket.gethostname()
        self._path = self.folder / f"events.out.tfevents.{now:010d}.{host}.{os.getpid()}.{next(_numbers)}"
        self._file = open(self._path, "xb", buffering=0)
        self._add(file_version="brain.Event:2")
        self._add(step=self._purge, file_version="brain.Event:2")
        self._add(step=self._purge, session_log=SessionLog(status=SessionLog.START))

    def _add(self, **content) -> None:
        """A record: its length, its bytes, and after each a checksum, as TFRecord files have them."""
        from tensorboard.compat.proto.event_pb2 import Event  # pyright: ignore[reportAttributeAccessIssue] # protobuf makes it
        from tensorboard.summary.writer.record_writer import RecordWriter

        assert self._file is not None  # `_begin` has opened it
        record = io.BytesIO()
        RecordWriter(record).write(Event(wall_time=time.time(), **content).SerializeToString())
        self._file.write(record.getvalue())  # whole, so that a kill leaves no half of it


_numbers = itertools.count()


def _begin_wandb(folder: Path, project: str, settings: Mapping):
    """The run of wandb that this folder's values have gone to so far, or a new one. WANDB_MODE=offline is left to wandb."""
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
