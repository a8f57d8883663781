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
RUN = {"iterations": 8, "checkpoint_every": 1, "evaluate_every": 2, "evaluation_seeds": 1, "run_name": "run"}
JOINING, SILENT = 20, 60  # seconds: a machine's patience for others to join, and beside it the most until it has ended
PATIENCE = 240

# In every process of a machine: its host's name. In the one that is to be hit next: what kills, at the N-th call of a function.
SITE = """
import importlib.machinery, os, signal, socket, sys, time
socket.gethostname = lambda: os.environ["MACHINE"]
hits, calls = os.environ["HITS"], []
kills = [kill.split(":") for kill in os.environ["KILLS"].split()][len(os.listdir(hits)) :]
victim, whom, module, name, number = kills[0] if kills else [""] * 5

def hit():
    parent = os.getppid()
    os.close(os.open(os.path.join(hits, str(len(os.listdir(hits)))), os.O_CREAT | os.O_EXCL))
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

if victim == os.environ.get("RANK", "none"):
    sys.meta_path.insert(0, Finder)
"""

# Where a process is when it is hit: a module, a function of it, and which call of that in a worker's life.
PHASES = {
    "sampling": "trainer.rollout:_velocity:6",
    "reward": "trainer.rewards.base:score_stack:2",
    "update": "trainer.updates.optimizer:_take:2",
    "checkpoint": "trainer.run.checkpoint:save:2",
    "evaluation": "trainer.run.evaluation:score:2",
    "join": "host.distributed:begin:1",
}
WHOM = ("worker", "launcher", "machine")
ALONE = [
    *[("torchrun", whom, (i + j) % 2, phase) for i, phase in enumerate(PHASES) for j, whom in enumerate(WHOM)],
    *[("accelerate", whom, 1, "sampling") for whom in WHOM],
]
SHORT = ("torchrun", "worker", 1, "reward")


@pytest.fixture(scope="module")
def place(small_graph, tmp_path_factory):
    """The shared folder with the bundle of a small graph, and the run of it that nothing disturbed."""
    place = tmp_path_factory.mktemp("machines")
    (place / "small.json").write_text(json.dumps(small_graph({"OTCA_TrainingRun": RUN})))
    (place / "site").mkdir()
    (place / "site" / "sitecustomize.py").write_text(SITE)
    assert main(["bundle", str(place / "small.json"), "--output", str(place / "bundle")]) == 0
    train = "train small.json --device cpu --gpus 2 --output undisturbed".split()
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, str(ROOT), *train], cwd=place, env=variables, check=True, timeout=PATIENCE)
    return place


