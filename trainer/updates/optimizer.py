"""Parts of every update of a policy: its optimizer steps, the sums of its figures, the distance from the reference."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ...host import devices, distributed, errors, stopping
from ..families.base import FlowModel
from ..rollout import velocity_at
from ..types import Advantages, NextRollout, StepSettings, Trajectories

logger = logging.getLogger(__name__)

MAX_SKIPPED_IN_A_ROW = 10
DIVERGENCE = "divergence"  # from the reference, as a `Tally` notes it
MEASURED_EVERY = 10  # updates


class NonFiniteUpdate(errors.Expected, RuntimeError):
    """The loss or its gradient was not finite too many times in a row."""


def lengths(velocity: Tensor) -> Tensor:
    """‖v‖ of each sample, [N]."""
    return torch.linalg.vector_norm(velocity.flatten(1), dim=1)


class Tally:
    """Figures of an update, on the device: sums over its parts, and single notes. `read` waits for them, all at once."""

    def __init__(self):
        self.sums: dict[str, Tensor] = {}
        self.notes: dict[str, Tensor] = {}
        self.passes = 0
        self.gradient_norms: list[float] = []
        self._read: dict[str, Tensor] | None = None

    def add(self, loss: Tensor, statistics: Mapping[str, Tensor], count: int, total: int) -> None:
        for name, value in {"loss": loss, **statistics}.items():
            self.sums[name] = self.sums.get(name, 0.0) + value * (count / total)
        self._read = None

    def note(self, name: str, value: Tensor) -> None:
        """Something that is not a sum; a later note of that name takes its place."""
        self.notes[name], self._read = value, None

    def read(self) -> dict[str, Tensor]:
        """All figures of this process in main memory."""
        if self._read is None:
            self._read = devices.download(self.sums | self.notes)
        return self._read

    def finite(self) -> Tensor:
        """Whether the loss is, in all processes: one bool, of a process alone still on the device."""
        loss = torch.as_tensor(self.sums.get("loss", 0.0)).float()
        return (loss if distributed.world() == 1 else distributed.each(loss)).isfinite().all()

    def means(self, names: Iterable[str]) -> dict[str, float]:
        """Each figure's sum over all processes, divided by the number of passes; those that no process has are left out."""
        names, read = list(names), self.read()
        sums = [[float(read[name]) if name in self.sums else 0.0, float(name in self.sums)] for name in names]
        added, present = distributed.each(torch.tensor(sums, dtype=torch.float64)).sum(0).T.tolist()
        return {name: value / self.passes for name, value, there in zip(names, added, present, strict=True) if there}

    @property
    def gradient_norm(self) -> float:
        """The norm of the last optimizer step's gradient, before it was clipped."""
        return self.gradient_norms[-1] if self.gradient_norms else 0.0


def check_source(trajectories: Trajectories, advantages: Advantages) -> None:
    """Raises ValueError where the advantages are of other trajectories."""
    judged = len(advantages.step_advantage), advantages.credit.trained
    if judged != (trajectories.share.total, trajectories.trained):
        raise ValueError(
            f"advantages: they are of {judged[0]} samples and steps {judged[1]}, the trajectories of {trajectories.share.total} "
            f"samples and steps {trajectories.trained}. Fix: let both come from the same SDE Sampler"
        )


def part_of(advantages: Advantages, part: int, parts: int) -> Advantages:
    """The advantages of one part alone: every so many-th group, whole."""
    member = advantages.scores.groups % parts == part
    alone = advantages.step_advantage.masked_fill(~member[:, None], 0.0)
    return replace(advantages, valid=advantages.valid & member, step_advantage=alone)


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
    model: FlowModel, trajectories: Trajectories, settings: StepSettings, tally: Tally, steps: int, started: float
) -> dict[str, float]:
    """Figures of any update that has taken so many optimizer steps since `started`."""
    staleness = model.policy.version - (steps > 0) - trajectories.policy_version
    if not (steps and DIVERGENCE in tally.notes):  # a last step that was not dropped has noted it
        _note_divergence(model, trajectories, settings, tally, model.policy.version)
    figures = {
        "policy/staleness": float(staleness),
        "policy/skipped_updates": float(settings.epochs * settings.parts - steps),
        "seconds/update": time.perf_counter() - started,
    }
    if DIVERGENCE in tally.notes:
        means = distributed.whole(tally.read()[DIVERGENCE]).mean(0).tolist()
        figures |= zip(("kl/reference", "norm/growth"), means, strict=True)
    return figures


