"""What Wan alone has: two networks that share the noise levels, videos, and names of its own in adapters' files."""

from __future__ import annotations

import pytest
import torch

from comfyui_otca.tests.tiny import models as tiny
from comfyui_otca.tests.trainer.families import test_pipelines
from comfyui_otca.trainer import rollout
from comfyui_otca.trainer.flow import load_flow_model

pytestmark = pytest.mark.anywhere

still, noise_for = test_pipelines.still, test_pipelines.noise_for
TEXTS = ["a red circle on a blue background", "a green square"]


@pytest.fixture(scope="module", params=["wan21", "wan22", "wan22-5b"])
def folder(request, tiny_folder):
    return tiny_folder(request.param)


@pytest.fixture(scope="module")
def load(folder, device):
    return lambda: load_flow_model(folder, lora_rank=2, lora_alpha=3.0, device=device, dtype="float32")


@pytest.fixture
def video(small_settings, folder):
    """video(guidance=…): 5 frames; σ goes 1, 0.9, 0.75, 0.5, 0, so both networks of Wan 2.2 act."""

    def settings(**changes):
        return small_settings(**{**tiny.SIZES[folder.name], "guidance": 1.0, **changes})

    return settings


def test_a_picture_is_a_video_of_one_frame(still):
    pictures = torch.rand((2, 32, 64, 3), generator=torch.Generator().manual_seed(2))
    latents = still.encode(pictures)
    assert latents.shape == (2, *still.latent_shape(32, 64, 1))
    torch.testing.assert_close(still.encode(pictures[:, None]), latents)


def test_each_noise_level_has_its_expert(still, folder):
    high, low = still.expert(0.9), still.expert(0.8)
    assert high is still.pipeline.transformer
    assert low is (still.pipeline.transformer_2 if folder.name == "wan22" else high)
    assert still.expert(0.875) is high, "the boundary itself is the first network's, as in the pipeline"


def test_only_the_expert_that_acted_has_a_gradient(load, video, perturb, folder):
    model, settings = perturb(load()), video(guidance=5.0)
    x, condition = noise_for(model, settings).to(model.device), model.condition(TEXTS, settings)
    model.velocity(x, 0.9, condition, 5.0).square().mean().backward()
    named = model.policy.trainable_named()
    first = {name for name in named if not name.startswith("transformer_2.")}
    assert {name for name, parameter in named.items() if parameter.grad is not None} == first
    assert len(named) == len(first) * (2 if folder.name == "wan22" else 1)


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


def test_guidance_of_its_own_for_the_second_expert(still, video, folder):
    settings = video(guidance=5.0, guidance_2=2.0)
    assert still.guidance_at(0.875, settings) == 5.0
    assert still.guidance_at(0.87, settings) == (2.0 if folder.name == "wan22" else 5.0)
    assert still.guidance_at(0.87, video(guidance=5.0)) == 5.0
    none, other, same = (
        rollout.generate(still, TEXTS[:1], video(guidance=5.0, guidance_2=second), [1]) for second in (0.0, 2.0, 5.0)
    )
    assert torch.equal(none, same) and torch.equal(none, other) == (folder.name != "wan22")
