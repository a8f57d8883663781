"""The losses that a policy-gradient update minimises: the clipped importance-weighted advantage and its relatives (method.md §6).

A new loss is one function `(log_prob, old_log_prob, advantage, clip, weight) -> (loss, statistics)` and one row in LOSSES;
and one in USES_DIVERGENCE if it also takes how far the means are apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def clipped_objective(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip: Any, weight: Tensor | float = 1.0
) -> tuple[Tensor, dict]:
    """loss = mean of max(-Ã·ρ, -Ã·clip(ρ, 1-c, 1+c)) with ρ = exp(logp - logp_old).

    `log_prob`, `old_log_prob`, `advantage`: of one shape, any.
    `clip`: c, a number, or a tensor with one for each entry.
    `weight`: of a shape that broadcasts to the others, how many entries each entry counts for, in the loss and all statistics.

    Returns:
        The scalar loss, and a dict of detached scalars: `ratio` (mean ρ), `clip_high` and `clip_low` (shares of entries where
        the clipped branch was the one taken), `approx_kl` (mean of ρ - 1 - log ρ).
    """
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    unclipped, clipped = -advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip)
    outside = (ratio > 1 + clip) & (advantage > 0), (ratio < 1 - clip) & (advantage < 0)
    return (weight * torch.maximum(unclipped, clipped)).mean(), _statistics(log_ratio, outside, weight)


def log_hinge(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip: Any, weight: Tensor | float = 1.0
) -> tuple[Tensor, dict]:
    """loss = mean of max(0, ξ·|Ã| - Ã·log ρ) (PCPO, 2509.25774); as `clipped_objective`, with ξ = clip.

    Where it is not zero its gradient is that of -Ã·log ρ, which keeps more digits near ρ = 1 than ρ - 1 does.
    """
    log_ratio = log_prob - old_log_prob
    reached = advantage * log_ratio >= clip * advantage.abs()
    outside = reached & (advantage > 0), reached & (advantage < 0)
    loss = (clip * advantage.abs() - advantage * log_ratio).clamp(min=0)
    return (weight * loss).mean(), _statistics(log_ratio, outside, weight)


def dppo(
    log_prob: Tensor,
    old_log_prob: Tensor,
    advantage: Tensor,
    clip: Any,
    weight: Tensor | float = 1.0,
    divergence: Tensor | float = 0.0,
) -> tuple[Tensor, dict]:
    """loss = mean of -Ã·ρ without clipping, of the entries that have not moved far enough (Flow-DPPO, 2606.11025).

    As `clipped_objective`, with τ = clip: an entry is dropped where KL ≥ τ and its ratio has already gone the advantage's way,
    ρ > 1 with Ã > 0 or ρ < 1 with Ã < 0. Log-ratios average out over a latent's elements, KL does not: it sees a mean that moved
    where ρ is still about 1.

    `divergence`: KL = mean‖μ - μ_old‖²/(2·std²) of each entry; 0 where the policy is the one that sampled.
    """
    log_ratio = log_prob - old_log_prob
    far = (divergence if isinstance(divergence, torch.Tensor) else torch.full_like(log_ratio, divergence)) >= clip
    outside = far & (log_ratio > 0) & (advantage > 0), far & (log_ratio < 0) & (advantage < 0)
    loss = (-advantage * log_ratio.exp()).masked_fill(outside[0] | outside[1], 0.0)
    return (weight * loss).mean(), _statistics(log_ratio, outside, weight)


LOSSES: dict[str, Callable[..., tuple]] = {"clipped": clipped_objective, "log_hinge": log_hinge, "dppo": dppo}
USES_DIVERGENCE = frozenset({"dppo"})  # these compare means as well as densities


@torch.no_grad()
def _statistics(log_ratio: Tensor, outside: tuple[Tensor, Tensor], weight: Tensor | float) -> dict[str, Tensor]:
    ratio = log_ratio.exp()
    high, low = outside
    return {
        "ratio": (weight * ratio).mean(),
        "clip_high": (weight * high.float()).mean(),
        "clip_low": (weight * low.float()).mean(),
        "approx_kl": (weight * (ratio - 1 - log_ratio)).mean(),
    }
