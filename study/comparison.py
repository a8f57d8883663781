"""Trainings of several workflows, side by side: curves, differences to a baseline by seed, and their tables.

A training's score is the mean over its trained rewards (or the named ones) of how far the evaluation's mean rose since before
training, in units of that reward's standard deviation over the evaluation's pictures before training. All trainings are
evaluated by the same prompts and noises: rises and differences are taken picture by picture, and differences seed by seed too,
since a seed gives all workflows the same adapter, prompts and noise. Intervals are clustered by the training's seed and by the
prompt.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from ..trainer.run.budget import FORWARDS, UNITS, Budget, used
from ..trainer.run.folder import EVALUATIONS, METRICS, RunError, read_lines
from ..trainer.run.verdicts import by_prompt, fell, measured
from .statistics import Interval, area, clustered, holm, non_dominated, reached_for_good

VERDICT_SEEDS = 5  # a difference over fewer pairs of trainings is told without p

_KL_WINDOW = 10  # iterations, of which at least one measures the divergence, each at another one of the trained steps
# Of a standard deviation: untrained models score alike up to rounding, and the batch shapes of an evaluation are the same.
_ALIKE = 0.01


@dataclass(frozen=True)
class Outcome:
    """One training, as its folder has it: E evaluations, the first before training.

    Attributes:
        iterations: [E] after which it was evaluated.
        trained, held_out: what each reward gave the N pictures, {name: [E, N]}; NaN where it could not.
        prompts: numbers of the pictures' prompts, [N].
        spread: each trained or scored reward's standard deviation before training.
        diversity: of the trained model's pictures, NaN if it was not measured.
        used: forwards and seconds until each evaluation, {unit: [E]}, as `budget.Budget` counts them.
        kl: [E] mean‖v - v_ref‖² to the untrained model, 0 before training, then the mean over the last iterations.
        seconds: of an iteration by the clock, the median.
        forwards, with_gradient: of an iteration, the mean.
        declined: held-out rewards that ended below where they began, see `verdicts.fell`.
        unscored: scores that a reward could not give in the last evaluation; they are in no mean.
        scored: rewards that the score is the mean of; empty: the trained ones.
    """

    iterations: tuple[float, ...]
    trained: Mapping[str, np.ndarray]
    held_out: Mapping[str, np.ndarray]
    prompts: Sequence[int]
    spread: Mapping[str, float]
    used: Mapping[str, np.ndarray]
    kl: np.ndarray
    diversity: float
    seconds: float
    forwards: float
    with_gradient: float
    declined: tuple[str, ...] = ()
    unscored: int = 0
    scored: tuple[str, ...] = ()

    @cached_property
    def values(self) -> dict[str, np.ndarray]:
        """`trained` and `held_out` together."""
        return {**self.trained, **self.held_out}

    @cached_property
    def means(self) -> dict[str, np.ndarray]:
        """Each reward's mean over the pictures that it could score, {name: [E]}."""
        return {name: _means(values) for name, values in self.values.items()}

    @cached_property
    def rises(self) -> dict[str, np.ndarray]:
        """Each trained or scored reward's standardised rise, picture by picture, {name: [E, N]}."""
        named = {*self.trained, *self.scored}
        return {name: (self.values[name] - self.values[name][0]) / self.spread[name] for name in named}

    @cached_property
    def scores(self) -> np.ndarray:
        """[E, N]"""
        return np.mean([self.rises[name] for name in self.scored or self.trained], 0)

    @cached_property
    def score(self) -> np.ndarray:
        return _means(self.scores)

    @property
    def drop(self) -> float:
        """The score's largest fall below the best that it had reached."""
        return float((np.maximum.accumulate(self.score) - self.score).max())

    @property
    def areas(self) -> np.ndarray:
        """The mean height of each picture's curve of scores, [N]."""
        return area(self.used[FORWARDS], self.scores)

    def changed(self, change: Callable[[np.ndarray], np.ndarray]) -> Outcome:
        """With other points for its evaluations; `change` takes and gives what holds for each of them."""
        tables = {
            kind: {name: change(values) for name, values in getattr(self, kind).items()}
            for kind in ("trained", "held_out", "used")
        }
        iterations = tuple(change(np.array(self.iterations)).tolist())
        return replace(self, iterations=iterations, kl=change(self.kl), **tables)


def _means(values: np.ndarray) -> np.ndarray:
    """[E] of what is finite in [E, N]; NaN where nothing is."""
    finite = np.isfinite(values)
    counts = finite.sum(1)
    return np.where(counts, np.where(finite, values, 0).sum(1) / np.maximum(counts, 1), np.nan)


