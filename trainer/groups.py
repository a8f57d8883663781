"""Statistics within a group: the samples of one prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from .types import STD_SCOPES

if TYPE_CHECKING:
    from torch import Tensor


def per_group(groups: Tensor, valid: Tensor | None = None) -> Iterator[Tensor]:
    """For each group, by rising number: which samples belong to it, [B] bool; of `valid` samples only, so maybe none."""
    for group in groups.unique():
        yield groups == group if valid is None else (groups == group) & valid


def group_advantages(rewards: Tensor, groups: Tensor, valid: Tensor | None = None, std_scope: str = "group") -> Tensor:
    """A_k = (r_k - mean_group) / (std + 1e-8) with the unbiased std, for each objective by itself.

    Args:
        rewards: [B, K].
        groups: [B] group numbers.
        valid: [B] bool; the others count in no statistic and get 0. Default: the samples whose rewards are finite.
        std_scope: "group", or "batch" for the std over all valid samples (Flow-GRPO).

    Returns:
        [B, K]; 0 where a group has no spread or fewer than two valid samples.
    """
    if std_scope not in STD_SCOPES:
        raise ValueError(f"std_scope must be one of {STD_SCOPES}, not {std_scope!r}")
    valid = rewards.isfinite().all(1) if valid is None else valid
    # In float64, so that equal rewards have a spread of zero and not of a rounding error.
    values, advantages = rewards.double(), torch.zeros(rewards.shape, dtype=torch.float64, device=rewards.device)
    for member in per_group(groups, valid):
        if member.sum() < 2:
            continue
        group = values[member]
        spread = group.max(0).values > group.min(0).values
        std = (group if std_scope == "group" else values[valid]).std(0)
        advantages[member] = torch.where(spread, (group - group.mean(0)) / (std + 1e-8), 0.0)
    return advantages.to(rewards.dtype)


def gain_advantages(gains: Tensor, groups: Tensor, valid: Tensor, per_step: bool = False) -> Tensor:
    """(g - mean) / (std + 1e-8) of stepwise gains g, for each objective by itself (Stepwise-Flow-GRPO, 2603.28718).

    Mean and biased std are over all G·T' gains of a group together, as in the paper: a step at which every sample gains is then
    reinforced in every sample.

    Args:
        gains: [B, T', K].
        groups: [B] group numbers.
        valid: [B] bool; the others count in no statistic and get 0.
        per_step: take mean and std over the G gains of each step instead.

    Returns:
        [B, T', K]; 0 where there is no spread, or fewer than two valid samples.
    """
    # In float64, so that equal gains have a spread of zero and not of a rounding error.
    values, advantages = gains.double(), torch.zeros(gains.shape, dtype=torch.float64)
    over = (0,) if per_step else (0, 1)
    for member in per_group(groups, valid):
        if member.sum() < 2:
            continue
        group = values[member]
        spread = group.amax(over, keepdim=True) > group.amin(over, keepdim=True)
        std, mean = torch.std_mean(group, over, correction=0, keepdim=True)
        advantages[member] = torch.where(spread, (group - mean) / (std + 1e-8), 0.0)
    return advantages.to(gains.dtype)


def total_reward(rewards: Tensor, coefficients: Sequence[float], finals: Tensor) -> Tensor:
    """Several objectives as one number: Σ_k coefficient_k · r_k / std_k, [..., K] to [...].

    std_k is that of the final scores `finals` [N, K], so that no objective dominates by its unit. An objective in which the
    final scores do not differ does not count. Where there is no score the sum is NaN.
    """
    finals = finals[finals.isfinite().all(1)].double()
    std = finals.std(0) if len(finals) > 1 else torch.zeros(finals.shape[1], dtype=torch.float64)
    scale = torch.where(std > 0, torch.tensor(coefficients, dtype=torch.float64) / std, 0.0)
    return (rewards.double() * scale).sum(-1).to(rewards.dtype)
