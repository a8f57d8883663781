"""Group-relative policy optimisation: one update of the policy (method.md §3, §6), as docs/one_iteration.py calls it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ..host import devices, distributed, stopping
from .credit import sampled_steps
from .credit.inverse_variance import Measured, StepNoise
from .families.base import FlowModel
from .groups import group_advantages
from .rollout import sampled_noise, stored_log_prob_maps, trained_transition, velocity_at
from .sde import Gaussian
from .types import THETA, Advantages, Metrics, NextRollout, Trajectories, UpdateSettings
from .updates import refusals
from .updates.losses import LOSSES, USES_DIVERGENCE, clipped_objective
from .updates.optimizer import NonFiniteUpdate, Tally, check_source, outcome, prepared, take_steps
from .updates.passes import policy_gradient_parts

logger = logging.getLogger(__name__)

__all__ = ["NonFiniteUpdate", "UpdateSettings", "clipped_objective", "group_advantages", "update"]


@stopping.whole()
def update(
    model: FlowModel,
    trajectories: Trajectories,
    advantages: Advantages,
    settings: UpdateSettings,
    on_step: Callable[[], None] = lambda: None,
) -> Metrics:
    """Moves the policy by one optimizer step for each epoch, with gradients of all groups of all processes.

    On-policy there is nothing to compare with: the old log-probs are the new ones, detached, so that ρ is exactly 1 and rollout
    and update may differ in batch shape.
    Trajectories of an earlier policy use the log-probs that they were sampled with. A graph that the rollout kept serves one
    backward pass; everything else is computed again, see `_take_graphs`.

    With `sampled_steps` K < T', only K steps of each sample are computed, drawn once for all epochs. A kept graph holds all
    steps of all samples already; it is not used then, so that the result does not depend on whether there was memory for it.

    Args:
        advantages: of the whole batch, of which the trajectories may be a share.
        on_step: called before every backward pass of the first epoch and may raise to stop: until then nothing has changed.

    Returns:
        Figures of this update, for the log.

    Raises:
        NonFiniteUpdate: after ten updates in a row without a finite gradient.
        ValueError: a gradient that is known to be wrong, advantages of other trajectories, or `sampled_steps` for a model that
            several processes hold in parts.
    """
    sampling = 0 < settings.sampled_steps < len(trajectories.trained)
    _check(model, trajectories, advantages, settings, sampling)
    started = time.perf_counter()
    trajectories = prepared(model, trajectories)
    model.memo.keep(NextRollout(settings.unconditional_gradient, uses_graphs=settings.epochs == 1 and not sampling))
    weights = torch.ones_like(advantages.step_advantage)  # [B, T'] of the whole batch
    if sampling:
        # Drawn for the whole batch, of which every process takes its rows: the number of processes changes nothing.
        stream = sampled_steps.generator(trajectories.seed, model.policy.version)
        weights = sampled_steps.draw(_pull(advantages, settings), settings.sampled_steps, stream)  # [B, T']
    backward = _Backward(model, trajectories, advantages, weights, settings, Tally())
    off_policy = (model.policy.version, THETA) != (trajectories.policy_version, trajectories.sampled_with)
    steps = _epochs(model, backward, settings, sampling, off_policy, on_step)
    if backward.measured and steps:
        model.memo.keep(backward.measured.averaged(model.memo[StepNoise], trajectories))
    model.policy.version += steps > 0
    model.policy.forget_old()  # this update's next samples are of what it trained
    metrics = backward.figures()
    if settings.sampled_steps:
        pulls = _pull(advantages, settings) != 0
        metrics["update/sampled_share"] = (weights[pulls] != 0).double().mean().item() if pulls.any() else 1.0
    drift, clip = metrics.get("ratio/drift", 0.0), settings.clip_range
    if 5 * drift > clip and settings.epochs > 1 and not backward.compares_means:  # a divergence is no ratio
        logger.warning("log-probs drift by %.2g before any update: clip_range %.2g is too small", drift, clip)
    return metrics | outcome(model, trajectories, settings, backward.tally, steps, started)


def one_pass(
    model: FlowModel, trajectories: Trajectories, advantages: Advantages, settings: UpdateSettings
) -> tuple[Callable[[Callable[[], None]], None], Callable[[], Metrics]]:
    """The gradient alone, for an update that adds it to its own: what leaves it in the weights, and then its figures."""
    _check(model, trajectories, advantages, settings, sampling=False)
    weights = torch.ones_like(advantages.step_advantage)  # [B, T'] of the whole batch
    backward = _Backward(model, trajectories, advantages, weights, settings, Tally())
    backward.tally.passes = 1
    old = None
    if (model.policy.version, THETA) != (trajectories.policy_version, trajectories.sampled_with):
        stored = trajectories.log_probs if backward.spatial is None else stored_log_prob_maps(trajectories)
        old = devices.upload(stored, model.device)
    noise = sampled_noise(trajectories) if backward.regulated and old is not None else None

    def run(on_step: Callable[[], None]) -> None:
        backward(old, noise, [], on_step)

    return run, backward.figures


def _check(model, trajectories: Trajectories, advantages: Advantages, settings: UpdateSettings, sampling: bool) -> None:
    check_source(trajectories, advantages)
    if misfit := next(refusals.of_ratios(trajectories.settings), None):
        raise ValueError(f"trajectories: {misfit}")
    if sampling and model.policy.is_sharded:
        raise ValueError(
            f"sampled_steps = {settings.sampled_steps}: processes that share out a model's weights have to call it equally "
            "often, so nothing would be saved. Fix: set sampled_steps to 0, or train an adapter without Model Memory's shard"
        )


def _epochs(model, backward: _Backward, settings: UpdateSettings, sampling: bool, off_policy: bool, on_step) -> int:
    """The number of optimizer steps that were taken: one for each epoch, until a gradient is not finite."""
    trajectories = backward.trajectories
    kept = _take_graphs(trajectories, settings, sampling, off_policy)
    noise = None
    if (backward.regulated or backward.compares_means) and (off_policy or settings.epochs > 1):
        noise = sampled_noise(trajectories)  # without it the sampled points are the means of the policy that sampled
    old = None
    if off_policy:
        stored = trajectories.log_probs if backward.spatial is None else stored_log_prob_maps(trajectories)
        old = devices.upload(stored, model.device)

    def one(epoch: int) -> None:
        nonlocal old
        # After the first optimizer step the policy is neither the old nor the new one, so a stop waits for the last.
        log_probs = backward(old, noise if epoch or off_policy else None, kept, (lambda: None) if epoch else on_step)
        if epoch == 0 and not off_policy:
            backward.compare(log_probs)
            old = log_probs

    return take_steps(model, trajectories, settings, backward.tally, one)


def _take_graphs(
    trajectories: Trajectories, settings: UpdateSettings, sampling: bool, off_policy: bool
) -> list[Tensor]:
    """The velocities of the graphs that the rollout kept, if this update can use them.

    In either case the trajectories lose them: a backward pass frees them, even one that is stopped, and graphs that are not
    used would take the memory that computing them again needs. Graphs that were made with the
    other `unconditional_gradient` are not used either, such as those of the first rollout, which takes the default.
    """
    if not trajectories.kept:
        return []
    fits = trajectories.kept.unconditional_gradient == settings.unconditional_gradient
    velocities, wasted = trajectories.kept.take(), None
    if sampling:
        wasted = f"sampled_steps = {settings.sampled_steps} computes other steps of every sample"
    elif settings.epochs > 1:
        # Later epochs compare with the first one's log-probs, which must have the update's batch shape, not the rollout's.
        wasted = f"epochs = {settings.epochs} computes all steps again"
    if wasted:
        logger.warning("a graph was kept for nothing, since %s. Fix: set the sampler's keep_graph to off", wasted)
    return velocities if fits and not (wasted or off_policy) else []


def _pull(advantages: Advantages, settings: UpdateSettings) -> Tensor:
    """The size of each step's part in the gradient, [B, T'], for each sample of the whole batch."""
    pull = advantages.step_advantage.abs()
    return sampled_steps.everywhere(pull, advantages.valid) if settings.kl_coefficient else pull


class _Backward:
    """Accumulates the gradient of the loss over all steps that have one, in parts that one forward pass can hold."""

    def __init__(self, model, trajectories, advantages, weights, settings, tally):
        self.model, self.trajectories, self.settings, self.tally = model, trajectories, settings, tally
        rows = list(trajectories.share.rows)
        credit = advantages.credit
        # On the device once, and not part by part.
        self.advantage, self.weights, self.valid = (
            devices.upload(table[rows], model.device)
            for table in (advantages.step_advantage, weights, advantages.valid)
        )
        self.spatial = None if credit.spatial is None else credit.spatial[rows]  # [B, (F,) h, w]
        self.scale = credit.ratio_scale or (1.0,) * len(trajectories.trained)
        if credit.ratio_scale and trajectories.settings.log_prob_norm == "squared_error":
            # A credit scales the log-ratio of the densities.
            stds = [trajectories.stds[step] for step in trajectories.trained]
            self.scale = [scale / (2 * std**2) for scale, std in zip(self.scale, stds, strict=True)]
        self.regulated, self.compares_means = credit.regulated, settings.objective in USES_DIVERGENCE
        # A sample that is not valid does not count.
        self.total = max(1, int(advantages.valid.sum())) * len(trajectories.trained)
        pulls = advantages.valid[:, None] if settings.kl_coefficient else advantages.step_advantage
        self.pulls, self.anybody_pulls = (weights * pulls)[rows] != 0, (weights * pulls).any(0).tolist()
        # FSDP2 takes the mean of the processes' gradients, the loss wants the sum.
        self.processes = distributed.world() if model.policy.trains_shards else 1
        self.measured = None
        if credit.measures is not None:
            self.measured = Measured(len(trajectories.trained), model.device, credit.measures)

    def __call__(self, old: Tensor | None, noise: Tensor | None, kept, on_step) -> Tensor:
        """One pass.

        Args:
            old: log-probs to compare with, as they are returned; None: the pass's own.
            noise: [B, T', C, h, w] that the rollout added, where the policy's means are compared too.
            kept: the rollout's graphs, instead of new forward passes.
            on_step: called before every part.

        Returns:
            The log-probs it saw, on the device, [B, T'] or, with spatial credit, [B, T', h, w]; NaN where nothing had to be
            computed.
        """
        shape = (
            self.trajectories.log_probs.shape
            if self.spatial is None
            else (*self.weights.shape, *self.spatial.shape[1:])
        )
        log_probs = torch.full(shape, torch.nan, device=self.model.device)  # [B, T', (h, w)]
        for part in self._parts(bool(kept)):
            on_step()
            velocities = self._kept(part, kept) if kept else self._velocity(part).split([len(rows) for _, rows in part])
            shares = []
            for (position, rows), velocity in zip(part, velocities, strict=True):
                log_prob, share = self._loss(position, rows, velocity, old, noise)
                log_probs[devices.upload(rows, log_probs.device), position] = log_prob.detach()
                shares.append(share)
            with self._watching(part):
                sum(shares[1:], shares[0]).backward()
        return log_probs

    def _watching(self, part: list[tuple[int, Tensor]]) -> contextlib.AbstractContextManager[None]:
        """Around a part's backward pass. Later epochs are not measured: what they clip has no gradient."""
        if self.measured is None or self.tally.passes:
            return contextlib.nullcontext()
        [(position, rows)], policy = part, self.model.policy
        there = devices.upload(rows, self.advantage.device)
        pulls = self.advantage[there, position] * self.weights[there, position] * self.scale[position]
        parameters = policy.trainable_parameters()
        return self.measured.watching(parameters, position, pulls, policy.loss_scale.value / self.total)

    def _parts(self, kept: bool) -> Iterator[list[tuple[int, Tensor]]]:
        levels = [self.trajectories.sigmas[step] for step in self.trajectories.trained]
        anybody_pulls = self.anybody_pulls if self.model.policy.is_sharded else None
        return policy_gradient_parts(
            self.pulls,
            anybody_pulls,
            self.settings.batch_size,
            kept,
            self.measured is not None,
            lambda before, after: self.model.same_network(levels[before], levels[after]),
        )

    def _kept(self, part, kept) -> list[Tensor]:
        return [kept[position][devices.upload(rows, kept[position].device)] for position, rows in part]

    def _velocity(self, part) -> Tensor:
        trained = self.trajectories.trained
        steps = torch.cat([torch.full_like(rows, trained[position]) for position, rows in part])
        return velocity_at(self.model, self.trajectories, steps, torch.cat([rows for _, rows in part]))  # [N, C, h, w]

    def _loss(self, position: int, rows: Tensor, velocity: Tensor, old, noise) -> tuple[Tensor, Tensor]:
        """Log-probs of some rows of one step, and their share of the loss, ready for its backward pass."""
        model, trajectories, settings = self.model, self.trajectories, self.settings
        device, step = velocity.device, trajectories.trained[position]
        gaussian, there = trained_transition(trajectories, step, velocity, rows), devices.upload(rows, device)
        following = devices.upload(trajectories.latents[rows, step + 1], device)  # x_{j+1} [N, C, (F,) h, w]
        advantage, stands_for = self.advantage[there, position], self.weights[there, position]  # [N], [N]
        weight = stands_for
        if self.spatial is None:
            log_prob = gaussian.log_prob(following, trajectories.settings.log_prob_norm)  # [N]
        else:
            log_prob = gaussian.log_prob_map(following, trajectories.settings.log_prob_norm)  # [N, (F,) h, w]
            dims = (-1, *[1] * (log_prob.ndim - 1))  # [N] beside [N, (F,) h, w]
            advantage, weight = (
                advantage.view(dims) * devices.upload(self.spatial[rows], device),
                stands_for.view(dims),
            )
        reference = log_prob.detach() if old is None else old[there, position]  # as log_prob
        ratio_of, means = log_prob, {}
        if noise is not None:
            added = devices.upload(noise[rows, position], device)  # [N, C, (F,) h, w]
            divergence = self._divergence(gaussian, following - gaussian.std * added)  # as log_prob
            if self.regulated:  # a log-ratio is too small by that on average (GRPO-Guard, 2510.22319)
                full = trajectories.settings.log_prob_norm == "full"
                ratio_of = log_prob + (divergence if full else divergence * (2 * gaussian.std**2))
            means = {"divergence": divergence.detach()} if self.compares_means else {}
        scale = self.scale[position]
        loss_of = LOSSES[settings.objective]
        loss, statistics = loss_of(scale * ratio_of, scale * reference, advantage, settings.clip_range, weight, **means)
        statistics["weight"] = stands_for.mean()
        if settings.kl_coefficient:
            with torch.no_grad(), model.policy.reference():
                frozen = self._velocity([(position, rows)])  # [N, C, (F,) h, w]
            # Of a sharded model, samples that are not valid are here too, to keep pace.
            counted = stands_for * self.valid[there].to(stands_for)  # [N]
            divergence = (counted * (velocity - frozen).square().flatten(1).mean(1)).mean()
            statistics["kl"] = divergence.detach()
            loss = loss + settings.kl_coefficient * divergence
        self.tally.add(loss.detach(), statistics, len(rows), self.total)
        return log_prob, loss * (model.policy.loss_scale.value * len(rows) * self.processes / self.total)

    def _divergence(self, gaussian: Gaussian, old_mean: Tensor) -> Tensor:
        """KL of the transition to that of the policy that sampled, mean‖Δμ‖²/(2·std²); shaped as log-probs."""
        squared = (gaussian.mean.float() - old_mean).square() / (2 * gaussian.std**2)
        return squared.flatten(1).mean(1) if self.spatial is None else squared.mean(1)

    def compare(self, recomputed: Tensor) -> None:
        """Notes how far the log-probs that a pass saw are from those of the rollout: the largest |ρ - 1|."""
        if recomputed.ndim > self.trajectories.log_probs.ndim:
            recomputed = recomputed.flatten(2).mean(2)
        scale, sampled = (
            devices.upload(values, recomputed.device)
            for values in (torch.tensor(self.scale), self.trajectories.log_probs)
        )
        difference = (scale * (recomputed - sampled)).nan_to_num().exp() - 1
        self.tally.note("drift", difference.abs().max())

    def figures(self) -> dict[str, float]:
        """The figures of all passes, for the log."""
        sums = self.tally.means(("loss", "ratio", "clip_high", "clip_low", "approx_kl", "kl", "weight"))
        weight = sums.pop("weight", 0.0) or 1.0
        names = {"loss": "loss", "ratio": "ratio/mean", "clip_high": "clip/high", "clip_low": "clip/low"}
        names |= {"approx_kl": "kl/approx", "kl": "kl/penalty"}
        # Entries that were skipped have no loss and a ratio of 1: all but the ratio are means over every sample and step.
        figures = {name: sums.get(key, 0.0) for key, name in names.items() if key in sums or key != "kl"}
        figures["ratio/mean"] = sums["ratio"] / weight if "ratio" in sums else 1.0
        figures["gradient_norm"] = self.tally.gradient_norm
        if (drift := self.tally.read().get("drift")) is not None:
            figures["ratio/drift"] = distributed.each(drift).max().item()
        return figures
