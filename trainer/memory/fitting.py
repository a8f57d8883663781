"""Whether the weights of a model fit: a folder before it is loaded, and what ComfyUI loaded. A whole training is in `case`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...host import comfyui, devices, distributed
from ..families.options import FlowModelError, LoadOptions
from ..memo import Memo
from ..policy.adapters import Adapter
from ..types import MAKE_NODE
from ..workflow.problem import Problem, general
from . import needs
from .blueprint import of_folder
from .case import GB, RESERVE, SAMPLING, TIGHT, UPDATE, Iteration, Machine
from .native import NativeCase

if TYPE_CHECKING:
    from ..memo import Saved
    from .rehearsal import PipelineCase

logger = logging.getLogger(__name__)

# --- a diffusers folder ------------------------------------------------------------------------------------------------

# Its files have at least two bytes a number, and a trained number takes 24 at most: with that much free nothing is counted.
PLENTY = 16


class Streaming:
    """Decides how many blocks of a folder's model stay in main memory, once for each plan that a graph has for it."""

    def __init__(self, case: PipelineCase, device: torch.device):
        self._case, self._device = case, device
        self._planned = cache(lambda plan: replace(case, iteration=plan, reserve=RESERVE, machine=here(device)))

    def decided(self, graph: Mapping[str, Mapping] | None, guidance_is_embedded: bool) -> tuple[int, int, str]:
        """The number of blocks, that of a sample's calls whose graphs have room beside them, and what a training takes in words.

        0, 0 and "" where nothing has to be decided.

        `graph`: None before anything is sampled: by what is held, with room for what computes.
        """
        if not self._case.can_stream:
            return 0, 0, ""
        plan = planned(graph, guidance_is_embedded, self._device) if graph else None
        case = self._planned(plan) if plan else self._case
        decided = case.decided
        kept = (decided.iteration.kept_calls if decided.iteration else 0) or 0
        return decided.blocks_out or 0, kept, case.sentence(case.machine.has) if plan else ""


def check_folder(
    path: Path, options: LoadOptions, adapter: Adapter | None, device: torch.device, dtype: torch.dtype
) -> Streaming | None:
    """Compares what a model holds, by its configurations, with what is free.

    What computing takes comes on top: it depends on the sampler's settings, and `otca memory` counts it. So too much is an error
    and a tight fit only a warning.

    `adapter`: what it is going to get; None: all weights are trained.

    Returns what decides about its blocks; None where all of them fit.

    Raises:
        FlowModelError: more than the device's free memory.
    """
    free = devices.free_memory(device)
    if options.memory == "auto" and PLENTY * sum(file.stat().st_size for file in path.glob("*/*.safetensors")) < free:
        return None
    from .rehearsal import PipelineCase

    name = "" if device.type in ("cpu", "mps") else str(device)
    machine = Machine(name, TIGHT * free)  # of which computing takes a part, too
    case = PipelineCase(of_folder(path), adapter, options, dtype, None, distributed.world(), reserve=0, machine=machine)
    need = case.needs.total
    message = f"{path.name} needs about {need / GB:.1f} GB on {device} before activations, {free / GB:.1f} GB are free"
    if need > free:
        ways = [f"{words} ({less.needs.total / GB:.1f} GB)" for words, less in case.changes().items()]
        raise FlowModelError(f"{message}. Fix: {', or '.join([*ways, 'a larger device'])}")
    if need > TIGHT * free:
        logger.warning("%s: tight", message)
    return Streaming(case, device)


# --- what ComfyUI loaded -----------------------------------------------------------------------------------------------


class Decisions(dict[str, tuple], Memo):
    """The fields of a case that memory decides, by what is trained: a run that is resumed computes as before."""

    FIELDS = ("checkpointing", "encoder_stays", "kept_blocks")

    NAME = "memory"

    def saved(self) -> Saved:
        return {}, dict(self)

    @classmethod
    def read(cls, tensors: Mapping, values: Mapping[str, list]) -> Decisions:
        return cls({case: tuple(decided) for case, decided in values.items()})


def here(device: torch.device | None = None) -> Machine:
    """This machine, for all who count or decide: a GPU, where one computes, and main memory."""
    device, ram = device or devices.default_device(), devices.available(torch.device("cpu"))
    if device.type != "cpu":
        return Machine(str(device), devices.available(device), ram)
    if not comfyui.comfy_loaded():  # `otca` will have it hold weights as their files do
        return Machine("", ram, ram)
    from comfy.model_management import unet_dtype

    return Machine("", ram, ram, widens=unet_dtype(device, weight_dtype=torch.bfloat16) == torch.float32)


def main_memory(graph: Mapping[str, Mapping]) -> tuple[str, list[Problem]]:
    """Main memory that a graph needs here, and that there is, by the headers of the files.

    Returns:
        That in words, to stand behind something; "" where it is not known. And what is wrong with it: an error where what is held
        does not fit, a warning where the rest does not.
    """
    case = _counted(graph)
    if case is None:
        return "", []
    needed, free = case.ram, case.machine.ram
    words = f", which needs {needed / GB:.1f} GB of main memory and had {free / GB:.1f}"
    if needed <= free:
        return words, []
    ways, _ = case.together(free)
    fix = ", ".join(way.words for way in ways) or "smaller files, as in fp8, or a machine with more of it"
    message = f"main memory: {needed / GB:.1f} GB are needed (an estimate) and {free / GB:.1f} GB free"
    kind = "error" if case.loaded > free else "warning"
    return words, [replace(general(f"{message}: the system would kill it", fix), severity=kind)]


def _counted(graph: Mapping[str, Mapping]) -> NativeCase | None:
    """The case of what ComfyUI loads from files; None of anything else."""
    try:
        case, _ = needs.read(graph, here())
    except ValueError:
        return None
    return case if isinstance(case, NativeCase) else None


def encoder_files(graph: Mapping[str, Mapping]) -> list[Path]:
    """The safetensors of the text encoders of a graph's Make Trainable."""
    makers = (entry["inputs"] for entry in graph.values() if entry["class_type"] == MAKE_NODE)
    files = [file for inputs in makers for file, _ in needs.Files.of(graph, inputs).encoders]
    return [file.path for file in files if file.path is not None and file.path.suffix == ".safetensors"]


def planned(graph: Mapping[str, Mapping], guidance_is_embedded: bool, device: torch.device) -> Iteration | None:
    """The plan that a graph has for its model; None of one that does not train exactly one."""
    try:
        return needs.iteration(graph, None if guidance_is_embedded else 1.0, has_gpu=device.type != "cpu")
    except ValueError:  # several updates, or none: only what is sampled is known
        return None


def room(case: NativeCase) -> int:
    """Bytes beside the weights that computing takes, whichever is larger of sampling and the update.

    The adapter is there already, rewards ask for theirs, and ComfyUI leaves a reserve of its own.
    """
    others = {"weights", "adapter", "rewards", "reserve"}
    computing = (case.needs.phases[phase] for phase in (SAMPLING, UPDATE))
    return max(sum(size for name, size in parts.items() if name not in others) for parts in computing)
