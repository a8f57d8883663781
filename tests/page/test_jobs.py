"""Training started from the page: a real process that finishes, stops, goes on, or fails, and never a second one beside it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import psutil
import pytest

from comfyui_otca.host import claim, headless_comfyui, processes
from comfyui_otca.host.foreign_nodes import NodeClasses
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.trainer.policy import files as adapters

TINY = {
    "OTCA_PromptDataset": {"prompts_per_iteration": 1},
    "OTCA_SDESampler": {"group_size": 2, "steps": 2},
    "OTCA_TrainingRun": {
        "evaluate_every": 100,
        "checkpoint_every": 1,
        "evaluation_prompts": "a red circle",
        "evaluation_seeds": 1,
    },
}


@pytest.fixture
def tiny(small_graph):
    """tiny({class: {input: value}}): the smallest graph that trains."""
    return lambda changes=None: small_graph(
        {kind: {**TINY.get(kind, {}), **(changes or {}).get(kind, {})} for kind in {**TINY, **(changes or {})}}
    )


@pytest.fixture(autouse=True)
def _leave_no_process(site, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield
    for path in site.folder.glob("*/status.json"):
        status = json.loads(path.read_text())
        if status["pid"] in {child.pid for child in psutil.Process().children()}:
            psutil.Process(status["pid"]).kill()


def summary(site, name="mine"):
    return site.get(f"/otca/runs/{name}").json


def ended(site, until, name="mine"):
    """The summary of the run once its process is gone and was collected."""
    pid = json.loads((site.folder / name / "status.json").read_text())["pid"]
    until(lambda: not psutil.pid_exists(pid))  # a zombie would exist for ever
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == f"otca {name}"])
    return summary(site, name)


def log(site, name="mine"):
    return site.get(f"/otca/runs/{name}/log").json["text"]


def test_a_training_finishes_and_goes_on(site, tiny, until, monkeypatch):
    """With prompts from ComfyUI's input folder, which the new process is told of."""
    # For the check in this process, which ComfyUI's folders would pass.
    monkeypatch.setenv("OTCA_INPUT", str(site.input))
    (site.input / "ours.txt").write_text("a red circle\n")
    graph, canvas = tiny({"OTCA_PromptDataset": {"file": "ours.txt"}}), {"nodes": [], "links": []}
    body = {"name": "mine", "iterations": 2, "gpus": 1, "prompt": graph, "workflow": canvas}
    answer = site.post("/otca/train", body)
    assert (answer.status, answer.json) == (200, {"id": "mine"})
    first = summary(site)
    assert (first["status"], first["place"], first["iteration"], first["total"]) == ("running", "headless", 0, 2)
    assert site.post("/otca/runs/mine/resume").status == 409
    finished = ended(site, until)
    assert (finished["status"], finished["iteration"], finished["error"]) == ("finished", 2, None), log(site)
    assert finished["has_lora"] and finished["has_checkpoint"] and finished["started"] == first["started"]
    assert "done after 2 iterations" in log(site)
    assert site.get("/otca/runs/mine/workflow").json["workflow"] == canvas
    assert [row["iteration"] for row in site.get("/otca/runs/mine/metrics").json["rows"]] == [1, 2]
    assert site.post("/otca/runs/mine/lora").json == {"lora_names": ["otca/mine.safetensors"]}

    taken = site.post("/otca/train", body)
    assert taken.status == 409 and "there is a run 'mine' already" in taken.error
    nothing_left = site.post("/otca/runs/mine/resume")
    assert nothing_left.status == 409 and "larger number of iterations" in nothing_left.error
    assert site.post("/otca/runs/mine/stop").status == 409

    assert site.post("/otca/runs/mine/resume", {"iterations": 3}).json == {"id": "mine", "told": None}
    longer = ended(site, until)
    assert (longer["status"], longer["iteration"], longer["total"]) == ("finished", 3, 3), log(site)
    assert "after iteration 2" in log(site)  # resumed, and not begun anew
    assert longer["started"] == pytest.approx(first["started"])


