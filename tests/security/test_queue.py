"""The page's trainings: so many at a time and the rest queued; one bad run hides no other; no link is followed."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from aiohttp import web

from comfyui_otca import page
from comfyui_otca.host import claim
from comfyui_otca.page import jobs
from comfyui_otca.page.requests import Refused


@pytest.fixture
def trainers(site, monkeypatch, stand_in):
    """trainers(): the processes that stand in for trainings, in the order in which they were begun; each waits to be told."""
    stand_in("exec sleep 300")
    others = {*threading.enumerate()}  # which other tests left at work, such as a gallery's
    monkeypatch.setattr(jobs, "GLANCE", 0.05)
    Popen, begun = subprocess.Popen, []
    monkeypatch.setattr("subprocess.Popen", lambda *a, **options: begun.append(Popen(*a, **options)) or begun[-1])
    yield begun
    with site.jobs.starting:
        site.jobs.queued_jobs.clear()
    for process in begun:
        process.kill()
    for thread in {*threading.enumerate()} - others:
        thread.join(20)


@pytest.fixture
def begin(site, small_graph, trainers, monkeypatch):
    """begin(name, …): these trainings are asked for; the first is at work, and the others are in the queue."""
    monkeypatch.setenv(jobs.TRAININGS, "1")

    def ask(*names):
        answers = [site.post("/otca/train", {"name": name, "iterations": 5, "prompt": small_graph()}) for name in names]
        return [answer.status for answer in answers]

    return ask


def state(site, name):
    return site.get(f"/otca/runs/{name}").json["status"]


def states(site):
    return [run["status"] for run in site.get("/otca/runs").json["runs"]]


def test_a_hundred_requests_start_as_many_as_may_be(site, small_graph, trainers, monkeypatch, until):
    """Seen before: a hundred trainings."""
    monkeypatch.setenv(jobs.TRAININGS, "3")
    tiny = small_graph()
    monkeypatch.setattr(site.jobs, "ready", lambda prompt, iterations, gpus: types.SimpleNamespace(graph=tiny))
    with ThreadPoolExecutor(100) as pool:
        list(pool.map(lambda n: site.jobs.start(f"run{n}", tiny, None, 5, jobs.Gpus()), range(100)))
    assert len(trainers) == 3
    assert sorted(states(site)) == ["queued"] * 97 + ["running"] * 3
    trainers[1].kill()
    until(lambda: len(trainers) == 4)
    assert sorted(states(site)).count("running") == 3


def test_the_queue_is_in_order_and_can_be_left(site, begin, trainers, until):
    assert begin("one", "second", "third") == [200] * 3
    assert [state(site, name) for name in ("one", "second", "third")] == ["running", "queued", "queued"]
    refused = site.post("/otca/runs/second/resume")
    assert refused.status == 409 and "is in the queue. Fix: wait, or stop it" in refused.error
    assert begin("second") == [409]
    assert site.post("/otca/runs/second/stop").status == 200 and state(site, "second") == "stopped"
    assert not (site.folder / "second" / "stop").exists()
    trainers[0].send_signal(signal.SIGKILL)
    until(lambda: len(trainers) == 2)
    assert [state(site, name) for name in ("one", "second", "third")] == ["interrupted", "stopped", "running"]
    assert site.post("/otca/runs/second/resume").status == 200 and state(site, "second") == "queued"
    trainers[1].kill()
    until(lambda: len(trainers) == 3)
    assert "--resume" in psutil.Process(trainers[2].pid).cmdline() or state(site, "second") == "running"


def test_what_was_queued_when_comfyui_ended_was_stopped_and_is_started_by_resume(site, made, trainers):
    ended = subprocess.Popen(["true"])
    ended.wait()
    gone = {"status": "queued", "pid": ended.pid, "process_started": 1.0, "total": 7}
    made("waited", rows=0, status=gone)
    assert state(site, "waited") == "stopped"
    assert site.post("/otca/runs/waited/resume").status == 200 and state(site, "waited") == "running"


def test_a_queued_run_whose_folder_went_or_is_taken_keeps_no_other_waiting(
    site, begin, trainers, until, claimed_elsewhere
):
    begin("one", "gone", "taken", "last")
    shutil.rmtree(site.folder / "gone")
    claimed_elsewhere(site.folder / "taken")
    trainers[0].kill()
    until(lambda: len(trainers) == 2)
    assert state(site, "last") == "running"
    assert "it could not begin" in site.get("/otca/runs/taken").json["error"] and not (site.folder / "gone").exists()


@pytest.fixture
def one_waits(begin, trainers):
    """`first` is at work, and `second` and `third` are in the queue."""
    assert begin("one", "second", "third") == [200] * 3
    return trainers


@pytest.mark.parametrize("status", ["running", "finished"])
def test_a_queued_run_that_goes_on_elsewhere_keeps_its_status(site, one_waits, until, status, this_process):
    """Seen before: failed, also while it trained, so that Stop was refused."""
    # As a trainer in a terminal says it: this process stands for it.
    content = {**this_process, "status": status, "place": "headless", "total": 5}
    (site.folder / "second" / "status.json").write_text(json.dumps(content))
    with claim.take(site.folder / "second"):
        one_waits[0].kill()
        if status == "finished":  # then nobody trains but who is begun next
            until(lambda: len(one_waits) == 2)
            assert state(site, "third") == "running"
        else:
            assert site.post("/otca/runs/second/stop").status == 200
            assert (site.folder / "second" / "stop").is_file(), "its training is asked"
        assert json.loads((site.folder / "second" / "status.json").read_text())["status"] == status


def test_nothing_unexpected_ends_the_queue(site, one_waits, monkeypatch, until):
    """Such as no memory left on the accelerator. Seen before: nothing in the queue was begun any more."""

    def full():
        monkeypatch.setattr(site.jobs, "make_room", lambda: None)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(site.jobs, "make_room", full)
    one_waits[0].kill()
    until(lambda: len(one_waits) == 2)
    assert (state(site, "second"), state(site, "third")) == ("failed", "running")
    assert "it could not begin: RuntimeError: out of memory" in site.get("/otca/runs/second").json["error"]


def test_runs_that_cannot_be_looked_at_for_a_while_do_not_end_the_queue(site, one_waits, monkeypatch, until, caplog):
    """As on a network drive that is away. Seen before: nothing in the queue was begun any more."""
    looked, everything = [], site.runs.all

    def away():
        looked.append(1)
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(site.runs, "all", away)
    one_waits[0].kill()
    until(lambda: len(looked) > 3)
    assert len([line for line in caplog.messages if "the queue of trainings waits" in line]) == 1, "once"
    monkeypatch.setattr(site.runs, "all", everything)
    until(lambda: len(one_waits) == 2)
    assert state(site, "second") == "running"


def test_how_many(monkeypatch):
    """The environment, then the setting, then one an accelerator, and two without any."""

    def kind(count):
        return types.SimpleNamespace(is_available=lambda: count > 0, device_count=lambda: count)

    monkeypatch.delenv(jobs.TRAININGS, raising=False)
    for cuda, xpu, mps, count in ((0, 0, 0, 2), (8, 0, 0, 8), (0, 3, 0, 3), (0, 0, 1, 1)):
        backends = types.SimpleNamespace(mps=types.SimpleNamespace(is_available=lambda mps=mps: bool(mps)))
        torch = types.SimpleNamespace(cuda=kind(cuda), xpu=kind(xpu), backends=backends)
        monkeypatch.setitem(sys.modules, "torch", torch)
        assert (jobs.trainings(), jobs.trainings(5)) == (count, 5)
    monkeypatch.setenv(jobs.TRAININGS, "7")
    assert jobs.trainings(1) == 7
    for wrong in ("0", "-1", "two", "1.5", "99999"):
        monkeypatch.setenv(jobs.TRAININGS, wrong)
        with pytest.raises(Refused, match="OTCA_TRAININGS = .* Fix: set it to a whole number from 1"):
            jobs.trainings()


def test_what_the_user_of_a_page_has_set():
    """In ComfyUI there may be several users, or none that is known, and the file of settings may hold anything."""

    def setting(answer):
        def get_settings(request):
            if isinstance(answer, Exception):
                raise answer
            return answer

        manager = types.SimpleNamespace(settings=types.SimpleNamespace(get_settings=get_settings))
        return page.trainings_setting(types.SimpleNamespace(user_manager=manager), None)

    assert setting({"OTCA.Trainings": 3}) == 3
    for value in (0, -1, True, "2", None, 1.5):
        assert setting({"OTCA.Trainings": value}) is None, value
    for answer in (KeyError("Unknown user: default"), web.HTTPUnauthorized(), [], {}):
        assert setting(answer) is None, answer


# --- one claim --------------------------------------------------------------------------------------------------------


def test_running_is_what_somebody_holds(site, made):
    """Whatever number status.json has: containers count their processes by themselves."""
    folder = made(status={"status": "running", "pid": 99999999 % 2**22, "process_started": 5.0})
    assert state(site, "first") == "interrupted"
    with claim.take(folder):
        assert state(site, "first") == "running"
    assert state(site, "first") == "interrupted"


# --- one bad run hides no other ---------------------------------------------------------------------------------------

DEEP = b"[" * 5000 + b"]" * 5000


DAMAGED = [b"", b"null", b"[]", b"3", DEEP, b"\xff\xfe", b'{"1": 2}', b'{"status": 3}', b'{"a": NaN}']
FILES = ["workflow.json", "status.json", "metrics.jsonl", "evaluation.jsonl", "claim.json", "canvas.json"]


def test_a_damaged_file_hides_no_other_run(site, made):
    made("good")
    bad = {f"bad{n}": case for n, case in enumerate(itertools.product(FILES, DAMAGED))}
    for name, (file, content) in bad.items():
        made(name, files={file: content})
    answer = site.get("/otca/runs")
    assert answer.status == 200 and {run["id"] for run in answer.json["runs"]} == {"good", *bad}
    complaints = []
    for name, case in bad.items():
        statuses = [site.get(f"/otca/runs/{name}{path}").status for path in ("", "/metrics", "/log", "/workflow")]
        if statuses[:3] != [200] * 3 or statuses[3] not in (200, 404):
            complaints.append((case, statuses))
    assert complaints == []


def test_loops_and_pipes_hide_no_other_run(site, made):
    """Seen before: 500 for all."""
    made("good", status={})
    os.symlink("loop", site.folder / "loop")
    for name in ("workflow.json", "status.json", "metrics.jsonl"):
        folder = made(f"pipe {name}")
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
        looped = made(f"looped {name}")
        (looped / name).unlink(missing_ok=True)
        os.symlink(name, looped / name)
    found = {run["id"]: run for run in site.get("/otca/runs").json["runs"]}
    assert found["good"]["status"] == "finished" and len(found) == 8
    assert found["loop"]["status"] == "failed" and "Fix: " in found["loop"]["error"]
    assert "is a pipe, and not a plain file" in found["pipe workflow.json"]["error"]
    assert "is a link, and not a plain file" in found["looped status.json"]["error"]


# --- links ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["stop", "train.log"])
@pytest.mark.parametrize("windows", [False, True])
def test_a_link_at_a_name_that_is_written_is_not_followed(
    site, made, trainers, tmp_path, monkeypatch, this_process, name, windows
):
    if windows:
        monkeypatch.setattr(os, "O_NOFOLLOW", 0)
    folder = made(rows=3, status=this_process if name == "stop" else {"total": 9})
    victim = tmp_path / "victim"
    os.symlink(victim, folder / name)
    answer = site.post(f"/otca/runs/first/{'stop' if name == 'stop' else 'resume'}")
    assert answer.status == 409 and "is a link" in answer.error and "Fix: " in answer.error
    assert not victim.exists() and not trainers
