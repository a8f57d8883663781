"""A comparison as one figure: curves, differences to the baseline, trade-offs, time to its score, every reward, diversity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
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
_MANY = 12  # names, from which on they are written smaller
_NAME_GAP = 0.052  # of an axis' height, between two names
_DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)))  # after all colours were used once


def picture(rows: Sequence[Row], facts: Facts) -> np.ndarray:
    """Three rows: the score over what was used, and final differences to the baseline; the score against the judge and against
    the divergence from the untrained model, and the time to the baseline's score; every reward, and diversity."""
    styles = _styles(rows, facts.baseline)
    rewards = list(rows[0].rewards)
    columns, more = len(rewards) + 1, 0.1 * len(rows)
    heights = (4.2 + more, 3.6 + more, 3.0)
    canvas = figures.new_figure(max(13, 2.9 * columns), sum(heights))
    top, middle, bottom = canvas.subfigures(3, 1, squeeze=False, height_ratios=heights)[:, 0]
    left, right = top.subplots(1, 2, width_ratios=(1.9, 1))
    _curves(left, rows, [row.curve for row in rows], styles, facts.unit)
    _names_beside(left, [(row.name, row.used[facts.unit][-1], row.curve[-1].mean) for row in rows], styles)
    target = next(row for row in rows if row.name == facts.baseline).final.mean
    left.axhline(target, color="#555555", linewidth=0.8, linestyle=":", zorder=1)
    over = "one seed each" if facts.screening else "bands are 95 % over seeds"
    left.set_title(
        f"Score: mean standardised rise of {' and '.join(facts.score) or 'the trained rewards'}; {over}", fontsize=10
    )
    _differences(right, rows, styles, facts)
    judged, diverging, times = middle.subplots(1, 3, width_ratios=(1.3, 1.3, 1))
    _pareto(judged, rows, styles, facts)
    _score_over_kl(diverging, rows, styles)
    _times(times, rows, styles, facts)
    panels = bottom.subplots(1, columns)
    for axis, reward in zip(panels, rewards, strict=False):
        _curves(axis, rows, [row.rewards[reward] for row in rows], styles, facts.unit)
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


def _marker(style: Mapping) -> str:
    return "o" if style["linestyle"] == "-" else "s"


def _curves(axis, rows: Sequence[Row], curves: Sequence[Sequence[Interval]], styles, unit: str) -> None:
    for row, curve in zip(rows, curves, strict=True):
        low, high = [point.low for point in curve], [point.high for point in curve]
        style = styles[row.name]
        opacity = _FAINT if len(rows) > _FEW else 2 * _FAINT
        axis.fill_between(row.used[unit], low, high, color=style["color"], alpha=opacity, linewidth=0)
        axis.plot(row.used[unit], [point.mean for point in curve], linewidth=1.7, **style)
    _dress(axis)
    axis.set_xlabel(unit, fontsize=8)
    axis.margins(x=0.01)


def _dress(axis) -> None:
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _names_beside(axis, points: Sequence[tuple[str, float, float]], styles: Mapping[str, dict]) -> None:
    """The name of each (name, x, y) to the right of all, moved apart from the others; a line leads to its point."""
    low, high = axis.get_ylim()
    end = max(axis.get_xlim()[1], *(x for _, x, _ in points))
    order = sorted((point for point in points if np.isfinite(point[1:]).all()), key=lambda point: point[2])
    gap = (high - low) * min(_NAME_GAP, 1 / max(1, len(order)))
    heights = [y for _, _, y in order]
    for _ in range(200):
        heights = [min(max(height, low), high) for height in heights]
        for i in range(len(heights) - 1):
            if (lacking := gap - (heights[i + 1] - heights[i])) > 1e-12:
                heights[i], heights[i + 1] = heights[i] - lacking / 2, heights[i + 1] + lacking / 2
    for (name, x, y), height in zip(order, heights, strict=True):
        axis.annotate(
            name,
            (x, y),
            (end + 0.04 * (end - axis.get_xlim()[0]), height),
            fontsize=9 if len(order) <= _MANY else 7.5,
            va="center",
            color=styles[name]["color"],
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "relpos": (0, 0.5),  # to the name's beginning, not through it
                "color": styles[name]["color"],
                "linewidth": 0.6,
                "shrinkA": 0,
                "shrinkB": 2,
            },
        )


