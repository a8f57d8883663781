"""A taste that is learned while a person votes: it predicts each vote before it learns it, and says what to ask next."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ..pictures import media
from ..rewards.taste import Head
from .fit import Encoder, Fitted
from .utility import Pair, most_telling, worth
from .votes import Vote, standing

logger = logging.getLogger(__name__)

SURE = 0.85  # mean probability that the order of two of a group's pictures is right; above it nothing is asked
LEAST_VOTES = 5  # before which the learner is sure of nothing, whatever it computes
SHOWN = 4  # pictures to one pick: about half the clicks that pairs take (bench/REWARDS.md, My Taste)
_TWO_SIGMA = 1.96


@dataclass(frozen=True)
class Accuracy:
    """How often votes were predicted before they were learned, with Wilson's 95 % interval over votes; NaN without votes."""

    mean: float
    low: float
    high: float
    votes: int

    @classmethod
    def of(cls, right: Sequence[float]) -> Accuracy:
        count = len(right)
        if not count:
            return cls(np.nan, np.nan, np.nan, 0)
        mean, z2 = float(np.mean(right)), _TWO_SIGMA**2
        middle = (mean + z2 / (2 * count)) / (1 + z2 / count)
        half = _TWO_SIGMA / (1 + z2 / count) * (mean * (1 - mean) / count + z2 / (4 * count**2)) ** 0.5
        return cls(mean, middle - half, middle + half, count)


@dataclass(frozen=True)
class Judgement:
    """The learner's judgement of one group of n pictures.

    Attributes:
        scores: [n], the mean of each picture's utility: log-odds, comparable within the group.
        certainty: mean over pairs of the probability that the order by `scores` is right.
        sure: whether the group can be scored without a question: `certainty` is at least SURE, after LEAST_VOTES votes.
    """

    scores: list[float]
    certainty: float
    sure: bool


class Learner:
    """Learns from votes what a person likes, by a linear head on a frozen encoder.

    It is told of pictures by their features [n, D], or by their names in a folder of votes; of a video it sees the middle frame.
    Skipped and "all alike" votes have no pairs, and are not added. The head is fitted when it is next asked after an `add`.
    """

    def __init__(self, encoder: Encoder, folder: Path):
        self.encoder, self.folder = encoder, folder
        self.busy = threading.Lock()  # held by each caller that asks it anything
        self.forget()

    def forget(self) -> None:
        self._seen: list[range] = []  # the numbers of the pictures of every vote
        self._rows: dict[int, np.ndarray] = {}  # their features
        self._pairs: list[Pair] = []
        self._right: list[float] = []
        self._fitted: Fitted | None = None
        self._learned: list[str] = []  # ids of votes

    def add(self, rows: np.ndarray, pairs: Sequence[Pair]) -> None:
        """Learns one vote on pictures [n, D]: the numbers of the better and the worse one of each pair, as `Answer.pairs`."""
        if not pairs:
            return
        if self._pairs:
            scores = self.head().scores(rows)
            self._right.append(float(np.mean([scores[better] > scores[worse] for better, worse in pairs])))
        first = len(self._rows)
        self._rows |= enumerate(rows, first)
        self._seen.append(range(first, len(self._rows)))
        self._pairs += [(first + better, first + worse) for better, worse in pairs]
        self._fitted = None

    @property
    def votes(self) -> int:
        return len(self._seen)

    @property
    def accuracy(self) -> Accuracy:
        """The share of each vote's pairs that was predicted before it was learned. The first vote has no prediction."""
        return Accuracy.of(self._right)

    def head(self) -> Head:
        """The head that is learned so far, as `otca taste fit` would save it.

        Raises:
            ValueError: no vote was added.
        """
        if not self._seen:
            raise ValueError("nothing is learned before the first vote. Fix: vote, then ask")
        return self._fit().head(self.encoder, {"votes": self.votes, "pairs": len(self._pairs)})

    def judgement(self, rows: np.ndarray) -> Judgement:
        """The judgement of one group's pictures [n, D]. Before the first vote: nothing, all scores 0."""
        fitted = self._known(rows)
        mean, deviation = fitted.differences(rows)
        # P(f > 0) of f ~ N(mean, deviation²); 0.5 if it is surely 0.
        probability = torch.special.ndtr(torch.from_numpy(mean / np.maximum(deviation, 1e-12))).numpy()
        pairs = np.triu_indices(len(rows), 1)
        certainty = float(np.maximum(probability, 1 - probability)[pairs].mean()) if len(rows) > 1 else 1.0
        sure = certainty >= SURE and self.votes >= LEAST_VOTES
        return Judgement((fitted.scaling(rows) @ fitted.utility.mean).tolist(), certainty, sure)

    def most_telling(self, rows: np.ndarray, size: int = SHOWN) -> tuple[int, ...]:
        """The numbers of the pictures, at most `size`, of a group [n, D] whose pick tells most about the taste."""
        return most_telling(worth(*self._known(rows).differences(rows)), size)

    def _fit(self) -> Fitted:
        if self._fitted is None:
            self._fitted = Fitted.to(self._seen, self._pairs, self._rows)
        return self._fitted

    def _known(self, rows: np.ndarray) -> Fitted:
        return self._fit() if self._seen else Fitted.before(rows)

    # --- by their names ---------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether it has learned enough votes to be sure of anything."""
        return self.votes >= LEAST_VOTES

    def learn(self, votes: Sequence[Vote]) -> None:
        """Learns those of the standing votes that it does not know; all again if one that it knows was corrected."""
        answers = [vote for vote in standing(votes) if vote.pairs]
        if not set(self._learned) <= {vote.id for vote in answers}:
            self.forget()
        for vote in answers:
            if vote.id in self._learned:
                continue
            rows = self.features_of(vote.pictures)
            if rows is not None:
                self.add(rows, vote.pairs)
            self._learned.append(vote.id)

    def judgement_of(self, pictures: Sequence[str]) -> Judgement | None:
        """The judgement of one group; None if one of its pictures cannot be read."""
        rows = self.features_of(pictures)
        return None if rows is None else self.judgement(rows)

    def shown_of(self, pictures: Sequence[str]) -> tuple[str, ...]:
        """The pictures of a group that are shown: once enough is learned the few whose pick tells most, else all."""
        rows = self.features_of(pictures) if self.ready else None
        return tuple(pictures) if rows is None else tuple(pictures[number] for number in self.most_telling(rows))

    def report(self, sure: int, groups: int) -> str:
        """Its accuracy so far, for the panel, and of how many of the groups at hand it is sure."""
        accuracy = self.accuracy
        if not accuracy.votes:
            return ""
        interval = f"95 % interval {accuracy.low:.0%} to {accuracy.high:.0%}"
        foretold = f"Learned from {self.votes} votes: {accuracy.mean:.0%} of them foretold ({interval})"
        return f"{foretold}, and sure of {sure} of {groups} groups here."

    def features_of(self, pictures: Sequence[str]) -> np.ndarray | None:
        rows = self.encoder.rows(pictures, self._read)
        return np.stack([rows[picture] for picture in pictures]) if len(rows) == len(pictures) else None

    def _read(self, picture: str) -> np.ndarray | None:
        try:
            pixels = media.read(self.folder / picture)
        except ValueError as error:
            logger.warning("%s; nothing is learned of votes on it", error)
            return None
        return self.encoder.row(pixels[len(pixels) // 2] if pixels.ndim == 4 else pixels)
