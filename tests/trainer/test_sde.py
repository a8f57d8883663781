"""One stochastic transition against numbers worked out by hand and against the equations of the papers."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Normal

from comfyui_otca.trainer.sde import KINDS, MIN_STD, Gaussian, adams_bashforth, sensitivities, transition

STOCHASTIC = ("flow_sde", "dance_sde", "cps", "ddim_sde", "ddim_sde_schedule", "precise")
PRESERVING = ("cps", "ddim_sde", "ddim_sde_schedule", "precise")


def seeded(seed: int, *shape: int, dtype=torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def scalar(value: float) -> torch.Tensor:
    return torch.full((1, 1), value, dtype=torch.float64)


# x = 1, v = 2, σ = 0.8, σ' = 0.5, hence Δ = 0.3, x̂0 = 1 - 0.8·2 = -0.6, x̂1 = 1 + 0.2·2 = 1.4.
#   ode                μ = 1 - 0.3·2 = 0.4
#   flow_sde   η 1/2   s² = 0.25·0.8/0.2 = 1; s²/2σ = 0.625; μ = 1 - 0.625·0.3 - 2·0.3·(1 + 0.625·0.2) = 0.8125 - 0.675
#   dance_sde  η 0.4   s² = 0.16; s²/2σ = 0.1; μ = 1 - 0.03 - 0.6·1.02 = 0.358; std = 0.4·√0.3
#   cps        η 1/3   std = 0.5·sin(π/6) = 0.25; μ = 0.5·(-0.6) + √(0.25 - 0.0625)·1.4
#   ddim_sde   η 0.8   std = 0.8·0.5·√0.2, std² = 0.032; μ = -0.3 + √0.218·1.4
#   …_schedule η 0.6   std = 0.6·(0.5/0.8)·√(1 - 0.04/0.25) = 0.375·√0.84, std² = 0.118125; μ = -0.3 + √0.131875·1.4
#   precise    η 1     ρ = √(0.5·0.2/(0.8·0.5)) = 0.5; μ = -0.3 + 0.5·0.5·1.4 = 0.05; std = 0.5·√0.75
@pytest.mark.parametrize(
    ("kind", "levels", "eta", "mean", "std"),
    [
        ("ode", (0.8, 0.5), 0.7, 0.4, 0.0),
        ("flow_sde", (0.8, 0.5), 0.5, 0.1375, 0.5477225575),
        ("dance_sde", (0.8, 0.5), 0.4, 0.358, 0.2190890230),
        ("cps", (0.8, 0.5), 1 / 3, 0.3062177826, 0.25),
        ("ddim_sde", (0.8, 0.5), 0.8, 0.3536665817, 0.1788854382),
        ("ddim_sde_schedule", (0.8, 0.5), 0.6, 0.2084043666, 0.3436931771),
        ("precise", (0.8, 0.5), 1.0, 0.05, 0.4330127019),
        # There is no more noise than the level it goes to, σ': all of x̂1 gives way to fresh noise, μ = (1 - σ')·x̂0.
        ("cps", (0.8, 0.5), 1.0, -0.3, 0.5),
        ("ddim_sde_schedule", (0.8, 0.5), 2.0, -0.3, 0.5),  # 2·(0.5/0.8)·√0.84 = 1.146 > 0.5
        # At σ = 1 precise's noise is all fresh, whatever η, and ddim_sde has none; at σ' = 0 there is none left.
        ("precise", (1.0, 0.9), 0.01, -0.1, 0.9),
        ("precise", (1.0, 0.9), 2.0, -0.1, 0.9),
        ("ddim_sde", (1.0, 0.8), 0.9, 0.6, 0.0),
        ("precise", (0.2, 0.0), 2.0, 0.6, 0.0),
    ],
)
def test_mean_and_std_by_hand(kind, levels, eta, mean, std):
    step = transition(kind, scalar(2.0), scalar(1.0), *levels, eta=eta)
    assert step.mean.item() == pytest.approx(mean, abs=1e-9)
    assert step.std == pytest.approx(std, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("sigma", "sigma_next"), [(1.0, 0.9), (0.7, 0.2), (0.3, 0.0)])
def test_without_eta_every_kind_is_the_euler_step(kind, sigma, sigma_next):
    x, v = seeded(0, 2, 3, 4), seeded(1, 2, 3, 4)
    step = transition(kind, v, x, sigma, sigma_next, eta=0.0)
    torch.testing.assert_close(step.mean, x + (sigma_next - sigma) * v)
    assert step.std == 0.0


@pytest.mark.parametrize("kind", STOCHASTIC)
def test_small_eta_approaches_the_euler_step(kind):
    x, v = seeded(2, 2, 5), seeded(3, 2, 5)
    euler = x - 0.2 * v
    distances = [(transition(kind, v, x, 0.7, 0.5, eta=eta).mean - euler).abs().max().item() for eta in (0.1, 0.01)]
    # The mean's correction is of second order in η.
    assert distances[1] == pytest.approx(distances[0] / 100, rel=0.02)
    assert distances[0] > 0


@pytest.mark.parametrize(("sigma", "sigma_next", "eta"), [(1.0, 0.95, 0.3), (0.6, 0.45, 0.8), (0.1, 0.0, 0.3)])
def test_dance_sde_is_the_score_form(sigma, sigma_next, eta):
    x, v, dt = seeded(4, 3, 6), seeded(5, 3, 6), sigma_next - sigma
    clean = x - sigma * v
    score = -(x - (1 - sigma) * clean) / sigma**2
    step = transition("dance_sde", v, x, sigma, sigma_next, eta=eta)
    torch.testing.assert_close(step.mean, x + v * dt - 0.5 * eta**2 * score * dt)
    assert step.std == pytest.approx(eta * math.sqrt(sigma - sigma_next), rel=1e-12)


def test_flow_sde_takes_the_second_level_for_the_denominator_at_pure_noise():
    # s² = 0.49·1/(1 - 0.9) = 4.9; at σ = 1 the velocity's correction vanishes: μ = x·(1 - 2.45·0.1) - 0.1·v.
    step = transition("flow_sde", scalar(2.0), scalar(1.0), 1.0, 0.9, eta=0.7)
    assert step.mean.item() == pytest.approx(0.755 - 0.2, abs=1e-12)
    assert step.std == pytest.approx(math.sqrt(0.49), abs=1e-12)
    # s² = 0.49/(1 - 0.8) = 2.45 where the schedule's second level is given as 0.8.
    step = transition("flow_sde", scalar(2.0), scalar(1.0), 1.0, 0.9, eta=0.7, sigma_after_first=0.8)
    assert step.mean.item() == pytest.approx(1 - 1.225 * 0.1 - 0.2, abs=1e-12)
    assert step.std == pytest.approx(math.sqrt(0.245), abs=1e-12)
    plain, given = (
        transition("flow_sde", scalar(2.0), scalar(1.0), 0.99, 0.9, eta=0.7, **options)
        for options in ({}, {"sigma_after_first": 0.5})
    )
    assert (plain.std, plain.mean.item()) == (given.std, given.mean.item()), "at pure noise only"


@pytest.mark.parametrize("kind", PRESERVING)
@pytest.mark.parametrize("eta", [0.2, 0.7, 1.0])
@pytest.mark.parametrize(("sigma", "sigma_next"), [(1.0, 0.9), (0.8, 0.5), (0.2, 0.1), (0.1, 0.0)])
def test_preserving_kinds_keep_signal_and_noise_of_the_marginal(kind, eta, sigma, sigma_next):
    def mean(clean: float, noise: float) -> float:
        x = scalar((1 - sigma) * clean + sigma * noise)
        return transition(kind, scalar(noise - clean), x, sigma, sigma_next, eta=eta).mean.item()

    # The mean is linear in (x0, ε): its coefficients must be 1 - σ' and, with the fresh noise, σ' in quadrature.
    std = transition(kind, scalar(0.0), scalar(0.0), sigma, sigma_next, eta=eta).std
    assert mean(1.0, 0.0) == pytest.approx(1 - sigma_next, abs=1e-12)
    assert mean(0.0, 1.0) ** 2 + std**2 == pytest.approx(sigma_next**2, abs=1e-12)


@pytest.mark.parametrize("kind", ["ode", "flow_sde", "dance_sde"])
@pytest.mark.parametrize("eta", [0.3, 0.8])
def test_small_sde_steps_carry_the_exact_marginal_along(kind, eta):
    # For data N(0, 0.25) the marginal at σ is N(0, 0.25·(1-σ)² + σ²) and the exact velocity is E[ε - x0 | x], linear
    # in x, so that the variance follows by recursion: var' = a²·var + std² with a = μ(x = 1).
    def marginal(sigma):
        return 0.25 * (1 - sigma) ** 2 + sigma**2

    steps = 4000
    levels = [0.95 - 0.9 * j / steps for j in range(steps + 1)]
    variance = marginal(levels[0])
    for sigma, sigma_next in zip(levels, levels[1:], strict=False):
        slope = (sigma - 0.25 * (1 - sigma)) / marginal(sigma)
        step = transition(kind, scalar(slope), scalar(1.0), sigma, sigma_next, eta=eta)
        variance = step.mean.item() ** 2 * variance + step.std**2
    assert variance == pytest.approx(marginal(levels[-1]), rel=5e-3)


def held(kind, sigmas, eta, clean=0.3, start=1.7):
    """Mean and variance after these levels where x̂0 is held: the velocity leads to `clean` from everywhere."""
    mean, variance = start, 0.0
    for sigma, sigma_next in zip(sigmas, sigmas[1:], strict=False):
        at = [
            transition(kind, scalar((x - clean) / sigma), scalar(x), sigma, sigma_next, eta=eta)
            for x in (mean, mean + 1)
        ]
        slope = (at[1].mean - at[0].mean).item()
        mean, variance = at[0].mean.item(), slope**2 * variance + at[0].std ** 2
    return mean, variance


@pytest.mark.parametrize("eta", [0.3, 1.0, 1.5])
def test_precise_is_exact_where_x0_is_held(eta):
    """One step is what any number of steps are, and what Flow-GRPO's SDE comes to in very small ones."""
    once = held("precise", (0.9, 0.3), eta)
    assert held("precise", (0.9, 0.8, 0.55, 0.5, 0.3), eta) == pytest.approx(once, rel=1e-12)
    fine = [0.9 - 0.6 * j / 4000 for j in range(4001)]
    assert held("flow_sde", fine, eta) == pytest.approx(once, rel=2e-3)
    assert held("flow_sde", (0.9, 0.3), eta) != pytest.approx(once, rel=0.1)


