"""`otca train --gpus 2` and `accelerate launch` as a shell runs them: kills, restarts, stops, and what is said of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous.utils import _PeriodicTimer

from comfyui_otca.__main__ import main
from comfyui_otca.host import processes
from comfyui_otca.tests.training import assert_same_tensors, untimed

ROOT = Path(__file__).resolve().parents[2]
TRAIN = ["train", "small.json", "--device", "cpu"]
MODULE = [sys.executable, "-m", "comfyui_otca"]
PATIENCE = 120


@pytest.fixture(scope="module")
def folder(small_graph, tmp_path_factory):
    """Where the commands are typed."""
    folder = tmp_path_factory.mktemp("launched")
    run = {"iterations": 6, "checkpoint_every": 1, "evaluate_every": 6, "evaluation_seeds": 1}
    (folder / "small.json").write_text(json.dumps(small_graph({"OTCA_TrainingRun": run})))
    return folder


@pytest.fixture
def start(folder):
    """start(run, options …): the command begun with two processes; none of it outlives the test."""
    begun = []

    def begin(run, *options, command=(*MODULE, *TRAIN, "--gpus", "2")):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.pop("RANK", None)
        output = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        begun.append(subprocess.Popen([*command, "--output", run, *options], cwd=folder, env=environment, **output))
        return begun[-1]

    yield begin
    for process in begun:
        if process.poll() is None:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()


WRONG = ("two", "0", "2"), ("2", "2", "2"), ("2", "", "2"), ("2", "0", "x"), ("2", "0", None), ("0", "0", "2")


@pytest.mark.parametrize(("count", "number", "port"), WRONG)
def test_what_does_not_describe_machines_is_refused_in_one_sentence(count, number, port, monkeypatch, capsys):
    """Without a port here: without an address, where each machine once trained by itself."""
    for name in ("RANK", "MAIN_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    values = {"NNODES": count, "NODE_RANK": number} | ({"MAIN_PORT": port, "MAIN_ADDRESS": "127.0.0.1"} if port else {})
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "none.json", "--device", "cpu"]) == 2
    said = capsys.readouterr().err
    assert (
        said.startswith(f"otca: NNODES={count}, NODE_RANK={number}, MAIN_ADDRESS=") and "Fix: on each machine" in said
    )
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("NNODES", "1")
    assert processes.machines() == 1  # whatever else is set


def end(process):
    """Exit code, output and errors."""
    output, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, output, errors


def amid(folder, iterations=1):
    """Waits for so many iterations of a run."""
    metrics, deadline = folder / "metrics.jsonl", time.monotonic() + PATIENCE
    while not metrics.is_file() or len(metrics.read_bytes().splitlines()) < iterations:
        assert time.monotonic() < deadline, "the training did not begin"
        time.sleep(0.02)


def kill(launcher, rank):
    (victim,) = [
        child for child in psutil.Process(launcher.pid).children(recursive=True) if child.environ().get("RANK") == rank
    ]
    victim.kill()


def status(folder):
    return json.loads((folder / "status.json").read_text())["status"]


@pytest.fixture(scope="module")
def undisturbed(folder):
    command = [sys.executable, str(ROOT), *TRAIN, "--gpus", "2", "--output", "undisturbed"]  # as a plain clone runs it
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done after 6 iterations") == 1, "one process speaks"
    return folder / "undisturbed"


def test_a_killed_one_is_replaced_sigterm_stops_all_and_nothing_is_lost(start, folder, undisturbed):
    run = folder / "disturbed"
    launcher = start("disturbed", "--max-restarts", "1")
    amid(run)
    kill(launcher, "1")
    amid(run, 3)  # at most the second was on record when it died
    launcher.send_signal(signal.SIGTERM)
    code, output, errors = end(launcher)
    assert "resuming disturbed after iteration" in output, errors
    assert code == 143 and "stopped by signal 15" in output and "Traceback" not in errors
    assert status(run) == "stopped"

    command = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    code, _, errors = end(start("disturbed", "--resume", command=[*command, str(ROOT / "__main__.py"), *TRAIN]))
    assert code == 0, errors
    assert untimed(run) == untimed(undisturbed)
    assert_same_tensors(run / "lora.safetensors", undisturbed / "lora.safetensors")
    assert status(run) == "finished"


def test_a_killed_one_ends_all_and_is_named(start, folder):
    launcher = start("killed")
    amid(folder / "killed")
    kill(launcher, "1")
    code, _, errors = end(launcher)
    assert code == 1
    assert "process 1 was killed by SIGKILL. --resume continues from the last checkpoint" in errors
    assert "otca process 0: " in errors and "Traceback" not in errors
    assert status(folder / "killed") == "failed"


def test_a_stop_in_the_midst_of_a_heartbeat_leaves_no_error(monkeypatch):
    """Torchrun's rendezvous outlives the launch: its timer's thread would else wait for itself."""
    inside, outside, errors = threading.Event(), threading.Event(), []

    class Rendezvous:
        def __init__(self):
            self.timer = _PeriodicTimer(timedelta(milliseconds=1), self.beat, weakref.ref(self))
            self.timer.start()

        @staticmethod
        def beat(reference):
            rendezvous = reference()
            inside.set()
            outside.wait()
            del rendezvous

    def torchrun(options):
        rendezvous = Rendezvous()
        inside.wait()
        raise SignalException(f"{rendezvous} {options}", signal.SIGTERM)

    monkeypatch.setattr("torch.distributed.run.main", torchrun)
    monkeypatch.setattr(sys, "unraisablehook", errors.append)
    monkeypatch.setattr(processes, "ENDED", [])
    assert processes.launch(2, 0, ["train"]) == 143
    thread = next(thread for thread in threading.enumerate() if thread.name == "PeriodicTimer")
    inside.clear()
    outside.set()
    beaten = inside.wait(9)  # it lives, and beats again
    processes.ENDED.clear()
    thread.join(PATIENCE)
    assert beaten and errors == []


def test_bad_input_is_told_once_and_not_tried_again(start, folder, undisturbed):
    """A restart goes on from a checkpoint, which must not be another run's."""
    before = (undisturbed / "metrics.jsonl").read_bytes()
    code, _, errors = end(start("undisturbed", "--max-restarts", "3", "--iterations", "9"))
    assert code == 2 and errors.count("already holds a run") == 1 == errors.count("Fix: ")
    code, _, errors = end(start("new", "--set", "3.steps=0"))
    assert code == 2 and errors.count("steps") == errors.count("error: ") == 1
    assert (undisturbed / "metrics.jsonl").read_bytes() == before and not (folder / "new").exists()
