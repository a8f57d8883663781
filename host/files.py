"""One plain file: opened as it is, and written whole or not at all. Imports no torch.

A run's folder may have been on a disk that filled up, in an archive, under an editor, or in a stranger's hands. So a file is
never opened through a link, never as a pipe or a device, and never read beyond a size.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from .errors import Expected

if TYPE_CHECKING:
    from filelock import BaseFileLock

MOST_BYTES = 64 * 1024**2  # of a file that is read whole
BUSY_SECONDS = 1.0  # how long Windows may refuse to replace a file that somebody has open
_MOST_RENAMED = 100  # how often a file may get another one's name while it is being opened

_numbers = itertools.count()


class Damaged(Expected, ValueError):
    """A file that is not as it was written: `path`, what is `wrong` with it, and the `fix`."""

    def __init__(self, path: Path, wrong: str, fix: str):
        self.path, self.wrong = path, wrong
        super().__init__(f"{path} {wrong}. Fix: {fix}")


class NotOurs(Expected, OSError):
    """Something that no training made stands where we have to write."""


# --- reading ----------------------------------------------------------------------------------------------------------


def present(path: Path) -> bool:
    """Whether there is anything of that name, be it a link that leads nowhere."""
    return os.path.lexists(path)


def is_plain_file(path: Path) -> bool:
    """Whether there is a regular file of that name, and no link to one."""
    return stat.S_ISREG(_mode(path))


def _mode(path: Path) -> int:
    """The type of what has that name, not of what a link leads to; 0 where there is nothing."""
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


def real(path: Path) -> Path:
    """The whole path, with all links followed. A loop of links gives a name in it, which nothing can open, where pathlib's
    `resolve` raises RuntimeError."""
    return Path(os.path.realpath(path))


def open_plain(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a plain file: never through a link at its name, and never of a pipe or a device, which could block.

    What was looked at is what is opened, also on Windows, which has no O_NOFOLLOW.

    Raises:
        OSError: it is missing, or something else; names it.
    """
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    for _ in range(_MOST_RENAMED):
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
            with contextlib.suppress(FileExistsError):
                return os.open(path, flags | os.O_EXCL, 0o666)  # which follows no link on any system
            continue
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path} is {_kind(status.st_mode)}, and not a plain file")
        try:
            descriptor = os.open(path, flags, 0o666)
        except FileNotFoundError:
            continue
        if os.path.samestat(status, os.fstat(descriptor)):
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


@contextlib.contextmanager
def opened(path: Path, fix: str = "put the file back") -> Iterator[BinaryIO | None]:
    """A plain file to read; None where there is nothing of that name.

    Raises:
        Damaged: it is not a plain file, or cannot be read.
    """
    try:
        with contextlib.ExitStack() as stack:
            file = None
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                file = stack.enter_context(os.fdopen(open_plain(path), "rb"))
            yield file
    except OSError as error:
        wrong = f"cannot be read ({error.strerror})" if error.strerror else str(error).removeprefix(f"{path} ")
        raise Damaged(path, wrong, fix) from error


def read_bytes(path: Path, most_bytes: int = MOST_BYTES, fix: str = "put the file back") -> bytes | None:
    """The content of a plain file; None where there is nothing of that name.

    Raises:
        Damaged: it is too large, not a plain file, or cannot be read.
    """
    with opened(path, fix) as file:
        content = file.read(most_bytes + 1) if file else None
    if content is not None and len(content) > most_bytes:
        raise Damaged(path, f"is larger than {most_bytes / 1024**2:.0f} MB", fix)
    return content


# --- locks ------------------------------------------------------------------------------------------------------------


class NoLocks(Expected, OSError):
    """The file system has none."""


_WITHOUT_LOCKS = {
    getattr(errno, name) for name in ("ENOLCK", "ENOSYS", "ENOTSUP", "EOPNOTSUPP", "EINVAL") if hasattr(errno, name)
}


def lock(path: Path, wait: float) -> BaseFileLock | None:
    """A file's lock, ours until its `release` or our end; None if another process has it for longer than `wait` seconds.

    The file is made if it is missing, and stays.

    Raises:
        NoLocks: the file system has none.
        OSError: it cannot be made or opened, or is not a plain file.
    """
    from filelock import FileLock, Timeout

    os.close(open_plain(path, os.O_RDWR | os.O_CREAT))  # of all libraries' versions, not all refuse a link
    held = FileLock(path, timeout=wait, thread_local=False)
    try:
        held.acquire(poll_interval=0.02)
    except Timeout:
        return None
    except NotImplementedError as error:
        raise NoLocks(*error.args) from error
    except OSError as error:
        if error.errno in _WITHOUT_LOCKS:
            raise NoLocks(*error.args) from error
        raise
    return held


# --- writing ----------------------------------------------------------------------------------------------------------


def write_text(path: Path, text: str, mode: int = 0o666) -> None:
    """Writes aside, flushes to disk, then renames: a reader finds the old text or the new one, never part of one. `mode` is
    what the file is created with, as by `os.open`."""
    with written_aside(path) as aside:
        with open(aside, "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(text)
        flush(aside)
    flush(path.parent)


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file that can be made again, such as a picture: whole or not at all, but without waiting for the disk.

    It replaces a link of that name, and leaves what the link leads to.
    """
    with written_aside(path) as aside:
        aside.write_bytes(content)


@contextlib.contextmanager
def written_aside(path: Path) -> Iterator[Path]:
    """A name to write a file under, which takes the place of `path` at the end; after an error neither is touched or left."""
    aside = beside(path)
    try:
        yield aside
        put_in_place(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def trim(paths: Iterable[Path], most_bytes: int) -> int:
    """Removes the longest unused files until all of them together have at most so many bytes; returns how many they have."""
    listed = []
    for path in paths:
        with contextlib.suppress(OSError):  # another process was faster
            state = os.lstat(path)
            listed.append((state.st_mtime_ns, state.st_size, path))
    total = sum(size for _, size, _ in listed)
    for _, size, path in sorted(listed):
        if total <= most_bytes:
            break
        path.unlink(missing_ok=True)
        total -= size
    return total


def beside(path: Path) -> Path:
    """A name to write a file under before it replaces `path`; no other thread or process gets the same."""
    return path.with_name(f".{path.name}.{os.getpid()}.{next(_numbers)}")


def put_in_place(aside: Path, path: Path) -> None:
    """`os.replace`, tried again for a while where Windows refuses it: a page that polls a file has it open for moments.

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
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(*files: Path | int, progress: Callable[[int], object] = lambda count: None) -> str:
    """The SHA-256 of a file, or of several one after the other, in hexadecimal digits; a descriptor is closed. `progress` is
    called with the bytes of each part."""
    digest = hashlib.sha256()
    for file in files:
        with open(file, "rb") as opened:
            while part := opened.read(1 << 24):
                digest.update(part)
                progress(len(part))
    return digest.hexdigest()
