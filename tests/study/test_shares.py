"""Shares of a reward's variance: by numpy, with their sums, and as the rows that `otca analyze` prints."""

from __future__ import annotations

import json

import numpy as np
import pytest

from comfyui_otca.__main__ import main
from comfyui_otca.study.shares import markdown, shares


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
    lines = markdown([own, nothing], (1.0, 0.5, 0.25, 0.0))
    assert lines[0] == "| objective | share | 0 (σ 1.00) | 1 (σ 0.50) | 2 (σ 0.25) | sum |"
    assert lines[2].endswith(f"| {sum(own.variance):.2f} |") and lines[3].endswith("| 1.00 |")
    assert lines[4] == "| flat | Var(g)/Var(R) | – | – | – | – |"


def test_analyze_reports_them(small_graph, tmp_path):
    (tmp_path / "workflow.json").write_text(json.dumps(small_graph()))
    assert main(["analyze", str(tmp_path / "workflow.json"), "--iterations", "1", "--output", str(tmp_path / "a")]) == 0
    content = json.loads((tmp_path / "a" / "analysis.json").read_text(encoding="utf-8"))
    assert [own["objective"] for own in content["shares"]] == ["clip_t", "colorfulness", "sharpness", "accuracy"]
    table = (tmp_path / "a" / "table.md").read_text(encoding="utf-8")
    for own in content["shares"][:3]:
        assert len(own["variance"]) == 4 and own["variance"][3] == 0, "the last step leads to the predicted picture"
        assert sum(own["covariance"]) == pytest.approx(1)
        sums = f"| {sum(own['variance']):.2f} ({own['low']:.2f} … {own['high']:.2f}) |"
        assert sums in table
