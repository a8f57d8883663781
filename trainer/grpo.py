"""Group-relative policy optimisation: one update of the policy (method.md §3, §6), as docs/one_iteration.py calls it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ..host import devices, distributed, stopping
from .credit import sampled_steps
from .credit.inverse_variance import Measured, StepNoise
from .families.base import FlowModel
from .groups import group_advantages
from .rollout import beside, sampled_noise, slopes, stored_log_prob_maps, trained_transition, velocity_at
from .sde import SDES
from .types import THETA, Advantages, KeptCall, Metrics, NextRollout, Trajectories, UpdateSettings
from .updates import refusals
from .updates.losses import LOSSES, USES_DIVERGENCE, clipped_objective
from .updates.optimizer import NonFiniteUpdate, check_source, outcome, part_of, prepared, take_steps
from .updates.passes import Graphs, Part, Passes, networks, pack

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
    """Moves the policy by one optimizer step for each part in each epoch, with gradients of its groups of all processes.

    On-policy there is nothing to compare with: the old log-probs are the new ones, detached, so that ρ is exactly 1 and rollout
    and update may differ in batch shape.
    Trajectories of an earlier policy, and parts after the first, use the log-probs that they were sampled with. A graph that the
    rollout kept serves one backward pass; everything else is computed again, see `_take_graphs`.

    With `sampled_steps` K < T', only K steps of each sample are computed, drawn once for all epochs. A kept graph holds all
    steps of all samples already; it is not used then, so that the result does not depend on whether there was memory for it.

    `advantages`: of the whole batch, of which the trajectories may be a share.
    `on_step`: called before every backward pass of the first epoch and may raise to stop: until then nothing has changed.

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
    once = settings.epochs * settings.parts == 1
    wish = NextRollout(settings.unconditional_gradient, uses_graphs=once and not sampling)
    weights = torch.ones_like(advantages.step_advantage)  # [B, T'] of the whole batch
    if sampling:
        # Drawn for the whole batch, of which every process takes its rows: the number of processes changes nothing.
        stream = sampled_steps.generator(trajectories.seed, model.policy.version)
        weights = sampled_steps.draw(_pull(advantages, settings), settings.sampled_steps, stream)  # [B, T']
    taking = partial(_take_graphs, trajectories, settings, sampling)  # nothing after the first call
    passes = [
        _Backward(model, trajectories, part_of(advantages, part, settings.parts), weights, settings, taking(), part > 0)
        for part in range(settings.parts)
    ]
    backward = passes[0]

    def one(number: int) -> None:
        # After the first optimizer step the policy is neither the old nor the new one, so a stop waits for the last.
        own = passes[number % settings.parts]
        own.tally = backward.tally
        own.accumulate((lambda: None) if number else on_step)
        if own.old is None:
            own.compare(own.log_probs)
            own.old = own.log_probs

    steps = take_steps(model, trajectories, settings, backward.tally, one, wish)
    if backward.measured and steps:
        model.memo.keep(backward.measured.averaged(model.memo[StepNoise], trajectories))
    model.policy.version += steps > 0
    model.policy.forget_old()  # this update's next samples are of what it trained
    metrics = backward.figures()
    if settings.sampled_steps:
        pulls = _pull(advantages, settings) != 0
        metrics["update/sampled_share"] = (weights[pulls] != 0).double().mean().item() if pulls.any() else 1.0
    drift, clip = metrics.get("ratio/drift", 0.0), min(settings.clip_range, settings.clip_range_low or 1.0)
    if 5 * drift > clip and not once and not backward.compares_means:  # a divergence is no ratio
        logger.warning("log-probs drift by %.2g before any update: clip_range %.2g is too small", drift, clip)
    return metrics | outcome(model, trajectories, settings, backward.tally, steps, started)


