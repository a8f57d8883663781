"""`otca compare`: trains workflows from the same start on the same prompts, and says what became of each.

Its folder holds <workflow>/lr<rate>/seed<number>/, each the folder of a run, and comparison.json, comparison.md and
comparison.png. Every training is a process of its own; finished ones are not repeated, begun ones are gone on with.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from ..host import claim, stopping
from ..host.files import Damaged, write_text
from ..host.json_files import read_json
from ..trainer.inference import loading as sample
from ..trainer.networks import features
from ..trainer.pictures import grids
from ..trainer.run import status
from ..trainer.run.evaluation import EVALUATION_SEED
from ..trainer.run.folder import RunError
from ..trainer.run.launch import FOLDER
from ..trainer.run.layout import EVALUATIONS, LOG, WORKFLOW, json_line, read_lines, read_own
from ..trainer.run.loop import differences, only
from ..trainer.types import RUN_NODE, STEP_NODE
from ..trainer.workflow.running import Workflow
from . import comparison, comparison_plot, comparison_report, diversity, fairness
from .comparison import Outcome
from .comparison_report import Facts, Sweep

# The first of those that learning rates are chosen by; noise depends on the seed, so far is far enough.
TUNING_SEED = 1000
JSON, TABLE, FIGURE = "comparison.json", "comparison.md", "comparison.png"
DIVERSITY = "diversity.json"
_LAST_LINES = 5  # of a failed training's log, to be told
_GLANCE = 0.3  # seconds between two looks at the processes

Say = Callable[[str], None]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settings:
    """How all workflows are trained and judged alike.

    Attributes:
        seeds: of the trainings that are compared.
        learning_rates: the best is chosen for each workflow by `tuning_seeds` seeds; none: each workflow's own.
        prompts: of evaluations, one a line.
        jobs: trainings at a time.
        features: the image encoder that diversity is measured by.
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
    """One workflow with one learning rate and seed, for a folder of its own."""

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


def compare(
    workflows: Mapping[str, Workflow], baseline: str, settings: Settings, folder: Path, say: Say, *, train: bool = True
) -> tuple[str, bool]:
    """Trains what is not trained yet, and writes what all came to.

    Args:
        train: False only reports on what is finished.

    Returns:
        The tables as Markdown, and whether everything is finished.

    Raises:
        ValueError: workflows that cannot be compared.
        RunError: the folder holds other trainings, or too little is finished.
        FileNotFoundError: the encoder of `features` was not found.
        host.Stopped: what is done is in the folder.
    """
    fairness.check_equal(workflows, baseline)
    _check_settings(settings)
    rates = {name: settings.learning_rates or (fairness.rate(own),) for name, own in workflows.items()}
    tuning_seeds = range(TUNING_SEED, TUNING_SEED + settings.tuning_seeds) if len(settings.learning_rates) > 1 else ()
    shorter = replace(settings, iterations=settings.tuning_iterations)
    tuning = trainings(workflows, rates, tuning_seeds, shorter, folder)
    for training in (*tuning, *trainings(workflows, rates, settings.seeds, settings, folder)):
        _check_folder(training)
    failed: dict[str, str] = {}
    sweep = None
    if tuning:
        if train:
            failed |= run(tuning, settings, say)
        sweep = choose(tuning, tuning_seeds, shorter.iterations)
        rates = {name: (rate,) for name, rate in sweep.chosen.items()}
    chosen = {name: own for name, own in workflows.items() if name in rates}
    compared = trainings(chosen, rates, settings.seeds, settings, folder)
    if train:
        failed |= run(compared, settings, say)
    unfinished = {str(own): failed.get(str(own)) or _state(own) for own in (*tuning, *compared) if not own.finished}
    unfinished |= {name: "no learning rate whose trainings all ended" for name in workflows.keys() - chosen.keys()}
    table = _report([own for own in compared if own.finished], workflows, baseline, settings, sweep, unfinished, folder)
    return table, not unfinished


