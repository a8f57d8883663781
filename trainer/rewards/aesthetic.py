"""LAION's aesthetic predictor v2: a small head on CLIP ViT-L/14."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ..networks import RewardError
from ..networks.clip import MARKER, VIT_L, Clip
from ..networks.published import Published
from ..networks.scoring_head import scoring_head
from .clip import ClipReward

if TYPE_CHECKING:
    from torch import Tensor

FILE = Published(
    "LAION's aesthetic predictor v2",
    "sac+logos+ava1-l14-linearMSE.pth",
    "3,714,759 bytes",
    "https://github.com/christophschuhmann/improved-aesthetic-predictor",
)


class Aesthetic(ClipReward):
    """Head of the L2-normalised picture features of CLIP ViT-L/14; mostly between 4.5 and 7. The prompt plays no part.

    Args:
        path: the head's file, by its path or by its published name.
        model: the CLIP checkpoint: a folder, the name of one, or a hub id in the local cache.
    """

    def __init__(self, name: str = "aesthetic", *, path: str = "", model: str = VIT_L.source, **use):
        file = FILE.find(path)
        self.head = scoring_head(FILE, file, FILE.read(file))
        super().__init__(name, Clip, VIT_L.find_folder(model, MARKER), **use)
        width = self.network.model.config.projection_dim
        if width != self.head[0].in_features:
            raise RewardError(
                f"model {model!r} gives {width} features where the aesthetic head reads {self.head[0].in_features}. "
                f"Fix: use {VIT_L.source}, which the head was trained on"
            )

    def score(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        features = torch.nn.functional.normalize(self.picture_features(images), dim=-1)
        return self.head(features.cpu())[:, 0]
