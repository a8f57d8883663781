"""One update of the embedded model's adapter, against a plain loop without any sharing or skipping."""

from __future__ import annotations

import math
import weakref
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from diffusers.training_utils import EMAModel

from comfyui_otca.host import stopping
from comfyui_otca.tests import training
from comfyui_otca.trainer import rollout
from comfyui_otca.trainer.advantages import fuse
from comfyui_otca.trainer.credit.steps import tcd
from comfyui_otca.trainer.grpo import NonFiniteUpdate, UpdateSettings, update
from comfyui_otca.trainer.policy.policy import Average, LossScale
from comfyui_otca.trainer.types import KLS, LOSS_NAMES
from comfyui_otca.trainer.updates.losses import LOSSES, USES_DIVERGENCE
from comfyui_otca.trainer.updates.optimizer import part_of, reference_divergence

pytestmark = pytest.mark.anywhere

STILL = UpdateSettings(learning_rate=0.0, max_grad_norm=1e9)


@pytest.fixture
def judged():
    """judged(trajectories): effective advantages from made-up rewards; some samples and steps have none."""

    def judge(taken, holes=True):
        advantages = training.judged(taken, 4, (1.0, 0.5))
        if holes:
            step_advantage = advantages.step_advantage.clone()
            step_advantage[1] = 0.0
            step_advantage[4, 1] = 0.0
            advantages = replace(advantages, step_advantage=step_advantage)
        assert (advantages.step_advantage != 0).sum() > 0.6 * (advantages.step_advantage.numel() - 4)
        return advantages

    return judge


@pytest.fixture
def batch(sample, judged):
    """batch(model, settings, holes=False, …): trajectories and their advantages."""

    def take(model, settings=None, holes=True, **options):
        taken = sample(model, settings, **options)
        return taken, judged(taken, holes)

    return take


@pytest.fixture
def moved(model, perturb):
    """A policy that is not the reference, so that A and B of the adapter both have a gradient."""
    return perturb(model)


def gradients(model):
    return {name: p.grad.clone() for name, p in model.policy.trainable_named().items()}


def assert_same_gradients(one, other, rtol=1e-5):
    assert one.keys() == other.keys()
    scale = max(gradient.abs().max().item() for gradient in other.values())
    assert scale > 0
    for name in one:
        torch.testing.assert_close(
            one[name], other[name], rtol=rtol, atol=rtol * scale, msg=lambda m, n=name: f"{n}: {m}"
        )


def parameters(model):
    return [parameter.detach().clone() for parameter in model.policy.trainable_parameters()]


def unchanged(model, before):
    return all(torch.equal(a, b) for a, b in zip(model.policy.trainable_parameters(), before, strict=True))


def plain_velocity(model, taken, sample, step):
    x, condition = taken.latents[sample : sample + 1, step], model.embeddings([taken.texts[sample]])
    return model.velocity(x.to(model.device), taken.sigmas[step], condition, taken.settings.guidance).cpu()


def plain_steps(model, taken):
    """(sample, position, velocity, dance_sde's log-density at every latent element, its mean) of every trained step."""
    eta = taken.settings.eta
    for sample in range(len(taken.groups)):
        for position, step in enumerate(taken.trained):
            sigma, following = taken.sigmas[step], taken.sigmas[step + 1]
            x, velocity = taken.latents[sample : sample + 1, step], plain_velocity(model, taken, sample, step)
            score = -(x - (1 - sigma) * (x - sigma * velocity)) / sigma**2
            mean = x + (velocity - 0.5 * eta**2 * score) * (following - sigma)
            density = torch.distributions.Normal(mean, eta * math.sqrt(sigma - following))
            yield sample, position, velocity, density.log_prob(taken.latents[sample : sample + 1, step + 1]), mean


def averaged(density, *_):
    return density.mean()


def by_place(density, *_):
    return density.mean(1)[0]


def plain_gradients(model, taken, advantages, old=None, clip=1e-4, kl=0.0, ratio=averaged, objective=None):
    """The gradient by a loop over samples and steps.

    `old` [B, T'] are log-probs of another policy; `ratio(density, mean, sample, position)` is what is compared with the old one;
    `objective` (log ratio, advantage) -> loss, by place where they are.
    """

    def clipped(log_ratio, advantage):
        ratio = log_ratio.exp()
        return -torch.minimum(advantage * ratio, advantage * ratio.clamp(1 - clip, 1 + clip))

    def forget():
        for parameter in model.policy.trainable_parameters():
            parameter.grad = None

    forget()
    total, count = 0.0, taken.log_probs.numel()
    for sample, position, velocity, density, mean in plain_steps(model, taken):
        log_prob = ratio(density, mean, sample, position)
        log_ratio = log_prob - (log_prob.detach() if old is None else old[sample, position])
        advantage = advantages.step_advantage[sample, position]
        if advantages.credit.spatial is not None:
            advantage = advantage * advantages.credit.spatial[sample]
        loss = (objective or clipped)(log_ratio, advantage).mean()
        if kl:
            with torch.no_grad(), model.policy.reference():
                frozen = plain_velocity(model, taken, sample, taken.trained[position])
            loss = loss + kl * (velocity - frozen).square().mean()
        (loss / count).backward()
        total += loss.item() / count
    result = gradients(model)
    forget()
    return result, total


