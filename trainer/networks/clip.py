"""A transformers CLIP checkpoint: pictures and texts as points in one space."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from . import RewardError, preprocess
from .network import Network
from .published import ALL, Published, from_folder, pillow_processor, transformers_class

if TYPE_CHECKING:
    from torch import Tensor

MARKER = "preprocessor_config.json"  # of a folder that holds all that CLIP needs, and not just weights
VIT_L = Published("CLIP ViT-L/14", ALL, "1.7 GB", "openai/clip-vit-large-patch14")


class Clip(Network):
    """A CLIP checkpoint; each prompt is encoded once.

    Args:
        path: the folder.
        processor: a folder with tokenizer and preprocessor_config.json; None: the same.
    """

    def __init__(self, path: Path, device: torch.device, dtype: torch.dtype, processor: Path | None = None):
        super().__init__(path, device, dtype)
        self.model = from_folder(transformers_class("CLIPModel"), path, dtype)
        self.processor = pillow_processor("CLIPImageProcessor").from_pretrained(
            processor or path, local_files_only=True
        )
        self._speak(processor or path)
        self.settle(device)

    def _speak(self, tokenizer: Path) -> None:
        self.tokenizer = transformers_class("CLIPTokenizerFast").from_pretrained(tokenizer, local_files_only=True)
        self._texts: dict[str, Tensor] = {}
        knows, speaks = self.model.config.text_config.vocab_size, len(self.tokenizer)
        if tokenizer != self.path and knows != speaks:
            raise RewardError(
                f"the tokenizer in {tokenizer} has {speaks} tokens where {self.path} knows {knows}. Fix: use the tokenizer "
                "that belongs to this checkpoint"
            )

    def _networks(self) -> list[torch.nn.Module]:
        return [self.model]

    def pictures(self, images: Tensor) -> Tensor:
        """[B, D] float32: pictures in the common space, not normalised."""
        pixels = self._pixels(images).to(self.device, self.dtype)
        return _pooled(self.model.get_image_features(pixel_values=pixels)).float()

    def texts(self, prompts: Sequence[str]) -> Tensor:
        """[B, D] float32: prompts in the common space, not normalised."""
        new = [text for text in dict.fromkeys(prompts) if text not in self._texts]
        if new:
            tokens = self.tokenizer(
                [self._cleaned(text) for text in new],
                padding="max_length",
                max_length=77,
                truncation=True,
                return_tensors="pt",
            )
            features = _pooled(self.model.get_text_features(**tokens.to(self.device)))
            self._texts.update(zip(new, features.float().cpu(), strict=True))
        return torch.stack([self._texts[text] for text in prompts]).to(self.device)

    def _pixels(self, images: Tensor) -> Tensor:
        return self.processor(preprocess.pil(images), return_tensors="pt").pixel_values

    def _cleaned(self, text: str) -> str:
        return text


def _pooled(output) -> Tensor:
    return getattr(output, "pooler_output", output)  # transformers before 5 returns the tensor itself
