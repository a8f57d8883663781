"""The routes of what a user does with runs: see `library`. And two that comparing runs asks."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web

from ..host.names import plain_name
from ..trainer.run.layout import METRICS
from . import desktop
from .checks import Field, Refused, answered, body, query_number
from .columns import ColumnsOfRuns
from .library import LORAS, Library, notes_text
from .runs import Run
from .samples import pictures_of

MOST_NAMES = 100  # of figures in one request
_FORWARDED = (
    "Forwarded",
    "X-Forwarded-For",
    "X-Forwarded-Host",
    "X-Real-IP",
    "Via",
)  # what a proxy says of its own client


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false. Fix: give one of them")
    return value


NOTE = {"notes": Field(notes_text), "starred": Field(flag)}
RENAME = {"name": Field(plain_name, required=True)}
DELETE = {"for_good": Field(flag, default=False)}
NOTHING: dict[str, Field] = {}


def add_library_routes(routes: web.RouteTableDef, library: Library, loras_folder: Callable[[], Path]) -> None:
    kept = LibraryRoutes(library, loras_folder, ColumnsOfRuns())
    for path, handler in {"removal": kept.removal, "columns": kept.columns, "samples": kept.samples}.items():
        routes.get(f"/otca/runs/{{id}}/{path}")(answered(handler))
    for path, handler in {
        "note": kept.note,
        "rename": kept.rename,
        "delete": kept.delete,
        "open": kept.open,
    }.items():
        routes.post(f"/otca/runs/{{id}}/{path}")(answered(handler))


@dataclass(frozen=True)
class LibraryRoutes:
    library: Library
    loras_folder: Callable[[], Path]
    columns_of_runs: ColumnsOfRuns

    async def _run(self, request: web.Request) -> Run:
        return await asyncio.to_thread(self.library.runs.run, request.match_info["id"])

    async def note(self, request: web.Request) -> dict:
        asked = await body(request, NOTE)
        return await asyncio.to_thread(self.library.note, await self._run(request), asked["notes"], asked["starred"])

    async def rename(self, request: web.Request) -> dict:
        asked = await body(request, RENAME)
        run = await self._run(request)
        renamed = await asyncio.to_thread(self.library.rename, run, asked["name"])
        copy = self.loras_folder() / LORAS / f"{run.id}.safetensors"
        told = f"Its copy among the LoRAs stays {LORAS}/{copy.name}, as workflows name it" if copy.is_file() else None
        return {"id": renamed.id, "told": told}

    async def removal(self, request: web.Request) -> dict:
        return await asyncio.to_thread(self.library.removal, await self._run(request))

    async def delete(self, request: web.Request) -> dict:
        asked = await body(request, DELETE)
        await asyncio.to_thread(self.library.remove, await self._run(request), asked["for_good"])
        return {}

    async def open(self, request: web.Request) -> dict:
        await body(request, NOTHING)
        if not is_local(request):
            message = "the folder opens on the machine that ComfyUI runs on, and this page is on another one"
            raise Refused(403, f"{message}. Fix: open it there")
        run = await self._run(request)
        try:
            await asyncio.to_thread(desktop.open_folder, run.folder)
        except OSError as error:
            raise Refused(409, f"{run.folder} could not be opened ({error}). Fix: open it by hand") from error
        return {}

    async def columns(self, request: web.Request) -> web.Response:
        run, after = await self._run(request), query_number(request, "after", default=0)
        names = request.query.getall("name", [])
        if len(names) > MOST_NAMES:
            raise Refused(400, f"{len(names)} names. Fix: ask for at most {MOST_NAMES} at a time")
        columns = self.columns_of_runs.of(run.folder)

        def answer() -> web.Response:
            figures = columns.read(run.metrics_index, run.file(METRICS), names, after)
            return web.json_response({**figures, "evaluations": run.evaluations()})

        return await asyncio.to_thread(answer)

    async def samples(self, request: web.Request) -> dict:
        return await asyncio.to_thread(pictures_of, await self._run(request))


def is_local(request: web.Request) -> bool:
    """Whether the page is on this machine: asked from its own address, by its own name, and not through a proxy."""
    if any(name in request.headers for name in _FORWARDED):
        return False
    host = urlsplit(f"//{request.host}").hostname or ""
    return _is_loopback(request.remote or "") and (host == "localhost" or _is_loopback(host))


def _is_loopback(address: str) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback
