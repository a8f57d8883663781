"""What must be refused: other sites, paths, links out, large, malformed and mistyped requests."""

from __future__ import annotations

import json
import os
import shutil

import pytest
import torch

from comfyui_otca.host import own_folders
from comfyui_otca.host.text import plain_name
from comfyui_otca.page.requests import LARGEST_BODY
from comfyui_otca.page.runs import Run
from comfyui_otca.trainer.policy import files as policy_files

PNG, SECRET = b"picture", b"SECRET"


def untouched(site):
    return [] if not site.folder.exists() else sorted(path.name for path in site.folder.iterdir())


# --- other sites ----------------------------------------------------------------------------------------------------


OTHER_SITES = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site", "Origin": "http://other.localhost"},
]


OUR_PAGE = [
    {},
    {"Host": "comfy.lan:8188", "Origin": "http://comfy.lan:8188"},
    {"Sec-Fetch-Site": "same-origin", "Origin": "https://behind.a.proxy"},
    {"Sec-Fetch-Site": "none"},
]


def test_our_own_page_is_served(site):
    for headers in OUR_PAGE:
        answer = site.post("/otca/release", {}, **headers)
        assert (answer.status, answer.json) == (200, {"released": 2}), headers


# --- bodies ---------------------------------------------------------------------------------------------------------

KINDS = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
MALFORMED = [b"", b"{", b"[]", b'"text"', b"null", b'{"name": NaN}', b"\xff\xfe", b"[" * 200_000, b"1" * 5000]


JSON = {"Content-Type": "application/json"}
TOO_LARGE = b'{"name": "' + b"x" * LARGEST_BODY + b'"}'
# (method, headers, body, status, words of the answer): each of these at each route that there is.
ATTACKS = [
    *(("POST", {**JSON, **headers}, b"{}", 403, "another site") for headers in OTHER_SITES),
    ("GET", {"Sec-Fetch-Site": "cross-site"}, None, 403, ""),
    *(("POST", {"Content-Type": kind}, b"{}", 400, "application/json") for kind in KINDS),
    *(("POST", JSON, content, 400, "Fix: post a JSON object") for content in MALFORMED),
    ("POST", JSON, TOO_LARGE, 413, "4 MB"),
    ("POST", JSON, b'{"outptu": "x"}', 400, 'unknown field "outptu"'),
]


@pytest.mark.parametrize(
    ("method", "headers", "content", "status", "words"), ATTACKS, ids=lambda value: str(value)[:30]
)
def test_no_route_answers_another_site_or_what_is_not_json_of_known_fields(
    site, made, method, headers, content, status, words
):
    made(files={"samples.png": PNG})
    before = sorted(site.output.rglob("*"))
    answers = {path: site.ask(method, path, data=content, headers=headers) for path in site.paths(method)}
    wrong = {path: a.content for path, a in answers.items() if a.status != status or words not in a.error}
    assert wrong == {} and len(answers) > 20 and sorted(site.output.rglob("*")) == before


GOOD = {"name": "mine", "iterations": 2, "gpus": 1, "prompt": {}, "workflow": None}


WRONG = [
    ("name", [None, 7, ["a"]]),
    ("iterations", ["2", 2.0, True, 0, -1, 10**7 + 1, None]),
    ("gpus", [0, 1025, "all"]),
    ("reward_gpus", [-1, None]),
    ("prompt", [[], "{}", None]),
    ("workflow", ["text"]),
]


def test_wrong_types_and_ranges_name_field_value_and_fix(site):
    complaints = []
    for field, value in [(field, value) for field, values in WRONG for value in values]:
        answer = site.post("/otca/train", {**GOOD, field: value})
        if not (answer.status == 400 and answer.error.startswith(f"{field} = {json.dumps(value)}: ")):
            complaints.append((field, value, answer.content))
        elif "Fix: " not in answer.error or untouched(site):
            complaints.append((field, value, answer.content, untouched(site)))
    for field in ("name", "iterations", "prompt"):
        answer = site.post("/otca/train", {k: v for k, v in GOOD.items() if k != field})
        if answer.status != 400 or f"field {field} is missing" not in answer.error:
            complaints.append((field, answer.content))
    assert complaints == []


BAD_NAMES = [
    *["", " ", ".", "..", "../x", "/etc/x", "a/b", "a\\b", "..\\x", "C:x"],
    *[".hidden", "-rf", "a\0b", "a\nb", "a\x7f", "\ud800", "trailing.", "trailing ", " leading"],
    *["NUL", "com1.txt", "a*", "a?", 'a"', "a<b>", "a|b", "x" * 101, "花" * 67, "é" * 101, "😀" * 51],
]


def test_names_that_are_no_plain_names(site):
    answers = {name: site.post("/otca/train", {**GOOD, "name": name}) for name in BAD_NAMES}
    wrong = {name: a.content for name, a in answers.items() if a.status != 400 or not a.error.startswith("name = ")}
    assert wrong == {} and not untouched(site)
    names = ["mine", "Run 2 (w_min=0.2)", "x" * 100, "花" * 66, "v1.2", "$HOME;ls", "😀" * 50]
    assert [plain_name(name) for name in names] == names
    assert "has 201 bytes, and must not have more than 200" in answers["花" * 67].error


