"""Which evaluation of a run was the best, and whether what is held out has declined for too long.

Both follow from evaluation.jsonl alone, so that a resumed run comes to the same. Imports neither torch nor anything heavy.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from .hacking import comparable, gains, measured

PREFIX = "evaluation/"  # as TensorBoard has them
SUM = PREFIX + "sum"


def check(metric: str, rewards: Iterable[str]) -> None:
    """Raises ValueError for a metric that evaluations by these rewards do not have."""
    known = [SUM, *(PREFIX + name for name in rewards)]
    if metric not in known:
        raise ValueError(f"best_metric {metric!r} is no figure of this run. Fix: one of {', '.join(known)}, or empty")


def value(evaluations: Sequence[Mapping], row: Mapping, metric: str) -> float | None:
    """What an evaluation came to; None where it was not measured.

    A reward's mean, or the sum over the trained rewards of how far each mean has come since before training, in units of its
    standard deviation there. A reward that told no two samples apart then has no unit and is left out.
    """
    if metric != SUM:
        mean = row["rewards"].get(metric.removeprefix(PREFIX), {}).get("mean")
        return mean if measured(mean) else None
    first = next((other for other in evaluations if other["iteration"] == 0), None)
    if first is None or not comparable(first, row):
        return None
    trained = {
        name: figures for name, figures in first["rewards"].items() if not figures["held_out"] and figures["std"]
    }
    means = [(row["rewards"][name]["mean"], figures) for name, figures in trained.items()]
    if not means or not all(measured(mean) and measured(before["mean"]) for mean, before in means):
        return None
    return sum((mean - before["mean"]) / before["std"] for mean, before in means)


def figures(evaluations: Sequence[Mapping], metric: str) -> dict | None:
    """What the last evaluation came to, as best.json has it; None where that was not measured."""
    own = value(evaluations, evaluations[-1], metric)
    if own is None:
        return None
    before = next((value(evaluations, row, metric) for row in evaluations if row["iteration"] == 0), None)
    return {"metric": metric, "value": own, "iteration": evaluations[-1]["iteration"], "before_training": before}


def on_record(evaluations: Sequence[Mapping], kept: Mapping) -> bool:
    """Whether the adapter in best/ is of an evaluation that is on record, and came to what best.json says."""
    row = next((row for row in evaluations if row["iteration"] == kept["iteration"]), None)
    return row is not None and value(evaluations, row, kept["metric"]) == kept["value"]


def better(evaluations: Sequence[Mapping], new: Mapping, kept: Mapping | None) -> bool:
    """Whether the last evaluation's adapter is to take the place of the one that is kept, whose figures are on record.

    It is where they are by another metric, or of other prompts or rewards, which are another scale. No evaluation counts whose
    adapter was not kept.
    """
    if kept is None or kept["metric"] != new["metric"] or new["value"] > kept["value"]:
        return True
    row = next(row for row in evaluations if row["iteration"] == kept["iteration"])
    return not comparable(row, evaluations[-1])


def early_stop(evaluations: Sequence[Mapping], patience: int) -> str | None:
    """A sentence for a human where one held-out reward has declined in each of the last `patience` evaluations; else None.

    Declined: over the same pairs of prompt and seed it is below the best evaluation before by more than one standard error of the
    paired differences, mean(d) < -std(d)/√n. The one before training counts, and two pairs are needed.
    """
    if not patience or len(evaluations) <= patience:
        return None
    for name in [name for name, figures in evaluations[-1]["rewards"].items() if figures["held_out"]]:
        bests = [_declined(evaluations[:i], evaluations[i], name) for i in range(-patience, 0)]
        if all(bests):
            then, now = bests[0]["rewards"][name]["mean"], evaluations[-1]["rewards"][name]["mean"]
            return (
                f"{name}, which is held out, has declined for {patience} evaluations in a row: from {then:.3g} at iteration "
                f"{bests[0]['iteration']} to {now:.3g} at {evaluations[-1]['iteration']}"
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
    differences = gains(earlier, later, name)
    if len(differences) < 2:
        return False
    return statistics.fmean(differences) < -statistics.stdev(differences) / math.sqrt(len(differences))
