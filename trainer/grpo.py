"""Group-relative policy optimisation: advantages, the clipped objective, and one update of the policy (method.md §3, §6)."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from . import distributed, sampled_steps
from .rollout import trained_transition, velocity_at

if TYPE_CHECKING:
    from torch import Tensor

    from .flow.base import FlowModel
    from .types import Advantages, KeptStep, Metrics, Scores, Trajectories

logger = logging.getLogger(__name__)

STD_SCOPES = ("group", "batch")
MAX_SKIPPED_IN_A_ROW = 10


def group_advantages(rewards: Tensor, groups: Tensor, valid: Tensor | None = None, std_scope: str = "group") -> Tensor:
    """A_k = (r_k - mean_group) / (std + 1e-8) with the unbiased std, for each objective by itself.

    Args:
        rewards: [B, K].
        groups: [B] group numbers.
        valid: [B] bool; the others are left out of all statistics and get 0. Default: the samples whose rewards are finite.
        std_scope: "group", or "batch" for the std over all valid samples (Flow-GRPO).

    Returns:
        [B, K]; 0 where a group has no spread or fewer than two valid samples.
    """
    if std_scope not in STD_SCOPES:
        raise ValueError(f"std_scope must be one of {STD_SCOPES}, not {std_scope!r}")
    valid = rewards.isfinite().all(1) if valid is None else valid
    # In float64, so that equal rewards have a spread of zero and not of a rounding error.
    values, advantages = rewards.double(), torch.zeros(rewards.shape, dtype=torch.float64, device=rewards.device)
    batch_std = values[valid].std(0) if valid.sum() > 1 else None
    for group in groups.unique():
        member = (groups == group) & valid
        if member.sum() < 2:
            continue
        own = values[member]
        spread = own.max(0).values > own.min(0).values
        std = own.std(0) if std_scope == "group" else batch_std
        advantages[member] = torch.where(spread, (own - own.mean(0)) / (std + 1e-8), 0.0)
    return advantages.to(rewards.dtype)


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


def clipped_objective(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip: float, weight: Tensor | float = 1.0
) -> tuple[Tensor, dict]:
    """loss = mean of max(-Ã·ρ, -Ã·clip(ρ, 1-c, 1+c)) with ρ = exp(logp - logp_old).

    Args:
        log_prob, old_log_prob, advantage: of one shape, any.
        clip: c.
        weight: of that shape, how many entries each stands for in the loss and all statistics.

    Returns:
        The scalar loss, and a dict of detached scalars: `ratio` (mean ρ), `clip_high` and `clip_low` (shares of entries where
        the clipped branch was the one taken), `approx_kl` (mean of ρ - 1 - log ρ).
    """
    log_ratio = log_prob - old_log_prob
    ratio = log_ratio.exp()
    unclipped, clipped = -advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip)
    with torch.no_grad():
        statistics = {
            "ratio": (weight * ratio).mean(),
            "clip_high": (weight * ((ratio > 1 + clip) & (advantage > 0)).float()).mean(),
            "clip_low": (weight * ((ratio < 1 - clip) & (advantage < 0)).float()).mean(),
            "approx_kl": (weight * (ratio - 1 - log_ratio)).mean(),
        }
    return (weight * torch.maximum(unclipped, clipped)).mean(), statistics


@dataclass(frozen=True)
class UpdateSettings:
    """How the policy is moved.

    `batch_size` 0 takes all samples of a step at once; `ema_decay` 0 keeps no average; `sampled_steps` 0 trains all steps.
    `unconditional_gradient` False leaves the negative half of classifier-free guidance out of the gradient.
    """

    learning_rate: float
    clip_range: float = 1e-4
    kl_coefficient: float = 0.0
    weight_decay: float = 1e-4
    max_grad_norm: float = 1.0
    epochs: int = 1
    batch_size: int = 0
    ema_decay: float = 0.0
    sampled_steps: int = 0
    unconditional_gradient: bool = True


class NonFiniteUpdate(RuntimeError):
    """The loss or its gradient was not finite too many times in a row."""


def update(
    model: FlowModel,
    trajectories: Trajectories,
    advantages: Advantages,
    settings: UpdateSettings,
    on_step: Callable[[], None] = lambda: None,
) -> Metrics:
    """Moves the policy by one optimizer step an epoch, with gradients accumulated over all groups of all processes.

    On-policy, the old log-probs are the new ones, detached: ρ is exactly 1, and rollout and update may differ in batch shape.
    A graph that the rollout kept serves its one backward pass; a used or stale one is recomputed, and so is one that was kept
    for the other `unconditional_gradient`, as by the first rollout, which has not heard of it yet. Trajectories of an earlier
    policy use the log-probs they were sampled with.

    With `sampled_steps` K < T', only K steps of each sample are computed, drawn once for all epochs. A kept graph holds all
    steps of all samples already; it is given up, so that the same is computed wherever there is memory for one.

    Args:
        advantages: of the whole batch, of which the trajectories may be a share.
        on_step: called before every backward pass of the first epoch and may raise to stop: until then nothing has changed.

    Returns:
        Figures of this update, for the log.

    Raises:
        NonFiniteUpdate: after ten updates in a row without a finite gradient.
        ValueError: `sampled_steps` for a model that several processes hold in parts.
    """
    sampling = 0 < settings.sampled_steps < len(trajectories.trained)
    if sampling and model.is_sharded:
        raise ValueError(
            f"sampled_steps = {settings.sampled_steps}: processes that share out a model's weights have to call it equally "
            "often, so nothing would be saved. Fix: set sampled_steps to 0, or train an adapter without Model Memory's shard"
        )
    started = time.perf_counter()
    model.come_back()
    staleness = model.version - trajectories.policy_version
    optimizer = model.optimizer_for(settings)
    tally = _Tally()
    old = trajectories.log_probs if staleness else None
    model.unconditional_gradient = settings.unconditional_gradient
    if trajectories.unconditional_gradient != settings.unconditional_gradient:
        _take_graphs(trajectories)
    weights = torch.ones_like(advantages.step_advantage)
    if sampling:
        # Of the whole batch, of which every process takes its own rows: how many there are changes nothing.
        stream = sampled_steps.generator(trajectories.seed, model.version)
        weights = sampled_steps.draw(_pull(advantages, settings), settings.sampled_steps, stream)
        if _take_graphs(trajectories):
            logger.warning(
                "a graph was kept for nothing, since sampled_steps = %d computes other steps of every sample. Fix: set the "
                "sampler's keep_graph to off",
                settings.sampled_steps,
            )
    steps = 0
    for epoch in range(settings.epochs):
        optimizer.zero_grad(set_to_none=True)
        # Later epochs compare with the first one's log-probs, so that must have the update's batch shape, not the rollout's.
        kept = _take_graphs(trajectories) if settings.epochs == 1 and not staleness else None
        # After the first optimizer step the policy is neither the old nor the new one, so a stop waits for the last.
        on_part = on_step if epoch == 0 else _go_on
        seen = _backward(model, trajectories, advantages, weights, settings, old, kept, tally, on_part)
        if epoch == 0 and not staleness:
            tally.drift(seen, trajectories.log_probs)
            old = seen
        if not model.trains_shards:  # FSDP2 has put them together already
            distributed.sum_gradients(model.trainable_parameters())
        if not _optimizer_step(model, optimizer, settings, tally):
            break
        steps += 1
    model.version += steps > 0
    metrics = tally.summary()
    metrics |= {"policy/staleness": float(staleness), "policy/skipped_updates": float(settings.epochs - steps)}
    if settings.sampled_steps:
        pulls = _pull(advantages, settings) != 0
        metrics["update/sampled_share"] = (weights[pulls] != 0).double().mean().item() if pulls.any() else 1.0
    drift = metrics.get("ratio/drift", 0.0)
    if 5 * drift > settings.clip_range and settings.epochs > 1:
        logger.warning(
            "log-probs drift by %.2g before any update: clip_range %.2g is too small", drift, settings.clip_range
        )
    metrics["kl/reference"] = reference_divergence(model, trajectories)
    metrics["seconds/update"] = time.perf_counter() - started
    return metrics


@torch.no_grad()
def reference_divergence(model: FlowModel, trajectories: Trajectories) -> float:
    """mean‖v - v_ref‖² of the policy against the model without its adapter, at one trained step of each group's first sample."""
    step = trajectories.trained[model.version % len(trajectories.trained)]
    rows, group_size = trajectories.share.rows, trajectories.share.total // len(trajectories.prompts)
    first = torch.tensor([own for own, row in enumerate(rows) if row % group_size == 0], dtype=torch.int64)
    divergence = torch.zeros(0)
    if len(first) or model.is_sharded:
        asked = first if len(first) else torch.zeros(1, dtype=torch.int64)  # to keep pace with the others
        velocity = velocity_at(model, trajectories, step, asked)
        with model.reference():
            divergence = (velocity - velocity_at(model, trajectories, step, asked)).square().flatten(1).mean(1)
    return distributed.whole(divergence[: len(first)].cpu()).mean().item()


