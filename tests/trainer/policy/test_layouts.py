"""Adapters as other tools write them: what is read is what their writers' own loaders read, or it is refused by its name."""

from __future__ import annotations

import re

import diffusers
import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file

from comfyui_otca.trainer.families import names
from comfyui_otca.trainer.families.sizes import RULES
from comfyui_otca.trainer.policy import files, layouts, lora
from comfyui_otca.trainer.policy.layouts import Rows

BLOCK = "single_transformer_blocks.0.attn"
LAYER = f"{BLOCK}.to_v"
RANK, ALPHA = 8, 32
TARGETS = ["to_q", "to_k", "to_v"]


@pytest.fixture(scope="module")
def model(load_model, flux_folder):
    return load_model(flux_folder.with_name("scenes-flux"), lora_targets="to_q,to_k,to_v", lora_rank=RANK)


def network_of(folder):
    return diffusers.FluxTransformer2DModel.from_pretrained(folder, subfolder="transformer")


def configuration(**changes):
    return LoraConfig(**{"r": RANK, "lora_alpha": ALPHA, "target_modules": TARGETS, **changes})


def filled(network):
    """The same numbers for A and B at every call, and what peft would save of them."""
    torch.manual_seed(0)
    for name, parameter in network.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.05 if "lora_A" in name else 0.02)
    return get_peft_model_state_dict(network)


@pytest.fixture(scope="module")
def state(model):
    network = network_of(model.path)
    network.add_adapter(configuration())
    return filled(network)


def change(model, file):
    """ΔW of LAYER after the file was put on, as our own adapter has it."""
    lora.put_on(model, file)
    return of_layer(model)


def of_layer(model):
    pair = model.adapters["transformer"].pairs()[LAYER]
    return pair.scale * pair.b.detach() @ pair.a.detach()


def written(folder, tensors, metadata=None, name="a.safetensors"):
    save_file({key: value.contiguous() for key, value in tensors.items()}, folder / name, metadata)
    return folder / name


def before(start, tensors):
    return {start + key: value for key, value in tensors.items()}


def kohya(tensors, alpha=None):
    renamed = {key.replace("lora_A", "lora_down").replace("lora_B", "lora_up"): value for key, value in tensors.items()}
    return renamed if alpha is None else with_alphas(renamed, alpha)


def with_alphas(tensors, alpha):
    return tensors | {f"{key.rsplit('.lora_', 1)[0]}.alpha": torch.tensor(float(alpha)) for key in tensors}


def flat(start, tensors):
    parts = (re.fullmatch(r"(.+?)(\.lora_.*|\.alpha)", key) for key in tensors)
    return {start + part[1].replace(".", "_") + part[2]: tensors[part[0]] for part in parts}


def fused(state):
    """The same in FLUX's published names, where q, k, v and the MLP's first layer are one."""
    a, b = ([state[f"{BLOCK}.{name}.lora_{side}.weight"] for name in TARGETS] for side in "AB")
    none = torch.zeros(4 * len(b[0]), 3 * RANK)  # of proj_mlp
    layer = "single_blocks.0.linear1"
    return {f"{layer}.lora_A.weight": torch.cat(a), f"{layer}.lora_B.weight": torch.cat([torch.block_diag(*b), none])}


def processors(key):
    return key.replace(".to_v.lora_A", ".processor.to_v_lora.down").replace(".to_v.lora_B", ".processor.to_v_lora.up")