_COSTS = ("seconds/iteration", "forwards/all", "forwards/with_gradient")  # of an iteration


def read(folder: Path, diversity: float = math.nan, scored: Sequence[str] = ()) -> Outcome:
    """A finished training.

    Raises:
        RunError: its record has lost too much, it has no such reward, or a reward of the score told no two pictures apart before
            training, so that its rise has no unit.
    """
    evaluations, lines = read_lines(folder / EVALUATIONS), read_lines(folder / METRICS)
    history = [row for row in lines if all(measured(row.get(key)) for key in _COSTS)]
    first = evaluations[0]["rewards"] if evaluations else {}
    if not history or not evaluations or any(row["rewards"].keys() != first.keys() for row in evaluations):
        raise RunError(
            f"{folder}: {METRICS} or {EVALUATIONS} has lost what a comparison needs. Fix: put them back, or delete the folder to "
            "train it again"
        )
    trained = [name for name, figures in first.items() if not figures["held_out"]]
    for name in {**dict.fromkeys(trained), **dict.fromkeys(scored)}:
        if name not in first:
            raise RunError(f"{folder}: --score {name!r} is not a reward of it. Fix: some of {', '.join(first)}")
        if not first[name]["std"]:
            why = "could score no picture" if first[name]["mean"] is None else "gave all pictures the same score"
            raise RunError(
                f"{folder}: {name} {why} before training, so its rise has no unit. Fix: more --evaluation-seeds or prompts, or "
                "another reward; in a new --output"
            )
    values = {
        name: np.array([row["rewards"][name]["values"] for row in evaluations], dtype=float)  # null becomes NaN
        for name in first
    }
    iterations = tuple(row["iteration"] for row in evaluations)
    return Outcome(
        iterations=iterations,
        trained={name: values[name] for name in trained},
        held_out={name: table for name, table in values.items() if name not in trained},
        prompts=by_prompt(evaluations[0].get("prompts"), next(iter(values.values())).shape[1]),
        spread={name: first[name]["std"] for name in (*trained, *scored)},
        used={unit: np.array(used(lines, unit, iterations), dtype=float) for unit in UNITS},
        kl=np.array([divergence_of(lines, iteration) for iteration in iterations]),
        diversity=diversity,
        seconds=statistics.median(row["seconds/iteration"] for row in history),
        forwards=statistics.fmean(row["forwards/all"] for row in history),
        with_gradient=statistics.fmean(row["forwards/with_gradient"] for row in history),
        declined=tuple(name for name in first if name not in trained and fell(evaluations[0], evaluations[-1], name)),
        unscored=sum(figures["values"].count(None) for figures in evaluations[-1]["rewards"].values()),
        scored=tuple(scored),
    )


def divergence_of(lines: Sequence[Mapping], iteration: int) -> float:
    """kl/reference, over the last iterations until this one. It is measured after an update."""
    recent = [row for row in lines if iteration - _KL_WINDOW < row["iteration"] <= iteration]
    values = [row["kl/reference"] for row in recent if measured(row.get("kl/reference"))]
    return statistics.fmean(values) if values else 0.0 if iteration == 0 else math.nan


@dataclass(frozen=True)
class Row:
    """A workflow over its seeds. Intervals are of means over seeds; gains and scores as of `Outcome`, at the end.

    Attributes:
        iterations: at the end, the mean over seeds.
        used: until each of the E evaluations, {unit: [E]}, means over seeds.
        curve, rewards, kl: there, the score, every reward's mean, and the divergence from the untrained model.
        deviation: of the final score between seeds.
        drop: mean over seeds of the largest fall from the best score so far.
        difference: of final scores to the baseline, seed by seed; None for itself.
        p, corrected: of the paired t test of that, and after Holm's correction over all workflows.
        area: under the score's curve, its mean height; `area_difference` as `difference`.
        reached: {unit: what was used until the score was for good at the baseline's final one}: of the mean over the seeds that
            both have, and from where its interval touches that to where all of it lies above; infinity for never.
        reached_by_seed: the same of each seed by itself, to the mean of the baseline's final scores.
        gains: of every trained reward.
        spread: the gains' standard deviation over the trained rewards, of their means over seeds.
        held_out: means of every held-out reward, and `held_out_difference` as `difference`; empty for the baseline.
        declined: {held-out reward: the number of seeds with which it ended below where it began}.
        unscored: the sum over all seeds.
        samples: to an iteration.
        undominated: whether no other workflow is as good or better in both the score and the judge, and better in one.
    """

    name: str
    seeds: list[int]
    iterations: float
    used: dict[str, list[float]]
    curve: list[Interval]
    rewards: dict[str, list[Interval]]
    kl: list[Interval]
    final: Interval
    deviation: float
    drop: float
    difference: Interval | None
    p: float
    corrected: float
    area: Interval
    area_difference: Interval | None
    reached: dict[str, Interval]
    reached_by_seed: dict[str, list[float]]
    gains: dict[str, Interval]
    spread: float
    held_out: dict[str, Interval]
    held_out_difference: dict[str, Interval]
    diversity: Interval
    seconds: float
    forwards: float
    with_gradient: float
    declined: dict[str, int]
    unscored: int
    learning_rate: float
    samples: int
    undominated: bool = False

    @property
    def least(self) -> str:
        """The trained reward that gained least."""
        return min(self.gains, key=lambda name: np.nan_to_num(self.gains[name].mean, nan=math.inf))


