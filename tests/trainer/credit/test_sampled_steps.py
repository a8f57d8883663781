"""Steps drawn by credit: inclusion probabilities by hand, weights of expectation 1, and a gradient that is right on average."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comfyui_otca.tests.training import share_of
from comfyui_otca.trainer import grpo
from comfyui_otca.trainer.advantages import fuse
from comfyui_otca.trainer.credit import sampled_steps
from comfyui_otca.trainer.credit.sampled_steps import draw, drawn, generator, inclusion
from comfyui_otca.trainer.credit.steps import tcd
from comfyui_otca.trainer.grpo import UpdateSettings, update
from comfyui_otca.trainer.types import Scores

NAN = float("nan")
STILL = UpdateSettings(learning_rate=0.0, max_grad_norm=1e9)

# --- the draw -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pull", "count", "expected"),
    [
        ([1, 1, 1, 1], 1, [0.25] * 4),
        ([1, 2, 3, 4], 2, [0.2, 0.4, 0.6, 0.8]),
        (
            [8, 1, 1, 0],
            2,
            [1, 0.5, 0.5, 0],
        ),  # 1.6 of the first one would be drawn: it is certain, the rest share one draw
        ([100, 10, 1, 1], 3, [1, 1, 0.5, 0.5]),  # the second one is certain only when the first has been taken out
        ([3, 0, 5, 0], 3, [1, 0, 1, 0]),  # no more than there are
        ([0, 0, 0, 0], 2, [0] * 4),
        ([1, 1, 1, 1e-30], 3, [1, 1, 1, 0]),
    ],
)
def test_inclusion_by_hand(pull, count, expected):
    assert inclusion(torch.tensor([pull]), count)[0].tolist() == pytest.approx(expected, abs=1e-12)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.integers(0, 40).map(lambda n: n / 4), min_size=1, max_size=20),
    st.integers(1, 20),
    # Never the fraction of a sum of such shares, where rounding would choose the side of a whole number.
    st.integers(0, 999).map(lambda n: (n + 0.123456789) / 1000),
)
def test_every_draw_takes_as_many_steps_as_asked_for(pull, count, start):
    probability = inclusion(torch.tensor([pull], dtype=torch.float32), count)
    there = sum(value > 0 for value in pull)
    assert probability.sum().item() == pytest.approx(min(count, there))
    weight = drawn(probability, torch.tensor([[start]], dtype=torch.float64))[0]
    taken = (weight != 0).nonzero()[:, 0]
    assert len(taken) == min(count, there)
    assert weight[taken].tolist() == pytest.approx((1 / probability[0, taken]).tolist(), rel=1e-6)
    if there <= count:
        assert weight.tolist() == [float(value > 0) for value in pull]


def test_weights_are_one_on_average():
    pull, number = torch.tensor([0.4, 3.0, 0.0, 1.0, 0.05, 0.8]), 40_000
    weights = draw(pull.expand(number, -1), 2, generator(3, 5))
    probability = inclusion(pull[None], 2)[0]
    assert (weights != 0).sum(1).eq(2).all()
    for weight, chance in zip(weights.double().T, probability.tolist(), strict=True):
        if not chance:
            assert not weight.any()
            continue
        # A weight is 1/π with probability π: its variance is (1-π)/π. Five standard deviations of the mean.
        assert abs(weight.mean().item() - 1) <= 5 * math.sqrt((1 - chance) / chance / number) + 1e-6


def test_draws_depend_on_seed_and_version_alone():
    def weights(seed, version):
        return draw(torch.ones(50, 8), 3, generator(seed, version))

    assert torch.equal(weights(1, 2), weights(1, 2))
    for other in ((1, 3), (2, 2), (2, 1)):
        assert not torch.equal(weights(1, 2), weights(*other))
    odd = draw(torch.tensor([[1.0, NAN, 1.0], [1.0, 1.0, 0.0]]), 2, generator(0, 0))
    assert odd[0].isnan().all() and odd[1].tolist() == [1, 1, 0], "what is no number is not left out"


# --- the update -----------------------------------------------------------------------------------------------------


@pytest.fixture
def moved(model, perturb):
    return perturb(model)


def scores_of(taken):
    values = torch.randn((len(taken.groups), 2), generator=torch.Generator().manual_seed(4))
    return Scores(values, ("a", "b"), (1.0, 0.5), taken.groups, torch.empty(len(values), 0), (), ())


def judged(taken):
    advantages = fuse(scores_of(taken), tcd(taken.latents, taken.final, taken.trained), "weighted_advantages")
    step_advantage = advantages.step_advantage.clone()
    step_advantage[1] = step_advantage[4, 1] = 0.0
    return replace(advantages, step_advantage=step_advantage)


@pytest.fixture
def rollout_of(moved, sample):
    """(trajectories, their advantages)"""
    taken = sample(moved)
    return taken, judged(taken)


def gradient(model, taken, advantages, settings):
    """The update's gradient as one float64 vector, and its figures; the policy is left as it was."""
    version = model.policy.version
    metrics = update(model, taken, advantages, settings)
    model.policy.version = version
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.policy.trainable_parameters()]
    return torch.cat([grad.flatten() for grad in grads]).double(), metrics


