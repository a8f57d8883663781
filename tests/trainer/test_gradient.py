"""Each mode against finite differences of what it claims to follow, the parts against the whole, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from comfyui_otca.trainer import gradient, rollout
from comfyui_otca.trainer.gradient import RewardSpread
from comfyui_otca.trainer.rewards import RewardError, reward_class
from comfyui_otca.trainer.rewards.base import GroupReward, Reward, score_stack
from comfyui_otca.trainer.sde import adams_bashforth, transition
from comfyui_otca.trainer.types import FORMS_OF_KL, GradientSettings, NextRollout, Prompts

pytestmark = pytest.mark.anywhere
STILL = GradientSettings(learning_rate=0.0, max_grad_norm=1e9, kl_coefficient=0.0)


class Smooth(Reward):
    """Σ of a fixed pattern times the picture, and a square of it: its gradient is known everywhere."""

    def differentiable(self, images, prompts):
        pattern = torch.linspace(-1, 1, images[0].numel(), device=images.device).view(images.shape[1:])
        at = (images.double() * pattern).flatten(1).mean(1)
        return (10 * at + 40 * at.square()).float()

    score = differentiable


class Spread(GroupReward):
    """Mean squared distance of the pictures' means to those of the others."""

    def differentiable_groups(self, samples, prompts, groups):
        means, groups = samples.flatten(1).double().mean(1) * 30, torch.tensor(groups, device=samples.device)
        same = (groups[:, None] == groups) & ~torch.eye(len(groups), dtype=torch.bool, device=samples.device)
        return (((means[:, None] - means) ** 2 * same).sum(1) / same.sum(1)).float()

    def score_groups(self, samples, prompts, groups):
        return self.differentiable_groups(samples, prompts, groups).tolist()


@pytest.fixture
def toy(load_toy, perturb):
    return perturb(load_toy())


def taken(model, settings, rewards, prompts=("a red circle", "a blue square"), group_size=3, **keeps):
    chosen = Prompts(prompts, tuple(range(len(prompts))))
    made = rollout.sample(model, chosen, settings, group_size=group_size, seed=5, **keeps)
    return made, score_stack(rewards, made.images, made.prompts, made.groups)


def gradient_of(model, made, scores, settings, advantages=None):
    """∇J, flat, as an update leaves it; the weights stay. It minimises -J."""
    gradient.update(model, made, scores, settings, advantages)
    model.policy.version = made.policy_version
    parameters = model.policy.trainable_parameters()
    return -torch.cat([torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in parameters]).cpu()


def backward(model, made, scores, settings=STILL, guide=None):
    return gradient._Backward(model, made, gradient.watched(scores), len(made.groups), {}, settings, guide=guide)


def slope_along(model, direction, of, step=5e-5):
    """Central difference of a function of the weights along a direction."""
    parameters = model.policy.trainable_parameters()
    begin, ends = [p.detach().clone() for p in parameters], []
    for sign in (1, -1):
        parts = direction.split([p.numel() for p in parameters])
        for parameter, start, part in zip(parameters, begin, parts, strict=True):
            parameter.data = start + sign * step * part.view_as(start).to(start)
        ends.append(of())
    for parameter, start in zip(parameters, begin, strict=True):
        parameter.data = start
    return (ends[0] - ends[1]) / (2 * step)


@torch.no_grad()
def chain(model, made, first, scale):
    """J of the last steps, walked again with the same noise: a plain loop of the sampler's own steps."""
    settings, condition = made.settings, model.condition(made.prompts, made.settings).rows(made.groups)
    noise = rollout.sampled_noise(made) if any(made.stds) else None
    x, before = made.latents[:, first].to(model.device), None
    kinds = rollout.step_kinds(settings)
    if first and settings.ode_solver == "adams_bashforth":
        point, sigma = made.latents[:, first - 1].to(model.device), made.sigmas[first - 1]
        before = chain.velocity_before(point, sigma), sigma
    for j in range(first, len(made.sigmas) - 1):
        sigma, following = made.sigmas[j], made.sigmas[j + 1]
        v = model.velocity(x, sigma, condition, model.guidance_at(sigma, settings))
        clean = x - sigma * v
        if kinds[j] == "ode" and settings.ode_solver == "adams_bashforth":
            x, before = adams_bashforth(v, x, sigma, following, before), (v, sigma)
            continue
        step = transition(kinds[j], v, x, sigma, following, eta=settings.eta, sigma_after_first=made.sigmas[1])
        x = step.mean if step.std < 1e-6 else step.sample(noise[:, made.trained.index(j)].to(x))
    final = clean if made.stds[-1] > 1e-6 else x
    return rewarded(model, made, final) / scale


@torch.no_grad()
def rewarded(model, made, final):
    with model.decoder(made.texts) as decode:
        return Smooth("smooth").differentiable(decode(final.to(model.device)), made.texts).double().mean().item()