def take_steps(
    model: FlowModel,
    trajectories: Trajectories,
    settings: StepSettings,
    tally: Tally,
    backward: Callable[[int], None],
    wish: NextRollout,
    most_skipped: int = MAX_SKIPPED_IN_A_ROW,
) -> int:
    """Takes one optimizer step for each part in each epoch, by what `backward(number)` leaves in the gradients of all processes.

    The host waits for the device once a step, to learn whether that was dropped; after the last one all figures are there. From
    the first one on no stop comes through (`stopping.whole`); where an error does, the policy's version says that it has moved.

    `wish`: of this update, for its own calls and for the next rollout; one that has moved nothing leaves the wish of before.

    Returns:
        The number of steps that were taken: none where a gradient was missing, and none after one that was not finite.

    Raises:
        NonFiniteUpdate: after `most_skipped` updates in a row without a finite gradient.
    """
    optimizer, total, steps = model.policy.optimizer_for(settings), settings.epochs * settings.parts, 0
    before = model.memo[NextRollout]
    model.memo.keep(wish)
    try:
        for number in range(total):
            optimizer.zero_grad(set_to_none=True)
            backward(number)
            tally.passes += 1
            if not model.policy.trains_shards:  # FSDP2 has added them up already
                distributed.sum_gradients(model.policy.trainable_parameters())
            if not _take(model, optimizer, settings, tally):
                continue
            if number == total - 1:
                _note_divergence(model, trajectories, settings, tally, model.policy.version + 1)
            if not _was_taken(model, settings, tally, most_skipped):
                break
            steps += 1
    except NonFiniteUpdate:  # which has moved nothing
        raise
    except BaseException:
        if not stopping.request.holds:
            model.memo.keep(before)
        model.policy.version += stopping.request.holds  # no line on record is of these weights
        raise
    return steps


def _take(model: FlowModel, optimizer, settings: StepSettings, tally: Tally) -> bool:
    """Clips and applies the gradient; one that is not finite changes nothing. False without a gradient."""
    parameters = model.policy.trainable_parameters()
    if all(parameter.grad is None for parameter in parameters):
        return False
    model.policy.loss_scale.undo(parameters)
    norm = distributed.together(torch.nn.utils.clip_grad_norm_(parameters, settings.max_grad_norm).detach())
    finite = norm.isfinite() & devices.upload(tally.finite(), norm.device)
    tally.note("norm", norm)
    tally.note("dropped", ~finite)
    # The fused optimizer looks at this number on the device, so that the host need not know it yet.
    optimizer.found_inf = (~finite).float()
    stopping.hold()
    optimizer.step()
    return True


def _was_taken(model: FlowModel, settings: StepSettings, tally: Tally, most_skipped: int) -> bool:
    """Waits for the last step, and does what follows from it; one that was dropped is counted."""
    read, parameters = tally.read(), model.policy.trainable_parameters()
    norm = float(read["norm"])
    tally.gradient_norms.append(norm)
    if read["dropped"]:
        model.policy.nonfinite_in_a_row += model.policy.loss_scale.value == 1  # else it is the scale that was too large
        model.policy.loss_scale.overflowed()
        logger.warning("update dropped: loss or gradient is not finite (gradient norm %s)", norm)
        if model.policy.nonfinite_in_a_row >= most_skipped:
            raise NonFiniteUpdate(
                f"{most_skipped} updates in a row had a loss or gradient that is not finite. Fix: lower "
                f"learning_rate (now {settings.learning_rate:g}) or look at the rewards"
            )
        return False
    model.policy.nonfinite_in_a_row = 0
    model.policy.loss_scale.held()
    if model.policy.ema is not None:
        model.policy.ema.step(parameters)
    return True


def _note_divergence(model, trajectories: Trajectories, settings: StepSettings, tally: Tally, version: int) -> None:
    """Its two calls are for a curve alone, so that they are made after the first and each tenth update."""
    if version < 2 or version % MEASURED_EVERY == 0:
        turn = version // MEASURED_EVERY
        tally.note(DIVERGENCE, reference_divergence(model, trajectories, turn, settings.batch_size))


@torch.no_grad()
def reference_divergence(model: FlowModel, trajectories: Trajectories, turn: int, batch_size: int = 0) -> Tensor:
    """mean‖v - v_ref‖² and ‖v‖/‖v_ref‖ - 1 of the policy against the model without its adapter, at one trained step of each
    group's first sample.

    [N, 2] of the N such samples of this process, on the device; where ‖v_ref‖ is 0 there is no growth. `turn`, which counts up,
    chooses the step; `batch_size` samples at a time, 0: as many as were sampled at a time.
    """
    step = trajectories.trained[turn % len(trajectories.trained)]
    rows, group_size = trajectories.share.rows, trajectories.share.total // len(trajectories.prompts)
    first = torch.tensor([number for number, row in enumerate(rows) if row % group_size == 0], dtype=torch.int64)
    size = batch_size or trajectories.settings.batch_size or max(1, len(first))
    batches = list(first.split(size)) if len(first) else []
    if model.policy.is_sharded:  # to keep pace with the others
        most = int(distributed.each(torch.tensor([len(batches)])).max())
        batches += [torch.zeros(1, dtype=torch.int64)] * (most - len(batches))
    policy = [velocity_at(model, trajectories, step, rows) for rows in batches]
    with model.policy.reference() if batches else contextlib.nullcontext():
        untrained = [velocity_at(model, trajectories, step, rows) for rows in batches]
    if not batches:
        return torch.zeros(0, 2, device=model.device)
    v, v_ref = torch.cat(policy)[: len(first)], torch.cat(untrained)[: len(first)]
    own, norm = lengths(v), lengths(v_ref)
    return torch.stack([(v - v_ref).square().flatten(1).mean(1), torch.where(norm > 0, own / norm - 1, 0.0)], 1)
