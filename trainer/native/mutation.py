"""Autograd for networks that add their residuals in place.

Autograd keeps references to what it will need, and raises where somebody has written over it since. Here whatever is about to be
written over is copied first. `torch.autograd.graph.allow_mutation_on_saved_tensors` does the same, but only for a backward pass
that happens before its context is left: ours comes after the rollout, the rewards and the credit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from weakref import WeakSet

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode


class _Kept:
    """A tensor that the backward pass will need: autograd's own until somebody writes over it, then a copy."""

    __slots__ = ("__weakref__", "is_copy", "tensor")

    def __init__(self, tensor: Tensor):
        self.tensor, self.is_copy = tensor, False


class Mutable:
    """A context around a forward pass: what it keeps for the backward pass outlives its in-place operations.

    `copies` counts how often something had to be copied. A network for which that is 0 can do without this context, which
    looks at every operation.
    """

    def __init__(self, on_save: Callable[[Tensor], Tensor] | None = None):
        """`on_save` is told of each tensor that is kept: another context of saved tensors would not be asked within this one."""
        self.copies = 0
        self._on_save = on_save
        self._kept: dict[int, WeakSet[_Kept]] = defaultdict(WeakSet)
        self._stack = ExitStack()

    def __enter__(self) -> Mutable:
        self._stack.enter_context(saved_tensors_hooks(self._pack, lambda kept: kept.tensor))
        self._stack.enter_context(_BeforeWriting(self._rescue))
        return self

    def __exit__(self, *error) -> None:
        self._stack.close()
        self._kept.clear()

    def _pack(self, tensor: Tensor) -> _Kept:
        if self._on_save is not None:
            self._on_save(tensor)
        kept = _Kept(tensor)
        self._kept[_storage(tensor)].add(kept)
        return kept

    def _rescue(self, tensor: Tensor) -> None:
        for kept in self._kept.pop(_storage(tensor), ()):
            if not kept.is_copy:
                kept.tensor, kept.is_copy = kept.tensor.clone(), True
                self.copies += 1


class _BeforeWriting(TorchDispatchMode):
    def __init__(self, rescue: Callable[[Tensor], None]):
        super().__init__()
        self._rescue = rescue

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for number, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = kwargs.get(argument.name, args[number] if number < len(args) else None)
                for tensor in value if isinstance(value, list | tuple) else [value]:
                    if isinstance(tensor, Tensor):
                        self._rescue(tensor)
        return func(*args, **kwargs)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if type(tensor) in (Tensor, torch.nn.Parameter) else id(tensor)
