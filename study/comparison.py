"""What trainings of several workflows came to, side by side: curves, differences to a baseline by seed, and their tables.

A training's score is the mean over its trained rewards of how far the evaluation's mean has come since before training, in
units of that reward's standard deviation over the evaluation's pictures there. All intervals are Student's over seeds, and
differences are taken seed by seed, since a seed gives all workflows the same adapter, prompts and noise.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from ..trainer.run.folder import RunError
from ..trainer.run.layout import EVALUATIONS, METRICS, read_lines
from ..trainer.run.verdicts import fell, measured
from .statistics import Interval, holm, mean_interval, paired_p

# Of a standard deviation: untrained models score alike up to rounding, and the batch shapes of an evaluation are the same.
_ALIKE = 0.01


@dataclass(frozen=True)
class Outcome:
    """One training, as its folder has it: E evaluations, the first before training.

    Attributes:
        iterations: [E] after which it was evaluated.
        trained, held_out: each reward's means, {name: [E]}.
        spread: each trained reward's standard deviation before training.
        diversity: of the trained model's pictures, NaN where it was not measured.
        seconds: of an iteration, the median.
        forwards, with_gradient: of an iteration, the mean.
        declined: held-out rewards that ended below where they began, see `verdicts.fell`.
        unscored: scores that a reward could not give in the last evaluation; they are in no mean.
    """

    iterations: tuple[int, ...]
    trained: Mapping[str, np.ndarray]
    held_out: Mapping[str, np.ndarray]
    spread: Mapping[str, float]
    diversity: float
    seconds: float
    forwards: float
    with_gradient: float
    declined: tuple[str, ...] = ()
    unscored: int = 0

    @cached_property
    def gains(self) -> dict[str, np.ndarray]:
        """Each trained reward's standardised rise, {name: [E]}."""
        return {name: (means - means[0]) / self.spread[name] for name, means in self.trained.items()}

    @cached_property
    def score(self) -> np.ndarray:
        return np.mean(list(self.gains.values()), 0)

    @property
    def drop(self) -> float:
        """The score's largest fall below the best that it had reached."""
        return float((np.maximum.accumulate(self.score) - self.score).max())


_COSTS = ("seconds/iteration", "forwards/all", "forwards/with_gradient")  # of an iteration


def read(folder: Path, diversity: float = math.nan) -> Outcome:
    """A finished training.

    Raises:
        RunError: its record has lost too much, or a trained reward told no two pictures apart before training, so that its rise
            has no unit.
    """
    evaluations = read_lines(folder / EVALUATIONS)
    history = [row for row in read_lines(folder / METRICS) if all(measured(row.get(key)) for key in _COSTS)]
    first = evaluations[0]["rewards"] if evaluations else {}
    if not history or not evaluations or any(row["rewards"].keys() != first.keys() for row in evaluations):
        raise RunError(
            f"{folder}: {METRICS} or {EVALUATIONS} has lost what a comparison needs. Fix: put them back, or delete the folder to "
            "train it again"
        )
    trained = [name for name, figures in first.items() if not figures["held_out"]]
    for name in trained:
        if not first[name]["std"]:
            why = "could score no picture" if first[name]["mean"] is None else "gave all pictures the same score"
            raise RunError(
                f"{folder}: {name} {why} before training, so its rise has no unit. Fix: more --evaluation-seeds or prompts, or "
                "another reward; in a new --output"
            )
    means = {
        name: np.array([row["rewards"][name]["mean"] for row in evaluations], dtype=float)  # null becomes NaN
        for name in first
    }
    return Outcome(
        iterations=tuple(row["iteration"] for row in evaluations),
        trained={name: means[name] for name in trained},
        held_out={name: values for name, values in means.items() if name not in trained},
        spread={name: first[name]["std"] for name in trained},
        diversity=diversity,
        seconds=statistics.median(row["seconds/iteration"] for row in history),
        forwards=statistics.fmean(row["forwards/all"] for row in history),
        with_gradient=statistics.fmean(row["forwards/with_gradient"] for row in history),
        declined=tuple(name for name in first if name not in trained and fell(evaluations[0], evaluations[-1], name)),
        unscored=sum(figures["values"].count(None) for figures in evaluations[-1]["rewards"].values()),
    )


