"""The adapter folded into the weights that it adapts, for as long as nothing is differentiated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from peft.tuners.lora import LoraLayer


@contextlib.contextmanager
def merged(networks: Iterable[torch.nn.Module]) -> Iterator[None]:
    """Within it every adapted weight is W + alpha/rank·B·A (Hu et al., 2106.09685): no call has to compute A's and B's products.

    The sum is taken in float32 and rounded once to the dtype of W. It is kept beside W: while this lasts, the adapted weights
    take twice their memory. W itself is not touched, and comes back to the bit however this ends. peft's own `merge` and
    `unmerge` add and subtract in place, and would leave what they rounded. Merging loses a small B·A no sooner: without it the
    sum of both products is rounded to that dtype. A layer whose adapter is off stays as it is.

    Raises:
        ValueError: quantized weights.
    """
    from peft.tuners.lora import LoraLayer

    layers = [module for network in networks for module in network.modules() if isinstance(module, LoraLayer)]
    layers = [layer for layer in layers if not layer.disable_adapters]
    aside = []
    try:
        for layer in layers:
            weight = layer.get_base_layer().get_parameter("weight")
            total = _sum(layer)
            aside.append(weight.data)
            weight.data = total
            # By this peft's layers know that A and B are in the weight already.
            layer.merged_adapters.extend(layer.active_adapters)
        yield
    finally:
        for layer, data in zip(layers, aside, strict=False):  # fewer, where summing them failed
            layer.get_base_layer().weight.data = data
            layer.merged_adapters.clear()


@torch.no_grad()
def _sum(layer: LoraLayer) -> torch.Tensor:
    weight = layer.get_base_layer().get_parameter("weight").detach()
    if not weight.is_floating_point():
        raise ValueError(
            f"merge_adapter: the weights are quantized ({weight.dtype}), and rounding to so few bits would lose the adapter. "
            "Fix: merge_adapter off on the SDE Sampler, or quantize = none on Model Memory"
        )
    delta = layer.get_delta_weight  # pyright: ignore[reportAttributeAccessIssue] all of peft's layers have one
    return sum((delta(name) for name in layer.active_adapters), weight.float()).to(weight.dtype)
