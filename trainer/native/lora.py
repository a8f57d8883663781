"""Our own LoRA layers, which leave ComfyUI's modules and their names as they are.

peft puts a layer of its own in place of each that it adapts, under other names, and takes none of ComfyUI's quantized ones.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import linear

from ..policy.adapters import TRAINED, Adapter, Adapters
from . import targets

if TYPE_CHECKING:
    from torch import Tensor

A, B = "lora_A.weight", "lora_B.weight"


@dataclass
class Pair:
    """A [rank, in] and B [out, rank] of one layer, in float32."""

    a: torch.nn.Parameter
    b: torch.nn.Parameter
    scale: float

    def __call__(self, x: Tensor) -> Tensor:
        """alpha/rank·B·A·x in the dtype of x."""
        return linear(linear(x, self.a.to(x.dtype)), self.b.to(x.dtype)) * self.scale


class NativeAdapters(Adapters):
    """Adapters of a network that ComfyUI loaded. `acting` are the layers' pairs by the names of the layers, as they stand now."""

    def __init__(self, network: torch.nn.Module, device: torch.device):
        self.network, self.device = network, device
        self.acting: Mapping[str, Pair] = {}
        self._adapters: dict[str, dict[str, Pair]] = {}
        self._layers = {name: network.get_submodule(name) for name in targets.linears(network)}
        self._usual = targets.usual(network)

    def add(self, adapter: Adapter, name: str = TRAINED) -> None:
        chosen = targets.chosen(self.network, adapter.ends(self._usual))
        self._adapters[name] = {layer: self._pair(self._layers[layer], adapter) for layer in chosen}
        self.use(name)

    def _pair(self, layer: torch.nn.Module, adapter: Adapter) -> Pair:
        width, height = _number(layer, "in_features"), _number(layer, "out_features")
        # On the CPU, so that every device begins with the same numbers; as peft draws them.
        a, b = torch.empty(adapter.rank, width), torch.zeros(height, adapter.rank)
        torch.nn.init.kaiming_uniform_(a, a=math.sqrt(5))
        first, second = (torch.nn.Parameter(tensor.to(self.device)) for tensor in (a, b))
        return Pair(first, second, adapter.alpha / adapter.rank)

    def remove(self, names: Collection[str]) -> None:
        for name in names:
            self._adapters.pop(name, None)
        self.acting = self._adapters.get(TRAINED, {})

    def use(self, name: str) -> None:
        self.acting = self._adapters[name]

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        before, self.acting = self.acting, {}
        try:
            yield
        finally:
            self.acting = before

    def merged(self) -> contextlib.AbstractContextManager[None]:
        raise ValueError(
            "merge_adapter: ComfyUI owns these weights and may move them at any time, so nothing can be merged into them. Fix: "
            "merge_adapter off on the SDE Sampler"
        )

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        return {
            f"{layer}.{key}": parameter
            for layer, pair in self._adapters.get(TRAINED, {}).items()
            for key, parameter in ((A, pair.a), (B, pair.b))
        }

    def of(self, block: str) -> list[torch.nn.Parameter]:
        """What acts now within the block of that name."""
        pairs = [pair for layer, pair in self.acting.items() if layer.startswith(f"{block}.") or layer == block]
        return [parameter for pair in pairs for parameter in (pair.a, pair.b)]

    def state(self, name: str = TRAINED) -> dict[str, Tensor]:
        return {
            f"{layer}.{key}": tensor.detach()
            for layer, pair in self._adapters[name].items()
            for key, tensor in ((A, pair.a), (B, pair.b))
        }

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor], name: str = TRAINED) -> None:
        for layer, pair in self._adapters[name].items():
            pair.a.copy_(state[f"{layer}.{A}"])
            pair.b.copy_(state[f"{layer}.{B}"])

    def scale(self, name: str = TRAINED) -> float:
        return next(iter(self._adapters[name].values())).scale

    def modules(self) -> list[str]:
        return list(self._layers)

    def move(self, device: torch.device) -> None:
        self.device = device
        for pairs in self._adapters.values():
            for pair in pairs.values():
                for parameter in (pair.a, pair.b):
                    parameter.data = parameter.data.to(device)
                    parameter.grad = None


def _number(layer: torch.nn.Module, name: str) -> int:
    value = getattr(layer, name)
    assert isinstance(value, int), f"{name} of a linear layer is a number"
    return value
