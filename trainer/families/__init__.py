"""Flow models from folders of diffusers: one file a family, found by the `_class_name` in the folder's model_index.json.

A new family is one file with a subclass of `PipelineModel`, one row here and one in `sizes.RULES`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .pipeline import PipelineModel

FAMILIES = {
    "FluxPipeline": "flux.Flux",
    "Flux2Pipeline": "flux.Flux2",
    "Flux2KleinPipeline": "flux.Flux2Klein",
    "StableDiffusion3Pipeline": "sd3.StableDiffusion3",
    "WanPipeline": "wan.Wan",
    "WanImageToVideoPipeline": "wan.WanImageToVideo",
    "QwenImagePipeline": "qwen.QwenImage",
    "QwenImage21Pipeline": "qwen.QwenImage21",
    "ZImagePipeline": "zimage.ZImage",
    "Krea2Pipeline": "krea2.Krea2",
}


def family_class(pipeline: str) -> type[PipelineModel]:
    """Ours for a pipeline of diffusers, by its name."""
    module, name = FAMILIES[pipeline].split(".")
    return getattr(importlib.import_module(f".{module}", __name__), name)
