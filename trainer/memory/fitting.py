"""Whether a model fits: a folder before it is loaded, and what ComfyUI loaded while it trains."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...host import devices, distributed
from ..families.options import FlowModelError, LoadOptions
from ..policy.adapters import Adapter
from . import needs
from .blueprint import of_folder
from .case import GB, TIGHT, Iteration
from .native import ARCHITECTURES, WAN21_VAE, Architecture, NativeCase

if TYPE_CHECKING:
    from ..native.model import NativeModel
    from ..types import SamplerSettings

logger = logging.getLogger(__name__)

# --- a diffusers folder ------------------------------------------------------------------------------------------------

# Its files have at least two bytes a number, and a trained number takes 24 at most: with that much free nothing is counted.
PLENTY = 16


def check_folder(
    path: Path, options: LoadOptions, adapter: Adapter | None, device: torch.device, dtype: torch.dtype
) -> None:
    """Compares what a model holds, by its configurations, with what is free.

    What computing takes comes on top: it depends on the sampler's settings, and `otca memory` counts it. So too much is an error
    and a tight fit only a warning.

    Args:
        adapter: what it is going to get; None: all weights are trained.

    Raises:
        FlowModelError: more than the device's free memory.
    """
    free = devices.free_memory(device)
    if PLENTY * sum(file.stat().st_size for file in path.glob("*/*.safetensors")) < free:
        return
    from .rehearsal import PipelineCase

    case = PipelineCase(of_folder(path), adapter, options, dtype, None, distributed.world(), reserve=0)
    need = case.needs.total
    message = f"{path.name} needs about {need / GB:.1f} GB on {device} before activations, {free / GB:.1f} GB are free"
    if need > free:
        ways = [f"{words} ({less.needs.total / GB:.1f} GB)" for words, less in case.changes().items()]
        raise FlowModelError(f"{message}. Fix: {', or '.join([*ways, 'a larger device'])}")
    if need > TIGHT * free:
        logger.warning("%s: tight", message)


# --- what ComfyUI loaded -----------------------------------------------------------------------------------------------

ROWS = 4  # samples in a call, if the sampler takes all of them at once and says no number
# The most that activations may take of the memory beside the weights, before blocks are computed again instead.
SHARE = 0.5
UNKNOWN = Architecture("", 0, 0, 0, 0, 0, WAN21_VAE, text_tokens=512)  # as many as a long prompt has


def planned(graph: Mapping[str, Mapping], guidance_is_embedded: bool) -> Iteration | None:
    """What a graph does with its model; None of one that does not train exactly one."""
    try:
        return needs.iteration(graph, off=None if guidance_is_embedded else 1.0)
    except ValueError:  # several updates, or none: only what is sampled is known
        return None


def case_of(model: NativeModel, settings: SamplerSettings, checkpointing: bool) -> NativeCase:
    """Its training at these settings, by the figures of the model at hand, and by the update that follows if that is known."""
    experts, samples = model.wrapped.values(), settings.batch_size or ROWS
    size = settings.width, settings.height, settings.frames
    guided = model.calls_per_velocity(settings.guidance) > 1
    iteration = Iteration(size, samples=samples, batch=samples, sampling_batch=samples, guided=guided)
    if model.planned is not None:
        iteration = replace(model.planned, size=size, guided=guided)
    iteration = replace(iteration, references=max(iteration.references, model.most_pictures))
    blocks = sum(len(expert.blocks) for expert in experts)
    kind = next(iter(experts)).core.model_config.unet_config.get("image_model")
    known = next((each for each in ARCHITECTURES.values() if each.image_model == kind), UNKNOWN)
    architecture = replace(
        known,
        title=model.source,
        params=0,
        width=_width(model),
        layers=max(1, blocks // len(experts)),
        networks=len(experts),
        pixels=model.grid.unit,
        time=model.grid.time or 1,
        values=model.grid.channels * model.grid.patch**2,
    )
    return NativeCase(
        model=architecture,
        weights_bytes=sum(expert.patcher.model_size() for expert in experts),
        trained=sum(parameter.numel() for parameter in model.policy.trainable_parameters()),
        iteration=iteration,
        checkpointing=checkpointing,
        is_low_memory=model.options.is_low_memory,
        tiling=True,  # to which ComfyUI turns by itself if a picture does not fit
        encoder_bytes=_size(model.clip),
        vae_bytes=_size(model.vae),
        compute_bytes=model.dtype.itemsize,
    )


def wants_checkpointing(model: NativeModel, settings: SamplerSettings) -> bool:
    """Whether activations would take more than their share of the memory that is left beside the weights."""
    found = case_of(model, settings, False).needs
    return found.parts["activations"] > SHARE * max(0, has(model.device) - found.parts["weights"])


def room(model: NativeModel, settings: SamplerSettings) -> int:
    """Bytes beside the weights that computing takes, whichever is larger of sampling and the update."""
    parts = case_of(model, settings, model.checkpointing).needs.parts
    return max(parts["activations"], parts["sampling"]) + parts["optimizer"]


def line(model: NativeModel, settings: SamplerSettings) -> str:
    """For a human: what it needs, what there is, and what makes it fit."""
    return f"Memory: {case_of(model, settings, model.checkpointing).sentence(has(model.device))}"


def has(device: torch.device) -> int:
    """Bytes of the device, whatever holds them now."""
    import comfy.model_management

    return int(comfy.model_management.get_total_memory(device))


def _width(model: NativeModel) -> int:
    """The width of a token in the blocks: what most of their layers take in."""
    layers = (layer for e in model.wrapped.values() for block in e.blocks.values() for layer in block.modules())
    widths: Counter[int] = Counter(
        vars(layer)["in_features"] for layer in layers if {"in_features", "out_features"} <= vars(layer).keys()
    )
    return widths.most_common(1)[0][0] if widths else 1


def _size(part) -> int:
    patcher = getattr(part, "patcher", None)
    return int(patcher.model_size()) if patcher is not None else 0