def updated(model, taken, advantages, settings=STILL):
    """The gradient of an update as the first one after these samples, which changes nothing."""
    model.policy.version = taken.policy_version
    update(model, taken, advantages, settings)
    return gradients(model)


# --- gradients ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [None, (1, 2)])
def test_gradient_is_the_plain_loops(moved, small_settings, window, batch):
    taken, advantages = batch(moved, small_settings(window=window))
    expected, loss = plain_gradients(moved, taken, advantages)
    before = parameters(moved)
    metrics = update(moved, taken, advantages, STILL)
    assert_same_gradients(gradients(moved), expected)
    assert unchanged(moved, before)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-6)
    norm = math.sqrt(sum(gradient.double().square().sum().item() for gradient in expected.values()))
    assert metrics["gradient_norm"] == pytest.approx(norm, rel=1e-4)


def test_neither_a_kept_graph_nor_the_batch_size_changes_the_gradient(moved, sample, batch):
    taken, advantages = batch(moved)
    whole = updated(moved, taken, advantages)
    for batch_size in (0, 4):
        kept = sample(moved, keep_graph=True, batch_size=batch_size)
        assert_same_gradients(updated(moved, kept, advantages), whole)
    for most in (1, 2):  # those of the first steps, and the others again
        kept = sample(moved, keep_graph=True, most_kept=most, batch_size=4)
        assert len(kept.kept) == 2 * most
        assert_same_gradients(updated(moved, kept, advantages, replace(STILL, batch_size=4)), whole)
    for batch_size in (1, 4, 7, 100):  # the last two hold samples of several steps
        assert_same_gradients(updated(moved, taken, advantages, replace(STILL, batch_size=batch_size)), whole)


def test_a_kept_graph_is_used_once_then_recomputed(moved, batch):
    calls = []
    moved.transformer.register_forward_pre_hook(lambda *_: calls.append(torch.is_grad_enabled()))
    taken, advantages = batch(moved, keep_graph=True)
    calls.clear()
    first = updated(moved, taken, advantages)
    assert not any(calls), "the kept graph was not used"
    assert_same_gradients(updated(moved, taken, advantages), first)
    assert sum(calls) == 3, "three trained steps are recomputed"


@pytest.mark.parametrize("epochs, staleness", [(2, 0), (1, 1)])
def test_a_graph_that_is_of_no_use_leaves_room_for_its_recomputation(model, caplog, epochs, staleness, batch):
    taken, advantages = batch(model, keep_graph=True)
    graphs, alive = [weakref.ref(call.velocity) for call in taken.kept], []
    assert all(graph() is not None for graph in graphs)
    model.policy.version += staleness
    settings = UpdateSettings(learning_rate=0.0, epochs=epochs)
    update(model, taken, advantages, settings, lambda: alive.append(sum(graph() is not None for graph in graphs)))
    assert len(alive) == 3 and not any(alive)
    assert ("kept for nothing, since epochs = 2" in caplog.text) == (epochs == 2)


def test_kl_adds_its_gradient(moved, sample, batch):
    taken, advantages = batch(moved)
    settings = replace(STILL, kl_coefficient=2.0)
    expected, loss = plain_gradients(moved, taken, advantages, kl=2.0)
    metrics = update(moved, taken, advantages, settings)
    with_kl = gradients(moved)
    assert_same_gradients(with_kl, expected)
    assert metrics["loss"] == pytest.approx(loss, rel=1e-4) and metrics["kl/penalty"] > 0
    moved.policy.version = 0
    assert_same_gradients(updated(moved, sample(moved, keep_graph=True), advantages, settings), expected)
    moved.policy.version = 0
    assert "kl/penalty" not in update(moved, taken, advantages, STILL)
    largest = max((with_kl[name] - gradient).abs().max().item() for name, gradient in gradients(moved).items())
    assert largest > 1e-3 * max(gradient.abs().max().item() for gradient in with_kl.values())


@pytest.mark.parametrize("form", KLS)
def test_forms_of_kl_are_those_of_others(moved, small_settings, batch, form):
    """By the formulas of Flow-GRPO's paper and code, and Flow-Factory's, in float64."""
    taken, advantages = batch(moved, small_settings(kind="flow_sde", eta=0.7, shift=3.0))
    s, rows, expected = taken.sigmas, torch.arange(6), []
    for step in taken.trained:
        with torch.no_grad():
            v = rollout.velocity_at(moved, taken, step, rows).double()
            with moved.policy.reference():
                v_ref = rollout.velocity_at(moved, taken, step, rows).double()
        x, dt, spread = (
            taken.latents[:, step].double(),
            s[step + 1] - s[step],
            0.7 * math.sqrt(s[step] / (1 - s[max(step, 1)])),
        )
        own, untrained = (
            x * (1 + spread**2 / (2 * s[step]) * dt) + of * (1 + spread**2 * (1 - s[step]) / (2 * s[step])) * dt
            for of in (v, v_ref)
        )
        gaussians = [torch.distributions.Normal(mean, spread * math.sqrt(-dt)) for mean in (own, untrained)]
        kl = {
            "velocity": (v - v_ref) ** 2,
            "transition": torch.distributions.kl_divergence(*gaussians),
            "flow_grpo": (own - untrained) ** 2 / (2 * spread**2),
            "mean": (own - untrained) ** 2,
            "norm": (v.flatten(1).norm(dim=1) - v_ref.flatten(1).norm(dim=1)).clamp(min=0) ** 2 / v[0].numel(),
        }
        expected.append(kl[form].mean())
    metrics = update(moved, taken, advantages, replace(STILL, kl_coefficient=2.0, kl=form))
    assert metrics["kl/penalty"] == pytest.approx(
        torch.stack(expected).mean().item(), rel=1e-5 if form == "norm" else 1e-6
    )


