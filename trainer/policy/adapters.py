"""LoRA adapters on one network: what a policy asks of them, and peft's, which the networks of diffusers carry."""

from __future__ import annotations

import contextlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import linear

from .layouts import Shapes

if TYPE_CHECKING:
    from diffusers import ModelMixin
    from diffusers.loaders import PeftAdapterMixin

    class Adaptable(ModelMixin, PeftAdapterMixin):
        """The base of every network that is trained in diffusers."""

    from peft.tuners.lora import LoraLayer

TRAINED = "default"  # the name of the adapter that is trained, as peft has it


@dataclass(frozen=True)
class Adapter:
    """The settings of a LoRA adapter. `targets`: comma-separated ends of module names; empty takes the model's own list."""

    rank: int
    alpha: float
    targets: str = ""
    seed: int = 0

    def ends(self, usual: Sequence[str]) -> list[str]:
        """The ends of module names that it is for; `usual` where it names nothing. Raises ValueError for commas alone."""
        named = [end.strip() for end in self.targets.split(",") if end.strip()]
        if self.targets.strip() and not named:
            raise ValueError(
                f"lora_targets {self.targets[:80]!r} names no layer. Fix: leave it empty, or use {', '.join(usual)}"
            )
        return named or list(usual)


@dataclass
class Pair:
    """A [rank, in, …] and B [out, rank, …] of one layer, in float32; ΔW = scale·B·A."""

    a: torch.nn.Parameter
    b: torch.nn.Parameter
    scale: float

    def added_to(self, result: Tensor, x: Tensor) -> Tensor:
        """result + scale·B·A·x in the memory of `result` [B, N, out], which no other code may hold."""
        inner, b = linear(x, self.a.to(x.dtype)), self.b.to(x.dtype)  # [B, N, rank], [out, rank]
        if result.ndim == 3 and result.dtype == x.dtype:
            return result.baddbmm_(inner, b.t().expand(len(inner), *b.t().shape), alpha=self.scale)
        return result + linear(inner, b) * self.scale


def _weight(layer: torch.nn.Module) -> torch.nn.Parameter:
    return layer.get_parameter("weight")


class Adapters(ABC):
    """The adapters of one network by their names, of which one is active; ΔW = alpha/rank·B·A (Hu et al., 2106.09685)."""

    @abstractmethod
    def add(self, adapter: Adapter, name: str = TRAINED) -> None:
        """Attaches one in float32 with B = 0, and makes it active. Draws A from torch's generator.

        Raises:
            ValueError: targets that fit no module.
        """

    @abstractmethod
    def remove(self, names: Collection[str]) -> None:
        """Takes those of these names off; the one that is trained is active afterwards, if it is still there."""

    @abstractmethod
    def use(self, name: str) -> None:
        """Makes one active, instead of the others."""

    @abstractmethod
    def off(self) -> contextlib.AbstractContextManager[None]:
        """Within it none acts."""

    @abstractmethod
    def merged(self) -> contextlib.AbstractContextManager[None]:
        """Within it the active one is part of the weights, see `merging`. Raises ValueError where it cannot be."""

    @abstractmethod
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """A and B of all that can be trained, by name."""

    @abstractmethod
    def pairs(self, name: str = TRAINED) -> Mapping[str, Pair]:
        """A and B of one adapter, by the names of the layers that it is on."""

    @abstractmethod
    def shapes(self) -> Shapes:
        """[out, in, …] of the network's layers with a weight, by their names in it."""