CHAINS = {
    "dance_sde": {},
    "cps": {"kind": "cps", "eta": 0.8},
    "window": {"window": (1, 2)},
    "late window": {"window": (2, 2)},  # with steps before it at which a group is at one point
    "ode": {"kind": "ode", "shared_noise": False},
    "second order": {"kind": "ode", "ode_solver": "adams_bashforth", "shared_noise": False},
}


@pytest.mark.parametrize("steps", [1, 2, 0])
@pytest.mark.parametrize("name", CHAINS)
def test_last_steps_are_the_slope_of_the_chain(toy, small_settings, name, steps):
    made, scores = taken(toy, replace(small_settings(), **CHAINS[name]), [Smooth("smooth")])
    found = gradient_of(toy, made, scores, replace(STILL, mode="last_steps", steps=steps))
    first = len(made.sigmas) - 1 - steps if steps else 0
    if first:  # the velocity of the step before is no part of the last steps
        condition, here = toy.condition(made.prompts, made.settings).rows(made.groups), made.settings
        point, sigma = made.latents[:, first - 1].to(toy.device), made.sigmas[first - 1]
        with torch.no_grad():
            constant = toy.velocity(point, sigma, condition, toy.guidance_at(sigma, here))
        chain.velocity_before = lambda *_: constant
    expected = slope_along(
        toy, found / found.norm(), lambda: chain(toy, made, first, toy.memo[RewardSpread]["smooth"][1])
    )
    assert expected == pytest.approx(found.norm().item(), rel=5e-3)


def test_the_last_steps_of_all_are_the_whole_chain(toy, small_settings):
    """K as large as the sampler has steps, and 0, which means all."""
    made, scores = taken(toy, small_settings(), [Smooth("smooth")])
    whole = gradient_of(toy, made, scores, replace(STILL, mode="last_steps", steps=0))
    counted = gradient_of(toy, made, scores, replace(STILL, mode="last_steps", steps=made.settings.steps))
    assert torch.equal(whole, counted) and whole.any()


def test_one_call_is_the_slope_of_the_reward_of_predictions(toy, small_settings):
    """At every level: the mean reward of x̂0 = x - σ·v over all points that were visited."""
    made, scores = taken(toy, small_settings(), [Smooth("smooth")])
    levels = len(made.sigmas) - 1
    found = gradient_of(toy, made, scores, replace(STILL, mode="one_call", steps=levels))
    condition = toy.condition(made.prompts, made.settings).rows(made.groups)

    @torch.no_grad()
    def mean():
        total = 0.0
        for j, sigma in enumerate(made.sigmas[:-1]):
            x = made.latents[:, j].to(toy.device)
            total += rewarded(toy, made, x - sigma * toy.velocity(x, sigma, condition, 1.0))
        return total / levels / toy.memo[RewardSpread]["smooth"][1]

    assert slope_along(toy, found / found.norm(), mean) == pytest.approx(found.norm().item(), rel=5e-3)


def test_low_variance_is_the_slope_of_one_call_from_the_finished_sample(toy, small_settings, monkeypatch):
    """With noise that is 0 the point is (1-σ)·x̂0, for any number of noises."""
    made, scores = taken(toy, replace(small_settings(), kind="ode", shared_noise=False), [Smooth("smooth")])
    monkeypatch.setattr(gradient.torch, "randn", lambda shape, generator: torch.zeros(shape))
    found = gradient_of(toy, made, scores, replace(STILL, mode="low_variance", steps=2))
    condition, sigma = toy.condition(made.prompts, made.settings).rows(made.groups), made.sigmas[-2]
    x = (1 - sigma) * made.final.to(toy.device)

    @torch.no_grad()
    def mean():
        return (
            rewarded(toy, made, x - sigma * toy.velocity(x, sigma, condition, 1.0))
            / toy.memo[RewardSpread]["smooth"][1]
        )

    assert slope_along(toy, found / found.norm(), mean) == pytest.approx(found.norm().item(), rel=5e-3)


@pytest.mark.parametrize("nested", [1.0, 0.25])
def test_a_leap_is_the_gradient_of_its_two_steps(toy, small_settings, monkeypatch, nested):
    """By autograd through the two steps as they are written down, where x_j and x̂0 keep the values that they had."""
    made, scores = taken(toy, small_settings(), [Smooth("smooth")])
    pairs = torch.tensor([[0, 2], [1, 2], [0, 1], [0, 2], [1, 2], [0, 1]])
    monkeypatch.setattr(gradient._Backward, "draw", lambda self, count, of, again=0: pairs)
    found = gradient_of(toy, made, scores, replace(STILL, mode="leap", steps=1, nested=nested))
    condition, sigmas = toy.condition(made.prompts, made.settings).rows(made.groups), torch.tensor(made.sigmas)
    rows, parameters = torch.arange(6), toy.policy.trainable_parameters()
    from_, to = (sigmas[column].view(-1, 1, 1, 1).to(toy.device) for column in pairs.T)
    x_k, x_j = (made.latents[rows, column].to(toy.device) for column in pairs.T)
    leapt = x_k - (from_ - to) * toy.velocity(x_k, from_.flatten().cpu(), condition, 1.0)
    here = x_j + leapt - leapt.detach()
    inside = nested * here + (1 - nested) * here.detach()
    end = here - to * toy.velocity(inside, to.flatten().cpu(), condition, 1.0)
    final = made.final.to(toy.device) + end - end.detach()
    with toy.decoder(made.texts) as decode:
        value = Smooth("smooth").differentiable(decode(final), made.texts).mean() / toy.memo[RewardSpread]["smooth"][1]
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(value, parameters)]).cpu()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6 * expected.abs().max().item())


