"""A server with the pack's routes and nothing of ComfyUI, its folders, and run folders made by hand."""

from __future__ import annotations

import asyncio
import json
import os
import time
from types import SimpleNamespace

import psutil
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from comfyui_otca.host.errors import Expected
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS
from comfyui_otca.page.gallery.opinions import Opinions
from comfyui_otca.page.gallery.routes import Gallery
from comfyui_otca.page.jobs import Jobs
from comfyui_otca.page.routes import add_routes
from comfyui_otca.page.runs import Runs
from comfyui_otca.page.settings import Word
from comfyui_otca.trainer.opinions.store import Store

JSON = {"Content-Type": "application/json"}
PNG = b"\x89PNG\r\n\x1a\n a picture"


class FakeLive:
    """What nodes.results offers, with one node known."""

    class Busy(Expected):
        pass

    def __init__(self):
        self.busy = False
        self.gone = []  # runs that were let go

    def results_of(self, prompt, workflow):
        return {node: {"credit": {"node": node, "workflow": workflow}} for node in prompt if node == "1:9"}

    def coming(self, graph):
        run = {"run": "first", "iteration": 22, "other": None, "at": [("3", "seed", 22)]}
        return {node: run for node in graph if node == "12"}

    def preview_png(self, node, sample, step, workflow, made_by):
        if node != "9":
            raise LookupError(f"the trajectories of node {node} are gone. Fix: run the graph again")
        if step > 7:
            raise ValueError(f"step {step}: there are 8 steps, from 0")
        return PNG + bytes([sample, step])

    def release(self):
        if self.busy:
            raise self.Busy("a prompt is running. Fix: wait")
        return 2

    def let_go(self, run):
        if self.busy:
            raise self.Busy("a prompt is running. Fix: wait")
        self.gone.append(run)


class Answer:
    def __init__(self, status, headers, content):
        self.status, self.headers, self.content = status, headers, content

    @property
    def json(self):
        assert self.headers["Content-Type"].startswith("application/json"), self.content
        return json.loads(self.content)

    @property
    def error(self):
        """The message, of a kind that may reach a page."""
        message = self.json["error"]
        assert "Traceback" not in message and 'File "' not in message
        return message


@pytest.fixture
def site(tmp_path, request):
    """The user has given his word for trainings, unless the test is marked by no_word.

    site.get(path), site.post(path, object): Answers; site.paths("GET"): all of that method, of the run `first`; site.runs,
    site.jobs, site.live, and the folders."""
    folders = {name: tmp_path / name for name in ("output", "loras", "input")}
    for folder in folders.values():
        folder.mkdir()
    canvas = SimpleNamespace(at_work=True)
    runs, live = Runs(lambda: folders["output"] / "otca", lambda run: canvas.at_work), FakeLive()
    rooms = []
    jobs = Jobs(
        runs,
        NODE_CLASS_MAPPINGS,
        NODE_DISPLAY_NAME_MAPPINGS,
        input_folder=lambda: folders["input"],
        make_room=lambda: rooms.append("made"),
    )
    routes = web.RouteTableDef()
    word = Word(request.node.get_closest_marker("no_word") is None, tmp_path / "user", tmp_path)
    gallery = Gallery(
        tmp_path / "gallery",
        lambda: [folders["output"], folders["input"]],
        Opinions(Store(tmp_path / "opinions.sqlite")),
        "pack",
    )
    request.addfinalizer(gallery.close)
    rooms_of = dict(runs=runs, jobs=jobs, live=live, trainings=word, gallery=gallery)
    add_routes(routes, loras_folder=lambda: folders["loras"], **rooms_of)

    def ask(method, path, **options):
        async def one():
            app = web.Application()
            app.add_routes(routes)
            async with TestClient(TestServer(app)) as client:
                response = await client.request(method, path, **options)
                return Answer(response.status, response.headers, await response.read())

        return asyncio.run(one())

    def raw(request: bytes, content: bytes = b""):
        """The status line's number for a request as it is, which a client's own tidying does not touch."""

        async def one():
            app = web.Application()
            app.add_routes(routes)
            async with TestServer(app) as server:
                reader, writer = await asyncio.open_connection(server.host, server.port)
                writer.write(request + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n" + content)
                answer = await reader.read()
                writer.close()
                return int(answer.split(b" ", 2)[1]), answer

        return asyncio.run(one())

    def post(path, content=None, **headers):
        data = content if isinstance(content, bytes) else json.dumps({} if content is None else content)
        return ask("POST", path, data=data, headers={**JSON, **headers})

    return SimpleNamespace(
        canvas=canvas,
        rooms=rooms,
        get=lambda path, **headers: ask("GET", path, headers=headers),
        post=post,
        ask=ask,
        raw=raw,
        routes=routes,
        paths=lambda method: [
            route.path.format(id="first", name="samples.png", pair="0001", which="after", number="0")
            for route in routes
            if route.method == method
        ],
        runs=runs,
        jobs=jobs,
        live=live,
        gallery=gallery,
        folder=folders["output"] / "otca",
        **folders,
    )


@pytest.fixture
def made(site, small_graph):
    """made(name, rows, status={…}, files={…}): a run's folder, as the trainer leaves it; made.row(i): a line of metrics."""

    def make(name="first", rows=3, status=None, files=None):
        folder = site.folder / name
        (folder / "samples").mkdir(parents=True)
        (folder / "workflow.json").write_text(json.dumps(small_graph()))
        (folder / "metrics.jsonl").write_text("".join(row(i) for i in range(1, rows + 1)))
        if status is not None:
            (folder / "status.json").write_text(json.dumps({**FINISHED, **status}))
        for path, content in (files or {}).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        return folder

    make.row = row
    return make


FINISHED = {"status": "finished", "place": "headless", "pid": 1, "process_started": 1.0, "total": 3, "started": 100.0}


def row(iteration, **more):
    figures = {"reward/clip_t/mean": 0.5, "reward/clip_t/std": 0.1, "held_out/accuracy/mean": None}
    return json.dumps({"iteration": iteration, **figures, "seconds/iteration": iteration / 7, **more}) + "\n"


@pytest.fixture
def this_process():
    """The part of a status.json that says that this process makes the run."""
    process = psutil.Process(os.getpid())
    return {"status": "running", "pid": process.pid, "process_started": process.create_time()}


@pytest.fixture
def claimed_elsewhere():
    """claimed_elsewhere(folder): a process of another machine says that it trains there; returns the claim's file."""

    def claim(folder):
        who = {"host": "elsewhere", "machine": "m", "boot": "b", "pid_namespace": "", "pid": 5, "token": "t"}
        (folder / "claim.json").write_text(json.dumps({**who, "process_started": 1.0, "since": 1.0}))
        return folder / "claim.json"

    return claim


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """stand_in(script): trainings are processes of that shell script in place of Python from now on."""

    def use(script):
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr("sys.executable", str(path))

    return use


@pytest.fixture(scope="session")
def until():
    """until(condition): its first true value. The deadline is only for what hangs."""

    def wait(condition, seconds=240):
        deadline = time.monotonic() + seconds
        while not (answer := condition()):
            assert time.monotonic() < deadline, "it never came to be"
            time.sleep(0.2)
        return answer

    return wait
