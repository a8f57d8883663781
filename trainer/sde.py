"""One stochastic transition of a flow model: a Gaussian, for sampling and for log-probability alike (method.md §2).

Noise level σ falls from 1 to 0, x = (1-σ)·x0 + σ·ε, velocity v = ε - x0; hence x̂0 = x - σ·v and x̂1 = x + (1-σ)·v.

    x_j, v        `x`, `velocity`                  [B, C, (F,) h, w]   the point that step j leaves, the model's velocity there
    σ_j, σ', Δ    `sigma`, `sigma_next`, σ - σ'    numbers             the levels that step j leads from and to
    η, s          `eta`, the diffusion coefficient numbers             how much noise a step adds: s·√Δ
    μ, std        `Gaussian.mean`, `Gaussian.std`  as x, a number      x_{j+1} = μ + std·noise
    log p         `Gaussian.log_prob`              [B], maps [B, (F,) h, w]; of T' trained steps [B, T']

A new sampler is one function `(velocity, x, sigma, sigma_next, eta, sigma_after_first) -> Gaussian` and one row in KINDS.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .types import LOG_PROB_NORMS

if TYPE_CHECKING:
    from torch import Tensor

MIN_STD = 1e-6  # below this a transition is deterministic: it has no log-probability and is never trained


@dataclass(frozen=True)
class Gaussian:
    """N(mean, std²): `mean` [B, …], `std` a number, the same for every element."""

    mean: Tensor
    std: float

    def sample(self, noise: Tensor) -> Tensor:
        """mean + std·noise, [B, …]."""
        return self.mean + self.std * noise

    def log_prob(self, x: Tensor, norm: str = "full") -> Tensor:
        """Log-density of x, averaged over all non-batch dimensions, [B] float32.

        Args:
            x: [B, …], rounded to the dtype it is stored in, so that a later call sees the same point.
            norm: "full" is the density; "squared_error" drops the 1/(2·std²) and the constant, as public CPS code does.

        Raises:
            ValueError: for a deterministic transition, which has no density, or an unknown norm.
        """
        return self._density(self._squared_error(x).flatten(1).mean(1), norm)

    def log_prob_map(self, x: Tensor, norm: str = "full") -> Tensor:
        """The log-density averaged over the channels alone: one for every latent position, [B, h, w] or [B, F, h, w]."""
        return self._density(self._squared_error(x).mean(1), norm)

    def _squared_error(self, x: Tensor) -> Tensor:
        return (x.float() - self.mean.float()).square()

    def _density(self, squared_error: Tensor, norm: str) -> Tensor:
        if norm not in LOG_PROB_NORMS:
            raise ValueError(f"log_prob_norm must be one of {LOG_PROB_NORMS}, not {norm!r}")
        if self.std < MIN_STD:
            raise ValueError(f"a transition with std {self.std:.3g} is deterministic and has no log-probability")
        if norm == "squared_error":
            return -squared_error
        return -squared_error / (2 * self.std**2) - math.log(self.std) - 0.5 * math.log(2 * math.pi)


def transition(
    kind: str,
    velocity: Tensor | float,
    x: Tensor | float,
    sigma: float,
    sigma_next: float,
    *,
    eta: float,
    sigma_after_first: float | None = None,
) -> Gaussian:
    """The distribution of x_{j+1} given x_j.

    `kind`: one of KINDS.
    `velocity`, `x`: [B, …].
    `sigma`, `sigma_next`: noise levels with sigma > sigma_next >= 0.
    `eta`: how much noise; 0 is the ODE for every kind.
    `sigma_after_first`: the schedule's second level, which stands in for σ = 1 where `flow_sde` would divide by zero;
        `sigma_next` when omitted.

    Raises:
        ValueError: unknown kind, noise levels that do not fall, or an eta that the kind cannot have.
    """
    if kind not in KINDS:
        raise ValueError(f"unknown sampler kind {kind!r}; known: {', '.join(KINDS)}")
    if not sigma > sigma_next >= 0:
        raise ValueError(f"noise levels must fall: sigma {sigma}, sigma_next {sigma_next}")
    return KINDS[kind](
        velocity, x, sigma, sigma_next, eta, sigma_next if sigma_after_first is None else sigma_after_first
    )


def sensitivities(kind: str, sigmas: Sequence[float], eta: float) -> tuple[float, ...]:
    """c_j = ‖∂μ/∂v‖ / std of the T transitions: how sensitive a log-ratio is to a change of the velocity (PCPO, 2509.25774).

    Infinite where a transition is deterministic. `flow_sde`'s variance at σ = 1 is a stand-in; so is its c there, that of the
    step after it.
    """
    import torch  # the sampler node reads this module's table before anything else is loaded

    unit, zero = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)
    values = []
    for sigma, following in zip(sigmas, sigmas[1:], strict=False):
        # The mean is linear in v, so its slope is its value where x = 0 and v = 1.
        gaussian = transition(kind, unit, zero, sigma, following, eta=eta, sigma_after_first=sigmas[1])
        values.append(gaussian.mean.abs().item() / gaussian.std if gaussian.std >= MIN_STD else math.inf)
    if kind in STAND_IN_AT_ONE and sigmas[0] >= 1 and len(values) > 1:
        values[0] = values[1]
    return tuple(values)


def ode(velocity, x, sigma, sigma_next, eta, sigma_after_first) -> Gaussian:
    """Euler step of the probability-flow ODE."""
    return _euler_maruyama(velocity, x, sigma, sigma_next, 0.0)


def flow_sde(velocity, x, sigma, sigma_next, eta, sigma_after_first) -> Gaussian:
    """Flow-GRPO (2505.05470): s = η·√(σ/(1-σ))."""
    return _euler_maruyama(velocity, x, sigma, sigma_next, flow_sde_coefficient(sigma, eta, sigma_after_first))


def dance_sde(velocity, x, sigma, sigma_next, eta, sigma_after_first) -> Gaussian:
    """DanceGRPO (2505.07818), and OTCA's experiments: s = η, constant."""
    return _euler_maruyama(velocity, x, sigma, sigma_next, eta)


