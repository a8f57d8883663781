"""Student's t against tables, Holm by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comfyui_otca.trainer.statistics import holm, mean_interval, paired_p, t_cdf, t_quantile


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423)]
)
def test_the_tables_of_t(freedom, quantile):
    assert t_quantile(0.975, freedom) == pytest.approx(quantile, abs=5e-5)
    assert t_cdf(-quantile, freedom) == pytest.approx(0.025, abs=2e-6)


@given(st.floats(-50, 50), st.integers(1, 40))
def test_t_is_symmetric(t, freedom):
    assert t_cdf(t, freedom) + t_cdf(-t, freedom) == pytest.approx(1)
    # Of one degree of freedom it is Cauchy's distribution.
    assert t_cdf(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi)


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
