"""The negative half of classifier-free guidance without gradient: the same velocity, the other half's gradient alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from comfyui_otca.tests.tiny import models as tiny
from comfyui_otca.tests.training import judged
from comfyui_otca.trainer.families.base import EXAMPLE
from comfyui_otca.trainer.families.condition import NEGATIVE, Condition
from comfyui_otca.trainer.flow import load_flow_model
from comfyui_otca.trainer.grpo import UpdateSettings, update
from comfyui_otca.trainer.run import checkpoint
from comfyui_otca.trainer.types import NextRollout

pytestmark = pytest.mark.anywhere

TEXTS = ["a red circle on a blue background", "a green square"]
GUIDANCE = 4.5
FULL = UpdateSettings(learning_rate=0.0, max_grad_norm=1e9)
HALF = replace(FULL, unconditional_gradient=False)


HALVED = [family for family in tiny.SIZES if family != "flux2-dev"]  # whose guidance has no half


@pytest.fixture(scope="module", params=HALVED)
def folder(request, tiny_folder):
    return tiny_folder(request.param)


@pytest.fixture
def load(folder, perturb, device):
    usual = {"lora_rank": 2, "lora_alpha": 2.0, "device": device, "dtype": "float32"}
    return lambda **options: perturb(load_flow_model(folder, **{**usual, **options}))


@pytest.fixture
def guided(folder, small_settings):
    return small_settings(**tiny.SIZES[folder.name], guidance=GUIDANCE, negative_prompt="a blue square")


@pytest.fixture
def noise(load, guided):
    shape = load().latent_shape(guided.height, guided.width, guided.frames)
    return torch.randn((2, *shape), generator=torch.Generator().manual_seed(3))


def gradients(model):
    found = {name: p.grad.clone() for name, p in model.policy.trainable_named().items() if p.grad is not None}
    for parameter in model.policy.trainable_parameters():
        parameter.grad = None
    return found


def distance(one, other):
    assert one.keys() == other.keys() and one
    difference = sum((one[name] - other[name]).double().square().sum() for name in one)
    return (difference / sum(gradient.double().square().sum() for gradient in other.values())).sqrt().item()


def halves(model, condition):
    """The positive and the negative condition, each without guidance."""
    both = condition.tensors, condition.lengths
    positive = Condition(*({name: of[name] for name in of if not name.startswith(NEGATIVE)} for of in both))
    negative = condition.negative()
    assert positive.tensors and negative.tensors.keys() == positive.tensors.keys()
    return positive, negative


@pytest.mark.parametrize("sigma", [0.9, 0.5])  # Wan 2.2 has one network for each
def test_the_velocity_is_the_same_and_the_gradient_that_of_the_positive_half(load, guided, noise, sigma):
    model = load()
    condition = model.condition(TEXTS, guided)
    # Of one direction and not of the square: the norm may be the positive half's alone.
    direction = torch.randn(noise.shape, generator=torch.Generator().manual_seed(5)).to(model.device)

    def velocity(unconditional):
        model.memo.keep(NextRollout(unconditional))
        result = model.velocity(noise.to(model.device), sigma, condition, GUIDANCE)
        (result * direction).mean().backward()
        return result.detach(), gradients(model)

    (full, both), (half, one) = velocity(True), velocity(False)
    torch.testing.assert_close(half, full, rtol=1e-5, atol=1e-5)
    positive, negative = (model.velocity(noise.to(model.device), sigma, part, 1.0) for part in halves(model, condition))
    by_hand = model.guided(positive, negative.detach(), GUIDANCE)
    torch.testing.assert_close(full, by_hand.detach(), rtol=1e-5, atol=1e-5)
    (by_hand * direction).mean().backward()
    assert distance(one, gradients(model)) < 1e-5
    assert distance(one, both) > 0.05


def test_without_gradient_both_halves_are_called_as_before(load, guided, noise):
    model, calls = load(), []
    for network in model.experts.values():
        network.register_forward_pre_hook(
            lambda module, args, kwargs: calls.append((len(kwargs[model.LATENTS]), torch.is_grad_enabled())),
            with_kwargs=True,
        )
    condition = model.condition(TEXTS, guided)
    with torch.no_grad():
        before = model.velocity(noise.to(model.device), 0.9, condition, GUIDANCE)
        plain = calls.copy()
        model.memo.keep(NextRollout(unconditional_gradient=False))
        assert torch.equal(model.velocity(noise.to(model.device), 0.9, condition, GUIDANCE), before)
    assert calls == plain * 2
    model.velocity(noise.to(model.device), 0.9, condition, GUIDANCE)
    assert sorted(calls[-2:]) == [(2, False), (2, True)]


def test_autograd_saves_half(load, guided):
    model, guided = load(), replace(guided, negative_prompt=EXAMPLE)
    full = model.graph_bytes(guided)
    model.memo.keep(NextRollout(unconditional_gradient=False))
    # Both halves of Qwen-Image save one table of positions, which is large beside a tiny network.
    assert 0.4 * full < model.graph_bytes(guided) < 0.75 * full


def test_in_bfloat16_the_half_without_gradient_leaves_no_casts_behind(load, guided, noise):
    model = load(dtype="bfloat16")
    model.memo.keep(NextRollout(unconditional_gradient=False))
    model.velocity(noise.to(model.device), 0.9, model.condition(TEXTS, guided), GUIDANCE).square().mean().backward()
    found = gradients(model)
    for target in model.LORA_TARGETS:
        assert any(f"{target}.lora_A" in name and gradient.abs().max() > 0 for name, gradient in found.items()), target


def test_kept_and_recomputed_updates_agree_and_a_graph_of_the_other_kind_is_not_used(load, guided, sample):
    model = load()
    with_gradient = []
    for network in model.experts.values():
        network.register_forward_pre_hook(lambda *_: with_gradient.append(torch.is_grad_enabled()))

    def run(settings, keep_graph):
        taken = sample(model, guided, keep_graph=keep_graph)
        with_gradient.clear()
        update(model, taken, judged(taken, 4), settings)
        model.policy.version = 0
        return gradients(model), sum(with_gradient)

    full, recomputed = run(FULL, keep_graph=False)
    assert recomputed > 0
    half, number = run(HALF, keep_graph=True)
    assert number > 0, "the rollout kept a graph of both halves, which is another gradient"
    kept, number = run(HALF, keep_graph=True)
    assert number == 0, "the rollout knows by now"
    assert distance(kept, half) < 1e-4 and distance(half, full) > 0.05
    again, number = run(FULL, keep_graph=True)
    assert number > 0 and distance(again, full) < 1e-4


def test_a_checkpoint_remembers_it(load, guided, sample, tmp_path):
    model = load()
    taken = sample(model, guided)
    update(model, taken, judged(taken, 4), HALF)
    checkpoint.save(model, tmp_path, 1)
    again = load()
    assert again.memo[NextRollout].unconditional_gradient
    checkpoint.restore(again, tmp_path)
    assert not again.memo[NextRollout].unconditional_gradient
