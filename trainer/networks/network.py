"""A network that several may ask: loaded once, with its device and precision, and what it computed last."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Hashable, MutableMapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ...host import devices
from ...host.devices import Resident
from ..families.loading import DTYPES, resolve_device
from ..families.streaming import Stream, fits
from ..types import MEMORY_SHARE

logger = logging.getLogger(__name__)
T = TypeVar("T")


class OncePerBatch:
    """Something that several ask. The same question about the same batch is computed once."""

    def __init__(self):
        self._results: MutableMapping[Tensor, dict[Hashable, Any]] = WeakTensorKeyDictionary()

    def once(self, batch: Tensor, what: Hashable, compute: Callable[[], T]) -> T:
        """`compute()`, or what it gave the last time for this very tensor: rewards that share a forward pay for one.

        The result is forgotten with the batch.
        """
        results = self._results.setdefault(batch, {})
        if what not in results:
            results[what] = compute()
        return results[what]

    def known(self, batch: Tensor, what: Hashable) -> Any:
        """The result that `once` has for this very tensor, or None."""
        return self._results.get(batch, {}).get(what)


class Network(OncePerBatch, Resident):
    """Loaded once for all who use the same checkpoint on the same device in the same precision.

    A subclass loads itself in `__init__(path, device, dtype)` as `model`, or names its modules by `_networks()`, and ends with
    `settle`.

    To a device of whose free memory it would take more than its `room_share`, its blocks come one by one, as long as that is so.
    `otca memory` asks the same of what there is beside all that stays (`Judge` in `case`), for one that rests between two uses.
    """

    model: Any
    AUTO_DTYPE = torch.float32  # "auto" on an accelerator; on a CPU it is always float32

    def __init__(self, path: Path, device: torch.device, dtype: torch.dtype):
        super().__init__()
        self.path, self.dtype = path, dtype

    def _networks(self) -> list[torch.nn.Module]:
        return [self.model]

    def rest(self) -> None:
        """Leaves until it is asked again, and then comes whole only where that leaves others half of the room."""
        self.room_share = MEMORY_SHARE
        self.leave()

    def _move(self, device: torch.device) -> None:
        if device.type != "cpu" and bool(self.blocks_out) == fits(self._networks(), device, self.room_share):
            if self.blocks_out:
                self.blocks_out.end()
                self.blocks_out = None
            else:
                logger.warning(
                    "%s: too large for the memory that is free, so its blocks come one by one", self.path.name
                )
                self.blocks_out = Stream(self._networks(), None, device, lambda: self.device)
        super()._move(device)

    @property
    def device(self) -> torch.device:
        return next(self._networks()[0].parameters()).device


N = TypeVar("N", bound=Network)
_loaded: weakref.WeakValueDictionary[tuple, Network] = weakref.WeakValueDictionary()


def shared(kind: type[N], path: Path, device: str = "auto", dtype: str = "auto", **more: Hashable) -> N:
    """The network of that kind and checkpoint; loaded now, unless it is still held.

    `path`: a folder or file that holds the checkpoint.
    `device`: auto, or a torch device.
    `dtype`: auto, or one of DTYPES.
    `more`: further arguments of that kind.
    """
    chosen = resolve_device(devices.chosen_reward_device(device))
    automatic = torch.float32 if chosen.type == "cpu" else kind.AUTO_DTYPE
    precision = automatic if dtype == "auto" else DTYPES[dtype]
    key = (kind, path.resolve(), chosen, precision, *sorted(more.items()))
    network = _loaded.get(key)
    if not isinstance(network, kind):  # it is None
        network = _loaded[key] = kind(path, chosen, precision, **more)
    return network