def test_sample_and_log_prob_by_hand():
    # z = 1 and z = -3 standard deviations: mean of squares 5; -5/2 - ln 0.5 - ½·ln 2π = -2.5 + 0.6931472 - 0.9189385.
    mean, x = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.5, 0.5]])
    torch.testing.assert_close(Gaussian(mean, 0.5).sample(torch.tensor([[1.0, -3.0]])), x)
    assert Gaussian(mean, 0.5).log_prob(x).tolist() == pytest.approx([-2.7257913], abs=1e-6)
    for std in (0.5, 3.0):  # without scale and constant: (0.5² + 1.5²)/2 = 1.25, whatever the standard deviation
        assert Gaussian(mean, std).log_prob(x, "squared_error").tolist() == pytest.approx([-1.25], abs=1e-6)


@pytest.mark.parametrize("std", [1e-4, 0.3, 2.0])
def test_log_prob_is_the_normal_density_averaged_over_elements(std):
    mean = seeded(11, 3, 2, 4, 5)
    x = mean + std * seeded(12, 3, 2, 4, 5)
    expected = Normal(mean.float().double(), std).log_prob(x.float().double()).flatten(1).mean(1)
    log_prob = Gaussian(mean.float(), std).log_prob(x.float())
    assert log_prob.shape == (3,)
    torch.testing.assert_close(log_prob.double(), expected, rtol=1e-3, atol=1e-4)


