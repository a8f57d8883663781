"""Networks in the shapes of published models, with random weights, made on the device: no file is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from comfyui_otca.host import devices
from comfyui_otca.trainer.families.condition import Condition, Embeddings
from comfyui_otca.trainer.families.flux import Flux
from comfyui_otca.trainer.families.options import LoadOptions
from comfyui_otca.trainer.families.pipeline import PipelineModel
from comfyui_otca.trainer.families.qwen import QwenImage
from comfyui_otca.trainer.families.zimage import ZImage
from comfyui_otca.trainer.memory.blueprint import Blueprint, Part, published
from comfyui_otca.trainer.memory.case import Iteration
from comfyui_otca.trainer.memory.rehearsal import PipelineCase
from comfyui_otca.trainer.policy.adapters import Adapter

RANK = 16
SHARE = 0.45  # of the free memory, that the weights may take: the rest is for what is kept for the backward pass
TINY_VAE = {"block_out_channels": [8, 8, 8, 8], "layers_per_block": 1, "norm_num_groups": 4}


@dataclass(frozen=True)
class Place:
    """Where a part measures. `folder`: of the parts' files, since some need another's figure."""

    device: str
    tiny: bool
    folder: Path


@dataclass(frozen=True)
class Shape:
    """A published model, and how it is made small.

    Attributes:
        name: a key of `published()`.
        weights: bytes of its network in bfloat16.
        layers: its blocks, {name in the configuration: how many}.
        text: entries of its configuration that say how wide embeddings are: of each token, and of a whole prompt.
        is_ragged: prompts are of different length.
        tiny, tiny_vae: what is different in a rehearsal.
    """

    name: str
    family: type[PipelineModel]
    weights: float
    layers: Mapping[str, int]
    text: tuple[str, ...]
    is_ragged: bool
    tiny: Mapping[str, Any]
    tiny_vae: Mapping[str, Any] = field(default_factory=lambda: TINY_VAE)


TINY = dict(attention_head_dim=16, num_attention_heads=2, joint_attention_dim=32, axes_dims_rope=[4, 6, 6])
SHAPES = {
    "flux": Shape(
        "black-forest-labs/FLUX.1-dev",
        Flux,
        24e9,
        {"num_layers": 19, "num_single_layers": 38},
        ("joint_attention_dim", "pooled_projection_dim"),
        False,
        TINY | dict(num_layers=1, num_single_layers=1, pooled_projection_dim=16),
    ),
    "z_image": Shape(
        "Tongyi-MAI/Z-Image",
        ZImage,
        12.3e9,
        {"n_layers": 30},
        ("cap_feat_dim",),
        True,
        dict(n_layers=1, n_refiner_layers=1, dim=32, n_heads=2, n_kv_heads=2, cap_feat_dim=32, axes_dims=[4, 6, 6]),
    ),
    "qwen_image": Shape(
        "Qwen/Qwen-Image",
        QwenImage,
        40.9e9,
        {"num_layers": 60},
        ("joint_attention_dim",),
        True,
        TINY | dict(num_layers=1),
        {"base_dim": 8},
    ),
}


def dtype_of(place: Place) -> torch.dtype:
    return torch.float32 if place.device.startswith("pretend") else torch.bfloat16


def made(place: Place, kind: str = "flux") -> tuple[PipelineModel, dict[str, Any], Blueprint]:
    """A model in that shape with an adapter on it, what of it there is, and its configurations.

    On a device that is too small for all blocks it has a half, a quarter or an eighth of them.
    """
    shape = SHAPES[kind]
    device, dtype = torch.device(place.device), dtype_of(place)
    share = share_of_blocks(place, shape)
    blueprint = configured(kind, share, place.tiny)
    networks = {name: _made(part, device, dtype) for name, part in blueprint.parts.items()}
    model = shape.family(blueprint.pipeline_of(networks), Path(f"{kind}-shaped"), 512)
    model._embeddings = _embeddings(place, shape, model)
    model.policy.add_adapter(Adapter(RANK, RANK))
    model.settle(device)
    weights = sum(p.nbytes for name, p in networks["transformer"].named_parameters() if "lora_" not in name)
    trained = sum(p.numel() for p in model.policy.trainable_parameters())
    about = {"share_of_blocks": share, "weights_bytes": weights, "trained_parameters": trained}
    return model, about, blueprint


def estimated(
    place: Place, kind: str, blueprint: Blueprint, options: LoadOptions, iteration: Iteration | None, out: int
) -> PipelineCase:
    """Its training as `otca memory` sees it, without text encoders and with so many blocks out."""
    case = PipelineCase(blueprint, Adapter(RANK, RANK), options, dtype_of(place), iteration, blocks_out=out)
    case.rehearsal.model._embeddings = _embeddings(place, SHAPES[kind], case.rehearsal.model)
    return case


def share_of_blocks(place: Place, shape: Shape) -> float:
    if place.tiny:
        return 1.0
    free = devices.free_memory(torch.device(place.device))
    return next((share for share in (1.0, 0.5, 0.25) if shape.weights * share < SHARE * free), 0.125)


@cache  # what is rehearsed of one is rehearsed once
def configured(kind: str, share: float, tiny: bool) -> Blueprint:
    """Configurations with that share of the blocks, without text encoders."""
    shape = SHAPES[kind]
    whole = published()[shape.name]
    fewer = {name: max(1, round(count * share)) for name, count in shape.layers.items()}
    changes: dict[str, Mapping[str, Any]] = {"transformer": fewer, "vae": {}}
    if tiny:
        changes = {"transformer": shape.tiny, "vae": shape.tiny_vae}
    parts = {}
    for name, more in changes.items():
        library, kind_of_part, config = whole.parts[name]
        parts[name] = library, kind_of_part, {**config, **more}
    return replace(whole, parts=parts, tokens={})


def _made(part: Part, device: torch.device, dtype: torch.dtype) -> Any:
    import diffusers
    from accelerate import init_empty_weights

    _, kind, config = part
    with init_empty_weights():
        made = getattr(diffusers, kind).from_config(dict(config))
    generator = torch.Generator(device if device.type == "cuda" else "cpu").manual_seed(0)
    for module in made.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            values = torch.ones(parameter.shape, dtype=dtype, device=generator.device)
            if not (name == "weight" and parameter.ndim == 1):  # a scale
                values.normal_(0, 0.02, generator=generator)
            module._parameters[name] = torch.nn.Parameter(values.to(device), requires_grad=False)
    return made.eval()


def _embeddings(place: Place, shape: Shape, model: PipelineModel) -> Embeddings:
    """Random ones, as long as prompts that are padded, or as a usual one."""
    tokens = 8 if place.tiny else 80 if shape.is_ragged else 512
    dims, *whole = (model.transformer.config[name] for name in shape.text)

    def embed(texts: Sequence[str]) -> Condition:
        generator = torch.Generator().manual_seed(len(texts))
        rows = torch.randn(len(texts), tokens, dims, generator=generator)
        if shape.is_ragged:
            return Condition.of_rows("tokens", list(rows))
        [pooled] = (torch.randn(len(texts), width, generator=generator) for width in whole)
        return Condition({"tokens": rows, "pooled": pooled})

    return Embeddings(embed)
