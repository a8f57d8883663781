"""Verdicts on a run by its rows: does it hack its rewards, do its pictures spoil, which evaluation was the best, should it
end early.

Nothing is looked at but metrics.jsonl and evaluation.jsonl, so a resumed run comes to the same verdicts. Imports no torch.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...host.errors import parts
from .. import keys
from ..errors import standard_error
from ..types import STOP, RunSettings
from .folder import SAMPLES

# --- two evaluations --------------------------------------------------------------------------------------------------


def comparable(before: Mapping, after: Mapping) -> bool:
    """Whether both evaluations scored the same prompts from the same noise, and as many seeds, by the same rewards."""
    return (
        before["rewards"].keys() == after["rewards"].keys()
        and same_beginnings(before, after)
        and all(
            len(figures["values"]) == len(after["rewards"][name]["values"])
            for name, figures in before["rewards"].items()
        )
    )


def same_beginnings(before: Mapping, after: Mapping) -> bool:
    """Whether the pictures of both evaluations began with the same noise, for the same prompts, and are of one kind."""
    return all(before.get(name) == after.get(name) for name in ("prompts", "noise", "own"))


def differences(before: Mapping, after: Mapping, name: str) -> list[float]:
    """Later minus earlier score of every pair of prompt and seed that was scored both times."""
    return [change for change in changes_by_pair(before, after, name) if measured(change)]


def change(before: Mapping, after: Mapping, name: str) -> tuple[float, float]:
    """The mean of `differences`, and its standard error, clustered by prompt; NaN for fewer than two pairs."""
    changes = changes_by_pair(before, after, name)
    return standard_error(changes, by_prompt(before.get("prompts"), len(changes)))[:2]


def rises(evaluations: Sequence[Mapping]) -> tuple[int, dict[str, tuple[float, float]]] | None:
    """How far each reward has come: `change` between the last evaluation and the first one that is comparable with it, and the
    iteration of that; None where no other is."""
    *earlier, last = evaluations or ({},)
    for first in earlier:
        if comparable(first, last):
            return first["iteration"], {name: change(first, last, name) for name in last["rewards"]}
    return None


def changes_by_pair(before: Mapping, after: Mapping, name: str) -> list[float]:
    """The same of every pair, NaN where one of both scores is missing."""
    pairs = zip(before["rewards"][name]["values"], after["rewards"][name]["values"], strict=True)
    return [new - old if measured(old) and measured(new) else math.nan for old, new in pairs]


def by_prompt(prompts: Sequence[str] | None, count: int) -> list[int]:
    """The number of each value's prompt: an evaluation goes through its prompts once a seed."""
    return [number % len(prompts or range(count)) for number in range(count)]


def measured(value: float | None) -> bool:
    """The value as a number: NaN of a running process was read back from the file as null."""
    return value is not None and math.isfinite(value)


# --- reward hacking ---------------------------------------------------------------------------------------------------
#
# A reward that is trained rises while one that is held out falls. The means of the sampled batches jump with their prompts, so
# their trend is judged by the Mann-Kendall test. Evaluations repeat their prompts and seeds, so two of them are compared pair by
# pair, by Wilcoxon's signed ranks. Both see only the order of values, so no outlier decides. One trained reward that rises is
# enough: where several are trained, one of them is often given up for another, and their mean stays.

WINDOW = 50  # iterations that a trend is looked for in, at most …
SHORTEST = 10  # … and at least
# Standard normal deviates. FALL is far out, since a held-out reward that only fluctuates is looked at in every iteration, and
# the trained ones rise in every good run: at -2, every second run of 140 iterations would be warned of mere noise.
RISE, FALL = 2.0, -3.5


def warnings(history: Sequence[Mapping], evaluations: Sequence[Mapping]) -> dict[str, str]:
    """The warnings about a run, by kind: reward hacking, and artefacts of its pictures."""
    problems = {"hacking": warning(history, evaluations), "artefacts": artefact(evaluations)}
    return {kind: str(text) for kind, text in problems.items() if text is not None}


