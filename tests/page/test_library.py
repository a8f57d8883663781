"""What a user does with runs as with files: notes, and deleting them; and what the list of runs says."""

from __future__ import annotations

import json
import os

import pytest
from safetensors.numpy import save_file

from comfyui_otca.host import claim
from comfyui_otca.page import reading

EVALUATED = {"mean": 0.5, "std": 0.2, "standard_error": 0.1, "held_out": False, "values": [0.4, 0.6]}


def evaluation(iteration, mean):
    rewards = {"clip_t": {**EVALUATED, "mean": mean}}
    return json.dumps({"iteration": iteration, "prompts": ["a circle", "a square"], "rewards": rewards}) + "\n"


def listed(site):
    return {run["id"]: run for run in site.get("/otca/runs").json["runs"]}


# --- notes ------------------------------------------------------------------------------------------------------------


def test_notes_are_kept_beside_the_run(site, made, tmp_path):
    """Damaged ones, and a link in their place, which is not followed, count as none and can be written again."""
    folder, victim = made(status={}), tmp_path / "victim"
    victim.write_text('{"notes": "SECRET"}')

    def write():
        assert site.post("/otca/runs/first/note", {"notes": "w_min 0.5 ± nothing"}).status == 200
        assert json.loads((folder / "notes.json").read_text()) == {"notes": "w_min 0.5 ± nothing"}
        assert listed(site)["first"]["notes"] == "w_min 0.5 ± nothing"
        assert not [path for path in folder.iterdir() if path.name.startswith(".")], "nothing is left of the writing"

    write()
    for content in (b"{", b'{"notes": 3}'):
        (folder / "notes.json").write_bytes(content)
        assert (listed(site)["first"]["notes"], listed(site)["first"]["status"]) == ("", "finished")
        write()
    (folder / "notes.json").unlink()
    os.symlink(victim, folder / "notes.json")
    assert listed(site)["first"]["notes"] == ""
    write()
    assert victim.read_text() == '{"notes": "SECRET"}' and not (folder / "notes.json").is_symlink()


def test_what_is_no_note(site, made):
    folder = made()
    for asked in ({}, {"notes": 7}, {"notes": None}, {"notes": "x" * 2001}, {"notes": "", "star": 1}):
        answer = site.post("/otca/runs/first/note", asked)
        assert answer.status == 400 and "Fix: " in answer.error and not (folder / "notes.json").exists()


# --- the list ---------------------------------------------------------------------------------------------------------


def test_the_score_is_the_rise_in_standard_deviations(site, made):
    path = made(status={}) / "evaluation.jsonl"
    path.write_text(evaluation(0, 0.5) + evaluation(2, 0.6) + evaluation(3, 0.8))
    assert listed(site)["first"]["score"] == pytest.approx((0.8 - 0.5) / 0.2)
    before = evaluation(0, 0.5)
    for number, content in enumerate((before[:30], before, evaluation(2, 0.5), "", "{}\n", before + "{\n")):
        made(f"run{number}", status={}, files={"evaluation.jsonl": content.encode()})
        assert listed(site)[f"run{number}"]["score"] is None, "without two evaluations there is none"


def test_a_run_that_has_ended_is_read_again_only_when_its_folder_changes(site, made, monkeypatch):
    folder = made(rows=3, status={"status": "stopped", "total": 9}, files={"checkpoints/000002/state.json": b"{}"})
    assert listed(site)["first"]["iteration"] == 3
    reads = []
    monkeypatch.setattr(reading, "score", lambda path: reads.append(path))
    for changes in range(1, 4):
        before = listed(site)["first"]
        assert listed(site)["first"] == before and len(reads) == max(0, changes - 1)
        with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(made.row(3 + changes))
        assert listed(site)["first"]["iteration"] == 3 + changes and len(reads) == changes
    (folder / "checkpoints" / "000002" / "state.json").unlink()
    (folder / "checkpoints" / "000002").rmdir()
    assert not listed(site)["first"]["has_checkpoint"]


def test_how_a_run_stands_whose_process_may_end_is_asked_each_time(site, made, this_process, monkeypatch):
    made(status=this_process)
    assert listed(site)["first"]["status"] == "running"
    monkeypatch.setattr("comfyui_otca.host.claim.alive", lambda *_: False)
    assert listed(site)["first"]["status"] == "interrupted"


# --- another name, given to the folder by hand --------------------------------------------------------------------------


def test_a_renamed_run_is_the_same_run(site, made):
    from comfyui_otca.trainer.run import checkpoint

    folder = made(status={"id": "4711"}, files={"train.log": b"log"})
    save_file({}, folder / "lora.safetensors", metadata={"otca_run": "first", "otca_run_id": "4711"})
    assert site.post("/otca/runs/first/lora").json == {"lora_names": ["otca/first.safetensors"]}
    before = listed(site)["first"]
    now = folder.rename(site.folder / "second try")
    assert listed(site) == {"second try": {**before, "id": "second try"}}
    assert site.get("/otca/runs/first").status == 404
    assert checkpoint.run_id(now) == "4711", "what it saves is known as its own"
    assert checkpoint.wrote(now, "4711", site.loras / "otca" / "first.safetensors"), "so Save LoRA writes over it again"
    assert site.post("/otca/runs/second%20try/lora").json == {"lora_names": ["otca/second try.safetensors"]}


