"""The head's maths against numbers found by hand, on a grid, by another optimiser and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from comfyui_otca.trainer.opinions.utility import STRENGTH, Utility, fit, most_telling, preferred, worth


def random_problem(seed=0, pictures=30, width=6, count=60):
    random = np.random.default_rng(seed)
    rows = random.standard_normal((pictures, width))
    return rows, [tuple(random.choice(pictures, 2, replace=False).tolist()) for _ in range(count)]


def covariance(found, rows):
    inside = rows @ found.basis
    return inside @ found.covariance @ inside.T + found.strength * (rows @ rows.T - inside @ inside.T)


def log_posterior(w, rows, pairs, strength):
    """By torch, term by term as in the module's first lines."""
    utilities = torch.from_numpy(rows) @ w
    likelihood = sum(torch.nn.functional.logsigmoid(utilities[better] - utilities[worse]) for better, worse in pairs)
    return likelihood - w.square().sum() / (2 * strength)


# --- the maximum ------------------------------------------------------------------------------------------------------


def test_one_pair_by_hand():
    # Along the difference 2: the maximum of log σ(2w) - w²/2 is where 2·(1 - σ(2w)) = w, found here by bisection.
    low, high = 0.0, 2.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if 2 / (1 + math.exp(2 * middle)) > middle else (low, middle)
    found = fit(np.array([[1.0, 5.0], [-1.0, 5.0]]), [(0, 1)], 1.0)
    assert found.mean == pytest.approx([low, 0], abs=1e-8)
    p = 1 / (1 + math.exp(-2 * low))
    assert found.covariance == pytest.approx(1 / (4 * p * (1 - p) + 1))


@pytest.mark.parametrize("width", [6, 60], ids=["fewer features than choices", "more"])
def test_another_optimiser_agrees(width):
    rows, pairs = random_problem(width=width, count=40)
    w = torch.zeros(width, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [w], max_iter=500, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        loss = -log_posterior(w, rows, pairs, 3.0)
        loss.backward()
        return loss

    optimiser.step(closure)
    found = fit(rows, pairs, 3.0)
    assert found.mean == pytest.approx(w.detach().numpy(), abs=1e-5)
    hessian = torch.autograd.functional.hessian(lambda w: -log_posterior(w, rows, pairs, 3.0), w.detach())
    expected = np.linalg.inv(hessian.numpy())
    assert covariance(found, np.eye(width)) == pytest.approx(expected, abs=1e-5)
    mean, deviation = found.differences(rows)
    assert mean[3, 5] == pytest.approx((rows[3] - rows[5]) @ found.mean)
    assert deviation[3, 5] ** 2 == pytest.approx((rows[3] - rows[5]) @ expected @ (rows[3] - rows[5]), abs=1e-4)


def test_separable_votes_stay_finite_and_contradictory_ones_say_nothing():
    rows = np.random.default_rng(0).standard_normal((40, 50))
    pairs = [(number, number + 1) for number in range(0, 40, 2)]
    found = fit(rows, pairs, 1000.0)
    margins = [(rows[a] - rows[b]) @ found.mean for a, b in pairs]
    assert np.isfinite(found.mean).all() and min(margins) > 0 and np.abs(found.mean).max() < 100
    assert fit(rows, [*pairs, *(pair[::-1] for pair in pairs)]).mean == pytest.approx(np.zeros(50), abs=1e-9)


def test_what_no_vote_spoke_of_is_as_uncertain_as_before():
    found = fit(np.array([[1.0, 0], [0, 0]]), [(0, 1)], 2.0)
    _, (as_before, less) = found.of(np.array([[0.0, 3.0], [1.0, 0]]))
    assert as_before**2 == pytest.approx(18) and less**2 < 2
    alike = fit(np.ones((2, 3)), [(0, 1)], 2.0)
    assert not alike.mean.any() and alike.of(np.eye(3))[1] ** 2 == pytest.approx([2, 2, 2])
    rows = np.random.default_rng(0).standard_normal((3, 4))
    nothing = fit(rows, [])
    assert not nothing.mean.any() and nothing.of(rows)[1] ** 2 == pytest.approx(STRENGTH * (rows**2).sum(1))
    mean, deviation = Utility.before(3).differences(np.eye(3))
    assert not mean.any() and deviation[0, 1] == pytest.approx((2 * STRENGTH) ** 0.5) and deviation[1, 1] == 0


# --- calibration ------------------------------------------------------------------------------------------------------


def test_its_probabilities_are_those_of_the_answers():
    """Voters drawn from the prior: of what it says is 80 % probable, 80 % comes true."""
    said, came = [], []
    for seed in range(40):
        random = np.random.default_rng(seed)
        rows, w = random.standard_normal((400, 5)), random.standard_normal(5) * 2**0.5
        pairs = random.permutation(400).reshape(200, 2)
        wins = random.random(200) < 1 / (1 + np.exp(-(rows[pairs[:, 0]] - rows[pairs[:, 1]]) @ w))
        answered = [tuple(pair if win else pair[::-1]) for pair, win in zip(pairs, wins, strict=True)]
        first, second = pairs[100:].T
        said.append(preferred(*fit(rows, answered[:100], 2.0).of(rows[first] - rows[second])))
        came.append(wins[100:])
    said, came = np.concatenate(said), np.concatenate(came)
    for low in np.arange(0, 1, 0.1):
        inside = (said >= low) & (said < low + 0.1)
        assert came[inside].mean() == pytest.approx(said[inside].mean(), abs=0.05)
    # The probability of a click is its integral.
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    for mean, deviation in ((0.0, 1.0), (1.0, 0.5), (2.0, 3.0), (-1.0, 0.0)):
        exact = (weights / (1 + np.exp(-(mean + deviation * nodes)))).sum() / weights.sum()
        assert preferred(np.array(mean), np.array(deviation)) == pytest.approx(exact, abs=0.02)


# --- questions --------------------------------------------------------------------------------------------------------


def test_what_tells_most_is_what_it_knows_least_of():
    # Before any vote the farthest pair, then the picture that is far from both: at 0, 1, 10 and, aside, 4.
    rows = np.array([[0.0, 0], [1.0, 0], [10.0, 0], [5.0, 4.0]])
    before = worth(*Utility.before(2).differences(rows))
    assert [sorted(most_telling(before, size)) for size in (2, 3, 9)] == [[0, 2], [0, 2, 3], [0, 1, 2, 3]]
    # By hand p·(1-p)·deviation²: 0.25 · 1 of a pair that may go either way, and 0.0025 · 9 of one whose answer is clear.
    mean, deviation = np.array([[0, 0, 6], [0, 0, 6], [-6, -6, 0.0]]), np.array([[0, 1, 3], [1, 0, 3], [3, 3, 0.0]])
    assert sorted(most_telling(worth(mean, deviation), 2)) == [0, 1]


def test_what_tells_most_agrees_with_the_mutual_information():
    """The information of each pair, H(E p) - E H(p) by quadrature, of utilities that are nearly known."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()

    def entropy(p):
        return -(p * np.log(p) + (1 - p) * np.log(1 - p))

    found = fit(*random_problem(count=400))
    mean, deviation = found.differences(random_problem(seed=1, pictures=12)[0])
    p = 1 / (1 + np.exp(-(mean[..., None] + deviation[..., None] * nodes)))
    told = entropy(p @ weights) - entropy(p) @ weights
    assert worth(mean, deviation) / 2 == pytest.approx(told, rel=0.2, abs=1e-3)
    assert told[most_telling(worth(mean, deviation), 2)] > 0.9 * told.max()
