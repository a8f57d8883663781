"""What a user does with runs as with files: notes, a star, another name, the trash, the folder's window."""

from __future__ import annotations

import json
import os
import stat
import sys

import pytest
from safetensors.numpy import save_file

from comfyui_otca.host import claim
from comfyui_otca.page import desktop, listing

EVALUATED = {"mean": 0.5, "std": 0.2, "standard_error": 0.1, "held_out": False, "values": [0.4, 0.6]}


def evaluation(iteration, mean):
    rewards = {"clip_t": {**EVALUATED, "mean": mean}}
    return json.dumps({"iteration": iteration, "prompts": ["a circle", "a square"], "rewards": rewards}) + "\n"


def listed(site):
    return {run["id"]: run for run in site.get("/otca/runs").json["runs"]}


@pytest.fixture
def trash(tmp_path, monkeypatch):
    """A system whose trash is a folder, by a command of its own; `trash.full` makes it fail."""
    folder = tmp_path / "trash"
    folder.mkdir()
    command = tmp_path / "to-trash"
    command.write_text(
        f'#!/bin/sh\n[ -e "{folder}/full" ] && echo "the trash is full" >&2 && exit 1\nmv "$1" "{folder}/"\n'
    )
    command.chmod(command.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(desktop, "trash_command", lambda: [str(command)])
    return folder


# --- notes and a star -------------------------------------------------------------------------------------------------


def test_notes_and_star_are_kept_beside_the_run(site, made):
    folder = made(status={})
    assert site.post("/otca/runs/first/note", {"notes": "w_min 0.5 ± nothing"}).json["starred"] is False
    assert site.post("/otca/runs/first/note", {"starred": True}).json == {
        "notes": "w_min 0.5 ± nothing",
        "starred": True,
    }
    assert json.loads((folder / "notes.json").read_text()) == {"notes": "w_min 0.5 ± nothing", "starred": True}
    run = listed(site)["first"]
    assert (run["notes"], run["starred"]) == ("w_min 0.5 ± nothing", True)
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == [], "nothing is left of the writing"


@pytest.mark.parametrize(
    "asked", [{"notes": 7}, {"notes": None}, {"notes": "x" * 2001}, {"starred": "yes"}, {"star": True}]
)
def test_what_is_no_note(site, made, asked):
    folder = made()
    answer = site.post("/otca/runs/first/note", asked)
    assert answer.status == 400 and "Fix: " in answer.error and not (folder / "notes.json").exists()


@pytest.mark.parametrize("content", [b"{", b'{"notes": 3}', b'{"starred": "yes"}'])
def test_damaged_notes_are_none_and_can_be_written_again(site, made, content):
    made(status={}, files={"notes.json": content})
    assert (listed(site)["first"]["notes"], listed(site)["first"]["status"]) == ("", "finished")
    assert site.post("/otca/runs/first/note", {"starred": True}).status == 200
    assert listed(site)["first"]["starred"] is True


def test_a_link_at_the_notes_is_replaced_and_not_followed(site, made, tmp_path):
    folder, victim = made(status={}), tmp_path / "victim"
    victim.write_text('{"notes": "SECRET"}')
    os.symlink(victim, folder / "notes.json")
    assert listed(site)["first"]["notes"] == ""
    assert site.post("/otca/runs/first/note", {"notes": "mine"}).status == 200
    assert victim.read_text() == '{"notes": "SECRET"}' and not (folder / "notes.json").is_symlink()


# --- the list ---------------------------------------------------------------------------------------------------------


def test_the_score_is_the_rise_in_standard_deviations(site, made):
    made(status={}, files={"evaluation.jsonl": (evaluation(0, 0.5) + evaluation(2, 0.6) + evaluation(3, 0.8)).encode()})
    assert listed(site)["first"]["score"] == pytest.approx((0.8 - 0.5) / 0.2)


@pytest.mark.parametrize(
    "content", [evaluation(0, 0.5)[:30], evaluation(2, 0.5), "", "{}\n", evaluation(0, 0.5) + "{\n"]
)
def test_a_run_without_two_evaluations_has_no_score(site, made, content):
    made(status={}, files={"evaluation.jsonl": content.encode()})
    assert listed(site)["first"]["score"] is None


def test_a_run_that_has_ended_is_read_again_only_when_its_folder_changes(site, made, monkeypatch):
    folder = made(rows=3, status={"status": "stopped", "total": 9}, files={"checkpoints/000002/state.json": b"{}"})
    assert listed(site)["first"]["iteration"] == 3
    reads = []
    monkeypatch.setattr(listing, "score", lambda path: reads.append(path))
    for changes in range(1, 4):
        before = listed(site)["first"]
        assert listed(site)["first"] == before and len(reads) == max(0, changes - 1)
        with open(folder / "metrics.jsonl", "a") as file:
            file.write(made.row(3 + changes))
        assert listed(site)["first"]["iteration"] == 3 + changes and len(reads) == changes
    (folder / "checkpoints" / "000002" / "state.json").unlink()
    (folder / "checkpoints" / "000002").rmdir()
    assert not listed(site)["first"]["has_checkpoint"]


def test_how_a_run_stands_whose_process_may_end_is_asked_each_time(site, made, this_process, monkeypatch):
    made(status=this_process)
    assert listed(site)["first"]["status"] == "running"
    monkeypatch.setattr("comfyui_otca.trainer.run.status.alive", lambda *_: False)
    assert listed(site)["first"]["status"] == "interrupted"


# --- another name -----------------------------------------------------------------------------------------------------


def rename(site, run, name):
    return site.post(f"/otca/runs/{run}/rename", {"name": name})


def test_a_renamed_run_is_the_same_run(site, made):
    from comfyui_otca.trainer.run import folder as folders

    folder = made(status={"id": "4711"}, files={"train.log": b"log"})
    save_file({}, folder / "lora.safetensors", metadata={"otca_run": "first", "otca_run_id": "4711"})
    assert site.post("/otca/runs/first/lora").json == {"lora_names": ["otca/first.safetensors"]}
    before = listed(site)["first"]
    answer = rename(site, "first", "second try").json
    assert answer["id"] == "second try" and "otca/first.safetensors" in answer["told"]
    assert listed(site) == {"second try": {**before, "id": "second try"}}
    assert site.get("/otca/runs/first").status == 404
    now = site.folder / "second try"
    assert folders.run_id(now) == "4711", "what it saves is known as its own"
    assert folders.wrote(now, "4711", site.loras / "otca" / "first.safetensors"), "so Save LoRA writes over it again"
    assert site.post("/otca/runs/second%20try/lora").json == {"lora_names": ["otca/second try.safetensors"]}


def test_the_copy_of_another_runs_adapter_is_not_written_over(site, made):
    for name, run in (("first", "one"), ("other", "two")):
        folder = made(name, status={"id": run})
        save_file({}, folder / "lora.safetensors", metadata={"otca_run": name, "otca_run_id": run})
    site.post("/otca/runs/first/lora")
    copied = (site.loras / "otca" / "first.safetensors").read_bytes()
    assert rename(site, "first", "old").status == rename(site, "other", "first").status == 200
    for _ in range(2):
        assert site.post("/otca/runs/first/lora").json == {"lora_names": ["otca/first-2.safetensors"]}
    assert (site.loras / "otca" / "first.safetensors").read_bytes() == copied


@pytest.mark.parametrize("start", ["first", "first/lora.safetensors", "{folder}/first/lora.safetensors"])
def test_a_run_that_others_begin_with_keeps_its_name(site, made, small_graph, start):
    made(status={})
    graph = small_graph()
    loader = next(entry for entry in graph.values() if entry["class_type"] == "OTCA_LoadFlowModel")
    loader["inputs"]["start_from"] = start.format(folder=site.folder)
    made("second", status={}, files={"workflow.json": json.dumps(graph).encode()})
    refused = rename(site, "first", "other")
    assert refused.status == 409 and refused.error.startswith("second begins with the adapter of first by its name")
    assert site.get("/otca/runs/first/removal").json["begun_with"] == ["second"]
    assert rename(site, "second", "other").status == 200


@pytest.mark.parametrize(
    "name", ["", "..", "../x", "a/b", "a\\b", ".hidden", "-rf", "a\0b", "NUL", "x" * 101, None, 7, "trailing "]
)
def test_a_new_name_is_a_plain_one(site, made, name):
    made()
    answer = rename(site, "first", name)
    assert answer.status == 400 and answer.error.startswith("name = ")
    assert [path.name for path in site.folder.iterdir()] == ["first"]


@pytest.mark.parametrize("there", ["folder", "empty", "file", "link"])
def test_a_name_that_is_taken(site, made, there, tmp_path):
    made()
    target = site.folder / "taken"
    if there == "folder":
        made("taken")
    elif there == "empty":
        target.mkdir()  # which a plain rename would replace
    elif there == "file":
        target.write_text("mine")
    else:
        os.symlink(tmp_path / "nowhere", target)
    answer = rename(site, "first", "taken")
    assert answer.status == 409 and "is there already" in answer.error
    assert (site.folder / "first" / "workflow.json").is_file() and os.path.lexists(target)


def test_its_own_name_changes_nothing(site, made):
    made()
    assert rename(site, "first", "first").json["id"] == "first"


# --- at rest ----------------------------------------------------------------------------------------------------------

ACTIONS = [("rename", {"name": "other"}), ("delete", {"for_good": True}), ("delete", {})]


@pytest.mark.parametrize("action, asked", ACTIONS)
def test_a_run_that_trains_is_refused(site, made, this_process, trash, action, asked):
    made(status=this_process)
    made("waits", status={**this_process, "status": "queued"})
    for name in ("first", "waits"):
        answer = site.post(f"/otca/runs/{name}/{action}", asked)
        assert answer.status == 409 and "Fix: stop it first" in answer.error
    assert sorted(listed(site)) == ["first", "waits"]


@pytest.mark.parametrize("action, asked", ACTIONS)
def test_a_run_that_another_process_has_claimed_is_refused(site, made, trash, action, asked):
    """As one that is saving its last checkpoint, or of a ComfyUI on another machine."""
    folder = made(status={"status": "stopped"})
    with claim.take(folder):
        written = (folder / "claim.json").read_text()
        assert site.post(f"/otca/runs/first/{action}", asked).status == 409
    (folder / "claim.json").write_text(
        json.dumps({**json.loads(written), "host": "elsewhere", "machine": "m", "boot": "b"})
    )
    answer = site.post(f"/otca/runs/first/{action}", asked)
    assert answer.status == 409 and "cannot be seen from here" in answer.error and "elsewhere" in answer.error
    assert folder.is_dir()


def test_a_run_that_the_canvas_has_in_hand_is_let_go_unless_it_is_at_work(site, made):
    made(status={"status": "idle", "place": "canvas"})
    site.canvas.at_work, site.live.busy = False, True
    assert "a prompt is running" in rename(site, "first", "other").error
    site.live.busy = False
    assert rename(site, "first", "other").status == 200 and site.live.gone == ["first"]


@pytest.mark.parametrize("action, asked", ACTIONS)
def test_a_link_to_a_run_is_left_alone(site, made, trash, action, asked):
    made(status={})
    os.symlink(site.folder / "first", site.folder / "linked")
    answer = site.post(f"/otca/runs/linked/{action}", asked)
    assert answer.status == 409 and "is a link" in answer.error
    assert (site.folder / "linked").is_symlink() and (site.folder / "first" / "workflow.json").is_file()
    assert site.post("/otca/runs/linked/note", {"starred": True}).status == 409


# --- deleting ---------------------------------------------------------------------------------------------------------


def test_what_is_about_to_be_deleted(site, made, trash):
    folder = made(status={}, files={"checkpoints/000003/state.json": b"x" * 1000})
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert site.get("/otca/runs/first/removal").json == {
        "folder": str(folder),
        "bytes": sum(path.stat().st_size for path in files),
        "files": len(files),
        "trash": True,
        "begun_with": [],
    }


def test_a_run_goes_to_the_trash(site, made, trash):
    made(status={})
    made("second", status={})
    assert site.post("/otca/runs/first/delete").status == 200
    assert list(listed(site)) == ["second"] and (trash / "first" / "workflow.json").is_file()
    assert site.post("/otca/runs/first/delete").status == 404


def test_a_run_that_the_trash_does_not_take_stays_until_it_is_deleted_for_good(site, made, trash):
    folder = made(status={})
    (trash / "full").touch()
    answer = site.post("/otca/runs/first/delete")
    assert answer.status == 409 and "the trash is full. Fix: delete it for good" in answer.error
    assert answer.json["trash"] is False and (folder / "workflow.json").is_file()
    assert site.post("/otca/runs/first/delete", {"for_good": True}).status == 200
    assert list(site.folder.iterdir()) == [] and listed(site) == {}


def test_without_a_trash_nothing_is_deleted_by_chance(site, made, monkeypatch):
    folder = made(status={})
    monkeypatch.setattr(desktop, "trash_command", lambda: None)
    assert site.get("/otca/runs/first/removal").json["trash"] is False
    assert site.post("/otca/runs/first/delete").status == 409 and folder.is_dir()


def test_what_links_in_a_run_lead_to_stays(site, made, tmp_path):
    folder, outside = made(status={}), tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    os.symlink(outside, folder / "samples" / "linked")
    assert site.get("/otca/runs/first/removal").json["bytes"] < 10_000
    assert site.post("/otca/runs/first/delete", {"for_good": True}).status == 200
    assert not folder.exists() and (outside / "mine").read_text() == "mine"


@pytest.mark.parametrize("action", ["note", "rename", "delete", "open"])
@pytest.mark.parametrize("name", ["..%2foutside", "%2e%2e%2foutside", "%2e%2e", "missing", ".hidden"])
def test_no_action_leads_out(site, made, trash, action, name):
    outside, hidden = made("../outside"), made(".hidden")
    body = json.dumps({"name": "mine"} if action == "rename" else {}).encode()
    request = (
        f"POST /otca/runs/{name}/{action} HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    status, _ = site.raw(request.encode(), body)
    assert status in (400, 403, 404)
    assert (outside / "workflow.json").is_file() and (hidden / "workflow.json").is_file()
    assert not (outside / "notes.json").exists() and list(trash.iterdir()) == []


# --- the folder's window ----------------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch):
    paths = []
    monkeypatch.setattr(desktop, "open_folder", paths.append)
    return paths


def test_the_folder_opens_for_a_page_of_this_machine(site, made, opened):
    folder = made()
    assert site.post("/otca/runs/first/open").status == 200 and opened == [folder]


@pytest.mark.parametrize(
    "headers",
    [{"X-Forwarded-For": "10.0.0.7"}, {"Forwarded": "for=10.0.0.7"}, {"Host": "comfy.lan:8188"}, {"Via": "1.1 x"}],
)
def test_the_folder_does_not_open_for_a_page_elsewhere(site, made, opened, headers):
    made()
    answer = site.post("/otca/runs/first/open", {}, **headers)
    assert answer.status == 403 and "another one" in answer.error and opened == []
    assert site.get("/otca/runs/first", **headers).json["can_open"] is False


def test_a_machine_without_a_screen_says_so(site, made, monkeypatch):
    made()
    monkeypatch.setattr(sys, "platform", "linux")
    for variable in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(variable, raising=False)
    assert site.get("/otca/runs/first").json["can_open"] is False
    answer = site.post("/otca/runs/first/open")
    assert answer.status == 409 and "no screen" in answer.error


def test_what_opens_a_folder_never_starts_what_is_called_like_a_program(monkeypatch, tmp_path):
    ran = []
    monkeypatch.setattr(sys, "platform", "darwin")

    class Process:
        def __init__(self, command, **_):
            ran.append(command)

        def wait(self):
            pass

    monkeypatch.setattr(desktop.subprocess, "Popen", Process)
    desktop.open_folder(tmp_path / "run.app")
    assert ran == [["/usr/bin/open", "-R", str(tmp_path / "run.app")]]
