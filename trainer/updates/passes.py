"""One pass over the trajectories, as all three updates make it: their points, packed in parts, and each part's share of the loss.

An update says which points it wants, and makes the `losses` of a part. Rows are numbers of this process's samples, and steps are
counted among those that the update goes through.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from ...host import devices, distributed
from ..families.base import FlowModel
from ..types import KeptCall, StepSettings
from .optimizer import Tally, lengths


@dataclass(frozen=True)
class Part:
    """The points of one call of the network, and of its backward pass.

    Attributes:
        rows: the sample of each point.
        steps: the step of each; of leaps, those that they join.
        idle: whether it only keeps pace with other processes, and has no loss.
        draw: which of a sample's draws it takes, of fresh noise or of levels.
    """

    rows: Tensor  # [N]
    steps: Tensor  # [N] or [N, 2·K]
    idle: bool = False
    draw: int = 0

    @property
    def by_step(self) -> list[tuple[int, Tensor]]:
        """Each step with its rows, in the part's order."""
        steps, counts = self.steps.unique_consecutive(return_counts=True)
        return list(zip(steps.tolist(), self.rows.split(counts.tolist()), strict=True))


def pack(
    wanted: Tensor, calls: Sequence[int], size: int, groups: Tensor | None = None, keeps_pace: bool = False
) -> list[Part]:
    """All points, step by step, as many to a part as fit.

    Args:
        wanted: [B, T'] bool, the points.
        calls: for each step a number; only steps of the same one can be in one call.
        size: the most points of a part.
        groups: [B], where a group's points of a step have to stay together; more than `size` are a part of their own.
        keeps_pace: add idle parts, until each process has equally many of each number.
    """
    parts = []
    for call in dict.fromkeys(calls):
        own, room = [], 0
        steps = [step for step, number in enumerate(calls) if number == call]
        for step in steps:
            rows = wanted[:, step].nonzero()[:, 0]  # [N]
            units = rows.split(1) if groups is None else (rows[groups[rows] == g] for g in groups[rows].unique())
            for unit in units if len(rows) else ():
                if not own or len(unit) > room:
                    own.append([])
                    room = size
                own[-1].append((step, unit))
                room -= len(unit)
        for part in own:
            steps_of = torch.cat([torch.full_like(rows, step) for step, rows in part])
            parts.append(Part(torch.cat([rows for _, rows in part]), steps_of))
        if keeps_pace:
            most = int(distributed.each(torch.tensor(len(own))).max())
            parts += [Part(torch.tensor([0]), torch.tensor(steps[:1]), idle=True)] * (most - len(own))
    return parts


def networks(model: FlowModel, sigmas: Sequence[float]) -> list[int]:
    """For each noise level, falling, the number of the network that computes it."""
    changes = [not model.same_network(before, after) for before, after in zip(sigmas, sigmas[1:], strict=False)]
    return [sum(changes[:step]) for step in range(len(sigmas))]


class Graphs(list[KeptCall]):
    """Calls that the rollout made already, with their graphs."""

    def of(self, number: int, rows: Tensor) -> tuple[Tensor, Callable[[], Tensor]] | None:
        """The velocity of each of these rows' call of that number, and what gives the gradient in its point; once.

        None: not all of them are here.
        """
        calls = [call for call in self if call.number == number and torch.isin(call.rows, rows).any()]
        there = torch.cat([call.rows for call in calls]) if calls else rows[:0]
        if not torch.isin(rows, there).all():
            return None
        for call in calls:
            self.remove(call)
        order = (there == rows[:, None]).int().argmax(1)  # [N]
        order, points = devices.upload(order, calls[0].x.device), [call.x for call in calls]

        def slope() -> Tensor:
            return torch.cat([point.grad for point in points if point.grad is not None])[order]  # each has one

        return torch.cat([call.velocity for call in calls])[order], slope


class Passes(ABC):
    """The passes of one update, with their figures.

    Args:
        total: how many points of all processes the loss is a mean over.
        settings: of the update; `kl_coefficient` is κ of the KL term, and `kl` what that is a mean of.
        computed: how many of them are computed, which figures are a mean over; None: all.
    """

    parts: Sequence[Part]
    watching: Callable[[Part], AbstractContextManager[None]] | None = None  # around a part's backward pass

    def __init__(self, model: FlowModel, total: int, settings: StepSettings, computed: int | None = None):
        self.model, self.tally, self.kl_coefficient, self.kl = model, Tally(), settings.kl_coefficient, settings.kl
        self.total, self.computed = total, computed
        # FSDP2 takes the mean of the processes' gradients, the loss wants the sum.
        self.processes = distributed.world() if model.policy.trains_shards else 1

    def accumulate(self, on_step: Callable[[], None]) -> None:
        """Adds the gradient of all parts to the weights'. `on_step` is called before each part, or each call of its network."""
        self.on_step = on_step
        for part in self.parts:
            for loss in self.losses(part):
                with self.watching(part) if self.watching else nullcontext():
                    loss.backward()

    @abstractmethod
    def losses(self, part: Part) -> Iterator[Tensor]:
        """Yields each `share` of a part, once the backward pass of the one before is done."""

    def share(
        self,
        loss: Tensor,
        statistics: dict[str, Tensor],
        count: int,
        kl: Tensor | None = None,
        reported: Tensor | None = None,
    ) -> Tensor:
        """The share of `count` points, with its KL term, in the update's loss, ready for its backward pass.

        `loss`: their mean.
        `statistics`: figures of them, which the tally takes in.
        `kl`: the mean of their `divergence`.
        `reported`: what is reported as the loss; None: the loss.
        """

        def of_all(mean: Tensor) -> Tensor:
            return mean if self.computed is None else mean * self.computed / self.total

        reported = loss.detach() if reported is None else reported
        if kl is not None:
            statistics["kl"] = of_all(kl.detach())
            loss, reported = loss + self.kl_coefficient * kl, reported + self.kl_coefficient * kl.detach()
        self.tally.add(of_all(reported), statistics, count, self.computed or self.total)
        return loss * (self.scale * count / self.total)

    def divergence(self, velocity: Tensor, untrained: Tensor, counts: Tensor) -> Tensor:
        """The values whose mean a KL term is, [N]: counts·‖v - v_ref‖²/n of each sample, with n entries of its velocity; of the
        form `norm` counts·max(0, ‖v‖ - ‖v_ref‖)²/n, which is never more than that (NormGuard, 2606.27771)."""
        if self.kl == "norm":
            longer = lengths(velocity) - lengths(untrained)
            return counts * longer.clamp(min=0).square() / velocity[0].numel()
        return counts * (velocity - untrained).square().flatten(1).mean(1)

    @property
    def scale(self) -> float:
        """The factor of a loss in its backward pass."""
        return self.model.policy.loss_scale.value * self.processes
