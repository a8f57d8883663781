"""The schedule of a rollout: its noise levels, the kind of each step, and where the window of stochastic steps stands.

All of it follows from the settings alone, so that a graph can be checked before a model is loaded.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from .sde import MIN_STD, largest_eta, transition
from .types import ODE_SOLVERS, WINDOW_MODES
from .workflow.problem import Misfit

if TYPE_CHECKING:
    from torch import Tensor

    from .types import SamplerSettings


def noise_levels(
    settings: SamplerSettings, shift: float, terminal: float = 0.0, own: Sequence[float] = (), least: float = 0.0
) -> tuple[float, ...]:
    """T+1 noise levels from 1 to 0: σ = shift·u / (1 + (shift-1)·u) with u = linspace(1, 0, steps + 1).

    Where only a fraction of the steps after the window is taken, they are as even in u as all of them would be.

    `shift`: that of the settings, or the checkpoint's own.
    `terminal`: the last level before 0 of the checkpoint's own schedule, to which its levels are stretched; 0: they are not.
    `own`: the checkpoint's own u without its last one, 0, for as many steps; for more or fewer, straight lines between them.
    `least`: the last u before 0, where all before it are even from 1 to it, as SD3's pipeline has them; 0: it has no such.
    """
    import numpy as np
    import torch  # the sampler's node imports this module, and the list of nodes must not load torch

    end = settings.window_end
    u = _falling(1, settings.steps, least)
    if settings.transitions < settings.steps:
        u = torch.cat([u[:end], _falling(u[end].item(), settings.transitions - end, least)])
    if own:
        u = torch.from_numpy(np.interp(u, np.linspace(0, 1, len(own) + 1), (0.0, *reversed(own))))
    levels = shift * u / (1 + (shift - 1) * u)
    if terminal and len(levels) > 2:  # of one step, the first level is the last before 0 too
        levels[:-1] = 1 - (1 - levels[:-1]) * (1 - terminal) / (1 - levels[-2])
    return tuple(levels.tolist())


def _falling(begin: float, steps: int, least: float) -> Tensor:
    """steps + 1 values from `begin` to 0, evenly spaced; with `least` but for the last one, which follows that."""
    import torch

    if least and steps:
        return torch.cat(
            [torch.linspace(begin, least, steps, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)]
        )
    return torch.linspace(begin, 0, steps + 1, dtype=torch.float64)


def step_kinds(settings: SamplerSettings) -> list[str]:
    """The sampler kind of each of the T transitions: `ode` outside the window or what was drawn of it, and for the last one.

    Its noise would never reach the picture, which is decoded from the last x̂0.
    """
    inside = range(settings.window[0] if settings.window else 0, min(settings.window_end, settings.transitions - 1))
    return [settings.kind if j in (settings.drawn or inside) else "ode" for j in range(settings.transitions)]


def stochastic_count(settings: SamplerSettings) -> int:
    """How many steps of a rollout add noise, as far as the settings say: T' at most."""
    inside = sum(kind != "ode" for kind in step_kinds(settings))
    return min(inside, settings.stochastic_steps or inside)


def misfits(settings: SamplerSettings, group_size: int) -> Iterator[Misfit]:
    """The problems of these settings, whatever the model."""
    if group_size < 2:
        message = f"group_size must be at least 2, not {group_size}: an advantage compares the samples of a group"
        yield Misfit("group_size", message, "2 or more")
    if settings.ode_solver not in ODE_SOLVERS:
        message = f"ode_solver must be one of {ODE_SOLVERS}, not {settings.ode_solver!r}"
        yield Misfit("ode_solver", message, "one of those")
    if settings.eta > largest_eta(settings.kind):
        message = f"eta must lie in [0, 1] for the kind {settings.kind}, not {settings.eta:g}: at 1 all noise is fresh"
        yield Misfit("eta", message, "lower it")
    if settings.kind == "ode" and settings.shared_noise:
        message = "shared_noise with the kind ode: a step adds no noise, so all samples of a group would be one picture"
        yield Misfit("shared_noise", message, "switch it off")
    if settings.kind == "ode" and settings.window is not None:
        message = "a window has no meaning for the kind ode: it says which steps are stochastic"
        yield Misfit(
            "window_length", message, "set window_start and window_length to 0, and disconnect a MixGRPO Window"
        )
    if settings.stochastic_steps > (inside := sum(kind != "ode" for kind in step_kinds(settings))):
        message = (
            f"stochastic_steps is {settings.stochastic_steps}, and so many steps of the window can add noise: {inside}"
        )
        yield Misfit("stochastic_steps", message, "lower it, or 0 for all of them")
    if settings.fraction_after_window < 1 and (settings.window is None or settings.window[1] >= settings.steps):
        message = (
            f"fraction_after_window is {settings.fraction_after_window:g}, but no window ends before the last step"
        )
        fix = "set window_length, connect a MixGRPO Window, or leave fraction_after_window at 1"
        yield Misfit("fraction_after_window", message, fix)


