"""The one reader of a run's small files, and the one remover of a run's folders. Imports no torch.

A run's folder may have been on a disk that filled up, in an archive, under an editor, or in a stranger's hands. So a file is
opened as it is (never through a link, never a pipe or a device), and its size, depth and types are checked before anything is
made of it. What is wrong is one line: the file, what is wrong with it, and what helps. `FILES` says for each file whether a run
goes on without it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .checks import (
    Check,
    check,
)

logger = logging.getLogger(__name__)

Say = Callable[[str], None]

MOST_BYTES = 64 * 1024**2  # of a JSON file
MOST_DEPTH = 100  # of lists and objects in each other; a canvas with subgraphs has some 12
MARKER = ".otca"  # in a folder that we made, and so may remove
_MADE = b"made by otca, which removes this folder when it is not needed any more\n"
_MOST_RENAMED = 100  # how often a file may get another one's name while it is being opened


class Damaged(ValueError):
    """A file that is not as it was written: `path`, what is `wrong` with it, and the `fix`."""

    def __init__(self, path: Path, wrong: str, fix: str):
        self.path, self.wrong, self.fix = path, wrong, fix
        super().__init__(f"{path} {wrong}. Fix: {fix}")


# --- opening ----------------------------------------------------------------------------------------------------------


def open_plain(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a plain file: never through a link at its name, and never of a pipe or a device, which could block.

    What was looked at is what is opened, also on Windows, which has no O_NOFOLLOW.

    Raises:
        OSError: there is none, or it is something else; names it.
    """
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    for _ in range(_MOST_RENAMED):
        try:
            seen = os.lstat(path)
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
            with contextlib.suppress(FileExistsError):
                return os.open(path, flags | os.O_EXCL, 0o666)  # which follows no link on any system
            continue
        if not stat.S_ISREG(seen.st_mode):
            raise OSError(f"{path} is {_kind(seen.st_mode)}, and no plain file")
        try:
            descriptor = os.open(path, flags, 0o666)
        except FileNotFoundError:
            continue
        if os.path.samestat(seen, os.fstat(descriptor)):
            return descriptor
        os.close(descriptor)  # another one took its name in between
    raise OSError(f"{path} is exchanged all the time, and cannot be opened")


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISLNK, "a link"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
    )
    return next((name for test, name in kinds if test(mode)), "a device")


def present(path: Path) -> bool:
    """Whether there is anything of that name, be it a link that leads nowhere."""
    return os.path.lexists(path)


def read_bytes(path: Path, most_bytes: int = MOST_BYTES, fix: str = "put the file back") -> bytes | None:
    """The content of a plain file; None where there is nothing of that name.

    Raises:
        Damaged: it is too large, no plain file, or cannot be read.
    """
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            content = file.read(most_bytes + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        wrong = f"cannot be read ({error.strerror})" if error.strerror else str(error).removeprefix(f"{path} ")
        raise Damaged(path, wrong, fix) from error
    if len(content) > most_bytes:
        raise Damaged(path, f"is larger than {most_bytes / 1024**2:.0f} MB", fix)
    return content


# --- JSON -------------------------------------------------------------------------------------------------------------


def parse(content: bytes | str, most_depth: int = MOST_DEPTH) -> Any:
    """The value of strict JSON: no NaN, no number beyond a float's, no deeper than that.

    Raises:
        ValueError: says what is wrong.
    """
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
    except UnicodeDecodeError as error:
        raise ValueError("is no text in UTF-8") from error
    # A look at brackets alone is quick, and tells of nearly every file that it cannot be deep.
    if text.count("[") + text.count("{") > most_depth and _depth(text) > most_depth:
        raise ValueError(f"is nested deeper than {most_depth} levels")
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON ({error})") from error
    except ValueError as error:  # of the two below, or a whole number of more digits than Python reads
        raise ValueError(f"holds a number that is none ({str(error)[:80]})") from error


# A string that does not end takes all the rest: else each quote in it would be tried as another one's beginning.
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[{\]}]', re.DOTALL)