def test_a_guided_reference(load_model, perturb, small_settings, batch, tiny_folder):
    """Guidance is trained away: v without it is drawn towards v⁻ + g·(v - v⁻) of the untrained model."""
    model = perturb(load_model(tiny_folder("sd3")))
    taken, advantages = batch(model, small_settings(width=32, height=32, guidance=1.0))
    apart = []
    for step in taken.trained:
        x, sigma, words = (
            taken.latents[:, step],
            taken.sigmas[step],
            [model.embeddings(t) for t in (taken.texts, [""] * 6)],
        )
        with torch.no_grad(), model.policy.reference():
            towards, away = (model.velocity(x, sigma, text, 1.0) for text in words)
        with torch.no_grad():
            apart.append(model.velocity(x, sigma, words[0], 1.0) - (away + 4.5 * (towards - away)))
    settings = replace(STILL, kl_coefficient=1.0, reference_guidance=4.5)
    penalty = torch.stack(apart).square().mean().item()
    assert update(model, taken, advantages, settings)["kl/penalty"] == pytest.approx(penalty, rel=1e-5)


# --- off-policy -----------------------------------------------------------------------------------------------------


def log_probs(model, taken, of=rollout.Gaussian.log_prob):
    """Log-probs [B, T'], or of another method of the transitions."""
    rows = torch.arange(len(taken.groups))
    with torch.no_grad():
        velocities = [rollout.velocity_at(model, taken, step, rows).cpu() for step in taken.trained]
    steps = zip(taken.trained, velocities, strict=True)
    columns = [of(rollout.trained_transition(taken, j, v, rows), taken.latents[:, j + 1]) for j, v in steps]
    return torch.stack(columns, 1)


def test_an_update_raises_the_probability_of_what_was_good(model, batch):
    taken, advantages = batch(model)
    metrics = update(model, taken, advantages, UpdateSettings(learning_rate=1e-3))
    assert metrics["ratio/mean"] == 1.0 and metrics["clip/high"] == metrics["clip/low"] == 0.0
    assert 0 <= metrics["ratio/drift"] < 1e-6 and metrics["policy/staleness"] == 0
    log_ratio = log_probs(model, taken) - taken.log_probs
    assert log_ratio.abs().max() > 1e-4, "the ratio does not move"
    assert (log_ratio * advantages.step_advantage).mean() > 0
    assert model.policy.version == 1


def test_stale_trajectories_use_their_stored_log_probs(model, sample, batch):
    taken, advantages = batch(model, keep_graph=True)
    update(model, taken, advantages, UpdateSettings(learning_rate=1e-3))
    stored = taken.log_probs
    again = sample(model, keep_graph=True)
    stale = replace(taken, kept=again.kept)  # a graph of another policy must not be used
    expected, loss = plain_gradients(model, stale, advantages, old=stored, clip=2e-4)
    ratio = (log_probs(model, taken) - stored).exp()
    step_advantage = advantages.step_advantage
    metrics = update(model, stale, advantages, replace(STILL, clip_range=2e-4))
    assert_same_gradients(gradients(model), expected)
    used = step_advantage != 0
    assert metrics["policy/staleness"] == 1.0 and "ratio/drift" not in metrics
    assert metrics["ratio/mean"] == pytest.approx(ratio[used].mean().item(), abs=1e-6)
    assert abs(metrics["ratio/mean"] - 1) > 1e-6
    high, low = (ratio > 1.0002) & (step_advantage > 0), (ratio < 0.9998) & (step_advantage < 0)
    assert metrics["clip/high"] == pytest.approx(high.float().mean().item(), abs=1e-6)
    assert metrics["clip/low"] == pytest.approx(low.float().mean().item(), abs=1e-6)
    assert metrics["clip/high"] + metrics["clip/low"] > 0
    assert metrics["loss"] == pytest.approx(loss, abs=1e-6)


def test_divergence_from_the_reference(model, sample, batch):
    taken, advantages = batch(model)
    assert update(model, taken, advantages, STILL)["kl/reference"] == 0.0
    model.forwards.forget()
    assert "kl/reference" not in update(model, taken, advantages, STILL), "nobody asked for it"
    assert len(set(model.forwards.take().values())) == 1, "no call without gradient"
    model.policy.version = 9  # the tenth is measured again
    metrics = update(model, sample(model), advantages, UpdateSettings(learning_rate=1e-3))
    assert metrics["kl/reference"] > 0
    # By hand, at the trained step and the samples (the first of each group) that it says it looks at.
    rows, step = torch.tensor([0, 3]), taken.trained[1]
    with torch.no_grad():
        velocity = rollout.velocity_at(model, taken, step, rows)
        with model.policy.reference():
            frozen = rollout.velocity_at(model, taken, step, rows)
    assert metrics["kl/reference"] == pytest.approx((velocity - frozen).square().mean().item(), rel=1e-3)
    growth = [(own.norm() / other.norm()).item() - 1 for own, other in zip(velocity, frozen, strict=True)]
    assert metrics["norm/growth"] == pytest.approx(sum(growth) / 2, rel=1e-3) and metrics["norm/growth"]
    sizes = []
    model.velocity = lambda x, *rest, call=model.velocity: sizes.append(len(x)) or call(x, *rest)
    one_by_one = reference_divergence(model, taken, 1, 1)[:, 0].mean().item()
    assert one_by_one == pytest.approx(metrics["kl/reference"], rel=1e-3)
    assert sizes == [1] * 4, "two prompts, each by the policy and by the reference"