# A state of peft's in other layouts, and what its writer scales B·A by.
LAYOUTS = {
    "diffusers": (1, lambda s: before("transformer.", s)),
    "diffusers, alpha tensors": (4, lambda s: before("transformer.", with_alphas(s, ALPHA))),
    "diffusers, bfloat16": (1, lambda s: {f"transformer.{k}": v.bfloat16() for k, v in s.items()}),
    "old diffusers": (1, lambda s: {f"transformer.{processors(k)}": v for k, v in s.items()}),
    "peft without its configuration": (1, lambda s: before("base_model.model.", s)),
    "peft around a pipeline": (1, lambda s: before("base_model.model.transformer.", s)),
    "DiffSynth": (1, lambda s: {k.replace(".weight", ".default.weight"): v for k, v in s.items()}),
    "OneTrainer": (4, lambda s: flat("lora_transformer_", kohya(s, ALPHA))),
    "SimpleTuner": (4, lambda s: flat("lycoris_", kohya(s, ALPHA))),
    "sd-scripts": (4, lambda s: flat("lora_unet_", kohya(fused(s), 3 * ALPHA))),
    "ComfyUI": (1, lambda s: before("diffusion_model.", fused(s))),
    "ComfyUI's training node": (1 / (3 * RANK), lambda s: before("diffusion_model.", kohya(fused(s), 1))),
    "a whole checkpoint's names": (1, lambda s: before("model.diffusion_model.", fused(s))),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_adapter_in_every_layout(model, state, tmp_path, layout):
    scale, tensors = LAYOUTS[layout][0], LAYOUTS[layout][1](state)
    right = scale * state[f"{LAYER}.lora_B.weight"] @ state[f"{LAYER}.lora_A.weight"]
    tolerance = 1e-2 * right.abs().max() if "bfloat16" in layout else 1e-6
    torch.testing.assert_close(change(model, written(tmp_path, tensors)), right, rtol=0, atol=float(tolerance))


@pytest.mark.parametrize(
    ("changes", "norm"),
    [
        ({}, 1.4591),
        ({"lora_alpha": 8, "use_rslora": True}, 1.0317),
        ({"alpha_pattern": {"to_v": 64}}, 2.9181),
        ({"alpha_pattern": {r"^single_transformer_blocks\.\d+\.attn\.to_v": 64}}, 2.9181),
        ({"rank_pattern": {"to_q": 2}, "alpha_pattern": {"to_k": 5}, "use_rslora": True}, None),
    ],
)
@pytest.mark.parametrize("writer", ["diffusers", "peft"])
def test_the_scale_is_the_one_that_the_writers_loader_reads(model, tmp_path, changes, norm, writer):
    """Seen before: the header was not asked, and ΔW was a quarter, a third, an eighth of what was published."""
    network, config = network_of(model.path), configuration(**changes)
    if writer == "diffusers":
        torch.manual_seed(0)
        network.add_adapter(config)
        for name, parameter in network.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.02)
        options = {"transformer_lora_adapter_metadata": config.to_dict(), "weight_name": "a.safetensors"}
        diffusers.FluxPipeline.save_lora_weights(tmp_path, get_peft_model_state_dict(network), **options)
        pipeline = diffusers.FluxPipeline.from_pretrained(model.path)
        pipeline.load_lora_weights(tmp_path, weight_name="a.safetensors")
        [name], theirs, file = pipeline.get_active_adapters(), pipeline.transformer, tmp_path / "a.safetensors"
    else:
        network = get_peft_model(network, config)
        filled(network)
        network.save_pretrained(tmp_path)
        name, theirs, file = "default", network.base_model.model, tmp_path / files.PEFT
    right = theirs.get_submodule(LAYER).get_delta_weight(name).detach()
    torch.testing.assert_close(change(model, file), right, rtol=0, atol=1e-6)
    if writer == "diffusers" and norm is not None:
        assert float(right.norm()) == pytest.approx(norm, abs=1e-4)


# --- what is no LoRA of the network's layers -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({f"transformer.{LAYER}.lokr_w1": (2, 2)}, "is a LoKr"),
        ({f"lycoris_{LAYER}.hada_w1_a": (2, 2)}, "is a LoHa"),
        ({f"transformer.{LAYER}.dora_scale": (128, 1)}, "is a DoRA"),
        ({f"transformer.{LAYER}.lora_magnitude_vector": (128,)}, "is a DoRA"),
        ({f"transformer.{LAYER}.lora_B.bias": (128,)}, "biases or norms"),
        ({"diffusion_model.single_blocks.0.linear1.diff_b": (128,)}, "biases or norms"),
        ({"text_encoder.text_model.encoder.layers.0.mlp.fc1.lora_A.weight": (2, 2)}, "changes a text encoder too"),
        ({"lora_te1_text_model_encoder_layers_0_mlp_fc1.lora_down.weight": (2, 2)}, "changes a text encoder too"),
        ({f"transformer.{LAYER}.lora_A.weight": (2, 2)}, "is not whole"),
        (
            {"transformer.x.lora_A.weight": (2, 2), "transformer.x.lora_B.weight": (2, 2)},
            "not an adapter of this model",
        ),
        ({f"transformer.{LAYER}.lora_A.weight": (2, 9), f"transformer.{LAYER}.lora_B.weight": (128, 2)}, r"\[128, 9\]"),
        (
            {"single_blocks.0.linear1.lora_A.weight": (2, 128), "single_blocks.0.linear1.lora_B.weight": (9, 2)},
            r"is \[9, 128\]",
        ),
        ({"weight": (2, 2)}, "is not a LoRA: it has weight"),
        (
            {f"transformer.{LAYER}.lora_{side}.{name}.weight": (2, 2) for side in "AB" for name in ("one", "two")},
            "has two",
        ),
        ({f"transformer.{LAYER}.alpha": (2,)}, "alpha is not a number"),
    ],
)
def test_what_is_no_lora_of_it_is_refused_by_what_it_is(model, state, tmp_path, more, told):
    earlier = change(model, written(tmp_path, before("transformer.", state)))
    file = written(tmp_path, {key: torch.zeros(shape) for key, shape in more.items()}, name="b.safetensors")
    with pytest.raises(ValueError, match=f"b.safetensors .*{told}.*Fix: ") as refusal:
        lora.put_on(model, file)
    if "LoRAs here" in str(refusal.value) or "text encoder" in told:
        assert "Load LoRA in front of Make Trainable" in str(refusal.value)
    assert torch.equal(of_layer(model), earlier)


