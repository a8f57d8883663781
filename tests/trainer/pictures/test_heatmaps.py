"""Heatmaps, curves, grids and the table of scores: their colours and rows, and what is missing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from comfyui_otca.trainer.advantages import fuse
from comfyui_otca.trainer.credit.steps import tcd
from comfyui_otca.trainer.pictures import figures, grids, heatmaps
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


def test_advantages_of_both_signs_get_both_colors():
    advantages = fuse(scores([[0.0], [1.0], [0.0], [1.0]]), credit(4), "weighted_advantages")
    picture = heatmaps.advantage_heatmap(advantages).astype(int)
    orange = (picture[..., 0] > picture[..., 2] + 60).mean()
    purple = (picture[..., 2] > picture[..., 1] + 60).mean()
    assert orange > 0.05 and purple > 0.05


@pytest.fixture
def written(monkeypatch):
    """What is written into figures from now on: (x, y, text)."""
    from matplotlib.axes import Axes

    told, write = [], Axes.text
    monkeypatch.setattr(
        Axes, "text", lambda axes, x, y, text, **how: (told.append((x, y, text)), write(axes, x, y, text, **how))
    )
    return told


def test_a_table_survives_scores_that_are_missing(written):
    inf, nan = float("inf"), float("nan")
    table = heatmaps.reward_table(
        scores([[0.5], [inf], [nan], [3.0]], [[1.0], [0.0], [1.0], [1.0]]), torch.rand(4, 8, 8, 3)
    )
    assert table.ndim == 3 and table.std() > 5
    assert [text for *_, text in written] == ["0.5", "1", "–", "0", "nan", "1", "3", "1"]


def test_a_moving_windows_credit_has_a_row_for_every_step_that_was_ever_trained():
    history = [
        {"iteration": i, "reward/a/mean": None, f"credit/step/{i}": 1.0, f"credit/step/{i + 1}": 1.0} for i in (9, 2, 3)
    ]
    assert heatmaps.credit_steps(history) == [2, 3, 4, 9, 10]
    advantages = fuse(scores([[0.0], [1.0]]), credit(2), "moca")
    still = heatmaps.credit_over_time(history[:1], advantages)
    moved = heatmaps.credit_over_time(history, advantages)
    # Two rows, then five, 0.26 inches each.
    assert moved.shape[0] - still.shape[0] == round(3 * 0.26 * 110)


def own_steps(samples, weights):
    """Credit of two objectives with these weights [T', 2]."""
    plain = credit(samples, len(weights))
    own = torch.tensor(weights).expand(samples, -1, -1)
    return replace(plain, weights=own.mean(2), by_objective=own, objectives=("clip", "sharp"))


def test_weights_by_objective_stand_above_those_of_the_samples(written):
    groups, prompts = torch.tensor([0, 0, 1, 1]), ["one", "two"]
    both = own_steps(4, [[2.0, 0.5], [0.75, 1.0], [0.25, 1.5]])
    picture = heatmaps.weight_heatmap(both, groups, prompts)
    assert written == [(0, 0, "2.00"), (1, 0, "0.75"), (2, 0, "0.25"), (0, 1, "0.50"), (1, 1, "1.00"), (2, 1, "1.50")]
    samples = heatmaps.weight_heatmap(replace(both, by_objective=None, objectives=()), groups, prompts)
    above = len(picture) - len(samples)
    assert above > 100
    assert (picture[above:, : samples.shape[1]] == samples).all()
    yellow = (picture[:above, :, 0] > 200) & (picture[:above, :, 2] < 90)
    assert 0.02 < yellow.mean() < 0.2, "one of six cells is the brightest"


def test_credit_over_time_has_a_part_for_each_objective_with_weights_of_its_own():
    steps = range(3)
    history = [{"iteration": i, "reward/clip/mean": 0.0} | {f"credit/step/{j}": 1.0 for j in steps} for i in (1, 2)]
    labels = ["a", "b", "c"]
    alone = heatmaps.credit_figure(history, steps, labels)
    for row in history:
        row.update({f"credit/objective/clip/{j}": 0.5 * j for j in steps})
    both = heatmaps.credit_figure(history, steps, labels)
    assert len(alone.axes) == 2 and len(both.axes) == 4, "each with its colour bar"
    assert [axis.get_title() for axis in both.axes][1] == "for clip alone"
    drawn = both.axes[1].images[0].get_array()
    assert drawn.tolist() == [[0.0, 0.0], [0.5, 0.5], [1.0, 1.0]]


# --- curves and grids -------------------------------------------------------------------------------------------------


def test_running_mean_by_hand_and_over_gaps():
    # Twenty values make a window of two.
    values = np.arange(20, dtype=float)
    assert figures.running_mean(values)[:3].tolist() == [0.0, 0.5, 1.5]
    values[1:3] = np.nan
    running = figures.running_mean(values)
    assert running[1] == 0.0 and np.isnan(running[2]) and running[3] == 3.0


def test_curves_are_drawn_from_history_with_nulls():
    history = [{"iteration": i, "reward/a/mean": None if i == 2 else float(i)} for i in (1, 2, 3)]
    evaluations = [{"iteration": 0, "rewards": {"a": {"mean": None, "standard_error": None, "held_out": False}}}]
    assert figures.reward_curves(history, evaluations).std() > 5


def test_a_reward_that_only_judges_evaluations_has_a_panel_of_its_own():
    """Learning from pairs asks no reward about samples: rewards.png showed none of those that judge its evaluations."""
    history = [{"iteration": 1, "reward/a/mean": 0.5, "held_out/b/mean": 0.5}]
    values = {"mean": 0.5, "standard_error": 0.1}
    rewards = {name: {**values, "held_out": name != "a"} for name in "cab"}
    shown = [(panel.label, panel.key) for panel in figures.panels(history, [{"iteration": 0, "rewards": rewards}])]
    assert shown == [("a", "reward/a/mean"), ("b (held out)", "held_out/b/mean"), ("c (held out)", "held_out/c/mean")]


def test_a_grid_holds_every_picture_at_whole_pixel_scale():
    images = torch.zeros(3, 40, 40, 3)
    images[0, ..., 0] = images[1, ..., 1] = images[2, ..., 2] = 1.0
    grid = grids.sample_grid(images, ["a", "b", "c"], columns=2)
    # 40 pixels fit three times into 120; two columns and a gap of 8 around each.
    assert grid.shape[1] == 2 * 120 + 3 * 8
    for color in ((255, 0, 0), (0, 255, 0), (0, 0, 255)):
        assert (grid == np.array(color)).all(-1).sum() == 120 * 120


def test_before_and_after_stand_under_each_other():
    black, white = torch.zeros(2, 40, 40, 3), torch.ones(2, 40, 40, 3)
    both = grids.before_after(black, white, ["a", "b"])
    top, bottom = ((half == 0).all(-1).mean() for half in np.array_split(both, 2))
    assert top > 0.5 > bottom