def test_stopped_resumed_killed_and_resumed(site, tiny, until):
    site.post("/otca/train", {"name": "mine", "iterations": 100_000, "prompt": tiny()})
    until(lambda: summary(site)["iteration"] >= 1 or summary(site)["status"] != "running")
    assert site.post("/otca/runs/mine/stop").json == {}
    stopped = ended(site, until)
    assert stopped["status"] == "stopped" and 1 <= stopped["iteration"] < 100_000, log(site)
    assert stopped["has_checkpoint"] and not (site.folder / "mine" / "stop").exists()

    assert site.post("/otca/runs/mine/resume").json["id"] == "mine"
    until(lambda: summary(site)["iteration"] > stopped["iteration"] or summary(site)["status"] != "running")
    os.kill(json.loads((site.folder / "mine" / "status.json").read_text())["pid"], signal.SIGKILL)
    killed = ended(site, until)
    assert killed["status"] == "interrupted" and "Fix: resume" in killed["error"], log(site)
    total = killed["iteration"] + 1
    assert site.post("/otca/runs/mine/resume", {"iterations": total}).status == 200
    resumed = ended(site, until)
    assert (resumed["status"], resumed["iteration"]) == ("finished", total), log(site)


def test_the_process_is_plain_and_alone(site, tiny, monkeypatch, until, stand_in, tmp_path):
    """What is started, looked at through a stand-in for the interpreter that writes down how it was called."""
    written = tmp_path / "called"
    stand_in(
        f'for argument; do echo "$argument"; done > {written}\n'
        f'echo "$OTCA_MODELS|$OTCA_INPUT|$PYTHONUNBUFFERED|$(ps -o sid= -p $$ | tr -d " ")|$$" >> {written}\n'
        f"[ -t 0 ] || [ -t 1 ] || [ -t 2 ] || echo no terminal >> {written}\n"
        "echo told; exit 0"
    )
    monkeypatch.setenv("OTCA_MODELS", f"/models/a{os.pathsep}/models/b")
    name = "$(touch x); `id` 'mine'"
    assert site.post("/otca/train", {"name": name, "iterations": 7, "prompt": tiny()}).status == 200
    ended(site, until, name)
    *arguments, environment, terminal = written.read_text().splitlines()
    run = str(site.folder / name)
    workflow = f"{run}/workflow.json"
    assert arguments == [processes.FOLDER, "train", workflow, "--output", run, "--iterations", "7"]
    models, inputs, unbuffered, session, pid = environment.split("|")
    assert models == f"/models/a{os.pathsep}/models/b" and inputs == str(site.input)
    assert unbuffered == "1" and session == pid and terminal == "no terminal"
    assert log(site, name) == "told\n"


def test_an_interpreter_that_starts_another_one(site, tiny, until, stand_in):
    """As python.exe of a venv on Windows does: the training has another number than the process that was started."""
    stand_in(f'"{sys.executable}" "$@"\nexit $?')
    site.post("/otca/train", {"name": "mine", "iterations": 1, "prompt": tiny()})
    started = json.loads((site.folder / "mine" / "status.json").read_text())["pid"]
    finished = ended(site, until)
    assert (finished["status"], finished["iteration"], finished["error"]) == ("finished", 1, None), log(site)
    assert json.loads((site.folder / "mine" / "status.json").read_text())["pid"] != started


def test_a_start_that_fails_says_why(site, tiny, until, monkeypatch):
    graph = tiny()
    monkeypatch.setattr(site.jobs, "check", lambda prompt, processes: (unchecked(site, prompt), []))
    sampler = next(entry for entry in graph.values() if entry["class_type"] == "OTCA_SDESampler")
    sampler["inputs"]["group_size"] = -1
    assert site.post("/otca/train", {"name": "mine", "iterations": 2, "prompt": graph}).status == 200
    failed = ended(site, until)
    assert failed["status"] == "failed" and "group_size" in failed["error"] and failed["iteration"] == 0
    assert not failed["has_checkpoint"]


def unchecked(site, prompt):
    from comfyui_otca.trainer.workflow.running import Workflow

    return Workflow(prompt, site.jobs.node_classes)


# --- refused before anything starts ---------------------------------------------------------------------------------


def test_a_graph_with_problems_starts_nothing(site, tiny):
    graph = tiny({"OTCA_SDESampler": {"group_size": -1}})
    answer = site.post("/otca/train", {"name": "mine", "iterations": 2, "prompt": graph})
    assert answer.status == 400 and "group_size" in answer.error and not (site.folder / "mine").exists()
    (problem,) = answer.json["problems"]
    assert problem == {
        "node_id": "3",
        "title": "SDE Sampler",
        "input": "group_size",
        "message": problem["message"],
        "fix": problem["fix"],
        "severity": "error",
    }
    assert problem["message"] and problem["fix"]


