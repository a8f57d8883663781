"""Keeps copies of runs that live elsewhere. They are brought up to date only when the page reads the list of runs."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...host import files, network, own_folders
from ...host.access import permissions
from ...host.access.addresses import host_of
from ...host.errors import Expected
from ...host.json_files import parse
from ...host.text import plain_name
from ...trainer.run import status
from ...trainer.run.folder import REMOTE, read_own, say_once
from ..requests import Field, Refused, disk, text
from ..runs import Run, Runs
from . import kept_tokens
from .server import GROWING, MOST_STATE_BYTES, check_state

EVERY = 2.0  # seconds between two looks, at least
SECONDS, SLOWEST = 60.0, 10_000  # that an answer may take, and bytes a second of a file beyond that
PATIENCE = 10.0  # seconds that a new copy is waited for; it goes on by itself
OVERLAP = 4096  # bytes of a file that only grows that are read again, to see whether it is still the same
MOST_FILE = 2 * 1024**3  # bytes of one file, adapters apart
PIECE = 1024**2
LONGEST = 2000  # characters of an address or a token
LATER = "it is tried again while the sidebar is open"


def _printed(value: Any) -> str:
    shown = text(LONGEST, "give what otca serve printed")(value)
    if not shown.isprintable():
        raise ValueError("must be text that can be shown. Fix: give what otca serve printed")
    return shown


def _token(value: Any) -> str:
    if not _printed(value).isascii() or " " in value:
        raise ValueError("must be letters, digits and signs. Fix: give what otca serve printed")
    return value


WATCH = {"url": Field(_printed, required=True), "token": Field(_token, required=True), "name": Field(plain_name)}


class Unreachable(Expected, status=502):
    """The other machine did not answer, or not as `otca serve` does."""

    def __init__(self, message: str, fix: str = "look whether otca serve runs there, and the tunnel here"):
        super().__init__(f"{message}. Fix: {fix}")


@dataclass
class Seen:
    """The state of a run, as far as this process knows it.

    Attributes:
        state: the other machine's last answer.
        error: why the last time brought no answer.
        versions: {file: (size, time) as the other machine had it when it was copied}.
        looked: when, by time.monotonic.
    """

    state: dict[str, Any] | None = None
    error: str | None = None
    versions: dict[str, tuple[int, int]] = field(default_factory=dict)
    looked: float = -1e9
    at_work: asyncio.Lock = field(default_factory=asyncio.Lock)


class Remotes:
    def __init__(self, runs: Runs):
        self.runs = runs
        self._seen: dict[str, Seen] = {}
        self._tasks: set[asyncio.Task] = set()

    async def watch(self, url: str, token: str, name: str | None) -> Run:
        """A new folder that holds a copy of the run at that address.

        Raises:
            Refused: 400 for what is not an address, 403 for a host that the user has not allowed, 409 for a name that is taken,
                502 if nothing of ours answers there.
        """
        url = _checked(url)
        async with network.session(token, _time()) as session:
            state = await _state(session, url)
        run, key = await asyncio.to_thread(self.runs.create, name or state["id"]), secrets.token_hex(8)
        try:
            await asyncio.to_thread(run.write, REMOTE, {"url": url, "key": key})
            await asyncio.to_thread(kept_tokens.keep, key, token)
            await asyncio.to_thread(_write_status, run, state)
        except (OSError, files.Damaged) as error:
            own_folders.remove_own(run.folder)
            raise Refused(409, f"run {run.id} cannot be kept here: {error}. Fix: make that writable") from error
        await asyncio.wait([self._begin_to_look(run.id)], timeout=PATIENCE)
        return run

    def look(self, summaries: Iterable[dict[str, Any]]) -> None:
        """Begins to bring the copies among these runs up to date. Does not wait for it."""
        for summary in summaries:
            if summary["place"] == status.REMOTE:
                state = self._seen.setdefault(summary["id"], Seen())
                if not state.at_work.locked() and time.monotonic() - state.looked >= EVERY:
                    self._begin_to_look(summary["id"])

    def _begin_to_look(self, name: str) -> asyncio.Task:
        task = asyncio.get_running_loop().create_task(self._look(name))
        self._tasks.add(task)  # else nobody would hold it
        task.add_done_callback(self._tasks.discard)
        return task

    def told(self, summary: dict[str, Any]) -> dict[str, Any]:
        """A run's summary with where it lives, whether that could be reached, and whether it has an adapter there."""
        if summary["place"] != status.REMOTE:
            return summary
        state, written = self._seen.get(summary["id"], Seen()), _written(self.runs.folder() / summary["id"])
        has_lora = summary["has_lora"] or bool(state.state and state.state["adapters"])
        errors = [summary["error"], state.error and f"{state.error}; {LATER}"]
        where = written["url"] if written else None
        return {**summary, "remote": where, "has_lora": has_lora, "error": "\n".join(filter(None, errors)) or None}

    async def stop(self, run: Run) -> None:
        """Asks the other machine to stop it. Raises Refused."""
        url, token = await asyncio.to_thread(self._way, run)
        try:
            async with (
                network.session(token, _time()) as session,
                session.post(f"{url}/run/stop", json={}, **_NO_REDIRECT) as answer,
            ):
                if answer.status != 200:
                    message = _said((await network.read_at_most(answer, PIECE))[0])
                    raise Refused(409, f"{url} did not stop {run.id}: {message}. Fix: look there")
        except network.FAILED as error:
            raise Unreachable(f"{url} cannot be reached ({_why(error)})") from error

    async def fetch_adapters(self, run: Run) -> None:
        """Brings the run's adapter here, as it is there now. Raises Refused."""
        url, token = await asyncio.to_thread(self._way, run)
        watch = self._seen.setdefault(run.id, Seen())
        async with watch.at_work, network.session(token, _time()) as session:
            with disk(f"the adapter of {run.id} cannot be kept here", "make room, or its folder writable"):
                state = await _state(session, url)
                for file in await asyncio.to_thread(_outdated, run, watch, state["adapters"]):
                    await self._whole(session, url, run, watch, *file)

    # -- copying -------------------------------------------------------------------------------------------------------

    async def _look(self, name: str) -> None:
        state = self._seen.setdefault(name, Seen())
        async with state.at_work:
            try:
                run = await asyncio.to_thread(self.runs.run, name)
                url, token = await asyncio.to_thread(self._way, run)
                async with network.session(token, _time()) as session:
                    state.state = await _state(session, url)
                    for file in await asyncio.to_thread(_outdated, run, state, state.state["files"]):
                        await self._copy(session, url, run, state, *file)
                    await asyncio.to_thread(_write_status, run, state.state)
                state.error = None
            except (Expected, OSError) as error:  # OSError: the folder was removed meanwhile, or the disk is full
                state.error = str(error)
            finally:
                state.looked = time.monotonic()

    async def _copy(self, session, url: str, run: Run, seen: Seen, name: str, size: int, changed: int) -> None:
        """Brings one file up to date that is not."""
        target = run.folder / name
        here = _size(target)
        if size > MOST_FILE:
            raise Unreachable(f"{url} has a {name} of {size} bytes, which is too large to be one of a run")
        if name in GROWING and 0 < here <= size and await self._grown(session, url, target, name, here, size):
            seen.versions[name] = (size, changed)
        else:
            await self._whole(session, url, run, seen, name, size, changed)

    async def _grown(self, session, url: str, target: Path, name: str, here: int, size: int) -> bool:
        """Appends what the other machine's file has more; returns False if its earlier part differs, as after going back to a
        checkpoint."""
        start = max(0, here - OVERLAP)
        more = b"".join([piece async for piece in _pieces(session, url, name, start, size)])
        before = await asyncio.to_thread(_tail, target, start)
        if not more.startswith(before):
            return False
        if len(more) > len(before):
            await asyncio.to_thread(_append, target, more[len(before) :])
        return True

    async def _whole(self, session, url: str, run: Run, seen: Seen, name: str, size: int, changed: int) -> None:
        target = run.folder / name
        if target.parent != run.folder:
            await asyncio.to_thread(target.parent.mkdir, exist_ok=True)
        aside = files.beside(target)
        try:
            with open(aside, "xb") as file:
                async for piece in _pieces(session, url, name, 0, size):
                    await asyncio.to_thread(file.write, piece)
            await asyncio.to_thread(files.put_in_place, aside, target)
        finally:
            aside.unlink(missing_ok=True)
        seen.versions[name] = (size, changed)

    # -- where it lives ------------------------------------------------------------------------------------------------

    def _way(self, run: Run) -> tuple[str, str]:
        """Address and token. Raises Refused."""
        written = _written(run.folder)
        if written is None:
            raise Refused(409, f"run {run.id} does not say where it lives. Fix: delete this copy, and watch it again")
        token = kept_tokens.of(written["key"])
        if token is None:
            raise Refused(
                409, f"the token of {written['url']} is not here any more. Fix: delete this copy, and watch it again"
            )
        return _checked(written["url"]), token