def test_two_epochs_are_two_steps_of_one_policy(model, load_model, batch):
    taken, advantages = batch(model)
    settings = UpdateSettings(learning_rate=1e-3, epochs=2, max_grad_norm=1e9)
    metrics = update(model, taken, advantages, settings)
    steps = {int(v) for k, v in model.policy.optimizer_state().items() if k.endswith(".step")}
    assert model.policy.version == 1 and steps == {2}
    assert metrics["policy/skipped_updates"] == 0
    # The second epoch is the plain off-policy gradient at the stepped policy.
    other = load_model()
    update(other, taken, advantages, replace(settings, epochs=1))
    expected, _ = plain_gradients(other, taken, advantages, old=taken.log_probs)
    assert_same_gradients(gradients(model), expected, rtol=1e-3)


def test_figures_of_several_epochs_are_means_over_them(model, load_model, batch):
    taken, advantages = batch(model, holes=False)
    settings = UpdateSettings(learning_rate=1e-2, clip_range=1e-6)
    metrics = update(model, taken, advantages, replace(settings, epochs=3))
    # The same three steps one by one: stale trajectories use the log-probs of the first policy.
    other = load_model()
    singles = [update(other, taken, advantages, settings) for _ in range(3)]
    assert sum(m["clip/high"] + m["clip/low"] for m in singles) > 1
    for name in ("loss", "clip/high", "clip/low", "kl/approx", "ratio/mean"):
        assert metrics[name] == pytest.approx(sum(m[name] for m in singles) / 3, rel=0.02, abs=1e-4), name


# --- steps that must not be taken -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("keep_graph", "sharded"), [(False, False), (True, False), (False, True)])
def test_nothing_to_learn_takes_no_step(moved, keep_graph, sharded, batch):
    moved.policy.is_sharded = sharded  # where others may need this process's calls for samples of theirs
    taken, advantages = batch(moved, keep_graph=keep_graph)
    silent = replace(advantages, step_advantage=torch.zeros_like(taken.log_probs))
    before = parameters(moved)
    metrics = update(moved, taken, silent, UpdateSettings(learning_rate=0.1, weight_decay=0.5, ema_decay=0.9))
    assert unchanged(moved, before) and moved.policy.version == 0 and not moved.policy.optimizer_state()
    assert metrics["policy/skipped_updates"] == 1 and metrics["gradient_norm"] == 0 and metrics["loss"] == 0
    assert metrics["ratio/mean"] == 1 and moved.policy.nonfinite_in_a_row == 0
    metrics = update(moved, taken, silent, UpdateSettings(learning_rate=1e-3, kl_coefficient=1.0))
    assert metrics["policy/skipped_updates"] == 0 and not unchanged(moved, before), "KL pulls nevertheless"


def poisoned(advantages):
    step_advantage = advantages.step_advantage.clone()
    step_advantage[0, 1] = math.nan
    return replace(advantages, step_advantage=step_advantage)


def test_a_gradient_that_is_not_finite_is_dropped(moved, sample, caplog, batch):
    taken, advantages = batch(moved)
    update(moved, taken, advantages, UpdateSettings(learning_rate=1e-4, ema_decay=0.5))
    before, state = parameters(moved), {k: v.clone() for k, v in moved.policy.optimizer_state().items()}
    average = [parameter.clone() for parameter in moved.policy.ema.shadow_params]
    metrics = update(moved, sample(moved), poisoned(advantages), UpdateSettings(learning_rate=1e-4, ema_decay=0.5))
    assert metrics["policy/skipped_updates"] == 1 and moved.policy.nonfinite_in_a_row == 1 and moved.policy.version == 1
    assert unchanged(moved, before) and "not finite" in caplog.text
    assert all(torch.equal(value, state[name]) for name, value in moved.policy.optimizer_state().items())
    assert all(torch.equal(a, b) for a, b in zip(moved.policy.ema.shadow_params, average, strict=True))
    update(moved, sample(moved), advantages, UpdateSettings(learning_rate=1e-4))
    assert moved.policy.nonfinite_in_a_row == 0 and not unchanged(moved, before)
    # an infinite gradient under a finite loss
    before = parameters(moved)
    moved.policy.trainable_parameters()[0].register_hook(lambda gradient: gradient * math.inf)
    metrics = update(moved, sample(moved), advantages, UpdateSettings(learning_rate=1e-3))
    assert math.isfinite(metrics["loss"]) and metrics["policy/skipped_updates"] == 1 and unchanged(moved, before)
    assert all(parameter.isfinite().all() for parameter in moved.policy.trainable_parameters())


