"""Pictures: their size, that what they show is in them, and that gaps in the data stay gaps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from comfyui_otca.study.evaluate import compare
from comfyui_otca.trainer.advantages import fuse
from comfyui_otca.trainer.credit.steps import tcd
from comfyui_otca.trainer.pictures import plots
from comfyui_otca.trainer.types import Scores

pytestmark = pytest.mark.painted


def scores(values, held_out=None):
    values = torch.tensor(values)
    groups = torch.arange(len(values)) // 2
    held_out = torch.empty(len(values), 0) if held_out is None else torch.tensor(held_out)
    names = tuple(f"r{k}" for k in range(values.shape[1]))
    held_out_names = tuple(f"h{k}" for k in range(held_out.shape[1]))
    prompts = tuple(f"prompt {g}" for g in range(len(values) // 2))
    return Scores(values, names, (1.0,) * len(names), groups, held_out, held_out_names, (), prompts)


def credit(samples, steps=3):
    path = torch.randn(samples, steps + 1, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    return tcd(path, path[:, -1], range(steps))


def share_of(picture, color):
    return (picture == np.array(color, dtype=np.uint8)).all(-1).mean()


def test_a_grid_holds_every_picture_at_whole_pixel_scale():
    images = torch.zeros(3, 40, 40, 3)
    images[0, ..., 0] = images[1, ..., 1] = images[2, ..., 2] = 1.0
    grid = plots.sample_grid(images, ["a", "b", "c"], columns=2)
    # 40 pixels fit three times into 120; two columns and a gap of 8 around each.
    assert grid.shape[1] == 2 * 120 + 3 * 8
    for color in ((255, 0, 0), (0, 255, 0), (0, 0, 255)):
        assert (grid == np.array(color)).all(-1).sum() == 120 * 120


def test_before_and_after_stand_under_each_other():
    black, white = torch.zeros(2, 40, 40, 3), torch.ones(2, 40, 40, 3)
    both = plots.before_after(black, white, ["a", "b"])
    top, bottom = np.array_split(both, 2)
    assert share_of(top, (0, 0, 0)) > 0.5 > share_of(bottom, (0, 0, 0))


def test_running_mean_by_hand_and_over_gaps():
    # Twenty values make a window of two.
    values = np.arange(20, dtype=float)
    assert plots._running_mean(values)[:3].tolist() == [0.0, 0.5, 1.5]
    values[1:3] = np.nan
    running = plots._running_mean(values)
    assert running[1] == 0.0 and np.isnan(running[2]) and running[3] == 3.0


def test_advantages_of_both_signs_get_both_colors():
    advantages = fuse(scores([[0.0], [1.0], [0.0], [1.0]]), credit(4), "weighted_advantages")
    picture = plots.advantage_heatmap(advantages).astype(int)
    orange = (picture[..., 0] > picture[..., 2] + 60).mean()
    purple = (picture[..., 2] > picture[..., 1] + 60).mean()
    assert orange > 0.05 and purple > 0.05


def test_a_table_survives_scores_that_are_missing():
    table = plots.reward_table(
        scores([[0.0], [float("nan")], [2.0], [3.0]], [[1.0], [0.0], [1.0], [1.0]]), torch.rand(4, 8, 8, 3)
    )
    assert table.ndim == 3 and table.std() > 5


def test_what_a_reward_does_not_apply_to_has_no_score_in_the_table(monkeypatch):
    from matplotlib.axes import Axes

    written, write = [], Axes.text
    monkeypatch.setattr(
        Axes, "text", lambda axes, x, y, text, **how: (written.append(text), write(axes, x, y, text, **how))
    )
    plots.reward_table(scores([[0.5], [float("inf")], [float("nan")], [3.0]]), torch.rand(4, 8, 8, 3))
    assert written == ["0.5", "–", "nan", "3"]


def test_curves_and_credit_are_drawn_from_history_with_nulls():
    history = [
        {"iteration": i, "reward/a/mean": None if i == 2 else float(i), **{f"credit/step/{j}": 1.0 for j in range(3)}}
        for i in (1, 2, 3)
    ]
    evaluations = [{"iteration": 0, "rewards": {"a": {"mean": None, "standard_error": None}}}]
    curves = plots.reward_curves(history, evaluations)
    assert curves.std() > 5
    advantages = fuse(scores([[0.0], [1.0]]), credit(2), "moca")
    over_time = plots.credit_over_time(history, advantages)
    assert over_time.shape[0] > plots.advantage_heatmap(advantages).shape[0]


def test_a_moving_windows_credit_has_a_row_for_every_step_that_was_ever_trained():
    history = [{"iteration": i, "loss": 0.0, f"credit/step/{i}": 1.0, f"credit/step/{i + 1}": 1.0} for i in (9, 2, 3)]
    assert plots.credit_steps(history) == [2, 3, 4, 9, 10]
    advantages = fuse(scores([[0.0], [1.0]]), credit(2), "moca")
    still = plots.credit_over_time(history[:1], advantages)
    moved = plots.credit_over_time(history, advantages)
    # Two rows, then five, 0.26 inches each.
    assert moved.shape[0] - still.shape[0] == round(3 * 0.26 * 110)


def test_a_comparison_has_a_mark_for_every_mean_that_there_is():
    orange = (0xE6, 0x9F, 0x00)  # of the second method
    base, own = np.zeros((3, 2, 2)), np.ones((3, 2, 2))
    cells = {"base": compare(base, base, True), "mine": compare(own, base)}
    both = plots.comparison({name: {method: row[k] for method, row in cells.items()} for k, name in enumerate("ab")})
    left, right = np.array_split(both, 2, axis=1)
    marks = (left == np.array(orange)).all(-1)
    assert marks.sum() > 20 and share_of(right, orange) > 0
    blue = (left == np.array((0x00, 0x72, 0xB2))).all(-1)
    assert np.argwhere(marks).mean(0)[1] > np.argwhere(blue).mean(0)[1], "what is better is further to the right"
    own[:, :, 1] = np.nan
    cells["mine"] = compare(own, base)
    none = plots.comparison({"b": {method: row[1] for method, row in cells.items()}})
    assert share_of(none, orange) == 0