def warning(history: Sequence[Mapping], evaluations: Sequence[Mapping]) -> str | None:
    """A sentence for a human where either look at a run's rows so far shows reward hacking; else None."""
    return _by_batches(history[-WINDOW:]) or _by_evaluations(evaluations)


def trend(values: Sequence[float]) -> float:
    """z of the Mann-Kendall test, corrected for ties: positive where later values tend to be larger.

    S = Σ_{i<j} sign(x_j − x_i), Var S = (n(n−1)(2n+5) − Σ_ties t(t−1)(2t+5)) / 18, z = (S − sign S) / √Var S.
    """
    n = len(values)
    total = sum(_sign(later - earlier) for i, earlier in enumerate(values) for later in values[i + 1 :])
    ties = sum(t * (t - 1) * (2 * t + 5) for t in Counter(values).values())
    variance = (n * (n - 1) * (2 * n + 5) - ties) / 18
    return (total - _sign(total)) / math.sqrt(variance) if total else 0.0


def shift(changes: Sequence[float]) -> float:
    """z of Wilcoxon's signed-rank test: positive where the changes tend to be. Zeros count for nothing, ties share ranks.

    W = Σ sign(d) rank(|d|), Var W = Σ rank², z = (W − sign W) / √Var W.
    """
    sizes = sorted(abs(change) for change in changes if change)
    first, count = {size: i for i, size in reversed([*enumerate(sizes, 1)])}, Counter(sizes)
    ranks = [(_sign(d), first[abs(d)] + (count[abs(d)] - 1) / 2) for d in changes if d]
    total = sum(sign * rank for sign, rank in ranks)
    return (total - _sign(total)) / math.sqrt(sum(rank**2 for _, rank in ranks)) if total else 0.0


def _by_batches(rows: Sequence[Mapping]) -> str | None:
    """Every held-out reward over the iterations in which it and all trained ones were measured."""
    newest = rows[-1] if rows else {}
    trained = {name: keys.mean(keys.REWARD, name) for name in keys.rewards(newest, keys.REWARD)}
    for name in keys.rewards(newest, keys.HELD_OUT):
        key = keys.mean(keys.HELD_OUT, name)
        whole = [row for row in rows if all(measured(row.get(other)) for other in (key, *trained.values()))]
        if len(whole) < SHORTEST:
            continue
        values = [row[key] for row in whole]
        rises = {other: trend([row[other_key] for row in whole]) for other, other_key in trained.items()}
        third = len(values) // 3
        ends = statistics.fmean(values[:third]), statistics.fmean(values[-third:])
        when = f"from iteration {whole[0]['iteration']} to {whole[-1]['iteration']}"
        if message := _message(when, rises, name, trend(values), *ends):
            return message
    return None


def _by_evaluations(evaluations: Sequence[Mapping]) -> str | None:
    """The last evaluation against the one in which the held-out reward stood best, for every held-out reward."""
    *earlier, last = evaluations or ({},)
    for name in held_out(last):
        alike = [row for row in earlier if comparable(row, last) and measured(row["rewards"][name]["mean"])]
        if not alike or not measured(last["rewards"][name]["mean"]):
            continue
        best = max(alike, key=lambda row: row["rewards"][name]["mean"])
        trained = [other for other, figures in last["rewards"].items() if not figures["held_out"]]
        rises = {other: shift(differences(best, last, other)) for other in trained}
        when = f"on the fixed prompts, from iteration {best['iteration']} to {last['iteration']}"
        ends = [row["rewards"][name]["mean"] for row in (best, last)]
        if message := _message(when, rises, name, shift(differences(best, last, name)), *ends):
            return message
    return None


def _message(when: str, rises: Mapping[str, float], name: str, fall: float, before: float, after: float) -> str | None:
    """The sentence, where there is something to say."""
    rising = [f"{other} (z = {z:.1f})" for other, z in rises.items() if z > RISE]
    if not rising or fall >= FALL:
        return None
    return (
        f"this looks like reward hacking: {when}, trained rewards rise, {', '.join(rising)}, while {name}, which is held out, "
        f"falls from {before:.3g} to {after:.3g} (z = {fall:.1f}). Fix: take an earlier checkpoint, lower learning_rate, or "
        "raise kl_coefficient"
    )


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)


