"""The FLUX adapter against diffusers' own pipeline, and what loading a broken folder says."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

from comfyui_otca.trainer import rollout
from comfyui_otca.trainer.flow import FlowModelError
from comfyui_otca.trainer.sde import transition

pytestmark = pytest.mark.anywhere

TEXTS = ["a red circle on a blue background", "a green square on a white background"]


@pytest.fixture(scope="module")
def pipeline(flux_folder):
    return FluxPipeline.from_pretrained(flux_folder, torch_dtype=torch.float32)


@pytest.fixture(scope="module")
def dev_folder(flux_folder, tmp_path_factory):
    """A checkpoint of FLUX.1-dev's kind: its transformer takes the guidance as an embedding."""
    folder = tmp_path_factory.mktemp("dev") / "flux-dev"
    config = dict(FluxTransformer2DModel.load_config(flux_folder / "transformer"))
    torch.manual_seed(3)
    transformer = FluxTransformer2DModel.from_config(config, guidance_embeds=True).eval()
    FluxPipeline.from_pretrained(flux_folder, transformer=transformer, torch_dtype=torch.float32).save_pretrained(
        folder
    )
    return folder


@pytest.fixture
def copied(flux_folder, tmp_path):
    return shutil.copytree(flux_folder, tmp_path / "copy")


def pack(x):
    """2 x 2 patches as tokens, row by row; channels first within a token."""
    batch, channels, height, width = x.shape
    patches = [
        x[:, :, row : row + 2, column : column + 2].reshape(batch, channels * 4)
        for row in range(0, height, 2)
        for column in range(0, width, 2)
    ]
    return torch.stack(patches, 1)


def by_hand(model, settings, noise, texts=TEXTS):
    """Euler's method with the adapter's sigmas and velocity."""
    sigmas, x = model.sigmas(settings), noise
    with torch.no_grad():
        for sigma, sigma_next in zip(sigmas, sigmas[1:], strict=False):
            velocity = model.velocity(x.to(model.device), sigma, model.embeddings(texts), settings.guidance).cpu()
            x = transition("ode", velocity, x, sigma, sigma_next, eta=0.0).mean
    return x


def by_pipeline(pipeline, settings, noise, length, output_type, texts=TEXTS):
    return pipeline(
        texts,
        height=settings.height,
        width=settings.width,
        num_inference_steps=settings.steps,
        guidance_scale=settings.guidance,
        latents=pack(noise),
        max_sequence_length=length,
        output_type=output_type,
    ).images


def noise_for(model, settings, count=2):
    shape = model.latent_shape(settings.height, settings.width)
    return torch.randn((count, *shape), generator=torch.Generator().manual_seed(11))