def test_what_is_no_graph(site):
    for prompt in ({}, {"nodes": [], "links": []}, {"1": {"class_type": 3}}, {"1": 2}):
        for path, more in (("/otca/train", {"name": "mine", "iterations": 2}), ("/otca/export", {})):
            answer = site.post(path, {"prompt": prompt, **more})
            assert answer.status == 400 and answer.json["problems"] and "Fix: " in answer.error, prompt


@pytest.fixture
def started(monkeypatch):
    """Processes that were to be started: (command, options). None is."""
    asked = []

    def refuse(command, **options):
        asked.append((command, options))
        raise OSError("no more processes")

    monkeypatch.setattr("subprocess.Popen", refuse)
    return asked


def test_a_proof_trains_and_writes_its_page(site, tiny, until):
    answer = site.post("/otca/prove", {"name": "mine", "hours": 1e-4, "prompt": tiny()})
    assert answer.json == {"id": "mine"}
    assert site.get("/otca/runs/mine/proof").status == 404, "it is not written yet"
    told = ended(site, until)
    assert (told["status"], told["proof"], told["total"]) == ("finished", {"hours": 1e-4, "page": True}, None), log(
        site
    )
    assert "is used up" in told["spent"] and told["spent"] not in (told["warning"] or ""), "it ended as it should"
    page = site.get("/otca/runs/mine/proof")
    assert page.headers["Content-Security-Policy"].startswith("sandbox; default-src 'none'")
    assert b"Proof of" in page.content and str(site.folder).encode() not in page.content
    assert site.post("/otca/runs/mine/resume", {}).status == 200, "which finds that it is done"
    assert ended(site, until)["iteration"] == told["iteration"]


@pytest.mark.parametrize("hours", [0, -1, True, "1", 1e9])
def test_hours_that_are_none(site, tiny, hours):
    answer = site.post("/otca/prove", {"name": "mine", "hours": hours, "prompt": tiny()})
    assert answer.status == 400 and "number of hours" in answer.error and not site.folder.exists()


def test_many_gpus_are_the_command_lines(site, tiny, monkeypatch, started):
    # The flags by the numbers of Windows' documentation: the end of a window there does not reach the training.
    monkeypatch.setattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0x200, raising=False)
    monkeypatch.setattr(subprocess, "CREATE_NO_WINDOW", 0x08000000, raising=False)
    graph = tiny({"OTCA_SDESampler": {"group_size": 6}})
    asked = {"name": "mine", "iterations": 2, "gpus": 6, "reward_gpus": 2, "prompt": graph}
    answer = site.post("/otca/train", asked)
    [(command, options)] = started
    assert command[-4:] == ["--gpus", "6", "--reward-gpus", "2"] and site.rooms == ["made"]
    assert options["creationflags"] == 0x08000200
    assert answer.status == 500 and "no more processes" in answer.error
    assert not (site.folder / "mine").exists(), "the name is free again"


def test_a_graph_with_comfyuis_nodes_takes_this_comfyui_along(site, tiny, monkeypatch, started, fake_comfyui):
    """With the options that its server was started with, and the packs that the graph has nodes of."""
    folder = fake_comfyui()
    loaded = headless_comfyui.load(folder, "cpu", ["good"])
    monkeypatch.setattr("sys.argv", ["main.py", "--lowvram", "--output-directory", "my output"])
    site.jobs.node_classes = NodeClasses(NODE_CLASS_MAPPINGS, loaded.classes)
    site.post("/otca/train", {"name": "plain", "iterations": 2, "prompt": tiny()})
    graph = tiny()
    graph["90"], graph["91"] = ({"class_type": name, "inputs": {}} for name in ("Three", "UNETLoader"))
    next(entry for entry in graph.values() if entry["class_type"] == "OTCA_SDESampler")["inputs"]["steps"] = ["90", 0]
    site.post("/otca/train", {"name": "mine", "iterations": 2, "prompt": graph})
    plain, mine = (options["env"] for _, options in started)
    assert plain["COMFYUI_PATH"] == "", "as it was"
    assert mine["COMFYUI_PATH"] == str(folder) and mine["OTCA_CUSTOM_NODES"] == "good"
    assert shlex.split(mine["COMFYUI_ARGUMENTS"]) == ["--lowvram", "--output-directory", "my output"]


