"""Objective fusion against its quadratic programme, a scalar Algorithm 1, and a numpy version of the whole step."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comfyui_otca.trainer.advantages import METHODS, fuse
from comfyui_otca.trainer.fusion import (
    exploration_strength,
    min_norm,
    moca,
    recenter,
    weighted_advantages,
    weighted_sum,
)
from comfyui_otca.trainer.types import Fused, Scores, StepCredit

NAN = float("nan")
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


def test_one_objective_is_its_own_fusion():
    advantages = torch.tensor([[-1.5], [0.0], [0.25], [4.0]])
    result = moca(advantages, torch.tensor([1.0, 1.0, 1.0, 0.0]))
    assert result.advantage.tolist() == advantages[:, 0].tolist()
    assert result.coefficients.tolist() == [[1.0]] * 4


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


@cases
@given(st.integers(0, 100_000), st.integers(1, 6))
def test_coefficients_are_a_mixture_that_gives_z(seed, objectives):
    generator = torch.Generator().manual_seed(seed)
    a, exploration = torch.randn(16, objectives, generator=generator), torch.rand(16, generator=generator)
    result = moca(a, exploration)
    assert (result.coefficients >= 0).all()
    torch.testing.assert_close(result.coefficients.sum(1), torch.ones(16))
    torch.testing.assert_close((result.coefficients * a).sum(1), result.advantage, rtol=1e-4, atol=1e-5)
    assert ((result.coefficients > 0).sum(1) <= 2).all()


@cases
@given(st.lists(advantage, min_size=2, max_size=5, unique=True), strength, st.randoms(use_true_random=False))
def test_the_order_of_objectives_does_not_matter(advantages, exploration, random):
    order = list(range(len(advantages)))
    random.shuffle(order)
    z, coefficients = fused(advantages, exploration)
    shuffled_z, shuffled = fused([advantages[k] for k in order], exploration)
    assert shuffled_z == z
    assert shuffled == pytest.approx([coefficients[k] for k in order], abs=1e-6)


def test_min_norm_is_the_two_task_closed_form():
    # Sener and Koltun (2018), Algorithm 1: γ = clip((A2 - A1)·A2 / |A1 - A2|², 0, 1), z = γ·A1 + (1-γ)·A2.
    random = np.random.default_rng(7)
    pairs = random.normal(size=(200, 2))
    result = min_norm(torch.from_numpy(pairs))
    for (first, second), z, coefficients in zip(pairs, result.advantage, result.coefficients, strict=True):
        share = min(max((second - first) * second / (first - second) ** 2, 0.0), 1.0)
        assert z.item() == pytest.approx(share * first + (1 - share) * second, abs=1e-12)
        assert coefficients.tolist() == pytest.approx([share, 1 - share], abs=1e-12)


def test_min_norm_is_moca_without_exploration():
    a = torch.randn(50, 3, generator=torch.Generator().manual_seed(8))
    result, expected = min_norm(a), moca(a, torch.zeros(50))
    assert torch.equal(result.advantage, expected.advantage)
    assert torch.equal(result.coefficients, expected.coefficients)
    mixed = (a.min(1).values < 0) & (a.max(1).values > 0)
    assert mixed.any() and (result.advantage[mixed] == 0).all()


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


def test_exploration_counts_distance_not_sign_of_the_contribution():
    q, groups, a = torch.tensor([-1.0, 2.0, 0.5]), torch.zeros(3, dtype=torch.long), torch.ones(3, 1)
    torch.testing.assert_close(exploration_strength(q, a, groups), exploration_strength(-q, a, groups))


def test_exploration_of_a_group_that_moved_alike():
    # std 0: literal e = 0.5/1e-6, tanh = 1; centered e = 0.
    q, groups, a = torch.full((3,), 0.5), torch.zeros(3, dtype=torch.long), torch.ones(3, 1)
    assert exploration_strength(q, a, groups).tolist() == pytest.approx([1.0] * 3, abs=1e-5)
    assert exploration_strength(q, a, groups, "centered").tolist() == [0.0] * 3


def test_a_tiny_positive_sum_is_damped_by_the_epsilon():
    # λ = 1e-6/(1e-6 + 1e-6)·tanh(e) with e = 0.5/1e-6.
    a = torch.tensor([[1e-6], [1e-6]])
    got = exploration_strength(torch.full((2,), 0.5), a, torch.zeros(2, dtype=torch.long))
    assert got.tolist() == pytest.approx([0.5, 0.5], abs=1e-4)


def test_exploration_refuses_an_unknown_mode():
    with pytest.raises(ValueError, match="exploration"):
        exploration_strength(torch.ones(2), torch.ones(2, 1), torch.zeros(2, dtype=torch.long), "bold")


def test_weighted_sum_by_hand():
    # Sums 1·r1 + 0.5·r2 = 2, 4, 6 with mean 4 and unbiased std 2.
    rewards = torch.tensor([[1.0, 2.0], [3.0, 2.0], [4.0, 4.0]])
    result = weighted_sum(rewards, torch.tensor([1.0, 0.5]), torch.zeros(3, dtype=torch.long))
    assert result.advantage.tolist() == pytest.approx([-1.0, 0.0, 1.0], abs=1e-6)


def test_weighted_advantages_by_hand():
    # Sums 3, 0, -3 are normalised once more: mean 0, unbiased std 3.
    a = torch.tensor([[1.0, 2.0], [1.0, -1.0], [-2.0, -1.0]])
    result = weighted_advantages(a, torch.zeros(3, dtype=torch.long))
    assert result.advantage.tolist() == pytest.approx([1.0, 0.0, -1.0], abs=1e-6)


def test_recenter_takes_each_groups_own_mean_of_valid_samples():
    given_fused = Fused(torch.tensor([1.0, 3.0, 0.0, 5.0, 7.0]), torch.ones(5, 1))
    valid = torch.tensor([True, True, False, True, True])
    result = recenter(given_fused, torch.tensor([0, 0, 0, 1, 1]), valid)
    assert result.advantage.tolist() == [-1.0, 1.0, 0.0, -1.0, 1.0]
    assert given_fused.advantage.tolist() == [1.0, 3.0, 0.0, 5.0, 7.0]


# The whole step from scores to Ã, against numpy in float64.

TRAINED = (0, 1, 3)


def make_scores(values, groups, coefficients=None) -> Scores:
    values = torch.as_tensor(values, dtype=torch.float32)
    objectives = values.shape[1]
    return Scores(
        values=values,
        names=tuple(f"r{k}" for k in range(objectives)),
        coefficients=tuple(coefficients or [1.0] * objectives),
        groups=torch.as_tensor(groups),
        held_out=torch.empty(len(values), 0),
        held_out_names=(),
        rewards=(),
    )


def make_credit(samples: int, seed: int) -> StepCredit:
    generator = torch.Generator().manual_seed(seed)
    delta = torch.randn(samples, 5, generator=generator)
    raw = torch.rand(samples, len(TRAINED), generator=generator)
    raw = raw / raw.sum(1, keepdim=True)
    similarity = torch.zeros(samples, 6)
    return StepCredit(0.5 + 0.5 * len(TRAINED) * raw, raw, delta, similarity, TRAINED)


def pick(scores: Scores, credit: StepCredit, rows: list[int]) -> tuple[Scores, StepCredit]:
    """The same without the other samples."""
    picked = make_scores(scores.values[rows], scores.groups[rows], scores.coefficients)
    parts = (credit.weights[rows], credit.raw[rows], credit.delta[rows], credit.similarity[rows])
    return picked, StepCredit(*parts, TRAINED)


def normalise(values: np.ndarray, groups: np.ndarray, scope: str = "group") -> np.ndarray:
    result = np.zeros_like(values)
    for group in np.unique(groups):
        own = values[groups == group]
        std = (own if scope == "group" else values).std(0, ddof=1)
        result[groups == group] = (own - own.mean(0)) / (std + 1e-8)
    return result


def expected_z(scores: Scores, credit: StepCredit, method: str, scope="group", exploration="literal") -> np.ndarray:
    """z of every sample by method.md §3 and §5, for scores that are all finite; also tanh(e)."""
    values, groups = scores.values.double().numpy(), scores.groups.numpy()
    coefficients = np.array(scores.coefficients)
    a = np.clip(normalise(values, groups, scope), -5, 5) * coefficients
    q = (credit.raw.double().numpy() * credit.delta.double().numpy()[:, list(TRAINED)]).sum(1)
    tanh_e = np.zeros(len(q))
    for group in np.unique(groups):
        own = q[groups == group]
        distance = np.abs(own if exploration == "literal" else own - own.mean())
        tanh_e[groups == group] = np.tanh(distance / (own.std(ddof=1) + 1e-6))
    total = a.sum(1)
    strength = np.maximum(0, total) / (np.abs(total) + 1e-6) * tanh_e
    if method == "weighted_sum":
        return normalise((values * coefficients).sum(1, keepdims=True), groups, scope)[:, 0], tanh_e
    if method == "weighted_advantages":
        return normalise(total[:, None], groups, scope)[:, 0], tanh_e
    strength = strength if method == "moca" else 0 * strength
    z = [algorithm_1(list(row), value)[0] for row, value in zip(a, strength, strict=True)]
    return np.array(z), tanh_e


GROUPS = [0, 1, 0, 1, 0, 1, 0, 1, 2, 2, 2]


def example(seed: int, coefficients=(1.0, 0.5, 2.0)) -> tuple[Scores, StepCredit]:
    values = np.random.default_rng(seed).normal(size=(len(GROUPS), 3)) * [1.0, 10.0, 0.1] + [0.0, 20.0, 0.3]
    return make_scores(values, GROUPS, coefficients), make_credit(len(GROUPS), seed)


def test_the_methods_of_the_paper_and_its_rivals_are_there():
    assert {"moca", "min_norm", "weighted_sum", "weighted_advantages"} <= set(METHODS)


@pytest.mark.parametrize("method", ["moca", "min_norm", "weighted_sum", "weighted_advantages"])
@pytest.mark.parametrize("seed", [0, 1])
def test_fuse_every_method(method, seed):
    scores, credit = example(seed)
    result = fuse(scores, credit, method)
    z, _ = expected_z(scores, credit, method)
    assert np.abs(z).max() > 0.1
    np.testing.assert_allclose(result.fused.advantage, z, atol=1e-4)
    np.testing.assert_allclose(result.step_advantage, credit.weights.numpy() * z[:, None], atol=3e-4)
    assert result.valid.all()


@pytest.mark.parametrize("method", ["moca", "min_norm", "weighted_sum", "weighted_advantages"])
def test_fuse_with_the_batch_std(method):
    # Groups of very different spread, where the two scopes differ.
    scores, credit = example(2)
    wide = scores.values * torch.where(scores.groups == 1, 8.0, 1.0)[:, None]
    scores = make_scores(wide, GROUPS, scores.coefficients)
    z, _ = expected_z(scores, credit, method, scope="batch")
    assert np.abs(z - expected_z(scores, credit, method)[0]).max() > 0.1 or method == "min_norm"
    np.testing.assert_allclose(fuse(scores, credit, method, std_scope="batch").fused.advantage, z, atol=1e-4)


def test_fuse_centered_exploration():
    scores, credit = example(3)
    z, tanh_e = expected_z(scores, credit, "moca", exploration="centered")
    result = fuse(scores, credit, "moca", exploration="centered")
    np.testing.assert_allclose(result.fused.advantage, z, atol=1e-4)
    assert result.metrics["moca/tanh_e"] == pytest.approx(tanh_e.mean(), abs=1e-4)
    assert np.abs(z - expected_z(scores, credit, "moca")[0]).max() > 0.01


def test_fuse_recentered_groups_have_mean_zero():
    scores, credit = example(4)
    plain, result = fuse(scores, credit, "moca"), fuse(scores, credit, "moca", recentering="group")
    assert plain.metrics["z/group_mean"] > 0.01
    for group in range(3):
        member = scores.groups == group
        assert result.fused.advantage[member].mean().item() == pytest.approx(0.0, abs=1e-6)
        shift = plain.fused.advantage[member] - result.fused.advantage[member]
        torch.testing.assert_close(shift, shift[:1].expand_as(shift))
    torch.testing.assert_close(result.step_advantage, credit.weights * result.fused.advantage[:, None])


def test_coefficient_scales_the_clipped_advantage():
    scores, credit = example(5, coefficients=(1.0, 1.0, 1.0))
    plain = fuse(scores, credit, "moca").per_objective
    scaled = fuse(make_scores(scores.values, GROUPS, (3.0, 0.0, -0.5)), credit, "moca").per_objective
    torch.testing.assert_close(scaled, plain * torch.tensor([3.0, 0.0, -0.5]))


@pytest.mark.parametrize(("sign", "coefficient"), [(1.0, 1.0), (-1.0, 1.0), (1.0, 2.0)])
def test_advantages_are_clipped_at_five_before_the_coefficient(sign, coefficient):
    # One among 40 stands out: A = 39/√40 = 6.17 is clipped to 5; the others have -1/√40 = -0.158.
    values = torch.zeros(40, 1)
    values[17] = sign
    result = fuse(make_scores(values, [0] * 40, [coefficient]), make_credit(40, 6), "moca")
    assert result.per_objective[17].item() == pytest.approx(5 * sign * coefficient)
    assert result.per_objective[0].item() == pytest.approx(-sign * coefficient / math.sqrt(40), abs=1e-5)
    assert result.fused.advantage[17].item() == pytest.approx(5 * sign * coefficient)


@pytest.mark.parametrize("method", ["moca", "min_norm", "weighted_sum", "weighted_advantages"])
@pytest.mark.parametrize("options", [{}, {"recentering": "group"}, {"std_scope": "batch"}, {"exploration": "centered"}])
def test_a_masked_sample_gets_nothing_and_sways_nobody(method, options):
    scores, credit = example(7)
    values = scores.values.clone()
    values[2, 1] = values[9, 0] = NAN
    rest = [b for b in range(len(GROUPS)) if b not in (2, 9)]
    masked = fuse(make_scores(values, GROUPS, scores.coefficients), credit, method, **options)
    without = fuse(*pick(scores, credit, rest), method, **options)
    assert masked.valid.tolist() == [b in rest for b in range(len(GROUPS))]
    assert (masked.step_advantage[[2, 9]] == 0).all()
    assert masked.fused.advantage.isfinite().all()
    torch.testing.assert_close(masked.per_objective[rest], without.per_objective, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(masked.fused.advantage[rest], without.fused.advantage, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(masked.step_advantage[rest], without.step_advantage, rtol=1e-4, atol=1e-5)
    assert masked.metrics["groups/masked_samples"] == 2.0


@pytest.mark.parametrize("method", list(METHODS))
def test_a_sample_whose_latents_overflowed_is_masked(method, caplog):
    """Its picture is black, and was scored as any other."""
    scores, credit = example(7)
    broken = replace(
        credit,
        **{
            name: getattr(credit, name).index_fill(0, torch.tensor([2]), NAN)
            for name in ("weights", "raw", "delta", "similarity")
        },
    )
    rest = [b for b in range(len(GROUPS)) if b != 2]
    masked, without = fuse(scores, broken, method), fuse(*pick(scores, credit, rest), method)
    assert "latents of the samples 2 are not finite" in caplog.text
    assert masked.valid.tolist() == [b != 2 for b in range(len(GROUPS))] and (masked.step_advantage[2] == 0).all()
    torch.testing.assert_close(masked.step_advantage[rest], without.step_advantage, rtol=1e-4, atol=1e-5)
    assert masked.fused.coefficients.isfinite().all()
    assert masked.metrics == pytest.approx(without.metrics | {"groups/masked_samples": 1.0}, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("bad", [float("inf"), -float("inf")])
def test_an_infinite_reward_masks_like_a_missing_one(bad):
    scores, credit = example(7)
    missing, infinite = scores.values.clone(), scores.values.clone()
    missing[2, 1], infinite[2, 1] = NAN, bad
    for method in METHODS:
        expected = fuse(make_scores(missing, GROUPS, scores.coefficients), credit, method)
        result = fuse(make_scores(infinite, GROUPS, scores.coefficients), credit, method)
        assert torch.equal(result.step_advantage, expected.step_advantage)
        assert not result.valid[2] and (result.step_advantage[2] == 0).all()


@pytest.mark.parametrize("method", ["moca", "min_norm", "weighted_sum", "weighted_advantages"])
def test_a_group_with_one_valid_sample_gives_no_gradient_and_is_counted(method):
    scores, credit = example(8)
    values = scores.values.clone()
    values[[8, 10], 2] = NAN
    result = fuse(make_scores(values, GROUPS, scores.coefficients), credit, method)
    assert (result.step_advantage[8:] == 0).all()
    assert (result.step_advantage[:8] != 0).any()
    assert result.metrics["groups/zero_std"] == 1.0


@pytest.mark.parametrize("method", ["moca", "min_norm", "weighted_sum", "weighted_advantages"])
def test_a_group_of_equal_rewards_gives_no_gradient_and_is_counted(method):
    scores, credit = example(9)
    values = scores.values.clone()
    values[8:] = torch.tensor([0.1, 0.7, 1 / 3])
    result = fuse(make_scores(values, GROUPS, scores.coefficients), credit, method)
    assert (result.step_advantage[8:] == 0).all()
    assert result.metrics["groups/zero_std"] == 1.0
    assert fuse(scores, credit, method).metrics["groups/zero_std"] == 0.0


@pytest.mark.parametrize("seed", [10, 11, 12])
def test_metrics_are_what_they_say(seed):
    scores, credit = example(seed)
    metrics = fuse(scores, credit, "moca").metrics
    z, tanh_e = expected_z(scores, credit, "moca")
    assert metrics["z/zero_fraction"] == pytest.approx((np.abs(z) < 1e-12).mean())
    means = [z[np.array(GROUPS) == group].mean() for group in range(3)]
    assert metrics["z/group_mean"] == pytest.approx(np.mean(means), abs=1e-4)
    assert metrics["moca/tanh_e"] == pytest.approx(tanh_e.mean(), abs=1e-4)
    assert metrics["groups/masked_samples"] == 0.0


def test_zero_fraction_counts_the_samples_where_objectives_disagree_and_lose():
    # A = ±1/√2 in each objective. Objectives that contradict each other have ΣA = 0, hence λ = 0 and z = 0;
    # in the second group they agree, and z = λ/2-clipped: A itself for the loser, min(A) for the winner.
    scores = make_scores([[1.0, 2.0], [2.0, 1.0], [1.0, 1.0], [2.0, 2.0]], [0, 0, 1, 1])
    result = fuse(scores, make_credit(4, 13), "moca")
    half = 1 / math.sqrt(2)
    assert result.fused.advantage.tolist() == pytest.approx([0.0, 0.0, -half, half], abs=1e-6)
    assert result.metrics["z/zero_fraction"] == 0.5
    assert result.metrics["z/group_mean"] == pytest.approx(0.0, abs=1e-6)


def test_with_one_objective_moca_and_the_sums_are_plain_grpo():
    scores, credit = example(14)
    single = make_scores(scores.values[:, :1], GROUPS)
    expected = normalise(single.values.double().numpy(), np.array(GROUPS))[:, 0]
    for method in ("moca", "min_norm", "weighted_sum", "weighted_advantages"):
        np.testing.assert_allclose(fuse(single, credit, method).fused.advantage, expected, atol=1e-5)


def test_names_and_inputs_travel_along():
    scores, credit = example(15)
    result = fuse(scores, credit, "moca")
    assert result.scores is scores and result.credit is credit
    torch.testing.assert_close(
        torch.tensor([result.metrics[f"moca/coefficient/r{k}"] for k in range(3)]), result.fused.coefficients.mean(0)
    )
