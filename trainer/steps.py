"""Which of a sampler's steps are stochastic, and what its settings cannot be, by numbers alone: no model, no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .problem import Misfit
from .sde import MIN_STD, ODE_SOLVERS, largest_eta, transition

if TYPE_CHECKING:
    from .types import SamplerSettings


def step_kinds(settings: SamplerSettings) -> list[str]:
    """The sampler kind of each of the T transitions: `ode` outside the window and, unless it is trained, for the last one."""
    inside = range(settings.window[0] if settings.window else 0, settings.window_end)
    last = settings.transitions - 1
    return [
        settings.kind if j in inside and (j != last or settings.train_last_step) else "ode"
        for j in range(settings.transitions)
    ]


def noise_levels(settings: SamplerSettings, shift: float) -> list[float]:
    """What `FlowModel.sigmas` gives, up to rounding, for a checkpoint of that shift."""
    steps, end, own = settings.steps, settings.window_end, settings.shift or shift
    u = [1 - j / steps for j in range(end + 1)]
    left = settings.transitions - end
    u += [u[end] * (left - j) / left for j in range(1, left + 1)]
    return [own * level / (1 + (own - 1) * level) for level in u]


def misfits(settings: SamplerSettings, group_size: int) -> Iterator[Misfit]:
    """What no model could sample with these settings."""
    if group_size < 2:
        message = f"group_size must be at least 2, not {group_size}: an advantage compares the samples of a group"
        yield Misfit("group_size", message, "2 or more")
    if settings.ode_solver not in ODE_SOLVERS:
        message = f"ode_solver must be one of {ODE_SOLVERS}, not {settings.ode_solver!r}"
        yield Misfit("ode_solver", message, "one of those")
    if settings.eta > largest_eta(settings.kind):
        message = f"eta must lie in [0, 1] for the kind {settings.kind}, not {settings.eta:g}: at 1 all noise is fresh"
        yield Misfit("eta", message, "lower it")
    if settings.fraction_after_window < 1 and (settings.window is None or settings.window[1] >= settings.steps):
        message = (
            f"fraction_after_window is {settings.fraction_after_window:g}, but no window ends before the last step"
        )
        fix = "set window_length, connect a MixGRPO Window, or leave fraction_after_window at 1"
        yield Misfit("fraction_after_window", message, fix)


def untrainable(settings: SamplerSettings, sigmas: Sequence[float]) -> Misfit | None:
    """What is wrong where no transition is stochastic, which the noise levels alone decide."""
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