def test_a_run_of_the_canvas_is_found_headlessly(site, made, started, monkeypatch):
    """As start_from and as a guide. Seen before: the page's check found it, and the trainer did not."""
    folder = made("taught", files={"lora.safetensors": b"an adapter"})
    made(rows=3, status={"status": "stopped", "total": 6})
    site.post("/otca/runs/first/resume")
    [(_, options)] = started
    with pytest.raises(FileNotFoundError):
        adapters.find("taught")
    for name in options["env"].keys() - os.environ.keys():
        monkeypatch.setenv(name, options["env"][name])
    assert adapters.find("taught") == folder / "lora.safetensors"


def test_a_run_that_ended_early_goes_on_without_that_rule(site, made, monkeypatch):
    begun = []
    monkeypatch.setattr(site.jobs, "launch", lambda run, iterations, arguments: begun.append(arguments))
    made(rows=3, status={"total": 6, "reason": "accuracy has declined"})
    told = site.post("/otca/runs/first/resume").json["told"]
    assert told == "continues without stop_after_decline, which would end it at once: accuracy has declined"
    made("on time", rows=3, status={"total": 3, "reason": None})
    site.post("/otca/runs/on time/resume", {"iterations": 6})
    changed = [arguments[arguments.index("--set") + 1] if "--set" in arguments else None for arguments in begun]
    assert changed == ["OTCA_TrainingRun.stop_after_decline=0", None]


def test_what_comes_after_the_last_iteration_is_made_up_for(site, made, started):
    for count, status in enumerate(("failed", "stopped"), 1):
        made(status, rows=3, status={"status": status, "total": 3})
        site.post(f"/otca/runs/{status}/resume")
        assert len(started) == count and started[-1][0][-1] == "--resume"
        assert site.post(f"/otca/runs/{status}/resume", {"iterations": 2}).status == 409 and len(started) == count


def test_a_canvas_run_that_went_on_with_itself_is_resumed(site, made, started, small_graph):
    """Its graph names the run to go on with, which headlessly the command line does."""
    graph = small_graph({"OTCA_LoadFlowModel": {"resume_run": "first"}})
    folder = made(rows=3, status={"place": "canvas", "total": 6}, files={"workflow.json": json.dumps(graph).encode()})
    answer = site.post("/otca/runs/first/resume")
    assert len(started) == 1, answer.error
    assert json.loads((folder / "workflow.json").read_text()) == small_graph({"OTCA_LoadFlowModel": {"resume_run": ""}})