# --- the best evaluation ----------------------------------------------------------------------------------------------


def check_metric(settings: Mapping[str, object], rewards: Iterable[str]) -> None:
    """Raises ValueError for a best_metric that evaluations by these rewards do not have, or if nothing is evaluated."""
    check_evaluates(settings)
    metric, metrics = settings["best_metric"], [keys.EVALUATION_SUM, *map(keys.evaluation, rewards)]
    if metric and metric not in metrics:
        raise ValueError(
            f"best_metric {metric!r} is not a figure of this run. Fix: one of {', '.join(metrics)}, or empty"
        )


def check_evaluates(settings: Mapping[str, object]) -> None:
    """Raises ValueError where a Training Run that never evaluates is to keep the best evaluation's adapter."""
    if settings.get("evaluate_every") == 0 and settings.get("best_metric"):
        raise ValueError(
            f"best_metric = {settings['best_metric']!r} judges by evaluations, and evaluate_every is 0. Fix: a number above 0 "
            "for evaluate_every, or no best_metric"
        )


def kept_by(settings: RunSettings, row: Mapping) -> list[str]:
    """The metrics of an evaluation by which a run keeps its best adapter: `best_metric`; else, where a brake may go back to it,
    each held-out reward; else, for artefacts alone, the sum of the trained ones."""
    if settings.best_metric:
        return [settings.best_metric]
    falls = [keys.evaluation(name) for name in held_out(row)] if brakes(settings) else []
    return falls or ([keys.EVALUATION_SUM] if settings.artefacts == STOP else [])


def held_out(row: Mapping) -> list[str]:
    return [name for name, figures in row.get("rewards", {}).items() if figures["held_out"]]


def metric_value(evaluations: Sequence[Mapping], row: Mapping, metric: str) -> float | None:
    """The metric of an evaluation; None where it was not measured.

    A reward's mean, or the sum over the trained rewards of how far each mean has come since before training, in units of its
    standard deviation there. A reward that was the same for all samples then has no unit and is left out. Where an evaluation's
    noise or kind of picture has changed since then, it is since the first one like it.
    """
    if metric != keys.EVALUATION_SUM:
        mean = row["rewards"].get(keys.evaluated(metric), {}).get("mean")
        return mean if measured(mean) else None
    first = next((other for other in evaluations if other["iteration"] == 0), None)
    kinds = [(other.get("noise"), other.get("own")) for other in (*evaluations, row)]
    if first and kinds[evaluations.index(first)] != kinds[-1]:
        first = next(other for other, kind in zip(evaluations, kinds, strict=False) if kind == kinds[-1])
    if first is None or not comparable(first, row):
        return None
    means = [
        (row["rewards"][name]["mean"], figures)
        for name, figures in first["rewards"].items()
        if not figures["held_out"] and figures["std"]
    ]
    if not means or not all(measured(mean) and measured(before["mean"]) for mean, before in means):
        return None
    return sum((mean - before["mean"]) / before["std"] for mean, before in means)


def last_evaluation(evaluations: Sequence[Mapping], metric: str) -> dict | None:
    """The metric of the last evaluation, as best.json has it; None where that was not measured."""
    value = metric_value(evaluations, evaluations[-1], metric)
    if value is None:
        return None
    before = next((metric_value(evaluations, row, metric) for row in evaluations if row["iteration"] == 0), None)
    return {"metric": metric, "value": value, "iteration": evaluations[-1]["iteration"], "before_training": before}


def is_on_record(evaluations: Sequence[Mapping], kept: Mapping) -> bool:
    """Whether the adapter in best/ is of an evaluation that is on record, and came to what best.json says."""
    row = next((row for row in evaluations if row["iteration"] == kept["iteration"]), None)
    return row is not None and metric_value(evaluations, row, kept["metric"]) == kept["value"]