def test_a_loss_scale_that_is_too_large_is_not_counted(moved, sample, judged):
    moved.policy.loss_scale = LossScale(2.0)
    advantages = judged(sample(moved))
    for counted in (0, 1):
        update(moved, sample(moved), poisoned(advantages), UpdateSettings(learning_rate=1e-4))
        assert (moved.policy.nonfinite_in_a_row, moved.policy.loss_scale.value) == (counted, 1.0)


def test_a_loss_scale_that_held_grows_after_its_patience(moved, sample, judged):
    """Which it learns from the update: one that is never told stays as small as the worst moment made it."""
    moved.policy.loss_scale = LossScale(2.0, LossScale.PATIENCE - 2)
    advantages = judged(sample(moved))
    for value, good in ((2.0, LossScale.PATIENCE - 1), (4.0, 0), (4.0, 1)):
        update(moved, sample(moved), advantages, UpdateSettings(learning_rate=1e-4))
        assert (moved.policy.loss_scale.value, moved.policy.loss_scale.good) == (value, good)


def test_ten_dropped_updates_in_a_row_are_an_error(moved, small_settings, batch):
    taken, advantages = batch(moved, small_settings(steps=3, window=(0, 2)))
    for given in (*[poisoned(advantages)] * 9, advantages, *[poisoned(advantages)] * 9):
        update(moved, taken, given, replace(STILL, learning_rate=1e-4))
    with pytest.raises(NonFiniteUpdate, match="10 updates in a row.*Fix: "):
        update(moved, taken, poisoned(advantages), UpdateSettings(learning_rate=1e-4))


# --- averaging, clipping, stopping ----------------------------------------------------------------------------------


def test_the_average_follows(model, sample, judged):
    advantages = judged(sample(model))
    visited = [parameters(model)]
    for _ in range(3):
        update(model, sample(model), advantages, UpdateSettings(learning_rate=1e-3, ema_decay=0.5))
        visited.append(parameters(model))
    # It warms up: decay 0 at the first step, then min(0.5, (1 + n) / (10 + n)).
    average = visited[1]
    for n, current in ((1, visited[2]), (2, visited[3])):
        decay = min(0.5, (1 + n) / (10 + n))
        average = [decay * a + (1 - decay) * c for a, c in zip(average, current, strict=True)]
    with model.policy.averaged():
        for parameter, expected in zip(model.policy.trainable_parameters(), average, strict=True):
            torch.testing.assert_close(parameter.data, expected, rtol=1e-5, atol=1e-8)
        assert not unchanged(model, visited[3])
    assert unchanged(model, visited[3])


def test_the_average_is_that_of_diffusers_to_the_bit():
    random = torch.Generator().manual_seed(0)
    weights = [
        torch.nn.Parameter(torch.randn(5, 3, generator=random)),
        torch.nn.Parameter(torch.randn(2, generator=random)),
    ]
    ours, theirs = Average(weights, 0.4), EMAModel(weights, decay=0.4)
    for _ in range(20):
        for weight in weights:
            weight.data += 0.1 * torch.randn(weight.shape, generator=random)
        ours.step(weights)
        theirs.step(weights)
        assert all(map(torch.equal, ours.shadow_params, theirs.shadow_params))
    assert ours.optimization_step == theirs.optimization_step


def test_long_gradients_are_shortened(moved, batch):
    taken, advantages = batch(moved)
    long = update(moved, taken, advantages, STILL)["gradient_norm"]
    full = gradients(moved)
    moved.policy.version = 0
    metrics = update(moved, taken, advantages, replace(STILL, max_grad_norm=long / 8))
    assert metrics["gradient_norm"] == pytest.approx(long, rel=1e-4), "the log shows the norm before clipping"
    assert_same_gradients(gradients(moved), {name: gradient / 8 for name, gradient in full.items()}, rtol=1e-4)


def test_rates_may_change_between_updates(moved, sample, batch):
    taken, advantages = batch(moved)
    update(moved, taken, advantages, UpdateSettings(learning_rate=1e-3))
    moments = {k: v.clone() for k, v in moved.policy.optimizer_state().items() if k.endswith("exp_avg")}
    before = parameters(moved)
    with moved.policy.averaged():
        assert moved.policy.ema is None and unchanged(moved, before), "no average unless it is asked for"
    update(moved, sample(moved), advantages, UpdateSettings(learning_rate=0.0))
    assert unchanged(moved, before)
    assert any(not torch.equal(v, moments[k]) for k, v in moved.policy.optimizer_state().items() if k in moments)


@pytest.mark.parametrize(("number", "keep_graph"), [(1, True), (2, False), (3, True), (3, False)])
def test_a_stopped_update_leaves_no_trace(moved, sample, number, keep_graph, batch):
    taken, advantages = batch(moved)
    update(moved, taken, advantages, UpdateSettings(learning_rate=1e-3))
    taken = sample(moved, keep_graph=keep_graph)
    before, state = parameters(moved), {k: v.clone() for k, v in moved.policy.optimizer_state().items()}
    stop = Mock(side_effect=[*[None] * (number - 1), KeyboardInterrupt])
    with pytest.raises(KeyboardInterrupt):
        update(moved, taken, advantages, UpdateSettings(learning_rate=1e-3), stop)
    assert unchanged(moved, before) and moved.policy.version == 1
    assert all(torch.equal(value, state[name]) for name, value in moved.policy.optimizer_state().items())
    update(moved, taken, advantages, STILL)
    assert_same_gradients(gradients(moved), plain_gradients(moved, taken, advantages)[0])


