"""What every update of a policy shares: its optimizer steps, the sums of its figures, the distance from the reference."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ...host import distributed
from ..rollout import velocity_at

if TYPE_CHECKING:
    from torch import Tensor

    from ..flow.base import FlowModel
    from ..types import Advantages, MatchingSettings, Trajectories, UpdateSettings

logger = logging.getLogger(__name__)

MAX_SKIPPED_IN_A_ROW = 10


class NonFiniteUpdate(RuntimeError):
    """The loss or its gradient was not finite too many times in a row."""


class Tally:
    """Sums figures over the parts of an update without waiting for the device; reads them once, at the end."""

    def __init__(self):
        self.sums: dict[str, Tensor] = {}
        self.passes = 0
        self.gradient_norms: list[float] = []

    def add(self, loss: Tensor, statistics: Mapping[str, Tensor], count: int, total: int) -> None:
        for name, value in {"loss": loss, **statistics}.items():
            self.sums[name] = self.sums.get(name, 0.0) + value * (count / total)

    def finite(self) -> bool:
        return bool(distributed.each(torch.as_tensor(self.sums.get("loss", 0.0)).float()).isfinite().all())

    def means(self, names: Iterable[str]) -> dict[str, float]:
        """Of all processes together, each figure's sum by the number of passes; those that no process has are left out."""
        names = list(names)
        sums = [[float(self.sums.get(name, 0.0)), float(name in self.sums)] for name in names]
        added, present = distributed.each(torch.tensor(sums, dtype=torch.float64)).sum(0).T.tolist()
        return {name: value / self.passes for name, value, there in zip(names, added, present, strict=True) if there}

    @property
    def gradient_norm(self) -> float:
        """Of the last optimizer step, before it was shortened."""
        return self.gradient_norms[-1] if self.gradient_norms else 0.0


def check_source(trajectories: Trajectories, advantages: Advantages) -> None:
    """Raises ValueError where the advantages are of other trajectories."""
    judged = len(advantages.step_advantage), advantages.credit.trained
    if judged != (trajectories.share.total, trajectories.trained):
        raise ValueError(
            f"advantages: they are of {judged[0]} samples and steps {judged[1]}, the trajectories of {trajectories.share.total} "
            f"samples and steps {trajectories.trained}. Fix: let both come from the same SDE Sampler"
        )


def prepared(model: FlowModel, trajectories: Trajectories) -> Trajectories:
    """The trajectories, once the model is where it computes and its gradient is not known to be wrong."""
    model.come_back()
    if len(trajectories.groups):
        model.check_gradient(trajectories)
    if not model.policy.is_sharded:
        return trajectories
    # Samples that are not valid keep pace with the other processes, and 0 times NaN is not 0.
    points = {"latents": trajectories.latents, "final": trajectories.final}
    return replace(trajectories, **{n: value.nan_to_num() for n, value in points.items() if not value.isfinite().all()})


def outcome(
    model: FlowModel,
    trajectories: Trajectories,
    settings: UpdateSettings | MatchingSettings,
    steps: int,
    started: float,
) -> dict[str, float]:
    """Figures of any update that has taken so many optimizer steps since `started`."""
    staleness = model.policy.version - (steps > 0) - trajectories.policy_version
    divergence = reference_divergence(model, trajectories, settings.batch_size)
    return {
        "policy/staleness": float(staleness),
        "policy/skipped_updates": float(settings.epochs - steps),
        "kl/reference": divergence,
        "seconds/update": time.perf_counter() - started,
    }


def take_steps(
    model: FlowModel, settings: UpdateSettings | MatchingSettings, tally: Tally, backward: Callable[[int], None]
) -> int:
    """Takes one optimizer step for each epoch, by what `backward(epoch)` leaves in the gradients of all processes.

    Returns:
        The number of steps that were taken: fewer than `epochs` where a gradient was not finite, or where there was none.

    Raises:
        NonFiniteUpdate: after ten updates in a row without a finite gradient.
    """
    optimizer = model.policy.optimizer_for(settings)
    for epoch in range(settings.epochs):
        optimizer.zero_grad(set_to_none=True)
        backward(epoch)
        tally.passes += 1
        if not model.policy.trains_shards:  # FSDP2 has added them up already
            distributed.sum_gradients(model.policy.trainable_parameters())
        if not _step(model, optimizer, settings, tally):
            return epoch
    return settings.epochs


def _step(model: FlowModel, optimizer, settings: UpdateSettings | MatchingSettings, tally: Tally) -> bool:
    """Clips and applies the gradient; a gradient that is not finite is counted and dropped."""
    parameters = model.policy.trainable_parameters()
    if all(parameter.grad is None for parameter in parameters):
        tally.gradient_norms.append(0.0)
        return False
    model.policy.loss_scale.undo(parameters)
    norm = distributed.full(torch.nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm)).item()
    tally.gradient_norms.append(norm)
    if not (math.isfinite(norm) and tally.finite()):
        model.policy.nonfinite_in_a_row += model.policy.loss_scale.value == 1  # else it is the scale that was too large
        model.policy.loss_scale.overflowed()
        logger.warning("update dropped: loss or gradient is not finite (gradient norm %s)", norm)
        if model.policy.nonfinite_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise NonFiniteUpdate(
                f"{MAX_SKIPPED_IN_A_ROW} updates in a row had a loss or gradient that is not finite. Fix: lower "
                f"learning_rate (now {settings.learning_rate:g}) or look at the rewards"
            )
        return False
    model.policy.nonfinite_in_a_row = 0
    model.policy.loss_scale.held()
    optimizer.step()
    if model.policy.ema is not None:
        model.policy.ema.step(parameters)
    return True


@torch.no_grad()
def reference_divergence(model: FlowModel, trajectories: Trajectories, batch_size: int = 0) -> float:
    """mean‖v - v_ref‖² of the policy against the model without its adapter, at one trained step of each group's first sample.

    `batch_size` samples at a time, 0: as many as were sampled at a time.
    """
    step = trajectories.trained[model.policy.version % len(trajectories.trained)]
    rows, group_size = trajectories.share.rows, trajectories.share.total // len(trajectories.prompts)
    first = torch.tensor([number for number, row in enumerate(rows) if row % group_size == 0], dtype=torch.int64)
    size = batch_size or trajectories.settings.batch_size or max(1, len(first))
    asked = list(first.split(size)) if len(first) else []
    if model.policy.is_sharded:  # to keep pace with the others
        most = int(distributed.each(torch.tensor([len(asked)])).max())
        asked += [torch.zeros(1, dtype=torch.int64)] * (most - len(asked))
    policy = [velocity_at(model, trajectories, step, rows) for rows in asked]
    with model.policy.reference() if asked else contextlib.nullcontext():
        untrained = [velocity_at(model, trajectories, step, rows) for rows in asked]
    apart = [(v - v_ref).square().flatten(1).mean(1).cpu() for v, v_ref in zip(policy, untrained, strict=True)]
    divergence = torch.cat(apart) if apart else torch.zeros(0)
    return distributed.whole(divergence[: len(first)]).mean().item()