def is_better(evaluations: Sequence[Mapping], new: Mapping, kept: Mapping | None) -> bool:
    """Whether the last evaluation's adapter is to replace the one that is kept, whose figures are on record.

    It always is where those figures are by another metric, or of other prompts or rewards: that is another scale. An evaluation
    whose adapter was not kept does not count.
    """
    if kept is None or kept["metric"] != new["metric"] or new["value"] > kept["value"]:
        return True
    row = next(row for row in evaluations if row["iteration"] == kept["iteration"])
    return not comparable(row, evaluations[-1])


# --- artefacts --------------------------------------------------------------------------------------------------------
#
# Pictures of the same prompts and seeds are compared with those of the untrained model, figure by figure, by the logarithm of
# (now + least) / (before + least): below `least` a figure is too small to be seen, and its ratio says nothing. A warning needs a
# mean ratio above the figure's factor and a mean logarithm above so many standard errors.

ERRORS = 4.0  # standard errors: of 6 figures in 20 evaluations, none passes by chance
# Factor and least of each figure of `pictures.artefacts`; a grid's name has its period in pixels behind it.
LIMITS = {"high_frequency": (2.0, 0.005), "clipped": (2.0, 0.05), "chroma": (1.5, 0.05), "grid": (1.5, 0.0)}


@dataclass(frozen=True)
class Artefact:
    """The figure that has grown most beyond its limit, between the untrained model's pictures and those of an evaluation.

    Attributes:
        before, now: its means.
        factor, errors: the mean ratio, and in standard errors the mean logarithm.
        picture: the number of the picture that shows it most.
    """

    figure: str
    iteration: int
    before: float
    now: float
    factor: float
    errors: float
    picture: int

    @property
    def file(self) -> str:
        """Where the run's folder has that picture, before training and now."""
        return f"{SAMPLES}/{self.iteration:06d}-{self.figure.replace('/', '-')}.png"

    def __str__(self) -> str:
        limit = LIMITS[self.figure.partition("/")[0]][0]
        return (
            f"pictures show artefacts at iteration {self.iteration}: {self.figure} is {self.now:.3g}, and was {self.before:.3g} "
            f"before training, on the same prompts and seeds (× {self.factor:.2f}, {self.errors:.1f} standard errors; the limits "
            f"are × {limit:g} and {ERRORS:g}). {self.file} shows it most. Fix: take an earlier adapter, lower learning_rate, or "
            "raise kl_coefficient"
        )


def artefact(evaluations: Sequence[Mapping]) -> Artefact | None:
    """The artefact that the last evaluation's pictures show and those of before training did not."""
    first, last = next((row for row in evaluations if row["iteration"] == 0), None), (evaluations or [{}])[-1]
    if first is None or not same_beginnings(first, last):
        return None
    parts = []
    for name in first.get("artefacts", {}).keys() & last.get("artefacts", {}).keys():
        pairs = list(zip(first["artefacts"][name], last["artefacts"][name], strict=False))
        limit, least = LIMITS.get(name.partition("/")[0], (math.inf, 1.0))
        if len(first["artefacts"][name]) != len(last["artefacts"][name]) or not all(
            measured(value) for pair in pairs for value in pair
        ):
            continue
        logs = [math.log((now + least) / (before + least)) for before, now in pairs]
        mean, error, _ = standard_error(logs, by_prompt(first.get("prompts"), len(logs)))
        if mean > math.log(limit) and mean > ERRORS * error:
            before, now = (statistics.fmean(values) for values in zip(*pairs, strict=True))
            most = max(range(len(logs)), key=logs.__getitem__)
            errors = mean / error if error else math.inf
            parts.append(
                (mean / math.log(limit), Artefact(name, last["iteration"], before, now, math.exp(mean), errors, most))
            )
    return max(parts, key=lambda one: (one[0], one[1].figure))[1] if parts else None


# --- brakes -----------------------------------------------------------------------------------------------------------
#
# A brake ends a run and gives it back its best adapter. Once that adapter is the run's, the evaluation's row has `brake`, which
# holds while the input that asked for it has the same value: another value, and the run goes on.