def summarise(
    outcomes: Mapping[str, Mapping[int, Outcome]],
    rates: Mapping[str, float],
    samples: Mapping[str, int],
    baseline: str,
    budget: Budget | None = None,
    judge: str = "",
) -> list[Row]:
    """A row a workflow, in the order given.

    `outcomes`: by workflow and seed.
    `samples`: to an iteration, of each workflow.
    `budget`: that all had; None: all had the same number of iterations.
    `judge`: the held-out reward that scores are held against; empty: without a judge.

    Raises:
        RunError: trainings that did not start from one model, or share no seed with the baseline.
    """
    _check_start(outcomes)
    outcomes = _aligned(outcomes, budget)
    base, rows = outcomes[baseline], []
    for name, runs in outcomes.items():
        pairs = [] if name == baseline else [(run, base[seed]) for seed, run in runs.items() if seed in base]
        if not pairs and name != baseline:
            raise RunError(
                f"{name} and the baseline have no seed that both were trained with. Fix: train them to the end"
            )
        rows.append(_row(name, runs, pairs, learning_rate=rates[name], samples=samples[name]))
    corrected = holm([row.p for row in rows])
    undominated = (
        non_dominated([(row.final.mean, row.held_out[judge].mean) for row in rows]) if judge else [False] * len(rows)
    )
    return [
        replace(row, corrected=p, undominated=own) for row, p, own in zip(rows, corrected, undominated, strict=True)
    ]


def _row(name: str, by_seed: Mapping[int, Outcome], pairs: Sequence[tuple[Outcome, Outcome]], **known) -> Row:
    """A row without what takes the others: each run, and in pairs with the baseline's of the same seed."""
    runs = list(by_seed.values())
    common = pairs or [(run, run) for run in runs]
    target = statistics.fmean(base.score[-1] for _, base in common)
    finals, held_out = [run.score[-1] for run in runs], list(runs[0].held_out)
    declined = {reward: sum(reward in run.declined for run in runs) for reward in held_out}
    gains = {reward: _over([run.rises[reward][-1] for run in runs], runs) for reward in runs[0].trained}

    def paired(figure: Callable[[Outcome], np.ndarray]) -> Interval:
        return _over([figure(own) - figure(base) for own, base in pairs], runs)

    difference = paired(lambda run: run.scores[-1]) if pairs else None
    return Row(
        name=name,
        seeds=list(by_seed),
        iterations=statistics.fmean(run.iterations[-1] for run in runs),
        used={unit: np.mean([run.used[unit] for run in runs], 0).tolist() for unit in UNITS},
        curve=_curve([run.scores for run in runs], runs),
        rewards={reward: _curve([run.values[reward] for run in runs], runs) for reward in runs[0].values},
        kl=[clustered(values) for values in np.stack([run.kl for run in runs], 1)],
        final=_over([run.scores[-1] for run in runs], runs),
        deviation=float(np.std(finals, ddof=1)) if len(finals) > 1 else math.nan,
        drop=statistics.fmean(run.drop for run in runs),
        difference=difference,
        p=difference.p if difference and len(pairs) >= VERDICT_SEEDS else math.nan,
        corrected=math.nan,
        area=_over([run.areas for run in runs], runs),
        area_difference=paired(lambda run: run.areas) if pairs else None,
        reached={unit: _reached(common, unit) for unit in UNITS},
        reached_by_seed={unit: [reached_for_good(run.used[unit], run.score, target) for run in runs] for unit in UNITS},
        gains=gains,
        spread=float(np.std([interval.mean for interval in gains.values()])),
        held_out={name: _over([run.held_out[name][-1] for run in runs], runs) for name in held_out},
        held_out_difference={name: paired(lambda run, name=name: run.held_out[name][-1]) for name in held_out if pairs},
        diversity=clustered([run.diversity for run in runs]),
        seconds=statistics.median(run.seconds for run in runs),
        forwards=statistics.fmean(run.forwards for run in runs),
        with_gradient=statistics.fmean(run.with_gradient for run in runs),
        declined={reward: count for reward, count in declined.items() if count},
        unscored=sum(run.unscored for run in runs),
        **known,
    )


