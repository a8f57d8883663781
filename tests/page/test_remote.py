"""`otca serve`, and the copy that the page keeps: files that grow and go back, tokens, Stop, and what strangers answer."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from comfyui_otca.host.access import permissions
from comfyui_otca.host.errors import Expected
from comfyui_otca.page.remote import kept_tokens, server, watching
from comfyui_otca.page.remote.watching import Remotes, Unreachable
from comfyui_otca.page.requests import Refused
from comfyui_otca.page.runs import Runs

TOKEN = "a-token-of-forty-letters-that-nobody-knows"
PACK = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def own_permissions(tmp_path, monkeypatch):
    monkeypatch.setenv("OTCA_PERMISSIONS", str(tmp_path / "config" / "permissions.json"))
    monkeypatch.setattr(kept_tokens, "_here", {})
    monkeypatch.setattr(watching, "EVERY", 0.0)


@pytest.fixture
def there(tmp_path, small_graph):
    """The folder of a run on the other machine."""
    folder = tmp_path / "there" / "flowers"
    (folder / "samples").mkdir(parents=True)
    (folder / "checkpoints" / "000001").mkdir(parents=True)
    (folder / "checkpoints" / "000001" / "state.json").write_text("{}")
    (folder / "workflow.json").write_text(json.dumps(small_graph({})))
    (folder / "metrics.jsonl").write_text("".join(row(i) for i in range(1, 4)))
    (folder / "samples" / "000000.png").write_bytes(b"a picture")
    (folder / "lora.safetensors").write_bytes(b"an adapter")
    (folder / "secret.txt").write_text("of the other machine")
    state(folder, "finished")
    return folder


@pytest.fixture
def here(tmp_path):
    return Runs(lambda: tmp_path / "output" / "otca", lambda name: False)


def row(iteration, value=0.5):
    return json.dumps({"iteration": iteration, "loss": value}) + "\n"


def state(folder, status, **more):
    written = {"status": status, "place": "headless", "total": 9, "started": 1000.0, **more}
    (folder / "status.json").write_text(json.dumps(written))


def served(folder, work, token=TOKEN, app=None):
    """What `work(url)` comes to while the run is served."""

    async def run():
        async with TestServer(app or server.application(folder, token)) as at:
            return await work(str(at.make_url("")).rstrip("/"))

    return asyncio.run(run())


def followed(here, there, script, app=None, name=None):
    """What `script(remotes, run)` comes to with a new copy while the run is served."""

    async def work(url):
        remotes = Remotes(here)
        return await script(remotes, await remotes.watch(url, TOKEN, name))

    return served(there, work, app=app)


def watched(here, there, app=None):
    async def nothing_more(remotes, run):
        return run

    return followed(here, there, nothing_more, app)


@pytest.fixture
def listening(there):
    """A server of the run, and the (path, Range) of all that was asked of it."""
    asked, app = [], server.application(there, TOKEN)

    @web.middleware
    async def listen(request, handler):
        asked.append((request.path, request.headers.get("Range")))
        return await handler(request)

    app.middlewares.append(listen)
    return app, asked


# --- the copy ---------------------------------------------------------------------------------------------------------


def test_a_copy_shows_what_the_run_shows(here, there):
    run = watched(here, there)
    assert run.id == "flowers"
    summary = run.summary()
    assert (summary["status"], summary["place"], summary["total"], summary["iteration"]) == ("finished", "remote", 9, 3)
    assert run.reader.figures(run.file("metrics.jsonl"), [], 0)["iterations"][-1] == 3
    assert run.picture("samples-000000.png").read_bytes() == b"a picture"
    assert run.workflow()["prompt"] == json.loads((there / "workflow.json").read_text())
    kept = {path.relative_to(run.folder).as_posix() for path in run.folder.rglob("*") if path.is_file()}
    assert kept - {".otca"} == {"workflow.json", "metrics.jsonl", "samples/000000.png", "status.json", "remote.json"}


def test_it_follows_what_is_added_and_what_is_taken_back(here, there):
    """Of a file that grew only the end is read again; where the beginning is another, all of it."""
    sent = []

    async def script(remotes, run):
        steps = [lambda text: text + row(4), lambda text: row(1) + row(2, 9.0), lambda text: text + row(3, 9.0)]
        for change in steps:
            file = there / "metrics.jsonl"
            file.write_text(change(file.read_text()))
            await remotes._look(run.id)
            sent.append((run.folder / "metrics.jsonl").read_text())
            assert sent[-1] == file.read_text()
            await remotes._look(run.id)  # nothing new
            assert (run.folder / "metrics.jsonl").read_text() == file.read_text()
        state(there, "failed", error="out of memory", node="3")
        (there / "samples" / "000008.png").write_bytes(b"another")
        await remotes._look(run.id)
        return remotes.told(run.details())

    told = followed(here, there, script, name="copy")
    assert [text.count("\n") for text in sent] == [4, 2, 3]
    assert told["status"] == "failed" and "out of memory" in told["error"] and told["samples"][-1] == "000008.png"


def test_a_long_file_is_not_sent_again(here, there, listening):
    """Requests for a file that grew begin near its old end."""
    (there / "metrics.jsonl").write_text("".join(row(i) for i in range(1, 2000)))
    app, asked = listening

    async def script(remotes, run):
        size = (there / "metrics.jsonl").stat().st_size
        asked.clear()
        (there / "metrics.jsonl").open("a").write(row(2000))
        await remotes._look(run.id)
        return size

    size = followed(here, there, script, app)
    assert asked == [("/run", None), ("/run/files/metrics.jsonl", f"bytes={size - watching.OVERLAP}-")]


def test_the_adapter_comes_when_it_is_asked_for_and_once(here, there, tmp_path, listening):
    app, asked = listening

    async def script(remotes, run):
        assert not run.adapters() and remotes.told(run.summary())["has_lora"]
        await remotes.fetch_adapters(run)
        assert run.copy_lora(tmp_path / "loras") == [f"otca{os.sep}flowers.safetensors"]
        asked.clear()
        await remotes.fetch_adapters(run)
        assert asked == [("/run", None)]
        (there / "lora.safetensors").write_bytes(b"another one")
        await remotes.fetch_adapters(run)
        return run

    run = followed(here, there, script, app)
    assert (tmp_path / "loras" / "otca" / "flowers.safetensors").read_bytes() == b"an adapter"
    assert (run.folder / "lora.safetensors").read_bytes() == b"another one"


def test_an_end_of_the_connection_loses_nothing(here, there):
    run = watched(here, there)

    async def look():
        remotes = Remotes(here)
        await remotes._look(run.id)
        return remotes.told(run.summary())

    told = asyncio.run(look())
    assert told["status"] == "finished" and told["iteration"] == 3
    assert "cannot be reached" in told["error"] and "tried again" in told["error"]


def test_the_token_is_kept_beside_and_for_the_owner_alone(here, there, tmp_path):
    run = watched(here, there)
    assert not [path for path in run.folder.rglob("*") if path.is_file() and TOKEN in path.read_text(errors="replace")]
    [file] = (tmp_path / "config").iterdir()
    assert TOKEN in file.read_text() and stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_copy_is_not_resumed_here_and_can_be_deleted_while_the_run_trains(there, site, tmp_path):
    state(there, "running", pid=os.getpid(), process_started=None)
    run = watched(Runs(lambda: site.folder, lambda name: False), there)
    answer = site.post(f"/otca/runs/{run.id}/resume", {})
    assert answer.status == 409 and "lives on another machine" in answer.error
    [listed] = site.get("/otca/runs").json["runs"]
    assert listed["remote"].startswith("http://127.0.0.1:")
    assert site.post(f"/otca/runs/{run.id}/delete").status == 200
    assert not run.folder.exists() and there.exists()
    kept = "".join(file.read_text() for file in (tmp_path / "config").iterdir())
    assert TOKEN not in kept, "it is not needed any more"


# --- what the server gives --------------------------------------------------------------------------------------------


def ask(there, method, path, token=TOKEN, **options):
    async def work(url):
        headers = {"Authorization": f"Bearer {token}", **options.pop("headers", {})} if token else {}
        async with TestClient(TestServer(server.application(there, TOKEN))) as client:
            answer = await client.request(method, path, headers=headers, **options)
            return answer.status, await answer.read()

    return asyncio.run(work(""))


def test_who_has_not_the_token_sees_nothing(there):
    paths = ["/run", "/run/files/metrics.jsonl", "/run/stop", "/", f"/run?token={TOKEN}"]
    for token, path in itertools.product(["", "wrong", TOKEN[:-1], TOKEN.upper()], paths):
        for method in ("GET", "POST"):
            status, content = ask(there, method, path, token)
            assert status == 401 and b"flowers" not in content and b"iteration" not in content, (token, method, path)
        assert not (there / "stop").exists()


NOT_SHOWN = [
    *("secret.txt", "status.json", "checkpoints/000001/state.json", "samples/../secret.txt", "../flowers/secret.txt"),
    *("samples/1.png", "notes.json", "%2e%2e/flowers/metrics.jsonl", "/etc/passwd"),
    "samples/000000.png/../../secret.txt",
]


def test_nothing_but_what_is_shown_is_given(there):
    answers = {name: ask(there, "GET", f"/run/files/{name}")[0] for name in NOT_SHOWN}
    assert answers == dict.fromkeys(NOT_SHOWN, 404)


def test_a_link_out_of_the_folder_is_not_followed(there):
    (there / "train.log").symlink_to(there.parent.parent / "config")
    (there / "rewards.png").symlink_to("/etc/hostname")
    status, content = ask(there, "GET", "/run")
    assert status == 200 and {"train.log", "rewards.png"}.isdisjoint(name for name, *_ in json.loads(content)["files"])
    assert ask(there, "GET", "/run/files/rewards.png")[0] == 404


def test_stop_asks_the_run_and_refuses_other_bodies(there):
    assert ask(there, "POST", "/run/stop", json={})[0] == 409, "it has finished"
    state(there, "running", pid=os.getpid(), process_started=__import__("psutil").Process().create_time())
    assert ask(there, "POST", "/run/stop", json={"now": True})[0] == 400 and not (there / "stop").exists()
    assert ask(there, "POST", "/run/stop", json={})[0] == 200 and (there / "stop").exists()


def test_a_folder_that_is_no_plain_name_is_refused(tmp_path):
    (tmp_path / ".hidden").mkdir()
    with pytest.raises(ValueError, match="cannot be a run.s folder. Fix: "):
        server.application(tmp_path / ".hidden", TOKEN)


# --- what a stranger answers ------------------------------------------------------------------------------------------


def stranger(**answers):
    """A server that answers that at a path."""
    app = web.Application()

    async def answer(request):
        found = answers.get(request.match_info["path"])
        return found() if callable(found) else found or web.Response(status=404)

    app.router.add_get("/{path:.*}", answer)
    return app


GOOD = {"version": 1, "id": "flowers", "status": "running", "files": [], "adapters": []}


WRONG = [{"version": 2}, {"status": "dancing"}, {"total": -1}, {"adapters": [["workflow.json", 1, 1]]}]
NAMES = ["../../evil", "status.json", "lora.safetensors", "samples/x.png", "samples/000010.png\n", None, 3]
WRONG += [{"files": [["train.log", 1]]}, *({"files": [[name, 1, 1]]} for name in NAMES)]
NO_ANSWERS = [
    *[b"", b"[]", b"[" * 100_000, b'{"files": ' + b" " * watching.MOST_STATE_BYTES + b"[]}"],
    *[json.dumps({**GOOD, **wrong}).encode() for wrong in WRONG],
]


BAD_NAMES = [json.dumps({**GOOD, "id": name}).encode() for name in ("..", "a/b", ".hidden", "", "x\n")]


def test_an_answer_that_is_none_leaves_no_folder(here, there):
    """Nor one with a name of its own, which becomes that of a folder, that is a path."""
    for content in (*NO_ANSWERS, *BAD_NAMES):
        app = stranger(run=lambda content=content: web.Response(body=content, content_type="application/json"))
        is_named = content in BAD_NAMES
        with pytest.raises(
            Expected if is_named else Unreachable, match="" if is_named else "not an answer of"
        ) as refusal:
            watched(here, there, app=app)
        assert refusal.value.status in ((400, 502) if is_named else (502,)), content[:100]
        assert not list(here.folder().glob("*")) and not list(here.folder().parent.rglob("remote.json")), content[:100]


def test_a_wrong_token_is_said(here, there):
    with pytest.raises(Unreachable, match="refuses the token. Fix: give the one that otca serve printed there"):
        served(there, lambda url: Remotes(here).watch(url, "wrong", None))
    assert not list(here.folder().glob("*"))


def test_a_redirect_does_not_get_the_token(here, there):
    asked = []

    def elsewhere():
        asked.append("elsewhere")
        return web.json_response(GOOD)

    app = stranger(run=web.HTTPFound("/other"), other=elsewhere)
    with pytest.raises(Unreachable, match="302"):
        watched(here, there, app=app)
    assert not asked


def test_more_than_was_announced_is_not_kept(here, there, monkeypatch):
    """Also of a file that grows, of which the beginning is there already."""
    monkeypatch.setattr(watching, "PIECE", 1024)
    monkeypatch.setattr(watching, "OVERLAP", 4)
    told, log = {**GOOD, "files": [["train.log", 10, 1]]}, {"status": 200, "body": b"x" * 100_000}
    app = stranger(run=lambda: web.json_response(told), **{"run/files/train.log": lambda: web.Response(**log)})

    async def script(remotes, run):
        file = run.folder / "train.log"
        assert "more of train.log than the 10 bytes" in remotes.told(run.summary())["error"] and not file.exists()
        log["body"] = b"x" * 10
        await remotes._look(run.id)
        told["files"], log["status"], log["body"] = [["train.log", 20, 2]], 206, b"x" * 100_000
        await remotes._look(run.id)
        assert "more of train.log than the 20 bytes" in remotes.told(run.summary())["error"]
        assert file.stat().st_size == 10

    followed(here, there, script, app)


async def dripping():
    """An answer of a byte now and then, which never ends: no silence is long enough to be noticed."""
    while True:
        yield b" "
        await asyncio.sleep(0.01)


def test_a_server_that_drips_is_given_up(here, there, monkeypatch):
    """Seen before: /otca/watch never answered."""
    monkeypatch.setattr(watching, "SECONDS", 0.5)
    app = stranger(run=lambda: web.Response(body=dripping()))
    with pytest.raises(Unreachable, match="cannot be reached") as refusal:
        watched(here, there, app=app)
    assert refusal.value.status == 502 and not list(here.folder().glob("*"))


def test_a_file_that_drips_is_not_waited_for_and_is_given_up(here, there, monkeypatch):
    monkeypatch.setattr(watching, "PATIENCE", 0.0)
    monkeypatch.setattr(watching, "SECONDS", 0.5)
    told = {**GOOD, "files": [["train.log", 10, 1]]}
    app = stranger(
        run=lambda: web.json_response(told), **{"run/files/train.log": lambda: web.Response(body=dripping())}
    )

    async def script(remotes, run):
        assert remotes.told(run.summary())["error"] is None, "it is still on its way"
        await asyncio.gather(*remotes._tasks)
        assert "broke off" in remotes.told(run.summary())["error"] and not (run.folder / "train.log").exists()

    followed(here, there, script, app)


def test_a_damaged_remote_json_is_said_once(here, there, caplog):
    """Seen before: at every poll."""

    async def script(remotes, run):
        (run.folder / "remote.json").write_text("{")
        for _ in range(3):
            assert remotes.told(run.summary())["remote"] is None
        assert caplog.text.count("remote.json") == 1

    followed(here, there, script)


def test_addresses_that_are_none(here):
    for url in ("ftp://127.0.0.1/", "http://user:secret@127.0.0.1:1", "127.0.0.1:8191", "http://[::1"):
        with pytest.raises(Refused) as refusal:
            asyncio.run(Remotes(here).watch(url, TOKEN, None))
        assert refusal.value.status == 400 and "secret" not in str(refusal.value)


def test_another_machine_has_to_be_allowed(site):
    answer = site.post("/otca/watch", {"url": "http://gpu.example.org:8191", "token": TOKEN})
    assert answer.status == 403 and "gpu.example.org:8191" in answer.error and permissions.HOSTS in answer.error
    assert answer.json["remember"] == "gpu.example.org:8191"
    for body in ({"url": "http://127.0.0.1:1"}, {"url": 1, "token": TOKEN}, {"url": "x", "token": "a b"}):
        assert site.post("/otca/watch", body).status == 400, body


# --- a real one -------------------------------------------------------------------------------------------------------


def test_a_training_elsewhere_is_watched_and_stopped(here, tmp_path, small_graph, until):
    """`otca train` and `otca serve` as processes of their own. Stop ends the training, with everything saved."""
    folder = tmp_path / "there" / "long"
    graph = small_graph({"OTCA_TrainingRun": {"iterations": 500, "checkpoint_every": 100}})
    (tmp_path / "workflow.json").write_text(json.dumps(graph))
    environment = {**os.environ, "OTCA_SERVE_TOKEN": TOKEN, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}

    def otca(*arguments):
        command = [sys.executable, str(PACK), *map(str, arguments)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    with contextlib.ExitStack() as ended:
        training = ended.enter_context(otca("train", tmp_path / "workflow.json", "--output", folder))
        ended.callback(training.kill)
        rows = folder / "metrics.jsonl"
        until(lambda: rows.exists() and rows.read_text() or training.poll() is not None)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        serving = ended.enter_context(otca("serve", folder, "--port", port))
        ended.callback(serving.kill)
        said = [serving.stdout.readline() for _ in range(3)]
        assert said[1] == f"address  http://127.0.0.1:{port}\n" and TOKEN in said[2]

        async def watch():
            remotes = Remotes(here)
            run = await remotes.watch(f"http://127.0.0.1:{port}", TOKEN, None)
            assert run.summary()["status"] == "running" and run.iteration() >= 1
            await remotes.stop(run)
            for _ in range(600):
                await remotes._look(run.id)
                if run.summary()["status"] != "running":
                    break
                await asyncio.sleep(0.1)
            await remotes.fetch_adapters(run)
            return run

        run = asyncio.run(watch())
        assert training.wait(60) == 0, training.stdout.read()
    assert run.summary()["status"] == "stopped"
    assert (run.folder / "metrics.jsonl").read_bytes() == (folder / "metrics.jsonl").read_bytes()
    assert (run.folder / "lora.safetensors").read_bytes() == (folder / "lora.safetensors").read_bytes()
