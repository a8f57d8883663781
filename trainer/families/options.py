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
    memory: str = "auto"  # one of types.MEMORY


def conflict(training: str, options: Mapping) -> Misfit | None:
    """Options of `load_flow_model` that do not go together, with the one to change."""
    quantize = options.get("quantize", "none")
    quantized = f"quantize = {quantize}" if quantize != "none" else ""
    if training == "full" and quantized:
        message = f"{quantized} freezes the weights that training = full changes"
        return Misfit("training", message, "quantize = none, or training = lora")
    if options.get("shard") and quantized:
        message = f"shard: weights in {quantized} cannot be spread over processes"
        return Misfit("memory", message, "quantize = none, or switch shard off")
    reasons = (
        "training = full" if training == "full" else "",
        quantized,
        *(options.get(n) and n for n in ("shard", "compile")),
    )
    if options.get("memory") == "low" and (reason := next(filter(None, reasons), None)):
        message = f"memory = low: blocks cannot leave the device with {reason}"
        return Misfit("memory", message, f"memory = auto on Model Memory, or do without {reason}")
    return None
