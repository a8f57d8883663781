"""What changes while the page looks on: memory, the queue, and pictures of a prompt by a process that a stand-in plays."""

from __future__ import annotations

import json
import os
import threading
from types import SimpleNamespace

import pytest

from comfyui_otca.host import processes
from comfyui_otca.page import machine, settings

GB = 1024**3


# --- memory ---------------------------------------------------------------------------------------------------------


class Cuda:
    """torch.cuda of three devices, of which one is in use. To ask another is a mistake."""

    initialized = True

    def __init__(self):
        self.asked = []

    def is_initialized(self):
        return self.initialized

    def device_count(self):
        assert self.initialized, "this would begin it"
        return 3

    def current_device(self):
        assert self.initialized, "this would begin it"
        return 1

    def mem_get_info(self, number):
        assert self.initialized and number == 1, "this would begin it"
        self.asked.append(number)
        return 3 * GB, 24 * GB


@pytest.fixture
def cuda(monkeypatch):
    cuda = Cuda()
    torch = SimpleNamespace(cuda=cuda, _C=SimpleNamespace(_cuda_hasPrimaryContext=lambda number: number == 1))
    monkeypatch.setitem(machine.sys.modules, "torch", torch)
    monkeypatch.setattr(
        machine.devices, "held_on", lambda kind, number: 2 * GB if (kind, number) == ("cuda", 1) else None
    )
    cuda.torch = torch
    return cuda


def test_main_memory_is_there_without_torch(site, monkeypatch):
    monkeypatch.delitem(machine.sys.modules, "torch")
    [main] = site.get("/otca/machine").json["memory"]
    assert main["name"] == "" and 0 < main["used"] < main["total"] and main["ours"] is None
    site.jobs.processes.update({os.getpid(), 2**30})  # the second is gone
    assert 0 < site.get("/otca/machine").json["memory"][-1]["ours"] <= main["total"]


def test_an_accelerator_is_asked_only_where_comfyui_uses_it(site, cuda):
    first, main = site.get("/otca/machine").json["memory"]
    assert first == {"name": "cuda:1", "used": 21 * GB, "total": 24 * GB, "ours": 2 * GB} and main["name"] == ""
    cuda.torch._C = SimpleNamespace()  # of a torch that cannot say where there is a context
    assert site.get("/otca/machine").json["memory"][0]["name"] == "cuda:1"
    assert cuda.asked == [1, 1]
    cuda.initialized = False  # and it is not begun by the question
    assert [each["name"] for each in site.get("/otca/machine").json["memory"]] == [""]


def test_a_driver_that_fails_or_is_late_holds_nobody_up(monkeypatch, cuda):
    seen = machine.Machine()
    before = seen.memory(())
    entered, go_on = threading.Event(), threading.Event()

    def late(number):
        entered.set()
        go_on.wait(60)
        raise RuntimeError("the driver is gone")

    monkeypatch.setattr(cuda, "mem_get_info", late)
    first = threading.Thread(target=seen.memory, args=((),))
    first.start()
    assert entered.wait(60)
    assert seen.memory(()) == before, "what was seen last, at once"
    go_on.set()
    first.join()
    assert [each["name"] for each in seen.memory(())] == [""]


# --- the queue ------------------------------------------------------------------------------------------------------


@pytest.fixture
def one_at_a_time(site, made, monkeypatch, this_process):
    """A run trains, and there is room for no other; returns a function that puts one more into the queue. `started` are those
    that were begun, each with how many pairs of pictures there were by then."""
    monkeypatch.setenv("OTCA_TRAININGS", "1")
    made("at-work", status=this_process)
    started = []
    monkeypatch.setattr(
        site.jobs, "launch", lambda run, *_: started.append((run.id, len(list(site.folder.glob("*/before_after/*")))))
    )

    def train(name):
        graph = json.loads((site.folder / "at-work" / "workflow.json").read_text())
        assert site.post("/otca/train", {"name": name, "iterations": 7, "prompt": graph}).status == 200

    train.started = started
    yield train
    for waiting in list(site.jobs.queued_jobs):
        site.jobs.stop(waiting.run)


def queue(site):
    return site.get("/otca/machine").json["queue"]


