"""One derivative of the adapter against finite differences, before its gradient is used for the first time.

ComfyUI computes for pictures, not for gradients. A kernel, a cast or a block that is right for the one can be wrong for the other
without an error: by 24 % and more in the cases that are known, while what is right differs by rounding.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..policy.policy import LossScale
from ..types import NextRollout
from .lora import B

if TYPE_CHECKING:
    from ..types import Trajectories
    from .model import NativeModel

logger = logging.getLogger(__name__)

# How far derivative and differences may lie apart, as a share: what rounding does to each dtype is below it.
THRESHOLDS = {torch.float32: 1e-2}
THRESHOLD = 0.15  # of bfloat16, float16 and whatever is quantized
# The two step sizes, by how much they change the velocity: small enough to be straight, large enough to be no rounding.
CHANGES = {torch.float32: (2e-3, 8e-3)}
CHANGE = (4e-2, 1.2e-1)
UNDECIDED = 0.5  # where the two step sizes disagree by more, they say nothing
# The adapter's layers are compared in so many parts, in the order of the forward pass. What is wrong in the first blocks alone,
# as where a block was computed again from other inputs, hides in one derivative of all layers: of FLUX 3 % in place of 46 %.
PARTS = 4
TRIES = 12
STEADY = 0.05  # what two equal calls may differ by, as a share of the smaller change


class WrongGradient(ValueError):
    """The gradient of this model is not its derivative, so nothing may be trained with it."""


@dataclass(frozen=True)
class Comparison:
    """A derivative and the same from central differences at two step sizes."""

    derivative: float
    differences: tuple[float, float]
    threshold: float

    @property
    def disagreement(self) -> float:
        """How far the two step sizes are apart, as a share."""
        return _apart(*self.differences)

    @property
    def error(self) -> float:
        """The derivative's distance from the nearer of the two, as a share."""
        return min(_apart(self.derivative, difference) for difference in self.differences)

    @property
    def is_decided(self) -> bool:
        return self.disagreement <= UNDECIDED

    @property
    def is_right(self) -> bool:
        return self.error <= self.threshold + self.disagreement


def check(model: NativeModel, trajectories: Trajectories) -> None:
    """Compares, for each network, at the first sample of these trajectories; where it cannot be decided, that is logged.

    Raises:
        WrongGradient: a derivative is another than the differences say.
    """
    for name in model.wrapped:
        steps = [step for step in trajectories.trained if model._expert_at(trajectories.sigmas[step]) == name]
        if not steps:
            continue
        found = worst(compare(model, trajectories, name, steps[0]))
        kind = type(model.wrapped[name].core).__name__
        figures = f"{found.derivative:.4g} against {found.differences[0]:.4g} and {found.differences[1]:.4g}"
        if not found.is_decided:
            logger.warning("%s: finite differences cannot decide whether its gradient is right (%s)", kind, figures)
        elif not found.is_right:
            raise WrongGradient(
                f"the gradient of {kind} is wrong by {found.error:.0%}: the derivative of the adapter is {figures} by finite "
                f"differences. Nothing was trained. Fix: on Make Trainable set checkpointing to "
                f"{'off' if model.checkpointing else 'on'}, memory to auto, or load the weights in another precision"
            )
        else:
            logger.info("%s: its gradient is right within %.1e (%s)", kind, found.error, figures)


def worst(found: Sequence[Comparison]) -> Comparison:
    """The one that is furthest beyond what it may be, of those that are decided if there are any."""
    decided = [comparison for comparison in found if comparison.is_decided]
    return max(decided or found, key=lambda each: each.error - each.threshold - each.disagreement)


def compare(model: NativeModel, trajectories: Trajectories, name: str, step: int) -> list[Comparison]:
    """The derivative of each part of the adapter's B along its own gradient: A's is zero while B is."""
    settings, sigma, wish = trajectories.settings, trajectories.sigmas[step], model.memo[NextRollout]
    model.memo.keep(
        NextRollout()
    )  # the whole gradient: without the negative half's there is nothing that it would equal
    try:
        return _compared(model, trajectories, name, step, settings, sigma)
    finally:
        model.memo.keep(wish)


