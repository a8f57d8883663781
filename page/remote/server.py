"""`otca serve`: shows one run to the page of another machine, and stops it when that asks. Nothing else can be changed by it.

    GET  /run               {"version": 1, "id", "status", "total", "started", "error", "node", "reason", "files", "adapters"}
    GET  /run/files/NAME    bytes of one of these files, with Range
    POST /run/stop          {}

`files` and `adapters` are lists of [name, size in bytes, time of the last change in nanoseconds]. Every request carries
`Authorization: Bearer TOKEN`.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from aiohttp import web

from ...host.json_files import MOMENT, TEXT, WHOLE, check, is_whole, maybe, one_of
from ...host.text import plain_name
from ...trainer.run.folder import (
    ADAPTERS,
    CANVAS,
    CHANGES,
    EVALUATIONS,
    LOG,
    METRICS,
    PICTURES,
    SAMPLES,
    STATES,
    WORKFLOW,
)
from ..jobs import ask_to_stop
from ..requests import NOTHING, Refused, answered, body, guard
from ..runs import Run, Runs, is_id

VERSION = 1
HINT = "the token is missing or wrong. Fix: give the one that otca serve printed"
TOKEN_VARIABLE = "OTCA_SERVE_TOKEN"
MOST_FILES = 20_000
MOST_STATE_BYTES = 4 * 1024**2
GROWING = (METRICS, EVALUATIONS, CHANGES, LOG)  # which a training only adds to, unless it goes back to a checkpoint
WHOLE_FILES = (WORKFLOW, CANVAS, *PICTURES)
_SAMPLE = re.compile(rf"{SAMPLES}/[0-9]{{6,9}}\.png", re.ASCII)


def _is_plain(name: Any) -> bool:
    try:
        return plain_name(name) == name
    except ValueError:
        return False


FIELDS = {
    "version": ("the version of this page, 1", lambda value: value == VERSION),
    "id": ("a plain name", _is_plain),
    "status": one_of(*STATES),
    "total": maybe(WHOLE),
    "started": maybe(MOMENT),
    "error": maybe(TEXT),
    "node": maybe(TEXT),
    "reason": maybe(TEXT),
    "files": ("a list of [name, size, time]", lambda value: _is_listing(value, is_shown)),
    "adapters": ("a list of [name, size, time]", lambda value: _is_listing(value, ADAPTERS.__contains__)),
}


def is_shown(name: Any) -> bool:
    """Whether a file of a run, by its path in the run's folder, is one that is shown."""
    return isinstance(name, str) and (name in GROWING or name in WHOLE_FILES or _SAMPLE.fullmatch(name) is not None)


def check_state(content: Any) -> dict[str, Any]:
    """The answer to GET /run. Raises ValueError if it is not such an answer."""
    check(content, dict, FIELDS)
    return content


def _is_listing(value: Any, good) -> bool:
    is_listed = isinstance(value, list) and len(value) <= MOST_FILES and all(isinstance(entry, list) for entry in value)
    return is_listed and all(len(e) == 3 and good(e[0]) and all(map(is_whole, e[1:])) for e in value)


def application(folder: Path, token: str) -> web.Application:
    """The server's routes for the run in that folder; a request without the token gets 401, whatever it asks.

    Raises:
        ValueError: the folder cannot be a run's.
    """
    folder = folder.resolve()
    if not is_id(folder.name):
        raise ValueError(f"{folder} cannot be a run's folder. Fix: rename it to a plain name")
    runs = Runs(lambda: folder.parent, lambda name: False)
    app, routes = web.Application(middlewares=[guard(token, HINT)]), web.RouteTableDef()

    def run() -> Run:
        return runs.run(folder.name)

    @routes.get("/run")
    @answered
    async def state(request: web.Request) -> dict[str, Any]:
        return await asyncio.to_thread(lambda: _state(run()))

    @routes.get("/run/files/{name:.+}")
    @answered
    async def file(request: web.Request) -> Path:
        return await asyncio.to_thread(lambda: _file(run(), request.match_info["name"]))

    @routes.post("/run/stop")
    @answered
    async def stop(request: web.Request) -> dict:
        await body(request, NOTHING)
        await asyncio.to_thread(lambda: ask_to_stop(run()))
        return {}

    app.add_routes(routes)
    return app


def _state(run: Run) -> dict[str, Any]:
    summary, written = run.summary(), run.status()
    names = [*GROWING, *WHOLE_FILES, *(f"{SAMPLES}/{name}" for name in run.samples())]
    return {
        "version": VERSION,
        "id": run.id,
        **{name: summary[name] for name in ("status", "total", "started", "error")},
        "node": written.node,
        "reason": written.reason,
        "files": [_entry(run, path) for name in names if is_shown(name) and (path := run.file(name))],
        "adapters": [_entry(run, path) for path in run.adapters()],
    }


def _entry(run: Run, path: Path) -> list:
    status = path.stat()
    return [path.relative_to(run.folder).as_posix(), status.st_size, status.st_mtime_ns]


def _file(run: Run, name: str) -> Path:
    adapters = {path.name: path for path in run.adapters()}
    path = run.file(name) if is_shown(name) else adapters.get(name)
    if path is None:
        raise Refused(404, f"run {run.id} shows no file {name[:200]!r}. Fix: ask for one that /run lists")
    return path
