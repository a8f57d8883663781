"""Devices and their memory, which ComfyUI's own models share; the networks that make room there when they are asked to, and come
back; and how we leave ComfyUI's inference mode, since we train."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from . import comfyui

if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def training_mode() -> Iterator[None]:
    """Leaves `torch.inference_mode`, under which ComfyUI runs nodes: a parameter that is made there can never be trained."""
    import torch

    with torch.inference_mode(False), torch.enable_grad():
        yield


def outside_inference(function: Callable) -> Callable:
    """Decorates a node's function so that it runs in `training_mode`."""

    @functools.wraps(function)
    def wrapped(*args, **kwargs):
        with training_mode():
            return function(*args, **kwargs)

    return wrapped


def make_room() -> None:
    """Asks ComfyUI's own models to leave the accelerator before ours allocate."""
    if comfyui.comfy_loaded():
        import comfy.model_management

        if comfy.model_management.current_loaded_models:
            comfy.model_management.unload_all_models()
            comfy.model_management.soft_empty_cache()


def ask_for_room(size: int, device: torch.device) -> None:
    """Has ComfyUI's models leave a device as far as so many bytes need it. ComfyUI knows nothing of what others put there."""
    if size and device.type != "cpu" and comfyui.comfy_loaded():
        import comfy.model_management

        comfy.model_management.free_memory(size * 1.1, device)


def empty_cache() -> None:
    """Gives unused memory of the accelerator back, so that others can take it."""
    import gc

    gc.collect()  # a model that nobody holds any more may still hold itself
    if comfyui.comfy_loaded():
        import comfy.model_management

        comfy.model_management.soft_empty_cache()


def default_device() -> torch.device:
    """The accelerator if there is one, as ComfyUI's own options choose it (--cpu, --cuda-device)."""
    import torch

    if comfyui.comfy_loaded():
        import comfy.model_management

        return comfy.model_management.get_torch_device()
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return torch.device("cpu") if accelerator is None else accelerator


def free_memory(device: torch.device) -> int:
    """Bytes that can still be taken on a torch device."""
    if device.type == "cuda":
        import torch

        reusable = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + reusable
    import psutil

    return psutil.virtual_memory().available


def available(device: torch.device) -> int:
    """Bytes of a torch device that this process can have: what is free, and what it has of it already."""
    if device.type == "cuda":
        import torch

        free, total = torch.cuda.mem_get_info(device)
        weights = sys.modules.get("comfy_aimdo.control")  # where ComfyUI's server keeps weights unknown to torch
        return min(
            total, free + torch.cuda.memory_reserved(device) + (weights.get_total_vram_usage() if weights else 0)
        )
    if device.type not in ("cpu", "mps") and comfyui.comfy_loaded():
        import comfy.model_management

        return int(comfy.model_management.get_total_memory(device))
    import psutil

    own = psutil.Process().memory_info()
    return free_memory(device) + own.rss - getattr(own, "shared", 0)  # pages of files are free already


