"""One MODEL of ComfyUI as a network that is trained: its clone, and what is wrapped around its layers while it trains."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from . import frozen
from .checkpointing import checkpointed
from .lora import NativeAdapters, blocks

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher

INJECTION = "otca"


class Expert:
    """A clone of a MODEL, which shares its weights. Other nodes that use the MODEL get it back as it was.

    Attributes:
        patcher: ComfyUI's handle of the clone.
        network: the network itself, under the names that ComfyUI's LoRA files use.
        adapters: those of the network.
        checkpointing: whether blocks are computed again in the backward pass.
        prepare: called before a block is computed: has the network be where it computes, with its wrappers.
        is_stale: whether ComfyUI may have moved weights since they were last looked at.
    """

    def __init__(self, model: ModelPatcher):
        import comfy.patcher_extension

        self.patcher = model.clone()
        self.patcher.is_injected = (
            False  # a clone of one that is in use says that its wrappers are on, and never puts ours on
        )
        self.network: torch.nn.Module = self.patcher.model.diffusion_model
        self.adapters = NativeAdapters(self.network, self.patcher.load_device)
        self.blocks = blocks(self.network)
        self.checkpointing, self.is_stale = False, True
        self.prepare: Callable[[], object] = lambda: None
        self._replaced: list[tuple[torch.nn.Module, Callable, Callable | None]] = []
        injection = comfy.patcher_extension.PatcherInjection(inject=self._inject, eject=self._eject)
        self.patcher.set_injections(INJECTION, [injection])

    @property
    def core(self) -> Any:
        """ComfyUI's BaseModel around the network."""
        return self.patcher.model

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in: the type of its weights, or another one where the device cannot compute in that."""
        return self.core.manual_cast_dtype or self.core.get_dtype()

    def _inject(self, patcher: ModelPatcher) -> None:
        for name, module in self.network.named_modules():
            if not (frozen.is_linear(module) or frozen.is_fetched(module)):
                continue
            layer = frozen.Layer(module, module.forward, self._ready, is_plain="forward" not in vars(module))
            if frozen.is_linear(module):
                self._wrap(module, functools.partial(self._linear, name, layer))
            else:
                self._wrap(module, functools.partial(frozen.other, layer))
        for name, block in self.blocks.items():
            self._wrap(block, functools.partial(self._block, name, block.forward))

    def _eject(self, patcher: ModelPatcher) -> None:
        while self._replaced:
            module, ours, before = self._replaced.pop()
            if vars(module).get("forward") is not ours:
                continue  # another node, whose wrapper ours was around, has taken both away already
            del module.forward
            if before is not None:
                module.forward = before

    def _wrap(self, module: torch.nn.Module, forward: Callable) -> None:
        self._replaced.append((module, forward, vars(module).get("forward")))
        module.forward = forward

    def _ready(self) -> None:
        self.prepare()

    def _linear(self, name: str, layer: frozen.Layer, x: Tensor, *args, **kwargs) -> Tensor:
        result = frozen.linear(layer, x, *args, **kwargs)
        pair = self.adapters.acting.get(name)
        return result if pair is None else result + pair(x)

    def _block(self, name: str, forward: Callable, *args, **kwargs) -> Any:
        if not self.checkpointing:
            return forward(*args, **kwargs)
        return checkpointed(functools.partial(self._prepared, forward), self.adapters.of(name), args, kwargs)

    def _prepared(self, forward: Callable, *args, **kwargs) -> Any:
        """A block, which is computed again in the backward pass: by then another node may have used the MODEL."""
        self.prepare()
        return forward(*args, **kwargs)

    def load(self, room: float) -> None:
        """Puts the network where ComfyUI computes, as far as it fits beside `room` bytes, with its wrappers around its layers."""
        import comfy.model_management

        comfy.model_management.load_models_gpu([self.patcher], memory_required=room)
        rewrap(self.core)
        self.patcher.pre_run()
        self.is_stale = False
        if not self.is_ready:
            raise RuntimeError(
                f"ComfyUI did not put the adapter on {type(self.core).__name__}, so nothing is computed with it"
            )

    @property
    def is_ready(self) -> bool:
        """Whether the wrappers are on: ComfyUI takes them off whenever another node uses or unloads the MODEL."""
        return not self.is_stale and bool(self._replaced) and self.core.current_patcher is self.patcher


def rewrap(module: torch.nn.Module) -> None:
    """Makes weights that were loaded inside `torch.inference_mode` ordinary tensors of the same memory: no copy.

    Autograd keeps nothing of an inference tensor. Quantized weights stay as they are: our layers never have autograd keep them.
    No weight gets a gradient, which ComfyUI leaves open for those that are outside of its layers.
    """
    module.requires_grad_(False)
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and parameter.is_inference() and type(parameter.data) is Tensor:
                made = torch.nn.Parameter(ordinary(parameter.data), requires_grad=False)
                vars(made).update(vars(parameter))  # what ComfyUI has noted on it, such as the dtype of the file
                part._parameters[name] = made
        for name, buffer in part._buffers.items():
            if buffer is not None and buffer.is_inference() and type(buffer) is Tensor:
                part._buffers[name] = ordinary(buffer)
    # Tensors that are neither, such as the means of Qwen-Image's and Wan's latents.
    for holder in (*module.modules(), *filter(None, [getattr(module, "latent_format", None)])):
        kept = vars(holder)
        kept.update({name: ordinary(value) for name, value in kept.items() if type(value) is Tensor})


def ordinary(tensor: Tensor) -> Tensor:
    """The same memory without the mark of `torch.inference_mode`."""
    return frozen.alone(tensor) if tensor.is_inference() else tensor
