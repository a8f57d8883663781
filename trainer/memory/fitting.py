"""Whether a loaded model fits while it trains: the estimate of `memory`, with the figures of the model at hand."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import TYPE_CHECKING

import torch

from .architectures import SAVED
from .estimate import GB, Estimate
from .native import estimate

if TYPE_CHECKING:
    from ..native.model import NativeModel
    from ..types import SamplerSettings

ROWS = 4  # samples in a call, where the sampler takes all of them at once and says no number
# Of the memory beside the weights, the most that activations may take before blocks are computed again instead.
SHARE = 0.5
TEXT_TOKENS = 512  # of a long prompt


def needs(model: NativeModel, settings: SamplerSettings, checkpointing: bool) -> Estimate:
    """What an iteration at these settings needs on the device."""
    shape = model.latent_shape(settings.height, settings.width, settings.frames)
    rows = (settings.batch_size or ROWS) * (1 if model.guidance_is_embedded or settings.guidance <= 1 else 2)
    weights = sum(expert.patcher.model_size() for expert in model.wrapped.values())
    blocks = sum(len(expert.blocks) for expert in model.wrapped.values())
    return estimate(
        weights_bytes=weights // max(1, blocks) if model.options.is_low_memory else weights,
        params=sum(parameter.numel() for parameter in model.policy.trainable_parameters()),
        tokens=prod(shape[1:]) // model.tokens_side**2 + TEXT_TOKENS,
        width=_width(model),
        layers=max(1, blocks // len(model.wrapped)),
        batch=rows,
        checkpointing=checkpointing,
        sampling_batch=rows,
        saved=SAVED * model.dtype.itemsize / 2,  # the estimate counts two bytes a number
        text_encoder_bytes=_size(model.clip),
        vae_bytes=_size(model.vae),
    )


def wants_checkpointing(model: NativeModel, settings: SamplerSettings) -> bool:
    """Whether activations would take more than their share of the memory that is left beside the weights."""
    found = needs(model, settings, False)
    return found.parts["activations"] > SHARE * max(0, has(model.device) - found.parts["weights"])


def line(model: NativeModel, settings: SamplerSettings) -> str:
    """For a human: what it needs, what there is, and what to change where that is too little."""
    found, there = needs(model, settings, model.checkpointing), has(model.device)
    text = (
        f"Memory: needs about {found.total / GB:.1f} GB (an estimate, for {found.phase}), {there / GB:.1f} GB are there"
    )
    if found.total <= there:
        return text
    ways = {
        "checkpointing on": not model.checkpointing,
        "a smaller batch_size": settings.batch_size != 1,
        "memory low": not model.options.is_low_memory,
        "smaller pictures": True,
    }
    return f"{text}. Change: {', '.join(way for way, is_open in ways.items() if is_open)}"


def room(model: NativeModel, settings: SamplerSettings) -> int:
    """Bytes beside the weights that computing takes, whichever is larger of sampling and the update."""
    parts = needs(model, settings, model.checkpointing).parts
    return max(parts["activations"], parts["sampling"]) + parts["optimizer"]


def has(device: torch.device) -> int:
    """Bytes of the device, whoever holds them now."""
    import comfy.model_management

    return int(comfy.model_management.get_total_memory(device))


def _width(model: NativeModel) -> int:
    """Of a token in the blocks: what most of their layers take in."""
    layers = (layer for e in model.wrapped.values() for block in e.blocks.values() for layer in block.modules())
    widths = Counter(layer.in_features for layer in layers if {"in_features", "out_features"} <= vars(layer).keys())
    return widths.most_common(1)[0][0] if widths else 1


def _size(part) -> int:
    patcher = getattr(part, "patcher", None)
    return int(patcher.model_size()) if patcher is not None else 0
