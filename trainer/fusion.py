"""The formulas of fusion: how K objectives' advantages become one (method.md §5).

A new fusion method is one function here that returns a `Fused`, one row in `advantages.METHODS`, and its node.
"""

from __future__ import annotations

import itertools
import logging

import torch
from torch import Tensor

from .groups import advantage_parts, group_advantages, per_group
from .types import EXPLORATIONS, Fused

logger = logging.getLogger(__name__)

EPSILON = 1e-6
ADVANTAGE_LIMIT = 5.0  # A_k is clipped to ± this before it is scaled by its coefficient


def exploration_strength(
    contribution: Tensor, advantages: Tensor, groups: Tensor, mode: str = "literal", valid: Tensor | None = None
) -> Tensor:
    """λ of MOCA (OTCA Eq. 12, Eq. 13), [B]: 0 where the objectives' sum is not positive, else tanh(e).

    e = |q| / (std_group(q) + ε) measures how far a trajectory moved, compared with its group. Taken literally it is nearly
    always tens to hundreds, hence tanh(e) ≈ 1; "centered" takes |q - mean_group(q)| instead.

    Args:
        contribution: q [B] = Σ_j ŵ_j·ΔS_j.
        advantages: [B, K].
        groups: [B] group numbers.
        mode: one of EXPLORATIONS.
        valid: [B] bool; the others do not count in the groups' statistics. Default: all count.
    """
    total = advantages.sum(1)  # [B]
    positive = total.clamp(min=0) / (total.abs() + EPSILON)  # [B]
    return positive * contribution_tanh(contribution, groups, mode, valid)


def contribution_tanh(
    contribution: Tensor, groups: Tensor, mode: str = "literal", valid: Tensor | None = None
) -> Tensor:
    """tanh(e) of `exploration_strength`, [B] in [0, 1]."""
    if mode not in EXPLORATIONS:
        raise ValueError(f"exploration must be one of {EXPLORATIONS}, not {mode!r}")
    mean, std = torch.zeros_like(contribution), torch.zeros_like(contribution)
    for member, counts in zip(per_group(groups), per_group(groups, valid), strict=True):
        counted = contribution[counts]
        mean[member] = counted.mean() if len(counted) else 0.0
        std[member] = counted.std() if len(counted) > 1 else 0.0
    distance = contribution if mode == "literal" else contribution - mean
    return torch.tanh(distance.abs() / (std + EPSILON))


def moca(advantages: Tensor, exploration: Tensor, applies: Tensor | None = None) -> Fused:
    """Multi-objective credit allocation (OTCA Eq. 14, Algorithm 1): the closed-form min-norm problem with exploration.

    min over c in the simplex of ½·z² - (λ/2)·z with z = Σ_k c_k·A_k: z = clip(λ/2, min_k A_k, max_k A_k).

    Args:
        advantages: [B, K].
        exploration: λ [B]; 0 is the min-norm point, the multiple-gradient descent algorithm in advantage space.
        applies: [B, K] bool; the others have no place in the simplex, c_k = 0. Were they an A_k of 0, no sample could move that
            all rewards but one leave out. Default: all, as in a row where none applies.

    Returns:
        The fused advantage [B] and coefficients [B, K]: one-hot where some A_k = z (the first such k), else the two
        neighbours of z in sorted order, linearly interpolated.
    """
    applies = (
        torch.ones_like(advantages, dtype=torch.bool) if applies is None else applies | ~applies.any(1, keepdim=True)
    )
    low, high = (advantages.masked_fill(~applies, end) for end in (torch.inf, -torch.inf))
    z = torch.minimum(torch.maximum(exploration / 2, low.min(1).values), high.max(1).values)  # [B]
    exact = applies & (advantages == z[:, None])  # [B, K]
    # The nearest objective on either side of z; where one equals z both sides are it.
    below = high.masked_fill(advantages > z[:, None], -torch.inf)  # [B, K]
    above = low.masked_fill(advantages < z[:, None], torch.inf)
    left, right = below.argmax(1), above.argmin(1)  # [B], [B]
    left = torch.where(exact.any(1), exact.int().argmax(1), left)
    right = torch.where(exact.any(1), left, right)
    rows = torch.arange(len(z), device=z.device)
    gap = (advantages[rows, right] - advantages[rows, left]).clamp(min=torch.finfo(z.dtype).tiny)  # 0 where one is z
    share = (z - advantages[rows, left]) / gap  # [B]
    coefficients = torch.zeros_like(advantages)
    coefficients[rows, right] = share
    coefficients[rows, left] += 1 - share
    return Fused(z, coefficients, coefficients * advantages)


