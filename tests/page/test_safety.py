"""What must be refused: other sites, paths, links out, large, malformed and mistyped requests."""

from __future__ import annotations

import json
import os

import pytest

from comfyui_otca.host.names import plain_name
from comfyui_otca.page.checks import LARGEST_BODY

POSTS = [
    "/otca/train",
    "/otca/runs/first/stop",
    "/otca/runs/first/resume",
    "/otca/runs/first/lora",
    "/otca/export",
    "/otca/release",
    "/otca/results",
    "/otca/permissions/wants",
    "/otca/permissions/allow",
    "/otca/runs/first/note",
    "/otca/runs/first/rename",
    "/otca/runs/first/delete",
    "/otca/runs/first/open",
    "/otca/suggestions",
]
GETS = [
    "/otca/preview?node=9&sample=0&step=0",
    "/otca/runs",
    "/otca/runs/first",
    "/otca/runs/first/metrics",
    "/otca/runs/first/log",
    "/otca/runs/first/workflow",
    "/otca/runs/first/pictures/samples.png",
    "/otca/runs/first/removal",
    "/otca/runs/first/columns?name=loss",
    "/otca/runs/first/samples",
    "/otca/suggestions?kind=runs",
]
PNG, SECRET = b"picture", b"SECRET"


def untouched(site):
    return [] if not site.folder.exists() else sorted(path.name for path in site.folder.iterdir())


# --- other sites ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://other.localhost"},
    ],
)
def test_other_sites_change_nothing(site, made, path, headers):
    made()
    answer = site.post(path, {}, **headers)
    assert answer.status == 403 and "another site" in answer.error
    assert untouched(site) == ["first"] and not (site.folder / "first" / "stop").exists()


@pytest.mark.parametrize("path", GETS)
def test_other_sites_read_nothing(site, made, path):
    made(files={"samples.png": PNG})
    assert site.get(path).status == 200
    assert site.get(path, **{"Sec-Fetch-Site": "cross-site"}).status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "comfy.lan:8188", "Origin": "http://comfy.lan:8188"},
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://behind.a.proxy"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_our_own_page_is_served(site, headers):
    answer = site.post("/otca/release", {}, **headers)
    assert (answer.status, answer.json) == (200, {"released": 2})


# --- bodies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_only_json_changes_things(site, made, path, kind):
    made()
    answer = site.ask("POST", path, data="{}", headers={"Content-Type": kind})
    assert answer.status == 400 and "application/json" in answer.error


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'"text"', b"null", b'{"name": NaN}', b"\xff\xfe", b"[" * 200_000, b"1" * 5000]
)
def test_malformed(site, made, path, content):
    made()
    answer = site.post(path, content)
    assert answer.status == 400 and "Fix: post a JSON object" in answer.error


@pytest.mark.parametrize("path", POSTS)
def test_oversized(site, made, path):
    made()
    answer = site.post(path, b'{"name": "' + b"x" * LARGEST_BODY + b'"}')
    assert answer.status == 413 and "4 MB" in answer.error


