"""The update from clean samples, against a plain loop over samples and noise levels without any batching."""

from __future__ import annotations

import math
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from comfyui_otca.tests.training import share_of
from comfyui_otca.trainer import matching
from comfyui_otca.trainer.advantages import best_of_n, fuse
from comfyui_otca.trainer.credit import sampled_steps
from comfyui_otca.trainer.credit.sampled_steps import drawn, everywhere, inclusion
from comfyui_otca.trainer.credit.steps import grpo_guard, noise_aware, pcpo, tcd, uniform
from comfyui_otca.trainer.grpo import update as grpo_update
from comfyui_otca.trainer.matching import OLD_DECAYS, drawn_levels, fresh_noise, update
from comfyui_otca.trainer.policy.policy import LossScale
from comfyui_otca.trainer.sde import sensitivities
from comfyui_otca.trainer.types import OLD, THETA, MatchingSettings, NextRollout, Scores, UpdateSettings
from comfyui_otca.trainer.updates.matching_losses import matching_loss

pytestmark = pytest.mark.anywhere

STILL = MatchingSettings(
    learning_rate=0.0, max_grad_norm=1e9, sampled_steps=0, kl_coefficient=0.0, old_policy="on_policy"
)
KINDS = ("nft", "awm", "dgpo", "dpo")
GROUPED = ("dgpo", "dpo")


@pytest.fixture
def ode(small_settings):
    return small_settings(kind="ode", shared_noise=False, ode_solver="adams_bashforth")


@pytest.fixture
def moved(model, perturb):
    """A policy that is not the reference, and an old policy that is neither."""
    perturb(model, seed=1)
    model.policy.keep_old()
    return perturb(model, seed=2, scale=0.02)


@pytest.fixture
def judged():
    """judged(trajectories): advantages from made-up rewards, with a sample that failed and one whose advantage is 0."""

    def judge(taken, credit=None, holes=True):
        generator = torch.Generator().manual_seed(4)
        values = torch.randn((len(taken.groups), 1), generator=generator)
        if holes:
            values[4] = math.nan
        scores = Scores(values, ("a",), (1.0,), taken.groups, torch.empty(len(values), 0), (), ())
        credit = credit or tcd(taken.latents, taken.final, taken.trained, w_min=0.2)
        advantages = fuse(scores, credit, "weighted_advantages")
        if holes:
            z = advantages.fused.advantage.clone()
            z[1] = 0.0
            advantages = replace(advantages, fused=replace(advantages.fused, advantage=z))
        return advantages

    return judge


@pytest.fixture
def batch(sample, judged, ode):
    """batch(model, settings, holes=False): trajectories, without noise unless the settings say otherwise, and advantages."""

    def take(model, settings=None, holes=True):
        taken = sample(model, settings or ode)
        return taken, judged(taken, holes=holes)

    return take


def gradient(model, taken, advantages, settings, on_step=lambda: None):
    """The update's gradient as one float64 vector, and its figures; the policy is left as it was."""
    policy = model.policy
    before = policy.version, policy.old_steps, policy.old and [weights.clone() for weights in policy.old]
    metrics = update(model, taken, advantages, settings, on_step)
    policy.version, policy.old_steps, policy.old = before
    return flat(model), metrics


def flat(model):
    grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.policy.trainable_parameters()]
    return torch.cat([grad.flatten() for grad in grads]).double()


def assert_same(one, other, tolerance=1e-5):
    assert other.norm() > 0
    assert (one - other).norm() <= tolerance * other.norm(), ((one - other).norm() / other.norm()).item()


