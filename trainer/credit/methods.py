"""The methods of Step Credit by their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..sde import sensitivities
from . import steps
from .inverse_variance import inverse_variance_weights
from .learned import learned

if TYPE_CHECKING:
    from ..types import StepCredit, Trajectories


def step_credit(
    method: str,
    taken: Trajectories,
    model: Any = None,
    scores: Any = None,
    *,
    timestep_fraction: float = 1.0,
    seed: int = 0,
    decay: float = 0.95,
    **measuring: Any,
) -> StepCredit:
    """The credit of a row of `types.CREDITS`. `measuring`: `measure_every`, `groups` and `w_min` of `learned`."""
    points = taken.latents, taken.final, taken.trained
    kind, sigmas, eta = taken.settings.kind, taken.sigmas, taken.settings.eta
    return {
        "uniform": lambda: steps.uniform(*points, timestep_fraction, torch.Generator().manual_seed(seed), taken.share),
        "noise_aware": lambda: steps.noise_aware(*points, taken.stds),
        "pcpo": lambda: steps.pcpo(*points, sensitivities(kind, sigmas, eta), sigmas),
        "grpo_guard": lambda: steps.grpo_guard(*points, taken.stds, sigmas),
        "inverse_variance": lambda: inverse_variance_weights(model, taken, decay),
        "learned": lambda: learned(model, taken, scores, decay=decay, **measuring),
    }[method]()