def cps(velocity, x, sigma, sigma_next, eta, sigma_after_first) -> Gaussian:
    """Coefficients-preserving sampling: std = σ'·sin(ηπ/2); the marginal keeps the schedule's noise level exactly."""
    if not 0 <= eta <= largest_eta("cps"):
        raise ValueError(
            f"eta must lie in [0, 1] for the kind cps, not {eta:g}: at 1 all noise is fresh. Fix: lower it"
        )
    return _preserving(velocity, x, sigma, sigma_next, sigma_next * math.sin(eta * math.pi / 2))


def ddim_sde(velocity, x, sigma, sigma_next, eta, sigma_after_first) -> Gaussian:
    """Stepwise-Flow-GRPO (2603.28718): the CPS mean with std = η·σ'·√(1-σ), at most σ'; deterministic at σ = 1."""
    return _preserving(velocity, x, sigma, sigma_next, min(eta * math.sqrt(1 - sigma), 1.0) * sigma_next)


def ddim_sde_schedule(velocity, x, sigma, sigma_next, eta, sigma_after_first) -> Gaussian:
    """DDIM's own variance: std = η·(σ'/σ)·√(1 - (1-σ)²/(1-σ')²), at most σ'."""
    std = eta * sigma_next / sigma * math.sqrt(1 - (1 - sigma) ** 2 / (1 - sigma_next) ** 2)
    return _preserving(velocity, x, sigma, sigma_next, min(std, sigma_next))


