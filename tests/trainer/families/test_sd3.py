"""The SD3 adapter against diffusers' own pipeline, with and without T5 and classifier-free guidance."""

from __future__ import annotations

import pytest
import torch
from diffusers import StableDiffusion3Pipeline

from comfyui_otca.trainer import rollout
from comfyui_otca.trainer.flow import load_flow_model
from comfyui_otca.trainer.sde import transition

pytestmark = pytest.mark.anywhere

TEXTS = ["a red circle on a blue background", "a green square"]


@pytest.fixture(scope="module", params=["sd3", "sd3-without-t5"])
def folder(request, tiny_folder):
    return tiny_folder(request.param)


@pytest.fixture(scope="module")
def pipeline(folder):
    # diffusers wants to hear that T5 is missing on purpose
    absent = {} if folder.name == "sd3" else {"text_encoder_3": None, "tokenizer_3": None}
    return StableDiffusion3Pipeline.from_pretrained(folder, torch_dtype=torch.float32, **absent)


@pytest.fixture(scope="module")
def model(folder, device):
    return load_flow_model(folder, lora_rank=4, lora_alpha=4.0, device=device, dtype="float32")


def by_hand(model, settings, noise):
    sigmas, x = model.sigmas(settings), noise
    condition = model.condition(TEXTS, settings)
    with torch.no_grad():
        for sigma, sigma_next in zip(sigmas, sigmas[1:], strict=False):
            velocity = model.velocity(x.to(model.device), sigma, condition, settings.guidance).cpu()
            x = transition("ode", velocity, x, sigma, sigma_next, eta=0.0).mean
    return x


@pytest.mark.parametrize(("guidance", "negative"), [(1.0, ""), (4.5, ""), (4.5, "a blue square")])
@pytest.mark.parametrize(("width", "height"), [(32, 32), (24, 16)])
def test_the_deterministic_sampler_is_the_pipelines(model, pipeline, small_settings, guidance, negative, width, height):
    settings = small_settings(width=width, height=height, guidance=guidance, negative_prompt=negative)
    shape = model.latent_shape(height, width)
    assert shape == (8, height // 2, width // 2)
    noise = torch.randn((2, *shape), generator=torch.Generator().manual_seed(11))
    asked = dict(
        height=height,
        width=width,
        sigmas=[1 - j / settings.steps for j in range(settings.steps)],
        guidance_scale=guidance,
        negative_prompt=[negative] * 2,
        latents=noise,
        max_sequence_length=model.max_sequence_length,
    )
    expected = pipeline(TEXTS, output_type="latent", **asked).images
    latents = by_hand(model, settings, noise)
    torch.testing.assert_close(latents, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(model.sigmas(settings), tuple(pipeline.scheduler.sigmas.tolist()), rtol=0, atol=1e-6)
    pictures = torch.from_numpy(pipeline(TEXTS, output_type="np", **asked).images)
    torch.testing.assert_close(model.decode(latents), pictures, rtol=0, atol=1e-4)


def test_a_picture_becomes_the_pipelines_latents(model, pipeline):
    pictures = torch.rand((3, 24, 16, 3), generator=torch.Generator().manual_seed(2))
    config = pipeline.vae.config
    with torch.no_grad():
        mean = pipeline.vae.encode(2 * pictures.permute(0, 3, 1, 2) - 1).latent_dist.mean
    latents = model.encode(pictures, batch_size=2)
    assert latents.shape == (3, *model.latent_shape(24, 16))
    torch.testing.assert_close(latents, (mean - config.shift_factor) * config.scaling_factor, rtol=0, atol=1e-5)


def test_guidance_and_the_negative_prompt_matter(model, small_settings):
    noise = torch.randn((2, *model.latent_shape(32, 32)), generator=torch.Generator().manual_seed(11))
    one = {"width": 32, "height": 32}
    plain, guided, away = (
        by_hand(model, small_settings(**one, **more), noise)
        for more in ({"guidance": 1.0}, {"guidance": 4.5}, {"guidance": 4.5, "negative_prompt": "a green square"})
    )
    assert (plain - guided).abs().max() > 1e-3 and (guided - away).abs().max() > 1e-3


def test_the_gradient_reaches_every_target_and_only_those(model, small_settings, perturb):
    perturb(model)
    settings = small_settings(width=32, height=32, guidance=4.5)
    x = torch.randn((2, *model.latent_shape(32, 32)), generator=torch.Generator().manual_seed(1))
    model.velocity(x.to(model.device), 0.7, model.condition(TEXTS, settings), 4.5).square().mean().backward()
    adapters = model.policy.trainable_named()
    assert adapters and all("lora_" in name for name in adapters)
    for name, parameter in adapters.items():
        assert parameter.grad is not None, name
    for target in model.LORA_TARGETS:
        assert any(f"{target}.lora_A" in name for name in adapters), target
    frozen = [name for name, p in model.transformer.named_parameters() if "lora_" not in name and p.grad is not None]
    assert frozen == []


def test_recomputed_log_probs_are_the_rollouts(model, sample, small_settings):
    settings = small_settings(width=32, height=32, guidance=4.5, negative_prompt="a blue square")
    trajectories = sample(model, settings)
    rows = torch.arange(6)
    for position, step in enumerate(trajectories.trained):
        velocity = rollout.velocity_at(model, trajectories, step, rows)
        gaussian = rollout.trained_transition(trajectories, step, velocity, rows)
        log_prob = gaussian.log_prob(trajectories.latents[:, step + 1].to(velocity.device))
        torch.testing.assert_close(log_prob.detach().cpu(), trajectories.log_probs[:, position], rtol=0, atol=1e-5)


def test_an_odd_size_is_refused(model):
    with pytest.raises(ValueError, match="width 30 and height 32 must be multiples of 4 for this model. Fix: "):
        model.latent_shape(32, 30)
