"""What the page reads of nodes and run folders: summaries, metrics, pictures, logs, and the adapter's copy."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from comfyui_otca.host import files
from comfyui_otca.page import reading
from comfyui_otca.page import runs as runs_module

PNG = b"\x89PNG\r\n\x1a\n a picture"


# --- nodes ----------------------------------------------------------------------------------------------------------


def test_last_results_of_a_graph(site):
    node = {"class_type": "OTCA_TCDWeights", "inputs": {}}
    asked = {"prompt": {"1:9": node, "2": node}, "workflow": "mine"}
    assert site.post("/otca/results", asked).json == {"1:9": {"credit": {"node": "1:9", "workflow": "mine"}}}
    assert site.post("/otca/results", {"prompt": {"1": 7}}).status == 400
    assert site.post("/otca/results", {**asked, "workflow": 7}).status == 400


def test_a_prompt_that_ended_before_the_first_iteration_leaves_no_run_in_the_list(site, made, this_process):
    """On the canvas a run's folder is begun before the first picture is made."""
    made("never", rows=0, status={**this_process, "status": "idle", "place": "canvas"})
    made("headless", rows=0, status={"status": "stopped", "place": "headless"})
    made("trained", rows=1, status={"status": "idle", "place": "canvas"})
    listed = {}
    for at_work in (True, False):
        site.canvas.at_work = at_work
        listed[at_work] = {run["id"] for run in site.get("/otca/runs").json["runs"]}
    assert listed == {True: {"headless", "trained", "never"}, False: {"headless", "trained"}}


def test_which_run_a_graph_would_go_on_with(site):
    node = {"class_type": "OTCA_TrainingRun", "inputs": {}}
    said = site.post("/otca/coming", {"prompt": {"12": node, "2": node}}).json
    run = {"run": "first", "iteration": 22, "other": None, "at": [["3", "seed", 22]], "unwatched": []}
    assert said == {"12": run}
    assert site.post("/otca/coming", {"prompt": {"1": 7}}).status == 400


NOT_THERE = [
    ("node=8&sample=0&step=0", 404, "Fix: run the graph again"),
    ("node=9&sample=0&step=8", 400, "there are 8 steps"),
    ("node=9&step=0", 400, "sample = null"),
    ("node=9&sample=-1&step=0", 400, 'sample = "-1"'),
    ("node=9&sample=0&step=" + "9" * 30, 400, "whole number"),
    ("sample=0&step=0", 400, "node is missing"),
]


def test_preview(site):
    answer = site.get("/otca/preview?node=9&sample=3&step=2")
    assert answer.headers["Content-Type"] == "image/png" and answer.content.endswith(bytes([3, 2]))
    for query, status, message in NOT_THERE:
        answer = site.get(f"/otca/preview?{query}")
        assert answer.status == status and message in answer.error, query
        assert answer.headers["Cache-Control"] == "no-cache"


def test_release(site):
    assert site.post("/otca/release").json == {"released": 2}
    site.live.busy = True
    answer = site.post("/otca/release")
    assert answer.status == 409 and "a prompt is running" in answer.error


# --- summaries ------------------------------------------------------------------------------------------------------


def test_runs_newest_first_and_nothing_else(site, made):
    assert site.get("/otca/runs").json == {"runs": []}
    answer = site.get("/otca/runs/first")
    assert answer.status == 404 and "run 'first' is missing" in answer.error
    for name, started in (("old", 100.0), ("new", 300.0), ("middle", 200.0)):
        made(name, status={"started": started})
    (site.folder / "no run").mkdir()
    (site.folder / "a file").write_text("")
    assert [run["id"] for run in site.get("/otca/runs").json["runs"]] == ["new", "middle", "old"]


def test_summary(site, made):
    folder = made(rows=3, status={"total": 5, "status": "stopped"}, files={"lora.safetensors": b"adapter"})
    (summary,) = site.get("/otca/runs").json["runs"]
    assert summary.pop("updated") == pytest.approx((folder / "lora.safetensors").stat().st_mtime, abs=5)
    assert summary == {
        "id": "first",
        "status": "stopped",
        "place": "headless",
        "iteration": 3,
        "rewrites": 0,
        "total": 5,
        "started": 100.0,
        "error": None,
        "failed_at": None,
        "has_lora": True,
        "has_checkpoint": False,
        "score": None,
        "notes": "",
        "proof": None,
    }