@pytest.mark.parametrize("mode", gradient.MODES)
def test_in_parts_it_is_the_same(toy, small_settings, mode):
    made, scores = taken(toy, small_settings(), [Smooth("smooth"), reward_class("sharpness")()])
    settings = replace(STILL, mode=mode, steps=2, kl_coefficient=0.5)
    whole = gradient_of(toy, made, scores, settings)
    toy.memo.keep(RewardSpread())
    parts = gradient_of(toy, made, scores, replace(settings, batch_size=2))
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5 * whole.abs().max().item())


@pytest.mark.parametrize("compared", [False, True])
@pytest.mark.parametrize("sampler", ["dance_sde", "late window", "ode", "second order"])
@pytest.mark.parametrize(
    ("mode", "steps"), [("leap", 1), ("leap", 2), ("one_call", 2), ("last_steps", 2), ("last_steps", 0)]
)
def test_calls_that_the_rollout_kept_are_not_made_again(toy, small_settings, mode, steps, sampler, compared):
    """The rollout draws the same levels as the update after it, whatever the batches; one score has failed."""
    rewards = [Smooth("smooth"), *([Spread("spread")] if compared else [])]
    walk = replace(small_settings(), **CHAINS[sampler])
    for size, most in ((0, None), (4, None), (4, 1)):
        settings = replace(STILL, mode=mode, steps=steps, kl_coefficient=0.5, batch_size=size)
        made, scores = taken(toy, walk, rewards)
        scores.values[4] = torch.nan
        toy.memo.keep(RewardSpread())
        expected = gradient_of(toy, made, scores, settings)
        kept, _ = taken(toy, replace(walk, batch_size=size and 5), rewards, keep_graph=True, most_kept=most)
        torch.testing.assert_close(kept.latents, made.latents, rtol=0, atol=1e-5)
        toy.memo.keep(RewardSpread())
        with toy.forwards.apart() as calls:
            own = gradient_of(toy, kept, scores, settings)
        assert bool(calls[1]) == (most == 1) and not kept.kept
        torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())


def test_what_depends_on_the_samples_keeps_nothing(toy, small_settings, weighed):
    """Other noise than the rollout's, levels drawn by credit; nor what was kept for another update, or of another policy."""
    made, scores = taken(toy, small_settings(), [Smooth("smooth")])
    settings = replace(STILL, mode="leap")
    for other in (replace(settings, mode="low_variance"), replace(settings, nested=1.0)):
        expected = gradient_of(toy, made, scores, other)
        assert toy.memo[NextRollout].uses_graphs == (other.mode == "leap")
    for version, wish in ((1, toy.memo[NextRollout]), (0, NextRollout())):
        toy.memo.keep(wish)
        kept, _ = taken(toy, small_settings(), [Smooth("smooth")], keep_graph=True)
        gradient_of(toy, replace(kept, policy_version=kept.policy_version - version), scores, settings)
        assert not kept.kept
        toy.policy.version = made.policy_version
    assert expected.any()
    gradient_of(toy, made, scores, replace(settings, also="credit"), weighed(made, scores, [1.0, 3.0, 2.0]))
    assert not toy.memo[NextRollout].uses_graphs


@pytest.mark.parametrize("form", FORMS_OF_KL)
def test_the_pull_to_the_original_is_the_mean_distance_from_its_velocity(toy, small_settings, form):
    made, scores = taken(toy, small_settings(), [Smooth("smooth")])
    settings = replace(STILL, mode="one_call", steps=len(made.sigmas) - 1, kl=form)
    without = gradient_of(toy, made, scores, settings)
    toy.memo.keep(RewardSpread())
    pulled = gradient_of(toy, made, scores, replace(settings, kl_coefficient=2.0)) - without
    condition = toy.condition(made.prompts, made.settings).rows(made.groups)

    @torch.no_grad()
    def distance():
        total = 0.0
        for j, sigma in enumerate(made.sigmas[:-1]):
            x = made.latents[:, j].to(toy.device)
            v = toy.velocity(x, sigma, condition, 1.0)
            with toy.policy.reference():
                v_ref = toy.velocity(x, sigma, condition, 1.0)
            apart = (v - v_ref).flatten(1).norm(dim=1)
            if form == "norm":
                apart = (v.flatten(1).norm(dim=1) - v_ref.flatten(1).norm(dim=1)).clamp(min=0)
            total += apart.double().square().mean().item() / v[0].numel()
        return -2.0 * total / (len(made.sigmas) - 1)

    assert slope_along(toy, pulled / pulled.norm(), distance) == pytest.approx(pulled.norm().item(), rel=5e-3)
    seen = set()
    toy.guidance_at = lambda _, settings: seen.add((settings.guidance, torch.is_grad_enabled())) or settings.guidance
    gradient_of(toy, made, scores, replace(settings, kl_coefficient=2.0, reference_guidance=4.5))
    assert seen == {(3.5, True), (4.5, False), (3.5, False)}, "the last one measures the distance"


