"""Fusion formulas against their quadratic programme, a scalar Algorithm 1 and hand numbers."""

from __future__ import annotations

import itertools
import math
from dataclasses import astuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comfyui_otca.trainer.fusion import exploration_strength, moca, of_gradients, preferred, recenter
from comfyui_otca.trainer.types import Fused

cases = settings(max_examples=80, deadline=None, derandomize=True, database=None)
# Quarters are exact in float32 and collide often, so that ties are met.
advantage = st.integers(-12, 12).map(lambda n: n / 4)
strength = st.integers(0, 8).map(lambda n: n / 4)


def fused(advantages: list[float], exploration: float) -> tuple[float, list[float]]:
    result = moca(torch.tensor([advantages]), torch.tensor([exploration]))
    return result.advantage.item(), result.coefficients[0].tolist()


def algorithm_1(advantages: list[float], exploration: float) -> tuple[float, list[float]]:
    """Algorithm 1 for one sample, as method.md tells it, in plain Python."""
    objectives = len(advantages)
    z = min(max(exploration / 2, min(advantages)), max(advantages))
    coefficients = [0.0] * objectives
    for k in range(objectives):
        if advantages[k] == z:
            coefficients[k] = 1.0
            return z, coefficients
    order = sorted(range(objectives), key=lambda k: advantages[k])
    for lower, upper in itertools.pairwise(order):
        if advantages[lower] < z < advantages[upper]:
            share = (z - advantages[lower]) / (advantages[upper] - advantages[lower])
            coefficients[lower], coefficients[upper] = 1 - share, share
    return z, coefficients


def simplex(objectives: int, points: int) -> np.ndarray:
    """All coefficients that are multiples of 1/points and sum to one."""
    grid = itertools.product(range(points + 1), repeat=objectives - 1)
    return np.array([(*c, points - sum(c)) for c in grid if sum(c) <= points]) / points


@pytest.mark.parametrize(
    ("advantages", "exploration", "z", "coefficients"),
    [
        ([1.0, -1.0], 1.0, 0.5, [0.75, 0.25]),
        ([1.0, 2.0], 1.0, 1.0, [1.0, 0.0]),  # λ/2 lies under all: the smallest
        ([-2.0, -1.0], 1.0, -1.0, [0.0, 1.0]),  # above all: the largest
        ([2.0, -1.0, 0.0], 1.0, 0.5, [0.25, 0.0, 0.75]),  # the neighbours 0 and 2; -1 has no part
        ([-1.0, 0.5, 2.0], 1.0, 0.5, [0.0, 1.0, 0.0]),  # one objective is z itself
    ],
)
def test_moca_by_hand(advantages, exploration, z, coefficients):
    got, shares = fused(advantages, exploration)
    assert got == pytest.approx(z)
    assert shares == pytest.approx(coefficients)


def test_of_equal_objectives_the_first_takes_all():
    assert fused([1.5, 1.5, 1.5], 1.0) == (1.5, [1.0, 0.0, 0.0])
    assert fused([0.0, 0.0], 1.0) == (0.0, [1.0, 0.0])
    assert fused([3.0, 0.5, 0.5], 1.0) == (0.5, [0.0, 1.0, 0.0])


@pytest.mark.parametrize(("objectives", "points"), [(2, 2000), (3, 120)])
def test_moca_solves_its_quadratic_programme(objectives, points):
    random = np.random.default_rng(objectives)
    grid = simplex(objectives, points)
    for _ in range(60):
        a, exploration = random.normal(size=objectives), random.uniform(0, 1.5)
        reached = grid @ a
        values = 0.5 * reached**2 - exploration / 2 * reached
        z, coefficients = fused(a.tolist(), exploration)
        assert 0.5 * z**2 - exploration / 2 * z <= values.min() + 1e-6
        # ½z² - λ/2·z is strictly convex in z, so the minimiser is unique, up to the grid's mesh.
        assert z == pytest.approx(reached[values.argmin()], abs=2 * (a.max() - a.min()) / points)
        assert np.dot(coefficients, a) == pytest.approx(z, abs=1e-5)


@cases
@given(st.lists(advantage, min_size=1, max_size=5), strength)
def test_moca_is_algorithm_1(advantages, exploration):
    z, coefficients = fused(advantages, exploration)
    expected, shares = algorithm_1(advantages, exploration)
    assert z == pytest.approx(expected, abs=1e-6)
    # Where neighbours are tied, which of the two shares the part is free: compare what the tied ones hold together.
    for value in set(advantages):
        tied = [k for k, a in enumerate(advantages) if a == value]
        assert sum(coefficients[k] for k in tied) == pytest.approx(sum(shares[k] for k in tied), abs=1e-6)
    if 1.0 in shares:
        assert coefficients == shares


