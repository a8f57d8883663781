"""Group advantages and the clipped objective of trainer/grpo.py, against hand numbers and a scalar version."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comfyui_otca.trainer.groups import group_advantages
from comfyui_otca.trainer.grpo import clipped_objective
from comfyui_otca.trainer.losses import log_hinge

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
    torch.testing.assert_close(got, torch.tensor([[-half, -half], [-half, half], [half, half], [half, -half]]))


def test_group_numbers_need_no_order_and_no_beginning():
    assert advantages(column(3, 7, 1, 9, 2), [7, 3, 7, 3, 7]) == pytest.approx(
        [1.0, -(0.5**0.5), -1.0, 0.5**0.5, 0.0], abs=1e-6
    )


def test_batch_scope_divides_by_the_std_of_all():
    # Groups 0, 2 and 10, 14: means 1 and 12; all: mean 6.5, squares 42.25, 20.25, 12.25, 56.25 over 3, std √(131/3).
    std = math.sqrt(131 / 3)
    got = advantages(column(0, 2, 10, 14), [0, 0, 1, 1], std_scope="batch")
    assert got == pytest.approx([-1 / std, 1 / std, -2 / std, 2 / std], abs=1e-6)


def test_batch_scope_leaves_masked_samples_out():
    got = advantages(column(0, 2, 10, 14, NAN), [0, 0, 1, 1, 1], std_scope="batch")
    std = math.sqrt(131 / 3)
    assert got == pytest.approx([-1 / std, 1 / std, -2 / std, 2 / std, 0.0], abs=1e-6)


@pytest.mark.parametrize("value", [0.1, 0.3, 1 / 3, -0.7, 1e6 + 0.1, 0.0])
@pytest.mark.parametrize("scope", ["group", "batch"])
@pytest.mark.parametrize("size", [2, 3, 7, 12])
def test_equal_rewards_give_exactly_zero(value, scope, size):
    rewards = column(*[value] * size, 1.0, 2.0)
    got = advantages(rewards, [0] * size + [1, 1], std_scope=scope)
    assert got[:size] == [0.0] * size
    assert got[size] < 0 < got[size + 1]


def test_equal_rewards_in_double_precision_too():
    assert advantages(column(*[0.1] * 7, dtype=torch.float64), [0] * 7) == [0.0] * 7


def test_epsilon_is_too_small_to_hide_a_narrow_spread():
    # std = 1e-4·√½: 1e-8 against it shifts the seventh digit only in the fourth decimal.
    got = advantages(column(0.0, 1e-4), [0, 0])
    assert got == pytest.approx([-0.70701, 0.70701], abs=1e-4)


@pytest.mark.parametrize("bad", [NAN, float("inf"), -float("inf")])
def test_a_reward_that_is_not_finite_masks_its_sample(bad):
    got = advantages(column(1, bad, 2, 3), [0] * 4)
    assert got == pytest.approx([-1.0, 0.0, 0.0, 1.0], abs=1e-6)


def test_one_failed_objective_masks_the_sample_in_all():
    rewards = torch.tensor([[1.0, 5.0], [NAN, 100.0], [3.0, 7.0]])
    got = group_advantages(rewards, torch.zeros(3, dtype=torch.long))
    half = 1 / math.sqrt(2)
    torch.testing.assert_close(got, torch.tensor([[-half, -half], [0.0, 0.0], [half, half]]))


def test_valid_is_what_the_caller_says():
    valid = torch.tensor([True, False, True, True])
    got = group_advantages(column(1, 50, 2, 3), torch.zeros(4, dtype=torch.long), valid)
    assert got[:, 0].tolist() == pytest.approx([-1.0, 0.0, 0.0, 1.0], abs=1e-6)


@pytest.mark.parametrize("scope", ["group", "batch"])
def test_fewer_than_two_valid_samples_give_nothing(scope):
    rewards = column(1, NAN, NAN, NAN, NAN, 4, 6)
    got = advantages(rewards, [0, 0, 0, 1, 1, 2, 2], std_scope=scope)
    assert got[:5] == [0.0] * 5
    assert got[5] < 0 < got[6]


def test_nothing_valid_at_all():
    assert advantages(column(NAN, NAN), [0, 0]) == [0.0, 0.0]
    assert advantages(column(NAN, NAN), [0, 0], std_scope="batch") == [0.0, 0.0]


def test_dtype_and_input_are_kept():
    rewards = column(1, NAN, 3)
    got = group_advantages(rewards, torch.zeros(3, dtype=torch.long))
    assert got.dtype == torch.float32
    assert rewards[[0, 2], 0].tolist() == [1.0, 3.0] and rewards[1].isnan().all()


def test_unknown_scope_is_refused():
    with pytest.raises(ValueError, match="std_scope"):
        group_advantages(column(1, 2), torch.zeros(2, dtype=torch.long), std_scope="prompt")


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


# The clipped objective.


def objective(ratios: list[float], advantage: list[float], clip: float):
    old = torch.linspace(-1.5, 0.5, len(ratios), dtype=torch.float64)
    new = (old + torch.tensor(ratios, dtype=torch.float64).log()).requires_grad_()
    loss, statistics = clipped_objective(new, old, torch.tensor(advantage, dtype=torch.float64), clip)
    loss.backward()
    return loss.item(), {name: float(value) for name, value in statistics.items()}, new.grad.tolist()


def test_objective_by_hand():
    # clip 0.2. ρ 1.5, Ã 2: -2·1.2 = -2.4 clipped high. ρ 1.5, Ã -2: 3, not clipped (the worse branch counts).
    # ρ 0.5, Ã 2: -1, not clipped. ρ 0.5, Ã -2: 2·0.8 = 1.6 clipped low. ρ 1.1, Ã 1: -1.1. Sum 1.1 over 5.
    loss, statistics, gradient = objective([1.5, 1.5, 0.5, 0.5, 1.1], [2.0, -2.0, 2.0, -2.0, 1.0], 0.2)
    assert loss == pytest.approx((-2.4 + 3.0 - 1.0 + 1.6 - 1.1) / 5)
    # ∂loss/∂logp = -Ã·ρ/5 where not clipped, exactly nothing where clipped.
    assert gradient == pytest.approx([0.0, 0.6, -0.2, 0.0, -0.22])
    assert gradient[0] == 0.0 and gradient[3] == 0.0
    assert statistics["clip_high"] == pytest.approx(0.2)
    assert statistics["clip_low"] == pytest.approx(0.2)
    assert statistics["ratio"] == pytest.approx((1.5 + 1.5 + 0.5 + 0.5 + 1.1) / 5)


def test_clip_shares_count_only_where_the_clipped_branch_was_taken():
    _, statistics, _ = objective([1.5, 1.5, 1.5, 0.5], [1.0, 1.0, -1.0, -1.0], 0.2)
    assert statistics["clip_high"] == pytest.approx(0.5)
    assert statistics["clip_low"] == pytest.approx(0.25)


def test_on_policy_the_ratio_is_one_and_the_gradient_that_of_reinforce():
    loss, statistics, gradient = objective([1.0, 1.0, 1.0, 1.0], [2.0, -1.0, 0.5, 0.0], 1e-4)
    assert loss == pytest.approx(-(2.0 - 1.0 + 0.5) / 4)
    assert gradient == pytest.approx([-0.5, 0.25, -0.125, 0.0])
    assert statistics["ratio"] == 1.0
    assert statistics["clip_high"] == statistics["clip_low"] == statistics["approx_kl"] == 0.0


def test_descending_the_loss_raises_what_was_good_and_lowers_what_was_bad():
    _, _, gradient = objective([1.0, 1.0], [1.0, -1.0], 1e-4)
    assert gradient[0] < 0 < gradient[1]


def test_a_tiny_clip_range_works_in_single_precision():
    # log ρ = ±2e-4 lies outside 1 ± 1e-4, ±5e-5 inside.
    log_prob = torch.tensor([2e-4, 5e-5, -2e-4, -5e-5], requires_grad=True)
    signs = torch.tensor([1.0, 1.0, -1.0, -1.0])
    loss, statistics = clipped_objective(log_prob, torch.zeros(4), signs, 1e-4)
    loss.backward()
    assert log_prob.grad[[0, 2]].tolist() == [0.0, 0.0]
    assert log_prob.grad[[1, 3]].tolist() == pytest.approx([-0.25, 0.25], abs=1e-3)
    assert float(statistics["clip_high"]) == float(statistics["clip_low"]) == 0.25


@cases
@given(
    st.lists(
        # Sixteenths never lie on the edge of a clip range, where rounding would choose the branch.
        st.tuples(st.integers(5, 48).map(lambda n: n / 16), st.integers(-20, 20).map(lambda n: n / 4)),
        min_size=1,
        max_size=12,
    ),
    st.sampled_from([1e-4, 0.1, 0.3]),
)
def test_objective_against_a_scalar_version(entries, clip):
    losses, gradients, high, low, divergence = [], [], 0, 0, 0.0
    for ratio, a in entries:
        bounded = min(max(ratio, 1 - clip), 1 + clip)
        losses.append(max(-a * ratio, -a * bounded))
        taken = (a > 0 and ratio > 1 + clip) or (a < 0 and ratio < 1 - clip)
        gradients.append(0.0 if taken else -a * ratio / len(entries))
        high += taken and ratio > 1
        low += taken and ratio < 1
        divergence += ratio - 1 - math.log(ratio)
    loss, statistics, gradient = objective([ratio for ratio, _ in entries], [a for _, a in entries], clip)
    assert loss == pytest.approx(np.mean(losses), abs=1e-9)
    assert gradient == pytest.approx(gradients, abs=1e-9)
    assert statistics["clip_high"] == pytest.approx(high / len(entries), abs=1e-6)
    assert statistics["clip_low"] == pytest.approx(low / len(entries), abs=1e-6)
    assert statistics["approx_kl"] == pytest.approx(divergence / len(entries), abs=1e-9)


def test_loss_is_the_mean_over_samples_and_steps():
    a = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    loss, _ = clipped_objective(torch.zeros(2, 3), torch.zeros(2, 3), a, 0.1)
    assert loss.item() == pytest.approx(-3.5)


def test_statistics_carry_no_graph():
    log_prob = torch.zeros(3, requires_grad=True)
    _, statistics = clipped_objective(log_prob, torch.zeros(3), torch.ones(3), 0.1)
    assert not any(value.requires_grad for value in statistics.values())


def test_log_hinge_by_hand():
    # ξ 0.1. Ã 2, log ρ 0: 0.2. Ã 2, log ρ 0.3: 0, reached. Ã -1, log ρ 0.3: 0.1 + 0.3. Ã -1, log ρ -0.2: 0, reached.
    log_prob = torch.tensor([1.0, 1.3, 1.3, 0.8], dtype=torch.float64, requires_grad=True)
    advantage = torch.tensor([2.0, 2.0, -1.0, -1.0], dtype=torch.float64)
    loss, statistics = log_hinge(log_prob, torch.ones(4, dtype=torch.float64), advantage, 0.1)
    loss.backward()
    assert loss.item() == pytest.approx(0.6 / 4)
    assert log_prob.grad.tolist() == pytest.approx([-0.5, 0.0, 0.25, 0.0])
    assert (statistics["clip_high"], statistics["clip_low"]) == (0.25, 0.25)


@cases
@given(st.lists(st.floats(-3, 3, width=32), min_size=1, max_size=6), st.sampled_from([1e-4, 0.1]))
def test_on_policy_both_objectives_pull_alike(advantage, clip):
    """At ρ = 1 nothing is clipped, whatever the margin."""
    gradients = []
    for own in (clipped_objective, log_hinge):
        log_prob = torch.zeros(len(advantage), dtype=torch.float64, requires_grad=True)
        own(log_prob, log_prob.detach(), torch.tensor(advantage, dtype=torch.float64), clip)[0].backward()
        gradients.append(log_prob.grad.tolist())
    assert gradients[0] == pytest.approx(gradients[1], abs=1e-12)