def test_off_policy_it_follows_the_trajectory_that_the_policy_has_now(toy, small_settings, perturb):
    """Points of an older policy are walked again, with the same noise: as if this one had sampled."""
    made, scores = taken(toy, replace(small_settings(), shared_noise=False), [Smooth("smooth")])
    perturb(toy, seed=3, scale=0.05)
    again, _ = taken(toy, made.settings, [Smooth("smooth")])
    settings = replace(STILL, mode="last_steps", steps=0)
    fresh = gradient_of(toy, replace(again, policy_version=toy.policy.version), scores, settings)
    toy.memo.keep(RewardSpread())
    toy.policy.version += 1
    stale = gradient_of(toy, made, scores, settings)
    torch.testing.assert_close(stale, fresh, rtol=1e-3, atol=1e-5 * fresh.abs().max().item())


def test_rewards_count_by_their_coefficient_in_spreads_of_their_scores(toy, small_settings):
    """Two rewards of which one is the other times 100: half the coefficient, half the part, whatever the scale."""

    class Larger(Smooth):
        def differentiable(self, images, prompts):
            return 100 * super().differentiable(images, prompts)

        score = differentiable

    made, scores = taken(toy, small_settings(), [Smooth("a"), Larger("b", coefficient=0.5)])
    both = gradient_of(toy, made, scores, replace(STILL, mode="last_steps", steps=1))
    toy.memo.keep(RewardSpread())
    alone = gradient_of(toy, *taken(toy, small_settings(), [Smooth("a")]), replace(STILL, mode="last_steps", steps=1))
    torch.testing.assert_close(both, 1.5 * alone, rtol=1e-4, atol=1e-5 * alone.abs().max().item())


def test_the_spread_is_the_mean_over_all_updates(toy, small_settings):
    made, scores = taken(toy, small_settings(), [Smooth("a")])
    second = replace(scores, values=3 * scores.values)
    for each in (scores, second):
        gradient_of(toy, made, each, STILL)
    assert toy.memo[RewardSpread]["a"] == (2, pytest.approx(2 * scores.values.std().item(), rel=1e-5))


# -- which samples and rewards take part -------------------------------------------------------------------------------


def test_a_reward_without_a_gradient_is_watched(toy, small_settings):
    jpeg = reward_class("jpeg_compressibility")()
    made, scores = taken(toy, small_settings(), [jpeg, Smooth("a")])
    seen = gradient.watched(scores)
    assert (seen.names, seen.held_out_names, seen.coefficients) == (("a",), ("compressibility",), (1.0,))
    assert torch.equal(seen.values[:, 0], scores.values[:, 1]) and torch.equal(seen.held_out[:, 0], scores.values[:, 0])
    assert [reward.held_out for reward in seen.rewards] == [False, True] and not jpeg.held_out
    with_it = gradient_of(toy, made, scores, STILL)
    toy.memo.keep(RewardSpread())
    assert torch.equal(gradient_of(toy, made, seen, STILL), with_it)


def test_without_any_gradient_it_says_which_rewards_are_connected(toy, small_settings):
    made, scores = taken(toy, small_settings(), [reward_class("jpeg_compressibility")()])
    says = r"no trained reward has a gradient \(compressibility\).* Fix: connect one that has: CLIP-T"
    with pytest.raises(ValueError, match=says):
        gradient.update(toy, made, scores, STILL)


def test_a_gradient_of_other_scores_is_refused_with_both(toy, small_settings):
    class Other(Smooth):
        def differentiable(self, images, prompts):
            return super().differentiable(images, prompts) + 0.5

        def score(self, images, prompts):
            return Smooth.differentiable(self, images, prompts)

    made, scores = taken(toy, small_settings(), [Other("two-faced")])
    given = scores.values[0, 0].item()
    with pytest.raises(RewardError, match=rf"'two-faced' gives sample 0 the score {given:.6g}, and {given + 0.5:.6g}"):
        gradient.update(toy, made, scores, STILL)
    assert toy.policy.version == 0 and not toy.memo[RewardSpread]