def one_pass(
    model: FlowModel, trajectories: Trajectories, advantages: Advantages, settings: UpdateSettings
) -> tuple[Callable[[Callable[[], None]], None], Callable[[], Metrics]]:
    """The gradient alone, for an update that adds it to its own: what leaves it in the weights, and then its figures."""
    _check(model, trajectories, advantages, settings, sampling=False)
    weights = torch.ones_like(advantages.step_advantage)  # [B, T'] of the whole batch
    backward = _Backward(model, trajectories, advantages, weights, settings)
    backward.tally.passes = 1
    return backward.accumulate, backward.figures


def _check(model, trajectories: Trajectories, advantages: Advantages, settings: UpdateSettings, sampling: bool) -> None:
    check_source(trajectories, advantages)
    if misfit := next(refusals.of_ratios(trajectories.settings), None):
        raise ValueError(f"trajectories: {misfit}")
    if misfit := next(refusals.of_parts(settings.parts, len(trajectories.prompts)), None):
        raise ValueError(str(misfit))
    if sampling and model.policy.is_sharded:
        raise ValueError(
            f"sampled_steps = {settings.sampled_steps}: processes that share out a model's weights have to call it equally "
            "often, so nothing would be saved. Fix: set sampled_steps to 0, or train an adapter without Model Memory's shard"
        )


def _take_graphs(trajectories: Trajectories, settings: UpdateSettings, sampling: bool) -> list[KeptCall]:
    """The calls whose graphs the rollout kept, if this update can use them.

    In either case the trajectories lose them: a backward pass frees them, even one that is stopped, and graphs that are not
    used would take the memory that computing them again needs. Graphs that were made with the
    other wish are not used either, such as those of the first rollout, which takes the default.
    """
    if not trajectories.kept:
        return []
    fits = trajectories.kept.wish == NextRollout(settings.unconditional_gradient)
    calls, wasted = trajectories.kept.take(), None
    if sampling:
        wasted = f"sampled_steps = {settings.sampled_steps} computes other steps of every sample"
    elif settings.epochs * settings.parts > 1:
        # Later epochs compare with the first one's log-probs, which must have the update's batch shape, not the rollout's.
        wasted = f"epochs = {settings.epochs} and parts = {settings.parts} compute all steps again"
    if wasted:
        logger.warning("a graph was kept for nothing, since %s. Fix: set the sampler's keep_graph to off", wasted)
    return calls if fits and not wasted else []


def _pull(advantages: Advantages, settings: UpdateSettings) -> Tensor:
    """The size of each step's part in the gradient, [B, T'], for each sample of the whole batch."""
    pull = advantages.step_advantage.abs()
    return sampled_steps.everywhere(pull, advantages.valid) if settings.kl_coefficient else pull


def kl_factor(trajectories: Trajectories, step: int, kl: str) -> float:
    """The factor of mean‖v - v_ref‖² in a KL term. Two velocities at one point have means Δμ = ∂μ/∂v·(v - v_ref) apart, so that

    `mean` is mean‖Δμ‖²; `transition` is mean‖Δμ‖²/(2·std²), the KL of the two Gaussians for each element; `flow_grpo` is what
    that paper's code has in its place, mean‖Δμ‖²/(2·s²) with s = std/√Δ: the same for kinds that are not of an SDE.
    """
    settings, sigmas = trajectories.settings, trajectories.sigmas
    slope, variance = slopes(settings, sigmas, step)[1], 2 * trajectories.stds[step] ** 2
    length = sigmas[step] - sigmas[step + 1] if settings.kind in SDES else 1.0
    forms = {"transition": slope**2 / variance, "flow_grpo": length * slope**2 / variance, "mean": slope**2}
    return forms.get(kl, 1.0)