@pytest.mark.parametrize(
    "header",
    [
        *("{", "[]", '{"transformer.lora_alpha": "x"}', '{"transformer.lora_alpha": NaN}'),
        '{"transformer.lora_alpha": 1, "transformer.alpha_pattern": {"(a+)+b": 2}}',
        '{"transformer.lora_alpha": 1, "transformer.use_dora": true}',
    ],
)
def test_a_configuration_that_cannot_be_read_is_refused(model, state, tmp_path, header):
    file = written(tmp_path, before("transformer.", state), {"lora_adapter_metadata": header})
    with pytest.raises(ValueError, match=r"a\.safetensors(: its configuration cannot be read| is a DoRA).*Fix: "):
        lora.put_on(model, file)


# --- the names of published checkpoints ------------------------------------------------------------------------------

# Of which diffusers' converter takes kohya's names alone; of FLUX.1 in its real width only.
KOHYAS = {"FluxPipeline": 3072, "FluxKontextPipeline": 3072, "ZImagePipeline": 12}


def shapes_of(pipeline, width):
    """Layers of a network, by the table itself: each that it names, of some size."""
    layers = {}
    for ours in names.published(pipeline).values():
        stem, _, parts = ours.rstrip(")").partition("(")
        layers |= {f"{stem}{part}".replace("#", "0"): (width, width) for part in parts.split() or [""]}
    if "single_transformer_blocks.0.proj_mlp" in layers:
        layers["single_transformer_blocks.0.proj_mlp"] = (4 * width, width)
    return layers


@pytest.mark.parametrize("pipeline", [name for name in RULES if not name.startswith(("StableDiffusion3", "Qwen"))])
def test_published_names_are_those_of_diffusers_own_converters(pipeline, tmp_path):
    """Their rows, too. SD3 has no converter there: ComfyUI's is asked in tests/comfyui."""
    network = names.network(pipeline, shapes_of(pipeline, KOHYAS.get(pipeline, 12)))
    published, generator, sizes = {}, torch.Generator().manual_seed(1), {}
    for theirs, rows in network.names.items():
        out, into = sizes[theirs] = sum(each.count for each in rows), network.shapes[rows[0].layer][1]
        published[f"diffusion_model.{theirs}.lora_A.weight"] = torch.randn(2, into, generator=generator)
        published[f"diffusion_model.{theirs}.lora_B.weight"] = torch.randn(out, 2, generator=generator)
    for theirs, rows in network.names.items():  # the same the other way round, by the shapes of such a file
        assert [names.others(sizes)[row.layer] for row in rows] == [
            [Rows(theirs, 0, row.count, row.start)] for row in rows
        ]
    file = written(tmp_path, published)
    own = {}
    for layer, parts in layouts.parts(file, network).items():
        [part] = parts
        own[f"transformer.{layer}.lora_A.weight"] = published[part.a]
        own[f"transformer.{layer}.lora_B.weight"] = published[part.b][part.rows.start :][: part.rows.count]
    asked = published
    if pipeline in KOHYAS:
        plain = {key.removeprefix("diffusion_model."): value for key, value in published.items()}
        asked = flat("lora_unet_", kohya(plain))
    theirs = getattr(diffusers, pipeline).lora_state_dict(dict(asked))
    theirs = {key if key.startswith("transformer.") else f"transformer.{key}": value for key, value in theirs.items()}
    assert own.keys() == theirs.keys()
    for key, value in theirs.items():
        torch.testing.assert_close(own[key], value, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("width", "said"),
    [
        (3072, ("Flux.2-klein-4b", "flux_2_klein_4b")),  # as musubi-tuner writes them
        (4096, ("Flux.2-klein-9b", "flux_2_klein_9b")),
        (6144, ("Flux.2-dev", "flux_2_dev")),
    ],
)
def test_the_models_of_one_class_are_told_by_their_width(width, said):
    shapes = {"blocks.0.qkv": (3 * width, width), "blocks.0.proj": (width, width), "blocks.0.mlp.2": (width, 4 * width)}
    assert names.field("Flux2", shapes) == said
    assert names.field("ZImage", shapes) == ("Z-Image", "z_image") and names.field("New", {}) == ("New", "New")
