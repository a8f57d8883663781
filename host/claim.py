"""A run's folder belongs to one process, which trains in it; every other one is refused. Imports no torch.

Two files say so. `claim.lock` is locked by filelock for as long as the process lives, however it ends. The lock holds among all
processes and containers of one kernel, and on most network file systems among machines. `claim.json` says who has the folder.
Humans read it, and so does a process that the lock does not reach. If it cannot be seen from here whether that process has ended,
the folder still counts as taken, unless the user says otherwise.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

from .errors import Expected
from .files import Damaged, NoLocks, lock, present, real, write_text
from .json_files import NUMBER, TEXT, WHOLE, maybe, read_json

if TYPE_CHECKING:
    from filelock import BaseFileLock

LOCK, CLAIM = "claim.lock", "claim.json"
MOST_WAIT = 1.0  # seconds for a lock that another process may only be looking at …
LOOK_WAIT = 0.1  # … and where we only look ourselves
NO_LOCK_WAIT = 0.5  # seconds between writing a claim and reading whose it is, on a file system without locks
_FIELDS = {
    **dict.fromkeys(("host", "machine", "boot", "pid_namespace", "token"), TEXT),
    "pid": WHOLE,
    "process_started": NUMBER,
    "since": NUMBER,
    "place": maybe(TEXT),
}

Say = Callable[[str], None]


class Claimed(Expected, RuntimeError):
    """A folder that another process trains in, or may train in; says who, since when, and what helps."""


# --- who --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Holder:
    """Who trains in a folder. `since`, `process_started`: seconds since 1970. An empty text is what the system does not say.

    Attributes:
        machine: the same after a restart; what Linux calls the machine's id.
        boot: another one after each restart of the system, and the same in all containers of one kernel.
        pid_namespace: within one of these, a process has one number.
        place: canvas or headless.
    """

    host: str
    machine: str
    boot: str
    pid_namespace: str
    pid: int
    process_started: float
    since: float
    token: str
    place: str | None = None

    def __str__(self) -> str:
        where = "" if _numbers_alike(self) else f" on {self.host}"
        return f"process {self.pid}{where}, since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.since))}"


@functools.cache
def _here() -> dict[str, str]:
    """Where this process is. On a system that does not number its starts, the host's name stands for that."""
    pid_namespace = ""
    with contextlib.suppress(OSError):
        pid_namespace = os.readlink("/proc/self/ns/pid")
    return {
        "host": socket.gethostname(),
        "machine": _first_line("/etc/machine-id", "/var/lib/dbus/machine-id"),
        "boot": _first_line("/proc/sys/kernel/random/boot_id") or socket.gethostname(),
        "pid_namespace": pid_namespace,
    }


def ourselves(place: str | None = None) -> Holder:
    """This process, which claims now, with a token of its own."""
    import psutil

    return Holder(
        **_here(),
        pid=os.getpid(),
        process_started=psutil.Process().create_time(),
        since=time.time(),
        token=uuid.uuid4().hex,
        place=place,
    )


def _first_line(*paths: str) -> str:
    for path in paths:
        with contextlib.suppress(OSError):
            return Path(path).read_text(encoding="utf-8").strip()
    return ""


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


def _numbers_alike(who: Holder) -> bool:
    """Whether the numbers of its processes mean here what they mean there."""
    return (who.boot, who.pid_namespace) == (_here()["boot"], _here()["pid_namespace"])


def lives(who: Holder) -> bool:
    """Whether that process is seen to be there."""
    return _numbers_alike(who) and alive(who.pid, who.process_started)


def _ended(who: Holder, by_lock: bool) -> bool:
    """Whether that process is seen to have ended. `by_lock`: the lock, which it would have, is free."""
    if who.boot == _here()["boot"]:  # without a lock its number decides, but only where numbers mean the same
        return by_lock or _numbers_alike(who) and not alive(who.pid, who.process_started)
    # The same machine, which has restarted since. Two containers of one name are told apart by an id, or count as two.
    return bool(who.machine) and (who.host, who.machine) == (_here()["host"], _here()["machine"])


# --- claims -----------------------------------------------------------------------------------------------------------