def _over(values: Sequence[np.ndarray], runs: Sequence[Outcome]) -> Interval:
    """The mean of the pictures' figures [N] of several trainings, clustered by training and prompt; `count` is the trainings'."""
    means = _means(np.stack(values))
    if len(means) < 2 or not np.isfinite(means).all():  # which says nothing of other trainings
        return clustered([float(means.mean())])
    trainings = np.repeat(np.arange(len(values)), len(values[0]))
    return replace(clustered(np.concatenate(values), trainings, [*runs[0].prompts] * len(values)), count=len(values))


def _curve(tables: Sequence[np.ndarray], runs: Sequence[Outcome]) -> list[Interval]:
    """The curve of [E, N] figures of several trainings, at every evaluation."""
    return [_over(values, runs) for values in zip(*tables, strict=True)]


def _reached(pairs: Sequence[tuple[Outcome, Outcome]], unit: str) -> Interval:
    """When the score got to the baseline's final one. A time is in the interval if the difference of the two scores, paired by
    seed and picture, has 0 in its own interval at that time. So it also covers that the baseline's score is uncertain."""
    lead = _curve([own.scores - base.scores[-1] for own, base in pairs], [own for own, _ in pairs])
    times = np.mean([own.used[unit] for own, _ in pairs], 0)
    # Where the upper bound gets to 0, the score may be there already; where the lower one does, it surely is.
    mean, low, high = (
        reached_for_good(times, [getattr(point, bound) for point in lead], 0.0) for bound in ("mean", "high", "low")
    )
    return Interval(mean, low, high, len(pairs)) if len(pairs) > 1 else Interval(mean, math.nan, math.nan, 1)


def _aligned(outcomes: Mapping[str, Mapping[int, Outcome]], budget: Budget | None) -> dict[str, dict[int, Outcome]]:
    """The trainings with their evaluations at the same points.

    With a budget these are equal parts of it, read from the lines through the evaluations; without one they are the evaluations
    that all trainings have, since a prolonged training was also evaluated at its former end.
    """
    if budget is None:
        everyone = [run.iterations for runs in outcomes.values() for run in runs.values()]
        common = sorted(set(everyone[0]).intersection(*everyone))

        def aligned(run: Outcome) -> Outcome:
            keep = [run.iterations.index(iteration) for iteration in common]
            return run.changed(lambda values: values[keep])
    else:
        parts, unit = np.linspace(0, budget.amount, budget.evaluations + 1), budget.unit

        def aligned(run: Outcome) -> Outcome:
            return run.changed(
                lambda values: np.apply_along_axis(lambda column: np.interp(parts, run.used[unit], column), 0, values)
            )

    return {name: {seed: aligned(run) for seed, run in runs.items()} for name, runs in outcomes.items()}


def _check_start(outcomes: Mapping[str, Mapping[int, Outcome]]) -> None:
    first = next(iter(next(iter(outcomes.values())).values()))
    for name, runs in outcomes.items():
        for seed, run in runs.items():
            if (run.trained.keys(), run.held_out.keys()) != (first.trained.keys(), first.held_out.keys()):
                listed = ", ".join([*run.trained, *(f"{reward} (held out)" for reward in run.held_out)])
                raise RunError(
                    f"{name}, seed {seed}, has other rewards: {listed}. Fix: give all workflows the same stack"
                )
            for reward in first.trained:
                began, others = run.means[reward][0], first.means[reward][0]
                if abs(began - others) > _ALIKE * first.spread[reward]:
                    raise RunError(
                        f"{name}, seed {seed}, began at {reward} {began:.6g} where others began at {others:.6g}, so it was "
                        "another model or another machine. Fix: train all of them on one machine with the same files, in a new "
                        "--output"
                    )
