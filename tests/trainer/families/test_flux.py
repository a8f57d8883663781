"""The embedded model against diffusers' own pipeline, and what loading a broken folder says."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline

from comfyui_otca.trainer import rollout
from comfyui_otca.trainer.families.latents import packed
from comfyui_otca.trainer.flow import FlowModelError

pytestmark = pytest.mark.anywhere

TEXTS = ["a red circle on a blue background", "a green square on a white background"]


@pytest.fixture(scope="module")
def pipeline(flux_folder):
    return FluxPipeline.from_pretrained(flux_folder, torch_dtype=torch.float32)


@pytest.fixture
def copied(flux_folder, tmp_path):
    return shutil.copytree(flux_folder, tmp_path / "copy")


def test_evaluation_pictures_are_the_pipelines_and_become_latents_that_decode_to_them(model, pipeline, small_settings):
    settings = small_settings(steps=5)
    shape = model.sample_shape(TEXTS, settings)
    noise = torch.stack([rollout.evaluated_noise(shape, *of) for of in zip((5, 6), TEXTS, strict=True)])
    pictures = rollout.generate(model, TEXTS, replace(settings, batch_size=1), [5, 6])
    asked = {"height": 40, "width": 40, "num_inference_steps": 5, "max_sequence_length": model.max_sequence_length}
    expected = pipeline(TEXTS, latents=packed(noise), output_type="np", **asked).images
    torch.testing.assert_close(pictures, torch.from_numpy(expected), rtol=0, atol=1e-4)
    latents = model.encode(pictures, batch_size=1)
    again = model.decode(latents)
    assert 0.7 < latents.std() < 1.4, "of the scale that the model was trained in"
    assert (again - pictures).abs().mean() < 0.01 and (again - pictures).abs().mean() < 0.05 * pictures.std()
    with pytest.raises(ValueError, match="multiples of 8"):
        model.encode(pictures[:, :38])


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


def velocity(model):
    noise = torch.randn((2, *model.latent_shape(40, 40)), generator=torch.Generator().manual_seed(11))
    return model.velocity(noise.to(model.device), 0.6, model.embeddings(TEXTS), 3.5)


@pytest.mark.host  # the pipeline that it is compared with is on the CPU
def test_a_new_adapter_changes_nothing_and_off_is_the_base(model, perturb, pipeline):
    seen = {}
    model.transformer.register_forward_pre_hook(lambda _, __, inputs: seen.update(inputs), with_kwargs=True)
    with torch.no_grad():
        fresh = velocity(model)
        inputs = dict(seen)
        perturb(model)
        moved = velocity(model)
        with model.policy.reference():
            off = velocity(model)
        again = velocity(model)
        base = pipeline.transformer(**inputs)[0]
    assert torch.equal(fresh, off) and torch.equal(moved, again)
    torch.testing.assert_close(packed(off), base, rtol=0, atol=1e-5)
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


VAE, TRANSFORMER = (f"{name}/diffusion_pytorch_model.safetensors" for name in ("vae", "transformer"))
T5, CONFIG = "text_encoder_2/model.safetensors", "transformer/config.json"

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
    "truncated transformer": (lambda f: truncate(f / TRANSFORMER), [TRANSFORMER, "truncated"]),
    "truncated T5": (lambda f: truncate(f / T5), [T5, "truncated"]),
    "empty weights": (lambda f: (f / VAE).write_bytes(b""), [VAE]),
    "no vae": (lambda f: shutil.rmtree(f / "vae"), ["vae"]),
    "no weights": (lambda f: (f / "text_encoder/model.safetensors").unlink(), ["text_encoder", "safetensors"]),
    "no scheduler": (lambda f: shutil.rmtree(f / "scheduler"), ["copy", "scheduler"]),
    "no tokenizer": (lambda f: shutil.rmtree(f / "tokenizer_2"), ["copy", "tokenizer_2"]),
    "no config": (lambda f: (f / CONFIG).unlink(), ["copy", "config.json"]),
    "truncated config": (lambda f: truncate(f / CONFIG), ["copy", "config.json"]),
    "foreign width": (lambda f: edit(f / CONFIG, num_attention_heads=2, axes_dims_rope=[4, 14, 14]), []),
    "foreign depth": (lambda f: edit(f / CONFIG, num_layers=3), ["transformer"]),
    "foreign text depth": (lambda f: edit(f / "text_encoder/config.json", num_hidden_layers=3), ["text_encoder"]),
    "foreign weights": (lambda f: shutil.copy(f / VAE, f / "transformer"), ["transformer"]),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_folder_is_refused(case, copied, load_model):
    damage, words = BROKEN[case]
    damage(copied)
    with pytest.raises(FlowModelError) as caught:
        load_model(copied)
    for word in [str(copied), "Fix: ", *words]:
        assert word in str(caught.value)
