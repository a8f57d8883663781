"""Which machine this is and which start of it, whether a process lives, and the system's lock on an open file."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from .files import open_plain

WINDOWS = os.name == "nt"
FAR = 2**31 - 2  # a byte that no file of lines has; as far as Windows can go


def _first_line(*paths: str) -> str:
    for path in paths:
        with contextlib.suppress(OSError):
            return Path(path).read_text(encoding="utf-8").strip()
    return ""


@functools.cache
def machine_id() -> str:
    """A text that no other machine has, and that stays when this one restarts; empty if it cannot be told."""
    if WINDOWS:
        import winreg

        with (
            contextlib.suppress(OSError),
            winreg.OpenKey(
                winreg.HKEY_LOCAL_MACHINE,
                r"SOFTWARE\Microsoft\Cryptography",
                0,
                winreg.KEY_READ | winreg.KEY_WOW64_64KEY,
            ) as key,
        ):
            return winreg.QueryValueEx(key, "MachineGuid")[0]
        return ""
    if text := _first_line("/etc/machine-id", "/var/lib/dbus/machine-id"):
        return text
    node = uuid.getnode()
    # Two bits say that this number is not the network card's: it was drawn, since there is no card, or a program set it. Docker
    # sets the same ones on every machine.
    return "" if node >> 40 & 3 else f"{node:012x}"


@functools.cache
def boot() -> str:
    """A text that changes at every start of the system, and is the same in all containers of one kernel."""
    if text := _first_line("/proc/sys/kernel/random/boot_id"):
        return text
    import psutil

    return f"since {psutil.boot_time():.0f}"


def pid_namespace() -> str:
    """Within one of these a process has one number; empty on a system without such namespaces."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


class NoLocks(Exception):
    """The file system has none."""


_WITHOUT = {
    number
    for name in ("ENOLCK", "ENOSYS", "ENOTSUP", "EOPNOTSUPP", "EINVAL")
    if (number := getattr(errno, name, None)) is not None
}
_BUSY = {errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK, errno.EDEADLK}


def lock(descriptor: int) -> bool:
    """Locks an open file, which must be shorter than FAR, without waiting; returns whether it did. Raises NoLocks."""
    try:
        if WINDOWS:
            import msvcrt

            os.lseek(descriptor, FAR, os.SEEK_SET)  # what is locked there, no other process can read
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        if error.errno in _WITHOUT:
            raise NoLocks from error
        raise
    return True


@contextlib.contextmanager
def alone(descriptor: int) -> Iterator[None]:
    """Waits until no other process has locked this open file, and keeps others waiting meanwhile.

    Threads of one process too, each with its own descriptor. Where the file system has no locks, nothing waits.
    """
    with contextlib.suppress(NoLocks):
        while not lock(descriptor):
            time.sleep(0.01)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # closing would do it too, but on Windows some time later
            if WINDOWS:
                import msvcrt

                os.lseek(descriptor, FAR, os.SEEK_SET)
                msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
            else:
                import fcntl

                fcntl.flock(descriptor, fcntl.LOCK_UN)


def locked(path: Path, wait: float) -> int | None:
    """The descriptor of a file whose lock is ours now; None if another process has it for longer than `wait` seconds.

    Raises:
        NoLocks: the file system has none.
        OSError: the file cannot be made or opened.
    """
    deadline = time.monotonic() + wait
    while True:
        descriptor = open_plain(path, os.O_RDWR | os.O_CREAT)
        try:
            if lock(descriptor):
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                        return descriptor
                # The folder was removed since we opened the file: no other process would see its lock.
                os.close(descriptor)
                continue
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
        if time.monotonic() >= deadline:
            return None
        time.sleep(0.02)


def alive(pid: object, started: object) -> bool:
    """Whether the process still runs that has that number and began at that time: numbers are used again."""
    import psutil

    if not isinstance(pid, int) or not isinstance(started, int | float):
        return False
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started) < 2 and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError):
        return False