def forget_token(folder: Path) -> None:
    """Forgets the token of a copy that is about to be deleted; does nothing for any other run. Raises OSError."""
    if written := _written(folder):
        kept_tokens.forget(written["key"])


def _written(folder: Path) -> dict[str, Any] | None:
    """Where the run lives of which that folder is a copy."""
    with suppress(files.Damaged):
        return read_own(folder, REMOTE, say_once)
    return None


def _size(path: Path) -> int:
    """The size of a plain file in bytes; -1 for anything else."""
    return path.stat().st_size if files.is_plain_file(path) else -1


def _outdated(run: Run, seen: Seen, listed: Iterable[list]) -> list[list]:
    """The files that differ from the other machine's. One that an earlier ComfyUI copied counts as equal until it changes."""

    def differs(name: str, size: int, changed: int) -> bool:
        target = run.folder / name
        if _size(target) != size:
            return True
        if name in seen.versions or name in GROWING:
            return seen.versions.get(name) != (size, changed)
        return target.stat().st_mtime_ns < changed

    return [file for file in listed if differs(*file)]


_NO_REDIRECT: dict[str, Any] = {"allow_redirects": False}  # which would take the token elsewhere


def _checked(url: str) -> str:
    """The address without the slash at its end, of this machine or of a host that the user allowed. Raises Refused."""
    try:
        host = host_of(url)
    except ValueError as error:
        raise Refused(400, f"url: {error}") from None  # which does not repeat a password
    want = permissions.Want(permissions.POST, host, "the token of a run that is watched", "url")
    try:
        permissions.check(want)
    except permissions.NotAllowed as error:
        raise Refused(403, str(error), kind=want.kind, remember=permissions.remembers(want)) from error
    return url.rstrip("/")


