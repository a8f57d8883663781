"""What curves come to, as single figures: when one got to a score, the area under it, and which points nothing dominates."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def reached_for_good(used: Sequence[float] | np.ndarray, scores: Sequence[float] | np.ndarray, target: float) -> float:
    """What was used when the line through the evaluations got to the target and did not fall below it again.

    An evaluation without a score, NaN, is left out. Infinity where the last score is below the target, or there is none.

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
    """The mean height of the line through the evaluations: ∫ score d(used) / ∫ d(used). NaN where a score is missing."""
    x, y = np.asarray(used, dtype=float), np.asarray(scores, dtype=float)
    return float(((y[1:] + y[:-1]) / 2 * np.diff(x)).sum() / (x[-1] - x[0])) if len(x) > 1 else math.nan


def non_dominated(points: Sequence[Sequence[float]]) -> list[bool]:
    """Of each point whether no other one is at least as large in everything and larger in something. One with a NaN is not."""
    known = [tuple(point) for point in points if np.isfinite(point).all()]

    def beaten(own: tuple[float, ...]) -> bool:
        return any(other != own and all(a >= b for a, b in zip(other, own, strict=True)) for other in known)

    return [tuple(point) in known and not beaten(tuple(point)) for point in points]