def _check_settings(settings: Settings) -> None:
    """What would be found out only after everything was trained."""
    if len(settings.prompts.splitlines()) * settings.evaluation_seeds < 2:
        raise ValueError("one picture has no spread to measure rises in. Fix: more --prompts or --evaluation-seeds")
    if any(not 0 < rate < math.inf for rate in settings.learning_rates):
        told = ", ".join(f"{rate:g}" for rate in settings.learning_rates)
        raise ValueError(f"--learning-rates must be above 0, not {told}")
    if len(settings.learning_rates) > 1 and (
        shared := set(settings.seeds) & set(range(TUNING_SEED, TUNING_SEED + settings.tuning_seeds))
    ):
        raise ValueError(
            f"learning rates are chosen by the seeds from {TUNING_SEED} on, {min(shared)} among them, which must not be judged "
            "by again. Fix: another --seed"
        )
    features.find(settings.features)


# -- the trainings -----------------------------------------------------------------------------------------------------


def trainings(
    workflows: Mapping[str, Workflow],
    rates: Mapping[str, Sequence[float]],
    seeds: Sequence[int],
    settings: Settings,
    folder: Path,
) -> list[Training]:
    """One a workflow, rate and seed; all workflows by the first seed, then by the next, so that half of them can be compared."""
    return [
        Training(
            name,
            rate,
            seed,
            folder / name / f"lr{rate:g}" / f"seed{seed}",
            _prepared(own, rate, seed, settings, f"{name}-lr{rate:g}-seed{seed}"),
        )
        for seed in seeds
        for name, own in workflows.items()
        for rate in rates[name]
    ]


def _prepared(workflow: Workflow, rate: float, seed: int, settings: Settings, run_name: str) -> Workflow:
    own = Workflow(workflow.graph, workflow.node_classes, workflow.display_names)
    for node, entry in workflow.graph.items():
        if entry["class_type"] in own.node_classes and "seed" in fairness.inputs(own, node):
            own.set(f"{node}.seed", seed)
    own.set(f"{only(own, STEP_NODE)}.learning_rate", rate)
    run_settings = {
        "run_name": run_name,
        "iterations": settings.iterations,
        "evaluate_every": settings.evaluate_every,
        "checkpoint_every": settings.evaluate_every,
        "keep_checkpoints": 1,
        "evaluation_prompts": settings.prompts,
        "evaluation_seeds": settings.evaluation_seeds,
        "best_metric": "",
        "stop_after_decline": 0,  # all get the same samples
        "wandb_project": "",
    }
    for name, value in run_settings.items():
        own.set(f"{only(own, RUN_NODE)}.{name}", value)
    return own


def run(all_: Sequence[Training], settings: Settings, say: Say) -> dict[str, str]:
    """Trains what is not finished, so many at a time; returns those that failed, with the last lines of their logs.

    Raises:
        RunError: a folder holds a training of other settings.
        host.Stopped: all were asked to stop, and did.
    """
    for training in all_:
        _check_folder(training)
    waiting = [training for training in all_ if not training.finished]
    running: dict[Training, subprocess.Popen | None] = {}
    failed: dict[str, str] = {}
    try:
        while waiting or running:
            stopping.check_stop()
            while waiting and len(running) < settings.jobs:
                training = waiting.pop(0)
                running[training] = _start(training, settings, say)
            for training in [training for training, process in running.items() if not _goes_on(training, process)]:
                del running[training]
                if training.finished:
                    comparison.read(training.folder)  # tells now, and not at the end, what cannot be compared
                    say(f"{training}: done, {len(waiting) + len(running)} to go")
                else:
                    failed[str(training)] = (
                        f"failed; {training.folder / LOG} ends: {_last_lines(training.folder / LOG)}"
                    )
                    say(f"{training}: {failed[str(training)]}")
            time.sleep(_GLANCE)
    finally:
        for process in filter(None, running.values()):
            process.terminate()  # which saves a checkpoint
        for process in filter(None, running.values()):
            process.wait()
    return failed


