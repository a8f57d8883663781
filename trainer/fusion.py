"""What: how K objectives' advantages become one (method.md §5).

A new fusion method is one function that returns a `Fused`, and its node.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .gains import gain_advantages
from .grpo import group_advantages
from .types import Advantages, Fused, Scores, StepCredit

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

EXPLORATIONS = ("literal", "centered")
RECENTERINGS = ("none", "group")
GAIN_FUSIONS = ("weighted_advantages", "weighted_sum")
EPSILON = 1e-6
ADVANTAGE_LIMIT = 5.0  # A_k is clipped to ± this before it is scaled by its coefficient


def exploration_strength(
    contribution: Tensor, advantages: Tensor, groups: Tensor, mode: str = "literal", valid: Tensor | None = None
) -> Tensor:
    """λ of MOCA (OTCA Eq. 12-13), [B]: 0 where the objectives' sum is not positive, else tanh(e).

    e = |q| / (std_group(q) + ε) measures how unusually much a trajectory moved. Taken literally it is nearly always tens
    to hundreds, hence tanh(e) ≈ 1; "centered" takes |q - mean_group(q)| instead.

    Args:
        contribution: q [B] = Σ_j ŵ_j·ΔS_j.
        advantages: [B, K].
        groups: [B] group numbers.
        mode: one of EXPLORATIONS.
        valid: [B] bool; the others are left out of the groups' statistics. Default: all count.
    """
    total = advantages.sum(1)
    positive = total.clamp(min=0) / (total.abs() + EPSILON)
    return positive * contribution_tanh(contribution, groups, mode, valid)


def contribution_tanh(
    contribution: Tensor, groups: Tensor, mode: str = "literal", valid: Tensor | None = None
) -> Tensor:
    """tanh(e) of `exploration_strength`, [B] in [0, 1]."""
    if mode not in EXPLORATIONS:
        raise ValueError(f"exploration must be one of {EXPLORATIONS}, not {mode!r}")
    valid = torch.ones_like(groups, dtype=torch.bool) if valid is None else valid
    mean, std = torch.zeros_like(contribution), torch.zeros_like(contribution)
    for group in groups.unique():
        member = groups == group
        counted = contribution[member & valid]
        mean[member] = counted.mean() if len(counted) else 0.0
        std[member] = counted.std() if len(counted) > 1 else 0.0
    distance = contribution if mode == "literal" else contribution - mean
    return torch.tanh(distance.abs() / (std + EPSILON))


def moca(advantages: Tensor, exploration: Tensor) -> Fused:
    """Multi-objective credit allocation (OTCA Eq. 14, Algorithm 1): the closed-form min-norm problem with exploration.

    min over c in the simplex of ½·z² - (λ/2)·z with z = Σ_k c_k·A_k: z = clip(λ/2, min_k A_k, max_k A_k).

    Args:
        advantages: [B, K].
        exploration: λ [B].

    Returns:
        The fused advantage [B] and coefficients [B, K]: one-hot where some A_k = z (the first such k), else the two
        neighbours of z in sorted order, linearly interpolated.
    """
    low, high = advantages.min(1), advantages.max(1)
    z = torch.minimum(torch.maximum(exploration / 2, low.values), high.values)
    exact = advantages == z[:, None]
    # The nearest objective on either side of z; where one equals z both sides are it.
    below = advantages.masked_fill(advantages > z[:, None], -torch.inf)
    above = advantages.masked_fill(advantages < z[:, None], torch.inf)
    left, right = below.argmax(1), above.argmin(1)
    left = torch.where(exact.any(1), exact.int().argmax(1), left)
    right = torch.where(exact.any(1), left, right)
    rows = torch.arange(len(z), device=z.device)
    gap = advantages[rows, right] - advantages[rows, left]
    share = torch.where(
        gap > 0, (z - advantages[rows, left]) / gap.clamp(min=torch.finfo(z.dtype).tiny), torch.zeros_like(z)
    )
    coefficients = torch.zeros_like(advantages)
    coefficients[rows, right] = share
    coefficients[rows, left] += 1 - share
    return Fused(z, coefficients)


def min_norm(advantages: Tensor) -> Fused:
    """MOCA without exploration, λ = 0: the multiple-gradient descent algorithm in advantage space. [B, K] -> Fused."""
    return moca(advantages, torch.zeros_like(advantages[:, 0]))


def weighted_sum(
    rewards: Tensor, coefficients: Tensor, groups: Tensor, valid: Tensor | None = None, std_scope: str = "group"
) -> Fused:
    """Rewards are summed first and normalised after (Flow-GRPO).

    Args:
        rewards: [B, K] raw.
        coefficients: [K].
        groups: [B].
        valid: [B] bool, the samples that have all their rewards.
        std_scope: see `grpo.group_advantages`.
    """
    total = (rewards * coefficients).sum(1, keepdim=True)
    return Fused(_normalised(total, groups, valid, std_scope), coefficients.expand_as(rewards).clone())


def weighted_advantages(
    advantages: Tensor, groups: Tensor, valid: Tensor | None = None, std_scope: str = "group"
) -> Fused:
    """Normalise each, sum, normalise again (Multi-GRPO, GDPO). Advantages [B, K] carry their coefficients already.

    DanceGRPO's code for several rewards, and MixGRPO's, leave the sum as it is.
    """
    total = advantages.sum(1, keepdim=True)
    return Fused(_normalised(total, groups, valid, std_scope), torch.ones_like(advantages))


def _normalised(total: Tensor, groups: Tensor, valid: Tensor | None, std_scope: str) -> Tensor:
    return group_advantages(total, groups, valid, std_scope)[:, 0].clamp(-ADVANTAGE_LIMIT, ADVANTAGE_LIMIT)


def recenter(fused: Fused, groups: Tensor, valid: Tensor) -> Fused:
    """Subtracts each group's mean of z over its valid samples: literal MOCA leaves it positive."""
    advantage = fused.advantage.clone()
    for group in groups.unique():
        member = (groups == group) & valid
        if member.any():
            advantage[member] -= advantage[member].mean()
    return Fused(advantage, fused.coefficients)


