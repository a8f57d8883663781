"""Sampling on the embedded model: shapes, noise, windows, log-probabilities, and what `auto` decides."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from comfyui_otca.host import devices
from comfyui_otca.tests.training import assert_recomputed
from comfyui_otca.trainer import rollout, schedule
from comfyui_otca.trainer.credit.gains import is_final
from comfyui_otca.trainer.credit.steps import tcd
from comfyui_otca.trainer.policy import lora
from comfyui_otca.trainer.sde import KINDS
from comfyui_otca.trainer.types import MEMORY_SHARE, OLD, THETA
from comfyui_otca.trainer.updates.passes import Graphs

pytestmark = pytest.mark.anywhere

STOCHASTIC = [kind for kind in KINDS if kind != "ode"]


@pytest.fixture(scope="module")
def taken(still_model, sample):
    return sample(still_model)


def test_shapes_and_numbers(taken, still_model):
    # 2 prompts x 3 members, 4 steps, 8 latent channels of 10 x 10.
    assert taken.latents.shape == (6, 5, 8, 10, 10) and taken.final.shape == (6, 8, 10, 10)
    assert taken.images.shape == (6, 40, 40, 3) and taken.log_probs.shape == (6, 3)
    assert taken.latents.dtype == taken.final.dtype == taken.images.dtype == taken.log_probs.dtype == torch.float32
    assert taken.images.min() >= 0 and taken.images.max() <= 1
    assert len(taken.sigmas) == 5 and taken.sigmas[0] == 1 and taken.sigmas[-1] == 0
    assert taken.groups.tolist() == [0, 0, 0, 1, 1, 1] and taken.texts == ["a red circle"] * 3 + ["a blue square"] * 3
    assert taken.trained == (0, 1, 2) and taken.policy_version == still_model.policy.version and taken.kept is None
    # dance_sde: std = η·√Δ
    expected = [0.5 * (a - b) ** 0.5 for a, b in zip(taken.sigmas, taken.sigmas[1:], strict=False)]
    assert taken.stds == pytest.approx([*expected[:3], 0.0])
    assert not any(tensor.requires_grad for tensor in (taken.latents, taken.final, taken.images, taken.log_probs))
    assert torch.equal(taken.final, taken.latents[:, -1])
    torch.testing.assert_close(taken.images, still_model.decode(taken.final, 2), rtol=0, atol=1e-5)


def test_a_group_starts_together_and_parts(taken, still_model, sample, small_settings):
    groups = taken.latents.unflatten(0, (2, 3))
    assert torch.equal(groups[:, 0, 0], groups[:, 1, 0]) and torch.equal(groups[:, 0, 0], groups[:, 2, 0])
    assert not torch.equal(groups[0, 0, 0], groups[1, 0, 0])
    for step in range(1, 5):
        for one, other in ((0, 1), (0, 2), (1, 2)):
            assert (groups[:, one, step] - groups[:, other, step]).abs().amax((1, 2, 3)).min() > 0.01
    own = sample(still_model, small_settings(shared_noise=False), group_size=16, prompts=("x", "y")).latents[:, 0]
    assert all(not torch.equal(own[0], own[i]) for i in range(1, 32)), "unless each has its own noise"
    assert own.mean().abs() < 0.02 and abs(own.std() - 1) < 0.015  # 25,600 standard normal draws: 3 standard errors


@pytest.mark.parametrize("shared", [True, False])
def test_the_batch_size_changes_nothing(still_model, sample, small_settings, shared):
    settings = small_settings(shared_noise=shared)
    whole = sample(still_model, settings)
    for batch_size in (1, 2, 4, 5):
        parts = sample(still_model, settings, batch_size=batch_size)
        for name in ("latents", "final", "images", "log_probs"):
            torch.testing.assert_close(getattr(parts, name), getattr(whole, name), rtol=0, atol=1e-5)


def test_the_neighbours_change_nothing(taken, still_model, sample):
    alone = sample(still_model, prompts=("a blue square",), positions=(1,))
    torch.testing.assert_close(alone.latents, taken.latents[3:], rtol=0, atol=1e-5)
    larger = sample(still_model, group_size=4)
    torch.testing.assert_close(larger.latents[:3], taken.latents[:3], rtol=0, atol=1e-5)
    elsewhere = sample(still_model, prompts=("a blue square",), positions=(2,))
    assert (elsewhere.latents[:, 0] - taken.latents[3:, 0]).abs().max() > 0.1


def test_seeds(taken, still_model, sample):
    torch.manual_seed(123)
    state = torch.get_rng_state()
    again, other = sample(still_model, seed=7), sample(still_model, seed=8)
    assert torch.equal(torch.get_rng_state(), state), "randomness of the process is neither used nor touched"
    assert torch.equal(again.latents, taken.latents) and torch.equal(again.log_probs, taken.log_probs)
    assert (other.latents - taken.latents).abs().amax((0, 2, 3, 4)).min() > 0.1


@pytest.mark.parametrize(
    ("changes", "trained"),
    [
        *(({"window": w}, t) for w, t in (((1, 2), (1, 2)), ((2, 9), (2,)), ((0, 1), (0,)), (None, (0, 1, 2)))),
        ({"kind": "ddim_sde"}, (1, 2)),  # whose first step is deterministic
    ],
)
def test_only_the_window_is_stochastic(still_model, sample, small_settings, changes, trained):
    taken = sample(still_model, small_settings(**changes))
    assert taken.trained == trained and taken.log_probs.shape == (6, len(trained))
    assert [j for j, std in enumerate(taken.stds) if std > 0] == list(trained)
    spread = taken.latents[:3].std(0).amax((1, 2, 3))
    # A group is together until its first stochastic step, and apart after it.
    assert [value.item() > 1e-3 for value in spread] == [j > trained[0] for j in range(5)]


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"group_size": 1}, "group_size must be at least 2, not 1"),
        ({"eta": 0.0}, {}, "eta 0.*nothing can be trained"),
        ({"window": (4, 2)}, {}, r"window \(4, 2\).*nothing can be trained"),
        ({"window": (3, 1)}, {}, r"window \(3, 1\) is stochastic, so nothing can be trained"),
        ({"fraction_after_window": 0.5}, {}, "fraction_after_window is 0.5, but no window ends before the last step"),
        ({"fraction_after_window": 0.5, "window": (1, 4)}, {}, "fraction_after_window is 0.5"),
        (
            {"window": (1, 3), "stochastic_steps": 3},
            {},
            "stochastic_steps is 3, and so many steps of the window can add noise: 2.*lower it",
        ),
        ({"kind": "euler"}, {}, "unknown sampler kind 'euler'"),
        ({"width": 44}, {}, "multiples of 8"),
        ({"ode_solver": "heun"}, {}, "ode_solver must be one of .*, not 'heun'"),
        ({"kind": "ode"}, {}, "shared_noise with the kind ode.*one picture.*Fix: switch it off"),
        (
            {"kind": "ode", "shared_noise": False, "window": (0, 2)},
            {},
            "a window has no meaning for the kind ode.*Fix: set",
        ),
    ],
)
def test_settings_that_train_nothing_are_refused_before_anything_is_sampled(
    still_model, sample, small_settings, monkeypatch, changes, options, message
):
    monkeypatch.setattr(still_model, "velocity", None)
    with pytest.raises(ValueError, match=message):
        sample(still_model, small_settings(**changes), **options)


@pytest.mark.parametrize("count", [1, 2])
def test_some_steps_of_a_window_are_drawn_anew(still_model, sample, small_settings, count):
    """Flow-Factory's configurations: noise at one, or two, of steps 1 … 3, and Euler's step everywhere else."""
    settings = small_settings(steps=6, kind="flow_sde", eta=0.7, window=(1, 3), stochastic_steps=count)
    assert schedule.stochastic_count(settings) == count
    seen, rows = set(), torch.arange(6)
    for seed in range(12):
        taken = sample(still_model, settings, seed=seed)
        seen.add(taken.trained)
        assert [j for j, std in enumerate(taken.stds) if std > 0] == list(taken.trained)
        assert taken.log_probs.shape == (6, count) and tcd(taken.latents, taken.final, taken.trained).raw.shape == (
            6,
            count,
        )
    assert seen == set(itertools.combinations((1, 2, 3), count)), "each choice has its turn"
    with torch.no_grad():
        v = [rollout.velocity_at(still_model, taken, step, rows).cpu() for step in range(6)]
    x, s, noise = taken.latents, taken.sigmas, rollout.sampled_noise(taken)
    for j in range(6):
        dt, std = (
            s[j + 1] - s[j],
            0.7 * (s[j] / (1 - s[j])) ** 0.5 if j in taken.trained else 0.0,
        )  # Flow-GRPO's, by hand
        following = x[:, j] * (1 + std**2 / (2 * s[j]) * dt) + v[j] * (1 + std**2 * (1 - s[j]) / (2 * s[j])) * dt
        if std:
            added = noise[:, taken.trained.index(j)]
            following += std * (-dt) ** 0.5 * added
            density = -(added**2) / 2 - np.log(std * (-dt) ** 0.5) - np.log(2 * np.pi) / 2
            got = taken.log_probs[:, taken.trained.index(j)]
            torch.testing.assert_close(got, density.flatten(1).mean(1), rtol=0, atol=2e-6)
        torch.testing.assert_close(x[:, j + 1], following, rtol=0, atol=1e-5)
    assert sample(still_model, settings, seed=11, batch_size=2).trained == taken.trained


# --- MixGRPO-Flash: fewer and better steps after the window ----------------------------------------------------------

FLASH = {"steps": 10, "window": (1, 3), "fraction_after_window": 0.4, "ode_solver": "adams_bashforth", "shift": 3.0}


def test_the_rest_of_the_schedule_is_cut_short(still_model, sample, small_settings):
    # u = 1, 0.9, … 0.6 as ever, then ⌈0.4·6⌉ = 3 steps for the six that are left: 0.6, 0.4, 0.2, 0. σ = 3u / (1 + 2u).
    taken = sample(still_model, small_settings(**FLASH))
    u = (1.0, 0.9, 0.8, 0.7, 0.6, 0.4, 0.2, 0.0)
    assert taken.sigmas == pytest.approx([3 * value / (1 + 2 * value) for value in u])
    assert taken.trained == (1, 2, 3) and len(taken.stds) == 7 and taken.latents.shape[1] == 8
    assert torch.equal(taken.final, taken.latents[:, -1])


@pytest.mark.parametrize(
    ("window", "fraction", "transitions"),
    [
        (None, 0.4, 10),
        ((0, 10), 0.4, 10),
        ((6, 9), 0.4, 10),
        ((0, 4), 1.0, 10),
        ((0, 1), 0.1, 2),  # ⌈0.9⌉ = 1 more
        ((5, 4), 0.05, 10),  # one is left, and stays
        ((0, 4), 0.5, 7),
    ],
)
def test_how_many_steps_there_are(still_model, small_settings, window, fraction, transitions):
    settings = small_settings(steps=10, window=window, fraction_after_window=fraction)
    sigmas = still_model.sigmas(settings)
    assert settings.transitions == len(rollout.step_kinds(settings)) == len(sigmas) - 1 == transitions
    assert sigmas[0] == 1 and sigmas[-1] == 0 and all(a > b for a, b in zip(sigmas, sigmas[1:], strict=False))
    plain = still_model.sigmas(replace(settings, window=None))
    assert sigmas[: settings.window_end + 1] == plain[: settings.window_end + 1]


def test_deterministic_steps_are_of_second_order(still_model, sample, small_settings):
    """Before the window from its second step on, after it again from its second: the line through two velocities."""
    settings = small_settings(**FLASH | {"window": (3, 1)})
    taken = sample(still_model, settings)
    rows = torch.arange(6)
    with torch.no_grad():
        v = [rollout.velocity_at(still_model, taken, step, rows).cpu() for step in range(settings.transitions)]
    s = taken.sigmas
    for step in (0, 1, 2, 4, 5, 6):
        velocity = v[step]
        if step not in (0, 4):
            middle = (s[step] + s[step + 1]) / 2
            velocity = v[step - 1] + (v[step] - v[step - 1]) * (middle - s[step - 1]) / (s[step] - s[step - 1])
        expected = taken.latents[:, step] - (s[step] - s[step + 1]) * velocity
        torch.testing.assert_close(taken.latents[:, step + 1], expected, rtol=0, atol=1e-5)


def test_gradients_are_gone_while_it_samples(model, sample, small_settings):
    parameters = model.policy.trainable_parameters()
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    seen = []
    sample(model, small_settings(), on_step=lambda: seen.append([parameter.grad for parameter in parameters]))
    assert seen and all(grad is None for grads in seen for grad in grads)


def test_evaluation_takes_the_whole_schedule(still_model, small_settings):
    plain, flash = small_settings(steps=10, shift=3.0), small_settings(**FLASH)
    arguments = ["a red circle"], plain, [1]
    calls = []
    pictures = rollout.generate(still_model, *arguments)
    again = rollout.generate(still_model, arguments[0], flash, [1], lambda: calls.append(1))
    assert torch.equal(pictures, again) and len(calls) == 10


@pytest.mark.parametrize(
    "changes",
    [
        *({"kind": kind} for kind in STOCHASTIC),
        {"kind": "cps", "log_prob_norm": "squared_error"},
        FLASH | {"kind": "flow_sde"},
    ],
)
def test_recomputed_log_probs_are_the_stored_ones(still_model, sample, small_settings, changes):
    taken = sample(still_model, small_settings(**changes), batch_size=4)
    assert len(taken.trained) >= 2 and taken.log_probs.isfinite().all()
    for batch_size in (1, 4, 6):
        assert_recomputed(still_model, taken, batch_size, 1e-6)


def test_a_kept_graph_changes_no_number(taken, still_model, sample):
    kept = sample(still_model, keep_graph=True, batch_size=4)
    for name in ("latents", "final", "images", "log_probs"):
        torch.testing.assert_close(getattr(kept, name), getattr(taken, name), rtol=0, atol=1e-5)
        assert not getattr(kept, name).requires_grad
    graphs = Graphs(kept.kept)
    assert [call.number for call in graphs] == [0, 1, 2] * 2  # four samples, and two
    for position, step in enumerate(kept.trained):
        rows = torch.arange(6)
        velocity, _ = graphs.of(position, rows)
        assert velocity.requires_grad and velocity.shape == (6, 8, 10, 10)
        seen = rollout.trained_transition(kept, step, velocity.cpu(), rows).log_prob(kept.latents[:, step + 1])
        assert torch.equal(seen.detach(), kept.log_probs[:, position])


def test_a_shared_start_is_computed_once_a_group(still_model, sample, small_settings):
    sizes = []
    hook = still_model.transformer.register_forward_pre_hook(
        lambda _, __, inputs: sizes.append(len(inputs["hidden_states"])), with_kwargs=True
    )
    sample(still_model, small_settings(window=(1, 2)))
    sample(still_model, small_settings(shared_noise=False))
    # Deterministic at σ = 1, so that the group is together for one step more, also when it is trained.
    taken = sample(still_model, small_settings(kind="ddim_sde"))
    rollout.velocity_at(still_model, taken, torch.tensor([1, 1, 2]), torch.tensor([0, 1, 1]))
    hook.remove()
    assert sizes == [2, 2, 6, 6] + [6] * 4 + [2, 2, 6, 6] + [2]


# --- keep_graph="auto" ----------------------------------------------------------------------------------------------


def test_the_estimate_is_what_a_graph_takes(still_model, sample, small_settings, monkeypatch):
    settings = small_settings(shared_noise=False)
    weights = {parameter.untyped_storage().data_ptr() for parameter in still_model.transformer.parameters()}
    held = {}

    def count(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            held[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        kept = sample(still_model, settings, keep_graph=True)
    need = sum(held.values())
    assert kept.kept

    def fits(free):
        monkeypatch.setattr(devices, "free_memory", lambda device: free)
        still_model.memo[rollout.GraphDecisions].clear()
        return rollout.kept_calls(still_model, settings, [0, 0, 0, 1, 1, 1])

    assert [fits(int(part * need / MEMORY_SHARE)) for part in (0.2, 0.5, 0.9, 1.3)] == [0, 1, 2, 3]
    # Once decided it stays, so that a run does not change its rounding half way.
    monkeypatch.setattr(devices, "free_memory", lambda device: 0)
    assert rollout.kept_calls(still_model, settings, [0, 0, 0, 1, 1, 1]) == 3
    decisions = still_model.memo[rollout.GraphDecisions]
    assert rollout.GraphDecisions.read(*decisions.saved()) == decisions, "nor where it is resumed"
    still_model.memo[rollout.GraphDecisions].clear()


# --- progress and stopping ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch_size", "calls"), [(0, 4), (6, 4), (4, 8), (1, 24)])
def test_a_step_is_announced_for_every_model_call(still_model, sample, batch_size, calls):
    seen = []
    sample(still_model, batch_size=batch_size, on_step=lambda: seen.append(1))
    assert len(seen) == calls == rollout.model_calls(4, 6, batch_size)


def test_generate_depends_on_text_and_seed_alone(still_model, small_settings):
    texts, seeds = ["a red circle", "a blue square", "a red circle"], [1, 1, 2]
    pictures = rollout.generate(still_model, texts, small_settings(), seeds)
    one_by_one = rollout.generate(still_model, texts, replace(small_settings(), eta=0.9, batch_size=1), seeds)
    torch.testing.assert_close(pictures, one_by_one, rtol=0, atol=1e-5)
    assert pictures.shape == (3, 40, 40, 3)
    assert (pictures[0] - pictures[1]).abs().max() > 1e-3 and (pictures[0] - pictures[2]).abs().max() > 1e-3


def test_a_pictures_noise_is_that_of_its_seed_and_text(still_model, small_settings, monkeypatch):
    """Drawn again by NumPy and hashlib alone; the velocity stays away, so that the noise is what is decoded."""
    texts, seeds, seen = ["a red circle", "a blue square", "a red circle", "ä 日"], [1, 1, 2, 1], []
    monkeypatch.setattr(still_model, "velocity", lambda x, *rest: torch.zeros_like(x))
    decode = lambda latents, batch_size, texts: seen.append(latents) or torch.zeros(len(latents))  # noqa: E731
    monkeypatch.setattr(still_model, "decode", decode)
    rollout.generate(still_model, texts, small_settings(), seeds)
    rollout.generate(still_model, texts[::-1], small_settings(batch_size=3), seeds[::-1])
    for text, seed, latents, again in zip(texts, seeds, seen[0], torch.cat(seen[1:]).flip(0), strict=True):
        number = int(hashlib.sha256(text.encode()).hexdigest()[:16], 16)
        [state] = np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)
        drawn = torch.randn(latents.shape, generator=torch.Generator().manual_seed(int(state) & (2**63 - 1)))
        assert torch.equal(latents, drawn) and torch.equal(again, drawn)
    correlation = torch.corrcoef(seen[0].flatten(1)) - torch.eye(4)
    assert correlation.abs().max() < 0.2, "independent, also under one seed"


# --- without noise ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["euler", "adams_bashforth"])
def test_ode_samples_as_evaluation_does_and_every_level_is_trained(still_model, sample, small_settings, solver):
    settings = small_settings(kind="ode", shared_noise=False, ode_solver=solver)
    taken = sample(
        still_model, settings, keep_graph=bool(rollout.kept_calls(still_model, settings, [0, 0, 0, 1, 1, 1]))
    )
    assert taken.trained == (0, 1, 2, 3) and taken.stds == (0.0,) * 4 and taken.log_probs.shape == (6, 0)
    assert taken.kept is None and torch.equal(taken.final, taken.latents[:, -1])
    starts = taken.latents[:, 0]
    assert all(not torch.equal(starts[0], starts[row]) for row in range(1, 6))
    before, x = None, starts
    for step, (sigma, following) in enumerate(zip(taken.sigmas, taken.sigmas[1:], strict=False)):
        with torch.no_grad():
            velocity = still_model.velocity(
                x.to(still_model.device), sigma, still_model.embeddings(taken.texts), 3.5
            ).cpu()
        slope = 0.0
        if before is not None and solver != "euler":
            slope = (velocity - before[0]) * (following - sigma) / (2 * (sigma - before[1]))
        before, x = (velocity, sigma), x + (following - sigma) * (velocity + slope)
        torch.testing.assert_close(taken.latents[:, step + 1], x, rtol=0, atol=1e-5)
    # a step of second order leads elsewhere than to x̂0
    assert is_final(taken, 4) and is_final(taken, 3) == (solver == "euler")
    parts = sample(still_model, settings, batch_size=4)
    torch.testing.assert_close(parts.latents, taken.latents, rtol=0, atol=1e-5)


# --- whose weights sample -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("merge", [False, True])
def test_the_old_policy_samples_and_does_nothing_else(load_model, perturb, sample, small_settings, merge, tmp_path):
    model, settings = perturb(load_model()), small_settings(merge_adapter=merge)
    own = sample(model, settings)
    assert own.sampled_with == model.policy.samples_with == THETA
    model.policy.keep_old()
    perturb(model, seed=8, scale=0.05)
    trained = {name: value.clone() for name, value in model.policy.trained_state().items()}
    picture = rollout.generate(model, ["a red circle"], settings, [3])
    taken = sample(model, settings, keep_graph=True)
    assert taken.sampled_with == model.policy.samples_with == OLD and taken.kept is None
    torch.testing.assert_close(taken.latents, own.latents, rtol=0, atol=1e-5)
    for name, value in model.policy.trained_state().items():
        assert torch.equal(value, trained[name]), "θ is back to the bit"
    # Evaluations, the recomputed velocity and what is saved are θ's, or its average's.
    assert torch.equal(rollout.generate(model, ["a red circle"], settings, [3]), picture)
    model.policy.forget_old()
    assert torch.equal(rollout.generate(model, ["a red circle"], settings, [3]), picture)
    other = sample(model, settings)
    assert other.sampled_with == THETA and (other.latents - own.latents).abs().max() > 0.01
    rows = torch.arange(6)
    velocity = rollout.velocity_at(model, taken, 1, rows)
    model.policy.load_old_state(trained | {name: value + 1 for name, value in trained.items()}, 5)
    assert torch.equal(rollout.velocity_at(model, taken, 1, rows), velocity)
    [file] = lora.save(model, tmp_path / "a.safetensors", {})
    saved = lora.adapter_state(model, "transformer")
    fresh = load_model()
    lora.load(fresh, file)
    for name, value in lora.adapter_state(fresh, "transformer").items():
        torch.testing.assert_close(value, saved[name], rtol=1e-6, atol=1e-7)
    for name, value in fresh.policy.trained_state().items():
        torch.testing.assert_close(value, trained[name], rtol=1e-5, atol=1e-7)
    model.make_fresh()
    assert model.policy.samples_with == THETA and model.policy.old_steps == 0


def test_a_stopped_rollout_gives_the_trained_policy_back(load_model, perturb, sample):
    model = perturb(load_model())
    model.policy.keep_old()
    perturb(model, seed=8)
    trained = {name: value.clone() for name, value in model.policy.trained_state().items()}

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sample(model, on_step=stop)
    for name, value in model.policy.trained_state().items():
        assert torch.equal(value, trained[name])