def _compared(model, trajectories, name, step, settings, sigma) -> list[Comparison]:
    x = trajectories.latents[:1, step].to(model.device)
    condition = model.condition([trajectories.prompts[int(trajectories.groups[0])]], settings)
    weights = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x.device)

    def velocity() -> Tensor:
        with model.forwards.uncounted():
            return model.velocity(x, sigma, condition, model.guidance_at(sigma, settings))

    pairs = model.wrapped[name].adapters.parameters()
    parameters = [parameter for key, parameter in pairs.items() if key.endswith(B)]
    gradients = _gradients(lambda: (velocity() * weights).mean(), parameters, LossScale.of(model.dtype))
    kept = [(p, g) for p, g in zip(parameters, gradients, strict=True) if g is not None and g.any()]
    known = model.dtype == torch.float32 and not model.is_quantized
    threshold = THRESHOLDS[torch.float32] if known else THRESHOLD
    changes = CHANGES[torch.float32] if known else CHANGE
    if not kept:
        # As it has to be where the adapter does nothing, and nowhere else.
        moved = _moves(velocity, [(p, torch.ones_like(p)) for p in parameters])
        return [Comparison(0.0, (moved, moved), threshold)]
    with torch.no_grad():
        still, again = velocity().double(), velocity().double()
    is_steady = float((again - still).norm() / still.norm()) <= STEADY * changes[0]
    found = []
    for part in _parts(kept):
        length = float(sum(gradient.double().square().sum() for _, gradient in part)) ** 0.5
        direction = [(parameter, gradient / length) for parameter, gradient in part]
        differences = [
            _difference(velocity, still, weights, direction, each) if is_steady else math.nan for each in changes
        ]
        found.append(Comparison(length, (differences[0], differences[1]), threshold))
    return found


def _gradients(value: Callable[[], Tensor], parameters: Sequence, scale: LossScale) -> list[Tensor | None]:
    """The gradient as an update takes it, whose loss is scaled in float16; here the scale is halved until it fits."""
    while True:
        with torch.enable_grad():
            found = torch.autograd.grad(value() * scale.value, parameters, allow_unused=True)
        if scale.value == 1 or all(gradient is None or gradient.isfinite().all() for gradient in found):
            return [None if gradient is None else gradient / scale.value for gradient in found]
        scale.overflowed()


def _parts(kept: Sequence) -> list[Sequence]:
    size = -(-len(kept) // PARTS)
    return [kept[begin : begin + size] for begin in range(0, len(kept), size)]


@torch.no_grad()
def _difference(
    velocity: Callable[[], Tensor], still: Tensor, weights: Tensor, direction: Sequence, change: float
) -> float:
    """The central difference with a step that changes the velocity, which is `still`, by that share; NaN if no step does."""
    size = 1e-2
    for _ in range(TRIES):
        with _moved(direction, size):
            moved = velocity().double()
        share = float((moved - still).norm() / still.norm())
        if change / 2 <= share <= change * 2:
            break
        size *= min(100.0, max(0.01, change / share)) if share else 100.0
    else:
        return math.nan
    above = float((moved * weights).mean())
    with _moved(direction, -size):
        below = float((velocity().double() * weights).mean())
    return (above - below) / (2 * size)


@torch.no_grad()
def _moves(velocity: Callable[[], Tensor], direction: Sequence) -> float:
    """How much a step of this direction moves the velocity."""
    still = velocity()
    with _moved(direction, 1.0):
        return float((velocity() - still).abs().max())


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


def _apart(a: float, b: float) -> float:
    most = max(abs(a), abs(b))
    return abs(a - b) / most if most else 0.0
