"""Scores and credit to the effective advantage of every trained step, and what explains it (method.md §3, §5)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from .fusion import (
    ADVANTAGE_LIMIT,
    contribution_tanh,
    exploration_strength,
    min_norm,
    moca,
    recenter,
    weighted_advantages,
    weighted_sum,
)
from .groups import gain_advantages, group_advantages
from .types import RECENTERINGS, WEIGHTED_FUSIONS, Advantages, Fused, Scores, StepCredit

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)


def standing(scores: Scores) -> Tensor:
    """How far every sample is from its group's mean by every reward, held-out ones last: [B, K + H], NaN without a score."""
    values = torch.cat([scores.values, scores.held_out], 1)
    columns = [group_advantages(column[:, None], scores.groups, column.isfinite()) for column in values.T]
    return torch.where(values.isfinite(), torch.cat(columns, 1), torch.nan)


def correlation(standings: Tensor) -> Tensor:
    """Pearson correlation [K, K] of the rewards' standings [B, K] within their groups, over the samples that both have scored.

    Within groups: that one prompt scores higher than another by every reward is no agreement between them. NaN where a reward
    tells no sample from another.
    """
    count = standings.shape[1]
    matrix = torch.full((count, count), torch.nan)
    for i in range(count):
        for j in range(count):
            both = standings[:, [i, j]][standings[:, [i, j]].isfinite().all(1)]
            both = both - both.mean(0)
            matrix[i, j] = (both[:, 0] * both[:, 1]).sum() / both.square().sum(0).prod().sqrt()
    return matrix


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
        std_scope: see `groups.group_advantages`.
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
        fusion: one of WEIGHTED_FUSIONS. "weighted_advantages" normalises each objective's gains, adds them by their coefficients,
            and normalises again; "weighted_sum" adds the gains first.
        per_step: see `groups.gain_advantages`.

    Returns:
        For the eye, z is the mean of Ã over a sample's steps, A_k that of an objective's normalised gains, and a step's weight is
        its share of Σ_j |Ã_j|, of mean one.

    Raises:
        ValueError: an unknown fusion.
    """
    if fusion not in WEIGHTED_FUSIONS:
        raise ValueError(f"fusion must be one of {WEIGHTED_FUSIONS}, not {fusion!r}")
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
