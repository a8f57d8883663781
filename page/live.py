"""The routes of what changes while the page looks on: memory, the queue, pictures of a prompt; and those of the settings."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

from aiohttp import web

from .before_after import MAKE, BeforeAfter
from .checks import body
from .folders import Folder
from .jobs import Jobs
from .machine import Machine
from .runs import Run


@dataclass(frozen=True)
class LiveRoutes:
    """`named_run` is the run that a request names, `folders` those that the settings show."""

    jobs: Jobs
    named_run: Callable[[web.Request], Awaitable[Run]]
    folders: Callable[[], list[Folder]]
    machine: Machine
    made: BeforeAfter

    def add(self, get: Callable[[str], Callable], post: Callable[[str], Callable]) -> None:
        """Adds all by `get` and `post`, which refuse other sites as they do for all."""
        pairs = "/otca/runs/{id}/before_after"
        get("/otca/machine")(self.memory_and_queue)
        get("/otca/folders")(self.all_folders)
        get("/otca/runs/{id}/state")(self.state)
        get(pairs)(self.pairs)
        get(pairs + "/{pair}/{which}")(self.picture)
        post("/otca/runs/{id}/move_up")(self.move_up)
        post(pairs)(self.make_pair)
        post(pairs + "/cancel")(self.cancel_pair)

    async def memory_and_queue(self, request: web.Request) -> dict[str, Any]:
        def answer() -> dict[str, Any]:
            return {"memory": self.machine.memory(self.jobs.processes), "queue": self.jobs.queue()}

        return await asyncio.to_thread(answer)

    async def all_folders(self, request: web.Request) -> dict[str, Any]:
        return {"folders": [asdict(folder) for folder in await asyncio.to_thread(self.folders)]}

    async def state(self, request: web.Request) -> dict[str, Any]:
        return await asyncio.to_thread((await self.named_run(request)).summary)

    async def move_up(self, request: web.Request) -> dict:
        await body(request, {})
        await asyncio.to_thread(self.jobs.move_up, await self.named_run(request))
        return {}

    async def pairs(self, request: web.Request) -> dict[str, Any]:
        return await asyncio.to_thread(self.made.of, await self.named_run(request))

    async def picture(self, request: web.Request) -> web.StreamResponse:
        name, which = request.match_info["pair"], request.match_info["which"]
        return web.FileResponse(await asyncio.to_thread(self.made.picture, await self.named_run(request), name, which))

    async def make_pair(self, request: web.Request) -> dict:
        asked = await body(request, MAKE)
        await asyncio.to_thread(self.made.make, await self.named_run(request), asked["prompt"], asked["seed"])
        return {}

    async def cancel_pair(self, request: web.Request) -> dict:
        await body(request, {})
        await asyncio.to_thread(self.made.cancel, await self.named_run(request))
        return {}