def test_a_reward_of_groups_is_followed_by_whole_groups(toy, small_settings):
    """Whatever the batch size: in parts of one sample there would be nothing to compare."""
    made, scores = taken(toy, replace(small_settings(), shared_noise=False), [Spread("spread")])
    whole = gradient_of(toy, made, scores, replace(STILL, mode="last_steps", steps=2))
    toy.memo.keep(RewardSpread())
    parts = gradient_of(toy, made, scores, replace(STILL, mode="last_steps", steps=2, batch_size=1))
    assert whole.any()
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5 * whole.abs().max().item())
    levels = backward(toy, made, scores).draw(2, [0, 1, 2])
    assert all(torch.equal(levels[0], row) for row in levels[:3]), "a group is at one level"


def test_a_failed_score_takes_its_sample_out(toy, small_settings):
    made, scores = taken(toy, replace(small_settings(), shared_noise=False), [Smooth("a")])
    toy.memo.keep(RewardSpread({"a": (10**9, 1.0)}))
    failed = scores.values.clone()
    failed[2:] = torch.nan
    found = gradient_of(toy, made, replace(scores, values=failed), replace(STILL, mode="last_steps", steps=2))
    toy.memo.keep(RewardSpread({"a": (10**9, 1.0)}))
    two = replace(made, groups=made.groups[:2], latents=made.latents[:2], final=made.final[:2], images=made.images[:2])
    two = replace(two, prompts=made.prompts[:1], share=type(made.share)(range(2), 2))
    alone = replace(scores, values=scores.values[:2], groups=scores.groups[:2], held_out=scores.held_out[:2])
    expected = gradient_of(toy, two, alone, replace(STILL, mode="last_steps", steps=2))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize("mode", gradient.MODES)
def test_an_iteration_without_any_score_changes_nothing(toy, small_settings, mode):
    made, scores = taken(toy, small_settings(), [Smooth("a")])
    none = replace(scores, values=torch.full_like(scores.values, torch.nan))
    before = [p.detach().clone() for p in toy.policy.trainable_parameters()]
    metrics, found = gradient.update(toy, made, none, replace(STILL, learning_rate=1.0, mode=mode))
    assert metrics["policy/skipped_updates"] == 1 and not found.valid.any()
    assert all(torch.equal(p, b) for p, b in zip(toy.policy.trainable_parameters(), before, strict=True))


def test_a_stop_leaves_no_trace(toy, small_settings):
    made, scores = taken(toy, small_settings(), [Smooth("a")])
    toy.memo.keep(RewardSpread({"a": (3, 0.25)}))

    class Stopped(Exception):
        pass

    def stop():
        raise Stopped

    with pytest.raises(Stopped):
        gradient.update(toy, made, scores, STILL, on_step=stop)
    assert toy.memo[RewardSpread] == {"a": (3, 0.25)} and toy.policy.version == 0


def test_a_gradient_that_is_not_finite_is_dropped_and_named_and_three_end_the_run(toy, small_settings, caplog):
    class Broken(Smooth):
        """√0 has no slope."""

        def differentiable(self, images, prompts):
            return super().differentiable(images, prompts) + (0 * images).flatten(1).mean(1).sqrt()

        score = differentiable

    made, scores = taken(toy, small_settings(), [Broken("cracked")])
    before = [p.detach().clone() for p in toy.policy.trainable_parameters()]
    for _ in range(2):
        metrics, _ = gradient.update(toy, made, scores, replace(STILL, learning_rate=1.0))
        assert metrics["policy/skipped_updates"] == 1
    assert "gradient of reward 'cracked' (of 6 samples) is not finite" in caplog.text
    with pytest.raises(gradient.NonFiniteUpdate, match="3 updates in a row.*reward 'cracked'"):
        gradient.update(toy, made, scores, replace(STILL, learning_rate=1.0))
    assert all(torch.equal(p, b) for p, b in zip(toy.policy.trainable_parameters(), before, strict=True))


# -- beside another update ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("also", ["grpo", "awm"])
def test_the_other_gradient_is_as_long_as_its_share_says(toy, small_settings, uniform_advantages, also):
    made, scores = taken(toy, small_settings(), [Smooth("a")])
    advantages = uniform_advantages(made, scores)
    alone = gradient_of(toy, made, scores, STILL)
    toy.memo.keep(RewardSpread())
    both = gradient_of(toy, made, scores, replace(STILL, also=also, ratio=0.5), advantages)
    added = both - alone
    assert added.norm().item() == pytest.approx(0.5 * alone.norm().item(), rel=1e-4)
    other = gradient.other_grid(toy, made, advantages, replace(STILL, also=also))
    toy.policy.forget_gradients()
    other[0](lambda: None)
    plain = -torch.cat([p.grad.flatten() for p in toy.policy.trainable_parameters()]).cpu()
    torch.testing.assert_close(added / added.norm(), plain / plain.norm(), rtol=1e-3, atol=1e-4)


@pytest.fixture
def uniform_advantages():
    from comfyui_otca.trainer.advantages import fuse
    from comfyui_otca.trainer.credit import steps

    def of(made, scores):
        credit = steps.uniform(made.latents, made.final, made.trained)
        return fuse(scores, credit, "weighted_advantages")

    return of


