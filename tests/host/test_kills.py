"""Two machines train together, and a worker, its launcher or the whole machine is killed: all end or resume, and nothing is lost.

A machine is a working folder, a host's name and a launcher of its own; the two share the run's folder, as on a network drive.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from comfyui_otca.__main__ import main
from comfyui_otca.tests.training import assert_same_tensors, untimed
from comfyui_otca.trainer.run import status

ROOT = Path(__file__).resolve().parents[2]
RUN = {"iterations": 4, "checkpoint_every": 1, "evaluate_every": 2, "evaluation_seeds": 1, "run_name": "run"}
JOINING, SILENT = 20, 60  # seconds: a machine's patience for others to join, and beside it the most until it has ended
PATIENCE = 240

# In every process of a machine: its host's name; and in the one that is to be hit, once, at the N-th call of a function there.
SITE = """
import importlib.machinery, os, signal, socket, sys, time
socket.gethostname = lambda: os.environ["MACHINE"]
whom, module, name, number = os.environ["KILL"].split(":") if os.environ.get("KILL") else ("", "", "", "0")
calls = []

def hit():
    parent = os.getppid()
    try:
        os.close(os.open(os.environ["HIT"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    if whom == "machine":
        if os.environ["BY"] == "run.sh":
            os.kill(int(open(f"/proc/{parent}/stat").read().split()[3]), signal.SIGKILL)
        os.kill(parent, signal.SIGKILL)
    os.kill(parent if whom == "launcher" else os.getpid(), signal.SIGKILL)
    while os.getppid() == parent:
        time.sleep(0.01)

class Finder:
    @staticmethod
    def find_spec(fullname, path=None, target=None):
        if fullname != module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        load = spec.loader.exec_module

        def exec_module(loaded):
            load(loaded)
            true = getattr(loaded, name)

            def counted(*args, **kwargs):
                calls.append(name)
                if len(calls) == int(number):
                    hit()
                return true(*args, **kwargs)

            setattr(loaded, name, counted)

        spec.loader.exec_module = exec_module
        return spec

if whom and "LOCAL_RANK" in os.environ:
    sys.meta_path.insert(0, Finder)
"""

# Where a process is when it is hit: a module, a function of it, and which call of that in a worker's life.
PHASES = {
    "join": "host.distributed:begin:1",
    "joined": "host.distributed:meet:1",
    "sampling": "trainer.rollout:_velocity:6",
    "reward": "trainer.rewards.base:score_stack:2",
    "update": "trainer.updates.optimizer:_take:2",
    "checkpoint": "trainer.run.checkpoint:save:2",
    "writing": "trainer.run.checkpoint:write_tensors:4",  # by the first alone
    "evaluation": "trainer.run.evaluation:score:2",
}
WHOM = ("worker", "launcher", "machine")


def _kills():
    """(launcher, whom, machine, phase)"""
    wide = [phase for phase in PHASES if phase not in ("joined", "writing")]
    for number, (phase, whom) in enumerate((phase, whom) for phase in wide for whom in WHOM):
        yield "torchrun", whom, number % 2, phase
        other = {"join": "joined", "checkpoint": "writing"}.get(phase, phase)
        yield "run.sh", whom, 0 if other == "writing" else (1 + number) % 2, other
        if phase in ("sampling", "update"):
            yield "accelerate", whom, (1 + number) % 2, phase


KILLS = [*_kills()]
SHORT = [
    ("torchrun", "worker", 1, "update"),
    ("torchrun", "launcher", 0, "sampling"),
    ("run.sh", "machine", 1, "evaluation"),
]


@pytest.fixture(scope="module")
def place(small_graph, tmp_path_factory):
    """The shared folder with the bundle of a small graph, and the run of it that nothing disturbed."""
    place = tmp_path_factory.mktemp("machines")
    (place / "small.json").write_text(json.dumps(small_graph({"OTCA_TrainingRun": RUN})))
    (place / "site").mkdir()
    (place / "site" / "sitecustomize.py").write_text(SITE)
    assert main(["bundle", str(place / "small.json"), "--output", str(place / "bundle")]) == 0
    command = [
        sys.executable,
        str(ROOT),
        "train",
        "small.json",
        "--device",
        "cpu",
        "--gpus",
        "2",
        "--output",
        "undisturbed",
    ]
    subprocess.run(command, cwd=place, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, timeout=PATIENCE)
    return place


class Machine:
    """One of two, with what it prints."""

    def __init__(self, place, runs, number, port, by, kill=""):
        self.place, self.runs, self.number, self.by = place, runs, number, by
        self.folder = runs / f"node-{number}"
        self.folder.mkdir(exist_ok=True)
        variables = {"MACHINE": f"node-{number}", "KILL": kill, "HIT": str(runs / "hit"), "BY": by}
        variables |= {"PYTHONPATH": str(place / "site")}
        variables |= {"OMP_NUM_THREADS": "1", "OTCA_JOINING_SECONDS": str(JOINING), "GLOO_SOCKET_IFNAME": "lo"}
        variables |= {"PYTHON": sys.executable, "GPUS": "1", "DEVICE": "cpu", "RUNS": str(runs), "RESTART_SECONDS": "1"}
        variables |= {"NNODES": "2", "NODE_RANK": str(number), "MAIN_ADDRESS": "127.0.0.1", "MAIN_PORT": str(port)}
        kept = {name: os.environ[name] for name in ("PATH", "HOME")}
        self.environment = {**kept, **variables}
        self.port, self.printed, self.process, self.said = port, self.folder / "printed.txt", None, 0

    def start(self, *options):
        train = [
            "train",
            str(self.place / "small.json"),
            "--device",
            "cpu",
            "--output",
            str(self.runs / "run"),
            *options,
        ]
        torchrun = ["-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={self.number}", "--nproc-per-node=1"]
        torchrun += ["--master-addr=127.0.0.1", f"--master-port={self.port}"]
        accelerate = [
            "-m",
            "accelerate.commands.launch",
            "--cpu",
            "--multi_gpu",
            "--num_machines=2",
            "--num_processes=2",
        ]
        accelerate += [
            f"--machine_rank={self.number}",
            "--main_process_ip=127.0.0.1",
            f"--main_process_port={self.port}",
        ]
        command = {
            "torchrun": [sys.executable, *torchrun, str(ROOT / "__main__.py"), *train],
            "accelerate": [sys.executable, *accelerate, str(ROOT / "__main__.py"), *train],
            "run.sh": ["bash", str(self.place / "bundle" / "run.sh")],
        }[self.by]
        with self.printed.open("ab") as printed:
            self.said = printed.tell()
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=self.environment, stdout=printed, stderr=printed, preexec_fn=_as_typed
            )
        return self

    def text(self):
        """What it has printed since it was last started."""
        return self.printed.read_bytes()[self.said :].decode()

    def end(self, seconds=PATIENCE):
        return self.process.wait(seconds)

    def workers(self):
        """Processes that train, whether or not their launcher is there."""
        found = []
        for process in psutil.process_iter():
            try:
                variables = process.environ()
            except psutil.Error:
                continue
            if (
                variables.get("HIT") == self.environment["HIT"]
                and variables.get("MACHINE") == self.environment["MACHINE"]
            ):
                found.append(process)
        return found


def _as_typed():
    """Signals as in a terminal: a job in the background of a shell has some of them ignored."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def pair(place, tmp_path):
    """pair(by, machine, kill): two machines that train, of which that one is hit. Nothing of them outlives the test."""
    made = []

    def start(by, hit, kill):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        made[:] = [Machine(place, tmp_path, number, port, by, kill if number == hit else "") for number in (0, 1)]
        for machine in made:
            machine.start()
        return made

    yield start
    for machine in made:
        for process in machine.workers():
            process.kill()
        machine.process.wait()


def until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


@pytest.mark.parametrize(("by", "whom", "victim", "phase"), [*SHORT, *(kill for kill in KILLS if kill not in SHORT)])
def test_what_is_killed_ends_all_or_is_resumed(pair, place, tmp_path, everything, by, whom, victim, phase):
    if not everything and (by, whom, victim, phase) not in SHORT:
        pytest.skip("the long form: --everything")
    machines, run = pair(by, victim, f"{whom}:comfyui_otca.{PHASES[phase]}"), tmp_path / "run"
    hit, other = machines[victim], machines[1 - victim]

    def printed():
        return "\n".join(f"--- {machine.folder.name}\n{machine.text()}" for machine in machines)

    until((tmp_path / "hit").exists, PATIENCE, printed)
    if by == "run.sh":
        if whom == "machine":  # which starts anew
            hit.end()
            hit.start()
    else:
        until(lambda: not (hit.workers() or other.workers()), JOINING + SILENT, printed)
        assert other.process.wait() != 0 and "Traceback" not in _ours(other.text()), printed()
        survivors = [other] if whom != "launcher" else machines
        if phase != "join" or whom == "launcher":
            assert any(f"process {victim} of 2 on node-{victim}" in machine.text() for machine in survivors), printed()
            assert f"on node-{victim}" in _sentence(other.text()), printed()
        else:
            assert "could not join" in _sentence(other.text()), printed()
        stands = status.now(run, status.read(run, pytest.fail)) if run.is_dir() else "none"
        assert stands in ("failed", "interrupted", "none"), stands
        begun = (run / "workflow.json").is_file()
        for machine in machines:
            machine.environment["KILL"] = ""
            machine.start(*["--resume"] * begun)
    assert [machine.end() for machine in machines] == [0, 0], printed()
    assert untimed(run) == untimed(place / "undisturbed")
    assert untimed(run, "evaluation.jsonl") == untimed(place / "undisturbed", "evaluation.jsonl")
    assert_same_tensors(run / "lora.safetensors", place / "undisturbed" / "lora.safetensors")
    assert json.loads((run / "status.json").read_text())["status"] == "finished"


def _sentence(text):
    """The last line that a worker of ours said why it ended."""
    return [line for line in text.splitlines() if line.startswith("otca process ")][-1]


def _ours(text):
    """Without what torchrun itself prints after its workers have ended."""
    before = text.partition("torch.distributed.elastic.multiprocessing.errors.ChildFailedError")[0]
    return before.rpartition("Traceback")[0] or text