class Claim:
    """A folder that is this process's until `release`, or until the process ends. Made by `take`.

    Attributes:
        kept: whether a run of this process has it.
    """

    def __init__(self, folder: Path, token: str, lock: BaseFileLock | None, launcher: int | None = None):
        self.folder, self.token, self._lock, self._launcher = folder, token, lock, launcher
        self._process = os.getpid()
        self.kept = False
        self._locked = _identity(folder / LOCK) if lock else None

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_) -> None:
        self.release()

    def release(self, leave_nothing: bool = False) -> None:
        """Lets others have the folder. What is not ours any more stays; a second call does nothing.

        Args:
            leave_nothing: remove the lock's file too, since nothing was begun in the folder.
        """
        with _taking:
            if _held.get(self.folder) is not self or self._process != os.getpid():
                return
            del _held[self.folder]
            with contextlib.suppress(OSError, Damaged):  # the folder may be gone, or another's by --take-over
                if (written := _written(self.folder)) is not None and written.token == self.token:
                    os.unlink(self.folder / CLAIM)
            self._unlock()
            if leave_nothing and self._lock:
                (self.folder / LOCK).unlink(missing_ok=True)

    def _unlock(self) -> None:
        """In a forked child it does nothing: the lock that the two share is the parent's."""
        if self._lock and self._process == os.getpid():
            self._lock.release()

    def stands(self) -> bool:
        """Whether the folder is still the one that was claimed, and was neither removed nor taken over.

        With the lock in hand, a claim.json that was removed changes nothing. In a forked child, the folder is its parent's.
        """
        try:
            written = _written(self.folder)
        except (OSError, Damaged):
            return False
        if self._lock:
            same = self._process == os.getpid() and _identity(self.folder / LOCK) == self._locked
            return same and (written is None or written.token == self.token)
        launched = self._launcher is None or self._launcher == os.getppid()
        return launched and written is not None and written.token == self.token


_held: dict[Path, Claim] = {}
_taking = RLock()


def _identity(path: Path) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        state = os.lstat(path)
        return state.st_dev, state.st_ino
    return None


def take(folder: Path, *, take_over: bool = False, say: Say = lambda line: None, place: str | None = None) -> Claim:
    """Claims a folder, which is made if it is not there, for the rest of this process's life or until `release`.

    A folder that this process has claimed already stays claimed, and its claim is returned.

    `take_over`: the user says that the process which claimed it, on another machine or before a restart, has ended.
    `say`: called with a line that says whose claim was taken over.
    `place`: canvas or headless, for who asks.

    Raises:
        Claimed: it is another's; names who, since when, and the fix.
        OSError: the folder cannot be made or written.
    """
    with _taking:
        folder = real(folder)
        if (claim := ours(folder)) is not None:
            return claim
        if (lost := _held.pop(folder, None)) is not None:
            lost._unlock()
        folder.mkdir(parents=True, exist_ok=True)
        held = None
        with contextlib.suppress(NoLocks):
            held = lock(folder / LOCK, MOST_WAIT)
            if held is None:
                raise _in_use(folder, _who(folder))
        try:
            token = _write_claim(folder, place, take_over, say, by_lock=held is not None)
        except BaseException:
            if held:
                held.release()
            raise
        claim = _held[folder] = Claim(folder, token, held)
        return claim


def ours(folder: Path) -> Claim | None:
    """The claim of this process on that folder, while it stands."""
    with _taking:
        claim = _held.get(real(folder))
        return claim if claim is not None and claim.stands() else None


def adopt(folder: Path) -> Claim:
    """The claim of the process that launched this one, which holds it for as long as it lives."""
    written = _written(real(folder))
    assert written is not None, "the launching process has claimed the folder"
    return Claim(real(folder), written.token, None, os.getppid())


def holder(folder: Path) -> Holder | None:
    """Who trains in a folder, as far as can be seen from here; None if no process does. Claims nothing.

    A process that claimed it on another machine, or in a way that cannot be read, counts as training there.

    Raises:
        Damaged: claim.json cannot be read, so it is not known.
    """
    folder = real(folder)
    written = _written(folder)
    if written is None:
        return None
    with _taking:
        if folder in _held and _held[folder].token == written.token:
            return written
    free = _free(folder, written)
    return written if free is False or not _ended(written, by_lock=free is True) else None


