"""The losses, against hand numbers and a scalar version."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comfyui_otca.trainer.grpo import clipped_objective
from comfyui_otca.trainer.updates.losses import LOSSES, dppo, log_hinge

cases = settings(max_examples=60, deadline=None, derandomize=True, database=None)


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


def test_on_policy_the_ratio_is_one_and_the_gradient_that_of_reinforce():
    loss, statistics, gradient = objective([1.0, 1.0, 1.0, 1.0], [2.0, -1.0, 0.5, 0.0], 1e-4)
    assert loss == pytest.approx(-(2.0 - 1.0 + 0.5) / 4)
    assert gradient == pytest.approx([-0.5, 0.25, -0.125, 0.0])
    assert statistics["ratio"] == 1.0
    assert statistics["clip_high"] == statistics["clip_low"] == statistics["approx_kl"] == 0.0
    advantage = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])  # the mean is over samples and steps
    loss, statistics = clipped_objective(torch.zeros(2, 3, requires_grad=True), torch.zeros(2, 3), advantage, 0.1)
    assert loss.item() == pytest.approx(-3.5) and not any(value.requires_grad for value in statistics.values())


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
def test_on_policy_all_objectives_pull_alike(advantage, clip):
    """At ρ = 1 nothing is clipped, whatever the margin."""
    gradients = []
    for own in LOSSES.values():
        log_prob = torch.zeros(len(advantage), dtype=torch.float64, requires_grad=True)
        own(log_prob, log_prob.detach(), torch.tensor(advantage, dtype=torch.float64), clip)[0].backward()
        gradients.append(log_prob.grad.tolist())
    assert len(gradients) == 3
    for other in gradients[1:]:
        assert gradients[0] == pytest.approx(other, abs=1e-12)


def test_dppo_by_hand():
    # τ 1e-5. ρ 1.5, Ã 2, far: dropped. ρ 1.5, Ã 2, near: -3. ρ 0.5, Ã -2, at τ: dropped. ρ 0.5, Ã 2, far, but not yet there: -1.
    # ρ 1.1, Ã -1, far, but not yet there: 1.1. ρ exactly 1, far: -1, since it has gone nowhere. Sum -3.9 over 6.
    ratios = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1, 1.0], dtype=torch.float64)
    log_prob = ratios.log().requires_grad_()
    advantage = torch.tensor([2.0, 2.0, -2.0, 2.0, -1.0, 1.0], dtype=torch.float64)
    divergence = torch.tensor([2e-5, 0.9e-5, 1e-5, 1.0, 1.0, 1.0], dtype=torch.float64)
    loss, statistics = dppo(log_prob, torch.zeros(6, dtype=torch.float64), advantage, 1e-5, 1.0, divergence)
    loss.backward()
    assert loss.item() == pytest.approx(-3.9 / 6)
    assert log_prob.grad.tolist() == pytest.approx([0.0, -0.5, 0.0, -1 / 6, 1.1 / 6, -1 / 6])
    assert (statistics["clip_high"], statistics["clip_low"]) == (pytest.approx(1 / 6), pytest.approx(1 / 6))
    far = torch.tensor([3.0, -3.0], dtype=torch.float64)  # without a divergence nothing is dropped
    loss, statistics = dppo(far, torch.zeros(2), torch.tensor([1.0, -1.0], dtype=torch.float64), 1e-5)
    assert loss.item() == pytest.approx((-math.exp(3) + math.exp(-3)) / 2)
    assert statistics["clip_high"] == statistics["clip_low"] == 0
