"""Group advantages, normalised gains and the total reward, against hand numbers and numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comfyui_otca.trainer.groups import distances, gain_advantages, group_advantages, neutral, per_group, total_reward

NAN = float("nan")
cases = settings(max_examples=60, deadline=None, derandomize=True, database=None)
rewards_of_a_group = st.lists(st.integers(-50, 50).map(lambda n: n / 8), min_size=2, max_size=10)


def column(*values: float, dtype=torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)[:, None]


def advantages(rewards: torch.Tensor, groups: list[int], **options) -> list[float]:
    return group_advantages(rewards, torch.tensor(groups), **options)[:, 0].tolist()


def test_unbiased_std_by_hand():
    # mean 2, unbiased std √((1+0+1)/2) = 1; the biased one would give ±1.2247.
    assert advantages(column(1, 2, 3), [0, 0, 0]) == pytest.approx([-1.0, 0.0, 1.0], abs=1e-6)
    # mean 5; squares 16, 1, 1, 16 over 3: std √(34/3) = 3.3665.
    expected = [-1.1881771, -0.2970443, 0.2970443, 1.1881771]
    assert advantages(column(1, 4, 6, 9), [0] * 4) == pytest.approx(expected, abs=1e-6)


def test_groups_and_objectives_do_not_mix():
    # Group 0 holds 1, 3 and 10, 30; group 1 holds 5, 9 and 2, 0: two samples always give ±1/√2.
    rewards = torch.tensor([[1.0, 10.0], [5.0, 2.0], [3.0, 30.0], [9.0, 0.0]])
    half = 1 / math.sqrt(2)
    got = group_advantages(rewards, torch.tensor([0, 1, 0, 1]))
    with pytest.raises(ValueError, match="std_scope"):
        group_advantages(rewards, torch.tensor([0, 1, 0, 1]), std_scope="prompt")
    torch.testing.assert_close(got, torch.tensor([[-half, -half], [-half, half], [half, half], [half, -half]]))


def test_batch_scope_divides_by_the_std_of_all_that_are_not_masked():
    # Groups 0, 2 and 10, 14: means 1 and 12; all: mean 6.5, squares 42.25, 20.25, 12.25, 56.25 over 3, std √(131/3).
    std = math.sqrt(131 / 3)
    expected = [-1 / std, 1 / std, -2 / std, 2 / std]
    assert advantages(column(0, 2, 10, 14), [0, 0, 1, 1], std_scope="batch") == pytest.approx(expected, abs=1e-6)
    masked = advantages(column(0, 2, 10, 14, NAN), [0, 0, 1, 1, 1], std_scope="batch")
    assert masked == pytest.approx([*expected, 0.0], abs=1e-6)


@pytest.mark.parametrize("value", [0.1, 0.3, 1 / 3, -0.7, 1e6 + 0.1, 0.0])
@pytest.mark.parametrize("scope", ["group", "batch"])
@pytest.mark.parametrize("size", [2, 3, 7, 12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_rewards_give_exactly_zero(value, scope, size, dtype):
    rewards = column(*[value] * size, 1.0, 2.0, dtype=dtype)
    got = advantages(rewards, [0] * size + [1, 1], std_scope=scope)
    assert got[:size] == [0.0] * size
    assert got[size] < 0 < got[size + 1]


def test_epsilon_is_too_small_to_hide_a_narrow_spread():
    # std = 1e-4·√½: 1e-8 against it shifts the seventh digit only in the fourth decimal.
    got = advantages(column(0.0, 1e-4), [0, 0])
    assert got == pytest.approx([-0.70701, 0.70701], abs=1e-4)


@pytest.mark.parametrize("bad", [NAN, float("inf"), -float("inf")])
def test_a_sample_is_masked_by_a_reward_that_is_not_finite_or_by_the_caller(bad):
    expected = pytest.approx([-1.0, 0.0, 0.0, 1.0], abs=1e-6)
    assert advantages(column(1, bad, 2, 3), [0] * 4) == expected
    assert advantages(column(1, 50, 2, 3), [0] * 4, valid=torch.tensor([True, False, True, True])) == expected
    rewards = torch.tensor([[1.0, 5.0], [bad, 100.0], [3.0, 7.0]])
    given = rewards.clone()
    got = group_advantages(given, torch.zeros(3, dtype=torch.long))
    assert torch.equal(given.nan_to_num(), rewards.nan_to_num()), "what came in is as it was"
    half = 1 / math.sqrt(2)
    torch.testing.assert_close(got, torch.tensor([[-half, -half], [0.0, 0.0], [half, half]]))


@pytest.mark.parametrize("scope", ["group", "batch"])
def test_fewer_than_two_valid_samples_give_nothing(scope):
    rewards = column(1, NAN, NAN, NAN, NAN, 4, 6)
    got = advantages(rewards, [0, 0, 0, 1, 1, 2, 2], std_scope=scope)
    assert got[:5] == [0.0] * 5
    assert got[5] < 0 < got[6]
    assert advantages(column(NAN, NAN), [0, 0], std_scope=scope) == [0.0, 0.0]


@cases
@given(rewards_of_a_group, rewards_of_a_group, st.sampled_from(["group", "batch"]), st.integers(0, 1000))
def test_against_numpy_for_groups_in_any_order(first, second, scope, seed):
    values, groups = np.array(first + second), np.array([4] * len(first) + [9] * len(second))
    expected = np.zeros(len(values))
    for group in (4, 9):
        own = values[groups == group]
        std = (own if scope == "group" else values).std(ddof=1)
        expected[groups == group] = (own - own.mean()) / (std + 1e-8)
    order = np.random.default_rng(seed).permutation(len(values))
    got = group_advantages(
        torch.tensor(values[order], dtype=torch.float32)[:, None], torch.tensor(groups[order]), std_scope=scope
    )
    np.testing.assert_allclose(got[:, 0], expected[order], atol=1e-5)


@cases
@given(rewards_of_a_group, st.integers(-20, 20), st.sampled_from([0.25, 0.5, 2.0, 16.0]))
def test_shift_and_positive_scale_of_a_reward_change_nothing(values, shift, scale):
    groups = [0] * len(values)
    reference = advantages(column(*values), groups)
    moved = advantages(column(*[scale * value + shift for value in values]), groups)
    assert moved == pytest.approx(reference, abs=1e-5)
    flipped = advantages(column(*[-value for value in values]), groups)
    assert flipped == pytest.approx([-a for a in reference], abs=1e-5)


@cases
@given(rewards_of_a_group)
def test_a_group_has_mean_zero_and_unit_std(values):
    got = advantages(column(*values), [0] * len(values))
    assert np.mean(got) == pytest.approx(0.0, abs=1e-5)
    spread = max(values) > min(values)
    assert np.std(got, ddof=1) == pytest.approx(1.0 if spread else 0.0, abs=1e-5)


def test_the_members_of_each_group_by_rising_number():
    groups = torch.tensor([5, 2, 5, 7])
    assert [member.tolist() for member in per_group(groups)] == [
        [False, True, False, False],
        [True, False, True, False],
        [False, False, False, True],
    ]
    valid = torch.tensor([False, True, True, False])
    assert [member.nonzero()[:, 0].tolist() for member in per_group(groups, valid)] == [[1], [2], []]


def gains_of(gains, groups, valid, **options):
    found = gain_advantages(torch.tensor(gains)[:, :, None], torch.tensor(groups), torch.tensor(valid), **options)
    return found[:, :, 0]


def test_gains_are_normalised_over_a_groups_samples_and_steps_together_or_step_by_step():
    # Group 0: 1, 2, 3, 6 have mean 3 and variance (4 + 1 + 0 + 9)/4 = 3.5. Group 1: all alike.
    found = gains_of([[1.0, 2.0], [3.0, 6.0], [5.0, 5.0], [5.0, 5.0]], [0, 0, 1, 1], [True] * 4)
    torch.testing.assert_close(found[:2], torch.tensor([[-2.0, -1.0], [0.0, 3.0]]) / 3.5**0.5)
    assert not found[2:].any()
    # 1 and 3 have mean 2 and biased std 1; 6 and 6 have none.
    found = gains_of([[1.0, 6.0], [3.0, 6.0], [9.0, NAN]], [0] * 3, [True, True, False], per_step=True)
    torch.testing.assert_close(found, torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]))
    alone = gains_of([[1.0, 2.0], [NAN, 1.0]], [0, 0], [True, False])
    assert torch.equal(alone, torch.zeros(2, 2)), "a group with one valid sample"


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 10_000), st.booleans(), st.sampled_from([0.25, 8.0]), st.sampled_from([-3.0, 5.0]))
def test_normalised_gains_have_mean_zero_std_one_and_no_unit(seed, per_step, scale, shift):
    gains = torch.randn((8, 5, 2), generator=torch.Generator().manual_seed(seed))
    groups, valid = torch.arange(2).repeat_interleave(4), torch.ones(8, dtype=torch.bool)
    found = gain_advantages(gains, groups, valid, per_step)
    for group in (0, 1):
        own = found[groups == group]
        over = (0,) if per_step else (0, 1)
        assert own.mean(over).abs().max() < 1e-5 and (own.std(over, correction=0) - 1).abs().max() < 1e-5
    torch.testing.assert_close(
        gain_advantages(gains * scale + shift, groups, valid, per_step), found, atol=1e-4, rtol=0
    )


def test_several_objectives_as_one_number():
    # Final scores 1, 3 (std √2) and 5, 5 (none): the second is left out.
    finals = torch.tensor([[1.0, 5.0], [3.0, 5.0], [NAN, 1.0]])
    found = total_reward(torch.tensor([[2.0, 7.0], [4.0, 9.0]]), (3.0, 1.0), finals)
    torch.testing.assert_close(found, torch.tensor([6.0, 12.0]) / 2**0.5)


def test_what_does_not_apply_says_nothing_for_or_against_a_sample():
    """The group's mean; of a group to which it applies nowhere, the mean of all that it scored: 21, and not 0."""
    values = torch.tensor([[20.0, 1.0], [22.0, 2.0], [7.0, 3.0], [8.0, 4.0], [9.0, 5.0]])
    counts = torch.tensor([[True, True], [True, False], [False, True], [False, True], [False, True]])
    filled = neutral(values, torch.tensor([0, 0, 1, 1, 1]), counts)
    assert filled.tolist() == [[20.0, 1.0], [22.0, 1.0], [21.0, 3.0], [21.0, 4.0], [21.0, 5.0]]
    per_step = neutral(values[:, None].expand(5, 3, 2), torch.tensor([0, 0, 1, 1, 1]), counts)
    assert torch.equal(per_step, filled[:, None].expand(5, 3, 2))


# --- distances ------------------------------------------------------------------------------------------------------------


def test_distances_by_hand():
    points = torch.tensor([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0], [-1.0, 0.0], [0.5, 0.5]])
    # The first group is x, y, x: cosines 0, 1; 0, 0; 1, 0. Of the second, one is opposed to what is alone in the third: no pair.
    groups = torch.tensor([0, 0, 0, 1, 7])
    assert distances(points, groups).tolist() == pytest.approx([0.5, 1.0, 0.5, 0.0, 0.0])
    assert distances(points[[0, 3]], torch.tensor([0, 0])).tolist() == pytest.approx([2.0, 2.0])


def test_distances_have_a_gradient_through_the_whole_group_and_no_other():
    points = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    groups = torch.tensor([0, 0, 0, 1, 2])
    assert torch.autograd.gradcheck(lambda x: distances(x, groups), points)
    distances(points, groups)[0].backward()
    assert (points.grad.norm(dim=1) > 0).tolist() == [True, True, True, False, False]