def precise(velocity, x, sigma, sigma_next, eta, sigma_after_first) -> Gaussian:
    """The exact solution over one step of Flow-GRPO's SDE with x̂0 held (Precise, 2605.23522).

    x' = (1-σ')·x̂0 + σ'·(ρ·x̂1 + √(1-ρ²)·ξ) with ρ = exp(-½·∫ s²/σ² dσ), from σ' to σ, which for s = η·√(σ/(1-σ)) is
    (σ'(1-σ) / (σ(1-σ')))^(η²/2). The paper's own schedule could not be read; this ρ is derived here. At σ = 1 the integral is
    infinite: for any η > 0 all noise is fresh.
    """
    kept = (sigma_next * (1 - sigma) / (sigma * (1 - sigma_next))) ** (eta * eta / 2)
    return _preserving(velocity, x, sigma, sigma_next, sigma_next * math.sqrt(1 - kept**2))


KINDS: dict[str, Callable[..., Gaussian]] = {
    "ode": ode,
    "flow_sde": flow_sde,
    "dance_sde": dance_sde,
    "cps": cps,
    "ddim_sde": ddim_sde,
    "ddim_sde_schedule": ddim_sde_schedule,
    "precise": precise,
}


# What else is true of a kind, besides its function.
SDES = frozenset({"flow_sde", "dance_sde"})  # of a coefficient s, and std = s·√Δ
STAND_IN_AT_ONE = frozenset({"flow_sde"})  # its variance is infinite at σ = 1, where a stand-in takes its place
LARGEST_ETA = {"cps": 1.0}  # of a kind that has one


def largest_eta(kind: str) -> float:
    """Above it that kind's mean would have to remove more noise than there is."""
    return LARGEST_ETA.get(kind, math.inf)


def adams_bashforth(
    velocity: Tensor, x: Tensor, sigma: float, sigma_next: float, before: tuple[Tensor, float] | None
) -> Tensor:
    """One deterministic step of second order without a second model call, in place of `ode`'s Euler step.

    x' = x - Δ·(v + Δ/(2·Δ_before)·(v - v_before)): the integral of the line through two velocities. MixGRPO-Flash
    (2507.21802) takes DPM-Solver++(2M), which extrapolates x̂0 in log((1-σ)/σ); a flow's own velocity is the smoother of the
    two, and this has no singular ends.

    `before`: v [B, …] and σ of the step before, if that was deterministic too: across a step's noise v has no derivative.
        None: the Euler step.
    """
    dt = sigma_next - sigma
    if before is not None:
        earlier, sigma_before = before
        velocity = velocity + dt / (2 * (sigma - sigma_before)) * (velocity - earlier)
    return x + dt * velocity


def flow_sde_coefficient(sigma: float, eta: float, sigma_after_first: float) -> float:
    """s = η·√(σ/(1-σ)), with the schedule's second level in the denominator at σ = 1."""
    level = sigma_after_first if sigma >= 1 else sigma
    if level >= 1:
        raise ValueError(f"sigma_after_first must be below 1 to stand in for sigma = 1, not {sigma_after_first}")
    return eta * math.sqrt(sigma / (1 - level))


def _euler_maruyama(velocity, x, sigma: float, sigma_next: float, s: float) -> Gaussian:
    """μ = x·(1 + s²/(2σ)·dt) + v·(1 + s²·(1-σ)/(2σ))·dt, std = s·√Δ; s per √time."""
    dt = sigma_next - sigma
    drift = s * s / (2 * sigma)
    return Gaussian(x * (1 + drift * dt) + velocity * ((1 + drift * (1 - sigma)) * dt), s * math.sqrt(-dt))


def _preserving(velocity, x, sigma: float, sigma_next: float, std: float) -> Gaussian:
    """μ = (1-σ')·x̂0 + √(σ'² - std²)·x̂1: the noise removed from the mean is what std puts back."""
    clean, noise = x - sigma * velocity, x + (1 - sigma) * velocity
    return Gaussian((1 - sigma_next) * clean + math.sqrt(max(0.0, sigma_next**2 - std**2)) * noise, std)
