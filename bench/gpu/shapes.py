"""Networks in the shapes of published models, with random weights, made on the device: no file is read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from comfyui_otca.assets.make import configurations
from comfyui_otca.host import devices
from comfyui_otca.trainer.flow.adapters import Adapter
from comfyui_otca.trainer.flow.condition import Condition, Embeddings
from comfyui_otca.trainer.flow.flux import Flux
from comfyui_otca.trainer.flow.stored import Float8, StoredLinear, put_in

from .parts import Place

FLUX = "FLUX.1-dev"
RANK = 16
SHARE = 0.45  # of the free memory, that the weights may take: the rest is for what is kept for the backward pass
TINY_NETWORK = {
    "num_layers": 1,
    "num_single_layers": 1,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 32,
    "pooled_projection_dim": 16,
    "axes_dims_rope": [4, 6, 6],
}
TINY_VAE = {"block_out_channels": [8, 8, 8, 8], "layers_per_block": 1, "norm_num_groups": 4}


def dtype_of(place: Place) -> torch.dtype:
    return torch.float32 if place.device.startswith("pretend") else torch.bfloat16


def flux(place: Place, fp8: bool = False) -> tuple[Flux, dict[str, Any]]:
    """A model in the shape of FLUX.1-dev with an adapter on it, and what of it there is.

    On a device that is too small for all blocks it has a half, a quarter or an eighth of them. `fp8`: its layers are stored in
    8 bits.
    """
    from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

    parts = {
        name.split("/")[0]: content for name, content in configurations.contents(FLUX).items() if name.count("/") == 1
    }
    of_network, of_vae, share = _sizes(place, parts["transformer"], parts["vae"])
    device, dtype = torch.device(place.device), dtype_of(place)
    network = _made(FluxTransformer2DModel, of_network, device, dtype)
    if fp8:
        store_in_8_bits(network, dtype)
    scheduler: Any = FlowMatchEulerDiscreteScheduler.from_config(parts["scheduler"])
    pipeline = FluxPipeline(
        scheduler=scheduler,
        vae=_made(AutoencoderKL, of_vae, device, dtype),
        text_encoder=None,  # pyright: ignore[reportArgumentType] prompts are random embeddings
        tokenizer=None,  # pyright: ignore[reportArgumentType]
        text_encoder_2=None,  # pyright: ignore[reportArgumentType]
        tokenizer_2=None,  # pyright: ignore[reportArgumentType]
        transformer=network,
    )
    model = Flux(pipeline, Path("flux-shaped"), 512)
    model._embeddings = Embeddings(lambda texts: _embeddings(texts, of_network, 8 if place.tiny else 512))
    model.policy.add_adapter(Adapter(RANK, RANK))
    model.settle(device)
    weights = sum(p.nbytes for name, p in network.named_parameters() if "lora_" not in name)
    trained = sum(p.numel() for p in model.policy.trainable_parameters())
    return model, {"share_of_blocks": share, "weights_bytes": weights, "trained_parameters": trained}


def _sizes(place: Place, network: dict, vae: dict) -> tuple[dict, dict, float]:
    if place.tiny:
        return network | TINY_NETWORK, vae | TINY_VAE, 1.0
    free, needed = devices.free_memory(torch.device(place.device)), 24e9
    share = next((share for share in (1.0, 0.5, 0.25) if needed * share < SHARE * free), 0.125)
    layers = {name: max(1, round(network[name] * share)) for name in ("num_layers", "num_single_layers")}
    return network | layers, vae, share


def _made(kind: Any, config: dict, device: torch.device, dtype: torch.dtype) -> Any:
    from accelerate import init_empty_weights

    with init_empty_weights():
        made = kind.from_config(config)
    generator = torch.Generator(device if device.type == "cuda" else "cpu").manual_seed(0)
    for module in made.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            shape, place = parameter.shape, generator.device
            is_scale = name == "weight" and len(shape) == 1
            values = (
                torch.ones(shape, dtype=dtype, device=place)
                if is_scale
                else torch.empty(shape, dtype=dtype, device=place)
            )
            if not is_scale:
                values.normal_(0, 0.02, generator=generator)
            module._parameters[name] = torch.nn.Parameter(values.to(device), requires_grad=False)
    return made.eval()


def store_in_8_bits(network: torch.nn.Module, dtype: torch.dtype) -> None:
    """As a file in scaled fp8 is held."""
    for name, layer in list(network.named_modules()):
        if type(layer) is torch.nn.Linear:
            factor = layer.weight.abs().max().float() / torch.finfo(torch.float8_e4m3fn).max
            numbers = (layer.weight.float() / factor).to(torch.float8_e4m3fn)
            factors = factor.expand(len(numbers), 1).contiguous()
            put_in(network, name, StoredLinear(numbers.view(torch.int8), Float8(numbers.dtype), dtype, factors))


def _embeddings(texts: Sequence[str], network: dict, tokens: int) -> Condition:
    generator = torch.Generator().manual_seed(len(texts))
    return Condition(
        {
            "tokens": torch.randn(len(texts), tokens, network["joint_attention_dim"], generator=generator),
            "pooled": torch.randn(len(texts), network["pooled_projection_dim"], generator=generator),
        }
    )
