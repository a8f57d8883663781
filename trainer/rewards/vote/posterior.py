"""What choices say of a linear utility: the Bradley-Terry model with a Gaussian prior, and Laplace's approximation.

A picture is a row x of features, and its utility is w·x. One act of a person picks one picture of several:

    P(a is picked of A) = exp(w·x_a) / Σ_{b in A} exp(w·x_b),    w ~ N(0, s²·I)

which of two pictures is Bradley and Terry's σ(w·(x_a - x_b)), and of more is Luce's and Plackett's. The worst of several is
picked by -w. The log-posterior is concave and has a finite maximum for all votes, also for separable ones. s² is the one of
STRENGTHS with the greatest marginal likelihood by Laplace's approximation (MacKay, 1992), times a broad prior of its own, which
decides while there are few votes. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .votes import Pair

    Array = NDArray[np.floating]

STRENGTHS = tuple(10.0 ** (exponent / 2) for exponent in range(-2, 7))  # prior variances s² that are compared
USUAL, DECADES = 10**0.5, 0.5  # s² is log-normal around USUAL, with this standard deviation in powers of ten
_SMALL_STEP = 1e-9

Choice = list["Pair"]  # (better, worse) of one act: all share the picture that was picked as the best, or as the worst


def choices_of(order: Sequence[Sequence[int]]) -> list[Choice]:
    """The acts that make such an order, best level first.

    Of a level and all that is below it, the smaller side was picked: [[2], [0, 1, 3]] is one pick of four, and the last level
    of [[2], [0, 1], [3]] is the pick of a worst one. So no click counts more often than once.
    """
    acts: list[Choice] = []
    for place, level in enumerate(order):
        below = [number for lower in order[place + 1 :] for number in lower]
        if len(level) <= len(below):
            acts += [[(better, worse) for worse in below] for better in level]
        else:
            acts += [[(better, worse) for better in level] for worse in below]
    return acts


@dataclass(frozen=True)
class Posterior:
    """N(mean, covariance) of w, by Laplace's approximation. Nothing is known outside the span of `basis` but the prior.

    Attributes:
        mean: [D].
        basis: [D, R], orthonormal columns.
        covariance: [R, R], within the basis.
        strength: s², the prior's variance.
        evidence: log marginal likelihood of the choices, and of that strength.
    """

    mean: Array
    basis: Array
    covariance: Array
    strength: float
    evidence: float = 0.0

    @classmethod
    def before(cls, width: int, strength: float = USUAL) -> Posterior:
        return cls(np.zeros(width), np.zeros((width, 0)), np.zeros((0, 0)), strength)

    def covariance_of(self, rows: Array) -> Array:
        """[N, N]: of the utilities of pictures [N, D]."""
        inside = rows @ self.basis
        return inside @ self.covariance @ inside.T + self.strength * (rows @ rows.T - inside @ inside.T)

    def differences(self, rows: Array) -> tuple[Array, Array]:
        """Mean and standard deviation [N, N] of every utility minus every other one."""
        utilities, covariance = rows @ self.mean, self.covariance_of(rows)
        variances = np.diag(covariance)
        spread = variances[:, None] + variances[None] - 2 * covariance
        return utilities[:, None] - utilities[None], np.sqrt(np.maximum(spread, 0))

    def samples(self, rows: Array, count: int, random: np.random.Generator) -> Array:
        """[count, N]: utilities of pictures [N, D], drawn jointly."""
        values, vectors = np.linalg.eigh(self.covariance_of(rows))
        noise = random.standard_normal((count, len(values)))
        return rows @ self.mean + (noise * np.sqrt(np.maximum(values, 0))) @ vectors.T


def preferred(mean: Array, deviation: Array) -> Array:
    """P(the first is picked of the two): E σ(f) of f ~ N(mean, deviation²), as σ(mean / √(1 + π·deviation²/8)) (MacKay, 1992)."""
    scaled = mean / np.sqrt(1 + math.pi * deviation**2 / 8)
    return np.exp(-np.logaddexp(0, -scaled))


@dataclass(frozen=True)
class _Choices:
    """Differences, worse minus better, of all acts in one array [N, R], and where each act begins."""

    rows: Array
    starts: NDArray[np.intp]

    @cached_property
    def act_of(self) -> NDArray[np.intp]:
        counts = np.diff([*self.starts, len(self.rows)])
        return np.repeat(np.arange(len(self.starts)), counts)

    def against(self, w: Array) -> tuple[float, Array]:
        """The log-likelihood, and of every row the probability that its other picture had been picked in its act."""
        margins = self.rows @ w
        most = np.maximum(np.maximum.reduceat(margins, self.starts), 0)
        powers = np.exp(margins - most[self.act_of])
        totals = np.exp(-most) + np.add.reduceat(powers, self.starts)
        return -float((most + np.log(totals)).sum()), powers / totals[self.act_of]

    def curvature(self, missed: Array) -> Array:
        """[R, R]: minus the Hessian of the log-likelihood."""
        weighted = self.rows * missed[:, None]
        means = np.add.reduceat(weighted, self.starts)
        return self.rows.T @ weighted - means.T @ means


def fit(features: Array, choices: Sequence[Choice], strengths: Sequence[float] = STRENGTHS) -> Posterior:
    """The posterior of w by choices among pictures [N, D], with the strength of greatest evidence.

    Newton's method with halved steps, in the span of the differences: there the maximum lies.
    """
    choices = [choice for choice in choices if choice]
    if not choices:
        return Posterior.before(features.shape[1])
    better, worse = np.array([pair for choice in choices for pair in choice]).T
    differences = features[worse] - features[better]
    basis = _span(differences)
    starts = np.cumsum([0, *(len(choice) for choice in choices[:-1])])
    data, start, best = _Choices(differences @ basis, starts), np.zeros(basis.shape[1]), None
    for strength in strengths:
        start, covariance, evidence = _fit(data, strength, start)
        evidence -= (math.log10(strength / USUAL) / DECADES) ** 2 / 2
        if best is None or evidence > best.evidence:
            best = Posterior(basis @ start, basis, covariance, strength, evidence)
    assert best is not None
    return best


def _span(rows: Array) -> Array:
    """Orthonormal columns [D, R] that span the rows."""
    _, sizes, vectors = np.linalg.svd(rows, full_matrices=False)
    return vectors[sizes > 1e-9 * max(float(sizes.max(initial=0)), 1e-300)].T


def _fit(data: _Choices, strength: float, w: Array) -> tuple[Array, Array, float]:
    """The maximum, the covariance around it, and the log evidence, for one strength of the prior."""
    identity = np.eye(len(w))

    def objective(w: Array) -> float:
        return data.against(w)[0] - float(w @ w) / (2 * strength)

    while True:
        _, missed = data.against(w)
        gradient = -data.rows.T @ missed - w / strength
        precision = data.curvature(missed) + identity / strength
        step = np.linalg.solve(precision, gradient)
        before = objective(w)
        while objective(w + step) < before and np.abs(step).max() > _SMALL_STEP:
            step /= 2
        if np.abs(step).max(initial=0) <= _SMALL_STEP * max(1.0, float(np.abs(w).max(initial=0))):
            break
        w = w + step
    evidence = before - (len(w) * math.log(strength) + float(np.linalg.slogdet(precision)[1])) / 2
    return w, np.linalg.inv(precision), evidence


# --- what to ask ------------------------------------------------------------------------------------------------------


def information(utilities: Array, shown: Sequence[int]) -> float:
    """Bits that a pick of the best of the shown pictures tells of w: H(E p) - E H(p) (Houlsby and others, 2011).

    Args:
        utilities: [S, N], drawn from the posterior.
    """
    chosen = utilities[:, list(shown)]
    powers = np.exp(chosen - chosen.max(1, keepdims=True))
    picks = powers / powers.sum(1, keepdims=True)
    return float(_entropy(picks.mean(0)) - _entropy(picks).mean())


def _entropy(picks: Array) -> Array:
    return -(picks * np.log2(np.maximum(picks, 1e-300))).sum(-1)


def most_informative(utilities: Array, size: int) -> tuple[tuple[int, ...], float]:
    """The pictures to show, at most `size`, and their `information`: the best pair, then greedily more."""
    shown, told = _best_pair(utilities)
    while len(shown) < min(size, utilities.shape[1]):
        others = [number for number in range(utilities.shape[1]) if number not in shown]
        told, number = max((information(utilities, (*shown, number)), number) for number in others)
        shown = (*shown, number)
    return shown, told


def _best_pair(utilities: Array) -> tuple[tuple[int, int], float]:
    first, second = np.triu_indices(utilities.shape[1], 1)
    wins = np.exp(-np.logaddexp(0, utilities[:, second] - utilities[:, first]))
    picks = np.stack([wins, 1 - wins], -1)
    told = _entropy(picks.mean(0)) - _entropy(picks).mean(0)
    place = int(told.argmax())
    return (int(first[place]), int(second[place])), float(told[place])
