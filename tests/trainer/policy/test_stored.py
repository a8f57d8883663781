"""Layers that stay as their file stores them: the numbers of widened ones, in the memory of the file."""

from __future__ import annotations

import functools

import pytest
import torch
from safetensors.torch import load_file, save_file

from comfyui_otca.tests.device import conftest as training
from comfyui_otca.tests.tiny import models as tiny
from comfyui_otca.trainer import grpo
from comfyui_otca.trainer.families import weight_files
from comfyui_otca.trainer.flow import FlowModelError, load_flow_model
from comfyui_otca.trainer.policy import saved
from comfyui_otca.trainer.policy.stored import Float8, Gguf, StoredLinear
from comfyui_otca.trainer.types import UpdateSettings

from ..families import kept

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FORMS = {"scaled": (E4M3, ".scale_weight"), "new": (E4M3, ".weight_scale"), "plain": (E4M3, None), "e5m2": (E5M2, None)}


GGUF = ("Q8_0", "Q4_0", "BF16")
# Where a block of GGUF has its float16 scales; all its other bytes may be anything.
SCALES = {
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}


@pytest.fixture(scope="module")
def pair(flux_folder, tmp_path_factory):
    """pair(form): a file in 8 bits or fewer, and a folder with its numbers."""

    @functools.cache
    def of(form):
        if form in GGUF:
            pytest.importorskip("gguf")
            return kept.gguf(flux_folder, tmp_path_factory.mktemp(form), form)
        return kept.fp8(flux_folder, tmp_path_factory.mktemp(form), *FORMS[form])

    return of


def loaded(folder, file=None, **options):
    files = {"transformer": file} if file else {}
    own = {"lora_rank": 2, "lora_alpha": 3.0, "dtype": "float32", "device": "cpu", **options}
    model = load_flow_model(folder, files=files, **own)
    generator = torch.Generator().manual_seed(5)
    for name, parameter in model.policy.trainable_named().items():
        if "lora_B" in name:  # as after some updates
            values = torch.randn(parameter.shape, generator=generator) * 0.05
            parameter.data = values.to(parameter.device)
    return model


def stores(network):
    return any(isinstance(module, StoredLinear) for module in network.modules())


def trained(model, **options):
    taken = training.sampled(model, "flux", **options)
    return taken, grpo.update(model, taken, training.judged(taken), UpdateSettings(learning_rate=1e-3))


def gradients(model):
    return [parameter.grad for parameter in model.policy.trainable_parameters()]


@pytest.mark.parametrize("form", (*FORMS, *GGUF))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_iteration_is_that_of_widened_weights(form, dtype, pair):
    file, wide = pair(form)
    narrow, full = loaded(wide, file, dtype=dtype), loaded(wide, dtype=dtype)
    assert stores(narrow.transformer) and not stores(full.transformer)
    (taken, figures), (expected, of_full) = trained(narrow), trained(full)
    assert torch.equal(taken.latents, expected.latents)
    assert figures["gradient_norm"] == of_full["gradient_norm"] > 0
    for found, one in zip(gradients(narrow), gradients(full), strict=True):
        assert torch.equal(found, one)


@pytest.mark.parametrize("options", [{"gradient_checkpointing": True}, {"offload_encoders": True, "offload_vae": True}])
def test_ways_to_save_memory(options, pair):
    file, wide = pair("scaled")
    (_, figures), (_, expected) = trained(loaded(wide, file, **options)), trained(loaded(wide, **options))
    assert figures["gradient_norm"] == expected["gradient_norm"]


def test_kept_graph(pair):
    file, wide = pair("scaled")
    found, expected = (trained(loaded(*one), keep_graph=True)[1]["gradient_norm"] for one in ((wide, file), (wide,)))
    assert found == expected


