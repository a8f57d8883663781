"""The head's maths against numbers found by hand, on a grid, by another optimiser and by simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from comfyui_otca.trainer.rewards.vote import posterior
from comfyui_otca.trainer.rewards.vote.posterior import Posterior, choices_of, fit, information, most_informative


def random_problem(seed=0, pictures=30, width=6, acts=25, shown=4):
    random = np.random.default_rng(seed)
    rows = random.standard_normal((pictures, width))
    choices = []
    for _ in range(acts):
        numbers = random.choice(pictures, shown, replace=False).tolist()
        if random.random() < 0.5:
            choices.append([(numbers[0], worse) for worse in numbers[1:]])
        else:
            choices.append([(better, numbers[0]) for better in numbers[1:]])
    return rows, choices


def log_posterior(w, rows, choices, strength):
    """By torch, term by term as in the module's first lines: picked from a set by w, or as the worst by -w."""
    total = -w.square().sum() / (2 * strength)
    utilities = torch.from_numpy(rows) @ w
    for choice in choices:
        better, worse = (sorted({pair[side] for pair in choice}) for side in (0, 1))
        picked, sign = (better[0], 1) if len(better) == 1 else (worse[0], -1)
        everyone = sorted({*better, *worse})
        total = total + sign * utilities[picked] - torch.logsumexp(sign * utilities[everyone], 0)
    return total


# --- choices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "order, acts",
    [
        ([[2], [0, 1, 3]], [[(2, 0), (2, 1), (2, 3)]]),  # one pick of four
        ([[0, 1, 3], [2]], [[(0, 2), (1, 2), (3, 2)]]),  # the pick of a worst one
        ([[0], [1, 2], [3]], [[(0, 1), (0, 2), (0, 3)], [(1, 3), (2, 3)]]),
        ([[0], [1], [2]], [[(0, 1), (0, 2)], [(1, 2)]]),
        ([[0, 1]], []),
        ([], []),
    ],
)
def test_an_order_is_as_many_acts_as_clicks(order, acts):
    assert choices_of(order) == acts


# --- the maximum ------------------------------------------------------------------------------------------------------


def test_one_pair_by_hand():
    # Along the difference 2: the maximum of log σ(2w) - w²/2 is where 2·(1 - σ(2w)) = w, found here by bisection.
    low, high = 0.0, 2.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if 2 / (1 + math.exp(2 * middle)) > middle else (low, middle)
    found = fit(np.array([[1.0, 5.0], [-1.0, 5.0]]), [[(0, 1)]], [1.0])
    assert found.mean == pytest.approx([low, 0], abs=1e-8)
    p = 1 / (1 + math.exp(-2 * low))
    assert found.covariance == pytest.approx(1 / (4 * p * (1 - p) + 1))


def test_a_grid_finds_no_better_one():
    rows, choices = random_problem(width=2)
    found = fit(rows, choices, [2.0])
    best = float(log_posterior(torch.from_numpy(found.mean), rows, choices, 2.0))
    grid = np.linspace(-2, 2, 15)
    values = [
        float(log_posterior(torch.tensor(found.mean + np.array(move)), rows, choices, 2.0))
        for move in itertools.product(grid, grid)
    ]
    assert best == max(values) and best - np.partition(values, -2)[-2] > 1e-3