def test_an_error_after_the_first_step_leaves_no_state_that_a_record_knows(moved, batch, monkeypatch):
    taken, advantages = batch(moved)
    monkeypatch.setattr(Average, "step", Mock(side_effect=OSError("no memory")))
    with pytest.raises(OSError, match="no memory"):
        update(moved, taken, advantages, UpdateSettings(learning_rate=1e-3, ema_decay=0.5))
    assert moved.policy.version == 1 and not stopping.request.holds


def test_every_backward_pass_is_announced(moved, sample, judged):
    for options, settings, calls in [
        ({}, STILL, 3),
        ({}, replace(STILL, batch_size=4), 5),
        ({"keep_graph": True}, STILL, 3),
    ]:
        taken, seen = sample(moved, **options), []
        update(moved, taken, judged(taken, holes=False), settings, lambda seen=seen: seen.append(1))
        assert len(seen) == calls
        moved.policy.version = 0


# --- other ratios and objectives -------------------------------------------------------------------------------------


def credited(advantages, **fields):
    return replace(advantages, credit=replace(advantages.credit, **fields))


def test_the_ratio_may_be_scaled_step_by_step(moved, sample, judged):
    """PCPO: log ρ̃_j = scale_j·log ρ_j."""
    taken, scale = sample(moved), (0.5, 2.0, 3.0)
    advantages = judged(taken)
    scaled = credited(advantages, ratio_scale=scale)
    expected, _ = plain_gradients(moved, taken, scaled, ratio=lambda density, *at: density.mean() * scale[at[2]])
    assert_same_gradients(updated(moved, taken, scaled), expected)
    # On-policy it is nothing but a weight on the step.
    weighted = replace(advantages, step_advantage=advantages.step_advantage * torch.tensor(scale))
    assert_same_gradients(updated(moved, taken, weighted), expected)


def test_drift_is_that_of_the_scaled_ratio(model, sample, judged):
    taken = sample(model)
    stored = torch.tensor([0.1, 0.01, -0.2])
    off = replace(taken, log_probs=log_probs(model, taken) - stored)
    advantages = credited(judged(taken), ratio_scale=(0.5, 20.0, 1.0))
    metrics = update(model, off, advantages, STILL)
    # |ρ - 1| of the steps: e^0.05 - 1, e^0.2 - 1, 1 - e^-0.2
    assert metrics["ratio/drift"] == pytest.approx(math.exp(0.2) - 1, rel=1e-4)


@pytest.mark.parametrize("regulated", [False, True])
def test_a_scaled_ratio_is_that_of_the_densities(model, sample, small_settings, judged, regulated):
    """What PCPO and GRPO-Guard do is the same whether the sampler's log-probs carry 1/(2·std²) or not; here off-policy."""
    found = []
    advantages = credited(judged(sample(model)), ratio_scale=(0.5, 2.0, 3.0), regulated=regulated)
    taken = [sample(model, small_settings(log_prob_norm=norm)) for norm in ("full", "squared_error")]
    update(model, taken[0], advantages, UpdateSettings(learning_rate=1e-3))
    for own in taken:
        metrics = update(model, own, advantages, replace(STILL, clip_range=1e-3))
        found.append((gradients(model), metrics["loss"], metrics["clip/high"], metrics["clip/low"]))
    assert_same_gradients(found[1][0], found[0][0], rtol=1e-3)
    assert found[1][1:] == pytest.approx(found[0][1:], abs=1e-6) and found[0][2] + found[0][3] > 0


def test_advantages_of_other_trajectories(model, sample, small_settings, batch):
    taken, advantages = batch(model)
    for other in (sample(model, group_size=2), sample(model, small_settings(window=(1, 2)))):
        with pytest.raises(ValueError, match=r"advantages: they are of 6 samples .* Fix: let both come from the same"):
            update(model, other, advantages, STILL)
    with pytest.raises(ValueError, match=r"credit: it is of 4 samples, the scores of 6\. Fix"):
        fuse(advantages.scores, tcd(taken.latents[:4], taken.final[:4], taken.trained), "moca")


def test_log_hinge(model, sample, judged):
    taken = sample(model)
    advantages, margin = judged(taken), 2e-4
    update(model, taken, advantages, UpdateSettings(learning_rate=1e-3))

    def hinge(log_ratio, advantage):
        return torch.relu(margin * advantage.abs() - advantage * log_ratio)

    expected, loss = plain_gradients(model, taken, advantages, old=taken.log_probs, objective=hinge)
    settings = replace(STILL, clip_range=margin, objective="log_hinge")
    metrics = update(model, taken, advantages, settings)
    assert_same_gradients(gradients(model), expected)
    # log-ratios are differences of float32 numbers near 1, whose spacing is 1e-7; the loss is about 1e-5
    assert metrics["loss"] == pytest.approx(loss, abs=1e-8)
    log_ratio, pull = log_probs(model, taken) - taken.log_probs, advantages.step_advantage
    reached = (log_ratio * pull >= margin * pull.abs()) & (pull != 0)
    assert 0 < reached.sum() < (pull != 0).sum()
    assert metrics["clip/high"] + metrics["clip/low"] == pytest.approx(reached.float().mean().item(), abs=1e-6)


