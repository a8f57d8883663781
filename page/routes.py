"""The routes under /otca. Each handler checks what came, asks the room that knows, and answers JSON or a picture.

Whatever touches files, decodes or starts a process runs in a thread: ComfyUI's server has one loop.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from aiohttp import web

from ..host import extras
from ..host.access import permissions
from ..host.errors import Expected
from ..host.questions import desk
from ..host.text import plain_name
from ..trainer.checks import preflight
from ..trainer.run.folder import METRICS
from ..trainer.run.status import REMOTE
from ..trainer.types import RUN_NODE
from ..trainer.workflow.foreign import needs
from ..trainer.workflow.problem import as_json
from ..trainer.workflow.running import Workflow
from . import settings, suggestions
from .before_after import MAKE, BeforeAfter
from .export import BUNDLE, Bundles, commands
from .gallery.routes import Gallery, add_gallery_routes
from .jobs import Gpus, Jobs
from .library import NOTE, Library
from .machine import Machine, compared
from .remote.watching import WATCH, Remotes
from .requests import (
    NOTHING,
    Field,
    Refused,
    answered,
    at_home,
    body,
    count,
    hours,
    json_object,
    optional,
    query,
    refusing,
    text,
    whole_number,
    word,
)
from .runs import Run, Runs
from .settings import Folder, Word
from .votes import add_vote_routes

MOST_ITERATIONS, MOST_GPUS = 10**7, 1024
MOST_NAMES = 100  # of figures in one request
LONGEST_ID = 1000  # characters
ONLY_SHOWN = "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'"

GPUS = {
    "gpus": Field(whole_number(1, MOST_GPUS), default=1),
    "reward_gpus": Field(whole_number(0, MOST_GPUS), default=0),
}
TRAIN = {
    "name": Field(plain_name, required=True),
    "iterations": Field(whole_number(1, MOST_ITERATIONS), required=True),
    **GPUS,
    "prompt": Field(json_object, required=True),
    "workflow": Field(optional(json_object)),
}
PROVE = {
    "name": Field(plain_name, required=True),
    "hours": Field(hours, required=True),
    "prompt": Field(json_object, required=True),
    "workflow": Field(optional(json_object)),
}
RESUME = {"iterations": Field(whole_number(1, MOST_ITERATIONS)), **GPUS}
EXPORT = {"prompt": Field(json_object, required=True), "name": Field(plain_name)}
ID = text(LONGEST_ID, "give the workflow's id, or leave it out", least=0)
GRAPH = {"prompt": Field(json_object, required=True)}
RESULTS = {"prompt": Field(json_object, required=True), "workflow": Field(optional(ID))}
# What is asked by a query.
AFTER = {"after": count(0)}
PREVIEW = {"node": word(None), "sample": count(), "step": count(), "workflow": word(None), "made_by": word("")}


class Live(Protocol):
    """The results that the nodes in this process still have; the module canvas.results."""

    def results_of(self, prompt: Mapping, workflow: str | None) -> dict[str, dict[str, dict]]: ...
    def coming(self, graph: Mapping) -> dict[str, dict]: ...
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
    trainings: Word,
    gallery: Gallery,
    folders: Callable[[], list[Folder]] = list,
    setting: Callable[[web.Request], int | None] = lambda request: None,
) -> None:
    """Adds every route, those that work with processes or delete only with the user's word, `trainings`: docs/security.md has who
    may call each. `folders` are those that a settings page shows, `setting` what who asks has set OTCA.Trainings to."""
    made, machine = BeforeAfter(jobs), Machine()
    library, bundles, shown = (
        Library(runs, jobs, live, made),
        Bundles(jobs, lambda: runs.folder().parent),
        Shown(runs, jobs, live, Remotes(runs), loras_folder, trainings),
    )

    def served(function: Callable[..., Any], fields: Mapping[str, Any] = NOTHING) -> Callable:
        """A handler that answers what a function says, in a thread unless it is a coroutine's: of the run that the path names, of
        what else the path names, and of these fields of the request's body or query."""

        async def handler(request: web.Request) -> Any:
            values = await body(request, fields) if request.method == "POST" else query(request, fields)
            named = dict(request.match_info)
            run = [await asyncio.to_thread(runs.run, named.pop("id"))] if "id" in named else []
            try:
                if inspect.iscoroutinefunction(function):
                    return await function(*run, **named, **values)
                return await asyncio.to_thread(function, *run, **named, **values)
            except (OSError, Expected):
                for item in run:  # it may have been deleted since
                    await asyncio.to_thread(runs.run, item.id)
                raise

        return handler

    def limited(handler: Callable) -> Callable:
        """First takes over how many trainings at a time the one who asks has set."""

        async def after(request: web.Request) -> Any:
            await asyncio.to_thread(lambda: jobs.set_limit(setting(request)))
            return await handler(request)

        return after

    run_path = "/otca/runs/{id}"
    for path, handler in {
        "/otca/preview": served(shown.preview, PREVIEW),
        "/otca/suggestions": served(partial(suggestions.of_machine, runs), {"kind": word("")}),
        "/otca/permissions": served(lambda: {"given": list(map(asdict, permissions.given()))}),
        "/otca/machine": served(
            lambda: {"memory": machine.memory(jobs.processes), "queue": jobs.queue(), "trainings": trainings.told()}
        ),
        "/otca/folders": served(lambda: {"folders": list(map(asdict, folders()))}),
        "/otca/bundle": served(bundles.progress),
        "/otca/bundles/{name}": served(bundles.download),
        "/otca/runs": served(shown.all_runs),
        run_path: served(shown.one_run),
        f"{run_path}/metrics": served(shown.metrics, AFTER),
        f"{run_path}/columns": served(shown.columns, {**AFTER, "name": list}),
        f"{run_path}/pictures/{{name}}": served(Run.picture),
        f"{run_path}/log": served(Run.log, AFTER),
        f"{run_path}/state": served(Run.summary),
        f"{run_path}/workflow": served(Run.workflow),
        f"{run_path}/samples": served(Run.grids),
        f"{run_path}/proof": served(shown.proof),
        f"{run_path}/removal": served(library.removal),
        f"{run_path}/before_after": served(made.of),
        f"{run_path}/before_after/{{pair}}/{{which}}": served(made.picture),
    }.items():
        routes.get(path)(answered(handler))
    for path, handler in {
        "/otca/results": served(shown.results, RESULTS),
        "/otca/coming": served(shown.coming, GRAPH),
        "/otca/fits": served(shown.fits, GRAPH),
        "/otca/release": served(shown.release),
        "/otca/suggestions": served(partial(suggestions.of_graph, jobs.node_classes), suggestions.ASKED),
        "/otca/permissions/wants": served(partial(settings.wants, node_classes=jobs.node_classes), settings.WANTS),
        "/otca/bundle": served(bundles.make, BUNDLE),
        "/otca/export": served(shown.export, EXPORT),
        f"{run_path}/lora": served(shown.lora),
        f"{run_path}/note": served(library.note, NOTE),
    }.items():
        routes.post(path)(answered(handler))
    lasting = {
        "/otca/permissions/allow": served(settings.allow, settings.ALLOW),
        "/otca/permissions/take_back": served(settings.take_back, settings.ALLOW),
        "/otca/watch": served(shown.watch, WATCH),
    }
    trusted = {
        f"{run_path}/delete": served(library.remove),
        "/otca/train": limited(served(shown.train, TRAIN)),
        "/otca/prove": limited(served(shown.prove, PROVE)),
        f"{run_path}/stop": served(shown.stop),
        f"{run_path}/resume": limited(served(shown.resume, RESUME)),
        f"{run_path}/move_up": served(jobs.move_up),
        f"{run_path}/before_after": served(made.make, MAKE),
        f"{run_path}/before_after/cancel": served(made.cancel),
    }
    for path, handler in {**lasting, **(trusted if trainings.given else {})}.items():
        routes.post(path)(answered(at_home(handler)))
    add_vote_routes(routes, desk)
    add_gallery_routes(routes, gallery)


