"""Counts the bytes of tensors that are alive, operator by operator: of real tensors, or of such without numbers."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class Live(TorchDispatchMode):
    """Within it, `now` is the size of all storages that operators have made and somebody still holds, `peak` the most of it."""

    def __init__(self, held: Iterable[Tensor] = ()):
        """`held`: tensors from before, which do not count, and nor do views of them."""
        super().__init__()
        # A storage's Python object lives as long as the storage, once somebody holds it weakly.
        self._seen: dict[int, weakref.ref] = {}
        for tensor in held:
            self._see(tensor.untyped_storage(), 0)
        self.now = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            if id(storage) not in self._seen:
                self._see(storage, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return result

    def _see(self, storage: torch.UntypedStorage, size: int) -> None:
        key = id(storage)

        def gone(_) -> None:
            del self._seen[key]
            self.now -= size

        self._seen[key] = weakref.ref(storage, gone)
        if size:
            self.now += size


def _tensors(value) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