def test_a_run_that_cannot_be_read_is_listed_and_one_that_went_is_not(site, made, monkeypatch):
    """Both are noticed while the others are read."""
    for name in ("whole", "locked", "gone"):
        made(name, status={"started": 9e9 if name == "whole" else 1.0})
    read, count = runs_module.Run.summary, []

    def summary(run):
        count.append(run.id)
        if run.id == "gone":
            shutil.rmtree(run.folder)
        if run.id == "locked":
            raise PermissionError(13, "Permission denied", str(run.folder / "status.json"))
        return read(run)

    monkeypatch.setattr(runs_module.Run, "summary", summary)
    whole, locked = sorted(site.get("/otca/runs").json["runs"], key=lambda run: run["id"], reverse=True)
    assert (whole["id"], whole["status"]) == ("whole", "finished")
    assert (locked["id"], locked["status"]) == ("locked", "failed") and whole.keys() == locked.keys()
    told = f"{site.folder / 'locked' / 'status.json'} cannot be read (Permission denied). Fix: "
    assert locked["error"].startswith(told)
    assert sorted(count) == ["gone", "locked", "whole"], "a poll reads each once"


def test_details(site, made):
    files = {name: PNG for name in ("samples.png", "credit.png", "samples/000050.png", "samples/1000000.png")}
    files |= {"samples/000000.png": PNG, "samples/before.safetensors": b"", "evaluation.jsonl": b""}
    folder = made(status={"total": 3}, files={**files, "checkpoints/000003 - Copy/state.json": b"{}"})
    assert not site.get("/otca/runs/first").json["has_checkpoint"], "a copy is none"
    (folder / "checkpoints" / "000003").mkdir()
    (folder / "checkpoints" / "000003" / "state.json").write_text("{}")
    os.utime(folder / "evaluation.jsonl", (4e9, 4e9))
    details = site.get("/otca/runs/first").json
    assert details["has_checkpoint"] and details["status"] == "finished" and details["updated"] == 4e9
    assert details["rewards"] == ["clip_t"] and details["held_out"] == ["accuracy"]
    assert details["samples"] == ["000000.png", "000050.png", "1000000.png"]
    assert details["pictures"] == ["samples.png", "credit.png"]
    assert details["settings"]["SDE Sampler"]["group_size"] == 3 and "model" not in details["settings"]["SDE Sampler"]


