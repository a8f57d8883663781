"""Variety: how far a picture is from the others of its prompt, against a policy that draws one picture from all noises."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...host import search
from ..groups import distances
from ..networks.features import MARKER, Clip, Encoder, kind_of
from .base import GroupReward, NetworkReward, seen_frames, stills


class Variety(GroupReward, NetworkReward):
    """Mean of 1 - cos to the other pictures of the group, in an encoder's features; of videos, between frames of the same time.

    The mean over a group is what `otca compare` calls diversity. A group of one has none. The prompt plays no part.

    Args:
        model: of the encoder: a folder, the name of one, or a hub id in the local cache.
    """

    groups_only = False  # an evaluation has groups too: the seeds of a prompt
    reads_prompt = False
    network: Clip | Encoder

    def __init__(self, name: str = "variety", *, model: str = "shapes-clip", **use):
        folder = search.model(model, MARKER)
        super().__init__(name, kind_of(folder), folder, **use)

    def score_groups(self, samples: Tensor, prompts: Sequence[str], groups: Sequence[int]) -> list[float | None]:
        pictures = stills(samples) if samples.ndim == 5 else samples
        points = self.network.once(pictures, "pictures", lambda: self.in_batches(self.network.pictures, pictures))
        values = distances(points, torch.as_tensor(groups, device=points.device)).tolist()
        return [None if list(groups).count(group) == 1 else value for value, group in zip(values, groups, strict=True)]

    def differentiable_groups(self, samples: Tensor, prompts: Sequence[str], groups: Sequence[int]) -> Tensor:
        pictures = samples[:, seen_frames(samples.shape[1])].flatten(0, 1) if samples.ndim == 5 else samples
        points = self.in_batches(self.network.pictures_with_gradient, pictures)
        return distances(points, torch.as_tensor(groups, device=points.device))