def _take_graphs(trajectories: Trajectories) -> list[KeptStep]:
    """The kept graphs, which are gone from the trajectories from now on: a backward pass frees them, even a stopped one."""
    kept = list(trajectories.kept or ())
    if kept:
        trajectories.kept.clear()
    return kept


def _go_on() -> None:
    pass


def _pull(advantages: Advantages, settings: UpdateSettings) -> Tensor:
    """How much each step of each sample of the whole batch has to say in the gradient, [B, T'], 0 where nothing."""
    pull = advantages.step_advantage.abs()
    if settings.kl_coefficient:  # pulls at every step of every sample, so each must have a chance to be drawn
        mean = pull.mean(1, keepdim=True)
        pull = (pull + torch.where(mean == 0, 1.0, mean)) * advantages.valid[:, None]
    return pull


def _backward(model, trajectories, advantages, weights, settings, old, kept, tally, on_step) -> Tensor:
    """Accumulates the gradient of the loss; returns the log-probs it saw, [B, T'], NaN where nothing had to be computed."""
    seen = torch.full_like(trajectories.log_probs, torch.nan)
    own = list(trajectories.share.rows)
    valid = advantages.valid[own]
    total = max(1, int(advantages.valid.sum())) * seen.shape[1]  # a masked sample is no sample
    # FSDP2 takes the mean of the processes' gradients, the loss wants the sum.
    processes = distributed.world() if model.trains_shards else 1
    for position, step in enumerate(trajectories.trained):
        advantage, weight = advantages.step_advantage[own, position], weights[own, position]
        # Where Ã = 0 the gradient is exactly zero, and so is the work, unless a KL term pulls there too, or other processes
        # that hold parts of this model could not go on without this one.
        rows = (weight * (valid if settings.kl_coefficient else advantage)).nonzero()[:, 0]
        if model.is_sharded:
            everybodys = weights[:, position] * (
                advantages.valid if settings.kl_coefficient else advantages.step_advantage[:, position]
            )
            rows = torch.arange(len(advantage) if everybodys.any() else 0)
        if not len(rows):
            continue
        if kept:
            on_step()
            here = kept[position]
            index = rows.to(here.log_prob.device)
            parts = [(rows, here.log_prob[index], here.velocity[index])]
        else:
            parts = _recomputed(model, trajectories, step, rows, settings.batch_size, on_step)
        for part, log_prob, velocity in parts:
            reference = log_prob.detach() if old is None else old[part, position].to(log_prob.device)
            stands_for = weight[part].to(log_prob.device)
            loss, statistics = clipped_objective(
                log_prob, reference, advantage[part].to(log_prob.device), settings.clip_range, stands_for
            )
            statistics["weight"] = stands_for.mean()
            if settings.kl_coefficient:
                with torch.no_grad(), model.reference():
                    frozen = velocity_at(model, trajectories, step, part)
                # Of a sharded model masked samples are here too, to keep pace.
                counted = stands_for * valid[part].to(stands_for)
                divergence = (counted * (velocity - frozen).square().flatten(1).mean(1)).mean()
                statistics["kl"] = divergence.detach()
                loss = loss + settings.kl_coefficient * divergence
            (loss * (model.loss_scale.value * len(part) * processes / total)).backward()
            seen[part, position] = log_prob.detach().cpu()
            tally.add(loss.detach(), statistics, len(part), total)
    tally.passes += 1
    return seen