def of_gradients(products: Tensor, exploration: Tensor, applies: Tensor) -> Tensor:
    """The coefficients of `moca` with gradients in the advantages' place, [B, K] float64.

    min over c in the simplex of ½·‖Σ_k c_k·g_k‖² - (λ/2)·⟨Σ_k c_k·g_k, e⟩, where e is the direction of Σ_k g_k and a
    sample's g_k are divided by their mean length. With λ = 0 that is MGDA-UB (Sener & Koltun, 1810.04650), the picture being the
    shared representation; with numbers for gradients it is Eq. 14. Exact: each of the 2^K - 1 sets of
    objectives is solved by itself, for all samples at once, which is quick for a dozen of them.

    Args:
        products: ⟨g_k, g_l⟩ [B, K, K]. A sample with one that is not finite has coefficients that are not.
        exploration: λ [B].
        applies: [B, K] bool; the others have c_k = 0.
    """
    count, tiny = products.shape[1], torch.finfo(torch.float64).tiny
    products = products.double() * (applies[:, :, None] & applies[:, None])  # [B, K, K]
    lengths = products.diagonal(dim1=1, dim2=2).sqrt()  # [B, K]
    products = products / (lengths.sum(1) / applies.sum(1).clamp(min=1)).square().clamp(min=tiny)[:, None, None]
    along = products.sum(2) / products.sum((1, 2)).clamp(min=tiny).sqrt()[:, None]  # ⟨g_k, e⟩ [B, K]
    pull = exploration.double()[:, None] / 2 * along
    least = torch.full((len(products),), torch.inf, dtype=torch.float64)
    chosen = torch.where(products.isfinite().all(2), 0.0, torch.nan)  # [B, K]
    sets = (list(some) for size in range(1, count + 1) for some in itertools.combinations(range(count), size))
    for some in sets:
        system = torch.ones(len(products), len(some) + 1, len(some) + 1, dtype=torch.float64)
        system[:, :-1, :-1], system[:, -1, -1] = products[:, some][:, :, some], 0.0
        right = torch.cat([pull[:, some], torch.ones_like(pull[:, :1])], 1)
        solution, failed = torch.linalg.solve_ex(system, right)  # c and the multiplier of Σ c = 1
        c = torch.zeros_like(pull)
        c[:, some] = solution[:, :-1]
        value = (c[:, :, None] * products * c[:, None]).sum((1, 2)) / 2 - (c * pull).sum(1)
        fits = (failed == 0) & (c >= -EPSILON).all(1) & applies[:, some].all(1) & (value < least - EPSILON)
        least, chosen = torch.where(fits, value, least), torch.where(fits[:, None], c.clamp(min=0), chosen)
    return chosen


def preferred(fused: Fused, weights: Tensor) -> Fused:
    """z = Σ_k u_k·c_k·A_k of the user's weights u [K]: what a solver chose, as far as each reward is wanted.

    c does not depend on u, so that a reward's share of Σ_k |u_k·c_k·A_k| rises with its own weight and falls with any other.
    Where all weights are 1 it is `fused`, to the bit.
    """
    assert fused.parts is not None  # every solver has them
    parts = fused.parts * weights  # [B, K]
    return Fused(fused.advantage + (parts - fused.parts).sum(1), fused.coefficients, parts)


def summed(columns: Tensor) -> Fused:
    """z is the sum of these columns [B, K], as it is: public code of DanceGRPO for several rewards, and of MixGRPO."""
    return Fused(columns.sum(1), torch.ones_like(columns), columns)


def normalised_sum(
    columns: Tensor,
    groups: Tensor,
    valid: Tensor | None = None,
    std_scope: str = "group",
    coefficients: Tensor | None = None,
) -> Fused:
    """z of the sum of these columns, normalised and clipped; what is clipped shortens all parts alike.

    Args:
        columns: [B, K] what each objective adds, times its coefficient: its rewards (Flow-GRPO), or its advantages. The sum of
            those has a mean of 0 in each group, so that std_scope "batch" normalises it over the batch (GDPO, 2601.05242).
        groups: [B] group numbers.
        valid: [B] bool, the samples where no reward failed. Default: those with a finite sum.
        std_scope: see `groups.group_advantages`.
        coefficients: [K] to look at; default 1.
    """
    total = columns.sum(1, keepdim=True)  # [B, 1]
    valid = total[:, 0].isfinite() if valid is None else valid
    z = group_advantages(total, groups, valid, std_scope)[:, 0]  # [B]
    limited = z.clamp(-ADVANTAGE_LIMIT, ADVANTAGE_LIMIT)
    kept = torch.where(z == limited, 1.0, limited / z)
    shown = torch.ones_like(columns) if coefficients is None else coefficients.expand_as(columns).clone()
    return Fused(limited, shown, advantage_parts(columns, groups, valid, std_scope) * kept[:, None])


def recenter(fused: Fused, groups: Tensor, valid: Tensor) -> Fused:
    """Subtracts each group's mean of z over its valid samples, and of its parts: literal MOCA leaves it positive."""
    advantage, parts = fused.advantage.clone(), None if fused.parts is None else fused.parts.clone()
    for member in per_group(groups, valid):
        if member.any():
            advantage[member] -= advantage[member].mean()
            if parts is not None:
                parts[member] -= parts[member].mean(0)
    return Fused(advantage, fused.coefficients, parts)


def weighted_by_objective(fused: Fused, weights: Tensor) -> Tensor:
    """Ã_j = Σ_k w_{j,k}·(part of objective k in z), [B, T'], of weights [B, T', K]; exactly z where all of them are 1.

    A part is c_k·A_k with the fusion's coefficients c_k. Where the fusion normalises the sum, c_k includes that scale, and A_k is
    taken from the group's mean, as z is.
    """
    assert fused.parts is not None  # every fusion of scores has them
    return fused.advantage[:, None] + ((weights - 1) * fused.parts[:, None]).sum(2)
