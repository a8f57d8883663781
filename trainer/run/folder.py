"""The folder of a run as something that can be written: what is refused, and how that is said."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path

from ...host import files
from ...host.files import write_text
from ...host.names import plain_name
from ..policy.files import read_metadata
from . import checkpoint, status
from .layout import CHECKPOINTS, FOLDERS

logger = logging.getLogger(__name__)


class RunError(RuntimeError):
    """A run folder that cannot be used, with the fix."""


def writing(method: Callable) -> Callable:
    """Has a method of Run raise RunError, with the fix, where the disk does not take what it writes."""

    @functools.wraps(method)
    def wrapped(self, *args, **kwargs):
        try:
            return method(self, *args, **kwargs)
        except files.NotOurs as error:
            raise RunError(str(error)) from error
        except OSError as error:
            raise RunError(
                f"{error.filename or self.folder} could not be written ({error.strerror or error}); the last checkpoint stays. "
                "Fix: free space there or make it writable, then resume by --resume, or on the canvas by queueing again"
            ) from error

    return wrapped


def check_writable(folder: Path) -> None:
    """Makes the folder where it is not there yet. Raises RunError where a run could not write into it, or not only there."""
    for name in FOLDERS:  # as in a run that came in an archive
        if os.path.islink(folder / name):
            raise RunError(
                f"{folder / name} is a link, and what is written there would lie elsewhere. Fix: put a folder in its place"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / ".writable", "")
        (folder / ".writable").unlink()
    except OSError as error:
        raise not_writable(folder, error) from error


def not_writable(folder: Path, error: OSError) -> RunError:
    return RunError(
        f"the run folder {folder} cannot be written ({error}). Fix: choose another --output or free the disk"
    )


def run_id(folder: Path) -> str | None:
    """Of the run in that folder, as its status or else its last checkpoint says: whoever starts a trainer writes a status too."""
    if written := status.read(folder, logger.debug).id:
        return written
    return next(filter(None, map(checkpoint.run_id, reversed(checkpoint.complete(folder / CHECKPOINTS)))), None)


def wrote(folder: Path, run: str, file: Path) -> bool:
    """Whether the run of that folder and id wrote an adapter's file, as the file's header says.

    The id decides, since a folder may be renamed. A copied folder has the id of the one that it was copied from: a file outside
    of both belongs to the folder that it names, while that is there.
    """
    try:
        metadata = read_metadata(file)
    except ValueError:
        return False
    if metadata.get("otca_run_id") != run:
        return False
    name = metadata.get("otca_run")
    if name == folder.name or file.parent.resolve() == folder.resolve():
        return True
    try:
        return run_id(folder.with_name(plain_name(name))) != run
    except ValueError:  # no name of a folder
        return True
