"""Who may call which route: docs/security.md has the tables, and they are true."""

from __future__ import annotations

import ast
import asyncio
import pkgutil
import re
import shlex
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from comfyui_otca.host.access.addresses import PAGE_HOSTS, is_home
from comfyui_otca.host.errors import Expected
from comfyui_otca.page import requests
from comfyui_otca.page import routes as page_routes
from comfyui_otca.page import votes as page_votes
from comfyui_otca.page.gallery import routes as gallery_routes
from comfyui_otca.page.remote.server import application as serve
from comfyui_otca.page.votes import application as vote
from comfyui_otca.tests.test_house import ROOMS
from comfyui_otca.trainer.opinions.asking import VoteFolder

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"\| `(GET|POST) (\S+)` \| (\w+) \| ([^|]+) \| `(\w+\.py)::(\w+)` \|")
ROWS = [row.groups() for row in ROW.finditer((ROOT / "docs" / "security.md").read_text(encoding="utf-8"))]
OF_PAGE = {(method, path): who for method, path, who, *_ in ROWS if who in ("page", "home", "word")}
REBOUND = {"Host": "evil.example:8188", "Origin": "http://evil.example:8188"}


def there(routes):
    return {(route.method, route.path) for route in routes}


def of_server(app):
    """The routes of a server; HEAD comes with every GET."""
    found = ((route.method, route.resource.canonical) for route in app.router.routes())
    return {(method, re.sub(r":[^}]+}", "}", path)) for method, path in found if method != "HEAD"}


def test_the_tables_name_every_route_once_and_no_other(site, tmp_path):
    assert there(site.routes) == OF_PAGE.keys()
    (tmp_path / "run").mkdir()
    others = {"vote": vote(VoteFolder(tmp_path / "votes", 16.0, "")), "serve": serve(tmp_path / "run", "token")}
    for who, app in others.items():
        assert of_server(app) == {(method, path) for method, path, of, *_ in ROWS if of == who}
    assert len({row[:3] for row in ROWS}) == len(ROWS)


