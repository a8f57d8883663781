"""Our own LoRA layers, which leave ComfyUI's modules and their names as they are; and which layers of a network get one.

peft puts a layer of its own in place of each that it adapts, under other names, and does not take ComfyUI's quantized ones.
Layers are found by their shapes and names, without a table of families: in a network, or in the headers of a model's files.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from ...host.paths import ASSETS
from ..families import names
from ..families.configured import modules
from ..policy import layouts
from ..policy.adapters import TRAINED, Adapter, Adapters, Pair
from ..policy.files import NETWORKS, files_of, shapes
from ..policy.layouts import Shapes
from .frozen import Layer, is_linear

A, B = "lora_A.weight", "lora_B.weight"


class NativeAdapters(Adapters):
    """Adapters of a network that ComfyUI loaded. `acting` are the layers' pairs by the names of the layers, as they stand now."""

    def __init__(self, network: torch.nn.Module, device: torch.device):
        self.network, self.device = network, device
        self.acting: Mapping[str, Pair] = {}
        self.wrapped: dict[str, Layer] = {}
        self._adapters: dict[str, dict[str, Pair]] = {}
        self._layers = {name: network.get_submodule(name) for name in linears(network)}
        self._usual = usual(network)

    def add(self, adapter: Adapter, name: str = TRAINED) -> None:
        layers = chosen(self.network, adapter.ends(self._usual))
        self._adapters[name] = {layer: self._pair(self._layers[layer], adapter) for layer in layers}
        self.use(name)

    def _pair(self, layer: torch.nn.Module, adapter: Adapter) -> Pair:
        height, width = _shape(layer)
        # On the CPU, so that every device begins with the same numbers; as peft draws them.
        a, b = torch.empty(adapter.rank, width), torch.zeros(height, adapter.rank)
        torch.nn.init.kaiming_uniform_(a, a=math.sqrt(5))
        first, second = (torch.nn.Parameter(tensor.to(self.device)) for tensor in (a, b))
        return Pair(first, second, adapter.alpha / adapter.rank)

    def remove(self, names: Collection[str]) -> None:
        for name in names:
            self._adapters.pop(name, None)
        self.act(self._adapters.get(TRAINED, {}))

    def use(self, name: str) -> None:
        self.act(self._adapters[name])

    def act(self, pairs: Mapping[str, Pair]) -> None:
        """Has these act. Each wrapped layer is told its own: by a name torch.compile would make a graph for each block."""
        self.acting = pairs
        for name, layer in self.wrapped.items():
            layer.pair = pairs.get(name)

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        before = self.acting
        self.act({})
        try:
            yield
        finally:
            self.act(before)

    def merged(self) -> contextlib.AbstractContextManager[None]:
        raise ValueError(
            "merge_adapter: ComfyUI owns these weights and may move them at any time, so nothing can be merged into them. Fix: "
            "merge_adapter off on SDE Sampler"
        )

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        pairs = self._adapters.get(TRAINED, {}).items()
        return {f"{layer}.{key}": half for layer, pair in pairs for key, half in ((A, pair.a), (B, pair.b))}

    def of(self, block: str) -> list[torch.nn.Parameter]:
        """The adapters that act now within the block of that name."""
        pairs = [pair for layer, pair in self.acting.items() if layer.startswith(f"{block}.") or layer == block]
        return [parameter for pair in pairs for parameter in (pair.a, pair.b)]

    def pairs(self, name: str = TRAINED) -> Mapping[str, Pair]:
        return self._adapters[name]

    def shapes(self) -> Shapes:
        return {name: _shape(layer) for name, layer in self._layers.items()}

    def move(self, device: torch.device) -> None:
        self.device = device
        for pairs in self._adapters.values():
            for pair in pairs.values():
                for parameter in (pair.a, pair.b):
                    parameter.data = parameter.data.to(device)
                    parameter.grad = None


def _shape(layer: torch.nn.Module) -> tuple[int, int]:
    return vars(layer)["out_features"], vars(layer)["in_features"]


# -- which layers get one -----------------------------------------------------------------------------------------------------


