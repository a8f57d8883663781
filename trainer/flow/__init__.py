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

FAMILIES = {"FluxPipeline": "flux.Flux", "StableDiffusion3Pipeline": "sd3.StableDiffusion3", "WanPipeline": "wan.Wan"}
_WEIGHTLESS = {"scheduler", "tokenizer", "tokenizer_2", "tokenizer_3", "feature_extractor"}


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
        dtype: of the frozen weights: auto (bfloat16 on an accelerator, else float32), float32 or bfloat16. The
            adapter is always float32.
        device: auto, or a torch device.
        max_sequence_length: tokens of the text encoder; 0 takes the tokenizer's own limit, at most 512.

    Raises:
        FlowModelError: not a diffusers folder, an unknown family, or files that are missing, truncated or of another model.
    """
    path = Path(path)
    family = check_model_folder(path)
    module, name = FAMILIES[family].split(".")
    cls: type[FlowModel] = getattr(importlib.import_module(f".{module}", __name__), name)
    model = cls.load(path, dtype=dtype, device=device, max_sequence_length=max_sequence_length)
    model.add_adapter(rank=lora_rank, alpha=lora_alpha, targets=lora_targets, seed=seed)
    return model


def check_model_folder(path: Path) -> str:
    """The family of a diffusers folder, after a look at its index and the header of every weight file; nothing is loaded.

    Raises:
        FlowModelError: as `load_flow_model`.
    """
    from safetensors import SafetensorError, safe_open

    index = path / "model_index.json"
    if not index.is_file():
        raise FlowModelError(
            f"{path} is not a diffusers model folder: it has no model_index.json. Fix: choose the folder that holds "
            "model_index.json, transformer/ and vae/"
        )
    try:
        components = json.loads(index.read_text(encoding="utf-8"))
        family = components["_class_name"]
    except (json.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise FlowModelError(
            f"{index} cannot be read as a diffusers index ({error}). Fix: copy the model again"
        ) from error
    if family not in FAMILIES:
        raise FlowModelError(f"{path} is a {family}; supported are {', '.join(FAMILIES)}. Fix: choose one of those")
    for component, source in components.items():
        if not isinstance(source, list) or not source[0]:
            continue  # a plain setting, or an optional component that this model does without
        if not (path / component).is_dir():
            raise FlowModelError(f"{path} lacks the folder {component}. Fix: copy the whole model folder again")
        if component in _WEIGHTLESS:
            continue
        files = sorted((path / component).glob("*.safetensors"))
        if not files:
            raise FlowModelError(f"{path / component} has no .safetensors weights. Fix: copy the whole folder again")
        for file in files:
            try:
                with safe_open(file, framework="np") as content:
                    content.keys()
            except (SafetensorError, OSError) as error:
                raise FlowModelError(
                    f"{file} is truncated or no safetensors file ({error}). Fix: copy or download that file again"
                ) from error
    return family
