"""Which samples are trained: the best and the worst of each group."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .types import Advantages


def best_of_n(advantages: Advantages, best: int, worst: int) -> Advantages:
    """Keeps the `best` and the `worst` samples of each group, by fused advantage z; the others train nothing.

    Best-of-n selection of DanceGRPO (2505.07818), whose code ranks over all prompts together: there an easy prompt's samples
    win over a hard one's. Here a sample is ranked among those of its own prompt, and of equal ones the first in order of rows
    is the better. Advantages stay what they were: mean and spread are those of the whole group.

    The others count like samples whose reward failed: no forward pass, no KL, and the loss is the mean over those that are
    kept. A group of at most best + worst valid samples is kept whole.
    """
    z, groups = advantages.fused.advantage, advantages.scores.groups
    kept = torch.zeros_like(advantages.valid)
    for group in groups.unique():
        rows = ((groups == group) & advantages.valid).nonzero()[:, 0]
        order = rows[z[rows].argsort(descending=True, stable=True)]
        kept[order[:best]] = kept[order[max(0, len(order) - worst) :]] = True
    return replace(
        advantages,
        step_advantage=torch.where(kept[:, None], advantages.step_advantage, 0.0),
        valid=kept,
        metrics={**advantages.metrics, "groups/kept_samples": float(kept.sum())},
    )