def _check_folder(training: Training) -> None:
    """That what is there is this training, or one that only has to be prolonged."""
    before = read_own(training.folder, WORKFLOW)
    if before is None:
        return
    run_node = only(training.workflow, RUN_NODE)
    harmless = (f"{run_node}.evaluate_every: ", f"{run_node}.checkpoint_every: ")  # the last iteration always has both
    changed = [
        line
        for line in differences(before, training.workflow.graph)
        if line != _longer(before, training, run_node) and not line.startswith(harmless)
    ]
    if changed:
        raise RunError(f"{training.folder} was trained otherwise: {'; '.join(changed)}. Fix: choose another --output")


def _longer(before: dict, training: Training, run_node: str) -> str | None:
    """The one change that is none to a training which goes on."""
    then = before.get(run_node, {"inputs": {}})["inputs"].get("iterations", 0)
    now = training.iterations
    return f"{run_node}.iterations: {then!r} -> {now!r}" if then < now else None


def _state(training: Training) -> str:
    """Of one that is not finished, as its folder tells it."""
    written = status.read(training.folder)
    if written.status == "failed":
        return f"failed: {written.error}"
    if written.status == status.UNKNOWN:
        return "not trained yet"
    return (
        "still trained by a process"
        if claim.holder(training.folder) is not None
        else "begun, and not yet trained to its end"
    )


def _start(training: Training, settings: Settings, say: Say) -> subprocess.Popen | None:
    """None where a process of an earlier call, which was killed, still trains."""
    folder = training.folder
    if found := claim.holder(folder):
        if not claim.lives(found):
            claim.check(folder)  # which says what helps: waiting might never end
        say(f"{training}: {found} still trains it")
        return None
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / WORKFLOW, json.dumps(training.workflow.graph, indent=1))
    command = [sys.executable, FOLDER, "train", str(folder), "--resume"]
    command += ["--device", settings.device] if settings.device else []
    threads = str(max(1, (os.cpu_count() or 1) // settings.jobs))
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)}
    say(f"{training}: begins")
    with open(folder / LOG, "a", encoding="utf-8") as log:
        # A session of its own: Ctrl-C asks us, and we ask it, once.
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
        )


def _goes_on(training: Training, process: subprocess.Popen | None) -> bool:
    return claim.holder(training.folder) is not None if process is None else process.poll() is None


