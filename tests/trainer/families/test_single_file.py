"""Networks from single files, in the layouts that ComfyUI users have them."""

from __future__ import annotations

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.tiny import models as tiny
from comfyui_otca.trainer.families import single_file
from comfyui_otca.trainer.flow import FlowModelError, check_model_folder, load_flow_model


@pytest.fixture(scope="module", params=["sd3", "wan22"])
def family(request):
    return request.param


@pytest.fixture(scope="module")
def folder(family, tmp_path_factory):
    return tiny.make(family, tmp_path_factory.mktemp("tiny") / family)


@pytest.fixture(scope="module")
def files(family, tmp_path_factory):
    """Another model of the family, one file for each of its networks."""
    other = tiny.make(family, tmp_path_factory.mktemp("other") / family, seed=5)
    return {file.parent.name: file for file in other.glob("*/*.safetensors")}


def weights(model, component):
    return {
        name: parameter
        for name, parameter in getattr(model.pipeline, component).named_parameters()
        if "lora_" not in name
    }


def assert_same(model, other):
    for component in (name for name in model.COMPONENTS if getattr(model.pipeline, name) is not None):
        expected = weights(other, component)
        for name, found in weights(model, component).items():
            torch.testing.assert_close(found, expected[name], rtol=0, atol=0, msg=f"{component}.{name}")


def without_weights(folder, target):
    """What a folder is without its .safetensors: configurations, tokenizers, scheduler."""
    import shutil

    return shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.safetensors"))


def test_every_network_from_a_file_of_its_own(folder, files, tmp_path):
    bare = without_weights(folder, tmp_path / "bare")
    assert_same(
        load_flow_model(bare, device="cpu", files=files),
        load_flow_model(files["vae"].parents[1], device="cpu"),
    )
    part = next(name for name in files if name.startswith("text_encoder"))
    rest = {name: file for name, file in files.items() if name != part}
    wanted = f"{part} has no .safetensors weights. Fix: .* ComfyUI's models/text_encoders and choose it in Model Files"
    with pytest.raises(FlowModelError, match=wanted):
        load_flow_model(bare, device="cpu", files=rest)
    check_model_folder(bare, None)


def in_wans_own_names(tensors):
    """diffusers' names to those of Wan's own checkpoints; of the norms, the second is the third there."""
    names = [
        (r"^condition_embedder\.text_embedder\.linear_1\.", "text_embedding.0."),
        (r"^condition_embedder\.text_embedder\.linear_2\.", "text_embedding.2."),
        (r"^condition_embedder\.time_embedder\.linear_1\.", "time_embedding.0."),
        (r"^condition_embedder\.time_embedder\.linear_2\.", "time_embedding.2."),
        (r"^condition_embedder\.time_proj\.", "time_projection.1."),
        (r"^scale_shift_table$", "head.modulation"),
        (r"^proj_out\.", "head.head."),
        (r"\.scale_shift_table$", ".modulation"),
        (r"\.attn1\.", ".self_attn."),
        (r"\.attn2\.", ".cross_attn."),
        (r"_attn\.to_([qkv])\.", r"_attn.\1."),
        (r"_attn\.to_out\.0\.", "_attn.o."),
        (r"\.norm2\.", ".norm3."),
        (r"\.ffn\.net\.0\.proj\.", ".ffn.0."),
        (r"\.ffn\.net\.2\.", ".ffn.2."),
    ]
    renamed = {}
    for name, tensor in tensors.items():
        for pattern, own in names:
            name = re.sub(pattern, own, name)
        renamed[name] = tensor
    return renamed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_wans_own_layout_in_comfyuis_8_bit_form(dtype, tmp_path):
    """Scaled fp8, as ComfyUI's own downloads of Wan are: weight · factor. What stays in float32 is not rounded on the way."""
    folder = tiny.make("wan22", tmp_path / "wan22")
    generator = torch.Generator().manual_seed(3)
    expected, saved = {}, {"scaled_fp8": torch.zeros(2).to(torch.float8_e4m3fn)}
    for name, tensor in load_file(folder / "transformer_2" / "diffusion_pytorch_model.safetensors").items():
        if re.fullmatch(r"blocks\..*(attn\d\.to_.*|ffn\..*)\.weight", name):
            small, factor = torch.randn(tensor.shape, generator=generator).to(torch.float8_e4m3fn), torch.tensor(0.37)
            expected[name] = small.float() * 0.37
            ((own, _),) = in_wans_own_names({name: small}).items()
            saved[own], saved[own.removesuffix("weight") + "scale_weight"] = small, factor
        else:
            expected[name] = tensor
            saved |= in_wans_own_names({name: tensor})
    save_file(saved, tmp_path / "low.safetensors")
    model = load_flow_model(folder, device="cpu", dtype=dtype, files={"transformer_2": tmp_path / "low.safetensors"})
    found = {name.replace(".base_layer", ""): p for name, p in weights(model, "transformer_2").items()}
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        if not found[name].is_floating_point():
            assert expected[name].shape == found[name].shape and found[name].dtype == torch.int8
            layer = model.pipeline.transformer_2.get_submodule(name.removesuffix(".weight"))
            found[name] = getattr(layer, "base_layer", layer).unpacked()
        torch.testing.assert_close(found[name], tensor.to(found[name].dtype), rtol=1e-6, atol=1e-6, msg=name)
    assert found["scale_shift_table"].dtype == torch.float32


