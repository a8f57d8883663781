"""Flow models from folders of diffusers, found by the `_class_name` in the folder's model_index.json.

A new family is a subclass of `PipelineModel` and one row in `sizes.RULES`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from .sizes import RULES

if TYPE_CHECKING:
    from .pipeline import PipelineModel


def family_class(pipeline: str) -> type[PipelineModel]:
    """Ours for a pipeline of diffusers, by its name."""
    module, name = RULES[pipeline].model.split(".")
    return getattr(importlib.import_module(f".{module}", __name__), name)
