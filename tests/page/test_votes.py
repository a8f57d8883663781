"""The routes of the panel, and the server of `otca vote` as Reward: HTTP and Reward: Vote ask it."""

from __future__ import annotations

import asyncio
import base64
import http.client
import io
import json
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import av
import numpy as np
import pytest
import torch
from aiohttp import web
from PIL import Image

from comfyui_otca.host import files, stopping
from comfyui_otca.host.questions import desk
from comfyui_otca.page.votes import application
from comfyui_otca.trainer.opinions import votes
from comfyui_otca.trainer.opinions.asking import VoteFolder
from comfyui_otca.trainer.pictures.media import mp4
from comfyui_otca.trainer.rewards import RewardError, reward_class
from comfyui_otca.trainer.rewards.server import png
from comfyui_otca.trainer.types import Prompt

PROMPTS = ["a red circle"] * 2 + ["a blue square"] * 2
PATIENCE = 30


class Server:
    """The server in a thread of its own, as `otca vote` runs it."""

    def __init__(self, folder, token=""):
        self.folder, self.loop, self.token = VoteFolder(folder), asyncio.new_event_loop(), token
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        assert self.ready.wait(PATIENCE)

    def _run(self):
        async def serve():
            self.runner = web.AppRunner(application(self.folder, self.token), handler_cancellation=True)
            await self.runner.setup()
            await web.TCPSite(self.runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}"
            self.ready.set()

        self.loop.run_until_complete(serve())
        self.loop.run_forever()

    def close(self):
        asyncio.run_coroutine_threadsafe(self.runner.cleanup(), self.loop).result(PATIENCE)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(PATIENCE)

    def ask(self, path, content=None, **headers):
        """(status, JSON or text)"""
        data = None if content is None else json.dumps(content).encode()
        headers = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self.url + path, data, headers), timeout=PATIENCE
            ) as got:
                status, kind, text = got.status, got.headers.get_content_type(), got.read()
        except urllib.error.HTTPError as error:
            status, kind, text = error.code, error.headers.get_content_type(), error.read()
        return status, json.loads(text) if kind == "application/json" else text

    def questions(self, count):
        deadline = time.monotonic() + PATIENCE
        while len(asked := self.ask("/otca/votes")[1]["questions"]) != count:
            assert time.monotonic() < deadline, f"{count} questions never came: {asked}"
            time.sleep(0.02)
        return asked


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(desk, "attended", False)
    server = Server(tmp_path / "votes")
    yield server
    server.close()
    assert desk.questions() == []