# -- when and what, by advantages ----------------------------------------------------------------------------------------

CREDIT = replace(STILL, also="credit")


@pytest.fixture
def weighed():
    """weighed(made, scores, each, method): advantages of a credit of the weights `each` [T'] for each sample."""
    from comfyui_otca.trainer.advantages import fuse
    from comfyui_otca.trainer.credit import steps

    def of(made, scores, each=None, method="weighted_advantages", **options):
        credit = steps.uniform(made.latents, made.final, made.trained)
        if each is not None:
            credit = replace(credit, weights=torch.tensor(each).expand_as(credit.weights).float())
        return fuse(scores, credit, method, **options)

    return of


@pytest.mark.parametrize("mode", gradient.MODES)
def test_even_credit_and_a_weighted_sum_are_the_gradient_without_them(toy, small_settings, weighed, mode):
    made, scores = taken(toy, small_settings(), [Smooth("a"), reward_class("sharpness")(coefficient=0.5)])
    settings = replace(CREDIT, mode=mode, steps=2, kl_coefficient=0.5)
    without = gradient_of(toy, made, scores, settings)
    toy.memo.keep(RewardSpread())
    assert torch.equal(gradient_of(toy, made, scores, settings, weighed(made, scores)), without) and without.any()


def test_one_call_at_all_levels_weighs_each_by_its_credit(toy, small_settings, weighed):
    """Where all are drawn, each stands for its weight: Σ_j w_j·R(x̂0_j)/T, of a step without credit with the weight 1."""
    made, scores = taken(toy, small_settings(), [Smooth("smooth")])
    weights = [0.5, 2.0, 0.5][: len(made.trained)]
    settings = replace(CREDIT, mode="one_call", steps=len(made.sigmas) - 1)
    found = gradient_of(toy, made, scores, settings, weighed(made, scores, weights))
    condition = toy.condition(made.prompts, made.settings).rows(made.groups)
    each = dict(zip(made.trained, weights, strict=True))
    mean = sum(each.get(j, 1.0) for j in range(4)) / 4

    @torch.no_grad()
    def objective():
        total = 0.0
        for j, sigma in enumerate(made.sigmas[:-1]):
            x = made.latents[:, j].to(toy.device)
            there = rewarded(toy, made, x - sigma * toy.velocity(x, sigma, condition, 1.0))
            total += each.get(j, 1.0) / mean * there
        return total / 4 / toy.memo[RewardSpread]["smooth"][1]

    assert len(made.trained) < 4, "a step has no credit"
    assert slope_along(toy, found / found.norm(), objective) == pytest.approx(found.norm().item(), rel=5e-3)


def drawn_often(toy, made, scores, advantages, mode, count=400):
    """How often each step was drawn, over so many versions of the policy: [B, T] as shares."""
    often = torch.zeros(len(made.groups), len(made.sigmas) - 1)
    for version in range(count):
        toy.policy.version = version
        back = backward(toy, made, scores, replace(CREDIT, mode=mode), advantages)
        drawn = back.draw(2 if mode == "leap" else 1, [0, 1, 2, 3])
        often.scatter_add_(1, drawn, torch.ones(len(often), len(often.T)))
        assert (drawn.diff(dim=1) > 0).all()
        assert back.stands_for.amax().item() == pytest.approx(1, abs=1e-5), "each stands for itself"
    toy.policy.version = 0
    return often / count


def test_levels_and_leaps_are_drawn_by_credit(toy, small_settings, weighed):
    made, scores = taken(toy, replace(small_settings(), shared_noise=False), [Smooth("a")])
    credit = weighed(made, scores, [0.0, 2.5, 0.5])  # of four steps; the last one has none, and so 1
    one = drawn_often(toy, made, scores, credit, "one_call")
    # 6 samples x 400 draws: a share of 0.6 has a deviation of 0.01
    torch.testing.assert_close(one.mean(0), torch.tensor([0.0, 2.5, 0.5, 1.0]) / 4, rtol=0, atol=0.04)
    pairs = drawn_often(toy, made, scores, credit, "leap")
    # 2.5·0.5, 2.5·1 and 0.5·1 of 4.25
    torch.testing.assert_close(pairs.mean(0), torch.tensor([0.0, 3.75, 1.75, 3.0]) / 4.25, rtol=0, atol=0.04)


def opposed(name, sign):
    class Opposed(Smooth):
        def differentiable(self, images, prompts):
            return sign * super().differentiable(images, prompts) + images.flatten(1).mean(1)

        score = differentiable

    return Opposed(name, coefficient=0.5 if sign < 0 else 1.0)


