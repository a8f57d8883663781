"""The figure of `otca eval`: the mean of every method by every reward."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ..trainer.pictures.figures import COLORS, new_figure, rendered

if TYPE_CHECKING:
    from .evaluate import Cell


def picture(rewards: Mapping[str, Mapping[str, Cell]]) -> np.ndarray:
    """One panel a reward, a line a method: its mean, thin the mean's own interval, thick that of the difference to the base.

    The first method is the base, and a dashed line stands at its mean.
    """
    columns = min(3, len(rewards))
    rows = math.ceil(len(rewards) / columns)
    methods = max(map(len, rewards.values()))
    figure = new_figure(4.2 * columns, 0.4 + (0.8 + 0.32 * methods) * rows)
    axes = np.atleast_1d(figure.subplots(rows, columns)).ravel()
    for number, (axis, (reward, cells)) in enumerate(zip(axes, rewards.items(), strict=False)):
        base = next(iter(cells.values())).mean.mean
        axis.axvline(base, color="#333333", linewidth=0.8, linestyle="--", zorder=1)
        for line, (cell, color) in enumerate(zip(cells.values(), COLORS * methods, strict=False)):
            axis.plot([cell.mean.low, cell.mean.high], [line, line], color=color, alpha=0.45, linewidth=1.2, marker="|")
            if cell.difference is not None:
                ends = base + cell.difference.low, base + cell.difference.high
                axis.plot(ends, [line, line], color=color, linewidth=4.5, alpha=0.8, solid_capstyle="butt")
            axis.plot(cell.mean.mean, line, color=color, marker="o", markersize=6, markeredgecolor="white")
        axis.set_yticks(range(len(cells)), list(cells) if number % columns == 0 else [], fontsize=8)
        axis.set_ylim(len(cells) - 0.5, -0.5)
        axis.set_title(reward, fontsize=10)
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.25, axis="x")
    for axis in axes[len(rewards) :]:
        axis.set_axis_off()
    title = "Means with 95 % bootstrap intervals: thin of the mean, thick of the difference to the base"
    figure.suptitle("\n".join(textwrap.wrap(title, 50 * columns)), fontsize=9)
    return rendered(figure)
