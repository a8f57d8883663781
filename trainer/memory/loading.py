"""Whether a model of diffusers fits its device, by the headers of its weight files: asked before anything is loaded."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...host import devices, distributed
from ..families.loading import components, numbers
from ..families.options import FlowModelError, LoadOptions
from ..policy.adapters import Adapter, PeftAdapters
from .blueprint import of_folder
from .estimate import Work, estimate
from .held import held_by

if TYPE_CHECKING:
    from ..families.pipeline import PipelineModel

logger = logging.getLogger(__name__)


def check(
    family: type[PipelineModel],
    path: Path,
    options: LoadOptions,
    training: str,
    device: torch.device,
    dtype: torch.dtype,
    adapter: Adapter | None,
) -> None:
    """Compares what is held with what is free.

    What computing takes comes on top: it depends on the sampler's settings, and `otca memory` counts it. So too much is an error
    and a tight fit only a warning.

    Args:
        adapter: what the model is going to get, for whose memory there has to be room.

    Raises:
        FlowModelError: more than the device's free memory.
    """
    counts, size = counted(family, path), _adapter_size(family, path, adapter)
    need = bytes_held(counts, family.EXPERTS, options, training, dtype, adapter=size)
    free = devices.free_memory(device)
    message = (
        f"{path.name} needs about {need / 1e9:.1f} GB on {device} before activations, {free / 1e9:.1f} GB are free"
    )
    if need > free:
        ways = []
        for words, changed, kind, processes in lighter(options, training):
            less = bytes_held(counts, family.EXPERTS, changed, kind, dtype, processes, size)
            ways += [f"{words} ({less / 1e9:.1f} GB)"] if less < need else []
        raise FlowModelError(f"{message}. Fix: {', or '.join([*ways, 'a larger device'])}")
    if need > 0.8 * free:
        logger.warning("%s: tight", message)


def lighter(options: LoadOptions, training: str) -> Iterator[tuple[str, LoadOptions, str, int]]:
    """What holds less, from cheap to costly: in words, and the options, the kind of training and the number of processes."""
    here = distributed.world()
    yield "offload_encoders", replace(options, offload_encoders=True), training, here
    yield "offload_vae", replace(options, offload_vae=True), training, here
    yield "train an adapter (training = lora)", options, "lora", here
    for kind in ("8bit", "4bit") if training == "lora" else ():
        yield f"quantize = {kind}", replace(options, quantize=kind), training, here
    several = "with training = full" if training == "full" else "with Model Memory's shard"
    shared = replace(options, shard=training == "lora", quantize="none")
    yield f"two processes (--gpus 2) {several}", shared, training, 2 * here


def counted(family: type[PipelineModel], path: Path) -> dict[str, int]:
    """Numbers in the weights of each component of a checkpoint."""
    names = set(family.COMPONENTS) & set(components(path))
    return {name: sum(map(numbers, (path / name).glob("*.safetensors"))) for name in names}


def _adapter_size(family: type[PipelineModel], path: Path, adapter: Adapter | None) -> int:
    """Numbers in an adapter, by the configurations of the networks that get it."""
    if adapter is None:
        return 0
    whole = of_folder(path)
    experts = replace(whole, parts={name: whole.parts[name] for name in family.EXPERTS if name in whole.parts})
    size = 0
    for network in experts.networks().values():
        adapters = PeftAdapters(network, family.LORA_TARGETS)
        adapters.add(adapter)
        size += sum(parameter.numel() for parameter in adapters.parameters().values())
    return size


def bytes_held(
    counts: Mapping[str, int],
    trained: Collection[str],
    options: LoadOptions,
    training: str,
    dtype: torch.dtype,
    processes: int = 0,
    adapter: int = 0,
) -> int:
    """Bytes for weights and, of what is trained, gradients and moments; of a model as a whole the reference, too.

    The same estimate as that of `otca memory`, without the work of the phases and the reserve.

    Args:
        counts: parameters of each component.
        trained: names of the components that are trained.
        processes: that share what can be shared; 0: those that there are.
        adapter: numbers in it.
    """
    processes, itemsize = processes or distributed.world(), dtype.itemsize
    held = held_by(counts, trained, options, training, itemsize, adapter=adapter, processes=processes, reserve=0)
    return estimate(held, Work()).total
