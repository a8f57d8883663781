"""Tiny checkpoints in the published layouts, and pictures to judge by them."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
import torch
from aiohttp import web

from comfyui_otca.host import stopping
from comfyui_otca.tests.tiny import rewards as tiny_rewards
from comfyui_otca.trainer.networks import preprocess
from comfyui_otca.trainer.rewards import server

PROMPTS = ["a red circle", "a blue square on a green background", "zebra"]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A folder with every tiny checkpoint: clip, aesthetic.pth, pickscore, hps.pt, image_reward."""
    folder = tmp_path_factory.mktemp("rewards")
    tiny_rewards.clip(folder / "clip")
    tiny_rewards.aesthetic(folder / "aesthetic.pth")
    tiny_rewards.pickscore(folder / "pickscore")
    tiny_rewards.hps(folder / "hps.pt")
    tiny_rewards.image_reward(folder / "image_reward")
    return folder


@pytest.fixture(scope="session")
def images():
    """[3, 40, 56, 3]: neither square nor of any network's size, and of 8 bits, as saved pictures are."""
    noise = torch.randint(0, 256, (3, 10, 14, 3), generator=torch.Generator().manual_seed(0))
    return noise.repeat_interleave(4, 1).repeat_interleave(4, 2) / 255


@pytest.fixture(scope="session")
def pictures(images):
    return preprocess.pil(images)


@pytest.fixture
def prompts():
    return list(PROMPTS)


@pytest.fixture
def impatient(monkeypatch):
    """Rewards that ask a server do not wait between two tries, and know none from before: a port may be given out again."""
    server.servers.clear()
    monkeypatch.setattr(server, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(server, "STOP_INTERVAL", 0.01)


@pytest.fixture
def serve():
    """serve(application) -> its address, until the test ends."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    runners = []

    def run(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    async def start(application):
        runner = web.AppRunner(application, shutdown_timeout=0.01, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        runners.append(runner)
        return f"http://127.0.0.1:{runner.addresses[0][1]}/score"

    yield lambda application: run(start(application))
    for runner in runners:
        run(runner.cleanup())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def answering(serve, impatient):
    """answering(first, second, …) -> address and the list of requests (headers, content); the last answer is repeated.

    An answer is a JSON value, text, (status, text), a response, or a function of the request's content that gives one.
    """

    def start(*answers):
        requests = []

        async def answer(request):
            requests.append((request.headers.copy(), json.loads(await request.read())))
            given = answers[min(len(requests), len(answers)) - 1]
            given = given(requests[-1][1]) if callable(given) else given
            given = await given if asyncio.iscoroutine(given) else given
            if isinstance(given, str | tuple):
                status, text = given if isinstance(given, tuple) else (200, given)
                return web.Response(status=status, text=text)
            return given if isinstance(given, web.Response) else web.json_response(given)

        application = web.Application(client_max_size=2**26)
        application.router.add_post("/{tail:.*}", answer)
        return serve(application), requests

    return start


@pytest.fixture
def stopped_by():
    """stopped_by(event, act): acts in this thread, in which Stop is asked for as soon as the event comes."""

    def during(started, act):
        asking = threading.Thread(target=lambda: started.wait(30) and setattr(stopping.request, "signal", 2))
        asking.start()
        try:
            with pytest.raises(stopping.Stopped):
                act()
        finally:
            asking.join()

    return during