def test_oversized_in_pieces_without_a_length(site):
    async def pieces():
        for _ in range(LARGEST_BODY // 2**16 + 2):
            yield b" " * 2**16

    assert site.ask("POST", "/otca/export", data=pieces(), headers={"Content-Type": "application/json"}).status == 413


@pytest.mark.parametrize("path", POSTS)
def test_unknown_fields(site, made, path):
    made()
    answer = site.post(path, {"outptu": "x"})
    assert answer.status == 400 and 'unknown field "outptu"' in answer.error


GOOD = {"name": "mine", "iterations": 2, "gpus": 1, "prompt": {}, "workflow": None}


@pytest.mark.parametrize(
    "field, value",
    [
        ("name", None),
        ("name", 7),
        ("name", ["a"]),
        ("iterations", "2"),
        ("iterations", 2.0),
        ("iterations", True),
        ("iterations", 0),
        ("iterations", -1),
        ("iterations", 10**7 + 1),
        ("iterations", None),
        ("gpus", 0),
        ("gpus", 1025),
        ("gpus", "all"),
        ("reward_gpus", -1),
        ("reward_gpus", None),
        ("prompt", []),
        ("prompt", "{}"),
        ("prompt", None),
        ("workflow", "text"),
    ],
)
def test_wrong_types_and_ranges_name_field_value_and_fix(site, field, value):
    answer = site.post("/otca/train", {**GOOD, field: value})
    assert answer.status == 400 and answer.error.startswith(f"{field} = {json.dumps(value)}: ")
    assert "Fix: " in answer.error and not untouched(site)


@pytest.mark.parametrize("field", ["name", "iterations", "prompt"])
def test_missing_fields(site, field):
    answer = site.post("/otca/train", {k: v for k, v in GOOD.items() if k != field})
    assert answer.status == 400 and f"field {field} is missing" in answer.error


BAD_NAMES = [
    "",
    " ",
    ".",
    "..",
    "../x",
    "/etc/x",
    "a/b",
    "a\\b",
    "..\\x",
    "C:x",
    ".hidden",
    "-rf",
    "a\0b",
    "a\nb",
    "a\x7f",
    "\ud800",
    "trailing.",
    "trailing ",
    " leading",
    "NUL",
    "com1.txt",
    "a*",
    "a?",
    'a"',
    "a<b>",
    "a|b",
    "x" * 101,
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_are_no_plain_names(site, name):
    answer = site.post("/otca/train", {**GOOD, "name": name})
    assert answer.status == 400 and answer.error.startswith("name = ")
    assert not untouched(site)


@pytest.mark.parametrize("name", ["mine", "Run 2 (w_min=0.2)", "x" * 100, "花", "v1.2", "$HOME;ls"])
def test_plain_names(name):
    assert plain_name(name) == name


# --- paths ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ask",
    [
        "/otca/runs/{}",
        "/otca/runs/{}/workflow",
        "/otca/runs/{}/metrics",
        "/otca/runs/{}/log",
        "/otca/runs/{}/pictures/samples.png",
        "/otca/runs/{}/removal",
        "/otca/runs/{}/columns",
        "/otca/runs/{}/samples",
        "/otca/runs/first/pictures/{}",
    ],
)
@pytest.mark.parametrize(
    "name",
    [
        "..",
        "../outside",
        "%2e%2e",
        "..%2foutside",
        "%2e%2e%2foutside",
        "..%5coutside",
        "%252e%252e%252foutside",
        "..%00",
        "first%2f..%2f..%2foutside",
        ".hidden",
        "samples-..%2f..%2fx.png",
        "samples-1.png",
        "workflow.json",
        "samples%2f000001.png",
        "missing",
    ],
)
def test_no_path_leads_out(site, made, ask, name):
    """Out of the runs folder lie a run and a secret, which every one of these would reach if it were taken as a path."""
    made(files={"samples.png": PNG})
    made("../outside", files={"samples.png": SECRET, "train.log": SECRET})
    made(".hidden", files={"samples.png": SECRET, "train.log": SECRET})
    status, content = site.raw(f"GET {ask.format(name)} HTTP/1.1".encode())
    assert status in (400, 404) and SECRET not in content and b"class_type" not in content


@pytest.mark.parametrize("action", ["stop", "resume", "lora"])
@pytest.mark.parametrize("name", ["..%2foutside", "%2e%2e%2foutside", "missing"])
def test_no_action_leads_out(site, made, action, name):
    outside = made("../outside", files={"lora.safetensors": SECRET})
    request = f"POST /otca/runs/{name}/{action} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 2"
    status, _ = site.raw(request.encode(), b"{}")
    assert status in (400, 404)
    assert not (outside / "stop").exists() and not list(site.loras.rglob("*.safetensors"))


def test_links_out_of_the_runs_folder_are_no_runs(site, made):
    outside = made("../outside", files={"train.log": SECRET})
    os.symlink(outside.resolve(), site.folder / "linked")
    assert [run["id"] for run in site.get("/otca/runs").json["runs"]] == []
    for path in ("", "/log", "/workflow", "/metrics"):
        assert site.get(f"/otca/runs/linked{path}").status == 404
    assert site.post("/otca/runs/linked/stop").status == 404 and not (outside / "stop").exists()


def test_linked_files_are_not_read(site, made, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(made.row(1, secret="SECRET").encode())
    folder = made("first", rows=0)
    names = ["samples.png", "samples/000001.png", "train.log", "canvas.json", "evaluation.jsonl", "lora.safetensors"]
    names += ["changes.jsonl"]
    for name in [*names, "metrics.jsonl", "workflow.json", "status.json"]:
        (folder / name).unlink(missing_ok=True)
        os.symlink(secret, folder / name)
    (folder / "workflow.json").unlink()
    graph = {"1": {"class_type": "Other", "inputs": {}}}
    (folder / "workflow.json").write_text(json.dumps(graph))
    details = site.get("/otca/runs/first").json
    assert (details["samples"], details["pictures"], details["has_lora"], details["iteration"]) == ([], [], False, 0)
    assert site.get("/otca/runs/first/metrics").json == {"rows": [], "more": False, "evaluations": [], "changes": []}
    assert site.get("/otca/runs/first/log").json == {"text": "", "size": 0}
    assert site.get("/otca/runs/first/workflow").json == {"prompt": graph, "workflow": None}
    for name in ("samples.png", "samples-000001.png"):
        assert site.get(f"/otca/runs/first/pictures/{name}").status == 404
    assert site.post("/otca/runs/first/lora").status == 409 and not list(site.loras.rglob("*.safetensors"))


def test_a_link_at_the_target_of_a_lora_is_replaced_and_not_followed(site, made, tmp_path):
    made(files={"lora.safetensors": b"adapter"})
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (site.loras / "otca").mkdir()
    os.symlink(victim, site.loras / "otca" / "first.safetensors")
    assert site.post("/otca/runs/first/lora").status == 200
    assert victim.read_bytes() == b"mine" and (site.loras / "otca" / "first.safetensors").read_bytes() == b"adapter"


def test_an_unexpected_error_stays_in_the_log(site, caplog):
    site.live.results_of = lambda prompt, workflow: 1 / 0
    answer = site.post("/otca/results", {"prompt": {"9": {"class_type": "OTCA_TCDWeights", "inputs": {}}}})
    assert answer.status == 500 and answer.error.startswith("internal error: ZeroDivisionError")
    assert "Traceback" in caplog.text


def test_get_changes_nothing(site, made):
    made()
    for path in POSTS:
        assert site.get(path).status in (404, 405)