def _time(size: int = 0):
    """The limit of a request for so many bytes."""
    return network.limit(SECONDS + size / SLOWEST, connect=10, silence=30)


async def _state(session: network.Session, url: str) -> dict[str, Any]:
    """Raises Unreachable."""
    try:
        async with session.get(f"{url}/run", **_NO_REDIRECT) as answer:
            content, _ = await network.read_at_most(answer, MOST_STATE_BYTES)
            if answer.status == 401:
                raise Unreachable(f"{url} refuses the token", "give the one that otca serve printed there")
            if answer.status != 200:
                raise Unreachable(f"{url}/run answered {answer.status}: {_said(content)}")
    except network.FAILED as error:
        raise Unreachable(f"{url} cannot be reached ({_why(error)})") from error
    try:
        return check_state(parse(content))
    except (ValueError, RecursionError) as error:
        raise Unreachable(f"{url}/run is not an answer of otca serve ({str(error)[:200]})") from error


async def _pieces(session: network.Session, url: str, name: str, start: int, size: int):
    """The bytes of a file from `start` on. Raises Unreachable, also if many more come than its announced `size`."""
    headers, held = {"Range": f"bytes={start}-"} if start else {}, start
    try:
        async with session.get(
            f"{url}/run/files/{name}", headers=headers, timeout=_time(size - start), **_NO_REDIRECT
        ) as answer:
            if start and answer.status == 416:  # nothing is there any more
                return
            if answer.status != (206 if start else 200):
                raise Unreachable(f"{url} answered {answer.status} for {name}")
            async for piece in answer.content.iter_chunked(PIECE):
                held += len(piece)
                if held > max(2 * size, size + PIECE):  # it may have grown, but is no other file
                    raise Unreachable(f"{url} sends more of {name} than the {size} bytes that it announced")
                yield piece
    except network.FAILED as error:
        raise Unreachable(f"{url} broke off ({_why(error)})") from error


def _tail(path: Path, start: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(start)
        return file.read()


def _append(path: Path, content: bytes) -> None:
    with os.fdopen(files.open_plain(path, os.O_WRONLY | os.O_APPEND), "ab") as file:
        file.write(content)


def _write_status(run: Run, state: dict[str, Any]) -> None:
    """Writes the status if it has changed: after any write to the folder the page reads the run again."""
    fields = {name: state.get(name) for name in ("total", "started", "error", "node", "reason")}
    now = status.Status(state["status"], status.REMOTE, **fields)
    if run.status() != now:
        status.write(run.folder, now)


def _said(content: bytes) -> str:
    """The beginning of an answer, or the error in it."""
    with suppress(ValueError, RecursionError, AttributeError):
        if isinstance(error := json.loads(content).get("error"), str):
            return error[:300]
    return repr(content[:200].decode("utf-8", "replace"))


def _why(error: BaseException) -> str:
    return str(error)[:200] or type(error).__name__