def test_log_prob_is_computed_in_float32():
    mean, x = seeded(13, 2, 64).bfloat16(), seeded(14, 2, 64).bfloat16()
    log_prob = Gaussian(mean, 0.7).log_prob(x)
    assert log_prob.dtype == torch.float32
    torch.testing.assert_close(log_prob, Normal(mean.float(), 0.7).log_prob(x.float()).mean(1), rtol=1e-5, atol=1e-5)


def test_log_prob_gradient_points_from_the_mean_to_the_sample():
    # ∂/∂μ of the mean over 4 elements of -(x-μ)²/2std²: (x-μ)/(4·std²).
    mean = torch.zeros(1, 4, requires_grad=True)
    Gaussian(mean, 0.5).log_prob(torch.tensor([[1.0, -2.0, 0.0, 4.0]])).sum().backward()
    torch.testing.assert_close(mean.grad, torch.tensor([[1.0, -2.0, 0.0, 4.0]]))


@pytest.mark.parametrize("std", [0.0, MIN_STD / 2])
def test_a_deterministic_transition_has_no_log_prob(std):
    with pytest.raises(ValueError, match="deterministic"):
        Gaussian(torch.zeros(1, 2), std).log_prob(torch.zeros(1, 2))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "ode"])
def test_sensitivity_is_the_slope_of_the_mean(kind):
    sigmas, eta, h = (1.0, 0.9, 0.7, 0.4, 0.0), 0.6, 1e-3
    x, v = seeded(0, 1, 6), seeded(1, 1, 6)
    for j, found in enumerate(sensitivities(kind, sigmas, eta)):
        if kind == "flow_sde" and j == 0:
            assert found == sensitivities(kind, sigmas, eta)[1]
            continue
        take = {"sigma": sigmas[j], "sigma_next": sigmas[j + 1], "eta": eta, "sigma_after_first": sigmas[1]}
        one, other = transition(kind, v, x, **take), transition(kind, v + h, x, **take)
        if one.std < MIN_STD:
            assert found == math.inf
            continue
        assert found == pytest.approx(((other.mean - one.mean) / h).abs().mean().item() / one.std, rel=1e-6)


