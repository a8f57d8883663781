"""The routes under /otca. Each handler checks what came, asks the room that knows, and answers JSON or a picture."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from ..host.names import plain_name
from ..trainer.types import RUN_NODE
from ..trainer.workflow.running import Workflow
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
from .jobs import Gpus, Jobs, as_json
from .permissions import add_permission_routes
from .runs import Run, Runs

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

    Busy: type[Exception]

    def results_of(self, prompt: Mapping, workflow: str | None) -> dict[str, dict[str, dict]]: ...
    def preview_png(self, node: str, sample: int, step: int, workflow: str | None, made_by: str) -> bytes: ...
    def release(self) -> int: ...


def add_routes(
    routes: web.RouteTableDef,
    *,
    runs: Runs,
    jobs: Jobs,
    live: Live,
    loras_folder: Callable[[], Path],
    setting: Callable[[web.Request], int | None] = lambda request: None,
) -> None:
    """Adds every route. Whatever touches files, decodes or starts a process runs in a thread: ComfyUI's server has one loop.

    `setting` is what who asks has set OTCA.Trainings to, if anything.
    """
    in_thread = asyncio.to_thread

    def get(path: str) -> Callable:
        return lambda handler: routes.get(path)(answered(handler))

    def post(path: str) -> Callable:
        return lambda handler: routes.post(path)(answered(handler))

    async def asked_run(request: web.Request) -> Run:
        return await in_thread(runs.run, request.match_info["id"])

    # --- nodes ------------------------------------------------------------------------------------------------------

    @post("/otca/results")
    async def results(request: web.Request) -> dict:
        asked = await body(request, RESULTS)
        return await in_thread(live.results_of, jobs.read(asked["prompt"]).graph, asked["workflow"])

    @get("/otca/preview")
    async def preview(request: web.Request) -> web.Response:
        node = request.query.get("node")
        if not node:
            raise Refused(400, "node is missing. Fix: ?node=9&sample=0&step=0")
        sample, step = query_number(request, "sample"), query_number(request, "step")
        try:
            shown = request.query.get("workflow"), request.query.get("made_by", "")
            content = await in_thread(live.preview_png, node, sample, step, *shown)
        except LookupError as error:
            raise Refused(404, str(error)) from error
        except ValueError as error:
            raise Refused(400, str(error)) from error
        return web.Response(body=content, content_type="image/png")

    @post("/otca/release")
    async def release(request: web.Request) -> dict:
        await body(request, NOTHING)
        try:
            return {"released": await in_thread(live.release)}
        except live.Busy as error:
            raise Refused(409, str(error)) from error

    # --- runs -------------------------------------------------------------------------------------------------------

    @get("/otca/runs")
    async def all_runs(request: web.Request) -> dict:
        return {"runs": await in_thread(runs.summaries)}

    @get("/otca/runs/{id}")
    async def one_run(request: web.Request) -> dict:
        return await in_thread((await asked_run(request)).details)

    @get("/otca/runs/{id}/metrics")
    async def metrics(request: web.Request) -> web.Response:
        run, after = await asked_run(request), query_number(request, "after", default=0)

        def answer() -> web.Response:
            rows, more = run.metrics(after)
            return web.json_response(
                {"rows": rows, "more": more, "evaluations": run.evaluations(), "changes": run.changes()}
            )

        return await in_thread(answer)

    @get("/otca/runs/{id}/pictures/{name}")
    async def picture(request: web.Request) -> web.StreamResponse:
        run = await asked_run(request)
        return web.FileResponse(await in_thread(run.picture, request.match_info["name"]))

    @get("/otca/runs/{id}/log")
    async def log(request: web.Request) -> dict:
        return await in_thread((await asked_run(request)).log, query_number(request, "after", default=0))

    @get("/otca/runs/{id}/workflow")
    async def workflow(request: web.Request) -> dict:
        return await in_thread((await asked_run(request)).workflow)

    @post("/otca/runs/{id}/lora")
    async def lora(request: web.Request) -> dict:
        await body(request, NOTHING)
        run = await asked_run(request)
        return {"lora_names": await in_thread(run.copy_lora, loras_folder())}

    add_permission_routes(post, jobs.node_classes)

    # --- training ---------------------------------------------------------------------------------------------------

    @post("/otca/train")
    async def train(request: web.Request) -> dict:
        asked = await body(request, TRAIN)
        await in_thread(lambda: jobs.set_limit(setting(request)))
        run = await in_thread(
            jobs.start, asked["name"], asked["prompt"], asked["workflow"], asked["iterations"], _gpus(asked)
        )
        return {"id": run.id}

    @post("/otca/runs/{id}/stop")
    async def stop(request: web.Request) -> dict:
        await body(request, NOTHING)
        await in_thread(jobs.stop, await asked_run(request))
        return {}

    @post("/otca/runs/{id}/resume")
    async def resume(request: web.Request) -> dict:
        asked = await body(request, RESUME)
        await in_thread(lambda: jobs.set_limit(setting(request)))
        run = await asked_run(request)
        return {"id": run.id, "told": await in_thread(jobs.resume, run, asked["iterations"], _gpus(asked))}

    @post("/otca/export")
    async def export(request: web.Request) -> dict[str, Any]:
        asked = await body(request, EXPORT)
        graph, problems = await in_thread(jobs.check, asked["prompt"])
        name = asked["name"] or _named_by(graph) or "workflow"
        filename = f"{name}.json"
        lines = commands(filename, name)
        return {"problems": as_json(problems), "commands": lines, "filename": filename}


def _gpus(asked: Mapping[str, Any]) -> Gpus:
    return Gpus(asked["gpus"], asked["reward_gpus"])


def _named_by(graph: Workflow) -> str | None:
    """The name that the graph gives its run, if it is a good one."""
    names = [graph.graph[node]["inputs"].get("run_name") for node in graph.find(RUN_NODE)]
    try:
        return plain_name(names[0]) if names else None
    except ValueError:
        return None