class Process(Server):
    """`otca vote` as a shell starts it."""

    def __init__(self, folder, port):
        self.url, self.port = f"http://127.0.0.1:{port}", port
        command = [sys.executable, "-m", "comfyui_otca", "vote", "--folder", str(folder), "--port", str(port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        said = self.process.stdout.readline(), self.process.stdout.readline()
        assert said[1].startswith(f"vote on      {self.url}/"), said


@pytest.fixture
def as_a_process():
    """as_a_process(folder, port): a running `otca vote`."""
    started = []

    def start(folder, port=None):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = port or free.getsockname()[1]
        started.append(Process(folder, port))
        return started[-1]

    yield start
    for server in started:
        server.process.kill()
        server.process.wait()
        server.process.stdout.close()


def video_request(fps):
    clips = [mp4(np.full((4, 16, 16, 3), 60 * number, np.uint8), 12.0) for number in range(2)]
    samples = [{"prompt": "p", "data": base64.b64encode(clip).decode()} for clip in clips]
    return {"version": 1, "media": "mp4", "fps": fps, "samples": samples}


def request(count=2, **change):
    pictures = [png(np.full((4, 4, 3), 40 * number, np.uint8)) for number in range(count)]
    samples = [{"prompt": "p", "data": base64.b64encode(picture).decode()} for picture in pictures]
    return {"version": 1, "media": "png", "fps": None, "samples": samples, **change}


def scoring(url, kind="vote", prompts=PROMPTS, **options):
    """A thread that asks for scores of four pictures of two prompts: (thread, list for its result, event that stops it)."""
    reward, found, abandoned = reward_class(kind)(url=f"{url}/score", **options), [], threading.Event()
    images = torch.arange(4)[:, None, None, None].expand(4, 4, 4, 3) / 8

    def run():
        stopping.helper.abandoned = abandoned
        try:
            scored = (
                reward.score(images, prompts) if kind == "http" else reward.score_groups(images, prompts, [0, 0, 1, 1])
            )
            found.append(scored)
        except (stopping.Stopped, RewardError) as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found, abandoned


@pytest.mark.parametrize("kind", ["vote", "http"])
def test_a_training_elsewhere_waits_for_the_page_and_gets_its_scores(server, kind):
    thread, found, _ = scoring(server.url, kind)
    first, second = server.questions(2)
    assert (first["prompt"], second["prompt"]) == ("a red circle", "a blue square")
    assert first["pictures"] == [{"video": False}] * 2 and not first["answered"]
    picture = server.ask(f"/otca/votes/{first['id']}/pictures/1")
    assert picture[0] == 200 and picture[1].startswith(b"\x89PNG")
    status, answer = server.ask(f"/otca/votes/{first['id']}", {"answer": {"kind": "order", "order": [[1], [0]]}})
    assert status == 200 and answer["answered"]
    assert len(votes.read(server.folder.store)) == 1, "it is saved before the page hears of it"
    assert [question["answered"] for question in server.questions(2)] == [True, False]
    server.ask(f"/otca/votes/{second['id']}", {"answer": {"kind": "alike"}})
    thread.join(PATIENCE)
    ((low, high, *none),) = found
    assert low == -high < 0 and none == [None, None]


def test_a_stopped_training_takes_its_questions_along_and_resumes_at_the_same_group(server):
    thread, found, stop = scoring(server.url)
    first, second = server.questions(2)
    server.ask(f"/otca/votes/{first['id']}", {"answer": {"kind": "order", "order": [[1], [0]]}})
    stop.set()
    thread.join(PATIENCE)
    assert isinstance(found[0], stopping.Stopped)
    server.questions(0)
    thread, found, _ = scoring(server.url)
    (again,) = server.questions(1)
    assert again["id"] == second["id"]
    server.ask(f"/otca/votes/{second['id']}", {"answer": {"kind": "order", "order": [[0], [1]]}})
    thread.join(PATIENCE)
    (scores,) = found
    assert scores[1] == -scores[0] == scores[2] == -scores[3] > 0


def test_a_killed_server_loses_no_vote(tmp_path, as_a_process):
    server = as_a_process(tmp_path / "votes")
    thread, found, _ = scoring(server.url)
    first, second = server.questions(2)
    server.ask(f"/otca/votes/{first['id']}", {"answer": {"kind": "order", "order": [[1], [0]]}})
    server.process.kill()
    server.process.wait()
    as_a_process(tmp_path / "votes", server.port)  # the training tries again by itself
    (again,) = server.questions(1)
    assert again["id"] == second["id"]
    server.ask(f"/otca/votes/{second['id']}", {"answer": {"kind": "skip"}})
    thread.join(PATIENCE)
    ((low, high, *none),) = found
    assert low == -high < 0 and none == [None, None]


NO_REQUESTS = [
    (request(1), "only one picture of the prompt"),
    (request(version=2), "version 2"),
    (request(media="gif"), "gif"),
    (request(fps="x"), "fps is"),
    (request(fps=1e6), "fps is"),
    ({"samples": []}, "not a request for scores"),
    (request(samples=[{"prompt": "p", "data": "AAAA"}] * 2), "sample 0 cannot be read as png"),
    (request(samples=[{"prompt": "p", "data": "?"}] * 2), "sample 0 cannot be read as png"),
]


def test_what_is_no_request_is_refused_by_name(server, monkeypatch):
    samples = [{**sample, "source": 1} for sample in request()["samples"]]
    picture = samples[0]["data"]
    unfit = [({"samples": samples, "sources": [picture]}, "source is 1, and 1 sources came")]
    unfit.append(
        ({"sources": [picture, "AAAA"]}, "source 1 cannot be read as png: it does not begin as a png file does")
    )
    for content, wrong in [*NO_REQUESTS, *((request(**more), wrong) for more, wrong in unfit)]:
        status, answer = server.ask("/score", content)
        assert status == 400 and wrong in answer["error"]

    def full(path, content):
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as disk:
        disk.setattr(files, "write_bytes", full)
        status, answer = server.ask("/score", request())
    assert status == 507 and "No space left on device" in answer["error"] and "Fix: make room" in answer["error"]
    server.folder.folder.mkdir(exist_ok=True)
    (server.folder.folder / votes.LINES).write_text("{}\n")  # a damaged file reaches the training as an error
    thread, found, _ = scoring(server.url)
    thread.join(PATIENCE)
    assert "409" in str(found[0]) and "votes.jsonl is damaged: line 1" in str(found[0])


def test_two_groups_of_one_prompt_stay_two(server):
    thread, found, _ = scoring(server.url, prompts=["a red circle"] * 4)
    for question, best in zip(server.questions(2), (0, 1), strict=True):
        assert len(question["pictures"]) == 2
        answer = {"kind": "pair", "winner": best, "loser": 1 - best}
        server.ask(f"/otca/votes/{question['id']}", {"answer": answer})
    thread.join(PATIENCE)
    (scores,) = found
    assert scores[0] == -scores[1] == scores[3] == -scores[2] > 0


def test_the_picture_that_was_edited_is_shown_beside_what_became_of_it(server, tmp_path):
    """A training elsewhere names it by a file of its own, so that it is sent along: once, and of at most 1024 pixels a side."""
    Image.fromarray(np.full((1500, 3000, 3), (200, 10, 10), np.uint8)).save(tmp_path / "start.png")
    edit = Prompt("make it blue", {"image": str(tmp_path / "start.png")})
    thread, found, _ = scoring(server.url, prompts=[edit, edit, "a fox", "a fox"])
    first, second = server.questions(2)
    assert (first["prompt"], first["source"], second["source"]) == ("make it blue", True, False)
    status, shown = server.ask(f"/otca/votes/{first['id']}/pictures/source")
    with Image.open(io.BytesIO(shown)) as picture:
        assert status == 200 and picture.size == (1024, 512) and picture.getpixel((5, 5)) == (200, 10, 10)
    assert server.ask(f"/otca/votes/{second['id']}/pictures/source")[0] == 404
    for question in (first, second):
        server.ask(f"/otca/votes/{question['id']}", {"answer": {"kind": "alike"}})
    thread.join(PATIENCE)
    assert found == [[None] * 4]


def test_videos_are_kept_at_the_frames_a_second_of_the_request(server):
    thread = threading.Thread(target=server.ask, args=("/score", video_request(5.0)))
    thread.start()
    (question,) = server.questions(1)
    pictures = sorted((server.folder.folder / votes.FOLDER).iterdir())
    assert [av.open(path).streams.video[0].average_rate for path in pictures] == [5, 5]
    server.ask(f"/otca/votes/{question['id']}", {"answer": {"kind": "skip"}})
    thread.join(PATIENCE)


def test_questions_are_named_by_ids_alone(server):
    thread, _, stop = scoring(server.url)
    first, _ = server.questions(2)
    for path in (
        f"/otca/votes/{first['id']}/pictures/2",
        f"/otca/votes/{first['id']}/pictures/..%2fvotes.sqlite",
        "/otca/votes/x/pictures/0",
    ):
        assert server.ask(path)[0] == 404
    assert server.ask("/otca/votes/x", {"answer": None})[0] == 404
    assert server.ask(f"/otca/votes/{first['id']}", {"answer": {"kind": "order", "order": [[0]]}})[0] == 400
    assert server.ask(f"/otca/votes/{first['id']}", {"answer": None}, Origin="http://elsewhere.example")[0] == 403
    assert server.ask(f"/otca/votes/{first['id']}", {"answer": None}, Content_Type="text/plain")[0] == 400
    assert server.ask("/otca/votes", Host="elsewhere.example:80")[0] == 403
    stop.set()
    thread.join(PATIENCE)


def test_the_page_and_what_it_loads_are_there(server):
    assert b"/web/vote/page.js" in server.ask("/")[1]
    scripts = ["vote/page", "vote/panel", "lib/ballot", "lib/format", "lib/language", "lib/poll", "sidebar/dom"]
    for path in (*(f"{name}.js" for name in scripts), "languages/de.json", "otca.css"):
        assert server.ask(f"/web/{path}")[0] == 200
    for path in ("../pyproject.toml", "%2e%2e/pyproject.toml", "x" * 300, "vote"):  # seen before: a long one was 500
        assert server.ask(f"/web/{path}")[0] == 404


def test_beyond_this_machine_a_token_is_wanted(tmp_path, monkeypatch):
    monkeypatch.setattr(desk, "attended", False)
    server = Server(tmp_path / "votes", "a-token")
    try:
        for path in ("/", "/otca/votes", "/web/otca.css", "/otca/votes?token=wrong"):
            assert server.ask(path)[0] == 401
        assert server.ask("/score", request())[0] == 401
        assert server.ask("/otca/votes", Authorization="Bearer a-token")[0] == 200
        assert server.ask("/otca/votes", Cookie="otca_vote=a-token")[0] == 200
        assert server.ask("/otca/votes", Host="votes.example:80", Cookie="otca_vote=a-token")[0] == 200
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(f"{server.url}/?token=a-token", timeout=PATIENCE) as page:
            assert page.url == f"{server.url}/" and b"otca vote" in page.read(), (
                "the token does not stay in the address"
            )
        away = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=PATIENCE)
        away.request("GET", "//evil.example/?token=a-token")  # seen before: the browser was sent there
        assert away.getresponse().headers["Location"] == "/"
    finally:
        server.close()
