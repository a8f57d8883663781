"""The trial of a model, in small: whether a call may hold several samples, and whether it remembers the call before.

ComfyUI's sampler has one noise level in a call, and mostly one sample. So a node's function may take the level of the first row
for that of all, or a mean over all rows, and be right there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..families.options import FlowModelError
from ..memory.case import TRIAL_CALLS
from . import foreign, guard

if TYPE_CHECKING:
    from .conditions import NativeCondition
    from .expert import Expert

logger = logging.getLogger(__name__)

CALLS = TRIAL_CALLS - guard.CALLS  # of each network, at most
# What a network raises that is given something of another form.
MISFITS = (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError, AssertionError)
# Velocities that lie further apart than this, as a share, are not the same: of two forms of a call, and of one call made twice.
ALIKE, STEADY = 0.02, 1e-3


@torch.no_grad()
def run(
    velocity: Callable[..., Tensor],
    expert: Expert,
    levels: tuple[float, float],
    condition: NativeCondition,
    x: Tensor,
    guidance: float,
) -> None:
    """Notes on one of a model's networks whether its calls may hold several samples.

    Where other nodes' functions see the noise level, they may do so at some levels only, which no trial would meet: a call then
    holds one sample, as ComfyUI's sampler would have it.

    `velocity`: the model's.
    `levels`: a high and a low one, at which that network works.
    `condition`: of one prompt.
    `x`: three samples; or one, where a batch would be too large to try.

    Raises:
        FlowModelError: the same call gives another velocity later, or a function of another node raises.
    """
    call = partial(_call, velocity, condition, x, guidance)
    high, low = levels
    logger.info("%s: trying it, %d calls at most", type(expert.core).__name__, CALLS)
    try:
        if expert.is_alone:
            _check_steady(expert, call, high, low)
        elif len(x) > 1:
            expert.is_alone = _couples(call, high, low)
    except MISFITS as error:
        if node := foreign.blamed(error, expert.functions):
            raise FlowModelError(
                f"model: {node} raises in a call of {type(expert.core).__name__}: {first_line(error)}. Fix: connect the "
                "MODEL from before that node, or switch off what it remembers of a sampling at another size, such as "
                "momentum; a KSampler after Tuned Model may have it"
            ) from error
        raise


def _call(
    velocity: Callable[..., Tensor], condition: NativeCondition, x: Tensor, guidance: float, **at: float
) -> Tensor:
    """The velocity of samples 0, 1 … of x, each at its level."""
    rows = [int(name[1:]) for name in at]
    levels = torch.tensor(list(at.values()), dtype=torch.float64)
    return velocity(x[rows], levels, condition.rows(torch.zeros(len(rows), dtype=torch.int64)), guidance)


def _couples(call: Callable[..., Tensor], high: float, low: float) -> bool:
    """Whether a sample's velocity depends on which others are in the call, on their levels, or on its place among them."""
    try:
        first, other = call(_0=high, _1=low)[1], call(_1=low, _2=high)[0]
        return _apart(first, other) > ALIKE
    except torch.OutOfMemoryError:
        raise
    except MISFITS:
        call(_0=high)
        return True


def _check_steady(expert: Expert, call: Callable[..., Tensor], high: float, low: float) -> None:
    """A call at a low level, once first and once after one at a high level, as in a second trajectory."""
    first, _, again = (call(_0=level) for level in (low, high, low))
    if (apart := _apart(again, first)) > STEADY:
        raise FlowModelError(
            f"model: {foreign.titles(expert.functions)}: the same call of {type(expert.core).__name__} gives another velocity "
            f"after a call at another noise level, {apart:.1%} away, as where a node remembers the step before or draws numbers. "
            "Fix: switch that off at the node, such as momentum at 0, or connect the MODEL from before it; a KSampler after "
            "Tuned Model may have it"
        )


def _apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm().clamp_min(1e-12))


def first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:200]