def unequal_shares(samples: int, processes: int, name: str = "prompts_per_iteration") -> Misfit:
    """Says that processes that hold a model together have unequally many samples. `name`: the input that counts groups."""
    message = (
        f"{processes} processes cannot share {samples} samples equally, as a model that they hold together needs it"
    )
    return Misfit(
        name, message, f"make {name} times the samples of each a multiple of {processes}, or train with fewer processes"
    )


def untrainable(settings: SamplerSettings, sigmas: Sequence[float]) -> Misfit | None:
    """The problem where no transition is stochastic: the noise levels decide that. Of `ode` none has to be."""
    if settings.kind == "ode":
        return None
    levels = zip(step_kinds(settings), sigmas, sigmas[1:], strict=False)
    for kind, sigma, following in levels:
        # a transition's std does not depend on where it starts
        if transition(kind, 0.0, 0.0, sigma, following, eta=settings.eta, sigma_after_first=sigmas[1]).std >= MIN_STD:
            return None
    message = (
        f"no step of sampler kind {settings.kind!r} with eta {settings.eta:g}, {settings.steps} steps and window "
        f"{settings.window} is stochastic, so nothing can be trained"
    )
    return Misfit(
        "eta" if settings.window is None else "window_start", message, "raise eta, or move the window to earlier steps"
    )


DECAY, DECAY_FROM = 0.1, 13  # k and the step from which intervals shrink, as MixGRPO's code has them for 25 steps


def window_start(
    iteration: int,
    steps: int,
    length: int,
    *,
    mode: str = "progressive",
    every: int = 25,
    stride: int = 1,
    seed: int = 0,
) -> int:
    """The first step of the window (MixGRPO). It depends on the iteration alone, so that a resumed run has the same windows.

    The window stays within the steps that can be trained, all but the last, so it never trains fewer than `length`. It starts at
    0, s, 2s … and finally at the last possible start, T - 1 - length; then at 0 again.

    `iteration`: counted from 0.
    `steps`: T of the sampler.
    `length`: of the window.
    `mode`: "progressive": each start for `every` iterations. "progressive_decay": the start at step l only for
        ⌈every · exp(-k·max(0, l - 13))⌉ with k = 0.1, so that late steps get less. "random": a start drawn for each
        iteration.
    `stride`: s, of both progressive modes.
    `seed`: of "random"; a draw depends on the seed and the iteration alone.

    Raises:
        ValueError: an unknown mode, or a window longer than the steps that can be trained.
    """
    if mode not in WINDOW_MODES:
        raise ValueError(f"mode must be one of {WINDOW_MODES}, not {mode!r}")
    last = steps - 1 - length
    if last < 0:
        raise ValueError(
            f"length {length}: of {steps} steps {length + last} can be trained, so a longer window does not fit. Fix: lower "
            "length, or raise steps"
        )
    if mode == "random":
        import numpy as np  # here, since few graphs need it

        return int(np.random.default_rng([seed, iteration]).integers(last + 1))
    starts = [*range(0, last, stride), last]
    rate = DECAY if mode == "progressive_decay" else 0.0
    stays = [math.ceil(every * math.exp(-rate * max(0, start - DECAY_FROM))) for start in starts]
    return starts[bisect_right(list(accumulate(stays)), iteration % sum(stays))]
