"""My Taste: a head that `otca taste fit`, or Vote while it learns, has fitted to somebody's choices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from ...host import search
from ..networks import features
from .base import NetworkReward
from .vote.head import Head, read

SIZE, SOURCE = "some 100 KB", "otca taste fit, which makes it of your own votes,"  # for the message


def find(path: str) -> Path:
    """The head's file, by its path or by its name in a model folder."""
    return search.reward_file(path, SIZE, SOURCE)


class TasteReward(NetworkReward):
    """Utility for the person who voted, in log-odds; 0 for an average picture of those voted on. The prompt plays no part.

    Args:
        head: what was learned.
        encoder: the encoder that it was fitted on: a folder, the name of one, or a hub id in the local cache; empty: by the name
            that the head has of it.

    Raises:
        FileNotFoundError: there is no such encoder.
        RewardError: it is another encoder.
    """

    def __init__(self, name: str, head: Head, encoder: str = "", **use):
        self.head = head
        folder = features.find(encoder or head.encoder)
        head.check(folder)
        super().__init__(name, features.kind_of(folder), folder, **use)

    def score(self, images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        return torch.from_numpy(self.head.scores(read(self.network, images, self.batch_size)))


class MyTaste(TasteReward):
    """The head in a file.

    Args:
        path: the file, by its path or by its name in a model folder.
        encoder: as of TasteReward.

    Raises:
        FileNotFoundError: there is no such file, or no such encoder.
        RewardError: the file is not a taste, or the encoder is another one.
    """

    def __init__(self, name: str = "my_taste", *, path: str = "taste.safetensors", encoder: str = "", **use):
        super().__init__(name, Head.load(find(path)), encoder, **use)
