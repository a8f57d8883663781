"""Which share of a reward's variance each step decides, over the rollouts of `otca analyze` (method.md §4, learned credit).

What Learned Credit measures, of all trajectories and for held-out rewards too, before any normalisation, with the sums that say
whether the predicted picture's reward is the one to be expected: then Σ_j Var(g_j)/Var(R) is 1; Σ_j Cov(g_j, R)/Var(R) always is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..trainer.credit.learned import moments
from .statistics import CONFIDENCE, RESAMPLES


@dataclass(frozen=True)
class Shares:
    """Of one objective: shares of the T steps, NaN where it prefers no sample, and the interval of Σ_j Var(g_j)/Var(R)."""

    objective: str
    variance: list[float]
    covariance: list[float]
    low: float
    high: float


def shares(names: Sequence[str], rewards: np.ndarray, group_size: int) -> list[Shares]:
    """One for each objective.

    The interval is the percentile bootstrap over groups, at `statistics.CONFIDENCE`; NaN for a single group.

    Args:
        rewards: [N, T+1, K] along the way, in groups of `group_size`.
    """
    along = torch.from_numpy(rewards)
    groups = torch.arange(len(along)) // group_size
    whole = moments(along, groups)
    each = [moments(part, torch.zeros(len(part))) for part in along.split(group_size)]
    gains = torch.stack([own.gain.sum(0) for own in each]).numpy()
    totals = torch.stack([own.total for own in each]).numpy()
    drawn = np.random.default_rng(0).integers(0, len(each), (RESAMPLES, len(each)))
    found = []
    for k, name in enumerate(names):
        total = whole.total[k].item() or np.nan
        low = high = np.nan
        if len(each) > 1 and whole.total[k]:
            denominators = totals[drawn, k].sum(1)
            ratios = gains[drawn, k].sum(1)[denominators > 0] / denominators[denominators > 0]
            low, high = np.quantile(ratios, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        variance, covariance = ((own[:, k] / total).tolist() for own in (whole.gain, whole.shared))
        found.append(Shares(name, variance, covariance, float(low), float(high)))
    return found


def markdown(found: Sequence[Shares], sigmas: Sequence[float]) -> list[str]:
    """Two rows an objective: shares by variance and by covariance, of every step, and their sum."""
    steps = [f"{step} (σ {sigma:.2f})" for step, sigma in enumerate(sigmas[:-1])]
    lines = [f"| objective | share | {' | '.join(steps)} | sum |", f"|---|---|{'---|' * (len(steps) + 1)}"]
    for own in found:
        bounds = "" if np.isnan(own.low) else f" ({own.low:.2f} … {own.high:.2f})"
        for label, values, note in (("Var(g)/Var(R)", own.variance, bounds), ("Cov(g, R)/Var(R)", own.covariance, "")):
            cells = ["–" if np.isnan(value) else f"{value:.2f}" for value in (*values, sum(values))]
            lines.append(f"| {own.objective} | {label} | {' | '.join(cells)}{note} |")
    return [
        *lines,
        "",
        "g: what a step adds to the reward of the predicted picture; R: what all steps add; variances within groups. Sums of "
        "covariances are 1 by themselves; those of variances are 1 where the predicted picture's reward is the one to be "
        "expected (in brackets the 95 % bootstrap interval over groups).",
    ]
