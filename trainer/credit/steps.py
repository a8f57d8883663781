"""When: how much of a trajectory's advantage each denoising step receives (method.md §4).

A new credit method is one function that returns a `StepCredit`, and its node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...host.distributed import Share
from ..types import FLOORS, NORMALIZATIONS, StepCredit, Trajectories

EPSILON = 1e-8


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
    similarity: Tensor, trained: Sequence[int], w_min: float = 0.5, floor: str = "affine", normalize: str = "mean"
) -> StepCredit:
    """The weights of `tcd` for any measure S [B, T+1] of how far a trajectory has come, such as those of `proxies`."""
    delta = similarity.diff(dim=1)  # [B, T]
    trained = _checked(trained, delta.shape[1])
    if floor not in FLOORS or normalize not in NORMALIZATIONS:
        raise ValueError(
            f"floor must be one of {FLOORS} and normalize one of {NORMALIZATIONS}, not {floor!r}, {normalize!r}"
        )
    if not 0 <= w_min <= 1:
        raise ValueError(f"the smallest weight (w_min) must lie in [0, 1], not {w_min}")
    gain = delta[:, list(trained)].clamp(min=0) + EPSILON  # [B, T']
    raw = gain / gain.sum(1, keepdim=True)  # [B, T']
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

    `latents`, `final`, `trained`: as for `tcd`; similarities are reported though not used.
    `fraction`: below 1, each sample keeps a random subset of ceil(fraction·T') steps (DanceGRPO: 0.6), which share the
        whole weight; the others get 0.
    `generator`: source of that choice.
    `share`: where these samples stand in the whole batch, so that their choice does not depend on who makes it; None: they
        are all.
    """
    similarity, delta = similarity_gain(latents, final)  # [B, T+1], [B, T]
    trained = _checked(trained, delta.shape[1])
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must lie in (0, 1], not {fraction}")
    weights = torch.ones(len(latents), len(trained))  # [B, T']
    if fraction < 1:
        kept = math.ceil(fraction * len(trained) - 1e-9)  # 0.1 * 30 is a little more than 3 in floating point
        share = share or Share(range(len(latents)), len(latents))
        order = torch.rand((share.total, len(trained)), generator=generator)[list(share.rows)].argsort(1)
        weights = (order < kept) * (len(trained) / kept)
    raw = weights / weights.sum(1, keepdim=True)
    return StepCredit(weights, raw, delta, similarity, trained, method="uniform")


def plain(taken: Trajectories) -> StepCredit:
    """The credit where no credit node is connected: every trained step alike."""
    return replace(uniform(taken.latents, taken.final, taken.trained), sigmas=taken.sigmas)


def noise_aware(latents: Tensor, final: Tensor, trained: Sequence[int], stds: Sequence[float]) -> StepCredit:
    """A step counts as much as it explores: w_j ∝ s_j·√Δ_j, of mean 1 (TempFlow-GRPO, 2508.04324).

    Raises:
        ValueError: no step adds noise; so below.

    `latents`, `final`, `trained`: as for `tcd`; similarities are reported though not used.
    `stds`: the T transitions' s_j·√Δ_j.
    """
    _stochastic("noise_aware", [stds[j] for j in trained])
    return _alike(latents, final, trained, stds, "noise_aware")