def plain_gradient(model, taken, advantages, settings, guidance=None):
    """A loop over the levels, and over samples or, where they are compared, groups: the loss of one of them at a time."""
    away = settings.reference_guidance and replace(taken.settings, guidance=settings.reference_guidance)
    policy, z = model.policy, advantages.fused.advantage
    for parameter in policy.trainable_parameters():
        parameter.grad = None
    positions = range(len(taken.trained))
    rows = [row for row in range(len(z)) if advantages.valid[row]]
    units = [[row] for row in rows]
    if settings.loss == "dgpo":
        units = [[row for row in rows if taken.groups[row] == group] for group in range(len(taken.prompts))]
    if settings.loss == "dpo":
        members = [[row for row in rows if taken.groups[row] == group] for group in range(len(taken.prompts))]
        units = [[max(member, key=z.__getitem__), min(member, key=z.__getitem__)] for member in members]
    if settings.loss == "dgpo" and not settings.lowest_level:
        positions = positions[: math.ceil(0.6 * len(taken.trained))]
    low, high = settings.lowest_level, settings.highest_level
    positions = [position for position in positions if low <= taken.sigmas[taken.trained[position]] <= high]
    taking = sum(map(len, units))
    for position in positions:
        sigma = taken.sigmas[taken.trained[position]]
        for unit in units:
            noise = fresh_noise(settings.loss, taken, policy.version, [position] * len(unit), unit)
            clean = taken.final[unit]
            x = (1 - sigma) * clean + sigma * noise

            def velocity(asked=guidance or taken.settings, x=x, sigma=sigma, unit=unit):
                condition = model.condition([taken.texts[row] for row in unit], asked)
                return model.velocity(x.to(model.device), sigma, condition, asked.guidance).cpu()

            with torch.no_grad():
                with policy.reference():
                    reference = velocity(away or guidance or taken.settings)
                with policy.sampling():
                    old = velocity() if policy.old is not None else None
            own = velocity()
            loss, _ = matching_loss(
                settings.loss,
                own,
                clean,
                noise,
                torch.full((len(unit),), sigma),
                z[unit],
                old=old,
                reference=reference,
                groups=torch.zeros(len(unit), dtype=torch.int64),
                beta=settings.beta or {"dgpo": 10.0, "dpo": 100.0}.get(settings.loss, 1.0),
                weight=advantages.credit.weights[unit, position],
            )
            if settings.kl_coefficient:
                apart = own - reference
                if settings.kl == "norm":
                    apart = [
                        max(0, a.norm() - b.norm()) / a.numel() ** 0.5 for a, b in zip(own, reference, strict=True)
                    ]
                    apart = torch.stack([torch.as_tensor(length) for length in apart])
                loss = loss + settings.kl_coefficient * apart.square().mean()
            (loss * len(unit) / (taking * len(positions))).backward()
    result = flat(model)
    for parameter in policy.trainable_parameters():
        parameter.grad = None
    return result


# --- gradients ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", KINDS)
@pytest.mark.parametrize("kind", ["ode", "dance_sde"])
def test_the_gradient_is_the_plain_loops(moved, small_settings, ode, loss, kind, batch):
    taken, advantages = batch(moved, None if kind == "ode" else small_settings())
    assert taken.sampled_with == OLD and len(taken.trained) == (4 if kind == "ode" else 3)
    settings = replace(STILL, loss=loss, kl_coefficient=0.1, beta=0.5 if loss == "nft" else 0)
    expected = plain_gradient(moved, taken, advantages, settings)
    before = [parameter.detach().clone() for parameter in moved.policy.trainable_parameters()]
    own, metrics = gradient(moved, taken, advantages, settings)
    assert_same(own, expected)
    assert all(map(torch.equal, moved.policy.trainable_parameters(), before))
    assert metrics["gradient_norm"] == pytest.approx(expected.norm().item(), rel=1e-4)
    assert metrics["kl/penalty"] > 0 and metrics["matching/residual"] > 0


@pytest.mark.parametrize("loss", KINDS)
def test_the_pull_may_be_on_the_norm_alone(moved, loss, batch):
    taken, advantages = batch(moved)
    settings = replace(STILL, loss=loss, kl_coefficient=5.0, kl="norm")
    own, metrics = gradient(moved, taken, advantages, settings)
    assert metrics["kl/penalty"] > 0
    assert_same(own, plain_gradient(moved, taken, advantages, settings))


