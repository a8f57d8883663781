"""Measures of `otca analyze`: whether a proxy's ΔS follows the reward's ΔR, and which share of a reward each step decides.

A measure of agreement (OTCA Table 5, method.md §7) takes a, b [N, T'] of N trajectories and returns [N], NaN for a trajectory in
which one of the two has a gap or no spread.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..trainer.credit.learned import moments
from .statistics import RESAMPLES, TAILS, number, table

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
    from scipy import stats

    return pearson(stats.rankdata(a, axis=1), stats.rankdata(b, axis=1))


@_over_complete
def order_agreement(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Share of the pairs of steps that b puts in an order and a in the same one; half of it where a does not decide."""
    first, second = np.triu_indices(a.shape[1], 1)
    signs_a, signs_b = (np.sign(x[:, first] - x[:, second]) for x in (a, b))
    return ((1 + signs_a * signs_b) / 2 * (signs_b != 0)).sum(1) / (signs_b != 0).sum(1)


@_over_complete
def recall(a: np.ndarray, b: np.ndarray, count: int) -> np.ndarray:
    """Share of b's `count` largest steps that are among a's, of equals the earlier; NaN if there are no more than so many."""
    if a.shape[1] <= count:
        return np.full(len(a), np.nan)
    chosen = np.zeros((2, *a.shape), dtype=bool)
    for mask, x in zip(chosen, (a, b), strict=True):
        np.put_along_axis(mask, np.argsort(-x, axis=1, kind="stable")[:, :count], True, axis=1)
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


def possible(measure: str) -> tuple[float, float]:
    """The least and the largest value of a measure."""
    if measure == "peak distance":
        return 0.0, np.inf
    return (-1.0, 1.0) if measure in ("Pearson", "Spearman") else (0.0, 1.0)


def chance(steps: int) -> dict[str, float]:
    """The mean of each measure where a has nothing to do with b, by T'; NaN if it says nothing."""
    recalls = {f"recall@{count}": count / steps if count < steps else np.nan for count in TOP}
    # Mean |i - j| of two independent steps.
    return {"Pearson": 0.0, "Spearman": 0.0, "order": 0.5, **recalls, "peak distance": (steps**2 - 1) / (3 * steps)}


# --- shares of a reward's variance ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shares:
    """An objective's variance as shares of the T steps, and the interval of Σ_j Var(g_j)/Var(R); NaN if it prefers no sample."""

    objective: str
    variance: list[float]
    covariance: list[float]
    low: float
    high: float


def shares(names: Sequence[str], rewards: np.ndarray, group_size: int) -> list[Shares]:
    """One for each objective: which share of its variance each step decides (method.md §4, learned credit).

    This is what Learned Credit measures, of all trajectories and for held-out rewards too, before any normalisation, with the
    sums that say whether the predicted picture's reward is the one to be expected: then Σ_j Var(g_j)/Var(R) is 1;
    Σ_j Cov(g_j, R)/Var(R) always is. The interval is the percentile bootstrap over groups; NaN for a single group.

    `rewards`: [N, T+1, K] along the way, in groups of `group_size`.
    """
    along = torch.from_numpy(rewards)
    whole = moments(along, torch.arange(len(along)) // group_size)
    groups = [moments(part, torch.zeros(len(part))) for part in along.split(group_size)]
    gains = torch.stack([own.gain.sum(0) for own in groups]).numpy()
    totals = torch.stack([own.total for own in groups]).numpy()
    drawn = np.random.default_rng(0).integers(0, len(groups), (RESAMPLES, len(groups)))
    results = []
    for k, name in enumerate(names):
        total = whole.total[k].item() or np.nan
        low = high = np.nan
        if len(groups) > 1 and whole.total[k]:
            denominators = totals[drawn, k].sum(1)
            ratios = gains[drawn, k].sum(1)[denominators > 0] / denominators[denominators > 0]
            low, high = np.quantile(ratios, TAILS)
        variance, covariance = ((own[:, k] / total).tolist() for own in (whole.gain, whole.shared))
        results.append(Shares(name, variance, covariance, float(low), float(high)))
    return results


def shares_table(found: Sequence[Shares], sigmas: Sequence[float]) -> list[str]:
    """Two rows an objective: shares by variance and by covariance, of every step, and their sum."""
    head = ["objective", "share", *(f"{step} (σ {sigma:.2f})" for step, sigma in enumerate(sigmas[:-1])), "sum"]
    body = []
    for own in found:
        bounds = "" if np.isnan(own.low) else f" ({own.low:.2f} … {own.high:.2f})"
        for label, values, note in (("Var(g)/Var(R)", own.variance, bounds), ("Cov(g, R)/Var(R)", own.covariance, "")):
            *cells, total = [number(value, ".2f", "–") for value in (*values, sum(values))]
            body.append([own.objective, label, *cells, total + note])
    return [
        *table(head, body),
        "",
        "g: what a step adds to the reward of the predicted picture; R: what all steps add; variances within groups. Sums of "
        "covariances are 1 by themselves; those of variances are 1 if the predicted picture's reward is the one to be "
        "expected (in brackets the 95 % bootstrap interval over groups).",
    ]
