"""Rewards in the space of a transformers CLIP checkpoint: CLIP-T, the aesthetic head and PickScore."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ...host import search
from ..networks import RewardError
from ..networks.features import MARKER, VIT_L, Clip
from ..networks.published import ALL, Published, number_of, scoring_head
from ..types import metadata_of
from .base import NetworkReward
from .sources import Sources


class ClipReward(NetworkReward):
    """Sees the picture as a point in CLIP's space. All such rewards on one checkpoint share the forward pass."""

    network: Clip

    def score(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        points = self.network.once(images, "pictures", lambda: self.in_batches(self.network.pictures, images))
        return self.of(points, prompts)

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


# Of a prompt's line: what its source shows, and the result shall.
SOURCE_TEXT, TARGET_TEXT = "source_text", "target_text"


class ClipDirection(NetworkReward):
    """Whether a picture changed as its texts do (Gal et al., StyleGAN-NADA, 2108.00946):

        cos(E(picture) - E(source), T(target_text) - T(source_text)),  E and T of length 1

    0 for a picture whose point is its source's. A prompt's line says what its source shows by `source_text`, and what the result
    shall show by `target_text`; without that, the prompt is it. To a prompt without `source_text` the reward does not apply.

    Args:
        model: as of ClipT.
        source: pictures [N, H, W, 3] that were edited: one for all samples, or none; then a prompt's `image` is it.
    """

    network: Clip

    def __init__(
        self, name: str = "clip_direction", *, model: str = "shapes-clip", source: Tensor | str | None = None, **use
    ):
        super().__init__(name, Clip, search.model(model, MARKER), **use)
        self.sources = Sources(source)

    def score(self, images: Tensor, prompts: Sequence[str]) -> list[float | None]:
        applies = [number for number, prompt in enumerate(prompts) if _text(prompt, SOURCE_TEXT)]
        chosen = [prompts[number] for number in applies]
        points = self.network.once(images, "pictures", lambda: self.in_batches(self.network.pictures, images))
        scores = self._of(points[applies], images[applies], chosen).tolist() if applies else []
        values = dict(zip(applies, scores, strict=True))
        return [values.get(number) for number in range(len(prompts))]

    def differentiable(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        features = self.in_batches(self.network.pictures_with_gradient, images)
        applies = [number for number, prompt in enumerate(prompts) if _text(prompt, SOURCE_TEXT)]
        values = features.new_zeros(len(prompts))
        if not applies:
            return values
        scores = self._of(features[applies], images[applies], [prompts[number] for number in applies])
        return values.index_put((torch.tensor(applies, device=values.device),), scores)

    def _of(self, features: Tensor, images: Tensor, prompts: Sequence[str]) -> Tensor:
        with torch.no_grad():
            before = self.in_batches(self.network.pictures, self.sources.fitted(prompts, images.detach()))
            targets = [_text(prompt, TARGET_TEXT) or str(prompt) for prompt in prompts]
            towards, away = (
                unit(self.in_batches(self.network.texts, texts))
                for texts in (targets, [_text(prompt, SOURCE_TEXT) for prompt in prompts])
            )
        return torch.nn.functional.cosine_similarity(unit(features) - unit(before), towards - away)


def _text(prompt: str, key: str) -> str:
    value = metadata_of(prompt).get(key)
    return value if isinstance(value, str) else ""


def unit(points: Tensor) -> Tensor:
    return torch.nn.functional.normalize(points.float(), dim=-1)


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


def find_processor(processor: str, checkpoint: str) -> Path:
    """Where tokenizer and preprocessor_config.json are: with the checkpoint, or in the other folder.

    Raises:
        FileNotFoundError: in neither.
    """
    folder = PICKSCORE.find_folder(checkpoint, "config.json")
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
        source = find_processor(processor, path)
        super().__init__(name, Clip, folder, {} if source == folder else {"processor": source}, **use)
        self.scale = math.exp(number_of(folder, "logit_scale"))

    def of(self, features: Tensor, prompts: Sequence[str]) -> Tensor:
        return self.scale * self.cosine(features, prompts)
