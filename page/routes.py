"""The routes under /otca. Each handler checks what came, asks the room that knows, and answers JSON or a picture.

Whatever touches files, decodes or starts a process runs in a thread: ComfyUI's server has one loop.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from ..host.questions import desk
from ..host.text import plain_name
from ..trainer.run.folder import METRICS
from ..trainer.run.status import REMOTE
from ..trainer.types import RUN_NODE
from ..trainer.workflow.foreign import needs
from ..trainer.workflow.running import Workflow
from .before_after import MAKE, BeforeAfter
from .export import BundleRoutes, commands
from .jobs import Gpus, Jobs, as_json
from .library import NOTE, Library
from .machine import Machine
from .remote.watching import WATCH, Remotes
from .requests import (
    NOTHING,
    Field,
    Refused,
    answered,
    body,
    json_object,
    object_or_null,
    query_number,
    text_or_null,
    whole_number,
)
from .runs import Run, Runs
from .settings import Folder, PermissionRoutes
from .suggestions import SuggestionRoutes
from .votes import add_vote_routes

MOST_ITERATIONS, MOST_GPUS = 10**7, 1024
MOST_NAMES = 100  # of figures in one request

GPUS = {
    "gpus": Field(whole_number(1, MOST_GPUS), default=1),
    "reward_gpus": Field(whole_number(0, MOST_GPUS), default=0),
}
TRAIN = {
    "name": Field(plain_name, required=True),
    "iterations": Field(whole_number(1, MOST_ITERATIONS), required=True),
    **GPUS,
    "prompt": Field(json_object, required=True),
    "workflow": Field(object_or_null),
}
RESUME = {"iterations": Field(whole_number(1, MOST_ITERATIONS)), **GPUS}
EXPORT = {"prompt": Field(json_object, required=True), "name": Field(plain_name)}
RESULTS = {"prompt": Field(json_object, required=True), "workflow": Field(text_or_null)}


class Live(Protocol):
    """What the nodes in this process still know; the module canvas.results."""

    @property
    def Busy(self) -> type[Exception]: ...

    def results_of(self, prompt: Mapping, workflow: str | None) -> dict[str, dict[str, dict]]: ...
    def preview_png(self, node: str, sample: int, step: int, workflow: str | None, made_by: str) -> bytes: ...
    def release(self) -> int: ...
    def let_go(self, run: str) -> None: ...


def add_routes(
    routes: web.RouteTableDef,
    *,
    runs: Runs,
    jobs: Jobs,
    live: Live,
    loras_folder: Callable[[], Path],
    folders: Callable[[], list[Folder]] = list,
    setting: Callable[[web.Request], int | None] = lambda request: None,
) -> None:
    """Adds every route. `folders` are those that a settings page shows, `setting` what who asks has set OTCA.Trainings to."""
    library, made, machine = Library(runs, jobs, live), BeforeAfter(jobs), Machine()
    nodes, shown = NodeRoutes(jobs, live), RunRoutes(runs, Remotes(runs), made, loras_folder)
    trainings = TrainingRoutes(shown, jobs, setting)
    offered, permitted = SuggestionRoutes(runs, jobs.node_classes), PermissionRoutes(jobs.node_classes)
    bundles = BundleRoutes(jobs, lambda: runs.folder().parent)

    def of_run(function: Callable[..., Any], fields: Mapping[str, Field] = NOTHING) -> Callable:
        """A handler that answers what a function says of the run, or does to it, given these fields of the request."""

        async def handler(request: web.Request) -> Any:
            asked = await body(request, fields) if request.method == "POST" else {}
            return await asyncio.to_thread(function, await shown.run(request), **asked)

        return handler

    async def memory_and_queue(request: web.Request) -> dict[str, Any]:
        return await asyncio.to_thread(lambda: {"memory": machine.memory(jobs.processes), "queue": jobs.queue()})

    async def all_folders(request: web.Request) -> dict[str, Any]:
        return {"folders": [asdict(folder) for folder in await asyncio.to_thread(folders)]}

    one = "/otca/runs/{id}"
    for path, handler in {
        "/otca/preview": nodes.preview,
        "/otca/suggestions": offered.of_machine,
        "/otca/permissions": permitted.all_given,
        "/otca/machine": memory_and_queue,
        "/otca/folders": all_folders,
        "/otca/bundle": bundles.progress,
        "/otca/bundles/{name}": bundles.download,
        "/otca/runs": shown.all_runs,
        one: shown.one_run,
        f"{one}/metrics": shown.metrics,
        f"{one}/columns": shown.columns,
        f"{one}/pictures/{{name}}": shown.picture,
        f"{one}/log": shown.log,
        f"{one}/state": of_run(Run.summary),
        f"{one}/workflow": of_run(Run.workflow),
        f"{one}/samples": of_run(Run.grids),
        f"{one}/removal": of_run(library.removal),
        f"{one}/before_after": of_run(made.of),
        f"{one}/before_after/{{pair}}/{{which}}": shown.before_after,
    }.items():
        routes.get(path)(answered(handler))
    for path, handler in {
        "/otca/results": nodes.results,
        "/otca/release": nodes.release,
        "/otca/suggestions": offered.of_graph,
        "/otca/permissions/wants": permitted.wants,
        "/otca/permissions/allow": permitted.allow,
        "/otca/permissions/take_back": permitted.take_back,
        "/otca/bundle": bundles.make,
        "/otca/export": trainings.export,
        "/otca/train": trainings.train,
        "/otca/watch": trainings.watch,
        f"{one}/stop": trainings.stop,
        f"{one}/resume": trainings.resume,
        f"{one}/move_up": of_run(jobs.move_up),
        f"{one}/lora": shown.lora,
        f"{one}/note": of_run(library.note, NOTE),
        f"{one}/delete": of_run(library.remove),
        f"{one}/before_after": of_run(made.make, MAKE),
        f"{one}/before_after/cancel": of_run(made.cancel),
    }.items():
        routes.post(path)(answered(handler))
    add_vote_routes(routes, desk)


@dataclass(frozen=True)
class NodeRoutes:
    """What the nodes in this process still know of their last results."""

    jobs: Jobs
    live: Live

    async def results(self, request: web.Request) -> dict:
        asked = await body(request, RESULTS)
        graph = self.jobs.read(asked["prompt"]).graph
        return await asyncio.to_thread(self.live.results_of, graph, asked["workflow"])

    async def preview(self, request: web.Request) -> web.Response:
        node = request.query.get("node")
        if not node:
            raise Refused(400, "node is missing. Fix: ?node=9&sample=0&step=0")
        sample, step = query_number(request, "sample"), query_number(request, "step")
        try:
            shown = request.query.get("workflow"), request.query.get("made_by", "")
            content = await asyncio.to_thread(self.live.preview_png, node, sample, step, *shown)
        except LookupError as error:
            raise Refused(404, str(error)) from error
        except ValueError as error:
            raise Refused(400, str(error)) from error
        return web.Response(body=content, content_type="image/png")

    async def release(self, request: web.Request) -> dict:
        await body(request, NOTHING)
        try:
            return {"released": await asyncio.to_thread(self.live.release)}
        except self.live.Busy as error:
            raise Refused(409, str(error)) from error


@dataclass(frozen=True)
class RunRoutes:
    """What the folders of runs hold."""

    runs: Runs
    remotes: Remotes
    made: BeforeAfter
    loras_folder: Callable[[], Path]

    async def run(self, request: web.Request) -> Run:
        """The run that a request names."""
        return await asyncio.to_thread(self.runs.run, request.match_info["id"])

    async def all_runs(self, request: web.Request) -> dict:
        summaries = await asyncio.to_thread(self.runs.summaries)
        self.remotes.look(summaries)
        return {"runs": await asyncio.to_thread(lambda: list(map(self.remotes.told, summaries)))}

    async def one_run(self, request: web.Request) -> dict:
        run = self.runs.opened(await self.run(request))
        return await asyncio.to_thread(lambda: self.remotes.told(run.details()))

    async def metrics(self, request: web.Request) -> web.Response:
        after = query_number(request, "after", default=0)
        run = self.runs.opened(await self.run(request))

        def answer() -> web.Response:
            lines, more = run.reader.texts(run.file(METRICS), after)
            rest = {"more": more, "evaluations": run.evaluations(), "changes": run.changes()}
            # The rows are JSON already: of ten thousand, parsing and writing them again took longer than all else.
            text = b'{"rows": [' + b", ".join(lines) + b"], " + json.dumps(rest).encode()[1:]
            return web.Response(body=text, content_type="application/json", charset="utf-8")

        return await asyncio.to_thread(answer)

    async def columns(self, request: web.Request) -> web.Response:
        after, names = query_number(request, "after", default=0), request.query.getall("name", [])
        run = self.runs.opened(await self.run(request))
        if len(names) > MOST_NAMES:
            raise Refused(400, f"{len(names)} names. Fix: ask for at most {MOST_NAMES} at a time")

        def answer() -> web.Response:
            figures = run.reader.figures(run.file(METRICS), names, after)
            return web.json_response({**figures, "evaluations": run.evaluations()})

        return await asyncio.to_thread(answer)

    async def picture(self, request: web.Request) -> web.StreamResponse:
        run = await self.run(request)
        return web.FileResponse(await asyncio.to_thread(run.picture, request.match_info["name"]))

    async def before_after(self, request: web.Request) -> web.StreamResponse:
        run, name, which = await self.run(request), request.match_info["pair"], request.match_info["which"]
        return web.FileResponse(await asyncio.to_thread(self.made.picture, run, name, which))

    async def log(self, request: web.Request) -> dict:
        run = await self.run(request)
        return await asyncio.to_thread(run.log, query_number(request, "after", default=0))

    async def lora(self, request: web.Request) -> dict:
        await body(request, NOTHING)
        run = await self.run(request)
        if run.status().place == REMOTE:
            await self.remotes.fetch_adapters(run)
        return {"lora_names": await asyncio.to_thread(run.copy_lora, self.loras_folder())}


@dataclass(frozen=True)
class TrainingRoutes:
    """What is trained outside ComfyUI's process, here or elsewhere."""

    shown: RunRoutes
    jobs: Jobs
    setting: Callable[[web.Request], int | None]

    async def train(self, request: web.Request) -> dict:
        asked = await body(request, TRAIN)
        await self._set_limit(request)
        training = asked["name"], asked["prompt"], asked["workflow"], asked["iterations"], _gpus(asked)
        return {"id": (await asyncio.to_thread(self.jobs.start, *training)).id}

    async def watch(self, request: web.Request) -> dict:
        asked = await body(request, WATCH)
        return {"id": (await self.shown.remotes.watch(asked["url"], asked["token"], asked["name"])).id}

    async def stop(self, request: web.Request) -> None:
        await body(request, NOTHING)
        run = await self.shown.run(request)
        if run.status().place == REMOTE:
            await self.shown.remotes.stop(run)
        else:
            await asyncio.to_thread(self.jobs.stop, run)

    async def resume(self, request: web.Request) -> dict:
        asked = await body(request, RESUME)
        await self._set_limit(request)
        run = await self.shown.run(request)
        message = await asyncio.to_thread(self.jobs.resume, run, asked["iterations"], _gpus(asked))
        return {"id": run.id, "told": message}

    async def export(self, request: web.Request) -> dict[str, Any]:
        asked = await body(request, EXPORT)
        graph, problems = await asyncio.to_thread(self.jobs.check, asked["prompt"])
        name = asked["name"] or _run_name(graph) or "workflow"
        filename = f"{name}.json"
        lines = commands(filename, name, needs(graph.graph, graph.node_classes))
        return {"problems": as_json(problems), "commands": lines, "filename": filename}

    async def _set_limit(self, request: web.Request) -> None:
        await asyncio.to_thread(lambda: self.jobs.set_limit(self.setting(request)))


def _gpus(asked: Mapping[str, Any]) -> Gpus:
    return Gpus(asked["gpus"], asked["reward_gpus"])


def _run_name(graph: Workflow) -> str | None:
    """The name that the graph gives its run, if it is a good one."""
    names = [graph.graph[node]["inputs"].get("run_name") for node in graph.find(RUN_NODE)]
    try:
        return plain_name(names[0]) if names else None
    except ValueError:
        return None