@pytest.mark.parametrize("weights", ["in the sum", "in the solver"])
def test_min_norm_is_the_closed_form_of_each_samples_gradients(toy, small_settings, weighed, weights):
    """In the picture: γ = ⟨g₂ - g₁, g₂⟩/‖g₁ - g₂‖², by autograd, and then the slope of Σ_k u_k·c_k·R_k/s_k."""
    rewards = [opposed("a", 1), opposed("b", -1)]
    made, scores = taken(toy, replace(small_settings(), shared_noise=False), rewards)
    advantages = weighed(made, scores, method="min_norm", weights=weights)
    settings = replace(CREDIT, mode="last_steps", steps=1)
    found = gradient_of(toy, made, scores, settings, advantages)
    spread = [toy.memo[RewardSpread][name][1] for name in "ab"]
    with toy.decoder(made.texts) as decode:
        pictures = decode(made.final.to(toy.device)).detach().requires_grad_()
    before = [1.0, 0.5] if weights == "in the solver" else [1.0, 1.0]
    g = [
        u * torch.autograd.grad(reward.differentiable(pictures, made.texts).sum(), pictures)[0].flatten(1).double() / s
        for reward, s, u in zip(rewards, spread, before, strict=True)
    ]
    share = (((g[1] - g[0]) * g[1]).sum(1) / (g[0] - g[1]).square().sum(1)).clamp(0, 1)  # γ [B]
    assert share.min() < share.max()
    parts = [share, 0.5 * (1 - share)]

    @torch.no_grad()
    def objective():
        condition, sigma = toy.condition(made.prompts, made.settings).rows(made.groups), made.sigmas[-2]
        x = made.latents[:, -2].to(toy.device)
        end = x - sigma * toy.velocity(x, sigma, condition, 1.0)
        with toy.decoder(made.texts) as decode:
            images = decode(end)
        return sum(
            (part * reward.differentiable(images, made.texts).double() / s).mean().item()
            for part, reward, s in zip(parts, rewards, spread, strict=True)
        )

    assert slope_along(toy, found / found.norm(), objective) == pytest.approx(found.norm().item(), rel=5e-3)


def test_in_parts_a_fusion_is_the_same_and_says_its_coefficients(toy, small_settings, weighed):
    made, scores = taken(toy, replace(small_settings(), shared_noise=False), [opposed("a", 1), opposed("b", -1)])
    advantages = weighed(made, scores, [0.5, 2.0, 0.5], "moca")
    settings = replace(CREDIT, mode="leap", steps=2)
    whole = gradient_of(toy, made, scores, settings, advantages)
    toy.memo.keep(RewardSpread())
    metrics, found = gradient.update(toy, made, scores, replace(settings, batch_size=2), advantages)
    parts = -torch.cat([p.grad.flatten() for p in toy.policy.trainable_parameters()]).cpu()
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5 * whole.abs().max().item())
    coefficients = [metrics[f"moca/coefficient/{name}"] for name in "ab"]
    assert sum(coefficients) == pytest.approx(1) and min(coefficients) > 0
    assert found.per_objective.shape == (6, 2)


def test_a_place_in_the_picture_and_a_selection_are_followed(toy, small_settings, weighed):
    made, scores = taken(toy, replace(small_settings(), shared_noise=False), [Smooth("a")])
    advantages, settings = weighed(made, scores), replace(CREDIT, mode="last_steps", steps=1)
    plain = gradient_of(toy, made, scores, settings)
    where = torch.full((6, *made.final.shape[-2:]), 3.0)
    everywhere = replace(advantages, credit=replace(advantages.credit, spatial=where))
    toy.memo.keep(RewardSpread())
    torch.testing.assert_close(gradient_of(toy, made, scores, settings, everywhere), 3 * plain)
    toy.memo.keep(RewardSpread())
    kept = replace(advantages, valid=torch.tensor([True, True, True, False, False, False]))
    some = gradient_of(toy, made, scores, settings, kept)
    toy.memo.keep(RewardSpread())
    others = gradient_of(toy, made, scores, settings, replace(kept, valid=~kept.valid))
    torch.testing.assert_close(some + others, plain, rtol=1e-4, atol=1e-6 * plain.abs().max().item())


@pytest.mark.parametrize(
    ("mode", "change", "says"),
    [
        ("last_steps", {}, "mode = last_steps takes the same steps of every sample, and the credit .* weighs steps"),
        ("leap", {"measures": 0.9}, "goes by the gradients of GRPO Step, and Reward Gradient Step measures none"),
        ("leap", {"ratio_scale": (1.0, 1.0, 1.0)}, "scales importance ratios, and Reward Gradient Step has none"),
    ],
)
def test_credit_that_says_nothing_here_is_refused(toy, small_settings, weighed, mode, change, says):
    made, scores = taken(toy, small_settings(), [Smooth("a")])
    advantages = weighed(made, scores, [0.5, 2.0, 0.5])
    advantages = replace(advantages, credit=replace(advantages.credit, **change))
    with pytest.raises(ValueError, match=says):
        gradient.update(toy, made, scores, replace(CREDIT, mode=mode), advantages)