@pytest.mark.parametrize(("count", "kl"), [(1, 2.0), (2, 0.0)])
def test_the_expected_gradient_is_the_full_one(moved, rollout_of, monkeypatch, count, kl):
    taken, advantages = rollout_of
    full, metrics = gradient(moved, taken, advantages, replace(STILL, kl_coefficient=kl))
    settings = replace(STILL, kl_coefficient=kl, sampled_steps=count)
    # Which steps are drawn changes only where a running sum passes a whole number: between these starts nothing does, so the
    # integral over the start is a finite sum. One start for all samples has the expectation that one for each has.
    running = inclusion(grpo._pull(advantages, settings), count).cumsum(1)
    edges = torch.cat([(1 - running % 1).flatten(), torch.tensor([0.0, 1.0], dtype=torch.float64)]).clamp(0, 1).unique()
    edges = edges[torch.cat([edges.new_tensor([1.0]), edges.diff()]) > 1e-9]
    expected, ratio, loss, difference = torch.zeros_like(full), 0.0, 0.0, 0.0
    for low, high in zip(edges, edges[1:], strict=False):
        start = ((low + high) / 2).expand(len(running), 1)
        monkeypatch.setattr(sampled_steps, "draw", lambda pull, k, _, s=start: drawn(inclusion(pull, k), s))
        own, figures = gradient(moved, taken, advantages, settings)
        share = (high - low).item()
        expected += share * own
        ratio, loss = ratio + share * figures["ratio/mean"], loss + share * figures["loss"]
        difference = max(difference, ((own - full).norm() / full.norm()).item())
    assert len(edges) > 5 and difference > 0.1, "no draw differs from all steps"
    assert (expected - full).norm() <= 1e-5 * full.norm()
    assert ratio == pytest.approx(1) and loss == pytest.approx(metrics["loss"], abs=1e-6)


@pytest.mark.parametrize("count", [3, 50])
def test_as_many_as_there_are_is_the_full_gradient_exactly(moved, rollout_of, count):
    taken, advantages = rollout_of
    full, metrics = gradient(moved, taken, advantages, STILL)
    same, figures = gradient(moved, taken, advantages, replace(STILL, sampled_steps=count))
    assert torch.equal(same, full) and full.norm() > 0
    assert figures["update/sampled_share"] == 1 and "update/sampled_share" not in metrics