def _pareto(axis, rows: Sequence[Row], styles: Mapping[str, dict], facts: Facts) -> None:
    """One point a workflow, with its intervals; a ring around those that no other one dominates."""
    if not facts.judge:
        axis.set_axis_off()
        return
    for row in rows:
        score, judged = row.final, row.held_out[facts.judge]
        color = styles[row.name]["color"]
        axis.plot([score.low, score.high], [judged.mean] * 2, color=color, linewidth=1, alpha=0.6)
        axis.plot([score.mean] * 2, [judged.low, judged.high], color=color, linewidth=1, alpha=0.6)
        marker = _marker(styles[row.name])
        axis.plot(
            score.mean, judged.mean, marker=marker, markersize=6, color=color, markeredgecolor="white", linestyle=""
        )
        if row.undominated:
            axis.plot(score.mean, judged.mean, marker="o", markersize=12, color=color, fillstyle="none", linestyle="")
    axis.axhline(facts.untrained_held_out[facts.judge], color="#555555", linewidth=0.8, linestyle=":", zorder=1)
    _dress(axis)
    _names_beside(axis, [(row.name, row.final.mean, row.held_out[facts.judge].mean) for row in rows], styles)
    axis.set_xlabel("final score", fontsize=8)
    axis.set_ylabel(f"{facts.judge} (held out)", fontsize=8)
    axis.set_title("Score and judge; ring: dominated by none; dotted: before training", fontsize=9)


def _score_over_kl(axis, rows: Sequence[Row], styles: Mapping[str, dict]) -> None:
    for row in rows:
        axis.plot(
            [point.mean for point in row.kl], [point.mean for point in row.curve], linewidth=1.5, **styles[row.name]
        )
    _dress(axis)
    _names_beside(axis, [(row.name, row.kl[-1].mean, row.curve[-1].mean) for row in rows], styles)
    axis.set_xlabel("KL to the untrained model: mean of ‖v − v_ref‖²", fontsize=8)
    axis.set_ylabel("score", fontsize=8)
    axis.set_title("Score for how far the model has moved", fontsize=9)


def _times(axis, rows: Sequence[Row], styles: Mapping[str, dict], facts: Facts) -> None:
    """The mean with its interval, and a stroke a seed; what is never reached lies at the right edge."""
    unit = facts.unit
    whole = next(row for row in rows if row.name == facts.baseline).used[unit][-1]
    edge = 1.25 * max(row.used[unit][-1] for row in rows) / whole

    def shown(amount: float) -> float:
        return min(amount / whole, edge)

    for height, row in enumerate(rows):
        seeds = [shown(amount) for amount in row.reached_by_seed[unit]]
        axis.plot(seeds, [height] * len(seeds), linestyle="", marker="|", markersize=8, color=styles[row.name]["color"])
    times = [row.reached[unit] for row in rows]
    times = [replace(own, mean=shown(own.mean), low=shown(own.low), high=shown(own.high)) for own in times]
    _dots(axis, rows, times, styles, names=True)
    axis.set_xlim(0, 1.03 * edge)
    axis.axvline(1, color="#555555", linewidth=0.8, linestyle=":", zorder=1)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}" if value < edge else "never")
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1, edge])
    axis.tick_params(axis="y", labelsize=7)
    axis.set_title(f"{unit} to {facts.baseline}'s score; strokes: seeds", fontsize=8)


def _dots(axis, rows: Sequence[Row], intervals: Sequence[Interval], styles: Mapping[str, dict], names: bool) -> None:
    for height, (row, interval) in enumerate(zip(rows, intervals, strict=True)):
        color, marker = styles[row.name]["color"], _marker(styles[row.name])
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


def _differences(axis, rows: Sequence[Row], styles: Mapping[str, dict], facts: Facts) -> None:
    others = [(row, row.difference) for row in rows if row.difference is not None]
    _dots(axis, [row for row, _ in others], [difference for _, difference in others], styles, names=True)
    axis.axvline(0, color="#555555", linewidth=0.8, linestyle=":", zorder=1)
    paired = "" if facts.screening else ", paired by seed, 95 %"
    axis.set_title(f"Final score minus {facts.baseline}{paired}", fontsize=10)


def _diversity(axis, rows: Sequence[Row], styles: Mapping[str, dict], before: float) -> None:
    _dots(axis, rows, [row.diversity for row in rows], styles, names=True)
    axis.tick_params(axis="y", labelsize=7)
    axis.axvline(before, color="#555555", linewidth=0.8, linestyle=":", zorder=1)
    axis.set_title("diversity (dotted: before training)", fontsize=9)