def test_min_norm_is_the_two_task_closed_form():
    # Sener and Koltun (2018), Algorithm 1: γ = clip((A2 - A1)·A2 / |A1 - A2|², 0, 1), z = γ·A1 + (1-γ)·A2.
    pairs = np.random.default_rng(7).normal(size=(200, 2))
    result = moca(torch.from_numpy(pairs), torch.zeros(200))
    for (first, second), z, coefficients in zip(pairs, result.advantage, result.coefficients, strict=True):
        share = min(max((second - first) * second / (first - second) ** 2, 0.0), 1.0)
        assert z.item() == pytest.approx(share * first + (1 - share) * second, abs=1e-12)
        assert coefficients.tolist() == pytest.approx([share, 1 - share], abs=1e-12)


@pytest.mark.parametrize(
    ("gradients", "exploration", "coefficients"),
    [
        ([[1, 0], [0, 2]], 0, [0.8, 0.2]),  # apart: ½·(c²·1 + (1-c)²·4) is least at c = 4/5
        ([[1, 0], [3, 0]], 0, [1, 0]),  # agreed: the shorter one
        ([[1, 0], [-3, 0]], 0, [0.75, 0.25]),  # opposed: they cancel
        # Of mean length 2 they are ½ and -1½ in units of it, and e points to the longer one: z = λ/2 = ½ that way is c₂ = ½.
        ([[1, 0], [-3, 0]], 1, [0.5, 0.5]),
        ([[1, 0, 0], [0, 1, 0], [0, 0, 1]], 0, [1 / 3, 1 / 3, 1 / 3]),
        ([[1, 0], [-1, 0], [0, 1]], 0, [0.5, 0.5, 0]),  # what agrees with neither is left out where two cancel
        ([[1, 1], [1, 1], [1, 1]], 0, [1, 0, 0]),  # alike: any will do, and the first is taken
        ([[2, 0], [0, 0]], 0, [0, 1]),
    ],
)
def test_fused_gradients_by_hand(gradients, exploration, coefficients):
    g = torch.tensor(gradients, dtype=torch.float64)
    everywhere = torch.ones(1, len(g), dtype=torch.bool)
    solved = of_gradients((g @ g.T)[None], torch.tensor([float(exploration)]), everywhere)
    assert solved[0].tolist() == pytest.approx(coefficients, abs=1e-9)


def test_fused_gradients_are_the_best_of_the_simplex():
    random = np.random.default_rng(3)
    g, exploration = random.normal(size=(50, 4, 6)), torch.from_numpy(random.uniform(0, 1, 50))
    applies = torch.from_numpy(random.uniform(size=(50, 4)) < 0.8)
    applies[:, 0] = True
    products = torch.from_numpy(g @ g.transpose(0, 2, 1))
    solved = of_gradients(products, exploration, applies).numpy()
    assert (solved >= 0).all() and solved.sum(1) == pytest.approx(np.ones(50)) and not solved[~applies.numpy()].any()
    for row, (c, here, strength) in enumerate(zip(solved, applies.numpy(), exploration.tolist(), strict=True)):
        own = g[row][here] / np.linalg.norm(g[row][here], axis=1).mean()
        toward = own.sum(0) / np.linalg.norm(own.sum(0))
        points = random.dirichlet(np.full(len(own), 0.5), 500)

        def value(c, own=own, toward=toward, strength=strength):
            moved = c @ own
            return (moved**2).sum(-1) / 2 - strength / 2 * moved @ toward

        assert value(c[here]) <= value(points).min() + 1e-9


@given(
    st.lists(st.lists(advantage, min_size=3, max_size=3).filter(lambda a: sum(a) > 0), min_size=1, max_size=6), strength
)
@cases
def test_gradients_that_are_numbers_are_fused_as_advantages_are(rows, exploration):
    values = torch.tensor(rows, dtype=torch.float64)
    values = values / values.abs().mean(1, keepdim=True)
    strengths, applies = torch.full((len(rows),), exploration, dtype=torch.float64), torch.ones(len(rows), 3).bool()
    solved = of_gradients(values[:, :, None] * values[:, None], strengths, applies)
    torch.testing.assert_close((solved * values).sum(1), moca(values, strengths).advantage, rtol=1e-3, atol=2e-3)


