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
    """Within it every adapted weight is W + alpha/rank·B·A, so that a call costs no products with A and B (2106.09685).

    The sum is taken in float32 and rounded once to the dtype of W, into memory of its own: as many bytes again as the adapted
    weights have, while it lasts. W itself is not touched, and comes back to the bit however this ends; peft's own `merge` and
    `unmerge`, which add and subtract in place, would leave what they rounded. A layer whose adapter is off stays as it is.

    Raises:
        ValueError: quantized weights.
    """
    from peft.tuners.lora import LoraLayer

    aside: list[tuple[LoraLayer, torch.Tensor]] = []
    try:
        for network in networks:
            for layer in network.modules():
                if isinstance(layer, LoraLayer) and not layer.disable_adapters:
                    weight = layer.get_base_layer().weight
                    total = _sum(layer, weight)
                    aside.append((layer, weight.data))
                    weight.data = total
                    layer.merged_adapters.extend(
                        layer.active_adapters
                    )  # by which peft's layers know that A and B are in W
        yield
    finally:
        for layer, data in aside:
            layer.get_base_layer().weight.data = data
            layer.merged_adapters.clear()


@torch.no_grad()
def _sum(layer: LoraLayer, weight: torch.Tensor) -> torch.Tensor:
    if not weight.is_floating_point():
        raise ValueError(
            f"merge_adapter: the weights are quantized ({weight.dtype}), and rounding to so few bits would lose the adapter. "
            "Fix: merge_adapter off on the SDE Sampler, or quantize = none on Model Memory"
        )
    return sum((layer.get_delta_weight(name) for name in layer.active_adapters), weight.float()).to(weight.dtype)
