"""The gradient of the adapter against finite differences, before it is used for the first time: three calls of the network.

ComfyUI computes for pictures, not for gradients. A kernel, a cast or a block that is right for the one can be wrong for the other
without an error: by 24 % and more in the cases that are known, while what is right differs by rounding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...host import errors, stopping
from ..memo import Memo
from ..policy.policy import LossScale
from ..types import NextRollout
from .lora import B

if TYPE_CHECKING:
    from ..families.base import FlowModel
    from ..memo import Saved
    from ..types import Trajectories
    from .expert import Expert

logger = logging.getLogger(__name__)

CALLS = 3  # of the network: one with a gradient, and two with the adapter a step away to either side
# How far derivative and difference may lie apart, as a share: what rounding does to each dtype is below it.
THRESHOLDS = {torch.float32: 3e-3}
THRESHOLD = 0.04  # of bfloat16, float16 and whatever is quantized
# How much a step changes the velocity, as a share: little enough to be straight, enough to be no rounding.
CHANGES = {torch.float32: 4e-3}
CHANGE = 0.1
UNDECIDED = 0.5  # where the steps to both sides disagree by more, they say nothing
# The adapter's layers, in the order of the forward pass, are so many parts with an equal share of the derivative each. What is
# wrong in the first blocks alone, as where a block was computed again from other inputs, would hide behind the others.
PARTS = 4


class WrongGradient(errors.Expected, ValueError):
    """The gradient of this model is not its derivative, so nothing may be trained with it."""


@dataclass(frozen=True)
class Comparison:
    """A derivative by autograd, and the same from differences.

    Attributes:
        disagreement: how far the steps to both sides are apart, as a share: of a straight line 0, of noise about 1.
    """

    derivative: float
    difference: float
    disagreement: float
    threshold: float

    @property
    def error(self) -> float:
        """How far the two are apart, as a share."""
        most = max(abs(self.derivative), abs(self.difference))
        return abs(self.derivative - self.difference) / most if most else 0.0

    @property
    def is_decided(self) -> bool:
        return self.disagreement <= UNDECIDED

    @property
    def is_right(self) -> bool:
        return self.error <= self.threshold + self.disagreement**2  # the next order of what is not straight


class Tried(Memo):
    """The forms of a model whose gradient was compared: a resumed run does not repeat it."""

    NAME = "tried"

    def __init__(self, forms: Iterable[str] = ()):
        self.forms = set(forms)

    def saved(self) -> Saved | None:
        return ({}, sorted(self.forms)) if self.forms else None

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor], values: list[str]) -> Tried:
        return cls(map(str, values))


def check(model: FlowModel, expert: Expert, trajectories: Trajectories, step: int) -> None:
    """Compares, for the network that works at that step, at the first sample; where it cannot be decided, that is logged.

    Raises:
        WrongGradient: the derivative is another than the differences say.
    """
    kind = type(expert.core).__name__
    logger.info("%s: comparing its gradient with finite differences, %d calls of one sample", kind, CALLS)
    comparison = compare(model, expert, trajectories, step)
    figures = f"{comparison.derivative:.4g} against {comparison.difference:.4g}"
    if not comparison.is_decided:
        logger.warning("%s: finite differences cannot decide whether its gradient is right (%s)", kind, figures)
    elif not comparison.is_right:
        raise WrongGradient(
            f"the gradient of {kind} is wrong by {comparison.error:.0%}: the derivative of the adapter is {figures} by "
            f"finite differences. Nothing was trained. Fix: on Make Trainable set checkpointing to "
            f"{'off' if expert.checkpointing else 'on'}, memory to auto, or load the weights in another precision"
        )
    else:
        logger.info("%s: the gradient agrees with finite differences within %.1e", kind, comparison.error)


def compare(model: FlowModel, expert: Expert, trajectories: Trajectories, step: int) -> Comparison:
    """The derivative of the velocity along the adapter's B, in the direction in which that moves: A's is zero while B is."""
    settings, sigma, wish = trajectories.settings, trajectories.sigmas[step], model.memo[NextRollout]
    x = trajectories.latents[:1, step].to(model.device)
    condition = model.condition([trajectories.prompts[int(trajectories.groups[0])]], settings)
    on_call = stopping.progress(CALLS)

    def velocity() -> Tensor:
        on_call()
        return model.velocity(x, sigma, condition, model.guidance_at(sigma, settings))

    parameters = [parameter for key, parameter in expert.adapters.parameters().items() if key.endswith(B)]
    # The whole gradient: without the negative half's there is nothing that it would equal.
    model.memo.keep(NextRollout())
    try:
        return _compared(velocity, parameters, model.dtype, expert.is_quantized)
    finally:
        model.memo.keep(wish)


def _compared(velocity, parameters: Sequence, dtype: torch.dtype, is_quantized: bool) -> Comparison:
    is_exact = dtype == torch.float32 and not is_quantized
    threshold = THRESHOLDS[torch.float32] if is_exact else THRESHOLD
    change = CHANGES[torch.float32] if is_exact else CHANGE
    scale = LossScale.of(dtype)
    with torch.enable_grad():
        recorded = velocity()
    still = recorded.detach().double()
    random = torch.randn(still.shape, generator=torch.Generator().manual_seed(0)).to(recorded) / still.numel()
    gradients = _gradients(recorded, random, parameters, scale)
    del recorded  # and with it all that the backward pass needed
    kept = [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None and g.any()]
    if not kept:
        # As it has to be where the adapter does nothing, and nowhere else.
        with torch.no_grad(), _moved([(p, torch.ones_like(p)) for p in parameters], 1.0):
            return Comparison(0.0, float((velocity().double() - still).abs().max()), 0.0, threshold)
    direction = equalized(kept)
    # Along it the weighted sum moves by PARTS, and so the velocity by PARTS / ‖weights‖ at least: by some times that.
    size = change * float(still.norm() * random.norm()) / PARTS / (still.numel() ** 0.5 / 4)
    ahead = _step(velocity, still, direction, size)
    share = float(ahead.norm()) * size / float(still.norm())
    other = (
        -size if change / 4 <= share <= 4 * change else -size * min(1e4, max(1e-4, change / share if share else 1e4))
    )
    behind = _step(velocity, still, direction, other)
    slope = (behind * size - ahead * other) / (size - other)  # of the parabola through the three, at the middle one
    disagreement = float((ahead - behind).norm() / (ahead.norm() + behind.norm()).clamp_min(1e-30))
    derivative = sum(
        float((gradient.double() * d).sum()) for (_, gradient), (_, d) in zip(kept, direction, strict=True)
    )
    return Comparison(derivative, float((random * slope).sum()), disagreement, threshold)


def _gradients(recorded: Tensor, weights: Tensor, parameters: Sequence, scale: LossScale) -> list[Tensor | None]:
    """The gradient of Σ weights·velocity as an update takes it, whose loss is scaled in float16; halved until it fits."""
    while True:
        grads = torch.autograd.grad(recorded, parameters, weights * scale.value, retain_graph=True, allow_unused=True)
        if scale.value == 1 or all(gradient is None or gradient.isfinite().all() for gradient in grads):
            return [None if gradient is None else gradient / scale.value for gradient in grads]
        scale.overflowed()


def equalized(kept: Sequence[tuple[torch.nn.Parameter, Tensor]]) -> list[tuple[torch.nn.Parameter, Tensor]]:
    """The gradient as a direction along which each of the parts has a derivative of 1."""
    size, direction = -(-len(kept) // PARTS), []
    for begin in range(0, len(kept), size):
        part = kept[begin : begin + size]
        squared = float(sum(gradient.double().square().sum() for _, gradient in part))
        direction += [(parameter, gradient / squared) for parameter, gradient in part]
    return direction


@torch.no_grad()
def _step(velocity: Callable[[], Tensor], still: Tensor, direction: Sequence, size: float) -> Tensor:
    """The change by a step of that size, divided by its size."""
    with _moved(direction, size):
        return (velocity().double() - still) / size


@contextmanager
def _moved(direction: Sequence[tuple[torch.nn.Parameter, Tensor]], size: float) -> Iterator[None]:
    """Within it the parameters are a step further. Their own memory is not touched: graphs that the rollout kept refer to it."""
    before = [parameter.data for parameter, _ in direction]
    for parameter, along in direction:
        parameter.data = parameter.data + size * along
    try:
        yield
    finally:
        for (parameter, _), value in zip(direction, before, strict=True):
            parameter.data = value
