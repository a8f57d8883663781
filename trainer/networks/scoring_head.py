"""From the features of a picture to one score."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from .published import Published

if TYPE_CHECKING:
    from torch import Tensor

WIDTHS = (1024, 128, 64, 16, 1)
LAYERS = (0, 2, 4, 6, 7)  # between some of them the published head has dropout, which rests when scoring


def scoring_head(
    file: Published, path: Path, state: Mapping[str, Tensor], prefix: str = "layers."
) -> torch.nn.Sequential:
    """The head that LAION's aesthetic predictor and ImageReward share: 768-1024-128-64-16-1, with nothing between the layers.

    It is so small that it stays in main memory, in float32.
    """
    keys = {f"{prefix}{layer}.{part}": (layer, part) for layer in LAYERS for part in ("weight", "bias")}
    file.check(path, state, keys)
    inputs = (768, *WIDTHS)
    weights = {f"{LAYERS.index(layer)}.{part}": state[key].float() for key, (layer, part) in keys.items()}

    def layers():
        return torch.nn.Sequential(*(torch.nn.Linear(*pair) for pair in zip(inputs, WIDTHS, strict=False)))

    return file.filled(layers, weights, path, torch.float32)
