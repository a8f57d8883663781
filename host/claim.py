"""A run's folder belongs to one process, which trains in it; every other one is refused. Imports no torch.

Two files say so. The operating system locks `claim.lock` for as long as the process lives, and unlocks it however the process
ends. The lock holds among all processes and containers of one kernel, and on most network file systems among machines.
`claim.json` says who has the folder. Humans read it, and so does a process that the lock does not reach. If it cannot be seen
from here whether that process has ended, the folder still counts as taken, unless the user says otherwise.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from . import machine
from .files import Damaged, flush, present
from .json_files import NUMBER, TEXT, WHOLE, maybe, read_json
from .machine import alive

LOCK, CLAIM = "claim.lock", "claim.json"
MOST_WAIT = 1.0  # seconds for a lock that another process may only be looking at …
LOOK_WAIT = 0.1  # … and where we only look ourselves
NO_LOCK_WAIT = 0.5  # seconds between writing a claim and reading whose it is, on a file system without locks
# Where the system does not number its starts: setting the clock moves the moment of the start by up to so many seconds.
_BOOT_SECONDS = 30
_FIELDS = {
    **dict.fromkeys(("host", "machine", "boot", "pid_namespace", "token"), TEXT),
    "pid": WHOLE,
    "process_started": NUMBER,
    "since": NUMBER,
    "place": maybe(TEXT),
}

Say = Callable[[str], None]


class Claimed(RuntimeError):
    """A folder that another process trains in, or may train in; says who, since when, and what helps."""


@dataclass(frozen=True)
class Holder:
    """Who trains in a folder. `since`, `process_started`: seconds since 1970. An empty text is what the system does not say."""

    host: str
    machine: str
    boot: str
    pid_namespace: str
    pid: int
    process_started: float
    since: float
    token: str
    place: str | None = None  # canvas or headless

    def __str__(self) -> str:
        here = _same_boot(self) and self.pid_namespace == machine.pid_namespace()
        where = "" if here else f" on {self.host}"
        return f"process {self.pid}{where}, since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.since))}"


def _same_boot(holder: Holder) -> bool:
    ours = machine.boot()
    if holder.boot == ours:
        # A number of the start is unique; a moment may be another machine's too.
        return not ours.startswith("since ") or _same_machine(holder)
    both = (holder.boot, ours)
    if not _same_machine(holder) or not all(boot.startswith("since ") for boot in both):
        return False
    try:
        then, now = (float(boot.removeprefix("since ")) for boot in both)
    except ValueError:
        return False
    return abs(then - now) < _BOOT_SECONDS


def _same_machine(holder: Holder) -> bool:
    return bool(machine.machine_id()) and (holder.host, holder.machine) == (socket.gethostname(), machine.machine_id())


# --- claims -----------------------------------------------------------------------------------------------------------


class Claim:
    """A folder that is this process's until `release`, or until the process ends. Made by `take`."""

    def __init__(self, folder: Path, token: str, descriptor: int | None, launcher: int | None = None):
        self.folder, self.token, self._descriptor, self._launcher = folder, token, descriptor, launcher

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
            if _held.get(self.folder) is not self:
                return
            del _held[self.folder]
            with contextlib.suppress(OSError, Damaged):  # the folder may be gone, or another's by --take-over
                if (written := _written(self.folder)) is not None and written.token == self.token:
                    os.unlink(self.folder / CLAIM)
                if leave_nothing and self._descriptor is not None:
                    os.unlink(self.folder / LOCK)
            self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)  # and with it the lock ends
            self._descriptor = None

    def stands(self) -> bool:
        """Whether the folder is still the one that was claimed, and was neither removed nor taken over.

        With the lock in hand, a claim.json that was removed changes nothing.
        """
        try:
            written = _written(self.folder)
            if self._descriptor is not None:
                same = os.path.samestat(os.fstat(self._descriptor), os.lstat(self.folder / LOCK))
                return same and (written is None or written.token == self.token)
        except (OSError, Damaged):
            return False
        launched = self._launcher is None or self._launcher == os.getppid()
        return launched and written is not None and written.token == self.token


_held: dict[Path, Claim] = {}
_taking = threading.RLock()


def _forget() -> None:
    """In a forked child: the folder is its parent's, and must not stay locked when only the child is left."""
    global _taking
    _taking = threading.RLock()
    for claim in list(_held.values()):
        claim._close()
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def take(folder: Path, *, take_over: bool = False, say: Say = lambda line: None, place: str | None = None) -> Claim:
    """Claims a folder, which is made if it is not there, for the rest of this process's life or until `release`.

    A folder that this process has claimed already stays claimed, and its claim is returned.

    Args:
        take_over: the user says that the process which claimed it, on another machine or before a restart, has ended.
        say: called with a line that says whose claim was taken over.
        place: canvas or headless, for who asks.

    Raises:
        Claimed: it is another's; names who, since when, and the fix.
        OSError: the folder cannot be made or written.
    """
    with _taking:
        folder = folder.resolve()
        claim = _held.get(folder)
        if claim is not None and claim.stands():
            return claim
        if claim is not None:
            _held.pop(folder)
            claim._close()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = machine.locked(folder / LOCK, MOST_WAIT)
            if descriptor is None:
                raise _in_use(folder, _who(folder))
        except machine.NoLocks:
            descriptor = None
        try:
            token = _write_claim(folder, place, take_over, say, by_lock=descriptor is not None)
        except BaseException:
            if descriptor is not None:
                os.close(descriptor)
            raise
        claim = _held[folder] = Claim(folder, token, descriptor)
        return claim