RELEASED = {"stop_after_decline": 0, "artefacts": "warn"}  # values by which a run goes on without the brake


@dataclass(frozen=True)
class Brake:
    """Why a run ends, as the row of its last evaluation has it.

    Attributes:
        input, value: of Training Run, which asked for this brake.
        why: on which numbers, for a human.
        metric: by which the best evaluation is chosen.
        kept: the iteration whose adapter the run has since then; None where none was kept.
    """

    input: str
    value: int | str
    why: str
    metric: str
    kept: int | None = None

    def __str__(self) -> str:
        if self.kept is None:
            return f"{self.why}. No adapter of an earlier evaluation was kept, so the run has its last one"
        untrained = ", the untrained model," if self.kept == 0 else ""
        return f"{self.why}. The adapter of iteration {self.kept}{untrained} is kept, the best by {self.metric}"


def brakes(settings: RunSettings) -> bool:
    """Whether a brake may end the run."""
    return bool(settings.stop_after_decline or settings.artefacts == STOP)


def brake_on_record(evaluations: Sequence[Mapping], settings: Mapping[str, object]) -> Brake | None:
    """The brake that ended the run at its last evaluation, while its input is as it was then."""
    row = evaluations[-1].get("brake") if evaluations else None
    brake = Brake(**row) if row else None
    return brake if brake is not None and settings.get(brake.input) == brake.value else None


def brake_due(evaluations: Sequence[Mapping], settings: RunSettings) -> Brake | None:
    """The brake that the last evaluation asks for, and which is not on record yet."""
    if not evaluations or "brake" in evaluations[-1]:
        return None
    by = settings.best_metric or (kept_by(settings, evaluations[-1]) or [""])[0]
    if settings.artefacts == STOP and (problem := artefact(evaluations)):
        return Brake("artefacts", STOP, parts(problem)[0], by)
    fallen = decline(evaluations, settings.stop_after_decline)
    if fallen is None:
        return None
    metric = settings.best_metric or keys.evaluation(fallen[0])
    return Brake("stop_after_decline", settings.stop_after_decline, fallen[1], metric)


def decline(evaluations: Sequence[Mapping], patience: int) -> tuple[str, str] | None:
    """A held-out reward that has declined in each of the last `patience` evaluations, and a sentence about it; else None.

    Declined: over the same pairs of prompt and seed it is below the best evaluation before by more than one standard error of the
    paired differences, clustered by prompt. The one before training counts, and two pairs are needed. A brake begins the count
    anew.
    """
    count = next((n for n, row in enumerate(reversed(evaluations)) if "brake" in row), len(evaluations) - 1)
    if not patience or count < patience:
        return None
    for name in held_out(evaluations[-1]):
        declines = (_declined(evaluations[:i], evaluations[i], name) for i in range(-patience, 0))
        bests = [best for best in declines if best is not None]
        if len(bests) == patience:
            last = evaluations[-1]
            then, now = bests[0]["rewards"][name]["mean"], last["rewards"][name]["mean"]
            fall, error = change(bests[0], last, name)
            return name, (
                f"{name}, which is held out, has declined for {patience} evaluations in a row: from {then:.3g} at iteration "
                f"{bests[0]['iteration']} to {now:.3g} at {last['iteration']}, a change of {fall:.3g} ± {error:.2g}"
            )
    return None


def _declined(earlier: Sequence[Mapping], row: Mapping, name: str) -> Mapping | None:
    """The best evaluation before, if the reward is below it by more than a standard error."""
    alike = [other for other in earlier if comparable(other, row) and measured(other["rewards"][name]["mean"])]
    if not alike:
        return None
    top = max(alike, key=lambda other: other["rewards"][name]["mean"])
    return top if fell(top, row, name) else None


def fell(earlier: Mapping, later: Mapping, name: str) -> bool:
    """Whether a reward is lower in the later evaluation by more than one standard error, over the same pairs of prompt and seed.

    False of fewer than two pairs.
    """
    mean, error = change(earlier, later, name)
    return mean < -error
