"""When our models are asked to leave, after ComfyUI's "Unload models" and for prompts without our nodes; and a graph's light."""

import asyncio
import json
import types
from pathlib import Path

import psutil
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from comfyui_otca.page import middlewares
from comfyui_otca.tests.tiny import sparse

API = Path(__file__).resolve().parents[2] / "workflows" / "api"
OURS = {"3": {"class_type": "OTCA_SDESampler", "inputs": {}}}
OTHERS = {"1": {"class_type": "EmptyImage", "inputs": {}}}


class Busy(Exception):
    pass


@pytest.fixture
def played(monkeypatch):
    """played(scenario): runs `scenario(client, ask, state)` against a server with ComfyUI's /free route."""
    monkeypatch.setattr(middlewares, "PATIENCE", 0.01)

    def play(scenario, busy_times=0):
        async def main():
            state = types.SimpleNamespace(released=0, refused=0, handlers=[])

            def release():
                if state.refused < busy_times:
                    state.refused += 1
                    raise Busy
                state.released += 1
                return 1

            async def free(request):
                await request.json()
                return web.Response()

            app = web.Application()
            app.router.add_post("/free", free)
            app.router.add_post("/prompt", free)
            server = types.SimpleNamespace(
                app=app, loop=asyncio.get_running_loop(), add_on_prompt_handler=state.handlers.append
            )
            middlewares.make_room_when_asked(server, release, Busy)
            async with TestClient(TestServer(app)) as client:
                await scenario(client, state)
            return state

        return asyncio.run(main())

    return play


async def settled(state, count):
    """Waits until `release` was let through so often; the deadline only ends a test that fails."""

    async def wait():
        while state.released < count:
            await asyncio.sleep(0.01)

    await asyncio.wait_for(wait(), 20)


@pytest.mark.parametrize(
    ("body", "busy_times"), [({"unload_models": True}, 3), ({"free_memory": True, "unload_models": False}, 0)]
)
def test_unload_models_waits_until_our_prompt_has_ended(played, body, busy_times):
    async def scenario(client, state):
        assert (await client.post("/free", json=body)).status == 200
        await settled(state, 1)

    state = played(scenario, busy_times)
    assert (state.refused, state.released) == (busy_times, 1)


def test_other_requests_release_nothing(played):
    async def scenario(client, state):
        await client.post("/free", json={})
        await client.post("/prompt", json={"unload_models": True})
        await client.post("/free", json={"unload_models": True})
        await settled(state, 1)

    assert played(scenario).released == 1


def test_prompts_without_our_nodes(played):
    async def scenario(client, state):
        (handler,) = state.handlers
        for data in ({"prompt": OURS}, {"prompt": {**OTHERS, **OURS}}, {}, {"prompt": "no graph"}):
            assert handler(data) is data
        await asyncio.sleep(0.1)
        assert state.released == 0
        handler({"prompt": {**OTHERS, "2": "no node"}})
        await settled(state, 1)

    assert played(scenario).released == 1


def test_whether_a_graph_fits(site, tmp_path, monkeypatch):
    """By headers alone: the files hold no number. What is not a value of the node is said, and counted by nobody."""
    sparse.z_image(tmp_path / "models")
    monkeypatch.setenv("OTCA_MODELS", str(tmp_path / "models"))
    graph = json.loads((API / "z_image.json").read_text(encoding="utf-8"))
    said = site.post("/otca/fits", {"prompt": graph}).json["lights"]["7"]
    assert said["state"] in ("fits", "tight", "does not fit") and said["device"] == ""
    assert said["has"] == said["ram_has"] and 0 < said["has"] < psutil.virtual_memory().total / 1e9, "what is free"
    assert said["needs"] > 2 * 6.154908736, "the network as filed"
    graph["9"]["inputs"]["group_size"] = "many"
    answer = site.post("/otca/fits", {"prompt": graph}).json
    assert answer["own"] == {"9": {"width": 1024, "height": 1024, "steps": 8, "guidance": 1.0}}
    wrong = answer["lights"]["7"]
    assert wrong["state"] == "unknown" and "group_size" in wrong["text"]
    assert site.post("/otca/fits", {"prompt": {"1": 7}}).status == 400