@dataclass(frozen=True)
class Row:
    """A workflow over its seeds. Intervals are of means over seeds; gains and scores as of `Outcome`, at the last evaluation.

    Attributes:
        samples: seen until each of the E evaluations.
        curve, rewards: over these, the score and every reward's mean.
        deviation: of the final score between seeds.
        drop: mean over seeds of the largest fall from the best score so far.
        difference: of final scores to the baseline, seed by seed; None for itself.
        p, corrected: of the paired t test of that, and after Holm's correction over all workflows.
        reached: samples at which the mean curve first gets to the baseline's final score (the mean over the seeds that both
            have); None: never.
        reached_by: how many seeds get there.
        gains: of every trained reward.
        spread: the gains' standard deviation over the trained rewards, of their means over seeds.
        held_out: means of every held-out reward, and `held_out_difference` as `difference`; empty for the baseline.
    """

    name: str
    learning_rate: float
    seeds: list[int]
    samples: list[int]
    curve: list[Interval]
    rewards: dict[str, list[Interval]]
    final: Interval
    deviation: float
    drop: float
    difference: Interval | None
    p: float
    corrected: float
    reached: float | None
    reached_by: int
    gains: dict[str, Interval]
    spread: float
    held_out: dict[str, Interval]
    held_out_difference: dict[str, Interval]
    diversity: Interval
    seconds: float
    forwards: float
    with_gradient: float
    declined: dict[str, int]  # {held-out reward: the number of seeds with which it ended below where it began}
    unscored: int  # of all seeds

    @property
    def least(self) -> str:
        """The trained reward that gained least."""
        return min(self.gains, key=lambda name: np.nan_to_num(self.gains[name].mean, nan=math.inf))


def summarise(
    outcomes: Mapping[str, Mapping[int, Outcome]], rates: Mapping[str, float], samples: int, baseline: str
) -> list[Row]:
    """A row a workflow, in the order given.

    Args:
        outcomes: by workflow and seed.
        samples: to an iteration.

    Raises:
        RunError: trainings that did not start from one model, or share no seed with the baseline.
    """
    outcomes = _cut(outcomes)
    _check_start(outcomes)
    rows = [
        _row(name, runs, outcomes[baseline], rates[name], samples, name == baseline) for name, runs in outcomes.items()
    ]
    return [replace(row, corrected=p) for row, p in zip(rows, holm([row.p for row in rows]), strict=True)]