@dataclass(frozen=True)
class Shown:
    """Answers that more than one room gives, or that need another form for the page."""

    runs: Runs
    jobs: Jobs
    live: Live
    remotes: Remotes
    loras_folder: Callable[[], Path]
    word: Word

    # -- what the nodes in this process still know of their last results ----------------------------------------------

    def results(self, prompt: dict, workflow: str | None) -> dict[str, Any]:
        return self.live.results_of(self.jobs.read(prompt).graph, workflow)

    def coming(self, prompt: dict) -> dict[str, Any]:
        workflow = self.jobs.read(prompt)
        unwatched = preflight.unwatched_judges(workflow)
        return {node: {**run, "unwatched": unwatched} for node, run in self.live.coming(workflow.graph).items()}

    def fits(self, prompt: dict) -> dict[str, Any]:
        return compared(self.jobs.read(prompt))

    def preview(self, node: str | None, sample: int, step: int, workflow: str | None, made_by: str) -> web.Response:
        if not node:
            raise Refused(400, "node is missing. Fix: ?node=9&sample=0&step=0")
        with refusing(), refusing(status=404, kind=LookupError):
            content = self.live.preview_png(node, sample, step, workflow, made_by)
        return web.Response(body=content, content_type="image/png")

    def release(self) -> dict[str, int]:
        return {"released": self.live.release()}

    # -- what the folders of runs hold --------------------------------------------------------------------------------

    async def all_runs(self) -> dict[str, Any]:
        summaries = await asyncio.to_thread(self.runs.summaries)
        self.remotes.look(summaries)
        return {"runs": await asyncio.to_thread(lambda: list(map(self.remotes.told, summaries)))}

    def one_run(self, run: Run) -> dict[str, Any]:
        return {**self.remotes.told(self.runs.opened(run).details()), "instead": self.word.instead(run.folder)}

    def metrics(self, run: Run, after: int) -> web.Response:
        lines, more = self.runs.opened(run).reader.texts(run.file(METRICS), after)
        rest = {"more": more, "evaluations": run.evaluations(), "changes": run.changes()}
        # The rows are JSON already: of ten thousand, parsing and writing them again took longer than all else.
        text = b'{"rows": [' + b", ".join(lines) + b"], " + json.dumps(rest).encode()[1:]
        return web.Response(body=text, content_type="application/json", charset="utf-8")

    def columns(self, run: Run, after: int, name: list[str]) -> web.Response:
        if len(name) > MOST_NAMES:
            raise Refused(400, f"{len(name)} names. Fix: ask for at most {MOST_NAMES} at a time")
        figures = self.runs.opened(run).reader.figures(run.file(METRICS), name, after)
        return web.json_response({**figures, "evaluations": run.evaluations()})

    def proof(self, run: Run) -> web.Response:
        # A run may be a stranger's: its page is shown, and nothing in it runs or asks for anything.
        headers = {"Content-Security-Policy": ONLY_SHOWN, "X-Content-Type-Options": "nosniff"}
        return web.Response(text=run.proof(), content_type="text/html", headers=headers)

    async def lora(self, run: Run) -> dict[str, Any]:
        if (await asyncio.to_thread(run.status)).place == REMOTE:
            await self.remotes.fetch_adapters(run)
        return {"lora_names": await asyncio.to_thread(run.copy_lora, self.loras_folder())}

    # -- what is trained outside ComfyUI's process, here or elsewhere -------------------------------------------------

    def train(
        self, name: str, iterations: int, gpus: int, reward_gpus: int, prompt: dict, workflow: dict | None
    ) -> dict[str, Any]:
        coming = self.live.coming(self.jobs.read(prompt).graph).values()
        if any(own.get("iteration") and own["run"] == name for own in coming):  # the graph's own run goes on
            self.live.let_go(name)
            return self.resume(self.runs.run(name), iterations, gpus, reward_gpus)
        return {"id": self.jobs.start(name, prompt, workflow, iterations, Gpus(gpus, reward_gpus)).id}

    def prove(self, name: str, hours: float, prompt: dict, workflow: dict | None) -> dict[str, Any]:
        return {"id": self.jobs.prove(name, prompt, workflow, hours).id}

    def resume(self, run: Run, iterations: int | None, gpus: int, reward_gpus: int) -> dict[str, Any]:
        return {"id": run.id, "told": self.jobs.resume(run, iterations, Gpus(gpus, reward_gpus))}

    async def stop(self, run: Run) -> None:
        if (await asyncio.to_thread(run.status)).place == REMOTE:
            await self.remotes.stop(run)
        else:
            await asyncio.to_thread(self.jobs.stop, run)

    async def watch(self, url: str, token: str, name: str | None) -> dict[str, Any]:
        return {"id": (await self.remotes.watch(url, token, name)).id}

    def export(self, prompt: dict, name: str | None) -> dict[str, Any]:
        graph, problems = self.jobs.check(prompt)
        name = name or _run_name(graph) or "workflow"
        extra = [need[0] for need in extras.wanted(graph.graph, graph.node_classes)]
        wanted = needs(graph.graph, graph.node_classes)
        lines = commands(f"{name}.json", name, wanted, extra)
        here, prove = (
            self.word.making(by, f"{name}.json", self.runs.folder() / name, wanted.packs if wanted else ())
            for by in ("train", "prove")
        )
        return {
            "problems": as_json(problems),
            "commands": lines,
            "filename": f"{name}.json",
            "here": here,
            "prove": prove,
        }


def _run_name(graph: Workflow) -> str | None:
    """The name that the graph gives its run, if it is a good one."""
    names = [graph.graph[node]["inputs"].get("run_name") for node in graph.find(RUN_NODE)]
    try:
        return plain_name(names[0]) if names else None
    except ValueError:
        return None