def test_the_copy_of_another_runs_adapter_is_not_written_over(site, made):
    folders = {}
    for name, run in (("first", "one"), ("other", "two")):
        folders[name] = made(name, status={"id": run})
        save_file({}, folders[name] / "lora.safetensors", metadata={"otca_run": name, "otca_run_id": run})
    site.post("/otca/runs/first/lora")
    copied = (site.loras / "otca" / "first.safetensors").read_bytes()
    folders["first"].rename(site.folder / "old")
    folders["other"].rename(site.folder / "first")
    for _ in range(2):
        assert site.post("/otca/runs/first/lora").json == {"lora_names": ["otca/first-2.safetensors"]}
    assert (site.loras / "otca" / "first.safetensors").read_bytes() == copied


# --- deleting ---------------------------------------------------------------------------------------------------------


def test_runs_that_begin_with_this_one_are_named_before_it_is_deleted(site, made, small_graph):
    made(status={})
    names = {"by name": "first", "by file": "first/lora.safetensors"}
    names["by path"] = f"{site.folder}/first/lora.safetensors"
    for name, start in names.items():
        graph = small_graph({"OTCA_LoadFlowModel": {"start_from": start}})
        made(name, status={}, files={"workflow.json": json.dumps(graph).encode()})
        assert site.get(f"/otca/runs/{name}/removal").json["begun_with"] == []
    assert sorted(site.get("/otca/runs/first/removal").json["begun_with"]) == sorted(names)


def test_a_run_that_trains_is_refused(site, made, this_process, claimed_elsewhere):
    """Also one that is saving its last checkpoint, or of a ComfyUI on another machine."""
    made(status=this_process)
    made("waits", status={**this_process, "status": "queued"})
    ends, elsewhere = made("ends", status={"status": "stopped"}), made("elsewhere", status={"status": "stopped"})
    claimed_elsewhere(elsewhere)
    words = {"first": "Fix: stop it first", "waits": "Fix: stop it first", "ends": "", "elsewhere": "seen from here"}
    with claim.take(ends):
        for name, said in words.items():
            answer = site.post(f"/otca/runs/{name}/delete")
            assert answer.status == 409 and said in answer.error
    assert listed(site).keys() == words.keys()


def test_a_run_that_the_canvas_has_in_hand_is_let_go_unless_it_is_at_work(site, made):
    made(status={"status": "idle", "place": "canvas"})
    site.canvas.at_work, site.live.busy = False, True
    assert "a prompt is running" in site.post("/otca/runs/first/delete").error
    site.live.busy = False
    assert site.post("/otca/runs/first/delete").status == 200 and site.live.gone == ["first"]


def test_a_link_to_a_run_is_left_alone(site, made):
    made(status={})
    os.symlink(site.folder / "first", site.folder / "linked")
    answer = site.post("/otca/runs/linked/delete")
    assert answer.status == 409 and "is a link" in answer.error
    assert (site.folder / "linked").is_symlink() and (site.folder / "first" / "workflow.json").is_file()
    assert site.post("/otca/runs/linked/note", {"notes": "mine"}).status == 409


def test_a_folder_without_a_run_is_not_deleted(site):
    photos = site.folder / "my holiday photos"
    photos.mkdir(parents=True)
    (photos / "a.jpg").write_bytes(b"photo")
    answer = site.post("/otca/runs/my%20holiday%20photos/delete")
    assert answer.status == 409 and "holds no run" in answer.error and (photos / "a.jpg").read_bytes() == b"photo"


def test_a_deleted_run_is_gone_and_before_is_told_what_will_be(site, made):
    folder = made(status={}, files={"checkpoints/000003/state.json": b"x" * 1000})
    made("second", status={})
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files)
    told = {"folder": str(folder), "bytes": size, "files": len(files), "begun_with": []}
    assert site.get("/otca/runs/first/removal").json == told
    assert site.post("/otca/runs/first/delete").status == 200
    assert list(listed(site)) == ["second"] and [path.name for path in site.folder.iterdir()] == ["second"]
    assert site.post("/otca/runs/first/delete").status == 404


def test_what_links_in_a_run_lead_to_stays(site, made, tmp_path):
    folder, outside = made(status={}), tmp_path / "outside"
    outside.mkdir()
    (outside / "mine").write_text("mine")
    os.symlink(outside, folder / "samples" / "linked")
    assert site.get("/otca/runs/first/removal").json["bytes"] < 10_000
    assert site.post("/otca/runs/first/delete").status == 200
    assert not folder.exists() and (outside / "mine").read_text() == "mine"