def pcpo(
    latents: Tensor, final: Tensor, trained: Sequence[int], sensitivities: Sequence[float], sigmas: Sequence[float]
) -> StepCredit:
    """Proportionate credit (PCPO, 2509.25774): log ρ̃_j = ζ·Δ_j/c_j·log ρ_j with ζ = Σ c_j / Σ Δ_j.

    The sums are over all steps that could be trained, so that a window that moves over them leaves ζ as it is. Left alone, a step
    counts by how sensitive its log-ratio is to the velocity, c_j; with this scale it counts by its length. The paper's other
    half is the loss `log_hinge`.

    `latents`, `final`, `trained`: as for `tcd`; similarities are reported though not used.
    `sensitivities`: c_j of the T transitions, from `sde.sensitivities`.
    `sigmas`: T+1 noise levels.
    """
    trained = _checked(trained, latents.shape[1] - 1)
    _stochastic("pcpo", [1 / sensitivities[j] for j in trained])
    steps = [sigma - following for sigma, following in zip(sigmas, sigmas[1:], strict=False)]
    last = len(steps) - 1  # deterministic, unless it is trained
    possible = [j for j, c in enumerate(sensitivities) if math.isfinite(c) and (j != last or j in trained)]
    zeta = sum(sensitivities[j] for j in possible) / sum(steps[j] for j in possible)
    credit = _alike(latents, final, trained, [1.0] * len(steps), "pcpo")
    return replace(credit, ratio_scale=tuple(zeta * steps[j] / sensitivities[j] for j in trained))


def grpo_guard(
    latents: Tensor, final: Tensor, trained: Sequence[int], stds: Sequence[float], sigmas: Sequence[float]
) -> StepCredit:
    """Ratios that are alike at every step (GRPO-Guard, 2510.22319).

    log ρ̂_j = std_j·(log ρ_j + mean‖Δμ_j‖²/(2·std_j²)), so that clipping meets all steps and both signs alike; and the loss is
    divided by Δ_j, here as weights of mean 1.

    `latents`, `final`, `trained`, `stds`: as for `noise_aware`.
    `sigmas`: T+1 noise levels.
    """
    trained = _checked(trained, latents.shape[1] - 1)
    _stochastic("grpo_guard", [stds[j] for j in trained])
    inverse = [1 / (sigma - following) for sigma, following in zip(sigmas, sigmas[1:], strict=False)]
    credit = _alike(latents, final, trained, inverse, "grpo_guard")
    return replace(credit, ratio_scale=tuple(stds[j] for j in trained), regulated=True)


def combined(first: StepCredit, second: StepCredit) -> StepCredit:
    """Both credits at once: weights are multiplied and scaled to mean 1 again, and so are the maps over the latent.

    If a credit is by objective, so are the weights of each objective. ΔS, and with it MOCA's exploration, is the first one's.

    Raises:
        ValueError: credits of different trained steps or of different objectives, or two that rescale the ratio: the product
            would do what neither means.
    """
    if first.trained != second.trained or len(first.weights) != len(second.weights):
        raise ValueError(
            f"credits of {len(first.weights)} samples and steps {first.trained} and of {len(second.weights)} samples and steps "
            f"{second.trained} do not go together. Fix: connect both to the same trajectories"
        )
    if first.ratio_scale and second.ratio_scale:
        raise ValueError(
            f"credit_1 ({first.method}) and credit_2 ({second.method}) both rescale the ratio. Fix: keep one of the two"
        )
    if first.objectives and second.objectives and first.objectives != second.objectives:
        raise ValueError(
            f"credit_1 is of the objectives {', '.join(first.objectives)}, credit_2 of {', '.join(second.objectives)}. Fix: "
            "connect both to the same Reward Stack"
        )
    by_objective = _both_by_objective(first, second)
    return replace(
        first,
        weights=_mean_one(first.weights * second.weights) if by_objective is None else by_objective.mean(2),
        by_objective=by_objective,
        objectives=first.objectives or second.objectives,
        metrics={**first.metrics, **second.metrics},
        spatial=_both(first.spatial, second.spatial),
        ratio_scale=first.ratio_scale or second.ratio_scale,
        regulated=first.regulated or second.regulated,
        measures=second.measures if first.measures is None else first.measures,
        method=f"{first.method} · {second.method}",
        seconds=first.seconds + second.seconds,
    )


def with_spatial(credit: StepCredit, spatial: Tensor) -> StepCredit:
    """The same credit, spread over the latent by the map `spatial` [B, h, w] or [B, F, h, w], and by the map it has already.

    Raises:
        ValueError: a credit of other samples.
    """
    if len(credit.weights) != len(spatial):
        raise ValueError(
            f"credit: it is of {len(credit.weights)} samples, the trajectories are {len(spatial)}. Fix: connect both to the same "
            "SDE Sampler"
        )
    return replace(credit, spatial=_both(credit.spatial, spatial), method=f"{credit.method} · spatial")


