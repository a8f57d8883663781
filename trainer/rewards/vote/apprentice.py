"""What is learned of a folder of votes while it grows, so that people are asked less."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from PIL import Image

from ...pictures import media
from . import head
from .learning import LEAST_VOTES, Learner
from .votes import Vote, standing

if TYPE_CHECKING:
    import numpy as np

logger = logging.getLogger(__name__)

SHOWN = 4  # pictures to one pick: about half the clicks that pairs take (bench/REWARDS.md, My Taste)


class Apprentice:
    """A learner that has learned the votes of a folder. Of a video it sees the frame in the middle.

    Args:
        folder: of the votes and their pictures.
        encoder, device: see `Learner`.
    """

    def __init__(self, folder: Path, encoder: str, device: str = "auto"):
        self.folder, self.encoder, self.device = folder, encoder, device
        self.learner = Learner(encoder, device)
        self.busy = threading.Lock()  # to be held by whoever asks it anything
        self._rows: dict[str, np.ndarray | None] = {}  # features of each picture; None of one that cannot be read
        self._learned: list[str] = []  # ids of votes

    @property
    def ready(self) -> bool:
        """Whether it has learned enough votes to be sure of anything."""
        return self.learner.votes >= LEAST_VOTES

    def learn(self, votes: Sequence[Vote]) -> None:
        """Learns those of the standing votes that it does not know; all again, where one that it knows was corrected."""
        said = [vote for vote in standing(votes) if vote.pairs]
        if not set(self._learned) <= {vote.id for vote in said}:
            self.learner, self._learned = Learner(self.encoder, self.device), []
        for vote in said:
            if vote.id in self._learned:
                continue
            rows = self._features(vote.pictures)
            if rows is not None:
                self.learner.add_features(rows, vote.answer.order)
            self._learned.append(vote.id)

    def is_sure(self, pictures: Sequence[str]) -> bool:
        rows = self._features(pictures)
        return rows is not None and self.learner.opinion_of_features(rows).sure

    def scores(self, pictures: Sequence[str]) -> Sequence[float | None]:
        """Of one group's pictures; None for each where one of them cannot be read."""
        rows = self._features(pictures)
        return [None] * len(pictures) if rows is None else self.learner.opinion_of_features(rows).scores

    def most_telling(self, pictures: Sequence[str]) -> tuple[str, ...]:
        """The pictures of a group, at most SHOWN, whose pick tells most."""
        rows = self._features(pictures)
        if rows is None:
            return tuple(pictures)
        return tuple(pictures[number] for number in self.learner.question_of_features([rows], SHOWN).pictures)

    def report(self, sure: int, groups: int) -> str:
        """Its accuracy so far, for the panel, and of how many of the groups at hand it is sure."""
        seen = self.learner.accuracy
        if not seen.votes:
            return ""
        interval = f"95 % interval {seen.low:.0%} to {seen.high:.0%}"
        foretold = f"Learned from {self.learner.votes} votes: {seen.mean:.0%} of them foretold ({interval})"
        return f"{foretold}, and sure of {sure} of {groups} groups here."

    def _features(self, pictures: Sequence[str]) -> np.ndarray | None:
        import numpy as np

        for picture in pictures:
            if picture not in self._rows:
                self._rows[picture] = self._read(picture)
        rows = [row for picture in pictures if (row := self._rows[picture]) is not None]
        return np.stack(rows) if len(rows) == len(pictures) else None

    def _read(self, picture: str) -> np.ndarray | None:
        try:
            pixels = media.read(self.folder / picture)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            logger.warning("%s cannot be read (%s): nothing is learned of votes on it", self.folder / picture, error)
            return None
        frame = pixels[len(pixels) // 2] if pixels.ndim == 4 else pixels
        return head.read(self.learner.network, torch.from_numpy(frame.copy())[None].float() / 255)[0]
