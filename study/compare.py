"""`otca compare`: trains workflows from the same start on the same prompts, and compares what became of them.

Its folder holds <workflow>/lr<rate>/seed<number>/, each the folder of a run, and comparison.json, comparison.md and
comparison.png, or screening.json, .md and .png.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from ..host import stopping
from ..host.files import write_text
from ..host.json_files import read_json
from ..inference import loading
from ..trainer import rollout
from ..trainer.groups import distances
from ..trainer.networks import features
from ..trainer.pictures import grids
from ..trainer.prompts import lines
from ..trainer.run.budget import FORWARDS
from ..trainer.run.evaluation import EVALUATION_SEED
from ..trainer.run.folder import EVALUATIONS, RunError, json_line, read_lines
from ..trainer.types import RunSettings
from ..trainer.workflow.running import Workflow
from . import comparison, comparison_report, fairness, plots
from .comparison import Outcome
from .comparison_report import Facts, Sweep
from .trainings import DIVERGED, Say, Settings, Training, check_folder, diverged, run, state, trainings

# The first seed of the trainings that only choose a workflow or a learning rate. No comparison should use it again.
TUNING_SEED = 1000
FEW = 3  # tuning seeds, below which a rate may be chosen by luck
COMPARISON, SCREENING = "comparison", "screening"  # the names of what is written
DIVERSITY = "diversity.json"
_BATCH = 16  # pictures to one model call, where diversity is measured


def compare(
    workflows: Mapping[str, Workflow], baseline: str, settings: Settings, folder: Path, say: Say, *, train: bool = True
) -> tuple[str, bool]:
    """Trains what is not trained yet, then writes tables and a figure of all.

    `say`: prints a line on how it goes.
    `train`: False only reports on what is finished.

    Returns:
        The tables as Markdown, and whether everything is finished.

    Raises:
        ValueError: workflows that cannot be compared.
        RunError: the folder holds other trainings, or too little is finished.
        FileNotFoundError: the encoder of `features` was not found.
        host.Stopped: what is done is in the folder.
    """
    fairness.check_equal(workflows, baseline, any_size=settings.budget is not None)
    rates = {name: settings.rates(name, workflow) for name, workflow in workflows.items()}
    tuned = {name: workflow for name, workflow in workflows.items() if len(rates[name]) > 1}
    _check_settings(settings, rates, tuned)
    tuning_seeds = range(TUNING_SEED, TUNING_SEED + settings.tuning_seeds)
    if tuned and settings.tuning_seeds < FEW:
        say(
            f"learning rates are chosen by {settings.tuning_seeds} trainings each, so by luck too. Fix: --tuning-seeds {FEW}"
        )
    shorter = replace(settings, iterations=settings.tuning_iterations)
    tuning = trainings(tuned, rates, tuning_seeds, shorter, folder)
    for training in (*tuning, *trainings(workflows, rates, settings.seeds, settings, folder)):
        check_folder(training)
    failed: dict[str, str] = {}

    def train_all(some: Sequence[Training]) -> None:
        if train:
            failed.update(run([case for case in some if case.name in (settings.only or workflows)], settings, say))

    train_all(tuning)
    sweep = choose(tuning, tuning_seeds, settings.score) if tuning else None
    rates = {name: own for name, own in rates.items() if name not in tuned}
    rates |= {name: (rate,) for name, rate in (sweep.chosen if sweep else {}).items()}
    chosen = {name: workflow for name, workflow in workflows.items() if name in rates}
    compared = trainings(chosen, rates, settings.seeds, settings, folder)
    train_all(compared)
    unfinished = {str(job): failed.get(str(job)) or state(job) for job in (*tuning, *compared) if not job.finished}
    unfinished |= {name: "no learning rate whose trainings all ended" for name in workflows.keys() - chosen.keys()}
    table = _report(compared, workflows, baseline, settings, sweep, unfinished, folder)
    # What diverged is a result, and there is nothing left to do about it.
    return table, all(why.startswith(DIVERGED) for why in unfinished.values())


def _check_settings(settings: Settings, rates: Mapping[str, Sequence[float]], tuned: Mapping[str, Workflow]) -> None:
    """Raises ValueError for what would otherwise be noticed only after everything was trained."""
    if len(lines(settings.prompts)) * settings.evaluation_seeds < 2:
        raise ValueError("one picture has no spread to measure rises in. Fix: more --prompts or --evaluation-seeds")
    for name in (*settings.own_rates, *settings.only):
        if name not in rates:
            raise ValueError(f"{name!r} is not a workflow. Fix: one of {', '.join(rates)}")
    for name, some in rates.items():
        if any(not 0 < rate < math.inf for rate in some):
            raise ValueError(f"{name}: learning rates must be above 0, not {', '.join(f'{rate:g}' for rate in some)}")
    if settings.screening and tuned:
        raise ValueError(
            f"a screening takes one learning rate of each workflow, and {next(iter(tuned))} has "
            f"{len(rates[next(iter(tuned))])}. Fix: one --learning-rates for all, or --rates NAME=RATE"
        )
    shared = set(settings.seeds) & set(range(TUNING_SEED, TUNING_SEED + settings.tuning_seeds))
    if tuned and shared:
        raise ValueError(
            f"learning rates are chosen with the seeds from {TUNING_SEED} on, {min(shared)} among them, and the comparison must "
            "not use these again. Fix: another --seed"
        )
    features.find(settings.features)


def choose(tuning: Sequence[Training], seeds: Sequence[int], scored: Sequence[str] = ()) -> Sweep:
    """Chooses for every workflow the rate with the best mean final score over all these seeds; of equal rates the lower.

    A rate that failed or ended without a score with any seed is out; a workflow without any rate left is not in `chosen`.
    If a held-out reward declined with any seed, the score came from reward hacking, so such a rate is the last choice.
    """
    alike: dict[str, dict[float, list[Training]]] = {}
    for training in tuning:
        alike.setdefault(training.name, {}).setdefault(training.rate, []).append(training)
    sweep = Sweep(list(seeds), tuning[0].length)
    for name, by_rate in alike.items():
        scores: dict[float, float] = {}
        declined = []
        for rate, some in sorted(by_rate.items()):
            if not all(training.finished for training in some):
                continue
            outcomes = [comparison.read(training.folder, scored=scored) for training in some]
            if any(outcome.declined for outcome in outcomes):
                declined.append(rate)
            if math.isfinite(mean := sum(outcome.score[-1] for outcome in outcomes) / len(outcomes)):
                scores[rate] = float(mean)
        if scores:
            sweep.chosen[name] = max(scores, key=lambda rate: (rate not in declined, scores[rate]))
        sweep.scores[name], sweep.rates[name], sweep.declined[name] = scores, sorted(by_rate), declined
        sweep.diverged[name] = [rate for rate, some in sorted(by_rate.items()) if any(map(diverged, some))]
    return sweep


# -- the report --------------------------------------------------------------------------------------------------------


def _report(
    compared: Sequence[Training],
    workflows: Mapping[str, Workflow],
    baseline: str,
    settings: Settings,
    sweep: Sweep | None,
    unfinished: Mapping[str, str],
    folder: Path,
) -> str:
    finished = [training for training in compared if training.finished]
    if not any(training.name == baseline for training in finished):
        reasons = "; ".join(f"{name}: {why}" for name, why in unfinished.items() if name.partition(", ")[0] == baseline)
        raise RunError(
            f"no training of the baseline {baseline} is finished, so there is nothing to compare with. {reasons}. Fix: what a "
            "log names; then the same command, without --report, continues"
        )
    outcomes: dict[str, dict[int, Outcome]] = {name: {} for name in workflows}
    for job in finished:
        outcomes[job.name][job.seed] = comparison.read(job.folder, _diversity(job, settings), settings.score)
    unfinished = {
        **unfinished,
        **{
            name: f"it has finished no seed that {baseline} has finished too"
            for name, by_seed in outcomes.items()
            if by_seed and not by_seed.keys() & outcomes[baseline].keys()
        },
    }
    outcomes = {name: by_seed for name, by_seed in outcomes.items() if by_seed and name not in unfinished}
    rates = {training.name: training.rate for training in finished}
    first = next(training for training in finished if training.name == baseline)
    before = outcomes[baseline][first.seed]
    if settings.judge and settings.judge not in before.held_out:
        raise RunError(
            f"--judge {settings.judge!r} is not a held-out reward. Fix: leave it out, or one of "
            f"{', '.join(before.held_out) or 'none'}"
        )
    judge = settings.judge or next(iter(before.held_out), "")  # the held-out reward that scores are held against
    samples = {name: fairness.samples(workflow) for name, workflow in workflows.items()}
    rows = comparison.summarise(outcomes, rates, samples, baseline, settings.budget, judge)
    facts = Facts(
        baseline=baseline,
        length=first.length,
        unit=settings.budget.unit if settings.budget else FORWARDS,
        screening=settings.screening,
        judge=judge,
        score=settings.score,
        prompts=len(lines(settings.prompts)),
        evaluation_seeds=settings.evaluation_seeds,
        features=settings.features,
        untrained_diversity=_diversity(first, settings, untrained=True),
        untrained_held_out={name: float(before.means[name][0]) for name in before.held_out},
        differing={
            name: fairness.differing(workflow, workflows[baseline])
            for name, workflow in workflows.items()
            if name in outcomes and name != baseline
        },
        diverged=dict(Counter(training.name for training in compared if diverged(training))),
        unfinished=unfinished,
    )
    table = comparison_report.markdown(rows, sweep, facts)
    name = SCREENING if settings.screening else COMPARISON
    write_text(folder / f"{name}.md", table)
    grids.save(plots.comparison(rows, facts), folder / f"{name}.png")
    content = {"facts": asdict(facts), "sweep": sweep and asdict(sweep), "workflows": [asdict(row) for row in rows]}
    write_text(folder / f"{name}.json", json_line(content))
    return table


# -- diversity ---------------------------------------------------------------------------------------------------------


def pairwise_distance(points: Tensor) -> float:
    """How much pictures of one prompt differ: the mean over prompts, and over the pairs of a prompt's pictures, of 1 - cos.

    Args:
        points: features [P, S, D] of the pictures; the distance is NaN for S = 1.
    """
    prompts, count = points.shape[:2]
    if count < 2:
        return math.nan
    return distances(points.flatten(0, 1).double(), torch.arange(prompts).repeat_interleave(count)).mean().item()


def _diversity(training: Training, settings: Settings, untrained: bool = False) -> float:
    """How much the trained model's pictures of each evaluated prompt differ; NaN for a single picture to a prompt.

    It is measured once and kept in the run's folder. Pictures are sampled by the deterministic sampler; of videos the middle
    frames are seen.
    """
    if settings.evaluation_seeds < 2:
        return math.nan
    path = training.folder / DIVERSITY
    key = f"{settings.features}, {'before training' if untrained else training.length}"
    cache = read_json(path, fix="remove the file, and it is measured again") or {}
    if key not in cache:
        [evaluation, *_] = read_lines(training.folder / EVALUATIONS)
        prompts, count = evaluation["prompts"], settings.evaluation_seeds
        model, how = loading.load_run(training.folder, training.workflow.node_classes)
        evaluated = RunSettings.from_inputs(fairness.run_inputs(training.workflow)).evaluated(how)
        how = replace(evaluated, batch_size=_BATCH)
        encoder = features.load(settings.features)
        texts = [prompt for prompt in prompts for _ in range(count)]
        seeds = [EVALUATION_SEED + seed for _ in prompts for seed in range(count)]
        with model.policy.reference() if untrained else contextlib.nullcontext():
            images = rollout.generate(model, texts, how, seeds, stopping.check_stop)
        with torch.no_grad():
            points = torch.cat([encoder.pictures(part).cpu() for part in grids.stills(images).split(_BATCH)])
        cache[key] = pairwise_distance(points.reshape(len(prompts), count, -1))
        write_text(path, json_line(cache))
    value = cache[key]
    return math.nan if value is None else value
