"""Whatever keeps networks on an accelerator, and can be asked to make room and to come back."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from . import host

if TYPE_CHECKING:
    import torch

moving = threading.RLock()  # held while anything moves: whoever comes back waits until all have left
_residents: weakref.WeakSet[Resident] = weakref.WeakSet()


class Resident:
    """A flow model or a reward model. Away from its device it keeps all that it learned, in main memory."""

    _home: torch.device | None = None  # where to return to, while it is away

    def _networks(self) -> list[torch.nn.Module]:
        """What `leave` moves."""
        return []

    def _move(self, device: torch.device) -> None:
        for network in self._networks():
            if not getattr(network, "is_loaded_in_8bit", False):  # bitsandbytes lets those stay where they are
                network.to(device)

    def settle(self, device: torch.device) -> None:
        """Moves it to its device, and takes note of it for `release_all`."""
        self._move(device)
        _residents.add(self)

    def leave(self) -> bool:
        """Moves it to main memory. False if it was there already."""
        devices = {network.device for network in self._networks()}
        if all(device.type == "cpu" for device in devices):
            return False
        (self._home,) = devices
        self._move(_main_memory())
        return True

    def come_back(self) -> None:
        """Back to the device that `leave` took it from, if it did; whoever uses it calls this first."""
        with moving:
            if self._home is not None:
                home, self._home = self._home, None
                self._move(home)


def release_all() -> int:
    """Asks every resident to leave; returns how many did."""
    with moving:
        count = sum(resident.leave() for resident in list(_residents))
    host.empty_cache()
    return count


def _main_memory() -> torch.device:
    import torch

    return torch.device("cpu")
