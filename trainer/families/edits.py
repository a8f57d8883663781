"""Pictures that prompts of an edit model work on: their latents stand behind the sample's own as tokens, without noise.

Pictures may be of different sizes. A network's call takes rows whose pictures are of one size, so that a batch may need several.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ...host import devices
from ...host.recent import Recent
from . import given
from .base import EXAMPLE
from .condition import MOST_BYTES, NEGATIVE, Condition
from .latents import packed
from .pipeline import PipelineModel
from .sizes import PATCH

if TYPE_CHECKING:
    from ..types import SamplerSettings

SOURCE = "source"  # tokens of a prompt's pictures, all in a row


class EditModel(PipelineModel):
    """A family whose network sees a prompt's pictures as tokens behind the sample's.

    A family says to which size a picture is scaled, and what one call of the network is.
    """

    def __init__(self, *parts):
        super().__init__(*parts)
        self._sources: Recent[tuple[str, int, int], Tensor] = Recent(MOST_BYTES, lambda latents: latents.nbytes)

    @abstractmethod
    def source_size(self, width: int, height: int, settings: SamplerSettings) -> tuple[int, int]:
        """(width, height) that a picture of that size is scaled to before it is encoded."""

    @abstractmethod
    def call(self, x: Tensor, levels: Tensor, condition: Condition, guidance: float) -> Tensor:
        """Predicts for rows whose pictures are of one size."""

    def text_condition(
        self, texts: Sequence[str], pictures: Sequence[tuple[given.Picture, ...]], settings: SamplerSettings
    ) -> Condition:
        """The condition of texts alone, for a text encoder that sees no pictures."""
        return super().condition(texts, settings)

    def condition(self, texts: Sequence[str], settings: SamplerSettings) -> Condition:
        return self.about(texts, list(map(self._pictures, texts)), settings)

    def example(self, settings: SamplerSettings) -> Condition:
        return self.about([EXAMPLE], [(given.grey(settings.width, settings.height),)], settings)

    def about(
        self, texts: Sequence[str], pictures: Sequence[tuple[given.Picture, ...]], settings: SamplerSettings
    ) -> Condition:
        """`condition` of prompts that are about these pictures."""
        condition = self.text_condition(texts, pictures, settings)
        if not any(pictures):
            return condition
        latents = [[self._latents(picture, settings) for picture in group] for group in pictures]
        sizes = tuple(tuple((of.shape[-2] // PATCH, of.shape[-1] // PATCH) for of in group) for group in latents)
        width = self.latent_grid.channels * PATCH**2
        rows = [
            torch.cat([packed(of[None])[0] for of in group]) if group else torch.empty(0, width) for group in latents
        ]
        tokens = devices.upload(pad_sequence(rows, batch_first=True), self.device)
        lengths = torch.tensor([len(row) for row in rows])
        names = [SOURCE] if condition.negative() is None else [SOURCE, NEGATIVE + SOURCE]
        return replace(
            condition,
            tensors=condition.tensors | dict.fromkeys(names, tokens),
            lengths=condition.lengths | dict.fromkeys(names, lengths),
            sizes=sizes,
        )

    def _pictures(self, text: str) -> tuple[given.Picture, ...]:
        """A prompt's pictures. Raises PromptError for more than the family takes."""
        pictures, most = given.pictures(text), self.checkpoint.edits
        if len(pictures) > most:
            raise given.too_many(text, len(pictures), most)
        return pictures

    def _latents(self, picture: given.Picture, settings: SamplerSettings) -> Tensor:
        """[C, h, w] on the CPU, made once for each picture and size."""
        height, width, _ = picture.pixels.shape
        key = picture.digest, *self.source_size(width, height, settings)

        def encoded() -> Tensor:
            pixels = torch.from_numpy(resized(picture.pixels.numpy(), *key[1:]).copy()).float() / 255
            return self.encode(pixels[None])[0]

        return self._sources.use(key, encoded)

    def predict(self, x: Tensor, levels: Tensor, condition: Condition, guidance: float) -> Tensor:
        alike: dict[tuple, list[int]] = {}
        for row, sizes in enumerate(condition.sizes or [()] * len(x)):
            alike.setdefault(sizes, []).append(row)
        if len(alike) == 1:
            return self.call(x, levels, condition, guidance)
        parts = []
        for rows in map(torch.tensor, alike.values()):
            place = devices.upload(rows, x.device)
            parts.append(self.call(x[place], levels[rows], condition.rows(rows), guidance))
        back = torch.tensor([row for rows in alike.values() for row in rows]).argsort()
        return torch.cat(parts)[devices.upload(back, x.device)]


def with_sources(tokens: Tensor, condition: Condition) -> Tensor:
    """The sample's tokens [B, S, 4·C], and behind them those of the prompts' pictures."""
    if not (condition.sizes and condition.sizes[0]):
        return tokens
    return torch.cat([tokens, condition.tensors[SOURCE].to(tokens)], 1)


def resized(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    """uint8 [height, width, 3], as diffusers' pipelines scale a picture."""
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.LANCZOS))
