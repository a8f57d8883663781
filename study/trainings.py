"""The trainings of a comparison: which there are, and the processes that run them.

Every training is a process of its own, in a run's folder of its own. A finished one is not repeated, and one that was begun is
resumed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..host import claim, environment, processes, stopping
from ..host.files import write_text
from ..trainer.run import budget, status
from ..trainer.run.budget import ANY_NUMBER, Budget
from ..trainer.run.folder import LOG, METRICS, WORKFLOW, RunError, read_lines, read_own
from ..trainer.run.loop import differences, only
from ..trainer.types import RUN_NODE, STEP_NODES
from ..trainer.workflow.running import Workflow
from . import comparison, fairness

_CHECKPOINT_EVERY = 25  # what a kill may cost
DIVERGED = "diverged"  # what the state of such a training begins with
_NON_FINITE = "NonFiniteUpdate"  # what an update raises then, see grpo.py
_LAST_LINES = 5  # of a failed training's log, for the message
GLANCE = 0.3  # seconds between two looks at the processes

Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """How all workflows are trained and judged alike.

    Attributes:
        iterations: their length, unless there is a budget, which ends each training at iterations of its own.
        seeds: of the trainings that are compared.
        learning_rates: of several, the best is chosen for each workflow with `tuning_seeds` other seeds; none: each workflow's
            own.
        own_rates: {workflow: learning rates instead of these}.
        only: workflows that are trained now; the report is of all. Empty: all.
        screening: one seed of each, from which no verdict follows.
        score: rewards that the score is the mean of; empty: the trained ones.
        judge: the held-out reward that scores are held against; empty: the first.
        prompts: of the evaluations, one per line.
        evaluation_steps: of the evaluations if there is a budget, since workflows may then sample with different numbers.
        jobs: trainings at a time.
        features: the image encoder that measures diversity.
    """

    iterations: int
    seeds: Sequence[int]
    evaluate_every: int
    prompts: str
    evaluation_seeds: int
    budget: Budget | None = None
    evaluation_steps: int = 0
    learning_rates: Sequence[float] = ()
    own_rates: Mapping[str, Sequence[float]] = field(default_factory=dict)
    only: Collection[str] = ()
    screening: bool = False
    score: Sequence[str] = ()
    judge: str = ""
    tuning_seeds: int = 3
    tuning_iterations: int = 0
    jobs: int = 1
    device: str | None = None
    features: str = "shapes-clip"

    def rates(self, name: str, workflow: Workflow) -> Sequence[float]:
        return self.own_rates.get(name) or self.learning_rates or (fairness.rate(workflow),)


@dataclass(frozen=True)
class Training:
    """One workflow with one learning rate and one seed, and its run's folder."""

    name: str
    rate: float
    seed: int
    folder: Path
    workflow: Workflow
    budget: Budget | None = None

    def __str__(self) -> str:
        return f"{self.name}, learning rate {self.rate:g}, seed {self.seed}"

    @property
    def iterations(self) -> int:
        return self.workflow.graph[only(self.workflow, RUN_NODE)]["inputs"]["iterations"]

    @property
    def length(self) -> str:
        return f"{self.iterations} iterations" if self.budget is None else str(self.budget)

    @property
    def finished(self) -> bool:
        written = status.read(self.folder)
        if written.status != "finished" or self.budget is None:
            return written.status == "finished" and written.total == self.iterations
        return self.budget.share(read_lines(self.folder / METRICS)) >= 1


def trainings(
    workflows: Mapping[str, Workflow],
    rates: Mapping[str, Sequence[float]],
    seeds: Sequence[int],
    settings: Settings,
    folder: Path,
) -> list[Training]:
    """One for each workflow, rate and seed; all workflows with the first seed, then all with the next.

    So if it is stopped half way, what is done can be compared.
    """
    return [
        Training(
            name,
            rate,
            seed,
            folder / name / f"lr{rate:g}" / f"seed{seed}",
            _prepared(workflow, rate, seed, settings, f"{name}-lr{rate:g}-seed{seed}"),
            settings.budget,
        )
        for seed in seeds
        for name, workflow in workflows.items()
        for rate in rates[name]
    ]


def _prepared(workflow: Workflow, rate: float, seed: int, settings: Settings, run_name: str) -> Workflow:
    prepared = Workflow(workflow.graph, workflow.node_classes, workflow.display_names)
    for node in workflow.ours:
        if "seed" in fairness.inputs(workflow, node):
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
        "artefacts": "warn",
        "wandb_project": "",
    }
    if settings.budget is not None:
        run_settings |= {
            "iterations": ANY_NUMBER,
            "evaluate_every": ANY_NUMBER,
            "checkpoint_every": _CHECKPOINT_EVERY,
            "evaluation_steps": settings.evaluation_steps,
        }
    for name, value in run_settings.items():
        prepared.set(f"{only(prepared, RUN_NODE)}.{name}", value)
    return prepared


