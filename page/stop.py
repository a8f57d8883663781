"""Asking a training to end, which its process does by itself."""

from __future__ import annotations

import os

from ..host import files
from ..host.stopping import STOP
from ..trainer.run import status
from .checks import Refused
from .runs import Run


def ask_to_stop(run: Run) -> None:
    """Asks for the end after the current micro-step, with everything saved. Raises Refused (409)."""
    summary = run.summary()
    if summary["status"] != "running":
        raise Refused(409, f"run {run.id} is not running, but {summary['status']}. Fix: reload the list of runs")
    if summary["place"] == status.CANVAS:
        raise Refused(409, f"run {run.id} is made on the canvas. Fix: stop it by ComfyUI's own Cancel button")
    try:
        os.close(files.open_plain(run.folder / STOP, os.O_WRONLY | os.O_CREAT))
        os.utime(run.folder / STOP)  # of an earlier request, which counts again
    except OSError as error:
        raise Refused(409, f"run {run.id} cannot be asked to stop: {error}. Fix: remove what is in the way") from error
