"""Intervals of means: the bootstrap over many pictures, Student's t over few seeds; paired tests and Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

CONFIDENCE, RESAMPLES = 0.95, 5000
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
        NaN bounds for fewer than two scores, and a NaN mean for none.
    """
    finite = np.asarray(values, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    count = len(finite)
    if count < 2:
        return Interval(float(finite.mean()) if count else np.nan, np.nan, np.nan, count)
    generator = np.random.default_rng(seed)
    rows = max(1, _BLOCK // count)
    means = np.concatenate(
        [
            finite[generator.integers(0, count, (min(rows, RESAMPLES - first), count))].mean(1)
            for first in range(0, RESAMPLES, rows)
        ]
    )
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(finite.mean()), float(low), float(high), count)


def bootstrap_of_groups(values: np.ndarray) -> Interval:
    """Of the mean of values [P, S]; draws prompts, each with all its S samples, which are alike.

    Of a single prompt it draws samples. `count` is that of the finite values.
    """
    finite = np.isfinite(values)
    if len(values) == 1:
        return bootstrap(values[0])
    means = [row[scored].mean() for row, scored in zip(values, finite, strict=True) if scored.any()]
    return replace(bootstrap(means), count=int(finite.sum()))


def t_cdf(t: float, freedom: int) -> float:
    """P(T ≤ t) of Student's t with a whole number of degrees of freedom: Abramowitz & Stegun, 26.7.3 and 26.7.4."""
    angle, odd = math.atan(t / math.sqrt(freedom)), freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for power in range(2 + odd, freedom - 1, 2):
        term *= math.cos(angle) ** 2 * (power - 1) / power
        total += term
    within = math.sin(angle) * total
    if odd:
        within = (angle + within) * 2 / math.pi
    return (1 + within) / 2


def t_quantile(probability: float, freedom: int) -> float:
    """The t ≥ 0 with P(T ≤ t) = probability, by bisection; probability from 0.5 to 0.999."""
    low, high = 0.0, 1000.0
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, freedom) < probability else (low, middle)
    return high


def mean_interval(values: Sequence[float]) -> Interval:
    """Student's interval of the mean at CONFIDENCE; NaN bounds for fewer than two values."""
    array = np.asarray(values, dtype=np.float64)
    mean, count = float(array.mean()), len(array)
    if count < 2:
        return Interval(mean, math.nan, math.nan, count)
    half = t_quantile((1 + CONFIDENCE) / 2, count - 1) * float(array.std(ddof=1)) / math.sqrt(count)
    return Interval(mean, mean - half, mean + half, count)


def paired_p(differences: Sequence[float]) -> float:
    """Two-sided p of the paired t test that differences have mean 0; NaN for fewer than two."""
    array = np.asarray(differences, dtype=np.float64)
    if len(array) < 2:
        return math.nan
    error = float(array.std(ddof=1)) / math.sqrt(len(array))
    if error == 0:
        return float(array.mean() == 0)
    return 2 * (1 - t_cdf(abs(float(array.mean())) / error, len(array) - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (1979), in the order given: p_(i) · (m - i), made monotone, at most 1. NaN counts for none."""
    ordered = sorted((p, number) for number, p in enumerate(p_values) if not math.isnan(p))
    corrected, least = [math.nan] * len(p_values), 0.0
    for rank, (p, number) in enumerate(ordered):
        least = corrected[number] = max(least, min(1.0, p * (len(ordered) - rank)))
    return corrected
