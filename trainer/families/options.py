"""How a flow model may be loaded: the choices, which of them exclude each other, and the error of a model that cannot be had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...host.errors import Expected
from ..workflow.problem import Misfit


class FlowModelError(Expected, ValueError):
    """A model folder that cannot be used, with the reason and what to do about it."""


@dataclass(frozen=True)
class LoadOptions:
    """How a checkpoint is held in memory and computed with; only `dtype` and `quantize` change its numbers."""

    dtype: str = "auto"
    device: str = "auto"
    max_sequence_length: int = 0
    quantize: str = "none"  # one of types.QUANTIZATIONS
    offload_encoders: bool = False
    vae_tiling: bool = False
    gradient_checkpointing: bool = False
    attention: str = "auto"
    compile: bool = False
    offload_vae: bool = False
    shard: bool = False


def conflict(training: str, options: Mapping) -> Misfit | None:
    """Options of `load_flow_model` that do not go together, with the one to change."""
    quantize = options.get("quantize", "none")
    if quantize == "none":
        return None
    if training == "full":
        message = f"quantize = {quantize} freezes the weights that training = full changes"
        return Misfit("training", message, "quantize = none, or training = lora")
    if options.get("shard"):
        message = f"shard: weights in quantize = {quantize} cannot be spread over processes"
        return Misfit("memory", message, "quantize = none, or switch shard off")
    return None