class Machine:
    """One of two, with what it prints."""

    def __init__(self, place, runs, number, port, by, kills):
        self.folder, self.process = runs / f"node-{number}", None
        self.folder.mkdir()
        self.environment = {name: os.environ[name] for name in ("PATH", "HOME")}
        self.environment |= {"MACHINE": f"node-{number}", "KILLS": kills, "HITS": str(runs / "hits"), "BY": by}
        self.environment |= {"PYTHONPATH": str(place / "site"), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        self.environment |= {"PYTHON": sys.executable, "GPUS": "1", "DEVICE": "cpu", "RUNS": str(runs), "NNODES": "2"}
        self.environment |= {"NODE_RANK": str(number), "MAIN_ADDRESS": "127.0.0.1", "MAIN_PORT": str(port)}
        self.environment |= {"OTCA_JOINING_SECONDS": str(JOINING), "RESTART_SECONDS": "1", "RESTARTS": "20"}
        train = f"{ROOT}/__main__.py train {place}/small.json --device cpu --output {runs}/run"
        torchrun = f"torch.distributed.run --nnodes=2 --node-rank={number} --nproc-per-node=1 --master-addr=127.0.0.1"
        accelerate = "accelerate.commands.launch --multi_gpu --num_machines=2 --num_processes=2"
        accelerate += f" --machine_rank={number} --main_process_ip=127.0.0.1 --main_process_port={port}"
        self.command = {
            "torchrun": f"{sys.executable} -m {torchrun} --master-port={port} {train}",
            "accelerate": f"{sys.executable} -m {accelerate} {train}",
            "run.sh": f"bash {place}/bundle/run.sh",
        }[by].split()

    def start(self, *options):
        with (self.folder / "printed.txt").open("wb" if options else "ab") as printed:
            output = {"stdout": printed, "stderr": printed, "preexec_fn": _as_typed}
            self.process = subprocess.Popen([*self.command, *options], cwd=self.folder, env=self.environment, **output)
        return self

    def printed(self):
        return (self.folder / "printed.txt").read_text(errors="replace")

    def processes(self):
        """All of this machine, whether or not their parents are there."""
        for process in psutil.process_iter():
            try:
                if self.environment.items() <= process.environ().items():
                    yield process
            except psutil.Error:
                continue


def _as_typed():
    """Signals as in a terminal: a job in the background of a shell has some of them ignored."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def pair(place, tmp_path):
    """pair(by, kills): two machines that train, while these kills hit them one after another; none outlives the test."""
    made = []
    (tmp_path / "hits").mkdir()

    def start(by, *kills):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        kills = " ".join(f"{victim}:{whom}:comfyui_otca.{where}" for victim, whom, where in kills)
        made.extend(Machine(place, tmp_path, number, port, by, kills).start() for number in (0, 1))
        return made

    yield start
    for machine in made:
        for process in machine.processes():
            process.kill()
        machine.process.wait()


def until(condition, seconds, machines):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "\n".join(machine.printed() for machine in machines)
        time.sleep(0.2)


def assert_finished_undisturbed(machines, place, run):
    until(lambda: all(machine.process.poll() is not None for machine in machines), PATIENCE, machines)
    assert [machine.process.returncode for machine in machines] == [0, 0], machines[0].printed() + machines[1].printed()
    assert untimed(run) == untimed(place / "undisturbed")
    assert untimed(run, "evaluation.jsonl") == untimed(place / "undisturbed", "evaluation.jsonl")
    assert_same_tensors(run / "lora.safetensors", place / "undisturbed" / "lora.safetensors")
    assert json.loads((run / "status.json").read_text())["status"] == "finished"


@pytest.mark.parametrize(("by", "whom", "victim", "phase"), ALONE)
def test_one_that_is_killed_ends_all_and_is_named(pair, place, tmp_path, everything, by, whom, victim, phase):
    if not everything and (by, whom, victim, phase) != SHORT:
        pytest.skip("the long form: --everything")
    machines, run = pair(by, (victim, whom, PHASES[phase])), tmp_path / "run"
    other = machines[1 - victim]
    until(lambda: list((tmp_path / "hits").iterdir()), PATIENCE, machines)
    until(lambda: not any([*machine.processes()] for machine in machines), JOINING + SILENT, machines)
    assert other.process.wait() != 0
    [sentence] = [line for line in other.printed().splitlines() if line.startswith("otca process ")]
    named = f"process {victim} of 2 on node-{victim}" in sentence and "--resume continues" in sentence
    # A process whose launcher is killed while it joins may have joined, or not: it ends as soon as it sees that.
    assert (
        named if phase != "join" else "could not join the others within" in sentence or (named and whom == "launcher")
    )
    stands = status.now(run, status.read(run, pytest.fail)) if run.is_dir() else "none"
    assert stands in ("failed", "interrupted", "none"), stands
    begun = (run / "workflow.json").is_file()
    for machine in machines:
        machine.start(*["--resume"] * begun)
    assert_finished_undisturbed(machines, place, run)


@pytest.mark.parametrize("whom", WHOM)
def test_what_is_killed_again_and_again_goes_on_by_run_sh(pair, place, tmp_path, everything, whom):
    """A machine that was killed starts anew."""
    if not everything and whom != "machine":
        pytest.skip("the long form: --everything")
    where = [call.replace(":score:2", ":score:1") for call in PHASES.values()][0 if everything else 4 :]
    machines = pair("run.sh", *((number % 2, whom, call) for number, call in enumerate(where)))

    def ended():
        for machine in machines:
            if machine.process.poll() == -signal.SIGKILL:
                machine.start()
        return all(machine.process.poll() is not None for machine in machines)

    until(ended, PATIENCE * len(where), machines)
    assert len(list((tmp_path / "hits").iterdir())) == len(where)
    assert_finished_undisturbed(machines, place, tmp_path / "run")
