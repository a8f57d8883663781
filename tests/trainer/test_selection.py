"""Best-of-n selection by hand, over several prompts, and what the update makes of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from comfyui_otca.trainer.advantages import best_of_n, fuse
from comfyui_otca.trainer.credit.steps import uniform
from comfyui_otca.trainer.grpo import UpdateSettings, update
from comfyui_otca.trainer.types import Scores

NAN = float("nan")
cases = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def judged(rewards, groups):
    """Advantages of one reward under uniform credit over three steps."""
    values = torch.tensor(rewards)[:, None]
    path = torch.randn((len(rewards), 4, 2), generator=torch.Generator().manual_seed(0))
    names = {"names": ("a",), "coefficients": (1.0,), "held_out_names": (), "rewards": ()}
    scores = Scores(values=values, groups=torch.tensor(groups), held_out=values[:, :0], **names)
    return fuse(scores, uniform(path, path[:, -1], range(3)), "weighted_advantages")


def kept(advantages):
    return advantages.valid.nonzero()[:, 0].tolist()


def test_by_hand():
    advantages = judged([3.0, 1.0, 4.0, 1.5, 9.0, 2.0], [0] * 6)
    chosen = best_of_n(advantages, 2, 1)
    assert kept(chosen) == [1, 2, 4] and chosen.metrics["groups/kept_samples"] == 3
    assert torch.equal(chosen.step_advantage[[1, 2, 4]], advantages.step_advantage[[1, 2, 4]])
    assert not chosen.step_advantage[[0, 3, 5]].any()
    assert torch.equal(chosen.fused.advantage, advantages.fused.advantage), "whole groups still give the statistics"
    assert kept(best_of_n(advantages, 1, 0)) == [4]
    assert kept(advantages) == list(range(6)), "what came in is as it was"


def test_every_prompt_is_ranked_by_itself():
    """Rewards of the second prompt are all higher, and its spread is a tenth: taken together it would get all places."""
    groups = [0, 1, 0, 1, 0, 1, 0, 1]
    rewards = [1.0, 10.1, 2.0, 10.4, 3.0, 10.2, 4.0, 10.3]
    assert kept(best_of_n(judged(rewards, groups), 1, 1)) == [0, 1, 3, 6]


def test_failed_samples_have_no_place_and_small_groups_stay_whole():
    advantages = judged([5.0, NAN, 1.0, 2.0, 3.0, NAN, 7.0, 6.0], [0] * 5 + [1] * 3)
    assert kept(best_of_n(advantages, 1, 1)) == [0, 2, 6, 7]
    assert kept(best_of_n(advantages, 3, 4)) == [0, 2, 3, 4, 6, 7] == kept(best_of_n(advantages, 9, 9))
    assert kept(best_of_n(judged([NAN, NAN], [0, 0]), 1, 1)) == []


def test_of_equals_the_first_is_the_better():
    assert kept(best_of_n(judged([1.0] * 5, [0] * 5), 1, 1)) == [0, 4]
    assert kept(best_of_n(judged([2.0, 2.0, 1.0, 1.0, 0.0], [0] * 5), 1, 2)) == [0, 3, 4]


@given(
    st.lists(st.tuples(st.integers(-4, 4), st.integers(0, 2), st.booleans()), min_size=2, max_size=20),
    st.integers(1, 5),
    st.integers(0, 5),
)
@cases
def test_counts_and_order(samples, best, worst):
    rewards = [NAN if failed else float(reward) for reward, _, failed in samples]
    groups = [group for _, group, _ in samples]
    before = judged(rewards, groups)
    after = best_of_n(before, best, worst)
    z = before.fused.advantage
    for group in set(groups):
        valid = [row for row in kept(before) if groups[row] == group]
        own = [row for row in kept(after) if groups[row] == group]
        assert len(own) == min(len(valid), best + worst)
        left_out = [row for row in valid if row not in own]
        # Nobody who is left out is better than `best` others, nor worse than `worst` others.
        for row in left_out:
            assert sum(z[row] <= z[other] for other in own) >= best
            assert sum(z[row] >= z[other] for other in own) >= worst


@pytest.mark.parametrize("kl", [0.0, 0.05])
def test_the_loss_is_the_mean_over_those_that_are_kept(model, perturb, sample, kl):
    perturb(model)
    taken = sample(model, group_size=4)
    rewards = torch.randn(8, generator=torch.Generator().manual_seed(1)).tolist()
    advantages = best_of_n(judged(rewards, taken.groups.tolist()), 1, 1)
    still = UpdateSettings(learning_rate=0.0, max_grad_norm=1e9, kl_coefficient=kl)
    calls = []
    hook = model.transformer.register_forward_pre_hook(
        lambda _, __, inputs: calls.append(len(inputs["hidden_states"])), with_kwargs=True
    )
    try:
        found = update(model, taken, advantages, still)
    finally:
        hook.remove()
    gradient = [parameter.grad.clone() for parameter in model.policy.trainable_parameters()]
    # The same four samples as two groups of two, by themselves.
    rows = advantages.valid.nonzero()[:, 0]
    parts = {name: getattr(taken, name)[rows] for name in ("latents", "final", "images", "log_probs", "groups")}
    few = replace(taken, share=replace(taken.share, rows=range(4), total=4), **parts)
    alone = replace(advantages, step_advantage=advantages.step_advantage[rows], valid=advantages.valid[rows])
    expected = update(model, few, alone, still)
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-6) and found["gradient_norm"] > 0
    for own, parameter in zip(gradient, model.policy.trainable_parameters(), strict=True):
        torch.testing.assert_close(own, parameter.grad, rtol=1e-5, atol=1e-7)
    # Each step computes the four (with KL once more for the reference), but the first, which a group shares.
    assert max(calls) == 4
