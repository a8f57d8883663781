"""Rewards in the space of a transformers CLIP checkpoint: CLIP-T, the aesthetic head and PickScore."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ...host import search
from ..networks import RewardError
from ..networks.features import MARKER, VIT_L, Clip
from ..networks.published import ALL, Published, scoring_head
from .base import NetworkReward


class ClipReward(NetworkReward):
    """Sees the picture as a point in CLIP's space. All such rewards on one checkpoint share the forward pass."""

    network: Clip

    def picture_features(self, images: Tensor) -> Tensor:
        return self.network.once(images, "pictures", lambda: self.in_batches(self.network.pictures, images))

    def score(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        return self.of(self.picture_features(images), prompts)

    def differentiable(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        return self.of(self.in_batches(self.network.pictures_with_gradient, images), prompts)

    @abstractmethod
    def of(self, features: Tensor, prompts: Sequence[str]) -> Tensor:
        """The scores [B] of pictures by their points [B, D] in CLIP's space."""

    def cosine(self, features: Tensor, prompts: Sequence[str]) -> Tensor:
        with torch.no_grad():
            texts = self.in_batches(self.network.texts, prompts)
        return torch.nn.functional.cosine_similarity(features, texts)


class ClipT(ClipReward):
    """cos(image, text), unscaled. Preprocessing is the checkpoint's own: short side to size, bicubic, centre crop.

    Args:
        model: a folder with config.json, weights, tokenizer and preprocessor_config.json, the name of one, or a hub id in
            the local cache.
    """

    def __init__(self, name: str = "clip_t", *, model: str = "shapes-clip", **use):
        super().__init__(name, Clip, search.model(model, MARKER), **use)

    def of(self, features: Tensor, prompts: Sequence[str]) -> Tensor:
        return self.cosine(features, prompts)


AESTHETIC = Published(
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

    reads_prompt = False

    def __init__(self, name: str = "aesthetic", *, path: str = "", model: str = VIT_L.source, **use):
        file = AESTHETIC.find(path)
        self.head = scoring_head(AESTHETIC, file, AESTHETIC.read(file))
        super().__init__(name, Clip, VIT_L.find_folder(model, MARKER), **use)
        width = self.network.model.config.projection_dim
        if width != self.head[0].in_features:
            raise RewardError(
                f"model {model!r} gives {width} features where the aesthetic head reads {self.head[0].in_features}. "
                f"Fix: use {VIT_L.source}, which the head was trained on"
            )

    def of(self, features: Tensor, prompts: Sequence[str]) -> Tensor:
        return self.head(torch.nn.functional.normalize(features, dim=-1).cpu())[:, 0]


PICKSCORE = Published("PickScore", ALL, "3.9 GB", "yuvalkirstain/PickScore_v1")
PROCESSOR = Published(
    "PickScore's processor",
    ALL,
    "only tokenizer and preprocessor_config.json: 4 MB",
    "laion/CLIP-ViT-H-14-laion2B-s32B-b79K",
)


def find_processor(processor: str, folder: Path) -> Path:
    """Where tokenizer and preprocessor_config.json are: with the checkpoint, or in the other folder.

    Raises:
        FileNotFoundError: in neither.
    """
    complete = all((folder / name).is_file() for name in (MARKER, "tokenizer_config.json"))
    return folder if complete else PROCESSOR.find_folder(processor, MARKER)


class PickScore(ClipReward):
    """exp(logit_scale) · cos(image, text) (Kirstain et al., 2305.01569); mostly between 18 and 24.

    Args:
        path: the checkpoint: a folder, the name of one, or a hub id in the local cache.
        processor: where tokenizer and preprocessor_config.json are, if that folder is without.
    """

    def __init__(
        self, name: str = "pickscore", *, path: str = PICKSCORE.source, processor: str = PROCESSOR.source, **use
    ):
        folder = PICKSCORE.find_folder(path, "config.json")
        source = find_processor(processor, folder)
        super().__init__(name, Clip, folder, {} if source == folder else {"processor": source}, **use)

    def of(self, features: Tensor, prompts: Sequence[str]) -> Tensor:
        return self.network.model.logit_scale.float().exp() * self.cosine(features, prompts)