@pytest.mark.parametrize("form", ["scaled", "Q8_0"])
def test_merged_it_samples_as_the_widened_model_does_merged(form, pair):
    """And afterwards the file's bytes are back."""
    file, wide = pair(form)
    narrow, full = loaded(wide, file), loaded(wide)
    before = {name: tensor.clone() for name, tensor in narrow.transformer.state_dict().items()}
    sampled = []
    for model in (narrow, full):
        with model.policy.merged():
            sampled.append(training.sampled(model, "flux").final)
    assert torch.equal(*sampled)
    after = narrow.transformer.state_dict()
    assert all(
        torch.equal(after[name], tensor) and after[name].dtype == tensor.dtype for name, tensor in before.items()
    )


def saved_bytes(model):
    """What autograd keeps of a velocity besides the parameters, and of what it makes anew."""
    mine = {parameter.untyped_storage().data_ptr() for parameter in model.transformer.parameters()}
    seen = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in mine:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    texts = ["a red circle"]
    settings = training.SamplerSettings(**training.SIZES["flux"])
    x = torch.randn((1, *model.latent_shape(16, 16)), generator=torch.Generator().manual_seed(0))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept_alive = model.velocity(x, 0.5, model.condition(texts, settings), 3.5)
        return sum(seen.values()), kept_alive


@pytest.mark.parametrize("form", ["scaled", "Q8_0", "Q4_0"])
def test_autograd_keeps_no_unpacked_weight(form, pair, monkeypatch):
    """As much as of the widened model; a layer that is merely unpacked would keep nearly all its weights once more."""
    file, wide = pair(form)
    narrow, full = loaded(wide, file), loaded(wide)
    found, expected = saved_bytes(narrow)[0], saved_bytes(full)[0]
    assert found <= expected
    layers = [module for module in narrow.transformer.modules() if isinstance(module, StoredLinear)]
    unpacked = sum(4 * layer.in_features * layer.out_features for layer in layers)
    monkeypatch.setattr(StoredLinear, "forward", StoredLinear._product)
    assert saved_bytes(narrow)[0] > found + unpacked / 2


def test_what_it_holds_is_what_the_file_holds(pair):
    file, wide = pair("plain")
    narrow, full = loaded(wide, file, dtype="bfloat16"), loaded(wide, dtype="bfloat16")
    held, of_full = (
        sum(p.nbytes for name, p in model.transformer.named_parameters() if "lora_" not in name)
        for model in (narrow, full)
    )
    assert held == weight_files.bytes_held(file, torch.bfloat16) < of_full
    stored = sum(tensor.numel() for tensor in load_file(file).values() if tensor.dtype == E4M3)
    assert of_full - held == stored


def test_full_training_and_shards_are_refused(pair):
    file, wide = pair("plain")
    wanted = "kept.safetensors stores weights in 8 bits or fewer, which training = full cannot change. Fix: "
    with pytest.raises(FlowModelError, match=wanted):
        loaded(wide, file, training="full")
    with pytest.raises(
        FlowModelError, match="shard: the weights that kept.safetensors stores .* Fix: switch shard off"
    ):
        loaded(wide, file, shard=True)


@pytest.mark.parametrize("kind", [*SCALES, "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_every_format_of_gguf_against_its_own_package(kind):
    package = pytest.importorskip("gguf")
    form = package.GGMLQuantizationType[kind]
    numbers, size = package.GGML_QUANT_SIZES[form]
    generator = torch.Generator().manual_seed(3)
    if kind in SCALES:
        blocks = torch.randint(0, 256, (6, size), generator=generator, dtype=torch.uint8)
        for place in SCALES[kind]:
            scales = torch.rand(6, 1, generator=generator, dtype=torch.float32).half() + 0.01
            blocks[:, place : place + 2] = scales.view(torch.uint8)
        packed = blocks.reshape(2, -1)
    else:
        packed = torch.from_numpy(
            package.quants.quantize(torch.randn(2, numbers * 3, generator=generator).numpy(), form)
        )
    expected = torch.from_numpy(package.quants.dequantize(packed.numpy(), form).copy())
    found = Gguf(form).unpack(packed.view(torch.int8), None, torch.float32)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_gguf_files_that_cannot_be_read(pair, flux_folder, tmp_path, monkeypatch):
    file, wide = pair("Q8_0")
    with pytest.raises(
        FlowModelError, match="text_encoder: .*kept.gguf is a GGUF file, which is read for a transformer only"
    ):
        load_flow_model(wide, device="cpu", files={"text_encoder": file})
    with pytest.raises(FlowModelError, match="training = full cannot change. Fix: training = lora"):
        loaded(wide, file, training="full")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(FlowModelError, match="transformer: .*broken.gguf is truncated or no GGUF file. Fix: "):
        loaded(wide, broken)
    monkeypatch.setattr("diffusers.utils.is_gguf_available", lambda: False)
    with pytest.raises(FlowModelError, match="transformer: .* needs the package gguf. Fix: pip install gguf, or "):
        loaded(wide, file)


@pytest.mark.parametrize("form", [E4M3, E5M2])
def test_a_layer_by_hand(form):
    """[[1, 2], [3, 4]] · (2, 0.5) by rows; x = (1, 10)."""
    stored = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).to(form)
    layer = StoredLinear(stored.view(torch.int8), Float8(form), torch.float32, torch.tensor([[2.0], [0.5]]))
    x = torch.tensor([[1.0, 10.0]], requires_grad=True)
    y = layer(x)
    torch.testing.assert_close(y, torch.tensor([[42.0, 21.5]]))
    (y * torch.tensor([[1.0, 100.0]])).sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([[2.0 + 150.0, 4.0 + 200.0]]))