def test_the_queue_is_told_in_order_and_changed(site, one_at_a_time):
    assert queue(site) == {"at_work": [], "guest": False, "waiting": []}, "nobody waits, so that no run was looked at"
    for name in ("a", "b", "c"):
        one_at_a_time(name)
    told = queue(site)
    assert told["at_work"] == ["at-work"]
    assert told["waiting"] == [{"id": name, "iterations": 7} for name in ("a", "b", "c")]
    ids = lambda: [each["id"] for each in queue(site)["waiting"]]  # noqa: E731
    assert site.post("/otca/runs/c/move_up").status == 200 and ids() == ["a", "c", "b"]
    assert site.post("/otca/runs/a/move_up").status == 200 and ids() == ["a", "c", "b"], "the first one stays"
    assert site.post("/otca/runs/a/stop").status == 200 and ids() == ["c", "b"]
    assert site.get("/otca/runs/a").json["status"] == "stopped"


def test_what_does_not_wait_cannot_be_moved(site, one_at_a_time):
    answer = site.post("/otca/runs/at-work/move_up")
    assert answer.status == 409 and "not in the queue" in answer.error
    assert site.post("/otca/runs/none/move_up").status == 404
    assert site.post("/otca/runs/at-work/move_up", {"by": 2}).status == 400


# --- before and after -----------------------------------------------------------------------------------------------

DONE = """
mkdir -p "$8"
printf 'before' > "$8/before.png"; printf 'after' > "$8/after.png"
printf '{"prompt": "as typed", "seed": %s, "iteration": 2}' "$6" > "$8/about.json"
echo 4/4
"""


@pytest.fixture
def sampler(site, made, monkeypatch, tmp_path):
    """sampler(shell commands): what stands in for Python, and so for `otca sample`; `$4` to `$8` are what it is given."""
    made("mine", files={"lora.safetensors": b"x"})
    stand_in, called = tmp_path / "python", tmp_path / "called"
    monkeypatch.setattr("sys.executable", str(stand_in))

    def play(commands):
        stand_in.write_text(f'#!/bin/sh\nfor argument; do echo "$argument"; done > {called}\n{commands}')
        stand_in.chmod(0o755)
        return called

    return play


def made_of(site, run="mine"):
    return site.get(f"/otca/runs/{run}/before_after").json


def ask(site, prompt="a red circle", seed=5, run="mine"):
    return site.post(f"/otca/runs/{run}/before_after", {"prompt": prompt, "seed": seed})


def test_a_prompt_is_tried_and_kept(site, sampler, until):
    called = sampler(DONE)
    prompt = "--output /etc; $(touch x) 'a' \"b\""
    assert made_of(site) == {"pairs": [], "work": None, "from_comfyui": False}
    assert ask(site).status == 200
    until(lambda: made_of(site)["pairs"] and not made_of(site)["work"])
    ask(site, prompt, seed=6)
    until(lambda: len(made_of(site)["pairs"]) == 2 and not made_of(site)["work"])
    assert [(pair["name"], pair["seed"], pair["iteration"]) for pair in made_of(site)["pairs"]] == [
        ("0002", 6, 2),
        ("0001", 5, 2),
    ]
    assert site.get("/otca/runs/mine/before_after/0001/before").content == b"before"
    assert site.get("/otca/runs/mine/before_after/0001/after").content == b"after"
    folder = site.folder / "mine"
    given = called.read_text().splitlines()
    assert given == [processes.FOLDER, "sample", str(folder), f"--prompt={prompt}", "--seed", "6", "--pair"] + [
        str(folder / "before_after" / "0002")
    ]
    assert site.rooms == ["made", "made"]


def working(site, until, state):
    """What is told of the pictures in the making once it is that."""
    return until(lambda: (made_of(site)["work"] or {}).get("state") == state and made_of(site)["work"])


def test_progress_and_an_end_that_was_asked_for(site, sampler, until):
    sampler("echo 'loading'; echo 1/4; exec sleep 60")
    ask(site)
    until(lambda: (made_of(site)["work"] or {}).get("calls"))
    work = working(site, until, "makes")
    assert (work["done"], work["calls"], work["prompt"]) == (1, 4, "a red circle")
    second = ask(site)
    assert second.status == 409 and "run mine are being made. Fix: wait" in second.error
    assert site.jobs.processes
    assert site.post("/otca/runs/mine/before_after/cancel").status == 200
    assert made_of(site)["work"] is None
    until(lambda: not site.jobs.processes)
    sampler("echo 0/4; echo 'otca: out of memory. Fix: less'; exit 1")  # a failure is told until it is read
    assert ask(site).status == 200
    assert working(site, until, "failed")["error"] == "otca: out of memory. Fix: less"
    assert made_of(site)["pairs"] == []
    site.post("/otca/runs/mine/before_after/cancel")
    assert made_of(site)["work"] is None


