"""The reward of a head: of one in a file, and of what Vote has learned so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ...networks import features
from ..base import NetworkReward
from .head import Head, read

if TYPE_CHECKING:
    from torch import Tensor


class TasteReward(NetworkReward):
    """Utility for somebody, in log-odds; 0 for an average picture of those that were voted on. The prompt plays no part.

    Args:
        head: what was learned.
        encoder: where the encoder that it was fitted on is: a folder, the name of one, or a hub id in the local cache; empty: by
            the name that the head has of it.

    Raises:
        FileNotFoundError: there is no such encoder.
        RewardError: it is another encoder.
    """

    def __init__(self, name: str, head: Head, encoder: str = "", **use):
        self.head = head
        folder = features.find(encoder or head.encoder)
        head.check(folder)
        super().__init__(name, features.kind_of(folder), folder, **use)

    def score(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        return torch.from_numpy(self.head.scores(read(self.network, images, self.batch_size)))