def test_only_drawn_steps_are_computed(moved, rollout_of):
    taken, advantages = rollout_of
    rows = []
    moved.transformer.register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(len(kwargs["hidden_states"])) if torch.is_grad_enabled() else None,
        with_kwargs=True,
    )
    _, metrics = gradient(moved, taken, advantages, replace(STILL, sampled_steps=1))
    # Five samples have an advantage at 14 steps in all; one step of each is computed, one forward for a group's first step.
    assert sum(rows) <= 5 and metrics["update/sampled_share"] == pytest.approx(5 / 14)
    assert metrics["ratio/mean"] == 1.0


def test_it_is_the_same_however_many_processes_hold_the_samples(moved, rollout_of):
    (taken, advantages), settings = rollout_of, replace(STILL, sampled_steps=2)
    whole, metrics = gradient(moved, taken, advantages, settings)
    again, _ = gradient(moved, taken, advantages, settings)
    assert torch.equal(whole, again)
    summed = torch.zeros_like(whole)
    for rows in (range(0, 2), range(2, 6)):
        part, figures = gradient(moved, share_of(taken, rows), advantages, settings)
        assert figures["update/sampled_share"] == metrics["update/sampled_share"]
        summed += part
    assert (summed - whole).norm() <= 1e-5 * whole.norm()
    moved.policy.version += 1
    assert not torch.equal(gradient(moved, replace(taken, policy_version=1), advantages, settings)[0], whole)


def test_epochs_share_their_draw(moved, rollout_of):
    settings = UpdateSettings(learning_rate=1e-3, epochs=3, sampled_steps=1, max_grad_norm=1e9)
    metrics = update(moved, *rollout_of, settings)
    # A step that the first epoch had not computed would have no old log-prob, and its update would be dropped.
    assert metrics["policy/skipped_updates"] == 0 and math.isfinite(metrics["loss"])


def test_a_kept_graph_is_given_up_and_the_log_says_so(moved, sample, caplog):
    taken, kept = sample(moved), sample(moved, keep_graph=True)
    advantages, settings = judged(taken), replace(STILL, sampled_steps=1)
    expected, _ = gradient(moved, taken, advantages, settings)
    assert "keep_graph" not in caplog.text
    own, _ = gradient(moved, kept, advantages, settings)
    assert torch.equal(own, expected) and not kept.kept
    assert "Fix: set the sampler's keep_graph to off" in caplog.text


def test_an_advantage_that_is_not_finite_drops_the_update_and_a_sharded_model_is_refused(moved, rollout_of):
    taken, advantages = rollout_of
    advantages.step_advantage[0, 1] = NAN
    _, metrics = gradient(moved, taken, advantages, replace(STILL, sampled_steps=1))
    assert metrics["policy/skipped_updates"] == 1 and moved.policy.nonfinite_in_a_row == 1
    moved.policy.is_sharded = True
    with pytest.raises(ValueError, match="sampled_steps = 2.*Fix: "):
        update(moved, taken, advantages, replace(STILL, sampled_steps=2))


def test_credit_by_objective_is_drawn_by_what_all_objectives_make_of_a_step(moved, sample, monkeypatch):
    """π_j follows |Σ_k w_jk·c_k·A_k|, which is not w_j·|z| where objectives disagree."""
    taken = sample(moved)
    credit = tcd(taken.latents, taken.final, taken.trained)
    own = torch.tensor([[2.0, 0.25], [0.75, 0.5], [0.25, 2.25]]).expand(len(taken.groups), 3, 2)
    credit = replace(credit, weights=own.mean(2), by_objective=own, objectives=("a", "b"))
    advantages = fuse(scores_of(taken), credit, "weighted_advantages")
    asked = []
    monkeypatch.setattr(sampled_steps, "draw", lambda pull, count, start: asked.append(pull) or torch.ones_like(pull))
    update(moved, taken, advantages, replace(STILL, sampled_steps=1))
    expected = (own * advantages.fused.parts[:, None]).sum(2).abs()
    torch.testing.assert_close(asked[0], expected, atol=1e-6, rtol=1e-5)
    assert (expected - credit.weights * advantages.fused.advantage.abs()[:, None]).abs().max() > 0.1
