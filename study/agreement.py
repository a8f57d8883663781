"""Does a proxy's ΔS follow the reward's ΔR? Measures over one trajectory's steps (OTCA Table 5, method.md §7).

Each takes a, b [N, T'] of N trajectories and returns [N], NaN for a trajectory in which one of the two has a gap or no spread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

TOP = (3, 5)


def _over_complete(measure: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    @functools.wraps(measure)
    def wrapped(a: np.ndarray, b: np.ndarray, **options) -> np.ndarray:
        a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
        complete = np.logical_and.reduce([np.isfinite(x).all(1) & (x.max(1) > x.min(1)) for x in (a, b)])
        values = np.full(len(a), np.nan)
        values[complete] = measure(a[complete], b[complete], **options)
        return values

    return wrapped


@_over_complete
def pearson(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Pearson's correlation."""
    a, b = (x - x.mean(1, keepdims=True) for x in (a, b))
    return (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))


@_over_complete
def spearman(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Pearson's correlation of the ranks; equal values share the mean of theirs."""
    return pearson(_ranks(a), _ranks(b))


@_over_complete
def order_agreement(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Share of the pairs of steps that b puts in an order and a in the same one; half of it where a does not decide."""
    first, second = np.triu_indices(a.shape[1], 1)
    ours, theirs = (np.sign(x[:, first] - x[:, second]) for x in (a, b))
    return ((1 + ours * theirs) / 2 * (theirs != 0)).sum(1) / (theirs != 0).sum(1)


@_over_complete
def recall(a: np.ndarray, b: np.ndarray, count: int) -> np.ndarray:
    """Share of b's `count` largest steps that are among a's, of equals the earlier; NaN where there are no more than so many."""
    if a.shape[1] <= count:
        return np.full(len(a), np.nan)
    chosen = [_largest(x, count) for x in (a, b)]
    return (chosen[0] & chosen[1]).sum(1) / count


@_over_complete
def peak_distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Steps between the largest of a and the largest of b."""
    return np.abs(a.argmax(1) - b.argmax(1)).astype(float)


MEASURES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "Pearson": pearson,
    "Spearman": spearman,
    "order": order_agreement,
    **{f"recall@{count}": functools.partial(recall, count=count) for count in TOP},
    "peak distance": peak_distance,
}


def chance(steps: int) -> dict[str, float]:
    """What each measure comes to on average where a has nothing to do with b, by T'; NaN where it says nothing."""
    recalls = {f"recall@{count}": count / steps if count < steps else np.nan for count in TOP}
    # Mean |i - j| of two independent steps.
    return {"Pearson": 0.0, "Spearman": 0.0, "order": 0.5, **recalls, "peak distance": (steps**2 - 1) / (3 * steps)}


def _ranks(x: np.ndarray) -> np.ndarray:
    below = (x[:, :, None] > x[:, None, :]).sum(2)
    equal = (x[:, :, None] == x[:, None, :]).sum(2)
    return below + (equal - 1) / 2


def _largest(x: np.ndarray, count: int) -> np.ndarray:
    chosen = np.zeros(x.shape, dtype=bool)
    np.put_along_axis(chosen, np.argsort(-x, axis=1, kind="stable")[:, :count], True, axis=1)
    return chosen
