"""Blocks as torch.compile makes them: one program for all blocks of a class, since nothing in it knows a block's name.

Only blocks are compiled whose layers hold their own weights in the type that is computed in, and with a gradient only those that
are computed again for it. The others run as ever; a warning says why. A program works on copies of what it is given, so that it
writes over nothing that autograd has kept.
"""

from __future__ import annotations

import functools
import logging
import re
import types
from collections.abc import Callable
from typing import Any

import torch

from ...host.text import shortened
from ..families.loading import GRAPHS, allow_graphs
from . import frozen

logger = logging.getLogger(__name__)

BACKEND = "inductor"  # torch's own


class Compiler:
    """Calls blocks of an Expert by their programs, where they can be compiled."""

    def __init__(self, expert: Any):
        allow_graphs()
        self.expert, self.told = expert, set()
        self.like = torch.empty(0, dtype=expert.dtype, device=expert.patcher.load_device)
        self.refused: dict[type, str] = {}

    def __call__(self, block: torch.nn.Module, forward: Callable, *args, **kwargs) -> Any:
        if reason := self.reason(block):
            if reason not in self.told:
                self.told.add(reason)
                reasons = list(map(self.reason, self.expert.blocks.values()))
                message = "compile: %d of %d blocks stay as they are, since %s"
                logger.warning(message, reasons.count(reason), len(reasons), reason)
            return forward(*args, **kwargs)
        try:
            alike = {name: _alike(value) for name, value in kwargs.items()}
            return program(type(block))(forward, *map(_alike, args), **alike)
        except (_errors().TorchDynamoException, _errors().FailOnRecompileLimitHit) as error:
            result = forward(*args, **kwargs)  # it says what is wrong with a call
            words = shortened(" ".join(str(error.__cause__ or error).split()), 300)
            fix = "compile off on Make Trainable, or start ComfyUI with --use-pytorch-cross-attention"
            if isinstance(error, _errors().FailOnRecompileLimitHit):
                words, fix = f"it has made {GRAPHS} programs of it since ComfyUI began", "start ComfyUI anew"
            self.refused[type(block)] = f"torch refuses {type(block).__name__}: {words}. Fix: {fix}"
            return result

    def reason(self, block: torch.nn.Module) -> str | None:
        """Why a block is not compiled."""
        if self.expert.functions:
            return "another node's functions are on the MODEL. Fix: connect it from before that node, or switch compile off"
        layers = (part for part in block.modules() if frozen.is_linear(part) or frozen.is_fetched(part))
        if not all(frozen.is_resident(layer, self.like) for layer in layers):
            return (
                "their weights are in main memory, or not in the type that is computed in. Fix: load a file in bfloat16, and "
                "start ComfyUI with --disable-dynamic-vram; or switch compile off"
            )
        return self.refused.get(type(block))


def _errors() -> Any:
    return torch._dynamo.exc  # pyright: ignore[reportAttributeAccessIssue] it is loaded when it is asked for


def _alike(value: Any) -> Any:
    """A tensor as every block gets it: the first one gets views, for which torch would make graphs of their own."""
    return value.clone() if isinstance(value, torch.Tensor) and value._is_view() else value


@functools.cache
def program(kind: type) -> Callable:
    """The forward pass of a class of blocks, as a function of its own: torch counts the graphs of each."""
    code = _forward.__code__.replace(co_name=kind.__name__)
    return torch.compile(types.FunctionType(code, globals()), fullgraph=True, backend=_backend)


def _forward(forward: Callable, *args, **kwargs) -> Any:
    copies = (value.clone() if isinstance(value, torch.Tensor) else value for value in args)
    return forward(*copies, **{k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()})


def _backend(module: torch.fx.GraphModule, inputs: list) -> Callable:
    """torch's backend behind a step of ours: an operation reads a copy of what a later one writes over.

    Else autograd, if it has to keep that, refuses the graph. The backend leaves out copies that nothing needs.

    Raises:
        TorchDynamoException: something that came within a list is written over, and torch would do so behind autograd's back.
    """
    later: set[int | None] = set()
    for node in reversed(list(module.graph.nodes)):
        # Not for a view, nor for what is written over by itself
        for source in (s for s in node.all_input_nodes if _memory(s) in later - {_memory(node), None}):
            with module.graph.inserting_before(node):
                node.replace_input_with(source, module.graph.call_method("clone", (source,)))
        if node.op.startswith("call") and WRITES.fullmatch(getattr(node.target, "__name__", str(node.target))):
            later.add(_memory(node.args[0]))
        if node.op == "placeholder" and _memory(node) in later:
            raise _errors().TorchDynamoException("it writes over tensors within what it is given")
    module.recompile()
    return torch._dynamo.lookup_backend(BACKEND)(module, inputs)


WRITES = re.compile(r"i(add|sub|mul|truediv|pow)|setitem|.*[^_]_")  # over their first input


def _memory(node: Any) -> int | None:
    """A number of the memory of a tensor, which its views share."""
    return value.untyped_storage()._cdata if isinstance(value := node.meta.get("example_value"), torch.Tensor) else None
