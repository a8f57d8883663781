"""Adapter files: back into our own model, into diffusers, and what refuses to load."""

from __future__ import annotations

import json

import pytest
import torch
from diffusers import FluxPipeline

from comfyui_otca.trainer.grpo import UpdateSettings
from comfyui_otca.trainer.policy import lora
from comfyui_otca.trainer.policy.files import read_metadata

pytestmark = pytest.mark.anywhere


@pytest.fixture
def trained(load_model, perturb):
    """Rank 4 with alpha 6: a scale of 1.5."""
    return perturb(load_model(lora_alpha=6.0))


@pytest.fixture
def file(trained, tmp_path):
    path = tmp_path / "new" / "a.safetensors"
    assert lora.save(trained, path, {"prompt": {"1": {"x": [1, "ü"]}}, "note": "n"}) == [path]
    return path


def velocity(model, seen=None):
    if seen is not None:
        model.transformer.register_forward_pre_hook(lambda _, __, inputs: seen.update(inputs), with_kwargs=True)
    x = torch.randn((2, *model.latent_shape(40, 40)), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        return model.velocity(x.to(model.device), 0.7, model.embeddings(["a red circle", "a blue square"]), 3.5)


@pytest.mark.parametrize("alpha", [6.0, 4.0, 16.0])
def test_saved_and_loaded_is_the_same_model(trained, file, load_model, alpha):
    other = load_model(lora_alpha=alpha, seed=5)
    assert (velocity(other) - velocity(trained)).abs().max() > 1e-3
    lora.load(other, file)
    torch.testing.assert_close(velocity(other), velocity(trained), rtol=0, atol=1e-5)
    assert other.policy.trainable_named().keys() == trained.policy.trainable_named().keys(), (
        "the adapter stays trainable"
    )


@pytest.mark.host  # what diffusers loads is on the CPU
def test_diffusers_loads_it(trained, file, flux_folder):
    seen = {}
    velocity(trained, seen)
    pipeline = FluxPipeline.from_pretrained(flux_folder, torch_dtype=torch.float32)
    with torch.no_grad():
        base = pipeline.transformer(**seen)[0]
        pipeline.load_lora_weights(file.parent, weight_name=file.name)
        adapted = pipeline.transformer(**seen)[0]
        own = trained.transformer(**seen)[0]
    torch.testing.assert_close(adapted, own, rtol=0, atol=1e-5)
    assert (adapted - base).abs().max() > 1e-3


def test_metadata(file):
    metadata = read_metadata(file)
    assert json.loads(metadata["prompt"]) == {"1": {"x": [1, "ü"]}} and metadata["note"] == "n"


@pytest.mark.parametrize(
    ("options", "words"), [({"lora_rank": 8}, ["(4, ", "(8, "]), ({"lora_targets": "attn.to_q"}, ["nothing here"])]
)
def test_another_adapter_is_refused(file, load_model, options, words):
    other = load_model(**options)
    before = velocity(other)
    with pytest.raises(ValueError, match=r"transformer\.\S+\.lora_[AB]\.weight is .*Fix: ") as caught:
        lora.load(other, file)
    assert all(word in str(caught.value) for word in [str(file), *words])
    assert torch.equal(velocity(other), before)


def test_a_truncated_file_is_refused(file, load_model):
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"a\.safetensors is truncated"):
        lora.load(load_model(lora_alpha=6.0), file)


def test_names_stay_in_their_folder(trained, tmp_path):
    assert lora.save_named(trained, tmp_path, "good name", {}) == [tmp_path / "good name.safetensors"]
    for name in ("", "../up", "a/b", ".hidden", "/abs"):
        with pytest.raises(ValueError, match="(must|is empty).*Fix: "):
            lora.save_named(trained, tmp_path, name, {})


def test_the_average_is_what_gets_saved(trained, tmp_path, load_model):
    trained.policy.optimizer_for(UpdateSettings(learning_rate=0.0, ema_decay=0.9))
    average = velocity(trained)
    for parameter in trained.policy.trainable_parameters():
        parameter.data.mul_(2)
    (path,) = lora.save_named(trained, tmp_path, "ema", {})
    other = load_model()
    lora.load(other, path)
    torch.testing.assert_close(velocity(other), average, rtol=0, atol=1e-5)


# --- another rank or other targets ----------------------------------------------------------------------------------


@pytest.mark.parametrize("targets", ["", "to_q,to_k"])
def test_an_adapter_of_any_rank_and_targets_is_put_on(load_model, perturb, tmp_path, targets):
    trained = perturb(load_model(lora_rank=3, lora_alpha=6.0, lora_targets=targets))
    lora.save(trained, tmp_path / "a.safetensors", {})
    other = perturb(load_model(lora_rank=5), seed=1)
    base = load_model()
    lora.put_on(other, tmp_path / "a.safetensors")
    torch.testing.assert_close(velocity(other), velocity(trained), rtol=0, atol=1e-5)
    assert (
        other.policy.trainable_named().keys() == trained.policy.trainable_named().keys()
        and other.policy.adapter.rank == 3
    )
    with other.policy.reference():
        torch.testing.assert_close(velocity(other), velocity(base), rtol=0, atol=1e-5)


def test_what_cannot_be_put_on(model, tmp_path):
    before = velocity(model)
    with pytest.raises(FileNotFoundError, match=r"a.safetensors: no such adapter. Fix: "):
        lora.put_on(model, tmp_path / "a.safetensors")
    lora.write_tensors(tmp_path / "a.safetensors", {"transformer.nothing.lora_A.weight": torch.zeros(2, 2)})
    with pytest.raises(ValueError, match="a.safetensors is not an adapter of this model.*fits no module of it.*Fix: "):
        lora.put_on(model, tmp_path / "a.safetensors")
    assert torch.equal(velocity(model), before)
