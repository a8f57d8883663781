"""Rewards in the space of a transformers CLIP checkpoint, and CLIP-T, the plainest of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ...host import search
from ..networks.clip import MARKER, Clip
from .base import NetworkReward

if TYPE_CHECKING:
    from torch import Tensor


class ClipReward(NetworkReward):
    """Sees the picture as a point in CLIP's space. All such rewards on one checkpoint share the forward pass."""

    network: Clip

    def picture_features(self, images: Tensor) -> Tensor:
        return self.network.once(images, "pictures", lambda: self.in_batches(self.network.pictures, images))

    def cosine(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        texts = self.in_batches(self.network.texts, prompts)
        return torch.nn.functional.cosine_similarity(self.picture_features(images), texts)


class ClipT(ClipReward):
    """cos(image, text), unscaled. Preprocessing is the checkpoint's own: short side to size, bicubic, centre crop.

    Args:
        model: a folder with config.json, weights, tokenizer and preprocessor_config.json, the name of one, or a hub id in
            the local cache.
    """

    def __init__(self, name: str = "clip_t", *, model: str = "shapes-clip", **use):
        super().__init__(name, Clip, search.model(model, MARKER), **use)

    def score(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        return self.cosine(images, prompts)