def test_details_tell_of_reward_hacking(site, made):
    lines = [json.loads(made.row(i)) | {"reward/clip_t/mean": i, "held_out/accuracy/mean": -i} for i in range(1, 71)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    made(files={"metrics.jsonl": text.encode()})
    told = site.get("/otca/runs/first").json["warning"]
    assert (
        "from iteration 21 to 70, trained rewards rise, clip_t" in told and "accuracy, which is held out, falls" in told
    )
    made("calm")
    assert site.get("/otca/runs/calm").json["warning"] is None


def test_running_is_believed_of_a_living_process_only(site, made, this_process):
    """A run on the canvas idles between prompts."""
    made("alive", status=this_process)
    made("here", status={**this_process, "place": "canvas"})
    made("reborn", status={**this_process, "process_started": this_process["process_started"] - 60})
    made("gone", status={**this_process, "pid": 2**22 + 1})
    for site.canvas.at_work in (True, False):
        runs = {run["id"]: run for run in site.get("/otca/runs").json["runs"]}
        here = "running" if site.canvas.at_work else "idle"
        expected = {"alive": "running", "here": here, "reborn": "interrupted", "gone": "interrupted"}
        assert {name: run["status"] for name, run in runs.items()} == expected
    assert runs["alive"]["error"] is None and "Fix: resume" in runs["gone"]["error"]


def test_without_a_readable_status_the_rest_tells(site, made):
    whole, part = made("whole", rows=6), made("part", rows=5)
    for content in (None, b"", b"{", b"[]", b'{"status": 3}'):
        for folder in (whole, part):
            if content is not None:
                (folder / "status.json").write_bytes(content)
        runs = {run["id"]: run for run in site.get("/otca/runs").json["runs"]}
        told = {name: (run["status"], run["iteration"], run["total"]) for name, run in runs.items()}
        assert told == {"whole": ("finished", 6, 6), "part": ("interrupted", 5, 6)}, content


# --- metrics --------------------------------------------------------------------------------------------------------


def iterations(site, after=None):
    answer = site.get("/otca/runs/first/metrics" + ("" if after is None else f"?after={after}"))
    return [row["iteration"] for row in answer.json["rows"]]


def test_metrics_after_an_iteration(site, made, monkeypatch):
    made(rows=6)
    assert iterations(site) == iterations(site, 0) == [1, 2, 3, 4, 5, 6]
    assert iterations(site, 4) == [5, 6] and iterations(site, 6) == iterations(site, 10**15) == []
    for after in ("-1", "x", "1.5", "", "²"):
        answer = site.get(f"/otca/runs/first/metrics?after={after}")
        assert answer.status == 400 and "after = " in answer.error, after
    monkeypatch.setattr(reading, "MOST_ROWS", 4)  # in one answer
    assert iterations(site) == [1, 2, 3, 4] and iterations(site, 4) == [5, 6]
    assert [site.get(f"/otca/runs/first/metrics?after={n}").json["more"] for n in (0, 4)] == [True, False]


def test_metrics_grow_and_a_half_written_line_waits(site, made):
    path = made(rows=2) / "metrics.jsonl"
    whole = made.row(3)
    assert iterations(site) == [1, 2]
    with open(path, "a", encoding="utf-8") as file:
        file.write(whole[:20])
    assert iterations(site) == [1, 2]
    assert site.get("/otca/runs/first").json["iteration"] == 2
    with open(path, "a", encoding="utf-8") as file:
        file.write(whole[20:])
    assert iterations(site, 2) == [3] and site.get("/otca/runs/first").json["iteration"] == 3


def test_metrics_that_a_resumed_run_rewrote(site, made):
    folder = made(rows=5)
    assert iterations(site) == [1, 2, 3, 4, 5]
    (folder / "metrics.jsonl").write_text("".join(made.row(i) for i in (1, 2)))
    assert iterations(site) == [1, 2]
    # as long as what was there when it was last read, and longer: both with other rows from the third on
    (folder / "metrics.jsonl").write_text("".join(made.row(i) for i in (1, 2, 3, 4, 5)))
    assert iterations(site) == [1, 2, 3, 4, 5]
    again = "".join([made.row(1), *(made.row(i, loss=i) for i in (2, 3, 4, 5, 6))])
    (folder / "metrics.jsonl").write_text(again)
    rows = site.get("/otca/runs/first/metrics?after=1").json["rows"]
    assert [row["loss"] for row in rows] == [2, 3, 4, 5, 6]
    assert site.get("/otca/runs/first").json["rewrites"] == 2
    assert site.get("/otca/runs/first/columns?name=loss").json["columns"]["loss"][1:] == [2, 3, 4, 5, 6]


def test_a_poll_parses_only_new_lines(site, made, monkeypatch):
    path = made(rows=500) / "metrics.jsonl"
    assert len(iterations(site)) == 500
    parsed, parse = [], reading.parsed
    monkeypatch.setattr(reading, "parsed", lambda line, *check: parsed.append(line) or parse(line, *check))
    assert len(iterations(site)) == 500 and not parsed
    with open(path, "a", encoding="utf-8") as file:
        file.write(made.row(501))
    assert iterations(site, 500) == [501] and len(parsed) == 1
    assert site.get("/otca/runs/first/columns").json["iterations"][-1] == 501 and len(parsed) == 1


def test_evaluations_come_without_single_values(site, made):
    figures = {"mean": 0.5, "std": 0.1, "standard_error": 0.01, "held_out": False}
    lines = [{"iteration": i, "rewards": {"clip_t": {**figures, "values": [0.5] * 64}}} for i in (0, 2)]
    made(
        files={
            "evaluation.jsonl": "".join(json.dumps(line) + "\n" for line in lines).encode() + b'{"iteration": 4, "re'
        }
    )
    first, last = site.get("/otca/runs/first/metrics").json["evaluations"]
    assert first == {"iteration": 0, "rewards": {"clip_t": figures}}
    assert last == {"iteration": 2, "since": 0, "rewards": {"clip_t": {**figures, "rise": [0.0, 0.0]}}}


def test_the_last_evaluation_says_how_far_it_has_come(site, made):
    def row(iteration, prompts, *values):
        figures = {"mean": sum(values) / len(values), "std": 0.1, "standard_error": 0.0, "held_out": False}
        return {"iteration": iteration, "prompts": prompts, "rewards": {"clip_t": {**figures, "values": values}}}

    lines = [
        row(0, ["x"], 9.0),
        row(2, ["a", "b"], 0.1, 0.2),
        row(4, ["a", "b"], 0.9, 0.9),
        row(6, ["a", "b"], 0.3, 0.8),
    ]
    made(files={"evaluation.jsonl": "".join(json.dumps(line) + "\n" for line in lines).encode()})
    evaluations = site.get("/otca/runs/first/metrics").json["evaluations"]
    assert [row.get("since") for row in evaluations] == [None, None, None, 2], "with other prompts nothing is compared"
    # +0.2 and +0.6: their mean, and √(2/1 · (0.2² + 0.2²) / 2²)
    assert evaluations[-1]["rewards"]["clip_t"]["rise"] == pytest.approx([0.4, 0.2])
    (site.folder / "first" / "evaluation.jsonl").write_text(
        "".join(json.dumps(row(i, ["a"], 0.5)) + "\n" for i in (0, 2))
    )
    (*_, last) = site.get("/otca/runs/first/metrics").json["evaluations"]
    assert last["rewards"]["clip_t"]["rise"] == [0.0, None], "one picture has no error"


# --- pictures, log, workflow, adapter -------------------------------------------------------------------------------


def test_pictures(site, made):
    made(files={"credit.png": PNG, "samples/000002.png": PNG + b"2"})
    answer = site.get("/otca/runs/first/pictures/credit.png")
    assert (answer.status, answer.headers["Content-Type"], answer.content) == (200, "image/png", PNG)
    assert answer.headers["Cache-Control"] == "no-cache"  # the next evaluation draws it anew
    assert site.get("/otca/runs/first/pictures/samples-000002.png").content == PNG + b"2"
    missing = site.get("/otca/runs/first/pictures/rewards.png")
    assert missing.status == 404 and "wait for the next evaluation" in missing.error
    assert missing.headers["Cache-Control"] == "no-cache"


def test_log(site, made):
    text = "iteration 1 ± 0.5\n"
    path = made() / "train.log"
    assert site.get("/otca/runs/first/log").json == {"text": "", "size": 0}
    path.write_bytes(text.encode())
    answer = site.get("/otca/runs/first/log").json
    assert answer == {"text": text, "size": len(text.encode())}
    with open(path, "ab") as file:
        file.write("more ±".encode()[:-1])  # in the middle of a character
    more = site.get(f"/otca/runs/first/log?after={answer['size']}").json
    assert more == {"text": "more ", "size": answer["size"] + 5}
    with open(path, "ab") as file:
        file.write("±".encode()[1:])
    assert site.get(f"/otca/runs/first/log?after={more['size']}").json["text"] == "±"
    # It gives the last part of a long one, and begins anew with a new file.
    path.write_bytes(b"x" * 100_000 + b"end")
    answer = site.get("/otca/runs/first/log?after=5").json
    assert len(answer["text"]) == 65536 and answer["text"].endswith("xend") and answer["size"] == 100_003
    path.write_bytes(b"new")
    assert site.get(f"/otca/runs/first/log?after={answer['size']}").json == {"text": "new", "size": 3}


def test_workflow(site, made, small_graph):
    folder = made()
    assert site.get("/otca/runs/first/workflow").json == {"prompt": small_graph(), "workflow": None}
    (folder / "canvas.json").write_text('{"nodes": []}')
    assert site.get("/otca/runs/first/workflow").json["workflow"] == {"nodes": []}
    (folder / "workflow.json").write_text("{")
    assert site.get("/otca/runs/first/workflow").status == 404


def test_lora(site, made):
    folder = made()
    refused = site.post("/otca/runs/first/lora")
    assert refused.status == 409 and "saved no adapter yet" in refused.error
    for content in (b"adapter", b"a later adapter"):
        (folder / "lora.safetensors").write_bytes(content)
        assert site.post("/otca/runs/first/lora").json == {"lora_names": ["otca/first.safetensors"]}
        assert [path.name for path in (site.loras / "otca").iterdir()] == ["first.safetensors"]
        assert (site.loras / "otca" / "first.safetensors").read_bytes() == content


def adapter(metadata, content):
    header = json.dumps({"__metadata__": metadata, "a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
    return len(header).to_bytes(8, "little") + header + content


def test_a_file_of_save_lora_with_the_same_adapter_is_as_good_as_a_copy(site, made, small_graph):
    (name,) = (
        entry["inputs"]["filename"] for entry in small_graph().values() if entry["class_type"] == "OTCA_SaveLoRA"
    )
    (made() / "lora.safetensors").write_bytes(adapter({"otca_iteration": "3"}, b"1234"))
    (site.loras / f"{name}.safetensors").write_bytes(adapter({"otca_run": "another"}, b"4321"))
    (site.loras / f"{name}-broken.safetensors").write_bytes(b"\xff" * 20)
    (site.loras / "mine.safetensors").write_bytes(adapter({}, b"1234"))
    assert site.post("/otca/runs/first/lora").json == {"lora_names": ["otca/first.safetensors"]}
    (site.loras / f"{name}-first.safetensors").write_bytes(adapter({"otca_run": "first"}, b"1234"))
    before = sorted(site.loras.rglob("*"))
    assert site.post("/otca/runs/first/lora").json == {"lora_names": [f"{name}-first.safetensors"]}
    assert sorted(site.loras.rglob("*")) == before


def test_the_two_adapters_of_two_experts(site, made):
    made(files={"lora_high_noise.safetensors": b"high", "lora_low_noise.safetensors": b"low"})
    assert site.get("/otca/runs/first").json["has_lora"]
    names = ["otca/first_high_noise.safetensors", "otca/first_low_noise.safetensors"]
    assert site.post("/otca/runs/first/lora").json == {"lora_names": names}
    assert [(site.loras / name).read_bytes() for name in names] == [b"high", b"low"]


def test_an_adapter_that_is_in_use_is_refused_and_leaves_nothing(site, made, monkeypatch):
    """As Windows has it of a file that somebody has open."""
    made(files={"lora.safetensors": b"adapter"})
    (site.loras / "otca").mkdir()
    (site.loras / "otca" / "first.safetensors").write_bytes(b"before")

    def open_elsewhere(source, target):
        raise PermissionError(13, "Access is denied", str(target))

    monkeypatch.setattr(files, "BUSY_SECONDS", 0.1)
    monkeypatch.setattr(os, "replace", open_elsewhere)
    answer = site.post("/otca/runs/first/lora")
    assert answer.status == 409 and "Access is denied" in answer.error and "Fix: have ComfyUI unload" in answer.error
    assert [path.read_bytes() for path in (site.loras / "otca").iterdir()] == [b"before"]


def test_the_list_reads_a_long_run_from_its_end_and_its_rows_are_whole_all_the_same(site, made, monkeypatch):
    """Rows longer than what is read first, a half-written line, a rewrite that the list alone notices."""
    monkeypatch.setattr(reading, "TAIL", 50)
    path = made(rows=40) / "metrics.jsonl"
    assert site.get("/otca/runs").json["runs"][0]["iteration"] == 40
    with open(path, "a", encoding="utf-8") as file:
        file.write(made.row(41) + made.row(42)[:30])
    assert site.get("/otca/runs").json["runs"][0]["iteration"] == 41
    assert iterations(site) == list(range(1, 42))
    path.write_text("".join(made.row(i, loss=i) for i in range(1, 6)))
    (summary,) = site.get("/otca/runs").json["runs"]
    assert (summary["iteration"], summary["rewrites"]) == (5, 1)
    assert iterations(site, 3) == [4, 5] and iterations(site) == [1, 2, 3, 4, 5]


def test_rows_that_are_none_are_left_out_however_often_they_are_asked_for(site, made):
    broken = ['{"iteration": 2, "loss": NaN}\n', "[]\n", '{"iteration": 4, "reward/x/mean": "much"}\n']
    text = made.row(1) + "".join(broken) + made.row(5) + made.row(6)
    made(files={"metrics.jsonl": text.encode()})
    for _ in range(2):
        assert iterations(site) == [1, 5, 6] and iterations(site, 5) == [6] and iterations(site, 1) == [5, 6]


def test_a_strangers_page_of_a_proof_is_bounded(site, made):
    """Seen before: 3 GB were read whole, and a page that is not UTF-8 was 500."""
    page = made(files={"proof/proof.html": b"<p>\xff"}) / "proof" / "proof.html"
    assert site.get("/otca/runs/first/proof").content.decode() == "<p>\ufffd"
    os.truncate(page, 3 * 1024**3)
    answer = site.get("/otca/runs/first/proof")
    assert answer.status == 409 and "is larger than 64 MB. Fix: " in answer.error