def _last_lines(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    return " | ".join(line.strip() for line in lines[-_LAST_LINES:] if line.strip())


def choose(tuning: Sequence[Training], seeds: Sequence[int], iterations: int) -> Sweep:
    """For every workflow the rate with the best mean final score over all these seeds; the lower of equals.

    A rate that failed with any of them, or ended without a score, is out; a workflow of which nothing is left is chosen none for.
    Where a held-out reward declined with any of them the score was got by hacking, so such a rate is the last choice.
    """
    scores: dict[str, dict[float, float]] = {training.name: {} for training in tuning}
    declined: dict[str, set[float]] = {name: set() for name in scores}
    chosen = {}
    for training in tuning:
        own = [other for other in tuning if (other.name, other.rate) == (training.name, training.rate)]
        if all(other.finished for other in own):
            outcomes = [comparison.read(other.folder) for other in own]
            finals = [outcome.score[-1] for outcome in outcomes]
            if any(outcome.declined for outcome in outcomes):
                declined[training.name].add(training.rate)
            if np.isfinite(finals).all():
                scores[training.name][training.rate] = sum(finals) / len(finals)
    for name, own in scores.items():
        if own:
            chosen[name] = max(sorted(own), key=lambda rate: (rate not in declined[name], own[rate]))
    rates = sorted({training.rate for training in tuning})
    return Sweep(list(seeds), iterations, scores, chosen, rates, {name: sorted(own) for name, own in declined.items()})


# -- the report --------------------------------------------------------------------------------------------------------


def _report(
    finished: Sequence[Training],
    workflows: Mapping[str, Workflow],
    baseline: str,
    settings: Settings,
    sweep: Sweep | None,
    unfinished: Mapping[str, str],
    folder: Path,
) -> str:
    if not any(training.name == baseline for training in finished):
        own = {name: why for name, why in unfinished.items() if name.partition(", ")[0] == baseline}
        told = "; ".join(f"{name}: {why}" for name, why in own.items())
        raise RunError(
            f"no training of the baseline {baseline} is finished, so there is nothing to compare with. {told}. Fix: what a log "
            "names; then the same command, without --report, goes on"
        )
    outcomes: dict[str, dict[int, Outcome]] = {name: {} for name in workflows}
    for training in finished:
        outcomes[training.name][training.seed] = comparison.read(training.folder, _diversity(training, settings))
    unfinished = {
        **unfinished,
        **{
            name: f"none of its finished seeds is one of {baseline}'s"
            for name, own in outcomes.items()
            if own and not own.keys() & outcomes[baseline].keys()
        },
    }
    outcomes = {name: own for name, own in outcomes.items() if own and name not in unfinished}
    rates = {training.name: training.rate for training in finished}
    samples = fairness.samples(workflows[baseline])
    rows = comparison.summarise(outcomes, rates, samples, baseline)
    first = next(training for training in finished if training.name == baseline)
    before = outcomes[baseline][first.seed]
    facts = Facts(
        baseline=baseline,
        samples=samples,
        prompts=len(settings.prompts.splitlines()),
        evaluation_seeds=settings.evaluation_seeds,
        features=settings.features,
        untrained_diversity=_diversity(first, settings, untrained=True),
        untrained_held_out={name: float(means[0]) for name, means in before.held_out.items()},
        differing={
            name: fairness.differing(own, workflows[baseline])
            for name, own in workflows.items()
            if name in outcomes and name != baseline
        },
        unfinished=unfinished,
    )
    table = comparison_report.markdown(rows, sweep, facts)
    write_text(folder / TABLE, table)
    grids.save(comparison_plot.picture(rows, facts), folder / FIGURE)
    content = {"facts": asdict(facts), "sweep": sweep and asdict(sweep), "workflows": [asdict(row) for row in rows]}
    write_text(folder / JSON, json_line(content))
    return table


def _diversity(training: Training, settings: Settings, untrained: bool = False) -> float:
    """Measured once, and kept in the run's folder; NaN of a single picture to a prompt."""
    if settings.evaluation_seeds < 2:
        return math.nan
    place, key = training.folder / DIVERSITY, f"{settings.features}, {training.iterations} iterations"
    if untrained:
        key = f"{settings.features}, before training"
    known = _known_diversities(place)
    if key not in known:
        [evaluation, *_] = read_lines(training.folder / EVALUATIONS)
        seeds = range(EVALUATION_SEED, EVALUATION_SEED + settings.evaluation_seeds)
        model, how = sample.load_run(training.folder, training.workflow.node_classes)
        steps = fairness.run_inputs(training.workflow)["evaluation_steps"]
        how = replace(how, steps=steps or how.steps)
        with model.policy.reference() if untrained else contextlib.nullcontext():
            known[key] = diversity.measure(model, how, evaluation["prompts"], seeds, settings.features)
        write_text(place, json_line(known))
    return math.nan if known[key] is None else known[key]


def _known_diversities(place: Path) -> dict[str, float | None]:
    """Those measured before; where the file is damaged, which is said, they are measured again."""
    try:
        known = read_json(place) or {}
    except Damaged as error:
        logger.warning("%s %s, and is measured again", error.path, error.wrong)
        return {}
    return {key: value for key, value in known.items() if value is None or isinstance(value, int | float)}
