"""One call of a network with samples at different noise levels, in every family."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from comfyui_otca.tests.tiny import models as tiny
from comfyui_otca.tests.training import judged
from comfyui_otca.trainer.families.base import noise_levels
from comfyui_otca.trainer.flow import load_flow_model
from comfyui_otca.trainer.grpo import UpdateSettings, update


@pytest.fixture(params=list(tiny.SIZES))
def model(request, perturb, tiny_folder):
    folder = tiny_folder(request.param)
    return perturb(load_flow_model(folder, lora_rank=2, lora_alpha=3.0, device="cpu")), tiny.SIZES[request.param]


@pytest.mark.parametrize("sigma", [0.3, torch.tensor([0.3, 0.3], dtype=torch.float64)])
def test_float64_stays_on_the_cpu(sigma):
    """Apple's devices have no float64."""
    levels = noise_levels(sigma, torch.empty((2, 4, 1, 1), device="meta"))
    assert levels.device.type == "cpu" and levels.tolist() == [0.3, 0.3]


def test_a_batch_over_several_steps_changes_no_gradient(model, sample, small_settings):
    model, size = model
    taken = sample(model, small_settings(**size, guidance=3.0, steps=4))
    advantages = judged(taken, 2)
    calls, results = [], []
    time = "t" if "z-image" in str(model.path) else "timestep"
    for network in model.experts.values():
        network.register_forward_pre_hook(
            lambda _, __, inputs: calls.append(inputs[time].flatten().unique().numel()), with_kwargs=True
        )
    for batch_size in (0, 100):
        model.policy.version = taken.policy_version
        calls.clear()
        update(model, taken, advantages, replace(UpdateSettings(0.0, max_grad_norm=1e9), batch_size=batch_size))
        named = model.policy.trainable_named()  # of Qwen-Image's last block, what is for the text has no gradient
        results.append({name: p.grad.clone() for name, p in named.items() if p.grad is not None})
        assert (max(calls) > 1) == bool(batch_size), "one call holds several levels"
    assert results[0] and results[0].keys() == results[1].keys()
    for name, gradient in results[0].items():
        torch.testing.assert_close(results[1][name], gradient, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
