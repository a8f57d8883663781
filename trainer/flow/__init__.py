"""Flow models: one file a family, found by the `_class_name` in a diffusers folder's model_index.json.

A new family is one file with a subclass of `FlowModel` and one row in FAMILIES.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .base import FlowModel

FAMILIES = {"FluxPipeline": "flux.Flux"}


class FlowModelError(ValueError):
    """A model folder that cannot be used, with the reason and what to do about it."""


def load_flow_model(
    path: str | Path,
    *,
    lora_rank: int = 16,
    lora_alpha: float = 16.0,
    lora_targets: str = "",
    seed: int = 0,
    dtype: str = "auto",
    device: str = "auto",
    max_sequence_length: int = 0,
) -> FlowModel:
    """Loads a diffusers pipeline folder and attaches a trainable adapter to its transformer.

    Args:
        path: a diffusers folder (one that holds model_index.json).
        lora_rank, lora_alpha: of the adapter; its scale is alpha / rank.
        lora_targets: comma-separated ends of module names; empty takes the family's own list.
        seed: of the adapter's initial weights.
        dtype: of the frozen weights: auto (bfloat16 on an accelerator, else float32), float32, bfloat16 or float16. The
            adapter is always float32.
        device: auto, or a torch device.
        max_sequence_length: tokens of the text encoder; 0 takes the tokenizer's own limit, at most 512.

    Raises:
        FlowModelError: not a diffusers folder, an unknown family, or files that are missing, truncated or of another model.
    """
    path = Path(path)
    index = path / "model_index.json"
    if not index.is_file():
        raise FlowModelError(
            f"{path} is not a diffusers model folder: it has no model_index.json. Fix: choose the folder that holds "
            "model_index.json, transformer/ and vae/"
        )
    try:
        family = json.loads(index.read_text())["_class_name"]
    except (json.JSONDecodeError, KeyError) as error:
        raise FlowModelError(
            f"{index} cannot be read as a diffusers index ({error}). Fix: copy the model again"
        ) from error
    if family not in FAMILIES:
        raise FlowModelError(f"{path} is a {family}; supported are {', '.join(FAMILIES)}. Fix: choose one of those")
    module, name = FAMILIES[family].split(".")
    cls: type[FlowModel] = getattr(importlib.import_module(f".{module}", __name__), name)
    model = cls.load(path, dtype=dtype, device=device, max_sequence_length=max_sequence_length)
    model.add_adapter(rank=lora_rank, alpha=lora_alpha, targets=lora_targets, seed=seed)
    return model
