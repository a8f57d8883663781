"""Intervals of means, Holm's correction, figures of curves, and the tables in which all studies write them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..trainer.errors import standard_error

CONFIDENCE, RESAMPLES = 0.95, 5000
TAILS = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)


@dataclass(frozen=True)
class Interval:
    """The mean of `count` scores, the bounds of its interval at CONFIDENCE, and the two-sided p that it is 0 by chance."""

    mean: float
    low: float
    high: float
    count: int
    p: float = math.nan

    def within(self, least: float, most: float) -> Interval:
        """The same without what a mean of such values cannot be, which takes nothing from how often it covers the mean."""
        low, high = (bound if math.isnan(bound) else min(max(bound, least), most) for bound in (self.low, self.high))
        return replace(self, low=low, high=high)


@dataclass(frozen=True)
class Cell:
    """A reward's verdict on a method: the mean of its scores and, but for the base, of what they differ from the base's by."""

    mean: Interval
    difference: Interval | None = None


def clustered(values: Sequence[float] | np.ndarray, *shared: Iterable[Hashable]) -> Interval:
    """Student's interval of the mean of values [N], which are alike where they share a prompt, a noise or a training.

    What is assumed: `trainer.errors.standard_error`, which has the formula and takes the same arguments. A difference is tighter
    where it can be paired: give the differences, with the labels of their pairs.

    Returns:
        NaN bounds for fewer than two values or groups; `count` is that of the finite values.
    """
    from scipy import stats

    mean, error, freedom = standard_error(values, *shared)
    count = int(np.isfinite(np.asarray(values, dtype=np.float64)).sum())
    if math.isnan(error):
        return Interval(mean, math.nan, math.nan, count)
    half = float(stats.t.ppf(TAILS[1], freedom)) * error
    p = float(2 * stats.t.sf(abs(mean) / error, freedom)) if error else float(mean == 0)
    return Interval(mean, mean - half, mean + half, count, p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (1979), in the order given: p_(i) · (m - i), made monotone, at most 1. NaN is not counted."""
    ordered = sorted((p, number) for number, p in enumerate(p_values) if not math.isnan(p))
    corrected, least = [math.nan] * len(p_values), 0.0
    for rank, (p, number) in enumerate(ordered):
        least = corrected[number] = max(least, min(1.0, p * (len(ordered) - rank)))
    return corrected


# --- curves -----------------------------------------------------------------------------------------------------------


def reached_for_good(used: Sequence[float] | np.ndarray, scores: Sequence[float] | np.ndarray, target: float) -> float:
    """The use at which the line through the evaluations got to the target and did not fall below it again.

    An evaluation without a score, NaN, is left out. Infinity if the last score is below the target, or all are NaN.

    `used`: [E] until each evaluation, rising.
    `scores`: [E].
    """
    points = [(x, y) for x, y in zip(used, scores, strict=True) if not math.isnan(y)]
    if not points or points[-1][1] < target:
        return math.inf
    below = max((i for i, (_, score) in enumerate(points) if score < target), default=None)
    if below is None:
        return float(points[0][0])
    (x, y), (next_x, next_y) = points[below : below + 2]
    return float(x + (target - y) / (next_y - y) * (next_x - x))


def area(used: Sequence[float] | np.ndarray, scores: Sequence | np.ndarray) -> np.ndarray:
    """The mean height of the lines through E evaluations: ∫ score d(used) / ∫ d(used) of scores [E, …]; NaN if one is missing."""
    from scipy.integrate import trapezoid

    x, y = np.asarray(used, dtype=float), np.asarray(scores, dtype=float)
    return trapezoid(y, x, axis=0) / (x[-1] - x[0]) if len(x) > 1 else np.full(y.shape[1:], np.nan)


def non_dominated(points: Sequence[Sequence[float]]) -> list[bool]:
    """For each point, whether it is Pareto-optimal (larger is better); a point with a NaN is not."""
    finite = [tuple(point) for point in points if np.isfinite(point).all()]

    def beaten(own: tuple[float, ...]) -> bool:
        return any(other != own and all(a >= b for a, b in zip(other, own, strict=True)) for other in finite)

    return [tuple(point) in finite and not beaten(tuple(point)) for point in points]


# --- tables in Markdown and CSV: NaN stands for what is missing, and is never printed ----------------------------------


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a Markdown table."""
    line = "| {} |".format
    return [line(" | ".join(head)), f"|{'---|' * len(head)}", *(line(" | ".join(row)) for row in body)]


def as_csv(head: Sequence[str], body: Iterable[Sequence[object]]) -> str:
    """The same in full precision; empty for None and NaN."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows([["" if value is None or value != value else value for value in row] for row in body])
    return text.getvalue()


def number(value: float, form: str, missing: str = "") -> str:
    return missing if math.isnan(value) else f"{value:{form}}"


def plus_minus(interval: Interval, form: str) -> str:
    """`mean ± half of the interval`, or the mean alone if it has no interval."""
    if math.isnan(interval.mean) or math.isnan(interval.low):
        return number(interval.mean, form)
    return f"{interval.mean:{form}} ± {interval.mean - interval.low:{form.replace('+', '')}}"


def bracketed(interval: Interval | None, form: str, missing: str = "") -> str:
    """`mean (low … high)`; a difference, which is written with its sign, is bold if its interval does not hold 0."""
    if interval is None:
        return ""
    if math.isnan(interval.low):
        return number(interval.mean, form, missing)
    text = f"{interval.mean:{form}} ({interval.low:{form}} … {interval.high:{form}})"
    return text if "+" not in form or interval.low <= 0 <= interval.high else f"**{text}**"
