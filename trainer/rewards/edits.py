"""Rewards of edits: what an edit keeps of its source and what it changes, by pixels. Both have a gradient.

With x a picture and s its source, both blurred by a box of a 32nd of the shorter side, so that noise and a shift by a pixel count
little, the difference of pixel p is

    d_p = mean over red, green and blue of |x_p - s_p|,  in [0, 1].

Every pixel is counted once: where it may change it is Changed's, elsewhere it is Kept's. A prompt's line says where by `mask`, a
picture m that is white there; without one, the `share` of the pixels that differ most is that region, so m_p is 1 for them. Then

    kept    = 1 - Σ_p (1 - m_p)·d_p / Σ_p (1 - m_p)
    changed = 1 - exp(-D / enough),  D = Σ_p m_p·d_p / Σ_p m_p

so that a picture that is its source is kept by 1 and changed by 0.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from .base import Reward
from .sources import Sources

BLUR = 32  # the shorter side over the side of the box


class EditReward(Reward):
    """Looks at pictures beside their sources.

    Args:
        source: pictures [N, H, W, 3] that were edited: one for all samples, or none; then a prompt's `image` is it.
        share: of the pixels, in (0, 1), that may change where a prompt's line has no `mask`.
    """

    reads_prompt = False  # its words: another `image` in its line is another prompt

    def __init__(self, name: str, *, source: Tensor | str | None = None, share: float = 0.3, **use):
        super().__init__(name, **use)
        self.sources, self.share = Sources(source), share

    def score(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        pixels = images.float()
        apart = differences(pixels, self.sources.fitted(prompts, pixels)).flatten(1)
        masks = self.sources.masks(prompts, pixels)
        changed = torch.stack(
            [most(row, self.share) if mask is None else mask.flatten() for row, mask in zip(apart, masks, strict=True)]
        )
        return self.of(apart, changed)

    def differentiable(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        return self.score(images, prompts)

    @abstractmethod
    def of(self, apart: Tensor, mask: Tensor) -> Tensor:
        """[B] by the differences of pixels [B, N] and where they may change [B, N]; NaN if there is no such place."""


class Kept(EditReward):
    """1 - the mean difference to the source where nothing was to change, in [0, 1]."""

    def __init__(self, name: str = "kept", **settings):
        super().__init__(name, **settings)

    def of(self, apart: Tensor, mask: Tensor) -> Tensor:
        return 1 - weighted(apart, 1 - mask)


class Changed(EditReward):
    """How far the picture is from doing nothing where it may change, in [0, 1).

    Args:
        enough: the mean difference there that gives 1 - 1/e = 0.63; more adds less and less.
    """

    def __init__(self, name: str = "changed", *, enough: float = 0.1, **settings):
        super().__init__(name, **settings)
        self.enough = enough

    def of(self, apart: Tensor, mask: Tensor) -> Tensor:
        return 1 - (-weighted(apart, mask) / self.enough).exp()


def differences(pictures: Tensor, sources: Tensor) -> Tensor:
    """d [B, H, W] of pictures and their sources [B, H, W, 3]."""
    side = max(1, min(pictures.shape[1:3]) // BLUR) | 1  # odd, so that it has a centre
    planes = (pictures - sources).movedim(-1, 1)
    blurred = torch.nn.functional.avg_pool2d(planes, side, 1, side // 2, count_include_pad=False)
    return blurred.abs().mean(1)


def most(apart: Tensor, share: float) -> Tensor:
    """1 for that share of the pixels [N] that differ most, one at least and not all; else 0."""
    count = min(max(math.ceil(share * len(apart)), 1), len(apart) - 1)
    return torch.zeros_like(apart).index_fill(0, apart.detach().topk(count).indices, 1.0)


def weighted(values: Tensor, weights: Tensor) -> Tensor:
    """The means of rows [B, N]; NaN where all weights are 0."""
    return (values * weights).sum(1) / weights.sum(1)
