"""How much memory is in use on this machine, for a line of the page that is asked for again and again; and whether a graph fits.

Nothing is begun for it: torch is not imported here, and an accelerator is asked only where ComfyUI works on it already. To ask
any other would make this process take some hundred megabytes there.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import psutil

from ..host import devices

if TYPE_CHECKING:
    from ..trainer.memory.light import Light
    from ..trainer.workflow.running import Workflow


@dataclass(frozen=True)
class Memory:
    """Bytes of one device. `ours`: those in use by us, None if that is not known.

    `name` is torch's name of the device, or "" for main memory.
    """

    name: str
    used: int
    total: int
    ours: int | None


class Machine:
    def __init__(self) -> None:
        self._looking = threading.Lock()
        self._seen: list[dict[str, Any]] = []

    def memory(self, processes: Iterable[int]) -> list[dict[str, Any]]:
        """The memory of every accelerator that ComfyUI works on, and main memory last.

        A driver that is busy may answer late: meanwhile others get what was seen last, and do not wait as well.

        Args:
            processes: numbers of processes that are ours, beside this one.
        """
        if self._looking.acquire(blocking=False):
            try:
                memory, used, is_known = psutil.virtual_memory(), 0, False
                for number in list(processes):
                    with contextlib.suppress(psutil.Error):  # it has just ended
                        process = psutil.Process(number)
                        for member in (process, *process.children(recursive=True)):
                            used, is_known = used + member.memory_info().rss, True
                self._seen = [
                    asdict(device)
                    for device in (
                        *_accelerators(),
                        Memory("", memory.total - memory.available, memory.total, used if is_known else None),
                    )
                ]
            finally:
                self._looking.release()
        return self._seen


def compared(prompt: Workflow) -> dict[str, Any]:
    """A graph's `lights`, {Make Trainable: whether what it trains fits here}, by the device that ComfyUI computes on; `own`,
    {node that samples: {input: what its model is made for}}."""
    from ..trainer.memory import light

    lights = {node: asdict(state) for node, state in _lights(prompt).items()}
    return {"lights": lights, "own": light.owns(prompt.entries)}


def _lights(prompt: Workflow) -> dict[str, Light]:
    from ..trainer.memory import fitting, light

    graph = {node: dict(entry) for node, entry in prompt.entries.items()}
    for node_id, node in prompt.nodes.items():
        if node.class_type in light.COUNTED:
            graph[node_id]["inputs"] = {**node.inputs, **node.constants}
            wrong = [name for name, value in node.constants.items() if any(prompt.check_value(node, name, value))]
            if node.unreadable or wrong and node.class_type not in light.REWARDS:
                name = next(iter((*node.unreadable, *wrong)))
                return light.unknown(graph, f"{prompt.title(node_id)}: {name} is not a value that it takes")
    return light.lights(graph, fitting.here())


def accelerators() -> list[str]:
    """torch's names of the accelerators that this process has. ComfyUI has loaded torch; without it the list is empty."""
    torch, devices = sys.modules.get("torch"), []
    for kind in ("cuda", "xpu") if torch is not None else ():
        module = getattr(torch, kind, None)
        if module is not None and module.is_available():
            devices += [f"{kind}:{number}" for number in range(module.device_count())]
    return devices + (["mps"] if torch is not None and torch.backends.mps.is_available() else [])


def _accelerators() -> list[Memory]:
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    cards = []
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if module is None or not hasattr(module, "mem_get_info") or not module.is_initialized():
            continue
        # The devices on which this process has memory already.
        has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None) if kind == "cuda" else None
        numbers = filter(has_context, range(module.device_count())) if has_context else [module.current_device()]
        for number in numbers:
            try:
                free, total = module.mem_get_info(number)
            except RuntimeError:  # a driver that cannot say: the line is about the others then
                continue
            try:
                held = devices.held_on(kind, number)
            except RuntimeError:  # a model is being put together at this moment, and its list of weights changes
                held = None
            cards.append(Memory(f"{kind}:{number}", total - free, total, held))
    return cards
