"""status.json: one schema, and what it means at this moment."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace

import psutil
import pytest

from comfyui_otca.host import claim
from comfyui_otca.trainer.run import status
from comfyui_otca.trainer.run.folder import FILES, STATES
from comfyui_otca.trainer.run.status import Status

GONE = {"pid": 2**22 + 1, "process_started": 1.0}


def here():
    return {"pid": os.getpid(), "process_started": psutil.Process().create_time()}


def test_one_schema():
    assert set(Status.__dataclass_fields__) == set(FILES["status.json"].fields)
    assert {"running", "idle", "queued", "interrupted"} < set(STATES) and status.UNKNOWN not in STATES


def test_written_and_read(tmp_path):
    assert status.read(tmp_path) == Status(status.UNKNOWN)
    begun = status.following(Status(), "running", os.getpid(), total=5, id="abc")
    status.write(tmp_path, begun)
    assert status.read(tmp_path) == begun and begun.process_lives and abs(begun.started - time.time()) < 60
    later = status.following(begun, "failed", None, total=5, error="why")
    assert (later.started, later.pid, later.error, later.place) == (begun.started, None, "why", "headless")
    status.write(tmp_path, later)
    content = json.loads((tmp_path / "status.json").read_text())
    names = ["status", "place", "total", "pid", "process_started", "error", "node", "reason", "at", "who", "started"]
    assert list(content) == names, "only the trainer says whose run it is"


@pytest.mark.parametrize(
    ("written", "executing", "now"),
    [
        (Status("queued", **here()), None, "queued"),
        (Status("queued", **GONE), None, "stopped"),
        (Status("running", **here()), None, "running"),
        (Status("running", **here()), False, "running"),
        (Status("running", **GONE), None, "interrupted"),
        (Status("running"), None, "interrupted"),
        (Status("running", "canvas", **here()), True, "running"),
        (Status("running", "canvas", **here()), False, "idle"),
        (Status("running", "canvas", **GONE), False, "interrupted"),
        (Status("idle", "canvas", **here()), True, "running"),
        (Status("idle", "canvas", **here()), None, "idle"),
        (Status("idle", "canvas", **GONE), True, "stopped"),
        (Status("finished", **here()), True, "finished"),
        (Status(), None, "interrupted"),
    ],
)
def test_what_it_means_now(tmp_path, written, executing, now):
    assert status.now(tmp_path, written, executing=executing) == now


@pytest.mark.parametrize(
    ("done", "planned", "now"), [(6, 6, "finished"), (5, 6, "interrupted"), (6, None, "interrupted")]
)
def test_where_the_status_is_lost_the_iterations_decide(tmp_path, done, planned, now):
    assert status.now(tmp_path, Status(), done=done, planned=planned) == now


def test_who_holds_the_claim_is_at_work(tmp_path):
    with claim.take(tmp_path / "run"):
        assert status.now(tmp_path / "run", Status("running", **GONE)) == "running"
        assert status.busy(tmp_path / "run", Status("finished", **GONE))
    assert not status.busy(tmp_path / "run", Status("finished", **GONE))
    assert status.busy(tmp_path / "run", Status("finished", **here())), "its process is about to end"
    assert not status.busy(tmp_path / "run", Status("finished", "canvas", **here())), "ComfyUI itself lives on"


def test_a_process_that_ended_without_a_word_was_killed_at_what_it_had_begun():
    gone = Status("running", at='node 5 "Load CLIP", which needs 9.8 GB of main memory and had 5.0', **GONE)
    assert "killed while it was at node 5" in status.killed(gone) and "5.0. The system" in status.killed(gone)
    ended = (replace(gone, status="failed"), replace(gone, at=None), replace(gone, **here()))
    assert [status.killed(other) for other in ended] == [None, None, None]
