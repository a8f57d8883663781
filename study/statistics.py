"""Intervals of means (the bootstrap over many pictures, Student's t over few seeds), paired tests, figures of curves, and the
tables in which all studies write them.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

CONFIDENCE, RESAMPLES = 0.95, 5000
TAILS = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
_BLOCK = 2**18  # scores that are drawn at once


@dataclass(frozen=True)
class Interval:
    """The mean of `count` scores, and the bounds of its interval at CONFIDENCE."""

    mean: float
    low: float
    high: float
    count: int


def bootstrap(values: Sequence[float], seed: int = 0) -> Interval:
    """Percentile bootstrap of the mean (Efron, 1979), at CONFIDENCE; what is not finite is left out.

    Returns:
        NaN bounds for fewer than two scores, and a NaN mean for an empty list.
    """
    finite = np.asarray(values, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    count = len(finite)
    if count < 2:
        return Interval(float(finite.mean()) if count else np.nan, np.nan, np.nan, count)
    generator = np.random.default_rng(seed)
    rows = max(1, _BLOCK // count)
    draws = (min(rows, RESAMPLES - first) for first in range(0, RESAMPLES, rows))
    means = np.concatenate([finite[generator.integers(0, count, (draw, count))].mean(1) for draw in draws])
    low, high = np.quantile(means, TAILS)
    return Interval(float(finite.mean()), float(low), float(high), count)


def bootstrap_of_groups(values: np.ndarray) -> Interval:
    """The bootstrap of the mean of values [P, S]: it draws prompts, each with all its S samples, which are alike.

    If there is a single prompt, it draws samples. `count` is that of the finite values.
    """
    finite = np.isfinite(values)
    if len(values) == 1:
        return bootstrap(values[0])
    means = [row[scored].mean() for row, scored in zip(values, finite, strict=True) if scored.any()]
    return replace(bootstrap(means), count=int(finite.sum()))


def mean_interval(values: Sequence[float]) -> Interval:
    """Student's interval of the mean at CONFIDENCE; NaN bounds for fewer than two values."""
    from scipy import stats

    array = np.asarray(values, dtype=np.float64)
    mean, count = float(array.mean()), len(array)
    if count < 2:
        return Interval(mean, math.nan, math.nan, count)
    half = float(stats.t.ppf(TAILS[1], count - 1)) * float(array.std(ddof=1)) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count)


def paired_p(differences: Sequence[float]) -> float:
    """Two-sided p of the paired t test that differences have mean 0; NaN for fewer than two."""
    from scipy import stats

    array = np.asarray(differences, dtype=np.float64)
    if len(array) < 2:
        return math.nan
    error = float(array.std(ddof=1)) / math.sqrt(len(array))
    if error == 0:
        return float(array.mean() == 0)
    return float(2 * stats.t.sf(abs(float(array.mean())) / error, len(array) - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (1979), in the order given: p_(i) · (m - i), made monotone, at most 1. NaN is not counted."""
    ordered = sorted((p, number) for number, p in enumerate(p_values) if not math.isnan(p))
    corrected, least = [math.nan] * len(p_values), 0.0
    for rank, (p, number) in enumerate(ordered):
        least = corrected[number] = max(least, min(1.0, p * (len(ordered) - rank)))
    return corrected


# --- curves -----------------------------------------------------------------------------------------------------------


def reached_for_good(used: Sequence[float] | np.ndarray, scores: Sequence[float] | np.ndarray, target: float) -> float:
    """What was used when the line through the evaluations got to the target and did not fall below it again.

    An evaluation without a score, NaN, is left out. Infinity if the last score is below the target, or all are NaN.

    Args:
        used: [E] until each evaluation, rising.
        scores: [E].
    """
    points = [(x, y) for x, y in zip(used, scores, strict=True) if not math.isnan(y)]
    if not points or points[-1][1] < target:
        return math.inf
    below = max((i for i, (_, score) in enumerate(points) if score < target), default=None)
    if below is None:
        return float(points[0][0])
    (x, y), (next_x, next_y) = points[below : below + 2]
    return float(x + (target - y) / (next_y - y) * (next_x - x))


def area(used: Sequence[float] | np.ndarray, scores: Sequence[float] | np.ndarray) -> float:
    """The mean height of the line through the evaluations: ∫ score d(used) / ∫ d(used). NaN if a score is missing."""
    x, y = np.asarray(used, dtype=float), np.asarray(scores, dtype=float)
    return float(((y[1:] + y[:-1]) / 2 * np.diff(x)).sum() / (x[-1] - x[0])) if len(x) > 1 else math.nan


def non_dominated(points: Sequence[Sequence[float]]) -> list[bool]:
    """For each point, whether it is Pareto-optimal (larger is better); a point with a NaN is not."""
    known = [tuple(point) for point in points if np.isfinite(point).all()]

    def beaten(own: tuple[float, ...]) -> bool:
        return any(other != own and all(a >= b for a, b in zip(other, own, strict=True)) for other in known)

    return [tuple(point) in known and not beaten(tuple(point)) for point in points]


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