class PeftAdapters(Adapters):
    """The adapters that peft puts into a network of diffusers."""

    def __init__(self, network: Adaptable, targets: Sequence[str]):
        self.network, self.targets = network, targets

    def add(self, adapter: Adapter, name: str = TRAINED) -> None:
        from peft import LoraConfig

        config = LoraConfig(
            r=adapter.rank,
            lora_alpha=adapter.alpha,  # pyright: ignore[reportArgumentType] peft only divides it by the rank
            target_modules=adapter.ends(self.targets),
            # FLUX.2's to_out is a layer in some blocks, and a list of layers in others.
            exclude_modules=[
                name for name, part in self.network.named_modules() if isinstance(part, torch.nn.ModuleList)
            ],
        )
        try:
            with warnings.catch_warnings():  # peft warns of several adapters, which are what guides want
                warnings.filterwarnings("ignore", "Already found a `peft_config`")
                self.network.add_adapter(config, name)
        except ValueError as error:
            raise ValueError(
                f"lora_targets {adapter.targets!r} fit no module. Fix: leave it empty, or use {', '.join(self.targets)}"
            ) from error
        home = self.network.device  # peft puts it where the layer is, which may be out (`families/streaming.py`)
        for parameter in self.parameters().values():
            parameter.data = parameter.data.to(
                home if parameter.device.type == "cpu" else parameter.device, torch.float32
            )

    def remove(self, names: Collection[str]) -> None:
        from peft.tuners.lora import LoraLayer

        if set(names) >= set(self.network.peft_config):
            self.network.unload_lora()
            return
        self.network.set_adapter(TRAINED)
        self.network.delete_adapters([name for name in names if name in self.network.peft_config])
        # One may have had targets that the model's own adapter has not.
        for name, module in list(self.network.named_modules()):
            if isinstance(module, LoraLayer) and TRAINED not in module.lora_A:
                parent, _, child = name.rpartition(".")
                setattr(self.network.get_submodule(parent), child, module.base_layer)

    def use(self, name: str) -> None:
        self.network.set_adapter(name)

    @contextlib.contextmanager
    def off(self) -> Iterator[None]:
        self.network.disable_adapters()
        try:
            yield
        finally:
            self.network.enable_adapters()

    def merged(self) -> contextlib.AbstractContextManager[None]:
        return merged([self.network])

    def parameters(self) -> dict[str, torch.nn.Parameter]:
        return {name: parameter for name, parameter in self.network.named_parameters() if parameter.requires_grad}

    def pairs(self, name: str = TRAINED) -> dict[str, Pair]:
        from peft.tuners.lora import LoraLayer

        layers = ((layer, part) for layer, part in self.network.named_modules() if isinstance(part, LoraLayer))
        return {
            layer: Pair(_weight(part.lora_A[name]), _weight(part.lora_B[name]), part.scaling[name])
            for layer, part in layers
            if name in part.lora_A
        }

    def shapes(self) -> Shapes:
        sizes: dict[str, tuple[int, ...]] = {}
        for name, layer in self.network.named_modules():
            if isinstance(layer, torch.nn.Linear):  # whose weight is packed where it is quantized
                sizes[name] = layer.out_features, layer.in_features
            elif isinstance(layer, torch.nn.modules.conv._ConvNd):
                sizes[name] = tuple(layer.weight.shape)
        return {name.removesuffix(".base_layer"): shape for name, shape in sizes.items() if ".lora_" not in name}


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
    aside, hooks = [], []
    try:
        for layer in layers:
            base = layer.get_base_layer()
            weight = base.get_parameter("weight")
            aside.append(weight.data)
            if weight.device == next(layer.lora_A.parameters()).device:
                weight.data = _sum(layer)
            else:  # it is out: each time that it comes
                hooks.append(base.register_forward_pre_hook(partial(_put_sum, layer)))
            # By this peft's layers know that A and B are in the weight already.
            layer.merged_adapters.extend(layer.active_adapters)
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for layer, data in zip(layers, aside, strict=False):  # fewer, where summing them failed
            layer.get_base_layer().weight.data = data
            layer.merged_adapters.clear()


def _put_sum(layer: LoraLayer, base: torch.nn.Module, args: tuple) -> None:
    with torch.autocast(base.get_parameter("weight").device.type, enabled=False):  # as outside of a call
        base._parameters["weight"] = torch.nn.Parameter(_sum(layer), requires_grad=False)


@torch.no_grad()
def _sum(layer: LoraLayer) -> torch.Tensor:
    weight = layer.get_base_layer().get_parameter("weight").detach()
    if not weight.is_floating_point():
        raise ValueError(
            f"merge_adapter: the weights are quantized ({weight.dtype}), and rounding to so few bits would lose the adapter. "
            "Fix: merge_adapter off on SDE Sampler, or quantize = none on Model Memory"
        )
    delta = layer.get_delta_weight  # pyright: ignore[reportAttributeAccessIssue] all of peft's layers have one
    return sum((delta(name) for name in layer.active_adapters), weight.float()).to(weight.dtype)
