"""A taste that is learned while somebody votes: it predicts each vote before it learns it, and says what to ask next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...networks import features
from . import head
from .head import Head, Scaling
from .posterior import Choice, Posterior, choices_of, fit, most_informative

SURE = (
    0.85  # mean probability that the order of two of a group's pictures is right, from which on nobody has to be asked
)
LEAST_VOTES = 5  # before which the learner is sure of nothing, whatever it computes
DRAWS = 256  # of the posterior, to weigh questions
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
class Opinion:
    """What the learner thinks of one group of n pictures.

    Attributes:
        scores: [n], the mean of each picture's utility: log-odds, comparable within the group.
        certainty: mean over pairs of the probability that the order by `scores` is right.
        sure: whether the group can be scored without a question: `certainty` is at least SURE, after LEAST_VOTES votes.
    """

    scores: list[float]
    certainty: float
    sure: bool


@dataclass(frozen=True)
class Question:
    """Which pictures of which group to show, and how many bits about the taste a pick of the best one is expected to tell."""

    group: int
    pictures: tuple[int, ...]
    information: float


class Learner:
    """Learns what somebody likes from votes, by a linear head on a frozen encoder.

    How it is used:

        rows = head.read(learner.network, images)               # features [n, D] of pictures [n, H, W, 3]
        learner.add_features(rows, vote.answer.order)           # every vote there is, and every new one
        opinion = learner.opinion_of_features(rows)             # of a group: if it is sure, take its scores and ask nothing
        question = learner.question_of_features(unsure, 4)      # else show these, and ask for the best; 2: a pair
        learner.accuracy                                        # for the panel: mean, low, high, votes

    Skipped and "all alike" votes have no order, and are not added. The head is fitted when it is next asked after an `add`.

    Args:
        encoder: a folder, the name of one, or a hub id in the local cache; see `features.find`.
        device: auto, or a torch device.

    Raises:
        FileNotFoundError: there is no such encoder.
        RewardError: its weights cannot be read.
    """

    def __init__(self, encoder: str = "shapes-clip", device: str = "auto"):
        self.folder: Path = features.find(encoder)
        self.encoder = encoder
        self.network = features.load(encoder, device)
        self._seen: list[np.ndarray] = []  # features of the pictures of every vote
        self._choices: list[Choice] = []
        self._right: list[float] = []
        self._fitted: tuple[Scaling, Posterior] | None = None
        self._random = np.random.default_rng(0)

    def add_features(self, rows: np.ndarray, order: Sequence[Sequence[int]]) -> None:
        """Learns one vote on pictures [n, D]: levels of their numbers, best first, as `Answer.order`."""
        acts = choices_of(order)
        if not acts:
            return
        pairs = [pair for act in acts for pair in act]
        if self._choices:
            scores = self.head().scores(rows)
            self._right.append(float(np.mean([scores[better] > scores[worse] for better, worse in pairs])))
        first = sum(map(len, self._seen))
        self._seen.append(rows)
        self._choices += [[(first + better, first + worse) for better, worse in act] for act in acts]
        self._fitted = None

    @property
    def votes(self) -> int:
        return len(self._seen)

    @property
    def accuracy(self) -> Accuracy:
        """Of votes predicted before they were learned: of every vote the share of its pairs. The first one has no prediction."""
        return Accuracy.of(self._right)

    def head(self) -> Head:
        """What is learned so far, as `otca taste fit` would save it.

        Raises:
            ValueError: no vote was added.
        """
        if not self._seen:
            raise ValueError("nothing is learned before the first vote. Fix: vote, then ask")
        if self._fitted is None:
            scaling = Scaling.of(self._seen)
            self._fitted = scaling, fit(scaling(np.concatenate(self._seen)), self._choices)
        about = {"votes": self.votes, "choices": len(self._choices)}
        return Head(*self._fitted, encoder=self.encoder, fingerprint=head.fingerprint(self.folder), about=about)

    def opinion_of_features(self, rows: np.ndarray) -> Opinion:
        """What it thinks of one group's pictures [n, D]. Before the first vote: nothing, all scores 0."""
        rows, posterior = self._prepared(rows)
        mean, deviation = posterior.differences(rows)
        known = _normal_cdf(mean, deviation)
        pairs = np.triu_indices(len(rows), 1)
        certainty = float(np.maximum(known, 1 - known)[pairs].mean()) if len(rows) > 1 else 1.0
        sure = certainty >= SURE and self.votes >= LEAST_VOTES
        return Opinion((rows @ posterior.mean).tolist(), certainty, sure)

    def question_of_features(self, groups: Sequence[np.ndarray], size: int = 2) -> Question:
        """The pictures, at most `size`, of one of those groups [n, D] whose pick tells most about the taste."""
        questions = []
        for number, group in enumerate(groups):
            rows, posterior = self._prepared(group)
            utilities = posterior.samples(rows, DRAWS, self._random)
            questions.append(Question(number, *most_informative(utilities, size)))
        return max(questions, key=lambda question: question.information)

    def _prepared(self, rows: np.ndarray) -> tuple[np.ndarray, Posterior]:
        if not self._seen:
            return Scaling.of([rows])(rows), Posterior.before(rows.shape[1])
        learned = self.head()
        return learned.scaling(rows), learned.posterior


def _normal_cdf(mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """P(f > 0) of f ~ N(mean, deviation²); 0.5 where it is surely 0."""
    import torch

    return torch.special.ndtr(torch.from_numpy(mean / np.maximum(deviation, 1e-12))).numpy()