@pytest.mark.parametrize("width", [6, 60], ids=["fewer features than choices", "more"])
def test_another_optimiser_agrees(width):
    rows, choices = random_problem(width=width)
    w = torch.zeros(width, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [w], max_iter=500, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        loss = -log_posterior(w, rows, choices, 3.0)
        loss.backward()
        return loss

    optimiser.step(closure)
    found = fit(rows, choices, [3.0])
    assert found.mean == pytest.approx(w.detach().numpy(), abs=1e-5)
    hessian = torch.autograd.functional.hessian(lambda w: -log_posterior(w, rows, choices, 3.0), w.detach())
    expected = np.linalg.inv(hessian.numpy())
    assert found.covariance_of(np.eye(width)) == pytest.approx(expected, abs=1e-5)


def test_the_strength_is_that_of_greatest_evidence():
    """The integral over w by a fine grid, where Laplace's approximation is nearly exact."""
    rows, choices = random_problem(width=1, acts=60, shown=2)
    choices = [
        [pair if rows[pair[0]] > rows[pair[1]] else pair[::-1]] if n % 4 else [pair] for n, [pair] in enumerate(choices)
    ]
    found = fit(rows, choices)
    differences = np.array([rows[better, 0] - rows[worse, 0] for choice in choices for better, worse in choice])
    grid, step = np.linspace(-20, 20, 8001, retstep=True)
    likelihood = -np.logaddexp(0, -np.outer(grid, differences)).sum(1)
    score = []
    for strength in posterior.STRENGTHS:
        joint = np.exp(likelihood - grid**2 / (2 * strength)) / (2 * math.pi * strength) ** 0.5
        integral = math.log(joint.sum() * step)
        spread = math.log10(strength / posterior.USUAL) / posterior.DECADES
        score.append(integral - spread**2 / 2)
        if strength == found.strength:
            assert found.evidence == pytest.approx(score[-1], abs=0.05)
    assert posterior.STRENGTHS[int(np.argmax(score))] == found.strength


def test_separable_votes_stay_finite():
    rows = np.random.default_rng(0).standard_normal((40, 50))
    choices = [[(number, number + 1)] for number in range(0, 40, 2)]
    found = fit(rows, choices)
    margins = [(rows[a] - rows[b]) @ found.mean for ((a, b),) in choices]
    assert np.isfinite(found.mean).all() and min(margins) > 0 and np.abs(found.mean).max() < 100


def test_contradictory_votes_say_nothing():
    rows = np.random.default_rng(0).standard_normal((10, 4))
    choices = [[pair] for a in range(0, 10, 2) for pair in ((a, a + 1), (a + 1, a))]
    assert fit(rows, choices).mean == pytest.approx(np.zeros(4), abs=1e-9)


def test_without_votes_only_the_prior_is_known():
    rows = np.random.default_rng(0).standard_normal((3, 4))
    found = fit(rows, [])
    assert not found.mean.any() and found.covariance_of(rows) == pytest.approx(posterior.USUAL * rows @ rows.T)


def test_what_no_vote_spoke_of_is_as_uncertain_as_before():
    found = fit(np.array([[1.0, 0], [0, 0]]), [[(0, 1)]], [2.0])
    assert found.covariance_of(np.array([[0.0, 3.0]])) == pytest.approx(18)
    assert found.covariance_of(np.array([[1.0, 0]])) < 2


# --- calibration ------------------------------------------------------------------------------------------------------


def test_its_probabilities_are_those_of_the_answers():
    """Voters drawn from the prior: of what it says is 80 % probable, 80 % comes true."""
    said, came = [], []
    for seed in range(40):
        random = np.random.default_rng(seed)
        rows, w = random.standard_normal((400, 5)), random.standard_normal(5) * 2**0.5
        pairs = random.permutation(400).reshape(200, 2)
        wins = random.random(200) < 1 / (1 + np.exp(-(rows[pairs[:, 0]] - rows[pairs[:, 1]]) @ w))
        answered = [[tuple(pair if win else pair[::-1])] for pair, win in zip(pairs, wins, strict=True)]
        found = fit(rows, answered[:100], [2.0])
        mean, deviation = found.differences(rows)
        first, second = pairs[100:].T
        said.append(posterior.preferred(mean, deviation)[first, second])
        came.append(wins[100:])
    said, came = np.concatenate(said), np.concatenate(came)
    for low in np.arange(0, 1, 0.1):
        inside = (said >= low) & (said < low + 0.1)
        assert came[inside].mean() == pytest.approx(said[inside].mean(), abs=0.05)


def test_the_probability_of_a_click_is_its_integral():
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    for mean, deviation in ((0.0, 1.0), (1.0, 0.5), (2.0, 3.0), (-1.0, 0.0)):
        exact = (weights / (1 + np.exp(-(mean + deviation * nodes)))).sum() / weights.sum()
        assert posterior.preferred(np.array(mean), np.array(deviation)) == pytest.approx(exact, abs=0.02)


# --- questions --------------------------------------------------------------------------------------------------------


def test_bits_of_a_question_by_hand():
    # Two equally likely voters. Of opposite tastes each is told apart by one pair: 1 bit. Of pictures all like, none.
    certain = np.array([[50.0, -50, 0, 0], [-50.0, 50, 0, 0]])
    assert information(certain, (0, 1)) == pytest.approx(1) and information(certain, (2, 3)) == pytest.approx(0)
    assert most_informative(certain, 2) == ((0, 1), pytest.approx(1))
    # Four voters, each of whom likes one picture best: a pick of four tells two bits.
    shown, told = most_informative(50 * np.eye(4), 4)
    assert sorted(shown) == [0, 1, 2, 3] and told == pytest.approx(2)


def test_samples_have_the_posteriors_moments():
    rows, choices = random_problem()
    found = fit(rows, choices)
    drawn = found.samples(rows[:5], 40000, np.random.default_rng(0))
    assert drawn.mean(0) == pytest.approx(rows[:5] @ found.mean, abs=0.05)
    assert np.cov(drawn.T) == pytest.approx(found.covariance_of(rows[:5]), abs=0.15)


def test_before_any_vote_all_are_equal():
    mean, deviation = Posterior.before(3).differences(np.eye(3))
    assert not mean.any() and deviation[0, 1] == pytest.approx((2 * posterior.USUAL) ** 0.5) and deviation[1, 1] == 0