def _both_by_objective(first: StepCredit, second: StepCredit) -> Tensor | None:
    """The product of two credits' weights of each objective, [B, T', K]; None where neither tells objectives apart."""
    if first.by_objective is None and second.by_objective is None:
        return None
    left, other = (
        credit.weights[:, :, None] if credit.by_objective is None else credit.by_objective for credit in (first, second)
    )
    product = left * other
    mean = product.mean(1, keepdim=True)
    return product / torch.where(mean == 0, 1.0, mean)


def _both(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """The product of two maps over the latent, of mean 1."""
    if first is None or second is None:
        only = second if first is None else first
        return None if only is None else _mean_one(only)
    return _mean_one(first * second)


def _stochastic(method: str, noise: Sequence[float]) -> None:
    """Raises ValueError where a credit that asks how much noise the steps add is given steps that add none."""
    if not any(noise):
        raise ValueError(
            f"trajectories: the credit {method} weighs steps by their noise, and the sampler ode adds none. Fix: TCD "
            "Weights, or uniform on Step Credit, or another kind on SDE Sampler"
        )


def _alike(latents, final, trained, weights: Sequence[float], method: str) -> StepCredit:
    """The same weights, one for each of the T transitions, for every sample, brought to mean 1 over the trained ones."""
    similarity, delta = similarity_gain(latents, final)  # [B, T+1], [B, T]
    trained = _checked(trained, delta.shape[1])
    alike = _mean_one(torch.tensor([weights[j] for j in trained]).expand(len(latents), -1))  # [B, T']
    return StepCredit(alike, alike / alike.sum(1, keepdim=True), delta, similarity, trained, method=method)


def _mean_one(values: Tensor) -> Tensor:
    """Rows of mean 1; where a row is zero everywhere it stays so."""
    mean = values.flatten(1).mean(1).view(-1, *[1] * (values.ndim - 1))
    return values / torch.where(mean == 0, 1.0, mean)


def similarity_gain(latents: Tensor, final: Tensor) -> tuple[Tensor, Tensor]:
    """S_j = cos(x_j, x̂0) over all latent dimensions in float32, [B, T+1], and ΔS_j = S_{j+1} - S_j, [B, T]."""
    similarity = torch.nn.functional.cosine_similarity(
        latents.float().flatten(2), final.float().flatten(1)[:, None], dim=2
    )
    similarity = similarity.cpu()
    return similarity, similarity.diff(dim=1)


def _waterfill(weights: Tensor, w_min: float) -> Tensor:
    """Raises the smallest entries to w_min and scales the others, so that every row keeps its mean of 1.

    With the n smallest of T' entries lifted, the others share T' - n·w_min in proportion; n is the least number
    for which all of them reach the floor.
    """
    ordered, count = weights.sort(1).values, weights.shape[1]
    rest = ordered.flip(1).cumsum(1).flip(1)  # sum of what is left when the n smallest are lifted
    lifted = torch.arange(count, dtype=weights.dtype, device=weights.device)
    scale = (count - lifted * w_min) / rest  # [B, T']
    # n = count - 1 always fits: the last entry then takes all that remains, which is at least w_min.
    fits = ordered * scale >= w_min
    fits[:, -1] = True
    least = fits.int().argmax(1, keepdim=True)  # [B, 1]
    return (weights * scale.gather(1, least)).clamp(min=w_min)


def _checked(trained: Sequence[int], steps: int) -> tuple[int, ...]:
    trained = tuple(trained)
    if not trained or len(set(trained)) < len(trained) or not all(0 <= j < steps for j in trained):
        raise ValueError(f"trained steps must be some of 0 … {steps - 1}, each once, not {trained}")
    return trained
