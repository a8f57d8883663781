"""The exact gradient against finite differences, and steps' policy gradients against the update's own gradient."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from comfyui_otca.trainer import rollout
from comfyui_otca.trainer.credit import steps
from comfyui_otca.trainer.credit.exact import count, exact_gradient, factors, step_gradients, tells_samples_apart
from comfyui_otca.trainer.grpo import UpdateSettings, update
from comfyui_otca.trainer.rewards import RewardError, reward_class
from comfyui_otca.trainer.sde import sensitivities, transition
from comfyui_otca.trainer.types import Advantages, Fused, Prompts, Scores

pytestmark = pytest.mark.anywhere
PROMPTS = Prompts(("a red circle", "a blue square", "a green circle"), (0, 1, 5))
STILL = UpdateSettings(learning_rate=0.0, max_grad_norm=1e9)


@pytest.fixture
def toy(load_toy, perturb):
    return perturb(load_toy())


@pytest.fixture
def reward():
    return reward_class("sharpness")()


@pytest.mark.parametrize("change", [{}, {"window": (1, 2)}, {"kind": "cps", "eta": 0.8}])
def test_it_is_the_slope_of_the_mean_reward(toy, reward, small_settings, change):
    settings = replace(small_settings(), **change)
    gradient, scores = exact_gradient(toy, PROMPTS, settings, reward, 3)
    assert scores.shape == (3,) and gradient.shape == (count(toy),)
    direction, ends = gradient / gradient.norm(), []
    for sign in (1, -2):
        _move(toy, sign * 5e-5 * direction)
        ends.append(exact_gradient(toy, PROMPTS, settings, reward, 3)[1].double().mean())
    assert (ends[0] - ends[1]).item() / 1e-4 == pytest.approx(gradient.norm().item(), rel=1e-2)  # pictures are clamped


def _move(model, by):
    for parameter, part in zip(
        model.policy.trainable_parameters(),
        by.split([p.numel() for p in model.policy.trainable_parameters()]),
        strict=True,
    ):
        parameter.data += part.view_as(parameter).to(parameter)


def test_without_room_for_graphs_and_in_parts_it_is_the_same(toy, reward, small_settings, monkeypatch):
    kept, scores = exact_gradient(toy, PROMPTS, small_settings(), reward, 3)
    monkeypatch.setattr("comfyui_otca.trainer.credit.exact.kept_calls", lambda *_: 0)
    again, same = exact_gradient(toy, PROMPTS, replace(small_settings(), batch_size=2), reward, 3)
    torch.testing.assert_close(again, kept, rtol=1e-5, atol=1e-5 * kept.abs().max().item())
    torch.testing.assert_close(same, scores)


def test_a_reward_without_a_gradient_says_so(toy, small_settings):
    with pytest.raises(RewardError, match="'compressibility' has no gradient"):
        exact_gradient(toy, PROMPTS, small_settings(), reward_class("jpeg_compressibility")(), 0)


# -- policy gradients ----------------------------------------------------------------------------------------------------


def updated(model, taken, advantage, credit):
    """The gradient that GRPO Step leaves, flat; it minimises."""
    scores = Scores(
        torch.zeros(len(advantage), 1), ("r",), (1.0,), taken.groups, torch.zeros(len(advantage), 0), (), ()
    )
    each = credit.weights * advantage[:, None]
    fused = Fused(advantage, torch.ones(len(advantage), 1))
    valid = torch.ones(len(advantage), dtype=torch.bool)
    update(model, taken, Advantages(each, advantage[:, None], fused, valid, scores, credit, {}), STILL)
    return -torch.cat([p.grad.flatten() for p in model.policy.trainable_parameters()]).cpu()


def credits(taken):
    points, settings = (taken.latents, taken.final, taken.trained), taken.settings
    spatial = torch.rand(len(taken.groups), *taken.latents.shape[-2:], generator=torch.Generator().manual_seed(0))
    tcd = steps.tcd(*points, w_min=0.2)
    return {
        "uniform": steps.uniform(*points),
        "tcd": tcd,
        "pcpo": steps.pcpo(*points, sensitivities(settings.kind, taken.sigmas, settings.eta), taken.sigmas),
        "guard": steps.grpo_guard(*points, taken.stds, taken.sigmas),
        "spatial": steps.with_spatial(tcd, spatial),
    }


@pytest.mark.parametrize("norm", ["full", "squared_error"])
def test_they_add_up_to_what_an_update_follows(toy, reward, sample, small_settings, norm):
    settings = replace(small_settings(), log_prob_norm=norm)
    taken = sample(toy, settings)
    advantage = torch.randn(len(taken.groups), generator=torch.Generator().manual_seed(1))
    made = {name: factors(credit, taken) for name, credit in credits(taken).items()}
    assert {name for name, factor in made.items() if tells_samples_apart(factor)} == {"tcd", "spatial"}
    found = step_gradients(toy, taken, reward, advantage, torch.ones(6), made)
    in_parts = step_gradients(
        toy, replace(taken, settings=replace(settings, batch_size=4)), reward, advantage, torch.ones(6), {}
    )
    for name in ("policy", "exact"):
        expected = getattr(found, name)
        close = {"rtol": 1e-4, "atol": 1e-5 * expected.abs().max().item()}
        torch.testing.assert_close(getattr(in_parts, name), expected, **close)
    for name, credit in credits(taken).items():
        expected = updated(toy, taken, advantage, credit) * len(taken.trained)
        close = {"rtol": 1e-3, "atol": 1e-4 * expected.abs().max().item()}
        torch.testing.assert_close(
            found.credits[name], expected, **close, msg=lambda text, name=name: f"{name}: {text}"
        )
        if not tells_samples_apart(made[name]):
            torch.testing.assert_close(made[name][0] @ found.policy, expected, **close)


def test_what_steps_are_expected_to_be_is_part_of_the_exact_gradient(toy, reward, sample, small_settings):
    """With the last step, which has no policy gradient, they would add up to ∇ of the pictures' mean reward."""
    taken = sample(toy, replace(small_settings(), shared_noise=False))
    found = step_gradients(toy, taken, reward, torch.zeros(6), torch.ones(6), {})
    parts = found.exact.sum(0) * taken.final[0].numel()
    direction, ends = parts / parts.norm(), []
    _mean_reward.at = [p.detach().clone() for p in toy.policy.trainable_parameters()]
    for sign in (1, -2):
        _move(toy, sign * 5e-5 * direction)
        ends.append(_mean_reward(toy, taken, reward))
    assert (ends[0] - ends[1]) / 1e-4 == pytest.approx(parts.norm().item(), rel=1e-2)
    assert not found.policy.any(), "without advantages"


