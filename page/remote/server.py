"""`otca serve`: shows one run to the page of another machine, and stops it when that asks. Nothing else can be changed by it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from aiohttp import web

from ...trainer.run.folder import SAMPLES
from ..checks import Refused, answered, body
from ..runs import Run, Runs, is_id
from ..stop import ask_to_stop
from ..tokens import guard
from .protocol import GROWING, VERSION, WHOLE_FILES, is_shown

HINT = "the token is missing or wrong. Fix: give the one that otca serve printed"


def application(folder: Path, token: str) -> web.Application:
    """The server's routes for the run in that folder; who has not the token gets 401 whatever it asks.

    Raises:
        ValueError: the folder cannot be a run's.
    """
    folder = folder.resolve()
    if not is_id(folder.name):
        raise ValueError(f"{folder} is no folder of a run. Fix: rename it to a plain name")
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
    async def file(request: web.Request) -> web.StreamResponse:
        return web.FileResponse(await asyncio.to_thread(lambda: _file(run(), request.match_info["name"])))

    @routes.post("/run/stop")
    @answered
    async def stop(request: web.Request) -> dict:
        await body(request, {})
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
        "status": summary["status"],
        "total": summary["total"],
        "started": summary["started"],
        "error": summary["error"],
        "node": written.node,
        "reason": written.reason,
        "files": [_entry(run, path) for name in names if is_shown(name) and (path := run.file(name))],
        "adapters": [_entry(run, path) for path in run.adapters()],
    }


def _entry(run: Run, path: Path) -> list:
    found = path.stat()
    return [path.relative_to(run.folder).as_posix(), found.st_size, found.st_mtime_ns]


def _file(run: Run, name: str) -> Path:
    adapters = {path.name: path for path in run.adapters()}
    path = run.file(name) if is_shown(name) else adapters.get(name)
    if path is None:
        raise Refused(404, f"run {run.id} shows no file {name[:200]!r}. Fix: ask for one that /run lists")
    return path
