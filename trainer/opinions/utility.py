"""A linear utility by choices: the Bradley-Terry model with a Gaussian prior, and Laplace's approximation.

A picture is a row x of features, and its utility is w·x:

    P(a is preferred to b) = σ(w·(x_a - x_b)),    w ~ N(0, s²·I)

The log-posterior is concave and has a finite maximum for all choices, also for separable ones. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Pair = tuple[int, int]  # the numbers of the better and the worse picture

STRENGTH = 10**0.5  # s², the prior variance of a picture's utility, whose features are scaled by `Scaling`
_SMALL_STEP, _SLACK = 1e-10, 1e-9  # of w; of the log-posterior, below which rounding decides


@dataclass(frozen=True)
class Utility:
    """N(mean, covariance) of w. Outside the span of `basis` nothing is known but the prior.

    Attributes:
        mean: [D].
        basis: [D, R], orthonormal columns.
        covariance: [R, R], within the basis.
        strength: s², the prior's variance.
    """

    mean: np.ndarray
    basis: np.ndarray
    covariance: np.ndarray
    strength: float

    @classmethod
    def before(cls, width: int, strength: float = STRENGTH) -> Utility:
        return cls(np.zeros(width), np.zeros((width, 0)), np.zeros((0, 0)), strength)

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation [...] of w·x for rows [..., D]."""
        inside = rows @ self.basis
        outside = (rows**2).sum(-1) - (inside**2).sum(-1)
        variance = ((inside @ self.covariance) * inside).sum(-1) + self.strength * outside
        return rows @ self.mean, np.sqrt(np.maximum(variance, 0))

    def differences(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation [N, N] of every utility minus every other one, for pictures [N, D]."""
        return self.of(rows[:, None] - rows[None])


def fit(rows: np.ndarray, pairs: Sequence[Pair], strength: float = STRENGTH) -> Utility:
    """The most likely w by pairs (better, worse) of pictures [N, D], and the covariance around it.

    Newton's method with halved steps, in the span of the differences: there the maximum lies.
    """
    if not pairs:
        return Utility.before(rows.shape[1], strength)
    better, worse = np.array(pairs).T
    differences = rows[better] - rows[worse]
    _, sizes, vectors = np.linalg.svd(differences, full_matrices=False)
    basis = vectors[sizes > 1e-9 * max(float(sizes.max(initial=0)), 1e-300)].T
    inside, w = differences @ basis, np.zeros(basis.shape[1])

    def objective(w: np.ndarray) -> float:
        return float(-np.logaddexp(0, -inside @ w).sum() - w @ w / (2 * strength))

    while True:
        missed = np.exp(-np.logaddexp(0, inside @ w))  # the probability of the other choice
        precision = (inside.T * (missed * (1 - missed))) @ inside + np.eye(len(w)) / strength
        step = np.linalg.solve(precision, inside.T @ missed - w / strength)
        before = objective(w)
        while objective(w + step) < before - _SLACK:
            step /= 2
        w = w + step
        if np.abs(step).max(initial=0) <= _SMALL_STEP * max(1.0, float(np.abs(w).max(initial=0))):
            return Utility(basis @ w, basis, np.linalg.inv(precision), strength)


def preferred(mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """P(the first of two is preferred), E σ(f) of f ~ N(mean, deviation²), as σ(mean / √(1 + π·deviation²/8)) (MacKay, 1992)."""
    return np.exp(-np.logaddexp(0, -mean / np.sqrt(1 + math.pi * deviation**2 / 8)))


def worth(mean: np.ndarray, deviation: np.ndarray) -> np.ndarray:
    """How much a choice between two pictures tells, [N, N], from the differences of their utilities: p·(1-p)·deviation²/2 nats.

    p = σ(mean); it is the first term of the mutual information with w (Houlsby and others, 2011), here without the half.
    """
    p = np.exp(-np.logaddexp(0, -mean))
    return p * (1 - p) * deviation**2


def most_telling(worths: np.ndarray, size: int) -> tuple[int, ...]:
    """Numbers of the pictures to show, at most `size`, by how much each pair tells, [N, N].

    The pair that tells most begins; then comes the picture whose least telling pair with those shown tells most.
    """
    shown = [int(number) for number in np.unravel_index(worths.argmax(), worths.shape)]
    while len(shown) < min(size, len(worths)):
        others = [number for number in range(len(worths)) if number not in shown]
        shown.append(max(others, key=lambda number: worths[number, shown].min()))
    return tuple(shown)