@dataclass(frozen=True)
class Objectives:
    """What a fusion method may look at: B samples, K objectives."""

    rewards: Tensor  # [B, K] raw; masked samples hold 0
    advantages: Tensor  # [B, K] normalised, clipped, scaled; masked samples hold 0
    coefficients: Tensor  # [K]
    groups: Tensor  # [B]
    valid: Tensor  # [B] bool
    exploration: Tensor  # λ [B]
    std_scope: str


METHODS: dict[str, Callable[[Objectives], Fused]] = {
    "moca": lambda o: moca(o.advantages, o.exploration),
    "min_norm": lambda o: min_norm(o.advantages),
    "weighted_sum": lambda o: weighted_sum(o.rewards, o.coefficients, o.groups, o.valid, o.std_scope),
    "weighted_advantages": lambda o: weighted_advantages(o.advantages, o.groups, o.valid, o.std_scope),
}


def fuse(
    scores: Scores,
    credit: StepCredit,
    method: str,
    *,
    std_scope: str = "group",
    exploration: str = "literal",
    recentering: str = "none",
) -> Advantages:
    """Scores and credit to the effective advantage Ã_j = w_j·z (OTCA Eq. 15), with the numbers that explain it.

    Args:
        method: one of METHODS.
        std_scope: see `grpo.group_advantages`.
        exploration: see `exploration_strength`.
        recentering: "none", or "group" to subtract each group's mean of z.

    Raises:
        ValueError: an unknown method or option, or scores and credit of different trajectories.
    """
    if method not in METHODS or recentering not in RECENTERINGS:
        raise ValueError(f"method must be one of {tuple(METHODS)} and recentering one of {RECENTERINGS}")
    if len(scores.values) != len(credit.weights):
        raise ValueError(
            f"credit: it is of {len(credit.weights)} samples, the scores of {len(scores.values)}. Fix: let both come from the "
            "same SDE Sampler"
        )
    started = time.perf_counter()
    valid = _counted(scores.values.isfinite().all(1), credit.similarity)
    rewards = torch.where(valid[:, None], scores.values, 0.0)
    coefficients = torch.tensor(scores.coefficients)
    normalised = group_advantages(rewards, scores.groups, valid, std_scope)
    per_objective = normalised.clamp(-ADVANTAGE_LIMIT, ADVANTAGE_LIMIT) * coefficients
    contribution = (credit.raw * credit.delta[:, list(credit.trained)]).sum(1)
    strength = exploration_strength(contribution, per_objective, scores.groups, exploration, valid)
    objectives = Objectives(rewards, per_objective, coefficients, scores.groups, valid, strength, std_scope)
    fused = METHODS[method](objectives)
    fused = Fused(torch.where(valid, fused.advantage, 0.0), fused.coefficients.nan_to_num())
    if recentering == "group":
        fused = recenter(fused, scores.groups, valid)
    z, tanh_e = fused.advantage, contribution_tanh(contribution, scores.groups, exploration, valid)
    metrics = {
        "z/zero_fraction": _mean((z[valid] == 0).float()),
        "z/group_mean": _mean(_group_means(z, scores.groups, valid)),
        "moca/tanh_e": _mean(tanh_e[valid]),
        "moca/lambda": _mean(strength[valid]),
        "credit/weight_variation": _variation(credit.weights[valid]),
        "groups/zero_std": float(_silent_groups(normalised, scores.groups, valid)),
        "groups/masked_samples": float((~valid).sum()),
    }
    for k, name in enumerate(scores.names):
        metrics[f"moca/coefficient/{name}"] = _mean(fused.coefficients[valid, k])
    for position, step in enumerate(credit.trained):
        metrics[f"credit/step/{step}"] = _mean(credit.weights[valid, position])
    return Advantages(
        step_advantage=torch.where(valid[:, None], credit.weights * z[:, None], 0.0),
        per_objective=per_objective,
        fused=fused,
        valid=valid,
        scores=scores,
        credit=credit,
        metrics=metrics,
        method=method,
        seconds=time.perf_counter() - started,
    )