@pytest.mark.parametrize("loss", KINDS)
def test_a_range_of_levels(moved, loss, batch):
    """Of four levels all but the first; for dgpo the range takes the place of its own one."""
    taken, advantages = batch(moved)
    low, high = taken.sigmas[3] - 1e-6, taken.sigmas[1] + 1e-6
    settings = replace(STILL, loss=loss, lowest_level=low, highest_level=high)
    own, metrics = gradient(moved, taken, advantages, settings)
    assert_same(own, plain_gradient(moved, taken, advantages, settings))
    drawn = drawn_levels(taken, advantages, replace(settings, sampled_steps=1), 0)
    assert not drawn[:, 0].any() and drawn[:, 1:].any() and ((drawn != 0).sum(1) <= 1).all()
    with pytest.raises(
        ValueError, match=r"lowest_level = 0.99, highest_level = 0.995: the levels are 1.00, .*Fix: a range"
    ):
        update(moved, taken, advantages, replace(settings, lowest_level=0.99, highest_level=0.995))


@pytest.mark.parametrize("loss", KINDS)
def test_the_batch_size_changes_no_gradient(moved, loss, batch):
    taken, advantages = batch(moved)
    settings = replace(STILL, loss=loss, sampled_steps=2, kl_coefficient=0.1)
    first, figures = gradient(moved, taken, advantages, settings)
    sizes = []
    moved.transformer.register_forward_pre_hook(
        lambda module, args, kwargs: sizes.append(len(kwargs["hidden_states"])) if torch.is_grad_enabled() else None,
        with_kwargs=True,
    )
    for batch_size in (1, 4, 7, 100):
        sizes.clear()
        own, metrics = gradient(moved, taken, advantages, replace(settings, batch_size=batch_size))
        assert_same(own, first)
        for name in ("loss", "kl/penalty", "matching/residual"):
            assert metrics[name] == pytest.approx(figures[name], rel=1e-4, abs=1e-6), name
        # a group of dgpo has up to three valid members, a pair two
        assert max(sizes) <= max(batch_size, {"dgpo": 3, "dpo": 2}.get(loss, 1)), sizes


def test_credit_by_objective_is_the_advantage_itself(moved, sample, ode, judged):
    """With it the loss at σ_j has Ã_j and the weight 1: so a uniform credit and an Ã that is z are the same update."""
    taken = sample(moved, ode)
    plain = judged(taken, uniform(taken.latents, taken.final, taken.trained), holes=False)
    z = plain.fused.advantage[:, None].expand(-1, 4)
    learned = replace(
        plain,
        step_advantage=z,
        credit=replace(plain.credit, weights=plain.credit.weights * 7, by_objective=torch.ones(6, 4, 1)),
    )
    assert_same(gradient(moved, taken, learned, STILL)[0], gradient(moved, taken, plain, STILL)[0])
    opposed = replace(learned, step_advantage=z * torch.tensor([1.0, -1.0, 1.0, -1.0]))
    halves = [
        gradient(moved, taken, replace(learned, step_advantage=z * torch.tensor(signs)), STILL)[0]
        for signs in ([1.0, 0.0, 1.0, 0.0], [0.0, -1.0, 0.0, -1.0], [0.0, 0.0, 0.0, 0.0])
    ]
    # nft is linear in its advantage where that is not clipped, and has a gradient at 0 too: old is not θ.
    assert halves[2].norm() > 1e-3 * halves[0].norm()
    assert_same(gradient(moved, taken, opposed, STILL)[0], halves[0] + halves[1] - halves[2])
    gains = replace(plain, step_advantage=opposed.step_advantage, method="stepwise_gain")
    assert_same(gradient(moved, taken, gains, STILL)[0], gradient(moved, taken, opposed, STILL)[0])