# Where a network stands in a file that holds more, and in ComfyUI's own LoRAs.
_PREFIXES = ("model.diffusion_model.", "diffusion_model.")
_PACKED = ("comfy_quant", "absmax", "qweight")  # beside weights of which one number may hold several
# An adapter on these layers changes every token alike.
_MODULATION = re.compile(
    r"(^|[._])(ada\w*|mod|modulation|\w+_mod|\w*norm\w*|t_\w+|time\w*|\w*emb\w*|gate\w*|router)([._]|$)", re.IGNORECASE
)


def blocks(network: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """The repeated blocks of a network, by their names: the elements of its lists that hold linear layers."""
    inside = {}
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.ModuleList) and not any(name.startswith(f"{block}.") for block in inside):
            for number, block in enumerate(module):
                if not isinstance(block, torch.nn.ModuleList) and linears(block):
                    inside[f"{name}.{number}"] = block
    return inside


def linears(network: torch.nn.Module) -> list[str]:
    """Names of all linear layers."""
    return [name for name, layer in network.named_modules() if is_linear(layer)]


def usual(network: torch.nn.Module) -> list[str]:
    """Names of the layers that an adapter usually trains: those of attention and feed-forward in all blocks."""
    return [f"{name}.{layer}" for name, block in blocks(network).items() for layer in _usual_in(block)]


def _usual_in(block: torch.nn.Module) -> list[str]:
    return [name for name in linears(block) if name and not modulates(name)]


def modulates(name: str) -> bool:
    """Whether a layer of that name turns the noise level or the guidance into scales and shifts."""
    return _MODULATION.search(name) is not None


def chosen(network: torch.nn.Module, ends: Sequence[str]) -> list[str]:
    """Names of the linear layers that end like one of `ends`.

    Raises:
        ValueError: an end that fits no layer; names some that there are.
    """
    names = linears(network)
    for end in ends:
        if not any(_ends_with(name, end) for name in names):
            inside = {layer for block in blocks(network).values() for layer in _usual_in(block)}
            listed = ", ".join(sorted(inside or names))
            raise ValueError(f"lora_targets {end!r} fits no linear layer. Fix: leave it empty, or use some of {listed}")
    return [name for name in names if any(_ends_with(name, end) for end in ends)]


def _ends_with(name: str, end: str) -> bool:
    return name == end or name.endswith(f".{end}")


# -- by the headers of files ---------------------------------------------------------------------------------------------------


def of_folder(folder: Path) -> list[str]:
    """Layers with a matrix of a diffusers folder's networks."""
    return sorted({layer for name in NETWORKS if (folder / name).is_dir() for layer in modules(folder / name)[0]})


def of_file(path: Path) -> Shapes:
    """Linear layers of the network in a single file, by the names that the file has."""
    weights = {key: shape for key, shape in shapes(path).items() if key.endswith(".weight")}
    prefix = next((start for start in _PREFIXES if any(key.startswith(start) for key in weights)), "")
    linear = {key: shape for key, shape in weights.items() if key.startswith(prefix) and len(shape) == 2}
    return {key.removeprefix(prefix).removesuffix(".weight"): shape for key, shape in linear.items()}


def check_start(files: Sequence[Path], adapter: Path, rank: int) -> None:
    """The check of `configured.check_start`, of networks in single files.

    Where weights may be packed, and where no table has the network's names, it is seen when the network is there.
    """
    for file, own in zip(files, files_of(NETWORKS[: len(files)], adapter).values(), strict=True):
        others = names.others(layers := of_file(file))
        if others and not any(key.endswith(_PACKED) for key in shapes(file)):
            layouts.check([(own, layouts.Network(layers, others), None)], rank)


def of_embedded(name: str) -> list[str]:
    """Linear layers of an embedded model, as ComfyUI calls them."""
    from . import embedded

    weights = embedded.comfy_weights(ASSETS / name)
    matrices = [key for key, value in weights.items() if key.endswith(".weight") and value.ndim == 2]
    return sorted(key.removesuffix(".weight") for key in matrices)


def ends(names: Iterable[str]) -> list[str]:
    """Ends of names behind block numbers: `attn.to_q` of `blocks.0.attn.to_q`, once for all blocks. Layers that turn the noise
    level into scales and shifts are left out."""
    inside: dict[str, None] = {}
    for name in names:
        parts = name.split(".")
        number = next((at for at, part in enumerate(parts) if part.isdecimal()), None)
        layer = ".".join(parts[number + 1 :]) if number is not None else ""
        if layer and not modulates(layer):
            inside[layer] = None
    return sorted(inside)
