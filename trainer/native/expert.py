"""One MODEL of ComfyUI as a network that is trained: its clone, and what is wrapped around its layers while it trains."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from . import foreign, frozen
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
        functions: what other nodes have put around its calls.
        is_alone: whether a call holds one sample only; see `trial`.
        checkpointing: whether blocks are computed again in the backward pass; but for so many that a call comes to last,
            `kept_blocks`.
        prepare: called before a block is computed: has the network be where it computes, with its wrappers.
        count: told of the samples of each call of the network, also of calls that another node makes.
        compiler: compiles blocks, where that is switched on.
        is_stale: whether ComfyUI may have moved weights since they were last looked at.
    """

    def __init__(self, model: ModelPatcher):
        import comfy.patcher_extension

        self.patcher = model.clone()
        # A clone of one that is in use says that its wrappers are on, and never puts ours on.
        self.patcher.is_injected = False
        self.network: torch.nn.Module = self.patcher.model.diffusion_model
        self.functions = foreign.functions(self.patcher, INJECTION)
        self.is_alone = any(function.place != "injections" for function in self.functions)
        self._held = self._unlock()
        self.adapters = NativeAdapters(self.network, self.patcher.load_device)
        self.blocks = blocks(self.network)
        self.checkpointing, self.kept_blocks, self.is_stale = False, 0, True
        self._blocks_begun = 0  # of the call that is at work
        self.compiler: Callable | None = None
        self.prepare: Callable[[], object] = lambda: None
        self.count: Callable[[int], object] = lambda samples: None
        self._replaced: list[tuple[torch.nn.Module, Callable, Callable | None]] = []
        injection = comfy.patcher_extension.PatcherInjection(inject=self.put_in, eject=self.take_out)
        self.patcher.set_injections(INJECTION, [injection])

    @property
    def core(self) -> Any:
        """ComfyUI's BaseModel around the network."""
        return self.patcher.model

    @property
    def asks_negative(self) -> bool:
        """Whether a node has the negative prompt computed at a guidance of 1 too."""
        around = any(function.kind == "predict_noise" for function in self.functions)  # which may change the guidance
        return around or bool(self.patcher.model_options.get("disable_cfg1_optimization"))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that it computes in: the type of its weights, or another one where the device cannot or a node says so."""
        return self.patcher.get_model_object("manual_cast_dtype") or self.core.get_dtype()

    @property
    def is_quantized(self) -> bool:
        """Whether any weight is held in fewer bits than it is computed with."""
        weights = (weight.data for weight in self.network.parameters())
        return any(type(w) is not torch.Tensor or w.dtype.itemsize < 2 for w in weights)

    def put_in(self, patcher: ModelPatcher) -> None:
        self._wrap(self.network, functools.partial(self._called, self.network.forward))
        others = [("", module) for network in self._held for module in network.modules()]  # which have no adapter
        for name, module in (*self.network.named_modules(), *others):
            if not (frozen.is_linear(module) or frozen.is_fetched(module)):
                continue
            layer = frozen.Layer(module, module.forward, lambda: self.prepare(), is_plain="forward" not in vars(module))
            self.adapters.wrapped[name] = layer
            # A method, since torch.compile would take any other callable for a program of its own.
            self._wrap(module, types.MethodType(frozen.adapted if frozen.is_linear(module) else frozen.other, layer))
        self.adapters.act(self.adapters.acting)
        for name, block in self.blocks.items():
            self._wrap(block, functools.partial(self._block, name, block, block.forward))

    def _unlock(self) -> list[torch.nn.Module]:
        """The networks that other nodes' functions hold; autograd may keep what it needs of all that they hold."""
        return foreign.unlock([function.value for function in self.functions], self.core)

    def take_out(self, patcher: ModelPatcher) -> None:
        self.adapters.wrapped.clear()
        while self._replaced:
            module, wrapper, before = self._replaced.pop()
            if vars(module).get("forward") is not wrapper:
                continue  # another node, whose wrapper ours was around, has taken both away already
            del module.forward
            if before is not None:
                module.forward = before

    def _wrap(self, module: torch.nn.Module, forward: Callable) -> None:
        self._replaced.append((module, forward, vars(module).get("forward")))
        module.forward = forward

    def _called(self, forward: Callable, x: Any, *args, **kwargs) -> Any:
        self.count(len(x[0] if isinstance(x, list) else x))  # a list holds a video and its sound
        self._blocks_begun = 0
        return forward(x, *args, **kwargs)

    def _block(self, name: str, block: torch.nn.Module, forward: Callable, *args, **kwargs) -> Any:
        self._blocks_begun += 1
        compiled = functools.partial(self.compiler, block, forward) if self.compiler else forward
        if not self.checkpointing or self._blocks_begun > len(self.blocks) - self.kept_blocks:
            # What a program keeps for its gradient are the weights themselves, which may be elsewhere by then.
            return (forward if torch.is_grad_enabled() else compiled)(*args, **kwargs)
        return checkpointed(functools.partial(self._prepared, compiled), self.adapters.of(name), args, kwargs)

    def _prepared(self, run: Callable, *args, **kwargs) -> Any:
        """A block, which is computed again in the backward pass: by then another node may have used the MODEL."""
        self.prepare()
        return run(*args, **kwargs)

    def load(self, room: float) -> None:
        """Puts the network where ComfyUI computes, as far as it fits beside `room` bytes, with its wrappers around its layers."""
        import comfy.model_management

        comfy.model_management.load_models_gpu([self.patcher], memory_required=room)
        foreign.rewrap(self.core)
        self._unlock()
        self.patcher.pre_run()
        if reset := getattr(self.core.diffusion_model, "reset_prefix_cache", None):
            reset(False)  # what a network keeps of a prompt from step to step is of the adapter as it was then
        self.is_stale = False
        if not self.is_ready:
            raise RuntimeError(
                f"ComfyUI did not put the adapter on {type(self.core).__name__}, so nothing is computed with it"
            )

    @property
    def is_ready(self) -> bool:
        """Whether the wrappers are on: ComfyUI takes them off whenever another node uses or unloads the MODEL."""
        return not self.is_stale and bool(self._replaced) and self.core.current_patcher is self.patcher


def page(module: torch.nn.Module, files: Iterable[Path]) -> None:
    """Weights that are the very numbers of tensors in these safetensors files become the files' own pages.

    The system drops pages of files when memory runs short, and reads them again. ComfyUI's names end as those in the files do.
    """
    from safetensors import safe_open

    for path in files:
        with safe_open(path, "pt") as file:
            keys = set(file.keys())
            for prefix, part in module.named_modules():
                for name, weight in part._parameters.items():
                    words = f"{prefix}.{name}".split(".")
                    key = next((k for n in range(len(words)) if (k := ".".join(words[n:])) in keys), None)
                    if key and weight is not None and weight.dtype == (tensor := file.get_tensor(key)).dtype:
                        if weight.shape == tensor.shape and torch.equal(weight.data, tensor):
                            part._parameters[name] = torch.nn.Parameter(tensor, requires_grad=False)