def spread(taken, advantages):
    """Credit that also says where in the latent, with mean 1."""
    place = torch.rand(taken.latents[:, 0, 0].shape, generator=torch.Generator().manual_seed(8)) + 0.1
    return credited(advantages, spatial=place / place.mean((1, 2), keepdim=True))


@pytest.mark.parametrize("keep_graph", [False, True])
def test_spatial_credit(moved, sample, judged, keep_graph):
    """VIPO: a ratio, an advantage and a loss for every latent position, then their mean."""
    taken = sample(moved, keep_graph=keep_graph)
    advantages = spread(taken, judged(taken))
    expected, loss = plain_gradients(moved, taken, advantages, ratio=by_place)
    metrics = update(moved, taken, advantages, STILL)
    assert_same_gradients(gradients(moved), expected)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-6) and metrics["ratio/drift"] < 1e-6
    everywhere = updated(moved, taken, credited(advantages, spatial=None))
    assert max((everywhere[name] - gradient).abs().max() for name, gradient in expected.items()) > 1e-4
    alike = torch.ones(taken.latents[:, 0, 0].shape)
    moved.policy.version = taken.policy_version
    assert_same_gradients(updated(moved, taken, credited(advantages, spatial=alike)), everywhere)


@pytest.mark.parametrize("shared_noise", [True, False])
def test_the_noise_is_drawn_again(model, sample, small_settings, shared_noise):
    taken = sample(model, small_settings(shared_noise=shared_noise, window=(1, 2)))
    noise, rows = rollout.sampled_noise(taken), torch.arange(len(taken.groups))
    for position, step in enumerate(taken.trained):
        with torch.no_grad():
            velocity = rollout.velocity_at(model, taken, step, rows).cpu()
        gaussian = rollout.trained_transition(taken, step, velocity, rows)
        torch.testing.assert_close(gaussian.sample(noise[:, position]), taken.latents[:, step + 1], rtol=0, atol=1e-5)


def test_stale_spatial_credit(model, sample, judged):
    taken = sample(model)
    advantages = spread(taken, judged(taken))
    old = log_probs(model, taken, rollout.Gaussian.log_prob_map)
    update(model, taken, advantages, UpdateSettings(learning_rate=1e-3))
    expected, loss = plain_gradients(model, taken, advantages, old=old, clip=1e-3, ratio=by_place)
    metrics = update(model, taken, advantages, replace(STILL, clip_range=1e-3))
    assert_same_gradients(gradients(model), expected, rtol=1e-4)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-5) and metrics["clip/high"] + metrics["clip/low"] > 0


def test_regulated_ratio(model, sample, judged):
    """GRPO-Guard: std·(log ρ + mean‖Δμ‖²/(2·std²)), with the means of the policy that sampled."""
    taken = sample(model)
    stds = tuple(taken.stds[step] for step in taken.trained)
    advantages = credited(judged(taken), ratio_scale=stds, regulated=True)
    with torch.no_grad():
        means = {(sample, position): mean for sample, position, _, _, mean in plain_steps(model, taken)}
    update(model, taken, credited(advantages, regulated=False), UpdateSettings(learning_rate=1e-3))

    def ratio(density, mean, sample, position):
        bias = (mean - means[sample, position]).square().mean() / (2 * stds[position] ** 2)
        return stds[position] * (density.mean() + bias)

    old = taken.log_probs * torch.tensor(stds)
    expected, total = plain_gradients(model, taken, advantages, old=old, clip=5e-4, ratio=ratio)
    metrics = update(model, taken, advantages, replace(STILL, clip_range=5e-4))
    assert_same_gradients(gradients(model), expected, rtol=1e-4)
    assert metrics["loss"] == pytest.approx(total, abs=1e-6)
    update(model, taken, credited(advantages, regulated=False), replace(STILL, clip_range=5e-4))
    assert max((gradients(model)[name] - gradient).abs().max() for name, gradient in expected.items()) > 1e-5


