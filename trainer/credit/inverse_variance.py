"""Credit by how noisy each step's gradient is, as the updates of a run have measured it (method.md §4, inverse variance).

A sum of estimates of equal signal and independent noise is best weighted by the inverse of each one's variance, and a policy
gradient is nearly all noise. An update takes its gradient in parts of one step each, so that it can tell E|g_j|² for nothing.
What was found is averaged over the training and is remembered as `StepNoise`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...host import distributed
from ..memo import Memo
from .steps import uniform

if TYPE_CHECKING:
    from ..families.base import FlowModel
    from ..memo import Saved
    from ..types import StepCredit, Trajectories

FIGURES = LEVEL, NEXT_LEVEL, SQUARE, WEIGHT = range(4)  # the rows of `StepNoise.figures`


@dataclass(frozen=True)
class StepNoise(Memo):
    """The noise of the steps until now: `figures` [4, n] float64, a column for each step number."""

    NAME = "step_noise"

    figures: Tensor = field(default_factory=lambda: torch.zeros(len(FIGURES), 0, dtype=torch.float64))

    def saved(self) -> Saved | None:
        return ({self.NAME: self.figures}, True) if self.figures.numel() else None

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor], values: bool) -> StepNoise:
        return cls(tensors[cls.NAME])


def inverse_variance(squares: Tensor) -> Tensor:
    """w_j ∝ 1/E|g_j|² of mean 1, [T']: the best weights of steps whose gradients hold equal signal and independent noise.

    Args:
        squares: E|g_j|² [T'] > 0.
    """
    weights = 1 / squares
    return weights / weights.mean()


def inverse_variance_weights(model: FlowModel, trajectories: Trajectories, decay: float) -> StepCredit:
    """Weights by `StepNoise`, the same for all samples; it asks the update to measure on.

    A step belongs to what was found before by its number and its two noise levels. One that was not measured weighs 1, as all do
    before the first update.

    `decay`: of the averages, an update.

    Raises:
        ValueError: a model that did not sample these trajectories, or a decay outside [0, 1).
    """
    if not trajectories.made_by(model):
        raise ValueError(
            "model: it is not the one that sampled these trajectories. Fix: connect the model of SDE Sampler"
        )
    if not 0 <= decay < 1:
        raise ValueError(f"decay must lie in [0, 1), not {decay}. Fix: a number in it")
    credit = uniform(trajectories.latents, trajectories.final, trajectories.trained)
    figures = _of_steps(model.memo[StepNoise].figures, trajectories)
    measured, weights = figures[SQUARE] > 0, torch.ones(len(trajectories.trained), dtype=torch.float64)
    if measured.any():
        weights[measured] = inverse_variance(figures[SQUARE, measured] / figures[WEIGHT, measured])
    weights = weights.float().expand(len(credit.weights), -1)
    raw = weights / weights.sum(1, keepdim=True)
    return replace(
        credit, weights=weights, raw=raw, method="inverse variance", measures=decay, sigmas=trajectories.sigmas
    )


class Measured:
    """Measures each trained step in one update: Σ|g|² of its parts and Σ of their samples' squared advantages.

    A part's gradient has the squared length Σ_i Ã_i²·|∇ log p_i|² on average, since samples have noise of their own: so the
    quotient of both sums is E|∇ log p_j|², whatever the weights, the samples drawn or the size of parts were.
    """

    def __init__(self, steps: int, device: torch.device, decay: float):
        self.sums = torch.zeros(2, steps, dtype=torch.float32, device=device)
        self.decay = decay

    @contextmanager
    def watching(
        self, parameters: Sequence[torch.nn.Parameter], position: int, pulls: Tensor, scale: float
    ) -> Iterator[None]:
        """Around the backward pass of a part of one step, whose gradient is added to what was there, to the bit as without.

        `position`: of the step among the trained ones.
        `pulls`: what each of its samples' ∇ log p is multiplied with, but for `scale`.
        `scale`: what the whole gradient is multiplied with.
        """
        before = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None
        yield
        for parameter, sum_ in zip(parameters, before, strict=True):
            if parameter.grad is not None:
                own = getattr(parameter.grad, "to_local", lambda grad=parameter.grad: grad)()  # this process's shard
                self.sums[0, position] += (own.float() / scale).square().sum()
                sum_ = parameter.grad if sum_ is None else sum_.add_(parameter.grad)
            parameter.grad = sum_
        self.sums[1, position] += pulls.float().square().sum()

    def averaged(self, noise: StepNoise, trajectories: Trajectories) -> StepNoise:
        """The same after this update, from the parts of all processes.

        A step in which no sample pulled, or whose gradient was not finite, stays as it was. Averages begin at 0, which
        their own weight corrects.
        """
        before = noise.figures
        sums = distributed.each(self.sums.cpu().double()).sum(0)
        last = 1 + max(trajectories.trained, default=-1)
        figures = torch.zeros(len(FIGURES), max(before.shape[1], last), dtype=torch.float64)
        figures[:, : before.shape[1]] = before
        own, decay = _of_steps(before, trajectories), self.decay
        means = sums[0] / sums[1]
        counts = means.isfinite() & (means > 0)
        own[SQUARE:, counts] = decay * own[SQUARE:, counts] + (1 - decay) * torch.stack(
            [means[counts], torch.ones_like(means[counts])]
        )
        figures[:, list(trajectories.trained)] = own
        return StepNoise(figures)


def noted(trajectories: Trajectories, squares: Tensor) -> StepNoise:
    """One that holds these E|g_j|² [T'] of the trained steps."""
    figures = torch.zeros(len(FIGURES), 1 + max(trajectories.trained), dtype=torch.float64)
    own = _of_steps(figures, trajectories)
    own[SQUARE], own[WEIGHT] = squares, 1
    figures[:, list(trajectories.trained)] = own
    return StepNoise(figures)


def _of_steps(figures: Tensor, trajectories: Trajectories) -> Tensor:
    """The figures [4, T'] of the trained steps; without averages where a step is new, or had other noise levels."""
    own = torch.zeros(len(FIGURES), len(trajectories.trained), dtype=torch.float64)
    for position, step in enumerate(trajectories.trained):
        levels = torch.tensor(trajectories.sigmas[step : step + 2], dtype=torch.float64)
        if step < figures.shape[1] and torch.equal(figures[:SQUARE, step], levels):
            own[:, position] = figures[:, step]
        own[:SQUARE, position] = levels
    return own
