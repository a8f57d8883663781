"""What rewards with a network share: the network itself, its place and precision, and what it computed last."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from ...host import devices
from ...host.resident import Resident
from ..rewards.base import OncePerBatch, Reward

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Network(OncePerBatch, Resident):
    """A scoring network, loaded once for all rewards that use the same checkpoint on the same device in the same precision.

    A subclass loads itself in `__init__(place, device, dtype)`, keeps its modules in `_networks()` and ends with `settle`.
    """

    AUTO_DTYPE = torch.float32  # "auto" on an accelerator; on a CPU it is always float32

    def __init__(self, place: Path, device: torch.device, dtype: torch.dtype):
        super().__init__()
        self.place, self.dtype = place, dtype

    @property
    def device(self) -> torch.device:
        return next(self._networks()[0].parameters()).device


N = TypeVar("N", bound=Network)
_loaded: weakref.WeakValueDictionary[tuple, Network] = weakref.WeakValueDictionary()


def shared(kind: type[N], place: Path, device: str = "auto", dtype: str = "auto", **own: Hashable) -> N:
    """The network of that kind and checkpoint; loaded now, unless some reward still holds it.

    Args:
        place: a folder or file that holds the checkpoint.
        device: auto, or a torch device.
        dtype: auto, or one of DTYPES.
        own: further arguments of that kind.
    """
    from ..flow.loading import resolve_device

    chosen = resolve_device(devices.chosen_reward_device(device))
    automatic = torch.float32 if chosen.type == "cpu" else kind.AUTO_DTYPE
    precision = automatic if dtype == "auto" else DTYPES[dtype]
    key = (kind, place.resolve(), chosen, precision, *sorted(own.items()))
    network = _loaded.get(key)
    if network is None:
        network = _loaded[key] = kind(place, chosen, precision, **own)
    return network


class NetworkReward(Reward):
    """A reward that asks a `Network`, several of which may be shared between rewards.

    Args:
        network: from `shared`.
        batch_size: pictures to one forward pass; 0: all at once.
        offload: between two uses the network waits in main memory.
    """

    def __init__(
        self,
        name: str,
        coefficient: float,
        held_out: bool,
        network: Network,
        *,
        batch_size: int = 0,
        offload: bool = False,
    ):
        super().__init__(name, coefficient, held_out)
        self.network, self.batch_size, self.offload = network, batch_size, offload

    def come_back(self) -> None:
        self.network.come_back()

    def rest(self) -> None:
        if self.offload:
            self.network.leave()

    def in_batches(self, function: Callable[..., Tensor], *columns) -> Tensor:
        """`function` of `batch_size` rows of every column at a time (tensors or lists of one length), put together."""
        size = self.batch_size or len(columns[0])
        parts = range(0, len(columns[0]), size)
        return torch.cat([function(*(column[start : start + size] for column in columns)) for start in parts])
