"""Frozen networks in 8 or 4 bits by bitsandbytes, layer by layer."""

from __future__ import annotations

from typing import Any

import torch

from .options import FlowModelError


def check(kind: str) -> None:
    """Raises FlowModelError where bitsandbytes cannot be had; before anything is loaded."""
    from diffusers.utils import is_bitsandbytes_available

    if not is_bitsandbytes_available():
        raise FlowModelError(
            f"quantize = {kind} needs the package bitsandbytes. Fix: pip install bitsandbytes, or quantize = none on Model Memory"
        )


def quantize(network: Any, kind: str, device: torch.device, dtype: torch.dtype) -> None:
    """Has bitsandbytes hold the network's linear layers, on the device: there is one of them in more bits at a time.

    Layers that the network keeps in float32 stay so.

    Raises:
        FlowModelError: bitsandbytes does nothing on this device.
    """
    exact = set(network._keep_in_fp32_modules or ())
    for name, layer in list(network.named_modules()):
        if type(layer) is not torch.nn.Linear or exact & set(name.split(".")):
            continue
        made = _layer(kind, layer.bias is not None, layer.weight.data, dtype)
        if layer.bias is not None:
            made.bias = layer.bias
        parent, _, child = name.rpartition(".")
        setattr(network.get_submodule(parent), child, made)
        made.to(device)
        if made.weight.is_floating_point():
            raise FlowModelError(
                f"quantize = {kind}: bitsandbytes does nothing on {device}. Fix: pip install -U bitsandbytes, or quantize = none "
                "on Model Memory"
            )
    setattr(network, f"is_loaded_in_{kind}", True)  # by which peft knows how to put an adapter on


def _layer(kind: str, bias: bool, weight: torch.Tensor, dtype: torch.dtype) -> torch.nn.Linear:
    from bitsandbytes import nn

    library: Any = nn  # which says too little of its arguments
    rows, columns = weight.shape
    if kind == "4bit":
        more: dict[str, Any] = {"quant_type": "nf4", "compress_statistics": False}
        layer = library.Linear4bit(columns, rows, bias, dtype, device="meta", **more)
        layer.weight = library.Params4bit(weight, requires_grad=False, module=layer, **more)
        # On some CPUs it would pack its weight for a kernel that has no gradient, as soon as one samples.
        vars(layer).update(support_avx512bf16_for_cpu=False)
    else:
        layer = library.Linear8bitLt(columns, rows, bias, has_fp16_weights=False, device="meta")
        layer.weight = library.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
    return layer
