"""A text encoder of one table, held by a real comfy.sd.CLIP."""

from __future__ import annotations

import zlib

import comfy.sd
import comfy.supported_models_base
import torch

from .shapes import Text

WORDS = 997  # a prime: words seldom meet in one row


def tiny_clip(form: Text, seed: int) -> comfy.sd.CLIP:
    target = comfy.supported_models_base.ClipTarget(TinyTokenizer, TinyEncoder)
    target.params = {"form": form, "seed": seed}
    return comfy.sd.CLIP(target)


class TinyTokenizer:
    """A token is a word; 1 begins a prompt, 2 ends it, 0 fills up."""

    def __init__(self, embedding_directory=None, tokenizer_data=None):
        pass

    def tokenize_with_weights(self, text, return_word_ids=False, **options):
        words = [3 + zlib.crc32(word.encode()) % (WORDS - 3) for word in text.split()]
        return {"tiny": [[(token, 1.0) for token in (1, *words, 2)]]}


class TinyEncoder(torch.nn.Module):
    """A token's embedding is its row of a table plus its position's; the pooled output is their mean, projected."""

    def __init__(self, form: Text, seed: int, dtype=None, device=None, model_options=None):
        super().__init__()
        self.form = form
        self.dtypes = {torch.float32}
        random = torch.Generator().manual_seed(seed)
        self.table = parameter(torch.randn(WORDS, form.width, generator=random))
        self.positions = parameter(torch.randn(512, form.width, generator=random) * 0.3)
        if form.pooled:
            self.pool = parameter(torch.randn(form.width, form.pooled, generator=random) / form.width**0.5)

    def reset_clip_options(self):
        """Nothing here has options."""

    def set_clip_options(self, options):
        """Nothing here has options."""

    def encode_token_weights(self, tokens):
        ids = torch.tensor([token for token, _ in tokens["tiny"][0]])
        words = len(ids)
        ids = torch.nn.functional.pad(ids, (0, max(0, self.form.least - words)))
        mask = (torch.arange(len(ids)) < words).long()[None]
        embeddings = (self.table[ids] + self.positions[: len(ids)])[None]
        if self.form.zeros:
            embeddings = embeddings * mask[..., None]
        pooled = embeddings[:, :words].mean(1) @ self.pool if self.form.pooled else None
        extra = {"attention_mask": mask} if self.form.mask else {}
        if self.form.extra:
            extra |= self.form.extra(embeddings, ids)
        return embeddings, pooled, extra


def parameter(values: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(values, requires_grad=False)
