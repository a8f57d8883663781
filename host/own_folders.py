"""Folders that we made, and so may remove: each holds a marker, and nothing without one is ever removed or written over."""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from . import files
from .files import Damaged, NotOurs, open_plain, present, put_in_place, read_bytes

MARKER, BEGAN = ".otca", time.time()
_ASIDE = re.compile(r"\.(?:[^/]+\.(?:safetensors|png|mp4|json|jsonl)|best(?:-\d+)?|\d{6,})\.(\d+)(?:\.\d+|\.old)?")
MADE = b"made by otca, which removes this folder when it is not needed any more\n"


def mark_own(folder: Path) -> None:
    """Marks a folder as ours, before anything else is written there."""
    with os.fdopen(open_plain(folder / MARKER, os.O_WRONLY | os.O_CREAT), "wb") as file:
        file.truncate()  # only now, when the file is known to be no link
        file.write(MADE)


def is_own(folder: Path) -> bool:
    """Whether we made that folder. A link to one is not ours, nor is a folder whose marker another program wrote. One that holds
    nothing, or only a marker that was cut short, is as a kill leaves ours."""
    try:
        marker = read_bytes(folder / MARKER, len(MADE)) if stat.S_ISDIR(os.lstat(folder).st_mode) else None
        return marker == MADE or (MADE.startswith(marker or b"") and not {*os.listdir(folder)} - {MARKER})
    except (OSError, Damaged):
        return False


def remove_own(folder: Path) -> bool:
    """Removes a folder that we made, following no link in it, and leaves any other one. Returns whether it is gone."""
    if not is_own(folder):
        return False
    for path in folder.iterdir():
        if path.name != MARKER:  # which goes last: what a kill leaves is ours
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    shutil.rmtree(folder)
    return True


def put_back(target: Path) -> bool:
    """Gives a folder its name back, where `new_folder` had set it aside and was killed before the new one had that name.

    Returns whether it did.
    """
    left = (
        []
        if present(target)
        else [path for path in target.parent.glob(f".{glob.escape(target.name)}.*.old") if is_own(path)]
    )
    if left:
        put_in_place(max(left, key=lambda path: path.stat().st_mtime), target)
    return bool(left)


def clear(*folders: Path) -> None:
    """Removes what killed processes left half written in folders of ours, by the names of `new_folder` and `files.beside`."""
    for left in (path for folder in folders for path in folder.glob(".*")):
        name = _ASIDE.fullmatch(left.name)
        if name is None or _at_work(int(name[1]), os.lstat(left).st_mtime):
            continue
        if files.is_plain_file(left):
            left.unlink(missing_ok=True)
        else:
            remove_own(left)


def _at_work(number: int, written: float) -> bool:
    """Whether the process that wrote something lives: one of its number which began before. Numbers come again."""
    if number == os.getpid():  # psutil's time is a second off, and a container's next process may be there sooner
        return written >= BEGAN
    import psutil

    with contextlib.suppress(psutil.Error):
        return psutil.Process(number).create_time() <= written
    return False


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill. When that is done, it and all in it are flushed to disk, and it replaces `target`.

    A failure leaves `target` as it was. What a killed process left beside it is put back or removed.

    Raises:
        NotOurs: `target` is there, and we did not make it.
    """
    if present(target) and not is_own(target):
        raise NotOurs(f"{target} was not made by a training, and is left alone. Fix: move it elsewhere")
    if target.parent.is_dir():
        put_back(target)
        for left in target.parent.glob(f".{glob.escape(target.name)}.*"):
            remove_own(left)
    aside, old = (target.with_name(f".{target.name}.{os.getpid()}{ending}") for ending in ("", ".old"))
    aside.mkdir(parents=True)
    mark_own(aside)
    try:
        yield aside
        for path in [*aside.rglob("*"), aside]:
            files.flush(path)
        if target.is_dir():
            put_in_place(target, old)
        put_in_place(aside, target)
        files.flush(target.parent)
    except BaseException:
        if old.is_dir() and not target.is_dir():
            put_in_place(old, target)
        raise
    finally:
        for path in (aside, old):
            remove_own(path)
