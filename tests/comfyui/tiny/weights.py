"""The real network of a family, with seeded random weights, in a real patcher."""

from __future__ import annotations

import json
import math
import zlib
from contextlib import nullcontext

import comfy.model_management
import comfy.model_patcher
import comfy.supported_models
import torch
from comfy_extras.nodes_model_advanced import ModelSamplingSD3
from comfyui_version import __version__

from .parts import Family

NEW = not __version__.startswith("0.3.")


def tiny_model(family: Family, name: str, seed: int, dtype: torch.dtype, quantized: str | None):
    """A MODEL, as ComfyUI's loader of diffusion models returns it.

    `dtype` is the type in which the weights are stored, float8_e4m3fn included. `quantized` names a format of
    comfy.quant_ops: the linear layers of the blocks are then stored in it, the others in float32.
    """
    if quantized is None:
        model = network(family, name, dtype)
        fill(model.diffusion_model, seed)
        if family.buffers:
            with torch.no_grad():
                family.buffers(model.diffusion_model, lambda *shape: seeded(shape, seed + 1))
    else:
        weights = tiny_model(family, name, seed, torch.float32, None).model.diffusion_model
        model = network(family, name, torch.float32, quantized)
        model.load_model_weights(quantized_state(weights, quantized), "")
    patcher = getattr(comfy.model_patcher, "CoreModelPatcher", comfy.model_patcher.ModelPatcher)
    made = patcher(
        model,
        load_device=comfy.model_management.get_torch_device(),
        offload_device=comfy.model_management.unet_offload_device(),
    )
    return ModelSamplingSD3().patch(made, 3.0)[0] if family.is_made_flow else made


def network(family: Family, name: str, dtype: torch.dtype, quantized: str | None = None):
    """The class of comfy.model_base with its network, weights still empty. The same steps as comfy.sd's loader."""
    known = {key: value for key, value in family.network.items() if NEW or key not in family.later}
    config = getattr(comfy.supported_models, family.of or name)(known)
    config.unet_config.update(known)  # a class's fixed sizes give way to ours
    if quantized:
        config.quant_config = {"mixed_ops": True}
    device = comfy.model_management.get_torch_device()
    stored = None if quantized else dtype
    cast = comfy.model_management.unet_manual_cast(stored, device, config.supported_inference_dtypes)
    config.set_inference_dtype(dtype, cast)
    with family.smaller() if family.smaller else nullcontext():
        return config.get_model({}, "")


def fill(module: torch.nn.Module, seed: int) -> None:
    """Every parameter gets a seeded value by its name, so that a weight does not change when another one is added."""
    with torch.no_grad():
        for name, values in module.named_parameters():
            random = torch.randn(values.shape, generator=generator(name, seed))
            if values.ndim > 1:
                values.copy_(random / math.sqrt(math.prod(values.shape[1:])))
            elif name.endswith("bias"):
                values.copy_(random * 0.1)
            else:  # the scale of a norm
                values.copy_(1 + random * 0.1)


def generator(name: str, seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))


def seeded(shape, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# Formats of comfy.quant_ops that the layer's entry says more about; their usual groups are wider than a tiny network.
GROUPS = {"convrot_w4a4": {"convrot_groupsize": 16}, "asym_w4a8_int8": {"convrot_groupsize": 16, "group_size": 16}}


def quantized_state(module: torch.nn.Module, form: str) -> dict[str, torch.Tensor]:
    """What a checkpoint with `comfy_quant` entries holds: the linear layers of the blocks quantized."""
    from comfy.quant_ops import QUANT_ALGOS, QuantizedTensor

    layout = QUANT_ALGOS[form]["comfy_tensor_layout"]
    groups = GROUPS.get(form, {})
    scale = {"scale": "recalculate"} if form.startswith("float8") or form == "nvfp4" else {}
    state = module.state_dict()
    for layer in quantizable(module, 64 if groups else 1):
        weight = QuantizedTensor.from_float(state.pop(f"{layer}.weight"), layout, **scale, **groups)
        state |= weight.state_dict(f"{layer}.weight")
        entry = json.dumps({"format": form, **groups}).encode()
        state[f"{layer}.comfy_quant"] = torch.tensor(list(entry), dtype=torch.uint8)
    return state


def quantizable(module: torch.nn.Module, group: int) -> list[str]:
    """The linear layers inside numbered blocks; published checkpoints leave the layers around the blocks as they are."""
    return [
        name
        for name, part in module.named_modules()
        if isinstance(part, torch.nn.Linear)
        and any(step.isdigit() for step in name.split("."))
        and part.in_features % group == 0
    ]