def _row(
    name: str, by_seed: Mapping[int, Outcome], base: Mapping[int, Outcome], rate: float, samples: int, is_baseline: bool
) -> Row:
    runs = list(by_seed.values())
    pairs = [] if is_baseline else [(by_seed[seed], base[seed]) for seed in by_seed if seed in base]
    if not pairs and not is_baseline:
        raise RunError(f"{name} and the baseline have no seed that both were trained with. Fix: train them to the end")
    differences = [mine.score[-1] - theirs.score[-1] for mine, theirs in pairs]
    target = statistics.fmean(run.score[-1] for seed, run in base.items() if seed in by_seed)
    seen = [iteration * samples for iteration in runs[0].iterations]
    curve = _over_seeds([run.score for run in runs])
    gains = {reward: mean_interval([run.gains[reward][-1] for run in runs]) for reward in runs[0].gains}
    finals = [run.score[-1] for run in runs]
    means = [{**run.trained, **run.held_out} for run in runs]
    return Row(
        name=name,
        learning_rate=rate,
        seeds=list(by_seed),
        samples=seen,
        curve=curve,
        rewards={reward: _over_seeds([run_means[reward] for run_means in means]) for reward in means[0]},
        final=mean_interval(finals),
        deviation=float(np.std(finals, ddof=1)) if len(finals) > 1 else math.nan,
        drop=statistics.fmean(run.drop for run in runs),
        difference=mean_interval(differences) if pairs else None,
        p=paired_p(differences),
        corrected=math.nan,
        reached=first_crossing(seen, [point.mean for point in curve], target),
        reached_by=sum(first_crossing(seen, run.score, target) is not None for run in runs),
        gains=gains,
        spread=float(np.std([interval.mean for interval in gains.values()])),
        held_out={reward: mean_interval([run.held_out[reward][-1] for run in runs]) for reward in runs[0].held_out},
        held_out_difference={
            reward: mean_interval([mine.held_out[reward][-1] - theirs.held_out[reward][-1] for mine, theirs in pairs])
            for reward in runs[0].held_out
            if pairs
        },
        diversity=mean_interval([run.diversity for run in runs]),
        seconds=statistics.median(run.seconds for run in runs),
        forwards=statistics.fmean(run.forwards for run in runs),
        with_gradient=statistics.fmean(run.with_gradient for run in runs),
        declined={
            reward: count for reward in runs[0].held_out if (count := sum(reward in run.declined for run in runs))
        },
        unscored=sum(run.unscored for run in runs),
    )


def first_crossing(samples: Sequence[float], scores: Sequence[float] | np.ndarray, target: float) -> float | None:
    """Samples at which the line through the evaluations first reaches the target; None where it never does.

    An evaluation without a score, NaN, is left out.
    """
    scored = [(seen, score) for seen, score in zip(samples, scores, strict=True) if not math.isnan(score)]
    if not scored:
        return None
    samples, scores = zip(*scored, strict=True)
    if scores[0] >= target:
        return float(samples[0])
    for i in range(1, len(samples)):
        if scores[i] >= target:
            part = (target - scores[i - 1]) / (scores[i] - scores[i - 1])
            return float(samples[i - 1] + part * (samples[i] - samples[i - 1]))
    return None


def _over_seeds(curves: Sequence[np.ndarray]) -> list[Interval]:
    return [mean_interval(values) for values in np.stack(curves, 1)]


def _cut(outcomes: Mapping[str, Mapping[int, Outcome]]) -> dict[str, dict[int, Outcome]]:
    """All at the evaluations that all have: a training that was prolonged was also evaluated where it once ended."""
    everyone = [run.iterations for runs in outcomes.values() for run in runs.values()]
    common = sorted(set(everyone[0]).intersection(*everyone))

    def cut(run: Outcome) -> Outcome:
        keep = [run.iterations.index(iteration) for iteration in common]
        trained, held_out = (
            {name: means[keep] for name, means in kind.items()} for kind in (run.trained, run.held_out)
        )
        return replace(run, iterations=tuple(common), trained=trained, held_out=held_out)

    return {name: {seed: cut(run) for seed, run in runs.items()} for name, runs in outcomes.items()}


def _check_start(outcomes: Mapping[str, Mapping[int, Outcome]]) -> None:
    first = next(iter(next(iter(outcomes.values())).values()))
    for name, runs in outcomes.items():
        for seed, run in runs.items():
            if (run.trained.keys(), run.held_out.keys()) != (first.trained.keys(), first.held_out.keys()):
                listed = ", ".join([*run.trained, *(f"{reward} (held out)" for reward in run.held_out)])
                raise RunError(
                    f"{name}, seed {seed}, has other rewards: {listed}. Fix: give all workflows the same stack"
                )
            for reward, means in first.trained.items():
                apart = abs(run.trained[reward][0] - means[0])
                if apart > _ALIKE * first.spread[reward]:
                    raise RunError(
                        f"{name}, seed {seed}, began at {reward} {run.trained[reward][0]:.6g} where others began at "
                        f"{means[0]:.6g}, so it was another model or another machine. Fix: train all of them on one machine "
                        "with the same files, in a new --output"
                    )
