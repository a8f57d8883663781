"""How a file that a stranger's workflow names is opened: first the name is judged, before anything is touched; then the file
that was opened is judged, whatever path led to it.

What is allowed is `permissions`' business. Imports no torch.
"""

from __future__ import annotations

import ntpath
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable
from concurrent import futures
from pathlib import Path
from typing import TypeVar

from ..errors import Expected
from ..text import is_windows_device, shortened

WINDOWS = os.name == "nt"
SECONDS = 10.0  # the longest that reading a file may take: a network drive that hangs must not stop ComfyUI
# While one file hangs, and for REMEMBERED seconds at the most, any other file gets only this time: ComfyUI asks nodes that name
# files on the same drive one after the other, in one loop.
SECONDS_WHILE_ONE_HANGS, REMEMBERED = 0.5, 60.0
LONGEST_NAME, LONGEST_PART = 1000, 255
SHOWN = 200  # characters of a name in an error

hanging: list[tuple[threading.Thread, float]] = []  # readers that took too long, and since when they are left alone

T = TypeVar("T")


def check_name(name: str) -> None:
    """Raises ValueError, with what is wrong, for a name that must not even be looked for: looking at `\\\\server\\share` on
    Windows hands the user's credentials to that server, and a device's name opens the device.
    """
    if not isinstance(name, str):
        raise ValueError("it is not text")
    if remote(name):
        raise ValueError("it names another machine or a device (UNC path)")
    if "\0" in name or len(name) > LONGEST_NAME:
        raise ValueError(f"it cannot be the name of a file: it has a zero byte, or more than {LONGEST_NAME} characters")
    parts = name.replace("\\", "/").split("/") if WINDOWS else name.split("/")
    try:
        longest = max(len(part.encode()) for part in parts)
    except UnicodeEncodeError as error:
        raise ValueError("it cannot be the name of a file: it has half a character") from error
    if longest > LONGEST_PART:
        raise ValueError(f"it cannot be the name of a file: a part of it has more than {LONGEST_PART} bytes")
    if not WINDOWS:
        return
    rest = ntpath.splitdrive(name)[1]
    if ":" in rest:
        raise ValueError("it names a stream of a file (a colon)")
    if any(map(is_windows_device, parts)):
        raise ValueError("it is a device's name on Windows")


def remote(name: str) -> bool:
    """Whether a name begins like that of another machine or a device: on every system, so that a graph has one meaning."""
    return name[:2] in ("\\\\", "//", "\\/", "/\\")


def inside(path: str, folder: str) -> bool:
    """Whether an absolute path is `folder` or lies below it, by their names alone."""
    path, folder = (os.path.normcase(os.path.normpath(name)) for name in (path, folder))
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


class Refused(Expected):
    """A file that is not opened, with what is wrong with it."""


class TooLarge(Refused):
    """A file of more bytes than may be read."""


class LeadsOut(Refused):
    """A link to a file that lies elsewhere."""


def opened(path: Path, folders: Iterable[str], most_bytes: int) -> int:
    """A descriptor of a regular file that lies in one of `folders`, whatever links led to it. The caller closes it.

    Raises:
        Refused: anything but a regular file, one that lies elsewhere or that is larger than `most_bytes`.
        OSError: as `os.open`.
    """
    # Without waiting, since a FIFO without a writer would make it wait for ever.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    if not stat.S_ISREG(os.stat(path).st_mode):  # opening some devices already does something
        raise Refused("is not a regular file")
    descriptor = os.open(path, flags | getattr(os, "O_NOCTTY", 0))
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Refused("is not a regular file")
        real = os.path.realpath(path)
        lies_inside = any(inside(real, os.path.realpath(folder)) for folder in folders)
        if not (lies_inside and os.path.samestat(os.stat(real), status)):
            raise LeadsOut(f"is a link out of its folder, to {real}")
        if status.st_size > most_bytes:
            raise TooLarge(f"has {status.st_size:,} bytes, and {most_bytes:,} may be read")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read(descriptor: int, most_bytes: int) -> bytes:
    """All of the file, which is closed. Raises Refused where it turns out to be larger than `most_bytes`."""
    with open(descriptor, "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:  # some files of the system have a size of 0 and no end
        raise Refused(f"has more than {most_bytes:,} bytes")
    return content


def in_time(work: Callable[[], T]) -> T:
    """Returns the result of `work`. It runs in a thread, which is left alone after `SECONDS`, or sooner while another one hangs.

    Raises:
        TimeoutError: it took longer.
    """
    hanging[:] = [
        (thread, since) for thread, since in hanging if thread.is_alive() and time.monotonic() - since < REMEMBERED
    ]
    seconds = SECONDS_WHILE_ONE_HANGS if hanging else SECONDS
    result: futures.Future[T] = futures.Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    thread = threading.Thread(target=run, name="otca reads a file", daemon=True)
    thread.start()
    thread.join(seconds)
    if result.done():
        return result.result()
    hanging.append((thread, time.monotonic()))
    raise TimeoutError(f"could not be read within {seconds:g} s")


def shown(name: object) -> str:
    """A name in an error: quoted, and not longer than a line or two."""
    return shortened(repr(name), SHOWN)