def test_a_place_weighs_the_residual(moved, batch):
    taken, advantages = batch(moved)
    ones = torch.ones(6, *taken.final.shape[2:])
    even = replace(advantages, credit=replace(advantages.credit, spatial=ones))
    assert_same(gradient(moved, taken, even, STILL)[0], gradient(moved, taken, advantages, STILL)[0])
    left = ones.clone()
    left[..., : left.shape[-1] // 2] = 0.0
    lit = replace(advantages, credit=replace(advantages.credit, spatial=2 * left))
    apart = gradient(moved, taken, lit, STILL)[0] - gradient(moved, taken, advantages, STILL)[0]
    plain, _ = gradient(moved, taken, advantages, STILL)
    assert apart.norm() > 0.01 * plain.norm()
    distilled, _ = gradient(moved, taken, advantages, replace(STILL, guidance=False))
    assert torch.equal(distilled, plain), "a distilled model's guidance is the sampler's"
    moved.policy.loss_scale = LossScale(2.0**10)
    assert_same(gradient(moved, taken, advantages, STILL)[0], plain)


def test_samples_that_were_not_kept_train_nothing(moved, batch):
    taken, advantages = batch(moved, holes=False)
    best = best_of_n(advantages, 1, 1)
    assert best.valid.sum() == 4
    assert_same(gradient(moved, taken, best, STILL)[0], plain_gradient(moved, taken, best, STILL))


# --- which levels ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("loss", "count"), [("nft", 1), ("nft", 2), ("awm", 3), ("dgpo", 2), ("dpo", 2)])
def test_the_expected_gradient_is_the_full_one(moved, monkeypatch, loss, count, batch):
    """With an old policy that is not θ and an advantage of 0: there nft has a gradient too."""
    taken, advantages = batch(moved)
    settings = replace(STILL, loss=loss, kl_coefficient=0.1)
    full, metrics = gradient(moved, taken, advantages, settings)
    pulls = everywhere(advantages.credit.weights.abs(), advantages.valid)
    if loss in GROUPED:
        pulls = torch.tensor([[1.0, 1.0, 1.0, loss == "dpo"]]).expand(2, -1)
    # Which levels are drawn changes only where a running sum passes a whole number, so that the integral over the start is a sum.
    running = inclusion(pulls, count).cumsum(1)
    edges = torch.cat([(1 - running % 1).flatten(), torch.tensor([0.0, 1.0], dtype=torch.float64)]).clamp(0, 1).unique()
    edges = edges[torch.cat([edges.new_tensor([1.0]), edges.diff()]) > 1e-9]
    expected, value, difference = torch.zeros_like(full), 0.0, 0.0
    for low, high in zip(edges, edges[1:], strict=False):
        start = (low + high) / 2
        monkeypatch.setattr(
            sampled_steps, "draw", lambda pull, k, _, s=start: drawn(inclusion(pull, k), s.expand(len(pull), 1))
        )
        own, figures = gradient(moved, taken, advantages, replace(settings, sampled_steps=count))
        expected += (high - low).item() * own
        value += (high - low).item() * figures["loss"]
        difference = max(difference, ((own - full).norm() / full.norm()).item())
    assert len(edges) > 2 and difference > 0.1, "no draw differs from all levels"
    assert_same(expected, full)
    assert value == pytest.approx(metrics["loss"], rel=1e-4, abs=1e-6)


def test_every_level_of_a_valid_sample_has_a_chance(moved, sample, ode, judged):
    taken = sample(moved, ode)
    silent = tcd(taken.latents, taken.final, taken.trained)
    weights = silent.weights.clone()
    weights[:, 1] = 0.0
    advantages = judged(taken, replace(silent, weights=weights))
    settings = replace(STILL, sampled_steps=1)
    counts = torch.stack([drawn_levels(taken, advantages, settings, version) for version in range(400)])
    assert (counts[:, advantages.valid] != 0).any(0).all() and not counts[:, 4].any()
    assert ((counts != 0).sum(2)[:, advantages.valid] == 1).all(), "one level of each sample"
    mean = counts[:, advantages.valid].mean(0)
    assert (mean - 1).abs().max() < 0.5 and (mean - 1).abs().mean() < 0.15


def test_compared_samples_share_level_and_noise(moved, batch):
    taken, advantages = batch(moved, holes=False)
    rows = torch.arange(6)
    shared = drawn_levels(taken, advantages, replace(STILL, loss="dgpo", sampled_steps=2), 0)
    assert (shared == shared[0]).all() and (shared[0] != 0).sum() == 2 and shared[0, 3] == 0, "of the noisiest three"
    for position in (0, 2):
        noise = fresh_noise("dgpo", taken, 0, [position] * 6, rows.tolist())
        assert (noise[:3] == noise[0]).all() and (noise[3:] == noise[3]).all() and not torch.equal(noise[0], noise[3])
        assert torch.equal(noise, fresh_noise("dgpo", taken, 0, [1] * 6, rows.tolist())), "one noise for all levels"
    z = advantages.fused.advantage
    pairs = drawn_levels(taken, advantages, replace(STILL, loss="dpo", sampled_steps=1), 0)
    for group in (range(0, 3), range(3, 6)):
        best, worst = max(group, key=z.__getitem__), min(group, key=z.__getitem__)
        assert torch.equal(pairs[best], pairs[worst]) and (pairs[best] != 0).sum() == 1
        assert not pairs[[row for row in group if row not in (best, worst)]].any()
    own = fresh_noise("nft", taken, 0, [0, 0, 1], [0, 1, 0])
    assert len({tuple(part.flatten().tolist()) for part in own}) == 3
    assert not torch.equal(own, fresh_noise("nft", taken, 1, [0, 0, 1], [0, 1, 0])), "another version, other noise"


@pytest.mark.parametrize("loss", KINDS)
def test_it_is_the_same_however_many_processes_hold_the_samples(moved, loss, batch):
    taken, advantages = batch(moved)
    settings = replace(STILL, loss=loss, sampled_steps=2, kl_coefficient=0.1)
    whole, metrics = gradient(moved, taken, advantages, settings)
    summed, value = torch.zeros_like(whole), 0.0
    for rows in (range(0, 3), range(3, 6)) if loss in GROUPED else (range(0, 2), range(2, 6)):
        part, figures = gradient(moved, share_of(taken, rows), advantages, settings)
        assert figures["update/sampled_share"] == metrics["update/sampled_share"]
        summed, value = summed + part, value + figures["loss"]
    assert_same(summed, whole)
    assert value == pytest.approx(metrics["loss"], rel=1e-4, abs=1e-6)


# --- the old policy -------------------------------------------------------------------------------------------------


def test_the_schedules():
    gradual, late, on_policy = (OLD_DECAYS[name] for name in ("gradual", "late", "on_policy"))
    assert [gradual(n) for n in (0, 1, 499, 500, 10**6)] == pytest.approx([0, 0.001, 0.499, 0.5, 0.5])
    assert [late(n) for n in (0, 74, 75, 76, 175, 10**6)] == pytest.approx([0, 0, 0, 0.0075, 0.75, 0.999])
    assert [on_policy(n) for n in (0, 10**6)] == [0, 0]


def test_the_old_policy_follows(model, sample, ode, judged):
    settings = replace(STILL, learning_rate=1e-3, old_policy="gradual")
    model.policy.old_steps = 249
    before = [parameter.detach().clone() for parameter in model.policy.trainable_parameters()]
    taken = sample(model, ode)
    assert taken.sampled_with == THETA
    metrics = update(model, taken, judged(taken), settings)
    assert metrics["old_policy/decay"] == pytest.approx(0.25) and model.policy.old_steps == 250
    assert "matching/moved" not in metrics or metrics["matching/moved"] == 0
    for old, then, now in zip(model.policy.old, before, model.policy.trainable_parameters(), strict=True):
        torch.testing.assert_close(old, 0.25 * then + 0.75 * now, rtol=1e-6, atol=1e-9)
    assert not all(map(torch.equal, model.policy.old, model.policy.trainable_parameters()))
    old = [weights.clone() for weights in model.policy.old]
    taken = sample(model, ode)
    assert taken.sampled_with == OLD
    metrics = update(model, taken, judged(taken), settings)
    assert metrics["matching/moved"] > 0 and metrics["old_policy/decay"] == pytest.approx(0.251)
    for weights, then, now in zip(model.policy.old, old, model.policy.trainable_parameters(), strict=True):
        torch.testing.assert_close(weights, 0.251 * then + 0.749 * now, rtol=1e-6, atol=1e-9)


def test_late_is_on_policy_for_75_updates(model, batch):
    taken, advantages = batch(model)
    settings = replace(STILL, learning_rate=1e-3, old_policy="late", sampled_steps=1)
    for steps, differs in ((74, False), (75, True)):
        model.policy.old_steps = steps
        update(model, taken, advantages, settings)
        assert (model.policy.old is not None) == differs and model.policy.old_steps == steps + 1


def test_an_update_that_is_dropped_leaves_the_policy_that_samples(moved, sample, ode, judged, monkeypatch):
    settings = replace(STILL, learning_rate=1e-3, old_policy="gradual", epochs=2)
    taken = sample(moved, ode)
    moved.policy.forget_old()

    def broken(*arguments, **options):
        loss, statistics = matching_loss(*arguments, **options)
        return loss * math.nan, statistics

    monkeypatch.setattr(matching, "matching_loss", broken)
    metrics = update(moved, taken, judged(taken), settings)
    assert metrics["policy/skipped_updates"] == 2 and moved.policy.samples_with == THETA
    assert (moved.policy.version, moved.policy.old_steps, moved.policy.nonfinite_in_a_row) == (0, 0, 1)


def test_an_update_without_a_gradient_leaves_the_schedule_where_it_is(model, batch):
    """Though the old policy is the trained one still: `late` would begin its 75 updates again."""
    taken, advantages = batch(model)
    nobody = replace(advantages, valid=torch.zeros_like(advantages.valid))
    for steps in (60, 75):
        model.policy.old_steps = steps
        metrics = update(model, taken, nobody, replace(STILL, old_policy="late"))
        assert metrics["policy/skipped_updates"] == 1 and model.policy.samples_with == THETA
        assert model.policy.old_steps == steps


def test_two_epochs_compare_with_the_policy_that_sampled(model, load_model, batch):
    """Though on-policy: the second epoch's old policy is the one before the first."""
    taken, advantages = batch(model)
    settings = replace(STILL, learning_rate=1e-2, max_grad_norm=1.0)
    update(model, taken, advantages, replace(settings, epochs=2))
    assert model.policy.samples_with == THETA and model.policy.old_steps == 2 and model.policy.version == 1
    other = load_model()
    other.policy.keep_old()
    update(other, taken, advantages, settings)  # θ moves, and old, which is not θ, follows it at once …
    other.policy.load_old_state({n: p.detach() for n, p in load_model().policy.trainable_named().items()}, 0)
    other.policy.version = 0  # … so it is put back, and the noise is the same again
    update(other, taken, advantages, settings)
    for own, wanted in zip(model.policy.trainable_parameters(), other.policy.trainable_parameters(), strict=True):
        torch.testing.assert_close(own, wanted, rtol=1e-4, atol=1e-6)


def test_the_first_update_on_policy_is_a_plain_loops(model, load_model, batch):
    taken, advantages = batch(model)
    settings = replace(STILL, learning_rate=1e-3, max_grad_norm=1.0)
    other = load_model()
    expected = plain_gradient(other, taken, advantages, settings)
    parameters, taken_up = other.policy.trainable_parameters(), 0
    for parameter in parameters:
        parameter.grad = expected[taken_up : taken_up + parameter.numel()].view_as(parameter).float()
        taken_up += parameter.numel()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    torch.optim.AdamW(parameters, lr=1e-3, weight_decay=1e-4).step()
    update(model, taken, advantages, settings)
    # AdamW's first step has nearly the size of the rate everywhere, so that an entry whose gradient is rounding may turn.
    clear = expected.abs() > 1e-5 * expected.abs().max()
    own, wanted = (
        torch.cat([p.detach().flatten() for p in each]) for each in (model.policy.trainable_parameters(), parameters)
    )
    assert clear.double().mean() > 0.4
    torch.testing.assert_close(own[clear], wanted[clear], rtol=0, atol=2e-5)


def test_a_stop_leaves_nothing_behind(model, sample, ode, judged):
    taken = sample(model, ode)
    settings = replace(STILL, learning_rate=1e-3, old_policy="gradual")
    before = [parameter.detach().clone() for parameter in model.policy.trainable_parameters()]
    with pytest.raises(KeyboardInterrupt):
        update(model, taken, judged(taken), settings, Mock(side_effect=[None, None, KeyboardInterrupt]))
    assert all(map(torch.equal, model.policy.trainable_parameters(), before))
    assert model.policy.samples_with == THETA and model.policy.version == 0


# --- other models ---------------------------------------------------------------------------------------------------


def test_all_weights_can_be_trained(load_model, sample, ode, judged):
    model = load_model(training="full")
    settings = replace(STILL, learning_rate=1e-4, old_policy="gradual")
    model.policy.old_steps = 399
    taken = sample(model, ode)
    expected = plain_gradient(model, taken, judged(taken), settings)
    before = {name: value.clone() for name, value in model.policy.trained_state().items()}
    update(model, taken, judged(taken), settings)
    assert_same(flat(model), expected, 1e-4)
    after = {name: value.clone() for name, value in model.policy.trained_state().items()}
    old = model.policy.old_state()
    assert old.keys() == after.keys() and any(not torch.equal(after[name], value) for name, value in before.items())
    for name, value in old.items():
        torch.testing.assert_close(value, 0.4 * before[name] + 0.6 * after[name], rtol=1e-6, atol=1e-8)
    sample(model, ode)
    assert all(torch.equal(value, after[name]) for name, value in model.policy.trained_state().items())


@pytest.mark.parametrize("guidance, away", [(True, 0.0), (False, 0.0), (False, 3.0)])
def test_guidance_on_or_off(load_model, perturb, small_settings, guidance, away, tiny_folder, batch):
    """SD3 has classifier-free guidance: without it the conditional velocity is trained, at half the cost.

    With a KL term to the untrained model as it is guided, guidance is trained away.
    """
    model = perturb(load_model(tiny_folder("sd3")))
    settings = small_settings(kind="ode", shared_noise=False, width=32, height=32, guidance=4.5)
    taken, advantages = batch(model, settings)
    chosen = replace(STILL, guidance=guidance, kl_coefficient=float(away > 0), reference_guidance=away)
    expected = plain_gradient(model, taken, advantages, chosen, None if guidance else replace(settings, guidance=1.0))
    model.forwards.forget()
    own, _ = gradient(model, taken, advantages, chosen)
    assert_same(own, expected)
    # five valid samples at four levels, for the KL term by a guided reference too; for kl/reference two prompts' samples, by both
    # policies, guided as sampled
    assert model.forwards.take() == {
        "forwards/all": 20.0 * (1 + guidance + 2 * (away > 0)) + 8,
        "forwards/with_gradient": 20.0 * (1 + guidance),
    }


def test_two_experts_are_called_apart(load_model, perturb, sample, small_settings, judged, tiny_folder):
    model = perturb(load_model(tiny_folder("wan22")))
    settings = small_settings(
        kind="ode", shared_noise=False, width=32, height=16, frames=5, guidance=4.5, guidance_2=3.0
    )
    taken = sample(model, settings)
    levels, advantages = [], judged(taken)
    model.velocity = lambda x, sigma, *rest, call=model.velocity: (
        levels.append((sigma, rest[1])) or call(x, sigma, *rest)
    )
    own, _ = gradient(model, taken, advantages, replace(STILL, batch_size=100))
    del model.velocity
    assert len(levels) == 2 + 2, "one pass of each expert, and two to measure the distance from the reference"
    (high, first), (low, second) = levels[:2]
    assert high.min() >= 0.875 > low.max() and (first, second) == (4.5, 3.0)
    assert_same(own, gradient(model, taken, advantages, replace(STILL, batch_size=3))[0])
    parts = {
        name.startswith("transformer_2."): p.grad.norm()
        for name, p in model.policy.trainable_named().items()
        if p.grad is not None
    }
    assert parts[True] > 0 and parts[False] > 0


# --- what is refused ------------------------------------------------------------------------------------------------


def test_what_means_nothing_here_is_refused(model, sample, small_settings, ode, judged, batch):
    taken = sample(model, small_settings())
    where = taken.latents, taken.final, taken.trained
    for credit in (
        pcpo(*where, sensitivities("dance_sde", taken.sigmas, 0.5), taken.sigmas),
        grpo_guard(*where, taken.stds, taken.sigmas),
    ):
        with pytest.raises(ValueError, match="the credit (pcpo|grpo_guard) scales importance ratios.*Fix: "):
            update(model, taken, judged(taken, credit), STILL)
    with pytest.raises(ValueError, match="window_start and window_length.*Fix: .*MixGRPO Window"):
        update(model, *batch(model, small_settings(window=(0, 2))), STILL)
    kept = sample(model, small_settings(), keep_graph=True)
    with pytest.raises(ValueError, match="keep_graph = on.*Fix: "):
        update(model, kept, judged(kept), STILL)
    kept.kept.asked_for = False
    update(model, kept, judged(kept), STILL)
    assert not kept.kept and not model.memo[NextRollout].uses_graphs
    one_of_each = best_of_n(best_of_n(judged(taken), 4, 4), 1, 0)
    with pytest.raises(ValueError, match="1 sample of each group is left.*Fix: worst = 1 or more on Best of N"):
        update(model, taken, one_of_each, replace(STILL, loss="dpo"))
    assert update(model, taken, one_of_each, replace(STILL, loss="nft"))["loss"] != 0
    for setting in ({"loss": "grpo"}, {"old_policy": "never"}):
        with pytest.raises(ValueError, match="loss must be one of .* and old_policy one of "):
            update(model, taken, judged(taken), replace(STILL, **setting))
    other = sample(model, ode)
    with pytest.raises(ValueError, match="the same SDE Sampler"):
        update(model, other, judged(taken), STILL)


def test_ratios_need_a_sampler_with_noise(model, sample, ode, judged):
    taken = sample(model, ode)
    with pytest.raises(ValueError, match="kind = ode adds no noise.*GRPO Step.*Fix: .*Matching Step"):
        grpo_update(model, taken, judged(taken), UpdateSettings(learning_rate=1e-3))
    where = taken.latents, taken.final, taken.trained
    for method in (
        lambda: noise_aware(*where, taken.stds),
        lambda: pcpo(*where, sensitivities("ode", taken.sigmas, 0.5), taken.sigmas),
        lambda: grpo_guard(*where, taken.stds, taken.sigmas),
    ):
        with pytest.raises(ValueError, match="weighs steps by their noise, and the sampler ode adds none. Fix: "):
            method()


@pytest.mark.parametrize("loss", KINDS)
def test_a_part_after_the_first_asks_the_policy_that_sampled(model, load_model, perturb, batch, loss):
    """Two groups, two optimizer steps: as two updates, of which the second has the policy before the first as the old one."""
    perturb(model)
    taken, advantages = batch(model)
    settings = replace(STILL, loss=loss, learning_rate=1e-3)
    metrics = update(model, taken, advantages, replace(settings, parts=2))
    assert model.policy.version == 1 and model.policy.old_steps == 2 and model.policy.old is None
    other = perturb(load_model())
    for group in range(2):
        model.policy.version, other.policy.version = 0, 0  # the same noise
        member = advantages.valid & (taken.groups == group)
        metrics_alone = update(other, replace(taken, model=other), replace(advantages, valid=member), settings)
        if not group:
            other.policy.old = [
                weights.detach().clone() for weights in perturb(load_model()).policy.trainable_parameters()
            ]
    for own, expected in zip(model.policy.trainable_parameters(), other.policy.trainable_parameters(), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-7)
    assert (metrics["matching/moved"] > 0) == (metrics_alone["matching/moved"] > 0), "old and new are two, but of dpo"
