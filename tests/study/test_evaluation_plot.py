"""The figure of `otca eval`: a mark for every mean that there is."""

from __future__ import annotations

import numpy as np
import pytest

from comfyui_otca.study import evaluation_plot
from comfyui_otca.study.evaluate import compare

pytestmark = pytest.mark.painted


def share_of(picture, color):
    return (picture == np.array(color, dtype=np.uint8)).all(-1).mean()


def test_a_comparison_has_a_mark_for_every_mean_that_there_is():
    orange = (0xE6, 0x9F, 0x00)  # of the second method
    base, own = np.zeros((3, 2, 2)), np.ones((3, 2, 2))
    cells = {"base": compare(base, base, True), "mine": compare(own, base)}
    both = evaluation_plot.picture(
        {name: {method: row[k] for method, row in cells.items()} for k, name in enumerate("ab")}
    )
    left, right = np.array_split(both, 2, axis=1)
    marks = (left == np.array(orange)).all(-1)
    assert marks.sum() > 20 and share_of(right, orange) > 0
    blue = (left == np.array((0x00, 0x72, 0xB2))).all(-1)
    assert np.argwhere(marks).mean(0)[1] > np.argwhere(blue).mean(0)[1], "what is better is further to the right"
    own[:, :, 1] = np.nan
    cells["mine"] = compare(own, base)
    none = evaluation_plot.picture({"b": {method: row[1] for method, row in cells.items()}})
    assert share_of(none, orange) == 0
