"""Curves: gaps in the data stay gaps."""

from __future__ import annotations

import numpy as np
import pytest

from comfyui_otca.trainer.pictures import figures

pytestmark = pytest.mark.painted


def test_running_mean_by_hand_and_over_gaps():
    # Twenty values make a window of two.
    values = np.arange(20, dtype=float)
    assert figures._running_mean(values)[:3].tolist() == [0.0, 0.5, 1.5]
    values[1:3] = np.nan
    running = figures._running_mean(values)
    assert running[1] == 0.0 and np.isnan(running[2]) and running[3] == 3.0


def test_curves_are_drawn_from_history_with_nulls():
    history = [{"iteration": i, "reward/a/mean": None if i == 2 else float(i)} for i in (1, 2, 3)]
    evaluations = [{"iteration": 0, "rewards": {"a": {"mean": None, "standard_error": None}}}]
    assert figures.reward_curves(history, evaluations).std() > 5
