"""Whatever keeps networks on an accelerator, and can be asked to make room and to come back."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from . import devices

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
        for network in self._movable():
            network.to(device)

    def _movable(self) -> list[torch.nn.Module]:
        # bitsandbytes refuses to move 8-bit networks in some of its versions: they stay
        return [network for network in self._networks() if not getattr(network, "is_loaded_in_8bit", False)]

    def _ask_for_room(self, device: torch.device) -> None:
        weights = [p for network in self._movable() for p in network.parameters() if p.device.type != device.type]
        devices.ask_for_room(sum(weight.nbytes for weight in weights), device)

    def settle(self, device: torch.device) -> None:
        """Moves it to its device, and takes note of it for `release_all`."""
        with moving:
            self._ask_for_room(device)
            self._move(device)
            _residents.add(self)

    def leave(self) -> bool:
        """Moves it to main memory. False if it was there already."""
        away = [device for device in map(_device, self._movable()) if device.type != "cpu"]
        if not away:
            return False
        self._home = away[0]
        self._move(_main_memory())
        return True

    def come_back(self) -> None:
        """Back to the device that `leave` took it from, if it did; whoever uses it calls this first."""
        with moving:
            if self._home is not None:
                self._ask_for_room(self._home)
                self._move(self._home)
                self._home = None  # only now: where memory ran out it tries again


def held_on(kind: str, number: int) -> int | None:
    """Bytes of weights that residents have on a device of torch; None where they have none. Waits for nobody who moves them."""
    weights = [weight for each in list(_residents) for network in each._networks() for weight in network.parameters()]
    on_it = [w.nbytes for w in weights if w.device.type == kind and (w.device.index or 0) == number]
    return sum(on_it) or None


def release_all() -> int:
    """Asks every resident to leave; returns how many did."""
    with moving:
        count = sum(resident.leave() for resident in list(_residents))
    devices.empty_cache()
    return count


def _device(network: torch.nn.Module) -> torch.device:
    device = getattr(network, "device", None)
    return next(network.parameters()).device if device is None else device  # a plain module does not say where it is


def _main_memory() -> torch.device:
    import torch

    return torch.device("cpu")