def in_z_images_own_names(tensors):
    """diffusers' names to those of Z-Image's own files, which hold queries, keys and values as one matrix."""
    names = [("all_final_layer.2-1.", "final_layer."), ("all_x_embedder.2-1.", "x_embedder."), (".to_out.0.", ".out.")]
    names += [(".norm_q.", ".q_norm."), (".norm_k.", ".k_norm.")]
    renamed = {}
    for name, tensor in tensors.items():
        for old, own in names:
            name = name.replace(old, own)
        renamed[name] = tensor
    for name in [name for name in renamed if name.endswith(".to_q.weight")]:
        stem = name.removesuffix("to_q.weight")
        renamed[f"{stem}qkv.weight"] = torch.cat([renamed.pop(f"{stem}to_{part}.weight") for part in "qkv"])
    return renamed


def test_z_images_own_layout(tmp_path):
    folder = tiny.make("z-image", tmp_path / "z-image")
    expected = load_file(folder / "transformer" / "diffusion_pytorch_model.safetensors")
    saved = in_z_images_own_names(expected)
    assert len(saved) < len(expected) and "layers.0.attention.qkv.weight" in saved
    save_file(saved, tmp_path / "z_image.safetensors")
    model = load_flow_model(
        folder, device="cpu", dtype="float32", files={"transformer": tmp_path / "z_image.safetensors"}
    )
    found = {name.replace(".base_layer", ""): p for name, p in weights(model, "transformer").items()}
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0, msg=name)


def test_qwens_autoencoder_is_read_as_wans():
    """ComfyUI has one class for both; diffusers has two, and reads files of one."""
    from diffusers import AutoencoderKLQwenImage

    tensors = {"conv1.weight": torch.zeros(1), "decoder.head.2.bias": torch.ones(1)}
    renamed = single_file._in_diffusers_layout(AutoencoderKLQwenImage, {}, tensors, set())
    assert {name: tensor.item() for name, tensor in renamed.items()} == {
        "quant_conv.weight": 0,
        "decoder.conv_out.bias": 1,
    }


@pytest.mark.parametrize("family", ["z-image", "qwen-image"])
def test_language_models_by_comfyuis_names(family, tmp_path):
    """Its files have `model.` before all names, `visual.` beside that, and no head; in 8 bits they stay so."""
    folder = tiny.make(family, tmp_path / family)
    whole = load_flow_model(folder, device="cpu", dtype="float32")
    own = {
        f"model.{name}"
        if family == "z-image"
        else name.replace("model.language_model.", "model.").replace("model.v", "v"): p
        for name, p in whole.pipeline.text_encoder.state_dict().items()
        if not name.startswith("lm_head")
    }
    index = json.loads((folder / "model_index.json").read_text())
    index["text_encoder"][1] = {"z-image": "Qwen3Model", "qwen-image": "Qwen2_5_VLModel"}[family]
    (folder / "model_index.json").write_text(json.dumps(index))
    save_file({name: p.contiguous() for name, p in own.items()}, tmp_path / "encoder.safetensors")
    texts = ["a red circle", "a blue square above a green one"]
    expected = whole.embed(texts, torch.device("cpu"))
    files = {"text_encoder": tmp_path / "encoder.safetensors"}
    found = load_flow_model(folder, device="cpu", dtype="float32", files=files).embed(texts, torch.device("cpu"))
    for name, tensor in expected.tensors.items():
        torch.testing.assert_close(found.tensors[name], tensor, rtol=0, atol=0)

    layer = "layers.0.self_attn.q_proj"
    own[f"model.{layer}.weight"] = own[f"model.{layer}.weight"].to(torch.float8_e4m3fn)
    save_file({name: p.contiguous() for name, p in own.items()}, tmp_path / "encoder.safetensors")
    encoder = load_flow_model(folder, device="cpu", dtype="float32", files=files).pipeline.text_encoder
    stored = encoder.get_submodule(layer if family == "z-image" else f"language_model.{layer}")
    torch.testing.assert_close(stored.unpacked(), own[f"model.{layer}.weight"].float(), rtol=0, atol=0)