def test_log_prob_map_averages_to_the_log_prob():
    gaussian, x = Gaussian(seeded(0, 2, 3, 4, 5, dtype=torch.float32), 0.3), torch.randn(2, 3, 4, 5)
    found = gaussian.log_prob_map(x)
    assert found.shape == (2, 4, 5)
    torch.testing.assert_close(found.mean((1, 2)), gaussian.log_prob(x))
    density = torch.distributions.Normal(gaussian.mean[1, :, 2, 3], 0.3).log_prob(x[1, :, 2, 3])
    torch.testing.assert_close(found[1, 2, 3], density.mean())


@pytest.mark.parametrize(
    ("kind", "sigma", "sigma_next", "eta", "told"),
    [
        ("sde", 0.5, 0.4, 0.5, "'sde'.*flow_sde"),
        ("dance_sde", 0.5, 0.5, 0.5, "must fall"),
        ("dance_sde", 0.4, 0.5, 0.5, "must fall"),
        ("dance_sde", 0.5, -0.1, 0.5, "must fall"),
        # beyond 1 its sine falls again: more eta would be less noise
        ("cps", 0.8, 0.5, 1.5, r"eta must lie in \[0, 1\] for the kind cps, not 1.5.*Fix: lower it"),
    ],
)
def test_what_is_no_transition_is_refused(kind, sigma, sigma_next, eta, told):
    with pytest.raises(ValueError, match=told):
        transition(kind, scalar(0.0), scalar(0.0), sigma, sigma_next, eta=eta)


# --- the second-order step --------------------------------------------------------------------------------------------


def test_adams_bashforth_by_hand():
    # v = 2 at σ 0.9, v = 3 at σ 0.7, to σ 0.6: v at the middle, 0.65, is 3 + (0.05/0.2)·(3 - 2) = 3.25; x' = 1 - 0.1·3.25.
    x, earlier, velocity = scalar(1.0), scalar(2.0), scalar(3.0)
    assert adams_bashforth(velocity, x, 0.7, 0.6, (earlier, 0.9)).item() == pytest.approx(0.675)
    first = adams_bashforth(velocity, x, 0.7, 0.6, None)
    assert torch.equal(first, transition("ode", velocity, x, 0.7, 0.6, eta=0.0).mean)


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_order_of_convergence(shift):
    """Data N(m, s²) has the velocity (x - E[x0|x])/σ and the exact path x = (1-σ)·m + √((1-σ)²s² + σ²)·z."""
    mean, spread = 0.7, 0.4
    z = torch.linspace(-2, 2, 9, dtype=torch.float64)

    def error(steps, second):
        u = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
        sigmas = (shift * u / (1 + (shift - 1) * u)).tolist()
        x, before = z, None
        for sigma, after in zip(sigmas, sigmas[1:], strict=False):
            clean, kept = 1 - sigma, (1 - sigma) * spread**2 / ((1 - sigma) ** 2 * spread**2 + sigma**2)
            velocity = (x - mean - kept * (x - clean * mean)) / sigma
            if second:
                x, before = adams_bashforth(velocity, x, sigma, after, before), (velocity, sigma)
            else:
                x = transition("ode", velocity, x, sigma, after, eta=0.0).mean
        return (x - mean - spread * z).abs().max().item()

    slopes = [math.log2(error(200, second) / error(400, second)) for second in (False, True)]
    assert slopes[0] == pytest.approx(1, abs=0.05) and slopes[1] == pytest.approx(2, abs=0.2)
    assert error(16, True) < error(16, False) / 3
