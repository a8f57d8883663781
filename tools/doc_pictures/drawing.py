"""Figures with letters that can be read in a narrow help page. What the nodes themselves draw is in trainer/pictures/."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ...trainer.pictures import figures
from ...trainer.types import Advantages, StepCredit
from .sources import CAPTIONS

COLORS = (*figures.COLORS[:4], figures.COLORS[5])  # without the light blue


def rendered_with_legend(figure: Figure, axis: Axes) -> np.ndarray:
    """The figure as a picture; its one axis gets a legend, small numbers and a grid behind what is drawn."""
    axis.legend(fontsize=8)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25)
    axis.set_axisbelow(True)
    return figures.rendered(figure)


def step_labels(sigmas: Sequence[float], steps: Iterable[int]) -> list[str]:
    """For the ticks of an axis: each step's number above its noise level."""
    return [f"{step}\nσ {sigmas[step]:.2f}" for step in steps]


def weight_heatmap(credit: StepCredit, title: str) -> np.ndarray:
    """Step weights of the samples of two groups."""
    return _heatmap(credit.weights, credit, title, figures.SEQUENTIAL, (0, credit.weights.max().item()))


def advantage_heatmap(advantages: Advantages, title: str) -> np.ndarray:
    """Effective advantages of the samples of two groups, in each the best sample on top."""
    order = np.lexsort((-advantages.fused.advantage.numpy(), advantages.scores.groups.numpy()))
    field = advantages.step_advantage[order]
    limit = field.abs().max().item()
    return _heatmap(field, advantages.credit, title, figures.DIVERGING, (-limit, limit))


def _heatmap(field: Tensor, credit: StepCredit, title: str, colors: str, limits: tuple[float, float]) -> np.ndarray:
    """Samples of two groups by trained steps."""
    figure = figures.new_figure(5.6, 4.0)
    axis = figure.subplots()
    image = axis.imshow(field, cmap=colors, aspect="auto", vmin=limits[0], vmax=limits[1], interpolation="nearest")
    axis.axhline(len(field) / 2 - 0.5, color="black", linewidth=1.5)
    middles = [len(field) / 4 - 0.5, 3 * len(field) / 4 - 0.5]
    axis.set_yticks(middles, ["\n".join(textwrap.wrap(caption, 14)) for caption in CAPTIONS[:2]], fontsize=10)
    axis.set_xticks(range(len(credit.trained)), step_labels(credit.sigmas, credit.trained), fontsize=10)
    axis.set_xlabel("denoising step and its noise level", fontsize=10)
    axis.set_title(title, fontsize=11)
    figure.colorbar(image, ax=axis, fraction=0.05)
    return figures.rendered(figure)
