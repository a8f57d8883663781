"""From scores and credit to the effective advantage of every trained step, and the figures that explain it (method.md §3, §5)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from . import keys
from .fusion import (
    ADVANTAGE_LIMIT,
    contribution_tanh,
    exploration_strength,
    moca,
    normalised_sum,
    preferred,
    recenter,
    summed,
    weighted_by_objective,
)
from .groups import gain_advantages, group_advantages, neutral, per_group
from .types import FUSION_WEIGHTS, GAIN_FUSIONS, RECENTERINGS, STEPWISE_GAIN, Advantages, Fused, Scores, StepCredit

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Objectives:
    """The data that a fusion method may look at: B samples, K objectives."""

    rewards: Tensor  # [B, K] raw; 0 where `applies` is not
    advantages: Tensor  # [B, K] normalised, clipped; 0 where `applies` is not
    coefficients: Tensor  # u [K], the user's weights of the rewards
    weights: Tensor  # [K] u, but 1 where the advantages are multiplied by it already
    groups: Tensor  # [B]
    valid: Tensor  # [B] bool
    applies: Tensor  # [B, K] bool, of valid samples only
    exploration: Tensor  # λ [B]
    std_scope: str


SOLVERS = ("moca", "min_norm")  # methods that choose the coefficients of each sample anew

METHODS: dict[str, Callable[[Objectives], Fused]] = {
    "moca": lambda o: preferred(moca(o.advantages, o.exploration, o.applies), o.weights),
    "min_norm": lambda o: preferred(moca(o.advantages, torch.zeros_like(o.exploration), o.applies), o.weights),
    "weighted_sum": lambda o: normalised_sum(
        neutral(o.rewards, o.groups, o.applies) * o.coefficients, o.groups, o.valid, o.std_scope, o.coefficients
    ),
    "weighted_advantages": lambda o: normalised_sum(o.advantages * o.weights, o.groups, o.valid, "batch"),
    "weighted_advantages_per_group": lambda o: normalised_sum(o.advantages * o.weights, o.groups, o.valid),
    "summed_advantages": lambda o: summed(o.advantages * o.weights),
}


def fuse(
    scores: Scores,
    credit: StepCredit,
    method: str,
    *,
    std_scope: str = "group",
    exploration: str = "literal",
    recentering: str = "none",
    weights: str = "in the sum",
) -> Advantages:
    """The effective advantage Ã_j = w_j·z (OTCA Eq. 15), or Σ_k w_{j,k}·c_k·A_k of a credit by objective.

    A reward that does not apply to a sample has A_k = 0 and c_k = 0 there, and counts in no statistic; one that failed, or a
    sample to which none applies, takes the sample out.

    `method`: one of METHODS, which makes z.
    `std_scope`: see `groups.group_advantages`.
    `exploration`: see `fusion.exploration_strength`.
    `recentering`: "none", or "group" to subtract each group's mean of z.
    `weights`: of FUSION_WEIGHTS. "in the sum": a reward's coefficient multiplies its part of z, whatever the method, so that a
        lower one lowers its share. "in the solver": MOCA and min-norm see the advantages times their coefficients.

    Raises:
        ValueError: an unknown method or option, or scores and credit of different trajectories.
    """
    if method not in METHODS or recentering not in RECENTERINGS or weights not in FUSION_WEIGHTS:
        raise ValueError(f"methods are {tuple(METHODS)}, recenterings {RECENTERINGS}, and weights {FUSION_WEIGHTS}")
    _check(scores, credit)
    started, groups = time.perf_counter(), scores.groups
    valid = _valid(scores.usable, credit.similarity)
    applies = valid[:, None] & scores.values.isfinite()
    rewards = torch.where(applies, scores.values, 0.0)
    coefficients = torch.tensor(scores.coefficients)
    normalised = group_advantages(rewards, groups, applies, std_scope)
    ones = torch.ones_like(coefficients)
    before, after = (coefficients, ones) if weights == "in the solver" else (ones, coefficients)
    limited = normalised.clamp(-ADVANTAGE_LIMIT, ADVANTAGE_LIMIT) * before
    contribution = (credit.raw * credit.delta[:, list(credit.trained)]).sum(1)
    strength = exploration_strength(contribution, limited, groups, exploration, valid)
    fused = METHODS[method](
        Objectives(rewards, limited, coefficients, after, groups, valid, applies, strength, std_scope)
    )
    fused = Fused(
        torch.where(valid, fused.advantage, 0.0),
        torch.where(applies, fused.coefficients, 0.0),
        None if fused.parts is None else torch.where(valid[:, None], fused.parts, 0.0),
    )
    if recentering == "group":
        fused = recenter(fused, groups, valid)
    z, tanh_e = fused.advantage, contribution_tanh(contribution, groups, exploration, valid)
    metrics = _metrics(z, credit, normalised, groups, applies)
    metrics |= {"moca/tanh_e": _mean(tanh_e[valid]), "moca/lambda": _mean(strength[valid])}
    metrics |= {
        f"moca/coefficient/{name}": _mean(fused.coefficients[applies[:, k], k]) for k, name in enumerate(scores.names)
    }
    metrics |= {**_step_weights(credit, valid), **credit.metrics}
    shares = credit.by_objective
    by_step = credit.weights * z[:, None] if shares is None else weighted_by_objective(fused, shares)
    step_advantage = torch.where(valid[:, None], by_step, 0.0)
    seconds = time.perf_counter() - started
    advantages = Advantages(step_advantage, limited * after, fused, valid, scores, credit, metrics, method, seconds)
    strength = strength if method == "moca" else torch.zeros_like(strength)
    return replace(advantages, exploration=strength, compared=tuple(before.tolist()))


def fuse_gains(
    gains: Tensor,
    similarity: Tensor,
    scores: Scores,
    trained: Sequence[int],
    fusion: str = "weighted_advantages",
    per_step: bool = False,
) -> Advantages:
    """The effective advantage of stepwise gains (Stepwise-Flow-GRPO, 2603.28718): here the credit is the advantage itself.

    Args:
        gains: [B, T', K], see `gains.stepwise_gains`; a sample with a gain that is not finite is not valid, unless it is of a
            reward that does not apply to the final picture.
        similarity: [B, T+1], S_j = cos(x_j, x̂0): reported, not used.
        scores: of the final pictures.
        trained: the T' transition numbers.
        fusion: one of GAIN_FUSIONS. "weighted_advantages" normalises each objective's gains, adds them by their coefficients, and
            normalises the sum over the batch; "…_per_group" does so in each group again; "weighted_sum" adds the gains first.
        per_step: see `groups.gain_advantages`.

    Returns:
        To look at, z is the mean of Ã over a sample's steps, A_k that of an objective's normalised gains, and a step's weight
        is its share of Σ_j |Ã_j|, of mean one.

    Raises:
        ValueError: an unknown fusion.
    """
    if fusion not in GAIN_FUSIONS:
        raise ValueError(f"fusion must be one of {GAIN_FUSIONS}, not {fusion!r}")
    started, groups = time.perf_counter(), scores.groups
    complete = (gains.isfinite().all(1) | ~scores.values.isfinite()).all(1)
    valid = _valid(scores.usable & complete, similarity)
    applies = valid[:, None] & scores.values.isfinite()
    gains = torch.where(applies[:, None], gains, 0.0)
    coefficients = torch.tensor(scores.coefficients)

    def normalised(values: Tensor, counts: Tensor, groups: Tensor = groups) -> Tensor:
        return gain_advantages(values, groups, counts, per_step).clamp(-ADVANTAGE_LIMIT, ADVANTAGE_LIMIT)

    per_objective = normalised(gains, applies) * coefficients
    raw = neutral(gains, groups, applies)
    total = (raw * coefficients if fusion == "weighted_sum" else per_objective).sum(2, keepdim=True)
    over = torch.zeros_like(groups) if fusion == "weighted_advantages" else groups
    silent = (per_objective == 0).all(2)  # where the batch's mean would leave a rounding error
    step_advantage = torch.where(silent, 0.0, normalised(total, valid, over)[:, :, 0])
    z, credit = step_advantage.mean(1), _share_of_advantage(step_advantage, similarity, tuple(trained))
    metrics = _metrics(z, credit, per_objective.abs().amax(1), groups, applies) | _step_weights(credit, valid)
    metrics |= {
        f"gain/{name}/{step}": _mean(gains[applies[:, k], position, k])
        for position, step in enumerate(trained)
        for k, name in enumerate(scores.names)
    }
    shown = coefficients if fusion == "weighted_sum" else torch.ones_like(coefficients)
    fused, mean = Fused(z, torch.where(applies, shown, 0.0)), per_objective.mean(1)
    seconds = time.perf_counter() - started
    return Advantages(step_advantage, mean, fused, valid, scores, credit, metrics, STEPWISE_GAIN, seconds)


def of_pairs(scores: Scores, credit: StepCredit) -> Advantages:
    """Pictures of which is known how good they are, by scores s in [0, 1]: z = 2·s - 1, and Ã_j = w_j·z.

    A pair has z of 1 and -1. Nothing is divided by a spread: that of two samples is always the same.
    """
    started, groups = time.perf_counter(), scores.groups
    valid = _valid(scores.usable, credit.similarity)
    z = torch.where(valid, 2 * scores.values[:, 0] - 1, 0.0)
    metrics = _metrics(z, credit, z[:, None], groups, valid[:, None]) | _step_weights(credit, valid)
    fused = Fused(z, torch.ones_like(scores.values))
    step_advantage = torch.where(valid[:, None], credit.weights * z[:, None], 0.0)
    seconds = time.perf_counter() - started
    return Advantages(step_advantage, z[:, None], fused, valid, scores, credit, metrics, "pairs", seconds)


def best_of_n(advantages: Advantages, best: int, worst: int) -> Advantages:
    """Keeps the `best` and the `worst` samples of each group, by fused advantage z; the others train nothing.

    Best-of-n selection of DanceGRPO (2505.07818), whose code ranks the samples of all prompts together: there the samples of an
    easy prompt win over those of a hard one. Here a sample is ranked within its own group, and of equal samples the one in the
    earlier row is better. Advantages do not change: mean and spread are those of the whole group.

    The others count like samples whose reward failed: no forward pass, no KL, and the loss is the mean over the samples that
    are kept. A group of at most best + worst valid samples is kept whole.
    """
    z = advantages.fused.advantage
    kept = torch.zeros_like(advantages.valid)
    for member in per_group(advantages.scores.groups, advantages.valid):
        rows = member.nonzero()[:, 0]
        order = rows[z[rows].argsort(descending=True, stable=True)]
        kept[order[:best]] = kept[order[max(0, len(order) - worst) :]] = True
    return replace(
        advantages,
        step_advantage=torch.where(kept[:, None], advantages.step_advantage, 0.0),
        valid=kept,
        metrics={**advantages.metrics, "groups/kept_samples": float(kept.sum())},
        most_of_a_group=min(best + worst, advantages.most_of_a_group or best + worst),
    )


def standing(scores: Scores) -> Tensor:
    """Each sample's group advantage by every reward, held-out ones last: [B, K + H], NaN without a score."""
    values = torch.cat([scores.values, scores.held_out], 1)
    columns = [group_advantages(column[:, None], scores.groups, column.isfinite()) for column in values.T]
    return torch.where(values.isfinite(), torch.cat(columns, 1), torch.nan)


def correlation(standings: Tensor) -> Tensor:
    """Pearson correlation [K, K] of the rewards' standings [B, K], over the samples that both rewards have scored.

    Standings are within groups, since two rewards that both prefer one prompt to another do not agree by that. NaN where a
    reward gives all samples the same standing.
    """
    count = standings.shape[1]
    matrix = torch.full((count, count), torch.nan)
    for i in range(count):
        for j in range(count):
            both = standings[:, [i, j]][standings[:, [i, j]].isfinite().all(1)]
            both = both - both.mean(0)
            matrix[i, j] = (both[:, 0] * both[:, 1]).sum() / both.square().sum(0).prod().sqrt()
    return matrix


def _check(scores: Scores, credit: StepCredit) -> None:
    if len(scores.values) != len(credit.weights):
        raise ValueError(
            f"credit: it is of {len(credit.weights)} samples, the scores of {len(scores.values)}. Fix: let both come from the "
            "same SDE Sampler"
        )
    if credit.by_objective is not None and credit.objectives != scores.names:
        raise ValueError(
            f"credit: its weights are of the objectives {', '.join(credit.objectives)}, the scores of "
            f"{', '.join(scores.names)}. Fix: connect both to the same Reward Stack"
        )


def _valid(scored: Tensor, similarity: Tensor) -> Tensor:
    """Which samples count, [B] bool: those with scores and finite latents.

    Latents that overflowed make a black picture, which some rewards score like any other picture.
    """
    finite = similarity.isfinite().all(1)
    if not finite.all():
        lost = ", ".join(map(str, (~finite).nonzero()[:, 0].tolist()))
        logger.warning(
            "latents of the samples %s are not finite: they are left out. Fix if it continues: dtype bfloat16 or float32",
            lost,
        )
    return scored & finite


def _share_of_advantage(step_advantage: Tensor, similarity: Tensor, trained: tuple[int, ...]) -> StepCredit:
    """Weights: each step's share of Σ_j |Ã_j|; all steps alike where Ã is zero."""
    size = step_advantage.abs()
    total = size.sum(1, keepdim=True)
    raw = torch.where(total > 0, size / total, 1 / len(trained))
    return StepCredit(raw * len(trained), raw, similarity.diff(dim=1), similarity, trained, method=STEPWISE_GAIN)


def _metrics(z: Tensor, credit: StepCredit, normalised: Tensor, groups: Tensor, applies: Tensor) -> dict[str, float]:
    """Figures of every fusion; `normalised` [B, K] is zero where an objective prefers no sample or does not apply."""
    valid = applies.any(1)
    members = list(per_group(groups, valid))
    # [K] bool of each group: objectives that prefer no sample though they apply to one; all of a group without a valid sample.
    silent = [(normalised[at] == 0).all(0) & (applies[at].any(0) | ~applies[at].any()) for at in members]
    means = [z[member].mean() for member in members if member.any()]
    weights = credit.weights[valid]
    return {
        "z/zero_fraction": _mean((z[valid] == 0).float()),
        "z/group_mean": _mean(torch.stack(means)) if means else 0.0,
        "credit/weight_variation": weights.std(0).mean().item() if len(weights) > 1 else 0.0,
        "groups/zero_std": float(sum(bool(row.any()) for row in silent)),
        "groups/masked_samples": float((~valid).sum()),
    }


def _step_weights(credit: StepCredit, valid: Tensor) -> dict[str, float]:
    figures = {}
    for position, step in enumerate(credit.trained):
        figures[keys.credit_step(step)] = _mean(credit.weights[valid, position])
        for k, name in enumerate(credit.objectives):
            assert credit.by_objective is not None  # whose objectives these are
            figures[keys.objective_step(name, step)] = _mean(credit.by_objective[valid, position, k])
    return figures


def _mean(values: Tensor) -> float:
    """0 for an empty batch, since no sample may be valid."""
    return values.mean().item() if len(values) else 0.0
