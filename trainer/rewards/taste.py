"""My Taste: a head that `otca taste fit`, or Vote while it learns, has fitted to somebody's choices."""

from __future__ import annotations

from pathlib import Path

from ...host import search
from .vote.head import Head
from .vote.learned import TasteReward

SIZE, SOURCE = "some 100 KB", "otca taste fit, which makes it of your own votes,"  # for the message


def find(path: str) -> Path:
    """The head's file, by its path or by its name in a model folder."""
    return search.reward_file(path, SIZE, SOURCE)


class MyTaste(TasteReward):
    """The head in a file.

    Args:
        path: the file, by its path or by its name in a model folder.
        encoder: as of TasteReward.

    Raises:
        FileNotFoundError: there is no such file, or no such encoder.
        RewardError: the file is no taste, or the encoder is another one.
    """

    def __init__(self, name: str = "my_taste", *, path: str = "taste.safetensors", encoder: str = "", **use):
        super().__init__(name, Head.load(find(path)), encoder, **use)
