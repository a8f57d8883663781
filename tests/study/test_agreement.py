"""Measures of agreement against numbers worked out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from comfyui_otca.study.agreement import MEASURES, chance, order_agreement, peak_distance, pearson, recall, spearman

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


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
def test_what_has_a_gap_or_no_spread_says_nothing(measure):
    a = np.array([[1.0, 2, 3, 4, 5, 6], [2, 2, 2, 2, 2, 2], [1, 2, np.nan, 4, 5, 6], [1, 2, 3, 4, 5, 6]])
    b = np.array([[3.0, 1, 2, 6, 5, 4], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 0, 0]])
    assert np.isfinite(measure(a, b)).tolist() == [True, False, False, False]


def test_chance_is_the_mean_over_all_orders():
    orders = np.array(list(itertools.permutations(range(6))), dtype=float)
    a, b = np.repeat(orders, 6, 0), np.tile(np.array([np.roll(range(6), n) for n in range(6)], dtype=float), (720, 1))
    expected = chance(6)
    assert {name: measure(a, b).mean() for name, measure in MEASURES.items()} == pytest.approx(expected, abs=1e-9)
    assert np.isnan(chance(5)["recall@5"]) and chance(5)["recall@3"] == 0.6