def run(all_: Sequence[Training], settings: Settings, say: Say) -> dict[str, str]:
    """Trains what is not finished, `settings.jobs` at a time. What diverged would do so again, and is left as it is.

    Returns:
        {a training that failed: the last lines of its log}.

    Raises:
        RunError: a folder holds a training with other settings.
        host.Stopped: the user stopped it, and all processes have saved and ended.
    """
    for training in all_:
        check_folder(training)
    waiting = [training for training in all_ if not training.finished and not diverged(training)]
    running: dict[Training, processes.Process | None] = {}
    failed: dict[str, str] = {}
    try:
        while waiting or running:
            stopping.check_stop()
            while waiting and len(running) < settings.jobs:
                training = waiting.pop(0)
                running[training] = _start(training, settings, say)
            for training, process in list(running.items()):
                trains = process.poll() is None if process else claim.holder(training.folder) is not None
                if trains:
                    continue
                del running[training]
                if training.finished:
                    comparison.read(training.folder)  # raises now, and not at the end, if it cannot be compared
                    say(f"{training}: done, {len(waiting) + len(running)} to go")
                else:
                    log = training.folder / LOG
                    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
                    end = " | ".join(line.strip() for line in lines[-_LAST_LINES:] if line.strip())
                    failed[str(training)] = state(training) if diverged(training) else f"failed; {log} ends: {end}"
                    say(f"{training}: {failed[str(training)]}")
            time.sleep(GLANCE)
    finally:
        for process in filter(None, running.values()):
            process.terminate()  # it saves a checkpoint first
        for process in filter(None, running.values()):
            process.wait()
    return failed


def check_folder(training: Training) -> None:
    """Raises RunError if the folder holds another training. A shorter one of the same settings is continued."""
    before = read_own(training.folder, WORKFLOW)
    if before is None:
        return
    stored, now = budget.read(training.folder), training.budget
    if stored != now and (stored is None or now is None or stored.unit != now.unit or stored.amount > now.amount):
        raise RunError(
            f"{training.folder} was trained for {stored or 'a number of iterations'}, and not for {training.length}. Fix: choose "
            "another --output"
        )
    run_node = only(training.workflow, RUN_NODE)
    # The last iteration is always evaluated and saved, so how often that happens before does not matter.
    harmless = [f"{run_node}.evaluate_every: ", f"{run_node}.checkpoint_every: "]
    then = before.get(run_node, {"inputs": {}})["inputs"].get("iterations", 0)
    if then < training.iterations:
        harmless.append(f"{run_node}.iterations: {then!r} -> ")
    changed = [line for line in differences(before, training.workflow.graph) if not line.startswith(tuple(harmless))]
    if changed:
        raise RunError(f"{training.folder} was trained otherwise: {'; '.join(changed)}. Fix: choose another --output")


def state(training: Training) -> str:
    """Why a training is not finished, from the files of its folder."""
    written = status.read(training.folder)
    if diverged(training):
        done = len(read_lines(training.folder / METRICS))
        return f"{DIVERGED} after {done} iterations: {written.error} To train it again: remove its folder"
    if written.status == "failed":
        return f"failed: {written.error}"
    if written.status == "finished":
        return f"ended early: {written.reason or f'it was trained for {written.total} iterations'}"
    if written.status == status.UNKNOWN:
        return "not trained yet"
    if status.busy(training.folder, written):
        return "a process still trains it"
    return "begun, and not yet trained to its end"


def diverged(training: Training) -> bool:
    """Whether its updates were not finite any more."""
    written = status.read(training.folder)
    return written.status == "failed" and _NON_FINITE in (written.error or "")


def _start(training: Training, settings: Settings, say: Say) -> processes.Process | None:
    """Starts its process. None if a process still trains there that an earlier call started before it was killed."""
    folder = training.folder
    if holder := claim.holder(folder):
        if not claim.lives(holder):
            claim.check(folder)  # raises, and says what helps: waiting might never end
        say(f"{training}: {holder} still trains it")
        return None
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / WORKFLOW, json.dumps(training.workflow.graph, indent=1))
    if training.budget is not None:
        training.budget.write(folder)
    command = ["train", str(folder), "--resume"]
    command += ["--device", settings.device] if settings.device else []
    threads = str(max(1, (os.cpu_count() or 1) // settings.jobs))
    variables = {"OMP_NUM_THREADS": environment.read("OMP_NUM_THREADS", threads)}
    say(f"{training}: begins")
    with open(folder / LOG, "a", encoding="utf-8") as log:
        return processes.start(command, variables, log)