def test_pictures_wait_for_a_training_and_come_before_the_queue(site, sampler, one_at_a_time, until):
    sampler(DONE)
    one_at_a_time("queued")
    assert ask(site).status == 200
    assert made_of(site)["work"]["state"] == "waits"
    until(lambda: site.jobs.guest_of == "waits")
    status = site.folder / "at-work" / "status.json"
    status.write_text(json.dumps({**json.loads(status.read_text()), "status": "finished"}))
    until(lambda: one_at_a_time.started)
    assert one_at_a_time.started == [("queued", 1)], "the pictures were there first"


def test_pictures_that_cannot_be_made(site, sampler, made):
    for prompt, seed in ((" ", 1), ("a", -1), ("a", 2**53)):
        answer = ask(site, prompt, seed)
        assert answer.status == 400 and "Fix: " in answer.error
    made("bare")
    answer = ask(site, run="bare")
    assert answer.status == 409 and "has saved nothing yet" in answer.error


def test_no_other_file_is_served(site, sampler):
    for path in ("0001/middle", "../before", "..%2F..%2Fmine/before", "1e3/before", "0001/before"):
        assert site.get(f"/otca/runs/mine/before_after/{path}").status == 404, path


def test_a_run_that_is_deleted_takes_its_pictures_along(site, sampler, made, until):
    """Seen before: those of all other runs were refused until they were done, which nobody could cancel."""
    sampler("exec sleep 60")
    made("other", files={"lora.safetensors": b"x"})
    ask(site)
    working(site, until, "loads")
    assert site.post("/otca/runs/mine/delete").status == ask(site, run="other").status == 200
    site.post("/otca/runs/other/before_after/cancel")
    until(lambda: not site.jobs.processes)


def test_a_link_out_of_the_run_is_not_written_through(site, sampler, until, tmp_path):
    sampler(DONE)
    (tmp_path / "elsewhere").mkdir()
    (site.folder / "mine" / "before_after").symlink_to(tmp_path / "elsewhere")
    ask(site)
    assert "is a link out of the run's folder" in working(site, until, "failed")["error"]
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_damaged_pair_is_left_out(site, sampler):
    folder = site.folder / "mine" / "before_after" / "0003"
    folder.mkdir(parents=True)
    (folder / "about.json").write_text('{"prompt": 7}')
    assert made_of(site)["pairs"] == []


# --- what failed, and where things are --------------------------------------------------------------------------------


def test_a_failed_run_names_the_node(site, made):
    sampler = {"node": "3", "title": "SDE Sampler"}
    for status, node, told in (("failed", "3", sampler), ("failed", "99", None), ("finished", "3", None)):
        made(f"{status}-{node}", status={"status": status, "error": "no luck", "node": node})
        assert site.get(f"/otca/runs/{status}-{node}").json["failed_at"] == told


def test_a_training_that_was_refused_names_the_node(site, made, until, monkeypatch, small_graph, this_process):
    """As when a file is gone by the time the queue comes to it: the trainer prints what is wrong, and never begins."""
    graph = small_graph()
    graph["2"]["inputs"]["file"] = "gone.txt"
    made(status={**this_process, "pid": 7}, files={"workflow.json": json.dumps(graph).encode()})
    site.jobs.wait_for(SimpleNamespace(pid=7, wait=lambda: 2), site.runs.run("first"))
    failed = site.get("/otca/runs/first").json
    assert (failed["status"], failed["failed_at"]["node"]) == ("failed", "2")


def test_folders_and_what_decides_them(monkeypatch, tmp_path):
    options = SimpleNamespace(output_directory=None, base_directory="/data")
    monkeypatch.setitem(machine.sys.modules, "comfy.cli_args", SimpleNamespace(args=options))
    monkeypatch.setenv("OTCA_PERMISSIONS", str(tmp_path / "mine.json"))
    comfyui = SimpleNamespace(get_folder_paths=lambda kind: [f"/data/models/{kind}"], models_dir="/data/models")
    told = {folder.what: (folder.path, folder.by) for folder in settings.of_comfyui(comfyui)}
    assert told["adapters"] == ("/data/models/loras", "--base-directory")
    assert told["permissions"] == (str(tmp_path / "mine.json"), "OTCA_PERMISSIONS")
    assert told["runs"][1] == "--base-directory"
    options.output_directory = "/out"
    comfyui.get_folder_paths = lambda kind: ["/shared/loras"]
    told = {folder.what: folder.by for folder in settings.of_comfyui(comfyui)}
    assert (told["adapters"], told["runs"]) == ("extra_model_paths.yaml", "--output-directory")