def test_a_gradient_that_is_not_finite_has_no_coefficient():
    products = torch.tensor([[[1.0, torch.nan], [torch.nan, 1.0]], [[1.0, 0.0], [0.0, 1.0]]])
    solved = of_gradients(products, torch.zeros(2), torch.ones(2, 2, dtype=torch.bool))
    assert solved[0].isnan().all() and solved[1].tolist() == [0.5, 0.5]


def test_preferred_by_hand():
    # Both like it: z = min(1, 2), all of it the first's, which is wanted by a quarter. Opposed: parts -1/2 and 1/2.
    solved = moca(torch.tensor([[1.0, 2.0], [-1.0, 1.0]]), torch.tensor([1.0, 0.0]))
    result = preferred(solved, torch.tensor([0.25, 1.0]))
    assert solved.advantage.tolist() == [1.0, 0.0] and result.advantage.tolist() == [0.25, 0.375]
    assert result.parts.tolist() == [[0.25, 0.0], [-0.125, 0.5]]


@given(st.lists(st.lists(advantage, min_size=3, max_size=3), min_size=1, max_size=6), strength)
@cases
def test_preferred_with_weights_of_one_is_the_papers_to_the_bit(rows, exploration):
    solved = moca(torch.tensor(rows) / 3, torch.full((len(rows),), exploration))
    assert all(map(torch.equal, astuple(preferred(solved, torch.ones(3))), astuple(solved)))


def test_exploration_literal_by_hand():
    # Group 0: q = 1, 2, 3, unbiased std 1, e ≈ 1, 2, 3. Group 1: q = 0, 4, std 2√2, e = 0, √2. ΣA = 1, -1, 0, 0.5, 2.
    q = torch.tensor([1.0, 2.0, 3.0, 0.0, 4.0])
    a = torch.tensor([[2.0, -1.0], [-2.0, 1.0], [1.0, -1.0], [0.25, 0.25], [2.0, 0.0]])
    got = exploration_strength(q, a, torch.tensor([0, 0, 0, 1, 1]))
    assert got.tolist() == pytest.approx([math.tanh(1), 0.0, 0.0, 0.0, math.tanh(math.sqrt(2))], abs=1e-5)


def test_exploration_centered_by_hand():
    # |q - mean| / std: group 0 has mean 2 and std 1: 1, 0, 1; group 1 mean 2 and std 2√2: 1/√2 twice.
    q = torch.tensor([1.0, 2.0, 3.0, 0.0, 4.0])
    got = exploration_strength(q, torch.ones(5, 2), torch.tensor([0, 0, 0, 1, 1]), "centered")
    one, half = math.tanh(1), math.tanh(math.sqrt(0.5))
    assert got.tolist() == pytest.approx([one, 0.0, one, half, half], abs=1e-5)


def test_exploration_counts_distance_not_sign_and_of_a_group_that_moved_alike():
    groups, a = torch.zeros(3, dtype=torch.long), torch.ones(3, 1)
    q = torch.tensor([-1.0, 2.0, 0.5])
    torch.testing.assert_close(exploration_strength(q, a, groups), exploration_strength(-q, a, groups))
    alike = torch.full((3,), 0.5)  # std 0: literal e = 0.5/1e-6, tanh = 1; centered e = 0
    assert exploration_strength(alike, a, groups).tolist() == pytest.approx([1.0] * 3, abs=1e-5)
    assert exploration_strength(alike, a, groups, "centered").tolist() == [0.0] * 3
    # A tiny positive sum is damped by the epsilon: λ = 1e-6/(1e-6 + 1e-6)·tanh(e).
    assert exploration_strength(alike, 1e-6 * a, groups).tolist() == pytest.approx([0.5] * 3, abs=1e-4)
    with pytest.raises(ValueError, match="exploration"):
        exploration_strength(alike, a, groups, "bold")


def test_recenter_takes_each_groups_own_mean_of_valid_samples():
    parts = torch.tensor([[1.0, 0.0], [1.0, 2.0], [0.0, 0.0], [2.0, 3.0], [5.0, 2.0]])
    given_fused = Fused(parts.sum(1), torch.ones(5, 2), parts)
    valid = torch.tensor([True, True, False, True, True])
    result = recenter(given_fused, torch.tensor([0, 0, 0, 1, 1]), valid)
    assert result.advantage.tolist() == [-1.0, 1.0, 0.0, -1.0, 1.0]
    assert given_fused.advantage.tolist() == [1.0, 3.0, 0.0, 5.0, 7.0]
    assert result.parts.tolist() == [[0.0, -1.0], [0.0, 1.0], [0.0, 0.0], [-1.5, 0.5], [1.5, -0.5]]