def test_encoders_stay_as_stored_too(tmp_path):
    folder = tiny.make("sd3", tmp_path / "sd3")
    file, wide = kept.fp8(
        folder, tmp_path, factor=".scale_weight", layers=r".*\.(q|k|v|o|w.*)\.weight", component="text_encoder_3"
    )
    for dtype in ("float32", "bfloat16"):
        narrow = load_flow_model(wide, device="cpu", dtype=dtype, files={"text_encoder_3": file})
        full = load_flow_model(wide, device="cpu", dtype=dtype)
        assert stores(narrow.pipeline.text_encoder_3)
        found, expected = (model.embeddings(["a red circle"]).tensors["tokens"] for model in (narrow, full))
        assert torch.equal(found, expected)


def test_formats_that_are_not_read(flux_folder, tmp_path):
    whole = load_file(flux_folder / kept.WEIGHTS)
    name = next(name for name in whole if name.endswith("to_q.weight"))
    file = tmp_path / "packed.safetensors"
    save_file(whole | {name: torch.zeros(4, 4, dtype=torch.int8)}, file)
    with pytest.raises(
        FlowModelError, match=f"transformer: .*packed.safetensors stores {name} in whole numbers.* Fix: "
    ):
        loaded(flux_folder, file)
    note = torch.tensor(list(b'{"format": "nvfp4"}'), dtype=torch.uint8)
    save_file(whole | {name.removesuffix("weight") + "comfy_quant": note}, file)
    with pytest.raises(
        FlowModelError, match="transformer: .*packed.safetensors stores layers in nvfp4, which is not read. Fix: "
    ):
        loaded(flux_folder, file)


def test_exported_it_is_the_widened_model_with_the_adapter_in_it(pair, tmp_path):
    file, wide = pair("scaled")
    for name, source in (("narrow", file), ("wide", None)):
        saved.export(loaded(wide, source), tmp_path / name)
    found, expected = (load_file(tmp_path / name / kept.WEIGHTS) for name in ("narrow", "wide"))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)


def test_factors_follow_their_rows(tmp_path):
    """Through a layout in which one layer is two, in another order."""
    weight, factor = torch.arange(12.0).reshape(4, 3), torch.tensor([[1.0], [2.0], [0.5], [4.0]])
    save_file({"qk.weight": weight.to(E4M3), "qk.scale_weight": factor}, tmp_path / "rows.safetensors")

    def convert(tensors):
        q, k = tensors["qk.weight"].chunk(2)
        return {"k.weight": torch.cat([k]), "q.weight": q}

    parts = weight_files.read(tmp_path / "rows.safetensors", convert)
    torch.testing.assert_close(parts["k.weight"].numbers(torch.float32), (weight * factor)[2:])
    torch.testing.assert_close(parts["q.weight"].numbers(torch.float32), (weight * factor)[:2])
