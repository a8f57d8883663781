"""The Wan adapter against diffusers' own pipeline: one network and two, with and without guidance."""

from __future__ import annotations

import pytest
import torch
from diffusers import WanPipeline

from comfyui_otca.tests.tiny import models as tiny
from comfyui_otca.trainer import rollout
from comfyui_otca.trainer.flow import load_flow_model
from comfyui_otca.trainer.policy import lora
from comfyui_otca.trainer.sde import transition

pytestmark = pytest.mark.anywhere

TEXTS = ["a red circle on a blue background", "a green square"]


@pytest.fixture(scope="module", params=["wan21", "wan22", "wan22-5b"])
def folder(request, tiny_folder):
    return tiny_folder(request.param)


@pytest.fixture(scope="module")
def load(folder, device):
    return lambda: load_flow_model(folder, lora_rank=2, lora_alpha=3.0, device=device, dtype="float32")


@pytest.fixture(scope="module")
def still(load, perturb):
    """A model with a visible adapter, only to be looked at."""
    return perturb(load())


@pytest.fixture
def video(small_settings, folder):
    """video(guidance=…): 5 frames; σ goes 1, 0.9, 0.75, 0.5, 0, so both networks of Wan 2.2 act."""

    def settings(**changes):
        return small_settings(**{**tiny.SIZES[folder.name], "guidance": 1.0, **changes})

    return settings


def noise_for(model, settings, count=2):
    shape = model.latent_shape(settings.height, settings.width, settings.frames)
    return torch.randn((count, *shape), generator=torch.Generator().manual_seed(11))


@pytest.mark.parametrize(("guidance", "negative"), [(1.0, ""), (5.0, ""), (5.0, "a blue square")])
def test_the_deterministic_sampler_is_the_pipelines(folder, load, video, guidance, negative, monkeypatch):
    model, settings = load(), video(guidance=guidance, negative_prompt=negative)
    absent = {} if folder.name == "wan22" else {"transformer_2": None}
    pipeline = WanPipeline.from_pretrained(folder, torch_dtype=torch.float32, **absent)
    # The pipeline takes no noise levels of one's own, its scheduler does: T + 1 of them from 1 to 0.
    scheduler = pipeline.scheduler
    ours = [1 - j / settings.steps for j in range(settings.steps)]
    original = scheduler.set_timesteps
    monkeypatch.setattr(scheduler, "set_timesteps", lambda *_, device=None, **__: original(sigmas=ours, device=device))
    noise = noise_for(model, settings)
    asked = dict(
        height=settings.height,
        width=settings.width,
        num_frames=settings.frames,
        num_inference_steps=settings.steps,
        guidance_scale=guidance,
        negative_prompt=[negative] * 2,
        latents=noise,
        max_sequence_length=model.max_sequence_length,
    )
    expected = pipeline(TEXTS, output_type="latent", **asked).frames
    sigmas, x = model.sigmas(settings), noise
    condition = model.condition(TEXTS, settings)
    with torch.no_grad():
        for sigma, sigma_next in zip(sigmas, sigmas[1:], strict=False):
            velocity = model.velocity(x.to(model.device), sigma, condition, guidance).cpu()
            x = transition("ode", velocity, x, sigma, sigma_next, eta=0.0).mean
    torch.testing.assert_close(sigmas, tuple(scheduler.sigmas.tolist()), rtol=0, atol=1e-6)
    torch.testing.assert_close(x, expected, rtol=0, atol=1e-4)
    frames = torch.from_numpy(pipeline(TEXTS, output_type="np", **asked).frames)
    assert frames.shape == (2, 5, settings.height, settings.width, 3)
    torch.testing.assert_close(model.decode(x), frames, rtol=0, atol=1e-4)


@pytest.mark.parametrize("frames", [5, 1])
def test_a_video_becomes_the_autoencoders_latents(still, frames):
    videos = torch.rand((2, frames, 32, 64, 3), generator=torch.Generator().manual_seed(2))
    vae = still.pipeline.vae
    mean, std = (torch.tensor(of).view(-1, 1, 1, 1) for of in (vae.config.latents_mean, vae.config.latents_std))
    with torch.no_grad():
        seen = [(2 * video.permute(3, 0, 1, 2)[None] - 1).to(still.device) for video in videos]
        expected = [vae.encode(video).latent_dist.mean[0].cpu() for video in seen]
    latents = still.encode(videos)
    assert latents.shape == (2, *still.latent_shape(32, 64, frames))
    torch.testing.assert_close(latents, (torch.stack(expected) - mean) / std, rtol=0, atol=1e-5)
    if frames == 1:
        torch.testing.assert_close(still.encode(videos[:, 0]), latents)


