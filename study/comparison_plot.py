"""A comparison as one figure: curves with their names beside them, differences to the baseline, every reward, diversity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..trainer.pictures import figures

if TYPE_CHECKING:
    from .comparison import Row
    from .comparison_report import Facts
    from .statistics import Interval

_BASELINE = "#000000"
_OTHERS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")  # Okabe and Ito's, but for the pale yellow
_FAINT, _FEW = 0.08, 3  # opacity of the bands of more workflows than a few, which cover each other
_DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)))  # after all colours were used once


def picture(rows: Sequence[Row], facts: Facts) -> np.ndarray:
    """Above: the score over samples with its bands, and final differences to the baseline. Below: every reward, and diversity."""
    styles = _styles(rows, facts.baseline)
    rewards = list(rows[0].rewards)
    columns = len(rewards) + 1
    canvas = figures.new_figure(max(11, 2.9 * columns), 4.2 + 0.1 * len(rows) + 3.0)
    top, bottom = canvas.subfigures(2, 1, squeeze=False, height_ratios=(4.2 + 0.1 * len(rows), 3.0))[:, 0]
    left, right = top.subplots(1, 2, width_ratios=(1.9, 1))
    _curves(left, rows, [row.curve for row in rows], styles)
    _names_at_ends(left, rows, styles)
    target = next(row for row in rows if row.name == facts.baseline).final.mean
    left.axhline(target, color="#555555", linewidth=0.8, linestyle=":", zorder=1)
    left.set_title("Score: mean standardised rise of the trained rewards; bands are 95 % over seeds", fontsize=10)
    _differences(right, rows, styles, facts.baseline)
    panels = bottom.subplots(1, columns)
    for axis, reward in zip(panels, rewards, strict=False):
        _curves(axis, rows, [row.rewards[reward] for row in rows], styles)
        axis.set_title(f"{reward}{' (held out)' if reward in rows[0].held_out else ''}", fontsize=9)
    _diversity(panels[-1], rows, styles, facts.untrained_diversity)
    return figures.rendered(canvas)


def _styles(rows: Sequence[Row], baseline: str) -> dict[str, dict]:
    """A colour and dashes for each."""
    others = [row.name for row in rows if row.name != baseline]
    styles = {
        name: {"color": _OTHERS[i % len(_OTHERS)], "linestyle": _DASHES[i // len(_OTHERS) % len(_DASHES)]}
        for i, name in enumerate(others)
    }
    return {**styles, baseline: {"color": _BASELINE, "linestyle": "-"}}


def _curves(axis, rows: Sequence[Row], curves: Sequence[Sequence[Interval]], styles: Mapping[str, dict]) -> None:
    for row, curve in zip(rows, curves, strict=True):
        low, high = [point.low for point in curve], [point.high for point in curve]
        style = styles[row.name]
        opacity = _FAINT if len(rows) > _FEW else 2 * _FAINT
        axis.fill_between(row.samples, low, high, color=style["color"], alpha=opacity, linewidth=0)
        axis.plot(row.samples, [point.mean for point in curve], linewidth=1.7, **style)
    axis.set_xlabel("samples", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.margins(x=0.01)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _names_at_ends(axis, rows: Sequence[Row], styles: Mapping[str, dict]) -> None:
    """Each curve's name beside its end, moved apart where they would cover each other."""
    low, high = axis.get_ylim()
    gap = (high - low) * 0.052
    order = sorted(rows, key=lambda row: row.curve[-1].mean)
    heights = [row.curve[-1].mean for row in order]
    for _ in range(200):
        for i in range(len(heights) - 1):
            if (lacking := gap - (heights[i + 1] - heights[i])) > 1e-12:
                heights[i], heights[i + 1] = heights[i] - lacking / 2, heights[i + 1] + lacking / 2
    end = rows[0].samples[-1]
    for row, height in zip(order, heights, strict=True):
        axis.annotate(
            row.name,
            (end, row.curve[-1].mean),
            (end * 1.05, height),
            fontsize=9,
            va="center",
            color=styles[row.name]["color"],
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "relpos": (0, 0.5),  # to the name's beginning, not through it
                "color": styles[row.name]["color"],
                "linewidth": 0.6,
                "shrinkA": 0,
                "shrinkB": 2,
            },
        )


def _dots(axis, rows: Sequence[Row], intervals: Sequence[Interval], styles: Mapping[str, dict], names: bool) -> None:
    for height, (row, interval) in enumerate(zip(rows, intervals, strict=True)):
        color, marker = styles[row.name]["color"], "o" if styles[row.name]["linestyle"] == "-" else "s"
        axis.plot(
            [interval.low, interval.high],
            [height, height],
            color=color,
            linewidth=2.2,
            alpha=0.75,
            solid_capstyle="butt",
        )
        axis.plot(
            interval.mean, height, color=color, marker=marker, markersize=6, markeredgecolor="white", linestyle=""
        )
    axis.set_yticks(range(len(rows)), [row.name for row in rows] if names else [], fontsize=9)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.tick_params(axis="x", labelsize=8)
    axis.tick_params(axis="y", length=0)
    axis.grid(alpha=0.25, axis="x")
    axis.spines[["top", "right", "left"]].set_visible(False)


def _differences(axis, rows: Sequence[Row], styles: Mapping[str, dict], baseline: str) -> None:
    others = [(row, row.difference) for row in rows if row.difference is not None]
    _dots(axis, [row for row, _ in others], [difference for _, difference in others], styles, names=True)
    axis.axvline(0, color="#555555", linewidth=0.8, linestyle=":", zorder=1)
    axis.set_title(f"Final score minus {baseline}, paired by seed, 95 %", fontsize=10)


def _diversity(axis, rows: Sequence[Row], styles: Mapping[str, dict], before: float) -> None:
    _dots(axis, rows, [row.diversity for row in rows], styles, names=True)
    axis.tick_params(axis="y", labelsize=7)
    axis.axvline(before, color="#555555", linewidth=0.8, linestyle=":", zorder=1)
    axis.set_title("diversity (dotted: before training)", fontsize=9)
