"""Adapter files: back into our own model, into diffusers, and what refuses to load."""

from __future__ import annotations

import json
import re

import pytest
import safetensors.torch
import torch
from diffusers import FluxPipeline, FluxTransformer2DModel
from peft import LoraConfig
from peft.utils import set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file

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


def velocity(model):
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


@pytest.mark.host  # what diffusers and peft load is on the CPU
@pytest.mark.parametrize("loader", ["diffusers", "peft"])
def test_others_read_what_is_written(trained, file, flux_folder, loader):
    network = FluxTransformer2DModel.from_pretrained(flux_folder, subfolder="transformer")
    if loader == "diffusers":
        pipeline = FluxPipeline.from_pretrained(flux_folder, transformer=network)
        pipeline.load_lora_weights(file.parent, weight_name=file.name, adapter_name="default")
    else:
        state = {key.removeprefix("transformer."): value for key, value in load_file(file).items()}
        network.add_adapter(LoraConfig(r=4, lora_alpha=4, target_modules=list(trained.LORA_TARGETS)))
        assert not set_peft_model_state_dict(network, state).unexpected_keys
    for layer, pair in trained.adapters["transformer"].pairs().items():
        theirs = network.get_submodule(layer).get_delta_weight("default").detach()
        assert theirs.any()
        torch.testing.assert_close(theirs, pair.scale * (pair.b @ pair.a).detach().cpu(), rtol=0, atol=1e-6)


def test_metadata(trained, file):
    """Its own, and the base model by the names of the field, by which LoRA managers sort."""
    metadata = read_metadata(file)
    assert metadata["modelspec.architecture"] == "flux-1-dev/lora" and metadata["ss_base_model_version"] == "flux1"
    assert (metadata["ss_network_dim"], metadata["ss_network_alpha"]) == ("4", "4"), "B holds what alpha did"
    assert metadata["modelspec.title"] == "a" and metadata["otca_base"] == trained.identity
    assert json.loads(metadata["prompt"]) == {"1": {"x": [1, "ü"]}} and metadata["note"] == "n"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"lora_rank": 2}, "a.safetensors needs rank 4 here, and lora_rank is 2. Fix: lora_rank = 4"),
        ({"lora_targets": "attn.to_q"}, "which gets no adapter. Fix: lora_targets empty"),
    ],
)
def test_more_than_the_adapter_holds_is_refused(file, load_model, options, told):
    other = load_model(**options)
    before = velocity(other)
    with pytest.raises(ValueError, match=told):
        lora.load(other, file)
    assert torch.equal(velocity(other), before)


def test_a_smaller_rank_and_fewer_layers_go_on_with_the_rest_at_nothing(load_model, perturb, tmp_path, caplog):
    """What is added can be trained: its A is a fresh adapter's, and only its B is 0."""
    small = perturb(load_model(lora_rank=3, lora_alpha=6.0, lora_targets="to_q,to_k"))
    lora.save(small, tmp_path / "a.safetensors", {})
    large = load_model(lora_rank=5, lora_alpha=2.0)
    with caplog.at_level("INFO"):
        lora.load(large, tmp_path / "a.safetensors")
    assert re.search(r"a.safetensors has \d+ of \d+ layers: the others begin at 0", caplog.text)
    torch.testing.assert_close(velocity(large), velocity(small), rtol=0, atol=1e-5)
    x = torch.ones((1, *large.latent_shape(40, 40)), device=large.device)
    large.velocity(x, 0.7, large.embeddings(["a red circle"]), 3.5).sum().backward()
    assert all(p.grad.abs().amax(0).all() for name, p in large.policy.trainable_named().items() if "lora_B" in name)


def test_a_truncated_file_is_refused(file, load_model):
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"a\.safetensors is truncated"):
        lora.load(load_model(lora_alpha=6.0), file)


@pytest.mark.parametrize("dtype", [None, torch.float16])
def test_it_is_as_precise_as_the_network_unless_asked(trained, tmp_path, monkeypatch, dtype):
    """Seen before: float32 for networks of bfloat16, twice the size."""
    monkeypatch.setattr(trained, "dtype", torch.bfloat16)
    [path] = lora.save(trained, tmp_path / "small.safetensors", {}, dtype)
    tensors = load_file(path)
    assert {tensor.dtype for tensor in tensors.values()} == {dtype or torch.bfloat16}
    for key, tensor in lora.adapter_state(trained, "transformer").items():
        assert torch.equal(tensors[key], tensor.to(dtype or torch.bfloat16))


def test_names_stay_in_their_folder(trained, tmp_path):
    assert lora.save_named(trained, tmp_path, "good name", {}) == [tmp_path / "good name.safetensors"]
    for name in ("", "../up", "a/b", ".hidden", "/abs"):
        with pytest.raises(ValueError, match="(must|is empty).*Fix: "):
            lora.save_named(trained, tmp_path, name, {})


def test_a_full_disk_leaves_the_file_that_was_there(trained, tmp_path, monkeypatch):
    (path,) = lora.save_named(trained, tmp_path, "mine", {})
    before, full = path.read_bytes(), SafetensorError("I/O error: No space left on device (os error 28)")
    monkeypatch.setattr(safetensors.torch, "save_file", lambda *_, **__: (_ for _ in ()).throw(full))
    with pytest.raises(OSError, match=r"filename 'mine' was not written, and .* No space left .* Fix: free the disk"):
        lora.save_named(trained, tmp_path, "mine", {})
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_the_average_is_what_gets_saved(trained, tmp_path, load_model):
    trained.policy.optimizer_for(UpdateSettings(learning_rate=0.0, ema_decay=0.9))
    average = velocity(trained)
    for parameter in trained.policy.trainable_parameters():
        parameter.data.mul_(2)
    (path,) = lora.save_named(trained, tmp_path, "ema", {})
    other = load_model()
    lora.load(other, path)
    torch.testing.assert_close(velocity(other), average, rtol=0, atol=1e-5)


def test_what_cannot_be_put_on(model, tmp_path):
    before = velocity(model)
    with pytest.raises(FileNotFoundError, match=r"a.safetensors: no such adapter. Fix: "):
        lora.put_on(model, tmp_path / "a.safetensors")
    assert torch.equal(velocity(model), before)