def adopt(folder: Path) -> Claim:
    """The claim of the process that launched this one, which holds it for as long as it lives."""
    written = _written(folder.resolve())
    assert written is not None, "the launching process has claimed the folder"
    return Claim(folder.resolve(), written.token, None, os.getppid())


def holder(folder: Path) -> Holder | None:
    """Who trains in a folder, as far as can be seen from here; None if no process does. Claims nothing.

    A process that claimed it on another machine, or in a way that cannot be read, counts as training there.

    Raises:
        Damaged: claim.json cannot be read, so it is not known.
    """
    folder = folder.resolve()
    written = _written(folder)
    if written is None:
        return None
    with _taking:
        if folder in _held and _held[folder].token == written.token:
            return written
    free = _free(folder, written)
    return written if free is False or not _ended(written, by_lock=free is True) else None


def doubt(folder: Path) -> str | None:
    """The message for a folder whose claim may be dead, which cannot be seen from here; None if it is clear."""
    try:
        who = holder(folder)
    except Damaged as error:
        return str(error)
    if who is None or lives(who) or _free(folder.resolve(), who) is False:
        return None
    return str(_refusal(folder, who))


def check(folder: Path, *, take_over: bool = False) -> None:
    """Raises Claimed where `take` would, as far as can be seen without claiming."""
    folder = folder.resolve()
    with _taking:
        if folder in _held and _held[folder].stands():
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
    """What helps on the canvas, on the page and in a terminal alike."""
    return f"if nothing trains there, remove {folder / CLAIM} (headlessly: --take-over)"


def lives(who: Holder) -> bool:
    """Whether that process is seen to be there."""
    seen = _same_boot(who) and who.pid_namespace == machine.pid_namespace()
    return seen and alive(who.pid, who.process_started)


def _free(folder: Path, who: Holder | None) -> bool | None:
    """Whether the folder's lock could be had, which is tried for a moment; None if that cannot be known.

    The process that has it may only be looking, as we are. That is waited for, unless `who`, its claimant, is seen to live.
    """
    if not present(folder / LOCK):
        return None
    try:
        descriptor = machine.locked(folder / LOCK, 0.0 if who is not None and lives(who) else LOOK_WAIT)
    except (machine.NoLocks, OSError):
        return None
    if descriptor is None:
        return False
    os.close(descriptor)
    return True


def _ended(who: Holder, by_lock: bool) -> bool:
    """Whether that process is seen to have ended. `by_lock`: the lock, which it would have, is free."""
    if _same_boot(who):
        # Without a lock its number decides, but only where numbers mean the same.
        return by_lock or who.pid_namespace == machine.pid_namespace() and not alive(who.pid, who.process_started)
    return _same_machine(who)  # which has restarted since


def _written(folder: Path) -> Holder | None:
    """Raises Damaged."""
    content = read_json(folder / CLAIM, fields=_FIELDS, fix=_remedy(folder))
    if content is None:
        return None
    return Holder(**{name: content.get(name) for name in Holder.__dataclass_fields__})


def _who(folder: Path) -> str:
    for _ in range(10):  # who has the lock may be about to write down who it is
        with contextlib.suppress(Damaged):
            if written := _written(folder):
                return str(written)
        time.sleep(0.05)
    return "another process"


def _write_claim(folder: Path, place: str | None, take_over: bool, say: Say, by_lock: bool) -> str:
    """Writes claim.json, unless one there still holds; returns its token. Raises Claimed."""
    import psutil

    ours = Holder(
        host=socket.gethostname(),
        machine=machine.machine_id(),
        boot=machine.boot(),
        pid_namespace=machine.pid_namespace(),
        pid=os.getpid(),
        process_started=psutil.Process().create_time(),
        since=time.time(),
        token=uuid.uuid4().hex,
        place=place,
    )
    message = ""
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
    if message:
        (folder / CLAIM).unlink(missing_ok=True)
    try:
        with open(folder / CLAIM, "x", encoding="utf-8") as file:  # by one process, also where locks do not reach
            file.write(json.dumps(asdict(ours), indent=1))
    except FileExistsError as error:
        raise _in_use(folder, _who(folder)) from error
    flush(folder / CLAIM)
    if not by_lock:  # of several that replace a claim at one moment, all but the last see another's
        time.sleep(NO_LOCK_WAIT)
        if (last := _written(folder)) is None or last.token != ours.token:
            raise _in_use(folder, last or "another process")
    if message:
        say(message)
    return ours.token
