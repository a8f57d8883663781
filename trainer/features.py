"""Pictures as points in the space of an image encoder: CLIP, or any other in transformers' layout, such as DINOv2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from . import host
from .rewards import preprocess
from .rewards.clip import MARKER, Clip
from .rewards.network import Network, shared
from .rewards.published import from_folder, pillow_processor, transformers_class

if TYPE_CHECKING:
    from torch import Tensor


def load(name: str) -> Encoder | Clip:
    """The encoder in a folder, found by its path or name, on the accelerator if there is one; shared with rewards that use it.

    Raises:
        FileNotFoundError: it was not found.
        RewardError: its weights cannot be read.
    """
    place = host.find_model(name, MARKER)
    kind = json.loads((place / "config.json").read_text(encoding="utf-8"))["model_type"]
    return shared(Clip if kind == "clip" else Encoder, place)


class Encoder(Network):
    """An image encoder that transformers' AutoModel loads; the picture's point is its pooled output."""

    def __init__(self, place: Path, device: torch.device, dtype: torch.dtype):
        super().__init__(place, device, dtype)
        self.model = from_folder(transformers_class("AutoModel"), place, dtype)
        settings = json.loads((place / MARKER).read_text(encoding="utf-8"))
        name = settings["image_processor_type"].removesuffix("Fast").removesuffix("Pil")
        self.processor = pillow_processor(name).from_pretrained(place, local_files_only=True)
        self.settle(device)

    def _networks(self) -> list[torch.nn.Module]:
        return [self.model]

    def pictures(self, images: Tensor) -> Tensor:
        """[B, D] float32."""
        pixels = self.processor(preprocess.pil(images), return_tensors="pt").pixel_values
        return self.model(pixel_values=pixels.to(self.device, self.dtype)).pooler_output.float()
