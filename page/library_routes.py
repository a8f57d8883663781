"""The routes of what a user does with runs: see `library`. And two that comparing runs asks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from ..trainer.run.folder import METRICS
from .checks import Field, Refused, answered, body, query_number
from .library import Library, notes_text
from .runs import Run
from .samples import pictures_of

MOST_NAMES = 100  # of figures in one request


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false. Fix: give one of them")
    return value


NOTE = {"notes": Field(notes_text, required=True)}
NOTHING: dict[str, Field] = {}


def add_library_routes(routes: web.RouteTableDef, library: Library) -> None:
    kept = LibraryRoutes(library)
    for path, handler in {"removal": kept.removal, "columns": kept.columns, "samples": kept.samples}.items():
        routes.get(f"/otca/runs/{{id}}/{path}")(answered(handler))
    for path, handler in {"note": kept.note, "delete": kept.delete}.items():
        routes.post(f"/otca/runs/{{id}}/{path}")(answered(handler))


@dataclass(frozen=True)
class LibraryRoutes:
    library: Library

    async def _run(self, request: web.Request) -> Run:
        return await asyncio.to_thread(self.library.runs.run, request.match_info["id"])

    async def note(self, request: web.Request) -> dict:
        asked = await body(request, NOTE)
        await asyncio.to_thread(self.library.note, await self._run(request), asked["notes"])
        return {}

    async def removal(self, request: web.Request) -> dict:
        return await asyncio.to_thread(self.library.removal, await self._run(request))

    async def delete(self, request: web.Request) -> dict:
        await body(request, NOTHING)
        await asyncio.to_thread(self.library.remove, await self._run(request))
        return {}

    async def columns(self, request: web.Request) -> web.Response:
        after = query_number(request, "after", default=0)
        run = self.library.runs.opened(await self._run(request))
        names = request.query.getall("name", [])
        if len(names) > MOST_NAMES:
            raise Refused(400, f"{len(names)} names. Fix: ask for at most {MOST_NAMES} at a time")

        def answer() -> web.Response:
            figures = run.reader.figures(run.file(METRICS), names, after)
            return web.json_response({**figures, "evaluations": run.evaluations()})

        return await asyncio.to_thread(answer)

    async def samples(self, request: web.Request) -> dict:
        return await asyncio.to_thread(pictures_of, await self._run(request))