def test_a_training_that_cannot_be_put_on_record_is_ended(site, tiny, monkeypatch, stand_in):
    stand_in("exec sleep 60")
    Popen, begun = subprocess.Popen, []

    def full(folder, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("comfyui_otca.trainer.run.status.write", full)
    monkeypatch.setattr("subprocess.Popen", lambda *a, **options: begun.append(Popen(*a, **options)) or begun[-1])
    answer = site.post("/otca/train", {"name": "mine", "iterations": 2, "prompt": tiny()})
    assert answer.status == 500 and "No space left" in answer.error and not (site.folder / "mine").exists()
    assert begun[0].poll() == -signal.SIGTERM


def test_how_an_old_process_ended_is_not_said_of_a_new_one(site, made, monkeypatch, this_process):
    """It ends at the moment at which the run is resumed: its word waits for that, and then is nobody's."""
    folder = made(status={**this_process, "pid": 7})
    run, failed = site.runs.run("first"), threading.Event()

    old = SimpleNamespace(pid=7, wait=lambda: failed.set() or 1)
    with site.jobs.starting:
        thread = threading.Thread(target=site.jobs.wait_for, args=(old, run))
        thread.start()
        failed.wait()
        thread.join(0.3)
        run.write("status.json", {**this_process, "pid": 8})
    thread.join()
    status = json.loads((folder / "status.json").read_text())
    assert (status["status"], status["pid"]) == ("running", 8)


def test_where_a_run_is_stopped(site, made, this_process):
    """On the canvas by the canvas alone; a training is asked by a file."""
    folder = made(status={**this_process, "place": "canvas"})
    answer = site.post("/otca/runs/first/stop")
    assert answer.status == 409 and "canvas" in answer.error and not (folder / "stop").exists()
    assert site.post("/otca/runs/first/resume", {"iterations": 9}).status == 409
    training = made("second", status=this_process)
    assert site.post("/otca/runs/second/stop").json == {} and (training / "stop").is_file()


@pytest.mark.parametrize("status", ["running", "idle", "finished", "failed"])
def test_a_run_that_the_canvas_still_has_says_how_it_goes_on(site, made, this_process, monkeypatch, started, status):
    """Seen before: but for running, the answer was 200, and a trainer began that was refused without a word."""
    monkeypatch.setattr("comfyui_otca.page.jobs.ENDING_SECONDS", 1e9)  # nothing is waited for
    folder = made(status={**this_process, "place": "canvas", "status": status, "total": 9})
    site.canvas.at_work = False
    with claim.take(folder, place="canvas"):
        answer = site.post("/otca/runs/first/resume")
    assert answer.status == 409 and not started
    assert "Fix: Resume on canvas continues there; or begin another run on the canvas, which lets" in answer.error
    if status == "finished":  # and the canvas has let it go
        site.post("/otca/runs/first/resume")
        assert len(started) == 1


def test_a_run_whose_process_is_about_to_end_is_not_resumed(site, made, this_process, monkeypatch, started):
    """Also where its status cannot be read, seen before: 500."""
    monkeypatch.setattr("comfyui_otca.page.jobs.ENDING_SECONDS", 0.3)
    made("ends", status={**this_process, "status": "stopped", "total": 9})
    answer = site.post("/otca/runs/ends/resume")
    assert answer.status == 409 and "wait a moment" in answer.error
    folder = made(files={"status.json": b'{"status": "odd", "pid": 1}'})
    with claim.take(folder):
        answer = site.post("/otca/runs/first/resume", {"iterations": 9})
    assert answer.status == 409 and "is running, or about to end" in answer.error and not started


@pytest.mark.parametrize("status", ["running", "stopped"])
def test_a_claim_from_elsewhere_is_told_with_what_helps(site, made, monkeypatch, started, status, claimed_elsewhere):
    """Seen before: 20 s of waiting, and `is running, or about to end. Fix: stop it, or wait a moment`."""
    monkeypatch.setattr("comfyui_otca.page.jobs.ENDING_SECONDS", 1e9)
    file = claimed_elsewhere(made(status={"status": status, "total": 9}))
    answer = site.post("/otca/runs/first/resume")
    assert answer.status == 409 and "is claimed by process 5 on elsewhere" in answer.error
    fix = f"Fix: stop it, or if nothing trains there, remove {file} (headlessly: --take-over)"
    assert fix in answer.error and not started
    assert (summary(site, "first")["error"] is not None) == (status == "running"), "why it is running for ever"
    file.unlink()
    site.post("/otca/runs/first/resume")
    assert len(started) == 1


def test_two_requests_at_once_start_one_training(site, made, stand_in):
    stand_in("exec sleep 60")
    made(status={"status": "stopped", "total": 9})
    with ThreadPoolExecutor(4) as pool:
        statuses = pool.map(lambda _: site.post("/otca/runs/first/resume").status, range(4))
    assert sorted(statuses) == [200, 409, 409, 409]


def test_the_graph_s_own_run_goes_on_headlessly(site, made, started, small_graph, monkeypatch):
    """Under its name it was refused, and a graph that `Resume on canvas` had opened failed at its `resume_run` in any case."""
    graph = small_graph({"OTCA_LoadFlowModel": {"resume_run": "first"}})
    monkeypatch.setenv("OTCA_RUNS", str(site.folder))
    made(rows=22, status={"place": "canvas", "status": "idle", "total": 30}, files={"lora.safetensors": b""})
    site.post("/otca/train", {"name": "first", "iterations": 30, "prompt": graph})
    assert site.live.gone == ["first"] and "--resume" in started[0][0], started
    begun = site.post("/otca/train", {"name": "second", "iterations": 30, "prompt": graph})
    assert begun.status == 400 and "lora.safetensors" in begun.error, (
        "it begins with the adapter that the graph resumes"
    )