def in_use(folder: Path) -> bool:
    """Whether a process trains there, or that cannot be known."""
    try:
        return holder(folder) is not None
    except Damaged:
        return True


def doubt(folder: Path) -> str | None:
    """The message for a folder whose claim may be dead, which cannot be seen from here; None if it is clear."""
    try:
        who = holder(folder)
    except Damaged as error:
        return str(error)
    if who is None or lives(who) or _free(real(folder), who) is False:
        return None
    return str(_refusal(folder, who))


def check(folder: Path, *, take_over: bool = False) -> None:
    """Raises Claimed where `take` would, as far as can be seen without claiming."""
    folder = real(folder)
    if ours(folder) is not None:
        return
    written = damaged = None
    try:
        written = _written(folder)
    except Damaged as error:
        damaged = error
    free = _free(folder, written)
    if free is False:
        raise _in_use(folder, _who(folder))
    if damaged is not None and not take_over:
        raise Claimed(str(damaged)) from damaged
    if written is None or _ended(written, by_lock=free is True) or take_over and not lives(written):
        return
    raise _refusal(folder, written)


def _free(folder: Path, who: Holder | None) -> bool | None:
    """Whether the folder's lock could be had, which is tried for a moment; None if that cannot be known.

    The process that has it may only be looking, as we are. That is waited for, unless `who`, its claimant, is seen to live.
    """
    if not present(folder / LOCK):
        return None
    try:
        held = lock(folder / LOCK, 0.0 if who is not None and lives(who) else LOOK_WAIT)
    except OSError:
        return None
    if held is not None:
        held.release()
    return held is not None


def _in_use(folder: Path, who: object) -> Claimed:
    return Claimed(
        f"{folder} is in use: {who} is training there. Fix: stop it, or choose another run_name, or --output"
    )


def _refusal(folder: Path, who: Holder) -> Claimed:
    if lives(who):
        return _in_use(folder, who)
    unseen = f"{folder} is claimed by {who}, and it cannot be seen from here whether that has ended"
    return Claimed(f"{unseen}. Fix: stop it, or {_remedy(folder)}")


def _remedy(folder: Path) -> str:
    """The fix that helps on the canvas, on the page and in a terminal alike."""
    return f"if nothing trains there, remove {folder / CLAIM} (headlessly: --take-over)"


def _written(folder: Path) -> Holder | None:
    """Raises Damaged."""
    content = read_json(folder / CLAIM, fields=_FIELDS, fix=_remedy(folder))
    return None if content is None else Holder(**{field.name: content.get(field.name) for field in fields(Holder)})


def _who(folder: Path) -> str:
    for _ in range(10):  # who has the lock may be about to write down who it is
        with contextlib.suppress(Damaged):
            if written := _written(folder):
                return str(written)
        time.sleep(0.05)
    return "another process"


def _write_claim(folder: Path, place: str | None, take_over: bool, say: Say, by_lock: bool) -> str:
    """Writes claim.json, unless one there still holds; returns its token. Raises Claimed."""
    claim, message = ourselves(place), ""
    try:
        written = _written(folder)
    except Damaged as error:
        if not take_over:
            raise Claimed(str(error)) from error
        message, written = f"{error.path} {error.wrong}; the folder is taken over", None
    if written is not None:
        if _ended(written, by_lock):
            message = f"{written} had claimed {folder} and has ended; the folder is taken over"
        elif take_over and not lives(written):
            message = f"{written} had claimed {folder}; the folder is taken over, as you said"
        else:
            raise _refusal(folder, written)
    write_text(folder / CLAIM, json.dumps(asdict(claim), indent=1))
    if not by_lock:  # of several that write a claim at one moment, all but the last see another's
        time.sleep(NO_LOCK_WAIT)
        if (last := _written(folder)) is None or last.token != claim.token:
            raise _in_use(folder, last or "another process")
    if message:
        say(message)
    return claim.token
