"""Grids: their size, and that what they show is in them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from comfyui_otca.trainer.pictures import grids

pytestmark = pytest.mark.painted


def share_of(picture, color):
    return (picture == np.array(color, dtype=np.uint8)).all(-1).mean()


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
    top, bottom = np.array_split(both, 2)
    assert share_of(top, (0, 0, 0)) > 0.5 > share_of(bottom, (0, 0, 0))