# -- decoding in tiles -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", [8, 16, 24])
def test_tiles_of_a_local_decoder_make_the_same_gradient(tile):
    """A decoder that sees two positions around each: HALO is enough, wherever the squares begin."""
    weights = torch.randn(3, 4, 5, 5, generator=torch.Generator().manual_seed(0))

    def decode(latents):
        mixed = torch.nn.functional.conv2d(latents, weights, padding=2).tanh()
        return torch.nn.functional.interpolate(mixed, scale_factor=4).movedim(1, -1)

    source = torch.Generator().manual_seed(1)
    clean = torch.randn(2, 4, 12, 10, generator=source).requires_grad_()
    pictures = decode(clean)
    toward = torch.randn(pictures.shape, generator=source)
    expected = torch.autograd.grad(pictures, clean, toward)[0]
    for seed in range(3):
        found = gradient.through_tiles(decode, clean.detach(), toward, tile, torch.Generator().manual_seed(seed))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_tiles_begin_elsewhere_in_each_update(monkeypatch, toy, small_settings):
    begins = []
    real = gradient.through_tiles
    monkeypatch.setattr(gradient, "through_tiles", lambda *args: begins.append(args[4].initial_seed()) or real(*args))
    made, scores = taken(toy, small_settings(), [Smooth("a")])
    for version in range(3):
        toy.policy.version = version
        gradient.update(toy, replace(made, policy_version=version), scores, replace(STILL, tile=16))
    assert len(set(begins)) == 3


# -- what it says ------------------------------------------------------------------------------------------------------


def test_the_report_says_at_which_steps_the_gradient_arrived(toy, small_settings):
    made, scores = taken(toy, small_settings(), [Smooth("a"), reward_class("sharpness")("b", coefficient=0.0)])
    metrics, found = gradient.update(toy, made, scores, replace(STILL, mode="last_steps", steps=2))
    steps = len(made.sigmas) - 1
    assert found.credit.trained == tuple(range(steps))
    assert not found.credit.weights[:, : steps - 2].any() and (found.credit.weights[:, steps - 2 :] > 0).all()
    torch.testing.assert_close(found.credit.weights.mean(1), torch.ones(6))
    assert not found.per_objective[:, 1].any() and found.per_objective[:, 0].all(), "a coefficient of 0 pulls nowhere"
    assert metrics["gradient/b"] == 0 and metrics["gradient/a"] > 0
    shares = [metrics.get(f"credit/step/{step}", 0.0) for step in range(steps)]
    assert shares[: steps - 2] == [0.0] * (steps - 2) and sum(shares) == pytest.approx(steps)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"mode": "leap", "steps": 0}, "steps = 0: only mode = last_steps takes 0"),
        ({"mode": "last_steps", "steps": 9}, "steps = 9: the sampler has"),
        ({"mode": "one_call", "highest_level": 0.01}, "highest_level = 0.01: the sampler's levels are 1.00"),
    ],
)
def test_settings_without_a_meaning_are_refused(toy, small_settings, change, says):
    made, scores = taken(toy, small_settings(), [Smooth("a")])
    with pytest.raises(ValueError, match=says):
        gradient.update(toy, made, scores, replace(STILL, **change))


def test_another_decoder_is_for_what_comfyui_loaded(toy, small_settings):
    made, scores = taken(toy, small_settings(), [Smooth("a")])
    with pytest.raises(
        ValueError, match="decoder: it stands in for the VAE of Make Trainable.* Fix: disconnect decoder"
    ):
        gradient.update(toy, made, scores, STILL, decoder=object())
    assert toy.memo[RewardSpread] == {}


class Counted(Smooth):
    """It takes two pictures at a time, and notes how many it saw and when it rested."""

    def __init__(self, name, batch_size):
        super().__init__(name)
        self.batch_size, self.seen = batch_size, []

    def differentiable(self, images, prompts):
        self.seen.append((len(images), tuple(prompts)))
        return super().differentiable(images, prompts)

    def rest(self):
        self.seen.append("rest")


def test_a_reward_takes_as_many_pictures_at_a_time_as_it_says(toy, small_settings):
    made, scores = taken(toy, small_settings(), [one := Counted("smooth", 2)], group_size=3)
    one.seen.clear()
    toy.memo.keep(RewardSpread({"smooth": (10**9, 1.0)}))  # one that is known is not compared with its scores again
    parts = gradient_of(toy, made, scores, replace(STILL, mode="last_steps", steps=1))
    texts = ("a red circle",) * 3 + ("a blue square",) * 3
    assert one.seen == [*((2, texts[n : n + 2]) for n in (0, 2, 4)), "rest"], (
        "and leaves, if it may, before the network"
    )
    toy.memo.keep(RewardSpread({"smooth": (10**9, 1.0)}))
    one.batch_size = 0
    whole = gradient_of(toy, made, scores, replace(STILL, mode="last_steps", steps=1))
    assert one.seen[-2:] == [(6, texts), "rest"]
    assert torch.allclose(parts, whole, rtol=1e-5, atol=1e-9) and whole.any()
