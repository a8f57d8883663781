"""How much pictures of one prompt differ: mean pairwise distance of their features."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from ..host import stopping
from ..trainer import rollout
from ..trainer.pictures import grids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from ..trainer.families.base import FlowModel
    from ..trainer.types import SamplerSettings

_BATCH = 16  # pictures to one model call


def pairwise_distance(features: Tensor) -> float:
    """Mean over prompts, and over the pairs of a prompt's pictures, of 1 - cos; features [P, S, D], NaN for S = 1.

    Of unit vectors u the mean cosine of the pairs is (|Σu|² - S) / (S (S - 1)).
    """
    units = torch.nn.functional.normalize(features.double(), dim=-1)
    count = features.shape[1]
    if count < 2:
        return math.nan
    cosines = (units.sum(1).square().sum(-1) - count) / (count * (count - 1))
    return 1 - cosines.mean().item()


def measure(
    model: FlowModel, settings: SamplerSettings, prompts: Sequence[str], seeds: Sequence[int], features: str
) -> float:
    """Samples every prompt with every seed by the deterministic sampler, and compares the pictures of each prompt.

    Args:
        features: an image encoder in transformers layout, as `features.load` finds it; of videos the middle frames are seen.
    """
    from ..trainer.networks.features import load

    encoder = load(features)
    texts = [prompt for prompt in prompts for _ in seeds]
    numbers = [seed for _ in prompts for seed in seeds]
    images = rollout.generate(model, texts, replace(settings, batch_size=_BATCH), numbers, stopping.check_stop)
    with torch.no_grad():
        points = torch.cat([encoder.pictures(part).cpu() for part in grids.stills(images).split(_BATCH)])
    return pairwise_distance(points.reshape(len(prompts), len(seeds), -1))