def test_each_noise_level_has_its_expert(still, folder):
    high, low = still.expert(0.9), still.expert(0.8)
    assert high is still.pipeline.transformer
    assert low is (still.pipeline.transformer_2 if folder.name == "wan22" else high)
    assert still.expert(0.875) is high, "the boundary itself is the first network's, as in the pipeline"


def test_the_gradient_reaches_every_target_of_the_expert_that_acted(load, video, perturb, folder):
    model = perturb(load())
    settings = video(guidance=5.0)
    x, condition = noise_for(model, settings).to(model.device), model.condition(TEXTS, settings)
    model.velocity(x, 0.9, condition, 5.0).square().mean().backward()
    touched = {name for name, p in model.policy.trainable_named().items() if p.grad is not None}
    first = {name for name in model.policy.trainable_named() if not name.startswith("transformer_2.")}
    assert touched == first and all("lora_" in name for name in touched)
    for target in model.LORA_TARGETS:
        assert any(f"{target}.lora_A" in name for name in touched), target
    frozen = [name for name, p in model.transformer.named_parameters() if "lora_" not in name and p.grad is not None]
    assert frozen == []
    assert len(model.policy.trainable_named()) == len(first) * (2 if folder.name == "wan22" else 1)


def test_recomputed_log_probs_are_the_rollouts(still, sample, video):
    trajectories = sample(still, video(guidance=5.0))
    asked = trajectories.settings
    assert trajectories.images.shape == (6, 5, asked.height, asked.width, 3)
    assert trajectories.latents.shape == (6, 5, *still.latent_shape(asked.height, asked.width, 5))
    rows = torch.arange(6)
    for position, step in enumerate(trajectories.trained):
        velocity = rollout.velocity_at(still, trajectories, step, rows)
        gaussian = rollout.trained_transition(trajectories, step, velocity, rows)
        log_prob = gaussian.log_prob(trajectories.latents[:, step + 1].to(velocity.device))
        torch.testing.assert_close(log_prob.detach().cpu(), trajectories.log_probs[:, position], rtol=0, atol=1e-5)


def test_saved_and_loaded_it_is_the_same(still, load, video, tmp_path, folder):
    paths = lora.save(still, tmp_path / "a.safetensors", {})
    names = ["a_high_noise.safetensors", "a_low_noise.safetensors"] if folder.name == "wan22" else ["a.safetensors"]
    assert [path.name for path in paths] == names
    again, settings = load(), video()
    x = noise_for(still, settings).to(still.device)
    for sigma in (0.9, 0.5):
        before = again.velocity(x, sigma, again.condition(TEXTS, settings), 1.0)
        lora.load(again, tmp_path / "a.safetensors")
        loaded, trained = (m.velocity(x, sigma, m.condition(TEXTS, settings), 1.0) for m in (again, still))
        torch.testing.assert_close(loaded, trained, rtol=0, atol=1e-6)
        again = load()
        assert (before - trained).abs().max() > 1e-4


def test_adapters_have_the_names_that_comfyui_knows(still):
    for expert in still.experts:
        keys = {key.rsplit(".lora_", 1)[0] for key in lora.adapter_state(still, expert)}
        attention = {f"{kind}.{part}" for kind in ("self_attn", "cross_attn") for part in "qkvo"}
        assert keys == {f"diffusion_model.blocks.{n}.{p}" for n in (0, 1) for p in attention | {"ffn.0", "ffn.2"}}


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ((32, 32, 6), "frames 6 must be 4·k \\+ 1 for this model. Fix: for example 5"),
        ((24, 32, 5), "width 32 and height 24 must be multiples of (16|32)"),
    ],
)
def test_sizes_that_the_model_cannot_make(still, size, message):
    with pytest.raises(ValueError, match=message):
        still.latent_shape(*size)


def test_the_checkpoints_own_shift(still, video):
    assert still.shift(video()) == 3.0
    assert still.sigmas(video()) == pytest.approx((1.0, 0.9, 0.75, 0.5, 0.0))  # 3u / (1 + 2u) at u = 3/4, 1/2, 1/4


def test_guidance_of_its_own_for_the_second_expert(still, video, folder):
    settings = video(guidance=5.0, guidance_2=2.0)
    assert still.guidance_at(0.875, settings) == 5.0
    assert still.guidance_at(0.87, settings) == (2.0 if folder.name == "wan22" else 5.0)
    assert still.guidance_at(0.87, video(guidance=5.0)) == 5.0
    images = {
        second: rollout.generate(still, TEXTS[:1], video(guidance=5.0, guidance_2=second), [1])
        for second in (0.0, 2.0, 5.0)
    }
    torch.testing.assert_close(images[0.0], images[5.0], rtol=0, atol=0)
    assert torch.equal(images[0.0], images[2.0]) == (folder.name != "wan22")