@pytest.mark.parametrize(("width", "height", "steps"), [(40, 40, 5), (48, 32, 4)])
def test_the_deterministic_sampler_is_the_pipelines(model, pipeline, small_settings, width, height, steps):
    settings = small_settings(width=width, height=height, steps=steps)
    noise = noise_for(model, settings)
    latents = by_hand(model, settings, noise)
    expected = by_pipeline(pipeline, settings, noise, model.max_sequence_length, "latent")
    torch.testing.assert_close(pack(latents), expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(model.sigmas(settings), tuple(pipeline.scheduler.sigmas.tolist()), rtol=0, atol=1e-6)
    pictures = by_pipeline(pipeline, settings, noise, model.max_sequence_length, "np")
    torch.testing.assert_close(model.decode(latents), torch.from_numpy(pictures), rtol=0, atol=1e-4)
    assert model.decode(latents).shape == (2, height, width, 3)


def test_a_picture_becomes_the_latents_that_decode_to_it(model, pipeline, small_settings):
    """Of pictures that the model can make; the latents are diffusers' own, the mean in the pipeline's scale."""
    texts, settings = ["a red circle on a blue background", "a green square on a white background"], small_settings()
    pictures = rollout.generate(model, texts, settings, [3, 4])
    latents = model.encode(pictures, batch_size=1)
    config, given = pipeline.vae.config, 2 * pictures.permute(0, 3, 1, 2) - 1
    with torch.no_grad():
        mean = pipeline.vae.encode(given).latent_dist.mean
    expected = (mean - config.shift_factor) * config.scaling_factor
    torch.testing.assert_close(latents, expected, rtol=0, atol=1e-5)
    assert latents.shape == (2, *model.latent_shape(40, 40)) and latents.dtype == torch.float32
    assert 0.7 < latents.std() < 1.4, "of the scale that the model was trained in"
    again = model.decode(latents)
    assert (again - pictures).abs().mean() < 0.01 and (again - pictures).abs().mean() < 0.05 * pictures.std()
    with pytest.raises(ValueError, match="multiples of 8"):
        model.encode(pictures[:, :38])


def test_evaluation_pictures_are_the_pipelines(model, pipeline, sample, small_settings):
    settings = small_settings(steps=5)
    # A group's shared noise at position 0 is what `generate` draws for the same seed.
    noise = torch.stack(
        [sample(model, settings, prompts=("x",), positions=(0,), seed=seed).latents[0, 0] for seed in (5, 6)]
    )
    assert (noise[0] - noise[1]).abs().max() > 0.1
    pictures = rollout.generate(model, TEXTS, replace(settings, batch_size=1), [5, 6])
    expected = by_pipeline(pipeline, settings, noise, model.max_sequence_length, "np")
    torch.testing.assert_close(pictures, torch.from_numpy(expected), rtol=0, atol=1e-4)


def test_a_fixed_shift_is_the_schedulers_too(model, small_settings):
    own = model.pipeline.scheduler
    settings = small_settings(steps=7)
    try:
        fixed = FlowMatchEulerDiscreteScheduler.from_config(own.config, use_dynamic_shifting=False, shift=3.0)
        model.pipeline.scheduler = fixed
        fixed.set_timesteps(sigmas=[1 - j / 7 for j in range(7)])
        assert model.sigmas(settings) == pytest.approx(fixed.sigmas.tolist(), abs=1e-6)
        # σ = 3u / (1 + 2u) at u = 6/7 is 18/19
        assert model.sigmas(settings)[1] == pytest.approx(18 / 19, abs=1e-9)
    finally:
        model.pipeline.scheduler = own
    assert model.sigmas(small_settings(steps=2, shift=4.0)) == pytest.approx((1.0, 0.8, 0.0))  # 4·½ / (1 + 3·½)


def test_a_guided_checkpoint_is_its_pipeline(load_model, dev_folder, small_settings):
    model = load_model(dev_folder)
    pipeline = FluxPipeline.from_pretrained(dev_folder, torch_dtype=torch.float32)
    results = []
    for guidance in (3.5, 1.0):
        settings = small_settings(guidance=guidance)
        noise = noise_for(model, settings)
        latents = by_hand(model, settings, noise)
        expected = by_pipeline(pipeline, settings, noise, model.max_sequence_length, "latent")
        torch.testing.assert_close(pack(latents), expected, rtol=0, atol=1e-4)
        results.append(latents)
    assert (results[0] - results[1]).abs().max() > 1e-3, "the guidance has no effect"


def velocity(model, settings, guidance=3.5):
    return model.velocity(noise_for(model, settings).to(model.device), 0.6, model.embeddings(TEXTS), guidance)


def test_gradient_reaches_the_whole_adapter_and_nothing_else(model, perturb, small_settings):
    perturb(model)
    velocity(model, small_settings()).square().mean().backward()
    parts = [getattr(model.pipeline, name) for name in model.COMPONENTS]
    with_gradient = {p for part in parts for p in part.parameters() if p.grad is not None}
    named = dict(model.transformer.named_parameters())
    assert (
        with_gradient == {p for name, p in named.items() if "lora_" in name} == set(model.policy.trainable_parameters())
    )
    for name, parameter in model.policy.trainable_named().items():
        assert parameter.dtype == torch.float32
        assert parameter.grad.abs().max() > 0, name
    adapted = {name.split(".lora_")[0] for name in model.policy.trainable_named()}
    assert adapted == {
        name
        for name, module in model.transformer.named_modules()
        if any(f".{name}".endswith(f".{target}") for target in model.LORA_TARGETS)
    }


@pytest.mark.host  # the pipeline that it is compared with is on the CPU
def test_a_new_adapter_changes_nothing_and_off_is_the_base(model, perturb, pipeline, small_settings):
    seen = {}
    model.transformer.register_forward_pre_hook(lambda _, __, inputs: seen.update(inputs), with_kwargs=True)
    with torch.no_grad():
        fresh = velocity(model, small_settings())
        inputs = dict(seen)
        perturb(model)
        moved = velocity(model, small_settings())
        with model.policy.reference():
            off = velocity(model, small_settings())
        again = velocity(model, small_settings())
        base = pipeline.transformer(**inputs)[0]
    assert torch.equal(fresh, off) and torch.equal(moved, again)
    torch.testing.assert_close(pack(off), base, rtol=0, atol=1e-5)
    assert (moved - off).abs().max() > 1e-3
    assert all("lora_" in name for name in model.policy.trainable_named()) and len(model.policy.trainable_named()) > 0


def test_adapter_seed_and_targets(load_model):
    one, same, other = load_model(seed=1), load_model(seed=1), load_model(seed=2)
    pairs = list(zip(*(m.policy.trainable_named().items() for m in (one, same, other)), strict=True))
    assert all(torch.equal(a[1], b[1]) for a, b, _ in pairs)
    assert all(torch.equal(a[1], c[1]) == ("lora_B" in a[0]) for a, _, c in pairs)
    names = load_model(lora_targets="attn.to_q, attn.to_k").policy.trainable_named()
    assert {name.split(".lora_")[0].rsplit("attn.", 1)[1] for name in names} == {"to_q", "to_k"}


def test_every_prompt_is_embedded_once(model):
    rows = []
    for encoder in (model.pipeline.text_encoder, model.pipeline.text_encoder_2):
        encoder.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    both = model.embeddings(["red", "blue", "red"])
    assert rows == [2, 2]
    swapped = model.embeddings(["blue", "red"])
    assert rows == [2, 2]
    model.embeddings(["blue", "green"])
    assert rows == [2, 2, 1, 1]
    for name, tensor in both.tensors.items():
        assert torch.equal(tensor[0], tensor[2]) and not torch.equal(tensor[0], tensor[1])
        assert torch.equal(swapped.tensors[name], tensor[[1, 0]])
    tokens, pooled, _ = model.pipeline.encode_prompt(["blue"], max_sequence_length=model.max_sequence_length)
    torch.testing.assert_close(both.tensors["tokens"][1:2], tokens, rtol=0, atol=1e-5)
    torch.testing.assert_close(both.tensors["pooled"][1:2], pooled, rtol=0, atol=1e-5)


def test_sequence_length(load_model):
    model = load_model()
    assert model.max_sequence_length == model.pipeline.tokenizer_2.model_max_length == 8
    assert load_model(max_sequence_length=5).embeddings(["a b"]).tensors["tokens"].shape[1] == 5


def test_sizes_that_the_model_cannot_make(still_model):
    assert still_model.latent_shape(48, 40) == (8, 12, 10)
    with pytest.raises(ValueError, match="width 44 and height 40 must be multiples of 8"):
        still_model.latent_shape(40, 44)


# --- folders that are not a model -----------------------------------------------------------------------------------


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def edit(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def more_clip_layers(folder):
    edit(folder / "text_encoder" / "config.json", num_hidden_layers=3)


def swap_weights(folder):
    shutil.copy(folder / "vae/diffusion_pytorch_model.safetensors", folder / "transformer")


# what breaks the folder, and the words that the error must have
BROKEN = {
    "gone": (shutil.rmtree, ["copy", "no model_index.json"]),
    "no index": (lambda f: (f / "model_index.json").unlink(), ["copy", "no model_index.json"]),
    "index no json": (lambda f: truncate(f / "model_index.json"), ["model_index.json"]),
    "index no object": (lambda f: (f / "model_index.json").write_text("[]"), ["model_index.json"]),
    "unknown family": (
        lambda f: edit(f / "model_index.json", _class_name="SanaPipeline"),
        ["SanaPipeline", "FluxPipe"],
    ),
    "truncated transformer": (
        lambda f: truncate(f / "transformer/diffusion_pytorch_model.safetensors"),
        ["transformer/diffusion_pytorch_model.safetensors", "truncated"],
    ),
    "truncated T5": (
        lambda f: truncate(f / "text_encoder_2/model.safetensors"),
        ["text_encoder_2/model.safetensors", "truncated"],
    ),
    "empty weights": (
        lambda f: (f / "vae/diffusion_pytorch_model.safetensors").write_bytes(b""),
        ["vae/diffusion_pytorch_model.safetensors"],
    ),
    "no vae": (lambda f: shutil.rmtree(f / "vae"), ["vae"]),
    "no weights": (lambda f: (f / "text_encoder/model.safetensors").unlink(), ["text_encoder", "safetensors"]),
    "no scheduler": (lambda f: shutil.rmtree(f / "scheduler"), ["copy", "scheduler"]),
    "no tokenizer": (lambda f: shutil.rmtree(f / "tokenizer_2"), ["copy", "tokenizer_2"]),
    "no config": (lambda f: (f / "transformer/config.json").unlink(), ["copy", "config.json"]),
    "truncated config": (lambda f: truncate(f / "transformer/config.json"), ["copy", "config.json"]),
    "foreign width": (
        lambda f: edit(f / "transformer/config.json", num_attention_heads=2, axes_dims_rope=[4, 14, 14]),
        [],
    ),
    "foreign depth": (lambda f: edit(f / "transformer/config.json", num_layers=3), ["transformer"]),
    "foreign text depth": (more_clip_layers, ["text_encoder"]),
    "foreign weights": (swap_weights, ["transformer"]),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_folder_is_refused(case, copied, load_model):
    damage, words = BROKEN[case]
    damage(copied)
    with pytest.raises(FlowModelError) as caught:
        load_model(copied)
    for word in [str(copied), "Fix: ", *words]:
        assert word in str(caught.value)
