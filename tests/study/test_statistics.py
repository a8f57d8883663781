"""Intervals that hold the mean as often as they say; Student's t, clusters, Holm and figures of curves by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from comfyui_otca.study.statistics import Interval, area, clustered, holm, non_dominated, reached_for_good
from comfyui_otca.trainer.errors import standard_error

# --- intervals --------------------------------------------------------------------------------------------------------


def test_an_interval_and_its_p_by_hand():
    # Mean 2, standard error 1 / √3, t = 2√3 of two degrees of freedom; there 97.5 % are below 4.3027, and
    # P(|T| > t) = 1 - t / √(2 + t²) = 1 - √(12 / 14).
    own = clustered([1.0, 2.0, 3.0])
    assert (own.mean, own.count) == (2.0, 3)
    assert [own.high - 2, 2 - own.low] == pytest.approx([4.3027 / math.sqrt(3)] * 2, abs=1e-4)
    assert own.p == pytest.approx(1 - math.sqrt(12 / 14))
    assert (clustered([0.5, 0.5]).p, clustered([0.0, 0.0]).p, clustered([-1.0, 1.0]).p) == (0, 1, pytest.approx(1))


def test_an_interval_ends_where_nothing_more_is_possible():
    """Recall of three trajectories, 1, 1 and 0.5: the mean 5/6 ± 4.30 / 6."""
    own = clustered([1.0, 1.0, 0.5])
    assert own.high == pytest.approx(5 / 6 + 4.3027 / 6, abs=1e-4)
    assert own.within(0.0, 1.0) == replace(own, high=1.0)
    assert math.isnan(clustered([3.0]).within(0.0, 1.0).low)


def test_what_has_no_score_is_left_out():
    assert clustered([1.0, math.nan, 1.0], "aab") == Interval(1.0, 1.0, 1.0, 2, 0.0)
    single, none = clustered([3.0]), clustered([math.nan])
    assert (single.mean, single.count) == (3.0, 1) and math.isnan(single.low) and math.isnan(single.p)
    assert none.count == 0 and math.isnan(none.mean)


def test_copies_tell_nothing_new():
    """Values that share a label count as often as there are labels, however many there are of each."""
    one, many = (
        clustered([0.0, 1.0, 5.0]),
        clustered([0.0] * 50 + [1.0] * 50 + [5.0] * 50, [*"a" * 50, *"b" * 50, *"c" * 50]),
    )
    assert (many.mean, many.low, many.high, many.p) == pytest.approx((one.mean, one.low, one.high, one.p))
    given = clustered([0.0, 1.0, 5.0], "aaa")  # one prompt: the pictures of it are all that varies
    assert (given.low, given.high) == pytest.approx((one.low, one.high))


def test_two_kinds_of_labels_as_regression_has_them():
    """The formula of Cameron, Gelbach and Miller with loops alone: by training and by prompt, less what is in both.

    Prompts that matter little: else their variance alone would be the larger one, which is the least that is said."""
    generator = np.random.default_rng(0)
    labels = [(training, prompt) for training in range(4) for prompt in range(5)] * 3
    values = generator.normal(size=60) + np.array([training + prompt / 2 for training, prompt in labels])
    apart, variance = values - values.mean(), 0.0
    for sign, kind in ((1, lambda pair: pair[0]), (1, lambda pair: pair[1]), (-1, lambda pair: pair)):
        groups = {kind(pair) for pair in labels}
        squares = [
            sum(a for a, pair in zip(apart, labels, strict=True) if kind(pair) == group) ** 2 for group in groups
        ]
        variance += sign * len(groups) / (len(groups) - 1) * sum(squares) / 60**2
    mean, error, freedom = standard_error(values, *zip(*labels, strict=True))
    assert (mean, error, freedom) == (pytest.approx(values.mean()), pytest.approx(math.sqrt(variance)), 3)


@pytest.mark.parametrize(
    ("by", "share"), [((), (0.2, 0.75)), (("prompt",), (0.6, 0.9)), (("training", "prompt"), (0.92, 0.99))]
)
def test_intervals_hold_the_true_mean_as_often_as_they_say(by, share):
    """Twelve trainings judged on twelve prompts, which they share, two pictures each: only both labels give what is asked."""
    generator = np.random.default_rng(0)
    training, prompt = (axis.ravel() for axis in np.meshgrid(range(12), np.repeat(range(12), 2), indexing="ij"))
    inside = 0
    for _ in range(300):
        values = generator.normal(size=12)[training] + generator.normal(size=12)[prompt] + generator.normal(size=288)
        own = clustered(values, *({"training": training, "prompt": prompt}[kind] for kind in by))
        inside += own.low <= 0 <= own.high
    assert share[0] <= inside / 300 <= share[1]


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
