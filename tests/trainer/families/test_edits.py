"""Edit models of diffusers folders: a prompt's pictures enter the network as in the pipeline, each of its own size."""

from __future__ import annotations

import sys

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image

from comfyui_otca.tests.tiny import models as tiny
from comfyui_otca.tests.training import assert_recomputed
from comfyui_otca.trainer.families import given
from comfyui_otca.trainer.families.edits import resized
from comfyui_otca.trainer.families.latents import packed, unpacked
from comfyui_otca.trainer.families.sizes import KONTEXT_SIZES, area_size, kontext_size
from comfyui_otca.trainer.flow import load_flow_model
from comfyui_otca.trainer.prompts import PromptError
from comfyui_otca.trainer.sde import transition
from comfyui_otca.trainer.types import Prompt

TEXTS = ["make the circle blue", "remove the square from this picture"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Three files of different sizes and shapes, in a folder that may be read."""
    folder, generator = tmp_path_factory.mktemp("sources"), np.random.default_rng(0)
    files = {folder / "wide.png": (24, 50), folder / "tall.png": (60, 33), folder / "square.png": (32, 32)}
    for file, size in files.items():
        Image.fromarray(generator.integers(0, 256, (*size, 3), np.uint8)).save(file)
    return list(map(str, files))


@pytest.fixture(scope="module")
def prompts(pictures):
    return [Prompt(text, {"image": name}) for text, name in zip(TEXTS, pictures, strict=False)]


@pytest.fixture(scope="module")
def kontext(tiny_folder, perturb):
    return perturb(load_flow_model(tiny_folder("flux-kontext"), lora_rank=2, lora_alpha=3.0, device="cpu"))


@pytest.fixture
def settings(small_settings):
    return lambda **changes: small_settings(**{"width": 32, "height": 32, "guidance": 3.5, **changes})


def noise_for(model, asked, count=2):
    shape = model.sample_shape(["a"] * count, asked)
    return torch.randn((count, *shape), generator=torch.Generator().manual_seed(11))


def walked(model, texts, asked, noise):
    condition, sigmas, x = model.condition(texts, asked), model.sigmas(asked), noise
    with torch.no_grad():
        for sigma, sigma_next in zip(sigmas, sigmas[1:], strict=False):
            velocity = model.velocity(x, sigma, condition, asked.guidance)
            x = transition("ode", velocity, x, sigma, sigma_next, eta=0.0).mean
    return x


@pytest.mark.parametrize(("width", "height"), [(32, 32), (40, 24)])
def test_kontexts_deterministic_sampler_is_the_pipelines(tiny_folder, prompts, pictures, settings, width, height):
    model = load_flow_model(tiny_folder("flux-kontext"), device="cpu")
    pipeline = diffusers.FluxKontextPipeline.from_pretrained(tiny_folder("flux-kontext"), torch_dtype=torch.float32)
    asked = settings(width=width, height=height)
    noise = noise_for(model, asked)
    x = walked(model, prompts, asked, noise)
    for row, (text, file) in enumerate(zip(TEXTS, pictures, strict=False)):
        source = Image.open(file)
        size = kontext_size(*source.size, width * height, model.latent_grid.unit)
        assert size[0] != size[1], "not the shape of what is sampled"
        arguments = dict(width=width, height=height, max_area=width * height, num_inference_steps=asked.steps)
        latents = pipeline(
            Image.fromarray(resized(np.asarray(source), *size)),
            text,
            latents=packed(noise[row : row + 1]),
            guidance_scale=asked.guidance,
            max_sequence_length=model.max_sequence_length,
            output_type="latent",
            _auto_resize=False,
            **arguments,
        ).images
        expected = unpacked(latents, *noise.shape[-2:])
        torch.testing.assert_close(x[row : row + 1], expected, rtol=0, atol=1e-4)


@pytest.fixture(scope="module", params=["qwen-image-edit", "qwen-image-edit-plus"])
def qwen(request, tiny_folder):
    return load_flow_model(tiny_folder(request.param), lora_rank=2, lora_alpha=3.0, device="cpu")


@pytest.mark.parametrize(("guidance", "negative"), [(1.0, ""), (4.0, "a blue square")])
def test_qwen_image_edits_deterministic_sampler_is_the_pipelines(
    qwen, prompts, pictures, settings, guidance, negative, monkeypatch
):
    """The pipelines scale pictures to 1024 x 1024, which are scaled to the area of what is sampled here."""
    asked = settings(width=64, height=64, guidance=guidance, negative_prompt=negative)
    pipeline = getattr(diffusers, qwen.PIPELINE).from_pretrained(
        qwen.path, torch_dtype=torch.float32, processor=qwen.pipeline.processor
    )
    module = sys.modules[type(pipeline).__module__]
    is_plus = qwen.PIPELINE == "QwenImageEditPlusPipeline"
    if is_plus:
        monkeypatch.setattr(module, "VAE_IMAGE_SIZE", 64 * 64)
    else:
        own = module.calculate_dimensions
        monkeypatch.setattr(module, "calculate_dimensions", lambda area, ratio: own(64 * 64, ratio))
    texts = [*prompts, Prompt(TEXTS[0], {"images": pictures[:2]})] if is_plus else prompts
    noise = noise_for(qwen, asked, len(texts))
    x = walked(qwen, texts, asked, noise)
    for row, text in enumerate(texts):
        shown = [Image.open(name) for name in given.named(text)]
        latents = pipeline(
            shown if is_plus else shown[0],
            str(text),
            negative_prompt=negative,
            true_cfg_scale=guidance,
            width=64,
            height=64,
            num_inference_steps=asked.steps,
            latents=packed(noise[row : row + 1]),
            output_type="latent",
        ).images
        expected = unpacked(latents, *noise.shape[-2:])
        torch.testing.assert_close(x[row : row + 1], expected, rtol=0, atol=1e-4)


def test_qwen_image_edit_needs_a_picture_and_knows_the_one_of_its_prompt(qwen, pictures, settings, perturb, sample):
    asked = settings(width=64, height=64, guidance=4.0)
    with pytest.raises(PromptError, match="prompt 'a' has no image, and this model edits pictures. Fix: "):
        qwen.condition(["a"], asked)
    texts = [Prompt(TEXTS[0], {"image": name}) for name in (*pictures, pictures[0])]
    x = noise_for(qwen, asked, 1).expand(4, -1, -1, -1)
    found = qwen.velocity(x, 0.7, qwen.condition(texts, asked), 4.0)
    assert (found[0] - found[1]).abs().max() > 1e-3 and (found[0] - found[2]).abs().max() > 1e-3
    torch.testing.assert_close(found[0], found[3], rtol=0, atol=1e-6)
    assert qwen.graph_bytes(asked) > 0
    model = perturb(qwen)
    assert_recomputed(model, sample(model, asked, prompts=tuple(texts[:2]))).backward()
    assert all(
        parameter.grad is not None
        for name, parameter in model.policy.trainable_named().items()
        if "transformer_blocks.1.attn.to_add_out" not in name and "transformer_blocks.1.txt_mlp" not in name
    ), "all that the picture depends on"
    model.policy.forget_gradients()
    model.policy.make_fresh()


def test_qwen_image_edits_sizes_are_its_makers():
    from diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_plus import calculate_dimensions

    for width, height in ((640, 480), (333, 1000), (1024, 1024), (1920, 1080)):
        assert area_size(width, height, 1024 * 1024) == calculate_dimensions(1024 * 1024, width / height)


def test_kontexts_sizes_are_its_makers():
    from diffusers.pipelines.flux.pipeline_flux_kontext import PREFERRED_KONTEXT_RESOLUTIONS

    assert list(KONTEXT_SIZES) == PREFERRED_KONTEXT_RESOLUTIONS
    for width, height in KONTEXT_SIZES:
        assert kontext_size(3 * width, 3 * height, 1024 * 1024, 16) == (width, height)
    assert kontext_size(300, 200, 512 * 512, 16) == (624, 416), "half of 1248 x 832"


def test_the_picture_matters_and_belongs_to_its_prompt(kontext, pictures, settings):
    asked = settings()
    texts = [Prompt(TEXTS[0], {"image": name}) for name in (*pictures, pictures[0])] + [TEXTS[0]]
    x = noise_for(kontext, asked, 1).expand(5, -1, -1, -1)
    found = kontext.velocity(x, 0.7, kontext.condition(texts, asked), 3.5)
    for row, other in ((0, 1), (0, 2), (1, 2), (0, 4), (2, 4)):
        assert (found[row] - found[other]).abs().max() > 1e-3, "equal texts, different pictures"
    torch.testing.assert_close(found[0], found[3], rtol=0, atol=1e-6)
    alone = kontext.velocity(x[1:2], 0.7, kontext.condition(texts[1:2], asked), 3.5)
    torch.testing.assert_close(alone, found[1:2], rtol=0, atol=1e-6)


def test_the_update_takes_the_same_transitions_again_and_has_a_gradient(kontext, sample, settings, prompts):
    assert_recomputed(kontext, sample(kontext, settings(), prompts=tuple(prompts))).backward()
    assert all(parameter.grad is not None for parameter in kontext.policy.trainable_parameters())
    kontext.policy.forget_gradients()


def test_more_pictures_than_the_model_takes(kontext, pictures, settings):
    with pytest.raises(PromptError, match="has 2 pictures, and this model takes 1. Fix: "):
        kontext.condition([Prompt("a", {"images": pictures[:2]})], settings())


def test_the_tiny_model_is_kontexts(tiny_folder):
    assert tiny.FAMILIES["flux-kontext"]().transformer.config.guidance_embeds
    assert load_flow_model(tiny_folder("flux-kontext"), device="cpu").checkpoint.edits == 1