@pytest.mark.parametrize("norm", ["full", "squared_error"])
def test_dppo_against_a_plain_loop(model, small_settings, norm, batch):
    """Flow-DPPO on samples of an earlier policy: -Ã·ρ, but for the half of the entries whose means moved most, the right way."""
    taken, advantages = batch(model, small_settings(log_prob_norm=norm))

    def log_prob(density, mean, sample, position):
        if norm == "full":
            return density.mean()
        return -(taken.latents[sample : sample + 1, taken.trained[position] + 1] - mean).square().mean()

    def entries():
        with torch.no_grad():
            for sample, position, _, density, mean in plain_steps(model, taken):
                yield (sample, position), log_prob(density, mean, sample, position), mean

    means = {at: mean for at, _, mean in entries()}
    update(model, taken, advantages, UpdateSettings(learning_rate=1e-3))
    found = {at: (own, (mean - means[at]).square().mean().item()) for at, own, mean in entries()}
    moved = {at: square / (2 * taken.stds[taken.trained[at[1]]] ** 2) for at, (_, square) in found.items()}
    # between the two in the middle, so that rounding decides nothing
    limit = sum(sorted(moved.values())[len(moved) // 2 - 1 : len(moved) // 2 + 1]) / 2
    pull, count = advantages.step_advantage, taken.log_probs.numel()
    far = [at for at in found if moved[at] >= limit and pull[at]]
    dropped = [at for at in far if (found[at][0] - taken.log_probs[at]) * pull[at] > 0]
    assert 0 < len(dropped) < len(far)
    rest = pull.clone()
    for at in dropped:
        rest[at] = 0.0
    expected, total = plain_gradients(
        model,
        taken,
        replace(advantages, step_advantage=rest),
        old=taken.log_probs,
        ratio=log_prob,
        objective=lambda log_ratio, advantage: -advantage * log_ratio.exp(),
    )
    metrics = update(model, taken, advantages, replace(STILL, objective="dppo", clip_range=limit))
    assert_same_gradients(gradients(model), expected, rtol=1e-4)
    assert metrics["loss"] == pytest.approx(total, abs=1e-6)
    assert metrics["clip/high"] + metrics["clip/low"] == pytest.approx(len(dropped) / count)


def test_dppo_differs_from_clipping_from_the_second_optimizer_step_on(load_model, sample, judged):
    found = {}
    for objective, clip_range in (("clipped", 1e-4), ("dppo", 1e-5)):
        for epochs in (1, 2):
            model = load_model()
            taken = sample(model)
            settings = UpdateSettings(1e-3, objective=objective, clip_range=clip_range, epochs=epochs)
            metrics = update(model, taken, judged(taken), settings)
            found[objective, epochs] = metrics["clip/high"] + metrics["clip/low"], parameters(model)
    assert found["dppo", 1][0] == found["clipped", 1][0] == 0
    assert all(map(torch.equal, found["dppo", 1][1], found["clipped", 1][1]))
    assert found["dppo", 2][0] > 0
    assert not all(map(torch.equal, found["dppo", 2][1], found["clipped", 2][1]))


# --- parts of a rollout, and a clip range with two ends ---------------------------------------------------------------


def test_a_part_after_the_first_is_off_policy(model, load_model, perturb, batch):
    """Two groups, two optimizer steps: the second group's ratios are to the policy that sampled, by stored log-probs."""
    perturb(model)
    taken, advantages = batch(model)
    ends = UpdateSettings(learning_rate=1e-3, parts=2, max_grad_norm=1e9, clip_range=2e-5, clip_range_low=1e-5)
    halves = [part_of(advantages, group, 2) for group in (0, 1)]
    metrics = update(model, taken, advantages, ends)
    assert model.policy.version == 1 and metrics["policy/skipped_updates"] == 0
    other = perturb(load_model())
    # The first makes the policy another version, so that to the second the samples are stale.
    one, two = (update(other, replace(taken, model=other), half, replace(ends, parts=1)) for half in halves)
    assert one["ratio/mean"] == 1 != two["ratio/mean"] and two["policy/staleness"] == 1
    for own, expected in zip(parameters(model), parameters(other), strict=True):
        torch.testing.assert_close(own, expected, rtol=1e-5, atol=1e-7)
    for name in ("loss", "clip/high", "clip/low", "kl/approx"):
        assert metrics[name] == pytest.approx((one[name] + two[name]) / 2, abs=1e-6), name
    assert metrics["clip/high"] + metrics["clip/low"] > 0
    with pytest.raises(ValueError, match="parts = 3.*the rollout has 2.*Fix"):
        update(model, taken, advantages, replace(ends, parts=3))


def test_a_part_without_a_gradient_skips_its_step_alone(model, batch):
    taken, advantages = batch(model)
    silent = replace(advantages, step_advantage=advantages.step_advantage * (taken.groups == 1)[:, None])
    metrics = update(model, taken, silent, UpdateSettings(learning_rate=1e-3, parts=2))
    assert metrics["policy/skipped_updates"] == 1 and metrics["gradient_norm"] > 0 and model.policy.version == 1


@pytest.mark.parametrize("objective", LOSS_NAMES)
def test_a_clip_range_with_two_ends(objective):
    """Each end is that of the loss with one end alone, on its own sign of the advantage."""
    log_ratio = torch.linspace(-0.5, 0.5, 41).repeat(2)
    advantage = torch.tensor([1.0, -2.0]).repeat_interleave(41)
    options = {"divergence": log_ratio.abs()} if objective in USES_DIVERGENCE else {}
    low, high = 0.1, 0.3

    def loss(clip, rows=slice(None)):
        some = {name: value[rows] for name, value in options.items()}
        zero = torch.zeros_like(log_ratio[rows])
        return LOSSES[objective](log_ratio[rows], zero, advantage[rows], clip, torch.ones_like(zero), **some)[0]

    both = loss(torch.where(advantage < 0, low, high))
    assert both == pytest.approx(((loss(high, slice(41)) + loss(low, slice(41, None))) / 2).item(), rel=1e-6)
    if objective == "clipped":  # as PPO with two ends has it
        expected = -torch.minimum(
            advantage * log_ratio.exp(), advantage * log_ratio.exp().clamp(1 - low, 1 + high)
        ).mean()
        assert both == pytest.approx(expected.item(), rel=1e-6) != loss(high)
