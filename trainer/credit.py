"""When: how much of a trajectory's advantage each denoising step receives (method.md §4).

A new credit method is one function that returns a `StepCredit`, and its node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from .types import Share, StepCredit

if TYPE_CHECKING:
    from torch import Tensor

EPSILON = 1e-8
FLOORS = ("affine", "waterfill", "clamp")
NORMALIZATIONS = ("mean", "sum")


def tcd(
    latents: Tensor,
    final: Tensor,
    trained: Sequence[int],
    w_min: float = 0.5,
    floor: str = "affine",
    normalize: str = "mean",
) -> StepCredit:
    """Trajectory credit decomposition (OTCA Eq. 6-8): a step is worth what it moves the latent towards the final one.

    S_j = cos(x_j, x̂0), ΔS_j = S_{j+1} - S_j, ŵ_j = (max(0, ΔS_j) + ε) / Σ over the trained steps.

    Args:
        latents: [B, T+1, …] the points visited.
        final: [B, …] the x̂0 that was decoded for the reward.
        trained: numbers of the trained transitions, 0 … T-1.
        w_min: the floor in [0, 1] of a mean-one weight; 1 is plain GRPO. Ignored for `normalize="sum"`.
        floor: "affine": w_min + (1-w_min)·T'·ŵ. "waterfill": what lies under the floor is lifted to it, the rest scaled so
            that the mean stays 1. "clamp": only lifted, so that the mean may exceed 1.
        normalize: "mean": weights of mean one. "sum": the literal Eq. 8, which sums to one and has no floor.

    Raises:
        ValueError: unknown option, w_min outside [0, 1], no trained step, or one that does not exist.
    """
    similarity, _ = similarity_gain(latents, final)
    return from_similarity(similarity, trained, w_min, floor, normalize)


def from_similarity(
    similarity: Tensor,
    trained: Sequence[int],
    w_min: float = 0.5,
    floor: str = "affine",
    normalize: str = "mean",
) -> StepCredit:
    """The weights of `tcd` for any measure S [B, T+1] of how far a trajectory has come, such as those of `proxies`."""
    delta = similarity.diff(dim=1)
    trained = _checked(trained, delta.shape[1])
    if floor not in FLOORS or normalize not in NORMALIZATIONS:
        raise ValueError(
            f"floor must be one of {FLOORS} and normalize one of {NORMALIZATIONS}, not {floor!r}, {normalize!r}"
        )
    if not 0 <= w_min <= 1:
        raise ValueError(f"w_min must lie in [0, 1], not {w_min}")
    gain = delta[:, list(trained)].clamp(min=0) + EPSILON
    raw = gain / gain.sum(1, keepdim=True)
    if normalize == "sum":
        weights = raw
    elif floor == "affine":
        weights = w_min + (1 - w_min) * len(trained) * raw
    elif floor == "clamp":
        weights = (len(trained) * raw).clamp(min=w_min)
    else:
        weights = _waterfill(len(trained) * raw, w_min)
    return StepCredit(weights, raw, delta, similarity, trained, method="tcd")


def uniform(
    latents: Tensor,
    final: Tensor,
    trained: Sequence[int],
    fraction: float = 1.0,
    generator=None,
    share: Share | None = None,
) -> StepCredit:
    """Every trained step alike, w = 1 (DanceGRPO, Flow-GRPO).

    Args:
        latents, final, trained: as for `tcd`; similarities are reported though not used.
        fraction: below 1, each sample keeps a random subset of ceil(fraction·T') steps (DanceGRPO: 0.6), which share the
            whole weight; the others get 0.
        generator: source of that choice.
        share: where these samples stand in the whole batch, so that their choice does not depend on who makes it; None: they
            are all.
    """
    similarity, delta = similarity_gain(latents, final)
    trained = _checked(trained, delta.shape[1])
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must lie in (0, 1], not {fraction}")
    weights = torch.ones(len(latents), len(trained))
    if fraction < 1:
        kept = math.ceil(fraction * len(trained) - 1e-9)  # 0.1 * 30 is a little more than 3 in floating point
        share = share or Share(range(len(latents)), len(latents))
        order = torch.rand((share.total, len(trained)), generator=generator)[list(share.rows)].argsort(1)
        weights = (order < kept) * (len(trained) / kept)
    raw = weights / weights.sum(1, keepdim=True)
    return StepCredit(weights, raw, delta, similarity, trained, method="uniform")


def similarity_gain(latents: Tensor, final: Tensor) -> tuple[Tensor, Tensor]:
    """S_j = cos(x_j, x̂0) over all latent dimensions in float32, [B, T+1], and ΔS_j = S_{j+1} - S_j, [B, T]."""
    similarity = torch.nn.functional.cosine_similarity(
        latents.float().flatten(2), final.float().flatten(1)[:, None], dim=2
    )
    similarity = similarity.cpu()
    return similarity, similarity.diff(dim=1)


def _waterfill(weights: Tensor, w_min: float) -> Tensor:
    """Raises the smallest entries to w_min and scales the others, so that every row keeps its mean of 1.

    With the n smallest of T' entries lifted, the others share T' - n·w_min in proportion; n is the least number that
    leaves none of them under the floor.
    """
    ordered, count = weights.sort(1).values, weights.shape[1]
    rest = ordered.flip(1).cumsum(1).flip(1)  # sum of what is left when the n smallest are lifted
    lifted = torch.arange(count, dtype=weights.dtype, device=weights.device)
    scale = (count - lifted * w_min) / rest
    # n = count - 1 always fits: the last entry then takes all that remains, which is at least w_min.
    fits = ordered * scale >= w_min
    fits[:, -1] = True
    least = fits.int().argmax(1, keepdim=True)
    return (weights * scale.gather(1, least)).clamp(min=w_min)


def _checked(trained: Sequence[int], steps: int) -> tuple[int, ...]:
    trained = tuple(trained)
    if not trained or len(set(trained)) < len(trained) or not all(0 <= j < steps for j in trained):
        raise ValueError(f"trained steps must be some of 0 … {steps - 1}, each once, not {trained}")
    return trained
