"""Single figures of curves, by hand."""

from __future__ import annotations

import math

import pytest

from comfyui_otca.study.measures import area, non_dominated, reached_for_good


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
