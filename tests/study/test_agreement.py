"""Measures of agreement against numbers worked out by hand; shares of a reward's variance by numpy, with their sums."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from comfyui_otca.study.agreement import (
    MEASURES,
    chance,
    order_agreement,
    peak_distance,
    pearson,
    possible,
    recall,
    shares,
    shares_table,
    spearman,
)

RISING = [1.0, 2.0, 3.0, 4.0]


def of_one(measure, a, b, **options):
    return measure(np.array([a]), np.array([b]), **options)[0]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        # Deviations ±1.5, ±0.5 with squares that add up to 5.
        (RISING, [1.0, 3.0, 2.0, 4.0], {"pearson": 0.8, "spearman": 0.8, "order": 5 / 6, "recall": 1.0, "peak": 0}),
        (RISING, [4.0, 1.0, 2.0, 3.0], {"pearson": -0.2, "spearman": -0.2, "order": 0.5, "recall": 2 / 3, "peak": 3}),
        (RISING, [1.0, 2.0, 3.0, 100.0], {"spearman": 1.0, "order": 1.0, "recall": 1.0, "peak": 0}),
        (RISING, [-x for x in RISING], {"pearson": -1.0, "spearman": -1.0, "order": 0.0, "recall": 2 / 3, "peak": 3}),
        # Ranks ½, ½, 2 and 0, 1, 2: deviations -½, -½, 1 and -1, 0, 1. One pair of three undecided by a …
        ([1.0, 1.0, 2.0], [1.0, 2.0, 3.0], {"spearman": 1.5 / 3**0.5, "order": 2.5 / 3, "recall": np.nan}),
        # … and one that b leaves open, which is not asked for.
        ([1.0, 2.0, 3.0], [1.0, 1.0, 2.0], {"order": 1.0}),
    ],
)
def test_by_hand(a, b, expected):
    found = {
        "pearson": of_one(pearson, a, b),
        "spearman": of_one(spearman, a, b),
        "order": of_one(order_agreement, a, b),
        "recall": of_one(recall, a, b, count=3),
        "peak": of_one(peak_distance, a, b),
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected, nan_ok=True)


def test_what_has_a_gap_or_no_spread_says_nothing():
    a = np.array([[1.0, 2, 3, 4, 5, 6], [2, 2, 2, 2, 2, 2], [1, 2, np.nan, 4, 5, 6], [1, 2, 3, 4, 5, 6]])
    b = np.array([[3.0, 1, 2, 6, 5, 4], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 0]])
    for name, measure in MEASURES.items():
        assert np.isfinite(measure(a, b)).tolist() == [True, False, False, False], name


@given(arrays(float, (2, 3, 6), elements=st.floats(-2, 2, width=16)))
def test_every_measure_lies_where_it_may(curves):
    for name, measure in MEASURES.items():
        values = measure(*curves)
        low, high = possible(name)
        assert ((values >= low - 1e-9) & (values <= high + 1e-9))[np.isfinite(values)].all(), name


def test_chance_is_the_mean_over_all_orders():
    orders = np.array(list(itertools.permutations(range(6))), dtype=float)
    a, b = np.repeat(orders, 6, 0), np.tile(np.array([np.roll(range(6), n) for n in range(6)], dtype=float), (720, 1))
    expected = chance(6)
    assert {name: measure(a, b).mean() for name, measure in MEASURES.items()} == pytest.approx(expected, abs=1e-9)
    assert np.isnan(chance(5)["recall@5"]) and chance(5)["recall@3"] == 0.6


# --- shares -----------------------------------------------------------------------------------------------------------


def walks(groups=40, size=6, seed=0):
    """A reward whose gains are independent, of variance 4, 1 and 0, and one whose last step takes back half of the first."""
    gains = np.random.default_rng(seed).normal(size=(groups * size, 3)) * [2.0, 1.0, 0.0]
    gains += np.random.default_rng(seed + 1).normal(size=(groups, 1)).repeat(size, 0) * 50  # what a group has in common
    back = gains.copy()
    back[:, 2] = -0.5 * gains[:, 0]
    return np.stack([np.cumsum(np.c_[np.zeros(len(own)), own], 1) for own in (gains, back)], 2)


def test_shares_are_those_within_groups():
    rewards = walks()
    fair, taken_back = shares(["fair", "back"], rewards, 6)
    for k, own in enumerate((fair, taken_back)):
        gains = np.diff(rewards[:, :, k], axis=1).reshape(40, 6, 3)
        centred = gains - gains.mean(1, keepdims=True)
        way = centred.sum(2, keepdims=True)
        total = (way**2).sum()
        np.testing.assert_allclose(own.variance, (centred**2).sum((0, 1)) / total, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(own.covariance, (centred * way).sum((0, 1)) / total, rtol=1e-9, atol=1e-12)
        assert sum(own.covariance) == pytest.approx(1)
        assert own.low < sum(own.variance) < own.high
    assert fair.variance == pytest.approx([0.8, 0.2, 0.0], abs=0.08) and fair.low < 1 < fair.high
    # R = a/2 + b: Var(R) = 1 + 1, and variances 4, 1 and 1 are three times that.
    assert sum(taken_back.variance) == pytest.approx(3, abs=0.4) and taken_back.low > 1.5
    assert taken_back.covariance == pytest.approx([1.0, 0.5, -0.5], abs=0.15)


def test_one_group_has_no_interval_and_equal_scores_no_shares():
    [own] = shares(["fair"], walks(groups=1)[:, :, :1], 6)
    assert np.isnan(own.low) and np.isnan(own.high) and sum(own.covariance) == pytest.approx(1)
    [nothing] = shares(["flat"], np.ones((12, 4, 1)), 6)
    assert np.isnan(nothing.variance).all() and np.isnan(nothing.low)
    lines = shares_table([own, nothing], (1.0, 0.5, 0.25, 0.0))
    assert lines[0] == "| objective | share | 0 (σ 1.00) | 1 (σ 0.50) | 2 (σ 0.25) | sum |"
    assert lines[2].endswith(f"| {sum(own.variance):.2f} |") and lines[3].endswith("| 1.00 |")
    assert lines[4] == "| flat | Var(g)/Var(R) | – | – | – | – |"