class _Backward(Passes):
    """Accumulates the gradient of the loss over all steps that have one.

    Attributes:
        old: the log-probs to compare with, [B, T', (h, w)] as they are returned; None: a pass's own.
        log_probs: those of the pass, where `old` is None; NaN where nothing had to be computed.
        noise: what the rollout added, [B, T', C, (F,) h, w], where the policy's means are compared with the old one's too.
        graphs: calls of the rollout that are used instead of new forward passes.

    `later`: of a part that comes after another's optimizer step, and so is off-policy.
    """

    def __init__(self, model, trajectories, advantages, weights, settings, kept: Sequence[KeptCall] = (), later=False):
        # A sample that is not valid does not count.
        total = max(1, int(advantages.valid.sum())) * len(trajectories.trained)
        super().__init__(model, total, settings)
        self.trajectories, self.settings, credit = trajectories, settings, advantages.credit
        rows, trained = list(trajectories.share.rows), trajectories.trained
        # On the device once, and not part by part.
        self.advantage, self.weights, self.valid = (  # [B, T'], [B, T'], [B]
            devices.upload(table[rows], model.device)
            for table in (advantages.step_advantage, weights, advantages.valid)
        )
        self.spatial = None if credit.spatial is None else credit.spatial[rows]  # [B, (F,) h, w]
        self.scales = credit.ratio_scale or (1.0,) * len(trained)
        if credit.ratio_scale and trajectories.settings.log_prob_norm == "squared_error":
            # A credit scales the log-ratio of the densities.
            stds = [trajectories.stds[step] for step in trained]
            self.scales = [scale / (2 * std**2) for scale, std in zip(self.scales, stds, strict=True)]
        self.kl_factors = [kl_factor(trajectories, step, settings.kl) for step in trained]
        self.reference = replace(trajectories, settings=trajectories.settings.of_reference(settings.reference_guidance))
        self.regulated, self.compares_means = credit.regulated, settings.objective in USES_DIVERGENCE
        self.measured = None
        if credit.measures is not None:
            self.measured, self.watching = Measured(len(trained), model.device, credit.measures), self._measuring
        off_policy = later or (model.policy.version, THETA) != (trajectories.policy_version, trajectories.sampled_with)
        self.graphs, self.old, self.noise = Graphs(() if off_policy else kept), None, None
        if off_policy:
            stored = trajectories.log_probs if self.spatial is None else stored_log_prob_maps(trajectories)
            self.old = devices.upload(stored, model.device)
        shape = self.weights.shape if self.spatial is None else (*self.weights.shape, *self.spatial.shape[1:])
        self.log_probs = torch.full(shape, torch.nan, device=model.device)
        if (self.regulated or self.compares_means) and (off_policy or settings.epochs > 1):
            self.noise = sampled_noise(trajectories)  # on-policy the sampled points are the policy's own means
        # Where Ã = 0 the gradient is exactly zero, and nothing is computed, unless a KL term pulls there too, or other
        # processes that hold parts of this model have to be kept pace with.
        pulls = weights * (advantages.valid[:, None] if self.kl_coefficient else advantages.step_advantage) != 0
        wanted = pulls[rows] | pulls.any(0) if model.policy.is_sharded else pulls[rows]  # [B, T']
        self.parts = []
        for call in self.graphs:  # a part each, so that a stop need not wait for more
            chosen = call.rows[wanted[call.rows, call.number]]
            self.parts += [Part(chosen, torch.full_like(chosen, call.number))] if len(chosen) else []
            wanted[call.rows, call.number] = False
        calls, size = range(len(trained)), settings.batch_size or len(wanted)
        if settings.batch_size and not self.measured:  # a part may have several steps
            calls = networks(model, [trajectories.sigmas[step] for step in trained])
        self.parts += pack(wanted, calls, size)

    def _measuring(self, part: Part) -> contextlib.AbstractContextManager[None]:
        """Measures the gradient of a part. Later epochs are not measured: what they clip has no gradient."""
        if self.measured is None or self.tally.passes:
            return contextlib.nullcontext()
        [(position, rows)], policy = part.by_step, self.model.policy
        there = devices.upload(rows, self.advantage.device)
        pulls = self.advantage[there, position] * self.weights[there, position] * self.scales[position]
        return self.measured.watching(
            policy.trainable_parameters(), position, pulls, policy.loss_scale.value / self.total
        )

    def losses(self, part: Part) -> Iterator[Tensor]:
        self.on_step()
        trajectories, settings, steps, shares = self.trajectories, self.settings, part.by_step, []
        if call := self.graphs.of(*steps[0]):
            velocities = [call[0]]
        else:
            numbers = torch.tensor(trajectories.trained)[part.steps]  # [N]
            velocity = velocity_at(self.model, trajectories, numbers, part.rows)  # [N, C, (F,) h, w]
            velocities = velocity.split([len(rows) for _, rows in steps])
        # From here on N counts the points of one step: std and scale are those of a step.
        for (position, rows), velocity in zip(steps, velocities, strict=True):
            device, step = velocity.device, trajectories.trained[position]
            gaussian, there = trained_transition(trajectories, step, velocity, rows), devices.upload(rows, device)
            following = devices.upload(trajectories.latents[rows, step + 1], device)  # x_{j+1} [N, C, (F,) h, w]
            advantage, stands_for = self.advantage[there, position], self.weights[there, position]  # [N], [N]
            weight = stands_for
            if self.spatial is None:
                log_prob = gaussian.log_prob(following, trajectories.settings.log_prob_norm)  # [N]
            else:
                log_prob = gaussian.log_prob_map(following, trajectories.settings.log_prob_norm)  # [N, (F,) h, w]
                advantage = beside(advantage, log_prob) * devices.upload(self.spatial[rows], device)  # [N, (F,) h, w]
                weight = beside(stands_for, log_prob)  # [N, 1, 1]
            if self.old is None:
                self.log_probs[there, position] = log_prob.detach()
            reference = log_prob.detach() if self.old is None else self.old[there, position]  # as log_prob
            ratio_of, means = log_prob, {}
            if self.noise is not None and self.old is not None:
                added = devices.upload(self.noise[rows, position], device)  # [N, C, (F,) h, w]
                # KL of the transition to that of the policy that sampled, mean‖Δμ‖²/(2·std²); as log_prob
                squared = (gaussian.mean.float() - (following - gaussian.std * added)).square() / (2 * gaussian.std**2)
                moved = squared.flatten(1).mean(1) if self.spatial is None else squared.mean(1)
                if self.regulated:  # a log-ratio is too small by that on average (GRPO-Guard, 2510.22319)
                    full = trajectories.settings.log_prob_norm == "full"
                    ratio_of = log_prob + (moved if full else moved * (2 * gaussian.std**2))
                means = {"divergence": moved.detach()} if self.compares_means else {}
            scale, loss_of = self.scales[position], LOSSES[settings.objective]
            clip = settings.clip_range
            if settings.clip_range_low:
                clip = torch.where(advantage < 0, settings.clip_range_low, clip)
            loss, statistics = loss_of(scale * ratio_of, scale * reference, advantage, clip, weight, **means)
            statistics["weight"] = stands_for.mean()
            kl = None
            if self.kl_coefficient:
                with torch.no_grad(), self.model.policy.reference():
                    untrained = velocity_at(self.model, self.reference, step, rows)  # [N, C, (F,) h, w]
                # Of a sharded model, samples that are not valid are here too, to keep pace.
                counts = self.kl_factors[position] * stands_for * self.valid[there].to(stands_for)
                kl = self.divergence(velocity, untrained, counts).mean()
            shares.append(self.share(loss, statistics, len(rows), kl))
        yield sum(shares[1:], shares[0])

    def compare(self, recomputed: Tensor) -> None:
        """Notes how far the log-probs that a pass saw are from those of the rollout: the largest |ρ - 1|."""
        if recomputed.ndim > self.trajectories.log_probs.ndim:
            recomputed = recomputed.flatten(2).mean(2)
        scale, sampled = (
            devices.upload(values, recomputed.device)
            for values in (torch.tensor(self.scales), self.trajectories.log_probs)
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