def _recomputed(model, trajectories, step, rows, batch_size, on_step):
    for part in rows.split(batch_size or len(rows)):
        on_step()
        velocity = velocity_at(model, trajectories, step, part)
        gaussian = trained_transition(trajectories, step, velocity, part)
        target = trajectories.latents[part, step + 1].to(velocity.device)
        yield part, gaussian.log_prob(target, trajectories.settings.log_prob_norm), velocity


def _optimizer_step(model, optimizer, settings: UpdateSettings, tally: _Tally) -> bool:
    """Clips and applies the gradient; a gradient that is not finite is counted and dropped."""
    parameters = model.trainable_parameters()
    if all(parameter.grad is None for parameter in parameters):
        tally.gradient_norms.append(0.0)
        return False
    model.loss_scale.undo(parameters)
    norm = distributed.full(torch.nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm)).item()
    tally.gradient_norms.append(norm)
    if not (math.isfinite(norm) and tally.finite()):
        model.nonfinite_in_a_row += 1
        model.loss_scale.overflowed()
        logger.warning("update dropped: loss or gradient is not finite (gradient norm %s)", norm)
        if model.nonfinite_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise NonFiniteUpdate(
                f"{MAX_SKIPPED_IN_A_ROW} updates in a row had a loss or gradient that is not finite. Fix: lower "
                f"learning_rate (now {settings.learning_rate:g}) or look at the rewards"
            )
        return False
    model.nonfinite_in_a_row = 0
    model.loss_scale.held()
    optimizer.step()
    if model.ema is not None:
        model.ema.step(parameters)
    return True