def fuse_gains(
    gains: Tensor,
    similarity: Tensor,
    scores: Scores,
    trained: Sequence[int],
    fusion: str = "weighted_advantages",
    per_step: bool = False,
) -> Advantages:
    """Stepwise gains to the effective advantage (Stepwise-Flow-GRPO, 2603.28718): here the credit is the advantage itself.

    Args:
        gains: [B, T', K], see `gains.stepwise_gains`; a sample with one that is not finite takes no part.
        similarity: [B, T+1], S_j = cos(x_j, x̂0): reported, not used.
        scores: of the final pictures.
        trained: the T' transition numbers.
        fusion: one of GAIN_FUSIONS. "weighted_advantages" normalises each objective's gains, adds them by their coefficients and
            normalises again; "weighted_sum" adds the gains first.
        per_step: see `gains.gain_advantages`.

    Returns:
        For the eye, z is the mean of Ã over a sample's steps, A_k that of an objective's normalised gains, and a step's weight is
        its share of Σ_j |Ã_j|, of mean one.

    Raises:
        ValueError: an unknown fusion.
    """
    if fusion not in GAIN_FUSIONS:
        raise ValueError(f"fusion must be one of {GAIN_FUSIONS}, not {fusion!r}")
    started = time.perf_counter()
    groups = scores.groups
    valid = gains.isfinite().flatten(1).all(1) & scores.values.isfinite().all(1)
    valid = _counted(valid, similarity)
    gains = torch.where(valid[:, None, None], gains, 0.0)
    coefficients = torch.tensor(scores.coefficients)

    def normalised(values: Tensor) -> Tensor:
        return gain_advantages(values, groups, valid, per_step).clamp(-ADVANTAGE_LIMIT, ADVANTAGE_LIMIT)

    per_objective = normalised(gains) * coefficients
    summed = per_objective if fusion == "weighted_advantages" else gains * coefficients
    step_advantage = normalised(summed.sum(2, keepdim=True))[:, :, 0]
    z, pull = step_advantage.mean(1), step_advantage.abs()
    total = pull.sum(1, keepdim=True)
    raw = torch.where(total > 0, pull / total, 1 / len(trained))
    credit = StepCredit(
        raw * len(trained), raw, similarity.diff(dim=1), similarity, tuple(trained), method="stepwise_gain"
    )
    metrics = {
        "z/zero_fraction": _mean((z[valid] == 0).float()),
        "z/group_mean": _mean(_group_means(z, groups, valid)),
        "credit/weight_variation": _variation(credit.weights[valid]),
        "groups/zero_std": float(_silent_groups(per_objective.abs().amax(1), groups, valid)),
        "groups/masked_samples": float((~valid).sum()),
    }
    for position, step in enumerate(trained):
        metrics[f"credit/step/{step}"] = _mean(credit.weights[valid, position])
        for k, name in enumerate(scores.names):
            metrics[f"gain/{name}/{step}"] = _mean(gains[valid, position, k])
    shown = torch.ones_like(per_objective) if fusion == "weighted_advantages" else coefficients.expand_as(per_objective)
    return Advantages(
        step_advantage=step_advantage,
        per_objective=per_objective.mean(1),
        fused=Fused(z, shown[:, 0].clone()),
        valid=valid,
        scores=scores,
        credit=credit,
        metrics=metrics,
        method="stepwise_gain",
        seconds=time.perf_counter() - started,
    )


def _counted(scored: Tensor, similarity: Tensor) -> Tensor:
    """Which samples take part, [B] bool: scored, and with finite latents.

    Latents that overflowed make a black picture, which some rewards score as any other.
    """
    finite = similarity.isfinite().all(1)
    if not finite.all():
        lost = ", ".join(map(str, (~finite).nonzero()[:, 0].tolist()))
        logger.warning(
            "latents of the samples %s are not finite: they are left out. Fix if it goes on: dtype bfloat16 or float32",
            lost,
        )
    return scored & finite


def _variation(weights: Tensor) -> float:
    """Mean over the steps of the standard deviation over the samples [B, T']."""
    return weights.std(0).mean().item() if len(weights) > 1 else 0.0


def _mean(values: Tensor) -> float:
    """0 for an empty batch: every sample may be masked."""
    return values.mean().item() if len(values) else 0.0


def _group_means(values: Tensor, groups: Tensor, valid: Tensor) -> Tensor:
    """The mean over each group's valid samples, for the groups that have any."""
    return torch.stack(
        [values[(groups == group) & valid].mean() for group in groups[valid].unique()] or [values[:0].sum()]
    )


def _silent_groups(advantages: Tensor, groups: Tensor, valid: Tensor) -> int:
    """Groups in which some objective tells no sample from another: all equal, or fewer than two valid samples."""
    return sum(bool((advantages[(groups == group) & valid] == 0).all(0).any()) for group in groups.unique())
