"""PickScore v1: a CLIP ViT-H/14 fine-tuned on what people picked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..networks.clip import MARKER, Clip
from ..networks.published import ALL, Published
from .clip import ClipReward

if TYPE_CHECKING:
    from torch import Tensor

FILES = Published("PickScore", ALL, "3.9 GB", "yuvalkirstain/PickScore_v1")
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

    def __init__(self, name: str = "pickscore", *, path: str = FILES.source, processor: str = PROCESSOR.source, **use):
        folder = FILES.find_folder(path, "config.json")
        source = find_processor(processor, folder)
        super().__init__(name, Clip, folder, {} if source == folder else {"processor": source}, **use)

    def score(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        return self.network.model.logit_scale.float().exp() * self.cosine(images, prompts)
