"""CLIP-T: cosine of picture and prompt in the space of any transformers CLIP checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from .. import host
from .base import Reward

if TYPE_CHECKING:
    from torch import Tensor


class ClipT(Reward):
    """cos(image, text), unscaled. Preprocessing is the checkpoint's own: short side to size, bicubic, centre crop.

    Args:
        model: a folder with config.json, weights, tokenizer and preprocessor_config.json, or the name of one.
    """

    def __init__(
        self, name: str = "clip_t", coefficient: float = 1.0, held_out: bool = False, *, model: str = "shapes-clip"
    ):
        super().__init__(name, coefficient, held_out)
        from transformers import CLIPModel, CLIPTokenizer

        from ..flow.loading import resolve_device

        folder = host.find_model(model, "preprocessor_config.json")
        self.model = CLIPModel.from_pretrained(folder, dtype=torch.float32, local_files_only=True, use_safetensors=True)
        self.model.eval().requires_grad_(False)
        self.tokenizer = CLIPTokenizer.from_pretrained(folder, local_files_only=True)
        self.processor = _processor().from_pretrained(folder, local_files_only=True)
        self._texts: dict[str, Tensor] = {}
        self.settle(resolve_device(host.chosen_device("auto")))

    def _networks(self) -> list[torch.nn.Module]:
        return [self.model]

    @torch.no_grad()
    def score(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        texts = self._text_features(prompts)
        pixels = self.processor(_pil(images), return_tensors="pt").pixel_values.to(self.model.device)
        features = _pooled(self.model.get_image_features(pixel_values=pixels))
        return torch.nn.functional.cosine_similarity(features, texts).float().cpu()

    def _text_features(self, prompts: Sequence[str]) -> Tensor:
        new = [text for text in dict.fromkeys(prompts) if text not in self._texts]
        if new:
            tokens = self.tokenizer(new, padding="max_length", max_length=77, truncation=True, return_tensors="pt")
            features = _pooled(self.model.get_text_features(**tokens.to(self.model.device)))
            self._texts.update(zip(new, features.cpu(), strict=True))
        return torch.stack([self._texts[text] for text in prompts]).to(self.model.device)


def _processor():
    import transformers

    # The Pillow backend scores alike on every machine; transformers before 5 has it under the plain name.
    name = "CLIPImageProcessorPil" if hasattr(transformers, "CLIPImageProcessorPil") else "CLIPImageProcessor"
    return getattr(transformers, name)


def _pooled(output) -> Tensor:
    return getattr(output, "pooler_output", output)  # transformers before 5 returns the tensor itself


def _pil(images: Tensor) -> list:
    from PIL import Image

    return [Image.fromarray(picture) for picture in (images * 255).round().to(torch.uint8).numpy()]