def peak_memory() -> dict[str, int]:
    """The most bytes that this process has had of each kind of memory so far, where the system says it."""
    import torch

    peaks = {}
    if torch.cuda.is_initialized():
        for number in range(torch.cuda.device_count()):
            if peak := torch.cuda.max_memory_reserved(number):
                peaks[torch.cuda.get_device_name(number)] = peak
    if sys.platform != "win32":
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        peaks["main memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return peaks


QUEUES = {"cuda"}  # accelerators that take copies of main memory in turn, without the host waiting for them
_STAGED = 64 * 1024  # bytes that CUDA takes over from ordinary memory at once


def upload(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor on a device. Where it comes from main memory, the host does not wait for what the device was asked before.

    A plain `to` of it waits each time, and the device then has nothing to do until the host has caught up.
    """
    if device.type not in QUEUES or tensor.device.type != "cpu":
        return tensor.to(device)
    # Of ordinary memory the host would have to wait until a larger part was fetched; pinned memory stays until it is.
    return (tensor.pin_memory() if tensor.nbytes > _STAGED else tensor).to(device, non_blocking=True)


def buffer_for(device: torch.device, size: int) -> torch.Tensor:
    """So many bytes of main memory, of which that device takes copies without the host waiting, if it can."""
    import torch

    buffer = torch.empty(size, dtype=torch.uint8)
    if device.type != "cuda":
        return buffer.pin_memory() if device.type in QUEUES else buffer
    # Ordinary memory, made known: torch's own pinned memory comes in powers of two, and half of it may be waste.
    runtime: Any = torch.cuda.cudart()
    if size and runtime.cudaHostRegister(buffer.data_ptr(), size, 0):
        # No more can be made known: copies of it take the host's time. CUDA remembers the error, and the next kernel says it.
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=device)
    elif size:
        weakref.finalize(buffer.untyped_storage(), _forget, runtime, buffer.data_ptr()).atexit = False
    return buffer


def _forget(runtime: Any, address: int) -> None:
    """Has CUDA know this memory no more."""
    wait_for_copies()
    runtime.cudaHostUnregister(address)


def wait_for_copies() -> None:
    """Waits until nothing is under way between main memory and a GPU."""
    import torch

    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def fetch(target: torch.Tensor, source: torch.Tensor) -> Callable[[], None]:
    """Has a device copy a buffer of main memory beside what it computes, after all that it was asked before.

    Returns what has later work wait for it.
    """
    import torch

    if target.device.type != "cuda":
        target.copy_(source, non_blocking=target.device.type in QUEUES)
        return lambda: None
    beside = _beside(target.device)
    beside.wait_stream(torch.cuda.current_stream(target.device))
    with torch.cuda.stream(beside):
        target.copy_(source, non_blocking=True)
    done = beside.record_event()
    return lambda: torch.cuda.current_stream(target.device).wait_event(done)


@functools.cache
def _beside(device: torch.device) -> torch.cuda.Stream:
    import torch

    return torch.cuda.Stream(device)


def download(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Small tensors of one device in main memory, by one copy, and so by one wait."""
    import torch

    if not tensors:
        return {}
    together = torch.cat([tensor.detach().flatten() for tensor in tensors.values()]).cpu()
    parts = together.split([tensor.numel() for tensor in tensors.values()])
    pairs = zip(tensors.items(), parts, strict=True)
    return {name: part.view(tensor.shape).to(tensor.dtype) for (name, tensor), part in pairs}


_chosen: dict[str, str | None] = {"all": None, "rewards": None}


def choose(device: str | None, rewards: str | None = None) -> None:
    """Has this process use other devices than its nodes name: one for everything, and one for rewards that say `auto`."""
    _chosen.update(all=device, rewards=rewards)


def chosen_device(name: str) -> str:
    """The device that a node names, unless the process was told to use another one."""
    return _chosen["all"] or name


def chosen_reward_device(name: str) -> str:
    """The same as `chosen_device`, for a reward: `auto` may be a GPU that only rewards use."""
    return _chosen["rewards"] if _chosen["rewards"] and name == "auto" else chosen_device(name)


# --- what makes room and comes back -----------------------------------------------------------------------------------

moving = threading.RLock()  # held while anything moves: whoever comes back waits until all have left
resident_networks: weakref.WeakSet[Resident] = weakref.WeakSet()


class Resident:
    """A flow model or a reward model. Away from its device it keeps all that it learned, in main memory.

    Attributes:
        room_share: the share of the free memory up to which it comes whole.
        blocks_out: a `Stream` of those that stay in main memory and come one by one; None: all of it comes.
    """

    room_share = 1.0
    blocks_out: Any = None
    _home: torch.device | None = None  # where to return to, while it is away

    def _networks(self) -> list[torch.nn.Module]:
        """The networks that `leave` moves."""
        return []

    def _move(self, device: torch.device) -> None:
        for network in self._movable():
            network.to(device)

    def _movable(self) -> list[torch.nn.Module]:
        # bitsandbytes refuses to move 8-bit networks in some of its versions: they stay
        return [network for network in self._networks() if not getattr(network, "is_loaded_in_8bit", False)]

    def _ask_for_room(self, device: torch.device) -> None:
        weights = (p for network in self._movable() for p in network.parameters() if p.device.type != device.type)
        size = sum(weight.nbytes for weight in weights) - (self.blocks_out.away if self.blocks_out else 0)
        ask_for_room(round(size / self.room_share), device)

    def settle(self, device: torch.device) -> None:
        """Moves it to its device, and takes note of it for `release_all`."""
        with moving:
            self._ask_for_room(device)
            self._move(device)
            resident_networks.add(self)

    def leave(self) -> bool:
        """Moves it to main memory. False if it was there already."""
        away = [device for device in map(_device, self._movable()) if device.type != "cpu"]
        if not away:
            return False
        import torch

        self._home = away[0]
        self._move(torch.device("cpu"))
        return True

    def come_back(self) -> None:
        """Back to the device that `leave` took it from, if it did; its user calls this first."""
        with moving:
            if self._home is not None:
                self._ask_for_room(self._home)
                self._move(self._home)
                self._home = None  # only now: where memory ran out it tries again


def held_on(kind: str, number: int) -> int | None:
    """Bytes of weights that residents have on a device of torch; None if they have none. Does not wait for a move to end."""
    weights = [
        weight for user in list(resident_networks) for network in user._networks() for weight in network.parameters()
    ]
    on_it = [w.nbytes for w in weights if w.device.type == kind and (w.device.index or 0) == number]
    return sum(on_it) or None


def release_all() -> int:
    """Asks every resident to leave; returns how many did."""
    with moving:
        count = sum(resident.leave() for resident in list(resident_networks))
    empty_cache()
    return count


def _device(network: torch.nn.Module) -> torch.device:
    device = getattr(network, "device", None)
    return next(network.parameters()).device if device is None else device  # a plain module does not say where it is
