"""The trainings of a comparison: which there are, and the processes that run them.

Every training is a process of its own, in a run's folder of its own. A finished one is not repeated, and one that was begun is
resumed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..host import claim, stopping
from ..host.files import write_text
from ..trainer.run import status
from ..trainer.run.folder import RunError
from ..trainer.run.launch import FOLDER
from ..trainer.run.layout import LOG, WORKFLOW, read_own
from ..trainer.run.loop import differences, only
from ..trainer.types import RUN_NODE, STEP_NODES
from ..trainer.workflow.running import Workflow
from . import comparison, fairness

_LAST_LINES = 5  # of a failed training's log, for the message
_GLANCE = 0.3  # seconds between two looks at the processes

Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """How all workflows are trained and judged alike.

    Attributes:
        seeds: of the trainings that are compared.
        learning_rates: of several, the best is chosen for each workflow with `tuning_seeds` other seeds; none: each workflow's
            own.
        prompts: of the evaluations, one a line.
        jobs: trainings at a time.
        features: the image encoder that measures diversity.
    """

    iterations: int
    seeds: Sequence[int]
    evaluate_every: int
    prompts: str
    evaluation_seeds: int
    learning_rates: Sequence[float] = ()
    tuning_seeds: int = 2
    tuning_iterations: int = 0
    jobs: int = 1
    device: str | None = None
    features: str = "shapes-clip"


@dataclass(frozen=True)
class Training:
    """One workflow with one learning rate and one seed, and its run's folder."""

    name: str
    rate: float
    seed: int
    folder: Path
    workflow: Workflow

    def __str__(self) -> str:
        return f"{self.name}, learning rate {self.rate:g}, seed {self.seed}"

    @property
    def iterations(self) -> int:
        return self.workflow.graph[only(self.workflow, RUN_NODE)]["inputs"]["iterations"]

    @property
    def finished(self) -> bool:
        written = status.read(self.folder)
        return written.status == "finished" and written.total == self.iterations


def trainings(
    workflows: Mapping[str, Workflow],
    rates: Mapping[str, Sequence[float]],
    seeds: Sequence[int],
    settings: Settings,
    folder: Path,
) -> list[Training]:
    """One for each workflow, rate and seed; all workflows with the first seed, then all with the next.

    So whoever stops half way can compare what is done.
    """
    return [
        Training(
            name,
            rate,
            seed,
            folder / name / f"lr{rate:g}" / f"seed{seed}",
            _prepared(workflow, rate, seed, settings, f"{name}-lr{rate:g}-seed{seed}"),
        )
        for seed in seeds
        for name, workflow in workflows.items()
        for rate in rates[name]
    ]


def _prepared(workflow: Workflow, rate: float, seed: int, settings: Settings, run_name: str) -> Workflow:
    prepared = Workflow(workflow.graph, workflow.node_classes, workflow.display_names)
    for node, entry in workflow.graph.items():
        if entry["class_type"] in prepared.node_classes and "seed" in fairness.inputs(prepared, node):
            prepared.set(f"{node}.seed", seed)
    prepared.set(f"{only(prepared, *STEP_NODES)}.learning_rate", rate)
    run_settings = {
        "run_name": run_name,
        "iterations": settings.iterations,
        "evaluate_every": settings.evaluate_every,
        "checkpoint_every": settings.evaluate_every,
        "keep_checkpoints": 1,
        "evaluation_prompts": settings.prompts,
        "evaluation_seeds": settings.evaluation_seeds,
        "best_metric": "",
        "stop_after_decline": 0,  # so that all see equally many samples
        "wandb_project": "",
    }
    for name, value in run_settings.items():
        prepared.set(f"{only(prepared, RUN_NODE)}.{name}", value)
    return prepared


def run(all_: Sequence[Training], settings: Settings, say: Say) -> dict[str, str]:
    """Trains what is not finished, `settings.jobs` at a time.

    Returns:
        {a training that failed: the last lines of its log}.

    Raises:
        RunError: a folder holds a training with other settings.
        host.Stopped: the user stopped it, and all processes have saved and ended.
    """
    for training in all_:
        check_folder(training)
    waiting = [training for training in all_ if not training.finished]
    running: dict[Training, subprocess.Popen | None] = {}
    failed: dict[str, str] = {}
    try:
        while waiting or running:
            stopping.check_stop()
            while waiting and len(running) < settings.jobs:
                training = waiting.pop(0)
                running[training] = _start(training, settings, say)
            for training in [training for training, process in running.items() if not _still_trains(training, process)]:
                del running[training]
                if training.finished:
                    comparison.read(training.folder)  # raises now, and not at the end, where it cannot be compared
                    say(f"{training}: done, {len(waiting) + len(running)} to go")
                else:
                    log = training.folder / LOG
                    failed[str(training)] = f"failed; {log} ends: {_last_lines(log)}"
                    say(f"{training}: {failed[str(training)]}")
            time.sleep(_GLANCE)
    finally:
        for process in filter(None, running.values()):
            process.terminate()  # it saves a checkpoint first
        for process in filter(None, running.values()):
            process.wait()
    return failed


def check_folder(training: Training) -> None:
    """Raises RunError where the folder holds another training; a shorter one of the same settings is no other."""
    before = read_own(training.folder, WORKFLOW)
    if before is None:
        return
    run_node = only(training.workflow, RUN_NODE)
    # The last iteration is always evaluated and saved, so how often that happens before does not matter.
    harmless = (f"{run_node}.evaluate_every: ", f"{run_node}.checkpoint_every: ")
    changed = [
        line
        for line in differences(before, training.workflow.graph)
        if line != _longer(before, training, run_node) and not line.startswith(harmless)
    ]
    if changed:
        raise RunError(f"{training.folder} was trained otherwise: {'; '.join(changed)}. Fix: choose another --output")


def _longer(before: dict, training: Training, run_node: str) -> str | None:
    """The line of `differences` that says the training is to become longer; None where it is not."""
    then = before.get(run_node, {"inputs": {}})["inputs"].get("iterations", 0)
    now = training.iterations
    return f"{run_node}.iterations: {then!r} -> {now!r}" if then < now else None


def state(training: Training) -> str:
    """Why a training is not finished, from the files of its folder."""
    written = status.read(training.folder)
    if written.status == "failed":
        return f"failed: {written.error}"
    if written.status == status.UNKNOWN:
        return "not trained yet"
    if status.busy(training.folder, written):
        return "a process still trains it"
    return "begun, and not yet trained to its end"


def _start(training: Training, settings: Settings, say: Say) -> subprocess.Popen | None:
    """Starts its process. None where a process still trains there that an earlier call started before it was killed."""
    folder = training.folder
    if holder := claim.holder(folder):
        if not claim.lives(holder):
            claim.check(folder)  # raises, and says what helps: waiting might never end
        say(f"{training}: {holder} still trains it")
        return None
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / WORKFLOW, json.dumps(training.workflow.graph, indent=1))
    command = [sys.executable, FOLDER, "train", str(folder), "--resume"]
    command += ["--device", settings.device] if settings.device else []
    threads = str(max(1, (os.cpu_count() or 1) // settings.jobs))
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)}
    say(f"{training}: begins")
    with open(folder / LOG, "a", encoding="utf-8") as log:
        # In a session of its own, so that Ctrl-C reaches only us, and we ask the process to stop once.
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )


def _still_trains(training: Training, process: subprocess.Popen | None) -> bool:
    return claim.holder(training.folder) is not None if process is None else process.poll() is None


def _last_lines(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    return " | ".join(line.strip() for line in lines[-_LAST_LINES:] if line.strip())