def _depth(text: str) -> int:
    """Of brackets outside strings, before a parser has to follow them down."""
    deepest = depth = 0
    for found in _STRING_OR_BRACKET.finditer(text):
        if found[0][0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif found[0][0] in "]}":
            depth -= 1
    return deepest


def _no_number(text: str) -> None:
    raise ValueError(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def read_json(
    path: Path,
    kind: type = dict,
    *,
    fields: Mapping[str, Check] | None = None,
    most_bytes: int = MOST_BYTES,
    most_depth: int = MOST_DEPTH,
    fix: str = "put the file back",
) -> Any:
    """The content of a JSON file; None where there is nothing of that name.

    Args:
        kind: of the whole.
        fields: what an object must hold.

    Raises:
        Damaged: it is not that.
    """
    content = read_bytes(path, most_bytes, fix)
    if content is None:
        return None
    try:
        value = parse(content, most_depth)
        check(value, kind, fields or {})
    except ValueError as error:
        raise Damaged(path, "is empty" if not content.strip() else str(error), fix) from error
    return value


# --- folders ----------------------------------------------------------------------------------------------------------


def mark_own(folder: Path) -> None:
    """Says in a folder that we made it, before anything else is written there."""
    with os.fdopen(open_plain(folder / MARKER, os.O_WRONLY | os.O_CREAT), "wb") as file:
        file.truncate()  # and not on opening, before it is known to be no link
        file.write(_MADE)


def is_own(folder: Path) -> bool:
    """Whether we made that folder. A link to one is none, and neither is one with another's file of the marker's name."""
    try:
        return stat.S_ISDIR(os.lstat(folder).st_mode) and read_bytes(folder / MARKER, len(_MADE)) == _MADE
    except (OSError, Damaged):
        return False


def remove_own(folder: Path) -> bool:
    """Removes a folder that we made, and follows no link in it. Whatever else is there stays; returns whether it is gone."""
    if not is_own(folder):
        return False
    shutil.rmtree(folder)
    return True


def put_back(target: Path) -> bool:
    """Gives a folder its name back that a process had set aside and was killed before the new one had that name.

    Returns whether it did.
    """
    left = [] if present(target) else [place for place in target.parent.glob(f".{target.name}.*.old") if is_own(place)]
    if left:
        put_in_place(max(left, key=lambda place: place.stat().st_mtime), target)
    return bool(left)


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill. When that is done it and all in it are flushed to disk, and it takes `target`'s place.

    A failure leaves `target` as it was. What a killed process left behind beside it is put back or swept up.

    Raises:
        NotOurs: `target` is there, and we did not make it.
    """
    if present(target) and not is_own(target):
        raise NotOurs(f"{target} was not made by a training, and is left alone. Fix: move it elsewhere")
    if target.parent.is_dir():
        put_back(target)
        for left in target.parent.glob(f".{target.name}.*"):
            remove_own(left)
    aside, old = (target.with_name(f".{target.name}.{os.getpid()}{ending}") for ending in ("", ".old"))
    aside.mkdir(parents=True)
    mark_own(aside)
    try:
        yield aside
        for place in [*aside.rglob("*"), aside]:
            flush(place)
        if target.is_dir():
            put_in_place(target, old)
        put_in_place(aside, target)
        flush(target.parent)
    except BaseException:
        if old.is_dir() and not target.is_dir():
            put_in_place(old, target)
        raise
    finally:
        for place in (aside, old):
            remove_own(place)


BUSY_SECONDS = 1.0  # how long Windows may refuse a name to a file that takes the place of an open one


def _mode(path: Path) -> int:
    """Of what has that name, and not of what a link leads to; 0 where there is nothing."""
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


def write_bytes(path: Path, content: bytes) -> None:
    """A file that may be made again, such as a picture: whole or not at all, but not waited for until the disk has it.

    It takes the place of a link, and what that leads to stays.
    """
    aside = beside(path)
    try:
        aside.write_bytes(content)
        put_in_place(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes aside, flushes to disk, then renames: a reader finds the old text or the new one, never part of one."""
    aside = beside(path)
    try:
        aside.write_text(text, encoding="utf-8")
        flush(aside)
        put_in_place(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    flush(path.parent)


_numbers = itertools.count()


def beside(path: Path) -> Path:
    """A name to write a file under before it takes its place; no other thread or process gets the same."""
    return path.with_name(f".{path.name}.{os.getpid()}.{next(_numbers)}")


class NotOurs(OSError):
    """Something that no training made is where one has to write."""


def put_in_place(aside: Path, path: Path) -> None:
    """`os.replace`, which Windows refuses for as long as somebody has the old file open, as a page that polls it may.

    Raises:
        NotOurs: a folder has the name of the file.
    """
    if stat.S_ISDIR(_mode(path)) and not stat.S_ISDIR(_mode(aside)):
        raise NotOurs(f"{path} is a folder, and a file is to be written there. Fix: move it elsewhere")
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return os.replace(aside, path)
        except PermissionError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def flush(path: Path) -> None:
    """Waits until the disk holds a file's content, or a folder's names."""
    if path.is_dir() and os.name == "nt":  # which opens no folders, and keeps names by a journal
        return
    place = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(place)
    finally:
        os.close(place)
