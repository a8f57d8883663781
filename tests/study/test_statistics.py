"""Bootstrap intervals that hold the mean as often as they say; Student's t against tables, Holm and figures of curves by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from comfyui_otca.study import statistics
from comfyui_otca.study.statistics import (
    Interval,
    area,
    bootstrap,
    bootstrap_of_groups,
    holm,
    mean_interval,
    non_dominated,
    paired_p,
    reached_for_good,
)

# --- the bootstrap ----------------------------------------------------------------------------------------------------


def test_the_interval_of_two_values_is_theirs():
    # means are 0, ½ or 1, the outer ones in a quarter of the resamples each
    assert bootstrap([0.0, 1.0]) == bootstrap([0.0, 1.0]) == Interval(0.5, 0.0, 1.0, 2), "the same every time"


def test_intervals_hold_the_true_mean_as_often_as_they_say(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 400)
    generator = np.random.default_rng(0)
    inside = 0
    for _ in range(200):
        own = bootstrap(generator.exponential(1.0, 50).tolist())
        inside += own.low <= 1.0 <= own.high
    assert 178 <= inside <= 198  # 95 % of 200, less what a skewed distribution costs the percentile bootstrap


def test_what_has_no_score_is_left_out():
    assert bootstrap([1.0, math.nan, 1.0]) == Interval(1.0, 1.0, 1.0, 2)
    single, none = bootstrap([3.0]), bootstrap([math.nan])
    assert (single.mean, single.count) == (3.0, 1) and math.isnan(single.low)
    assert none.count == 0 and math.isnan(none.mean)


def test_the_bootstrap_of_groups_draws_groups_and_of_one_samples():
    # Two prompts whose seeds agree: means of 0, ½ and 1, with ends in a quarter of the draws, however many seeds there are.
    values = np.array([[0.0] * 50, [1.0] * 50])
    assert bootstrap_of_groups(values) == Interval(0.5, 0.0, 1.0, 100)
    assert bootstrap_of_groups(np.array([[0.0, 1.0]])) == Interval(0.5, 0.0, 1.0, 2)
    assert math.isnan(bootstrap_of_groups(np.array([[0.5]])).low)


# --- few seeds --------------------------------------------------------------------------------------------------------


def test_an_interval_by_hand():
    # Mean 2, standard error 1 / √3, and t = 4.3027 of two degrees of freedom.
    own = mean_interval([1.0, 2.0, 3.0])
    assert (own.mean, own.count) == (2.0, 3)
    assert own.high - own.mean == own.mean - own.low == pytest.approx(4.3027 / math.sqrt(3), abs=1e-4)
    single = mean_interval([3.0])
    assert single.mean == 3.0 and math.isnan(single.low) and math.isnan(single.high)


def test_a_paired_test_by_hand():
    # t = 2√3 with two degrees of freedom, where P(|T| > t) = 1 - t / √(2 + t²) = 1 - √(12 / 14).
    assert paired_p([1.0, 2.0, 3.0]) == pytest.approx(1 - math.sqrt(12 / 14))
    assert paired_p([-1.0, 1.0]) == pytest.approx(1)
    assert (paired_p([0.5, 0.5]), paired_p([0.0, 0.0])) == (0, 1)
    assert math.isnan(paired_p([1.0]))


def test_holm_by_hand():
    # 0.01 x 3, 0.03 x 2, and 0.04 x 1, which may not be less than the one before.
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([0.7, 0.6]) == [1.0, 1.0]
    corrected = holm([math.nan, 0.02])
    assert math.isnan(corrected[0]) and corrected[1] == 0.02


# --- curves -----------------------------------------------------------------------------------------------------------


def test_where_a_curve_gets_to_a_score_and_stays():
    assert reached_for_good([0, 10, 20], [0.0, 1.0, 3.0], 2.0) == 15
    assert reached_for_good([0, 10, 20, 40], [0.0, 3.0, 1.0, 2.0], 1.5) == 30, "that it was there before does not count"
    assert reached_for_good([0, 10, 20], [0.0, 3.0, 1.0], 1.5) == math.inf, "it fell again"
    assert reached_for_good([0, 10], [0.0, 1.0], 1.0) == 10
    assert reached_for_good([0, 10], [0.0, 1.0], 1.1) == math.inf
    assert reached_for_good([0, 10], [0.0, 1.0], -1.0) == 0
    assert reached_for_good([0, 10, 20], [0.0, math.nan, 2.0], 1.0) == 10, "the line goes on over a gap"
    assert reached_for_good([0, 10], [math.nan, math.nan], 1.0) == math.inf


def test_the_mean_height_of_a_line():
    # 0 … 10: from 0 to 2, mean 1; 10 … 40: from 2 to 4, mean 3.
    assert area([0, 10, 40], [0.0, 2.0, 4.0]) == pytest.approx((10 * 1 + 30 * 3) / 40)
    assert area([5, 10], [3.0, 3.0]) == 3 and math.isnan(area([0, 1], [0.0, math.nan])) and math.isnan(area([0], [1.0]))


def test_points_that_nothing_dominates():
    points = [(1, 1), (2, 1), (1, 3), (0, 4), (2, 1), (9, math.nan), (1.5, 0.5)]
    assert non_dominated(points) == [False, True, True, True, True, False, False], "equals do not dominate each other"
