"""The routes under /otca. Each handler checks what came, asks the room that knows, and answers JSON or a picture."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from ..host.names import plain_name
from ..host.questions import desk
from ..trainer.run.folder import METRICS
from ..trainer.run.status import REMOTE
from ..trainer.types import RUN_NODE
from ..trainer.workflow.foreign import needs
from ..trainer.workflow.running import Workflow
from .before_after import BeforeAfter
from .bundles import BundleRoutes
from .checks import (
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
from .export import commands
from .folders import Folder
from .jobs import Gpus, Jobs, as_json
from .library import Library
from .library_routes import add_library_routes
from .live import LiveRoutes
from .machine import Machine
from .permissions import add_permission_routes
from .remote.routes import add_remote_routes
from .remote.watching import Remotes
from .runs import Run, Runs
from .suggestions import SuggestionRoutes
from .votes import add_vote_routes

MOST_ITERATIONS, MOST_GPUS = 10**7, 1024

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
NOTHING: dict[str, Field] = {}


class Live(Protocol):
    """What the nodes in this process still know; the module nodes.results."""

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

    async def named_run(request: web.Request) -> Run:
        return await _named_run(runs, request)

    def get(path: str) -> Callable:
        return lambda handler: routes.get(path)(answered(handler))

    def post(path: str) -> Callable:
        return lambda handler: routes.post(path)(answered(handler))

    remotes = Remotes(runs)
    nodes, shown = NodeRoutes(jobs, live), RunRoutes(runs, remotes, loras_folder)
    trainings = TrainingRoutes(runs, jobs, remotes, setting)
    offered = SuggestionRoutes(runs, jobs.node_classes)
    for path, handler in {
        "/otca/preview": nodes.preview,
        "/otca/suggestions": offered.of_machine,
        "/otca/runs": shown.all_runs,
        "/otca/runs/{id}": shown.one_run,
        "/otca/runs/{id}/metrics": shown.metrics,
        "/otca/runs/{id}/pictures/{name}": shown.picture,
        "/otca/runs/{id}/log": shown.log,
        "/otca/runs/{id}/workflow": shown.workflow,
    }.items():
        routes.get(path)(answered(handler))
    for path, handler in {
        "/otca/results": nodes.results,
        "/otca/suggestions": offered.of_graph,
        "/otca/release": nodes.release,
        "/otca/runs/{id}/lora": shown.lora,
        "/otca/train": trainings.train,
        "/otca/runs/{id}/stop": trainings.stop,
        "/otca/runs/{id}/resume": trainings.resume,
        "/otca/export": trainings.export,
    }.items():
        post(path)(handler)
    add_permission_routes(get, post, jobs.node_classes)
    BundleRoutes(jobs, lambda: runs.folder().parent).add(get, post)
    LiveRoutes(jobs, named_run, folders, Machine(), BeforeAfter(jobs)).add(get, post)
    add_vote_routes(routes, desk)
    add_remote_routes(post, remotes)
    add_library_routes(routes, Library(runs, jobs, live))


# Whatever touches files, decodes or starts a process runs in a thread: ComfyUI's server has one loop.


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


async def _named_run(runs: Runs, request: web.Request) -> Run:
    return await asyncio.to_thread(runs.run, request.match_info["id"])


@dataclass(frozen=True)
class RunRoutes:
    """What the folders of runs hold."""

    runs: Runs
    remotes: Remotes
    loras_folder: Callable[[], Path]

    async def all_runs(self, request: web.Request) -> dict:
        summaries = await asyncio.to_thread(self.runs.summaries)
        self.remotes.look(summaries)
        return {"runs": await asyncio.to_thread(lambda: list(map(self.remotes.told, summaries)))}

    async def one_run(self, request: web.Request) -> dict:
        run = await _named_run(self.runs, request)
        return await asyncio.to_thread(lambda: self.remotes.told(run.details()))

    async def metrics(self, request: web.Request) -> web.Response:
        after = query_number(request, "after", default=0)
        run = self.runs.opened(await _named_run(self.runs, request))

        def answer() -> web.Response:
            lines, more = run.reader.texts(run.file(METRICS), after)
            rest = {"more": more, "evaluations": run.evaluations(), "changes": run.changes()}
            # The rows are JSON already: of ten thousand, parsing and writing them again took longer than all else.
            text = b'{"rows": [' + b", ".join(lines) + b"], " + json.dumps(rest).encode()[1:]
            return web.Response(body=text, content_type="application/json", charset="utf-8")

        return await asyncio.to_thread(answer)

    async def picture(self, request: web.Request) -> web.StreamResponse:
        run = await _named_run(self.runs, request)
        return web.FileResponse(await asyncio.to_thread(run.picture, request.match_info["name"]))

    async def log(self, request: web.Request) -> dict:
        run = await _named_run(self.runs, request)
        return await asyncio.to_thread(run.log, query_number(request, "after", default=0))

    async def workflow(self, request: web.Request) -> dict:
        return await asyncio.to_thread((await _named_run(self.runs, request)).workflow)

    async def lora(self, request: web.Request) -> dict:
        await body(request, NOTHING)
        run = await _named_run(self.runs, request)
        if run.status().place == REMOTE:
            await self.remotes.fetch_adapters(run)
        return {"lora_names": await asyncio.to_thread(run.copy_lora, self.loras_folder())}


@dataclass(frozen=True)
class TrainingRoutes:
    """What is trained outside ComfyUI's process, here or elsewhere."""

    runs: Runs
    jobs: Jobs
    remotes: Remotes
    setting: Callable[[web.Request], int | None]

    async def train(self, request: web.Request) -> dict:
        asked = await body(request, TRAIN)
        await self._set_limit(request)
        training = asked["name"], asked["prompt"], asked["workflow"], asked["iterations"], _gpus(asked)
        return {"id": (await asyncio.to_thread(self.jobs.start, *training)).id}

    async def stop(self, request: web.Request) -> dict:
        await body(request, NOTHING)
        run = await _named_run(self.runs, request)
        if run.status().place == REMOTE:
            await self.remotes.stop(run)
        else:
            await asyncio.to_thread(self.jobs.stop, run)
        return {}

    async def resume(self, request: web.Request) -> dict:
        asked = await body(request, RESUME)
        await self._set_limit(request)
        run = await _named_run(self.runs, request)
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