@pytest.mark.parametrize("name", ["x" * 100, "花" * 66, "😀" * 50])
def test_the_longest_names_fit_with_all_that_is_put_around_them(site, made, name):
    """Seen before: 100 Chinese characters were accepted, and ended in "File name too long"."""
    folder = made(name, files={"lora_high_noise.safetensors": b"high"})
    own_folders.mark_own(folder)
    assert site.post(f"/otca/runs/{name}/lora").status == 200
    with own_folders.new_folder(folder) as made_aside:
        (made_aside / "workflow.json").write_text("{}")
    (folder / f"{name}_high_noise.safetensors").touch()
    policy_files.write_tensors(folder / f"{name}_high_noise.safetensors", {"a": torch.zeros(1)})
    assert site.post(f"/otca/runs/{name}/delete").status == 200 and untouched(site) == []


# --- paths ----------------------------------------------------------------------------------------------------------


READ_BY_NAME = [
    *("/otca/runs/{}", "/otca/runs/{}/workflow", "/otca/runs/{}/metrics", "/otca/runs/{}/log"),
    *("/otca/runs/{}/pictures/samples.png", "/otca/runs/{}/removal", "/otca/runs/{}/columns", "/otca/runs/{}/samples"),
    "/otca/runs/first/pictures/{}",
]
LEAD_OUT = [
    *("..", "../outside", "%2e%2e", "..%2foutside", "%2e%2e%2foutside", "..%5coutside", "%252e%252e%252foutside"),
    *("..%00", "first%2f..%2f..%2foutside", ".hidden", "samples-..%2f..%2fx.png", "samples-1.png", "workflow.json"),
    *("samples%2f000001.png", "missing"),
]


BODIES = {**dict.fromkeys(["stop", "resume", "lora", "delete"], b"{}"), "note": b'{"notes": "mine"}'}
HEAD = "POST /otca/runs/{{}}/{} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {}"
ASKED = {f"GET {path} HTTP/1.1": b"" for path in READ_BY_NAME}
ASKED |= {HEAD.format(action, len(body)): body for action, body in BODIES.items()}


@pytest.mark.parametrize("head", ASKED)
def test_no_path_and_no_action_leads_out(site, made, head):
    """Out of the runs folder lie a run and a secret, which every one of these would reach if it were taken as a path."""
    made(files={"samples.png": PNG})
    secret = {"samples.png": SECRET, "train.log": SECRET, "lora.safetensors": SECRET}
    others = [made(name, files=secret) for name in ("../outside", ".hidden")]
    before = [sorted(other.rglob("*")) for other in others]
    answers = {name: site.raw(head.format(name).encode(), ASKED[head]) for name in LEAD_OUT}
    refused = (400, 403, 404) if ASKED[head] else (400, 404)
    assert {name: told for name, told in answers.items() if told[0] not in refused or SECRET in told[1]} == {}
    assert not [told for told in answers.values() if b"class_type" in told[1]]
    assert [sorted(other.rglob("*")) for other in others] == before and not list(site.loras.rglob("*.safetensors"))


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
    names = [
        "samples.png",
        "samples/000001.png",
        "train.log",
        "canvas.json",
        "evaluation.jsonl",
        "lora.safetensors",
        "changes.jsonl",
    ]
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


# --- what a request can cause, and its answer -------------------------------------------------------------------------
# Seen before: each was 500 with a traceback.


@pytest.mark.parametrize("path", ["", "/metrics", "/log", "/removal", "/samples", "/columns", "/state"])
def test_a_run_that_is_deleted_while_it_is_read_is_missing(site, made, monkeypatch, path):
    folder = made(files={"train.log": b"line", "samples.png": PNG, "evaluation.jsonl": b"{}"})
    find = Run.file

    def found(run, name):
        there = find(run, name)
        shutil.rmtree(folder, ignore_errors=True)
        return there

    monkeypatch.setattr(Run, "file", found)
    monkeypatch.setattr(os, "walk", lambda top: shutil.rmtree(top) or iter([(top, [], ["workflow.json"])]))
    answer = site.get(f"/otca/runs/first{path}")
    assert answer.status == 404 and "missing" in answer.error


def test_an_unexpected_error_stays_in_the_log(site, caplog):
    site.live.results_of = lambda prompt, workflow: 1 / 0
    answer = site.post("/otca/results", {"prompt": {"9": {"class_type": "OTCA_TCDWeights", "inputs": {}}}})
    assert answer.status == 500 and answer.error.startswith("internal error: ZeroDivisionError")
    assert "Traceback" in caplog.text


def test_get_changes_nothing(site, made):
    made()
    for path in set(site.paths("POST")).difference(site.paths("GET")):
        assert site.get(path).status in (404, 405)
