"""Flow models from folders of diffusers, found by the `_class_name` in the folder's model_index.json.

A new family is a subclass of `PipelineModel` and one row in `sizes.RULES`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .sizes import RULES

if TYPE_CHECKING:
    from .pipeline import PipelineModel


def family_class(pipeline: str) -> type[PipelineModel]:
    """Ours for a pipeline of diffusers, by its name."""
    # Not by pkgutil: in ComfyUI the pack's name is a path.
    module, name = RULES[pipeline].model.split(".")
    return getattr(import_module(f".{module}", __name__), name)
