"""Statistics within a group: the samples of one prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from .types import STD_SCOPES


def per_group(groups: Tensor, valid: Tensor | None = None) -> Iterator[Tensor]:
    """For each group, by rising number: which samples belong to it, [B] bool; of `valid` samples only, so maybe none."""
    for group in groups.unique():
        yield groups == group if valid is None else (groups == group) & valid


def group_advantages(rewards: Tensor, groups: Tensor, valid: Tensor | None = None, std_scope: str = "group") -> Tensor:
    """A_k = (r_k - mean_group) / (std + 1e-8) with the unbiased std, for each objective by itself.

    Args:
        rewards: [B, K].
        groups: [B] group numbers.
        valid: [B] bool, or [B, K]: which samples count for each objective. The others count in no statistic and get 0.
            Default: the samples whose rewards are finite.
        std_scope: "group", or "batch" for the std over all valid samples (Flow-GRPO).

    Returns:
        [B, K]; 0 where a group has no spread or fewer than two valid samples.
    """
    if std_scope not in STD_SCOPES:
        raise ValueError(f"std_scope must be one of {STD_SCOPES}, not {std_scope!r}")
    valid = rewards.isfinite().all(1) if valid is None else valid
    # In float64, so that equal rewards have a spread of zero and not of a rounding error.
    values, advantages = rewards.double(), torch.zeros(rewards.shape, dtype=torch.float64, device=rewards.device)
    for column, result, counts in zip(values.T, advantages.T, of_each(valid, rewards.shape[1]), strict=True):
        for member, std in _spreads(column, groups, counts, std_scope):
            result[member] = (column[member] - column[member].mean()) / (std + 1e-8)
    return advantages.to(rewards.dtype)


def distances(points: Tensor, groups: Tensor) -> Tensor:
    """1 - cos of each point to the others of its group, in the mean, [B]; 0 for one that is alone. It has a gradient.

    With unit vectors u, Σu of the group and its size S, the mean cosine of a point to the others is (u·Σu - 1) / (S - 1).

    Args:
        points: [B·n, D]; of videos n frames each, which are compared with those of the same time.
        groups: [B] group numbers.
    """
    shape = len(groups), len(points) // max(1, len(groups))
    frames = torch.nn.functional.normalize(points, dim=-1).unflatten(0, shape)  # [B, n, D]
    units = frames.flatten(1) / frames.shape[1] ** 0.5
    alike = (groups[:, None] == groups).to(units)
    others = alike.sum(1) - 1
    cosines = ((units * (alike @ units)).sum(1) - 1) / others.clamp(min=1)
    return torch.where(others > 0, 1 - cosines, 0.0)


def advantage_parts(columns: Tensor, groups: Tensor, valid: Tensor, std_scope: str = "group") -> Tensor:
    """The part of each column in `group_advantages` of their sum, which is linear in them: [B, K], adding up to it.

    Args:
        columns: [B, K].
        groups: [B] group numbers.
        valid: [B] bool.
        std_scope: see `group_advantages`.
    """
    values, parts = columns.double(), torch.zeros(columns.shape, dtype=torch.float64, device=columns.device)
    # The sum as `group_advantages` sees it: what differs there by nothing has no spread here either.
    for member, std in _spreads(columns.sum(1).double(), groups, valid, std_scope):
        parts[member] = (values[member] - values[member].mean(0)) / (std + 1e-8)
    return parts.to(columns.dtype)


def _spreads(column: Tensor, groups: Tensor, counts: Tensor, std_scope: str) -> Iterator[tuple[Tensor, Tensor]]:
    """The groups [B] bool in which a column's values differ, and the std to divide them by."""
    for member in per_group(groups, counts):
        group = column[member]
        if len(group) > 1 and group.max() > group.min():
            yield member, (group if std_scope == "group" else column[counts]).std()


def of_each(valid: Tensor, objectives: int) -> Tensor:
    """Which samples count for each objective, [K, B], of `valid` [B] or [B, K]."""
    return valid.T if valid.ndim == 2 else valid.expand(objectives, -1)


def neutral(values: Tensor, groups: Tensor, counts: Tensor) -> Tensor:
    """`values` [B, …, K] with a group's mean where an objective does not count for a sample: it says nothing for or against it.

    `counts`: [B, K] bool. Where an objective counts for no sample of a group, all of them hold the mean over all groups, so
        that they do not widen the spread of the batch.
    """
    filled = torch.where(_beside(counts, values), values, 0.0)
    overall = filled.sum(0) / counts.sum(0).clamp(min=1)
    for member in per_group(groups):
        share = counts[member].sum(0)
        mean = torch.where(share > 0, filled[member].sum(0) / share.clamp(min=1), overall)
        filled[member] += ~_beside(counts[member], filled[member]) * mean
    return filled


def _beside(counts: Tensor, values: Tensor) -> Tensor:
    """[B, K] as [B, 1, …, K]."""
    return counts.reshape(len(counts), *[1] * (values.ndim - 2), -1)


def gain_advantages(gains: Tensor, groups: Tensor, valid: Tensor, per_step: bool = False) -> Tensor:
    """(g - mean) / (std + 1e-8) of stepwise gains g, for each objective by itself (Stepwise-Flow-GRPO, 2603.28718).

    Mean and biased std are over all G·T' gains of a group together, as in the paper: a step at which every sample gains is then
    reinforced in every sample.

    Args:
        gains: [B, T', K].
        groups: [B] group numbers.
        valid: [B] bool, or [B, K]: which samples count for each objective. The others count in no statistic and get 0.
        per_step: take mean and std over the G gains of each step instead.

    Returns:
        [B, T', K]; 0 where there is no spread, or fewer than two valid samples.
    """
    # In float64, so that equal gains have a spread of zero and not of a rounding error.
    values, advantages = gains.double(), torch.zeros(gains.shape, dtype=torch.float64)
    over = (0,) if per_step else (0, 1)
    for k, counts in enumerate(of_each(valid, gains.shape[2])):
        for member in per_group(groups, counts):
            if member.sum() < 2:
                continue
            group = values[member, :, k]
            spread = group.amax(over, keepdim=True) > group.amin(over, keepdim=True)
            std, mean = torch.std_mean(group, over, correction=0, keepdim=True)
            advantages[member, :, k] = torch.where(spread, (group - mean) / (std + 1e-8), 0.0)
    return advantages.to(gains.dtype)


def total_reward(rewards: Tensor, coefficients: Sequence[float], finals: Tensor) -> Tensor:
    """Several objectives as one number: Σ_k coefficient_k · r_k / std_k, [..., K] to [...].

    std_k is that of the final scores `finals` [N, K], so that no objective dominates by its unit: of those samples where no
    reward failed, and to which this one applies. An objective in which the final scores do not differ does not count. Where
    there is no score the sum is NaN.
    """
    finals = finals[~finals.isnan().any(1)].double()
    columns = [column[column.isfinite()] for column in finals.T]
    std = torch.stack([column.std() if len(column) > 1 else column.new_zeros(()) for column in columns])
    scale = torch.where(std > 0, torch.tensor(coefficients, dtype=torch.float64) / std, 0.0)
    return (rewards.double() * scale).sum(-1).to(rewards.dtype)