def _mean_reward(model, taken, reward):
    """Of the same noise, with the velocity of the last step as it was: what the trained steps alone do to the reward."""
    x, settings = taken.latents[:, 0], taken.settings
    condition = model.condition(taken.prompts, settings).rows(taken.groups)
    noise = rollout.sampled_noise(taken)
    for j, (sigma, following) in enumerate(zip(taken.sigmas[:-2], taken.sigmas[1:-1], strict=True)):
        with torch.no_grad():
            velocity = model.velocity(x, sigma, condition, 1.0)
            step = transition(
                settings.kind, velocity, x, sigma, following, eta=settings.eta, sigma_after_first=taken.sigmas[1]
            )
        x = step.sample(noise[:, j])
    before = [p.detach().clone() for p in model.policy.trainable_parameters()]
    with torch.no_grad():
        for parameter, value in zip(model.policy.trainable_parameters(), _mean_reward.at, strict=True):
            parameter.copy_(value)
        final = x - taken.sigmas[-2] * model.velocity(x, taken.sigmas[-2], condition, 1.0)
        for parameter, value in zip(model.policy.trainable_parameters(), before, strict=True):
            parameter.copy_(value)
    return reward.score(model.decode(final), taken.texts).double().mean().item()


def test_of_a_credit_by_objective_the_named_one_counts(toy, sample):
    taken = sample(toy)
    credit = steps.uniform(taken.latents, taken.final, taken.trained)
    weights = torch.rand(*credit.weights.shape, 2)
    credit = replace(credit, by_objective=weights, objectives=("one", "other"))
    assert torch.equal(factors(credit, taken, "other"), weights[:, :, 1])
    assert torch.equal(factors(credit, taken, "else"), credit.weights)


def test_noise_is_no_rollouts(toy, reward, small_settings, monkeypatch):
    """What G is made of is independent of every policy gradient, also with the same seed and positions."""
    seen = []
    stream = rollout.stream
    monkeypatch.setattr(
        "comfyui_otca.trainer.credit.exact.stream",
        lambda *n, branch: seen.append((n, branch)) or stream(*n, branch=branch),
    )
    exact_gradient(toy, PROMPTS, small_settings(), reward, 7)
    assert seen == [((7, position), (3,)) for position in (0, 1, 5)]