class _Tally:
    """Sums figures over the parts of an update without waiting for the device; reads them once, at the end."""

    def __init__(self):
        self.sums: dict[str, Tensor] = {}
        self.passes = 0
        self.gradient_norms: list[float] = []
        self.ratio_drift: float | None = None

    def add(self, loss: Tensor, statistics: dict[str, Tensor], count: int, total: int) -> None:
        for name, value in {"loss": loss, **statistics}.items():
            self.sums[name] = self.sums.get(name, 0.0) + value * (count / total)

    def drift(self, recomputed: Tensor, stored: Tensor) -> None:
        difference = (recomputed - stored).nan_to_num().exp() - 1
        self.ratio_drift = distributed.each(difference.abs().max()).max().item()

    def finite(self) -> bool:
        return bool(distributed.each(torch.as_tensor(self.sums.get("loss", 0.0)).float()).isfinite().all())

    def summary(self) -> dict[str, float]:
        names = ("loss", "ratio", "clip_high", "clip_low", "approx_kl", "kl", "weight")
        own = [[float(self.sums.get(name, 0.0)), float(name in self.sums)] for name in names]
        added, present = distributed.each(torch.tensor(own, dtype=torch.float64)).sum(0).T.tolist()
        sums = {name: value / self.passes for name, value, there in zip(names, added, present, strict=True) if there}
        weight = sums.pop("weight", 0.0) or 1.0
        names = {"loss": "loss", "ratio": "ratio/mean", "clip_high": "clip/high", "clip_low": "clip/low"}
        names |= {"approx_kl": "kl/approx", "kl": "kl/penalty"}
        # Entries that were skipped have no loss and a ratio of 1: all but the ratio are means over every sample and step.
        figures = {name: sums.get(key, 0.0) for key, name in names.items() if key in sums or key != "kl"}
        figures["ratio/mean"] = sums["ratio"] / weight if "ratio" in sums else 1.0
        figures["gradient_norm"] = self.gradient_norms[-1] if self.gradient_norms else 0.0
        if self.ratio_drift is not None:
            figures["ratio/drift"] = self.ratio_drift
        return figures