def test_the_tests_that_the_tables_name_exist():
    for *_, file, name in ROWS:
        tree = ast.parse((Path(__file__).parent / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, (file, name)


@pytest.mark.no_word
def test_without_the_users_word_what_works_with_processes_is_not_there(site, made):
    run = made(status={"status": "running"})
    before = sorted(run.rglob("*"))
    assert there(site.routes) == {route for route, who in OF_PAGE.items() if who != "word"}
    for (_, path), who in OF_PAGE.items():
        if who == "word":
            assert site.post(path.format(id="first"), {}).status in (404, 405), path
    assert sorted(run.rglob("*")) == before and site.rooms == [] and site.jobs.processes == set()
    told = site.get("/otca/machine").json["trainings"]
    assert told["given"] is False and told["variable"] == "OTCA_ALLOW_TRAININGS=1"
    instead = site.get("/otca/runs/first").json["instead"]
    assert f" train {run} --resume " in instead["resume"] and instead["stop"] == f"echo stop > {run / 'stop'}"


def test_a_name_that_was_made_to_lead_here_gives_no_permission_and_starts_nothing(site, made):
    """DNS rebinding: to a browser it is ComfyUI's own page, since Host and Origin are the same."""
    run = made()
    for (method, path), who in OF_PAGE.items():
        answer = site.ask(method, path.format(**NAMED), headers=REBOUND)
        at_the_door = answer.status == 403 and "not a name of this machine" in answer.error
        assert at_the_door == (who in ("home", "word")), (method, path, answer.content)
        if at_the_door:
            assert f"{PAGE_HOSTS}=evil.example" in answer.error and "Fix: " in answer.error
    assert run.is_dir() and not (run / "stop").exists()


HOME = ["localhost", "LOCALHOST:8188", "127.0.0.1:8188", "127.8.9.1", "[::1]:8188", "[::1]", "localhost.:1"]
AWAY = [
    *["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "192.168.1.5:8188", "0.0.0.0", "", ":8188"],
    *["[::1", "127.1", "localhost@evil.example", "evil.example\\@localhost", "localhost/x", "[fe80::1]"],
    *["127.0.0.1:8188:1", "lo\u0441alhost", "localhost\0"],
]


def test_which_names_are_this_machines(monkeypatch):
    assert [name for name in HOME if not is_home(name)] == []
    assert [name for name in AWAY if is_home(name)] == []
    monkeypatch.setenv(PAGE_HOSTS, "Comfy.lan, 192.168.1.5,, ")
    assert is_home("comfy.lan:8188") and is_home("192.168.1.5") and is_home("localhost")
    assert [
        name for name in ("a.comfy.lan", "comfy.lan.evil.example", "192.168.1.50", "", ":80") if is_home(name)
    ] == []


def test_a_name_that_the_user_listed_may_do_all(site, made, monkeypatch):
    made()
    monkeypatch.setenv(PAGE_HOSTS, "comfy.lan")
    headers = {"Host": "comfy.lan:8188", "Origin": "http://comfy.lan:8188"}
    assert site.post("/otca/runs/first/delete", {}, **headers).status == 200
    assert not (site.folder / "first").exists()


def test_what_is_typed_instead_is_quoted(monkeypatch, tmp_path):
    from comfyui_otca.page import settings

    word = settings.Word(False, tmp_path / "a user's", tmp_path)
    assert word.told()["command"].endswith(" allow trainings --user-folder '" + str(tmp_path / "a user") + "'\"'\"'s'")
    line = word.making("train", "x; rm -rf y.json", tmp_path / "$HOME", ["their pack"])
    assert "'x; rm -rf y.json'" in line and "'" + str(tmp_path / "$HOME") + "'" in line
    assert line.endswith("--custom-nodes 'their pack'")
    monkeypatch.setattr("sys.argv", ["main.py", "--base-directory", "/my models", "--port", "1"])
    again = word.making("train", "x.json", tmp_path / "x")
    assert again.startswith("COMFYUI_ARGUMENTS=" + shlex.quote("--base-directory '/my models' --port 1") + " ")
    monkeypatch.setattr(settings, "WINDOWS", True)
    assert word.making("train", "x.json", tmp_path / "x") in again
    assert word.told()["command"].endswith(f'"{tmp_path / "a user"}\'s"')
    assert '"a;calc.json"' in word.making("train", "a;calc.json", tmp_path / "x")
    for name in ("$(calc)", "`calc`", "%PATH%", "!x!", 'a"&calc&"'):  # what PowerShell or cmd reads within quotes too
        assert name not in word.making("train", f"{name}.json", tmp_path / name)


def error_classes():
    """Every class of the code that derives from Exception, without those that are only another room's by another name."""
    found = set()
    for file in (file for room in ROOMS for file in (ROOT / room).rglob("*.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and node.bases:
                module = ".".join(("comfyui_otca", *file.relative_to(ROOT).with_suffix("").parts))
                if ast.unparse(node.bases[0]).endswith(("Error", "Exception", "Expected", "Refused")):
                    found.add(pkgutil.resolve_name(f"{module.removesuffix('.__init__')}:{node.name}"))
    return sorted((cls for cls in found if issubclass(cls, Exception) and cls is not Expected), key=repr)


def test_every_error_of_the_code_is_expected_by_every_route(site, made, monkeypatch):
    """Seen before: a damaged opinions.sqlite was 500, with a trace, at every poll of seven routes."""
    made()
    classes = error_classes()
    assert len(classes) > 20 and [cls for cls in classes if not issubclass(cls, Expected)] == []

    async def no_body(request, fields):
        return dict.fromkeys(fields)

    for module in (page_routes, gallery_routes, page_votes):
        monkeypatch.setattr(module, "body", no_body)
        monkeypatch.setattr(module, "query", lambda request, fields: {}, raising=False)
    raised = asyncio.run(_raised(site.routes, classes, monkeypatch))
    assert len(raised) == len(classes) * len(there(site.routes)) > 1000
    assert [told for told in raised if told[-1] != told[-2].status and told[-1] not in (400, 404, 409, 502, 507)] == []


async def _raised(routes, classes, monkeypatch):
    """[(method, path, class, status)] where each route, in its thread or without one, meets an error of each class."""
    app, answers = web.Application(), []
    app.add_routes(routes)
    async with TestClient(TestServer(app)) as client:
        for cls in classes:
            error = cls.__new__(cls, "it is so. Fix: change it")

            async def raising(*_, error=error, **__):
                raise error

            for method, path in there(routes):
                with monkeypatch.context() as patch:
                    patch.setattr(asyncio, "to_thread", raising)
                    if path in WITHOUT_A_THREAD:
                        patch.setattr(requests, "refuse_other_sites", Mock(side_effect=error))
                    answer = await client.request(method, path.format(**NAMED))
                answers.append((method, path, cls, answer.status))
    return answers


NAMED = {"id": "first", "name": "x", "pair": "1", "which": "x", "number": "0"}
WITHOUT_A_THREAD = ("/otca/votes", "/otca/votes/{id}/pictures/{number}")  # which only look into this process's memory


def test_what_grows_with_the_input_runs_in_a_thread(site, made, monkeypatch):
    """ComfyUI's server has one loop: reading a body, acting on it and writing the answer are done elsewhere."""
    made()
    in_the_loop = []

    def watched(function):
        def wrapper(*given, **named):
            if threading.current_thread() is threading.main_thread() and "error" not in given[0]:
                in_the_loop.append(function.__name__)
            return function(*given, **named)

        return wrapper

    monkeypatch.setattr(requests, "parse", watched(requests.parse))
    monkeypatch.setattr(page_routes.web, "json_response", watched(page_routes.web.json_response))
    for method, path in there(site.routes):
        if path not in WITHOUT_A_THREAD:
            site.ask(method, path.format(**NAMED), **JSON_BODY[method])
    assert in_the_loop == []


JSON_BODY = {"GET": {}, "POST": {"data": "{}", "headers": {"Content-Type": "application/json"}}}