def test_what_from_pretrained_keeps_in_float32_stays_so(tmp_path):
    folder = tiny.make("wan21", tmp_path / "wan21")
    file = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    single = load_flow_model(folder, device="cpu", dtype="bfloat16", files={"transformer": file})
    whole = load_flow_model(folder, device="cpu", dtype="bfloat16")
    kinds = {name: parameter.dtype for name, parameter in weights(single, "transformer").items()}
    assert kinds == {name: parameter.dtype for name, parameter in weights(whole, "transformer").items()}
    assert set(kinds.values()) == {torch.float32, torch.bfloat16}


def test_files_that_do_not_fit(folder, files, tmp_path):
    broken = tmp_path / "broken.safetensors"
    for component in ("transformer", "text_encoder", "vae"):
        tensors = load_file(files[component])
        for damaged in (
            {name: tensor[:1].clone() for name, tensor in tensors.items()},
            {name: tensor for name, tensor in list(tensors.items())[:-1]},
        ):
            save_file(damaged, broken)
            with pytest.raises(
                FlowModelError, match=f"broken.safetensors holds other weights than .*{component}.*Fix: "
            ):
                load_flow_model(folder, device="cpu", files={component: broken})
    broken.write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(FlowModelError, match="broken.safetensors is truncated or no safetensors file.*Fix: "):
        load_flow_model(folder, device="cpu", files={"vae": broken})


def test_a_component_that_the_family_does_not_have(family, folder, files):
    if family == "sd3":
        with pytest.raises(FlowModelError, match="has no transformer_2. Fix: choose no file for transformer_2"):
            load_flow_model(folder, device="cpu", files={"transformer_2": files["transformer"]})


def test_the_nodes(folder, files, tmp_path, monkeypatch):
    """Model Files lists what is in ComfyUI's kinds of folders, and Load Flow Model takes it."""
    place = tmp_path / "models"
    for component, kind in (("transformer", "diffusion_models"), ("text_encoder", "text_encoders")):
        (place / kind).mkdir(parents=True)
        (place / kind / "mine.safetensors").symlink_to(files[component])
    monkeypatch.setenv("OTCA_MODELS", str(place))
    choose, load = NODE_CLASS_MAPPINGS["OTCA_ModelFiles"], NODE_CLASS_MAPPINGS["OTCA_LoadFlowModel"]
    choices = {name: declared[0] for name, declared in choose.INPUT_TYPES()["required"].items()}
    assert choices["transformer"] == choices["text_encoder_2"] == [choose.FOLDERS_OWN, "mine.safetensors"]
    assert choices["vae"] == [choose.FOLDERS_OWN]
    chosen = dict.fromkeys(choices, choose.FOLDERS_OWN) | dict.fromkeys(
        ("transformer", "text_encoder"), "mine.safetensors"
    )
    assert choose.VALIDATE_INPUTS(**chosen) is True
    assert choose.VALIDATE_INPUTS(**(chosen | {"vae": "none.safetensors"})).startswith(
        "vae: weights 'none.safetensors'"
    )
    (given,) = choose().choose(**chosen)
    (model,) = load().load("", str(folder), "cpu", files=given, lora_rank=2, lora_alpha=2.0, seed=0, dtype="float32")
    expected = load_flow_model(files["vae"].parents[1], device="cpu")
    own = load_flow_model(folder, device="cpu")
    for component, other in (("transformer", expected), ("text_encoder", expected), ("vae", own)):
        wanted = weights(other, component)
        for name, found in weights(model, component).items():
            torch.testing.assert_close(found, wanted[name], rtol=0, atol=0)
