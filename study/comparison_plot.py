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
_DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)))  # after all colours were used once
_FAINT, _FEW = 0.08, 3  # opacity of the bands of more workflows than a few, which cover each other
_DOTTED = {"color": "#555555", "linewidth": 0.8, "linestyle": ":", "zorder": 1}
_STEM = {"linestyle": "", "markersize": 6, "markeredgecolor": "white"}


def picture(rows: Sequence[Row], facts: Facts) -> np.ndarray:
    """Three rows: the score over what was used, and final differences to the baseline; the score against the judge and against
    the divergence from the untrained model, and the time to the baseline's score; every reward, and diversity."""
    styles = _styles(rows, facts.baseline)
    rewards = list(rows[0].rewards)
    columns, more = len(rewards) + 1, 0.1 * len(rows)
    heights = (4.2 + more, 3.6 + more, 3.0)
    canvas = figures.new_figure(max(13, 2.9 * columns), sum(heights) + 0.4)
    top, middle, bottom = canvas.subfigures(3, 1, squeeze=False, height_ratios=heights)[:, 0]
    left, right = top.subplots(1, 2, width_ratios=(1.9, 1))
    _curves(left, rows, [row.curve for row in rows], styles, facts.unit)
    base = next(row for row in rows if row.name == facts.baseline)
    left.axhline(base.final.mean, **_DOTTED)
    over = "one seed each" if facts.screening else "bands are 95 % over seeds"
    scored = " and ".join(facts.score) or "the trained rewards"
    left.set_title(f"Score: mean standardised rise of {scored}; {over}", fontsize=10)
    others = [row for row in rows if row.difference is not None]
    _dots(right, others, [row.difference for row in others], styles)
    right.axvline(0, **_DOTTED)
    paired = "" if facts.screening else ", paired by seed, 95 %"
    right.set_title(f"Final score minus {facts.baseline}{paired}", fontsize=10)

    judged, diverging, times = middle.subplots(1, 3, width_ratios=(1.3, 1.3, 1))
    _pareto(judged, rows, styles, facts)
    for row in rows:
        diverging.plot([at.mean for at in row.kl], [at.mean for at in row.curve], linewidth=1.5, **styles[row.name])
    _dress(diverging, "Score for how far the model has moved", "KL to the untrained model: mean of ‖v − v_ref‖²")
    diverging.set_ylabel("score", fontsize=8)
    _times(times, rows, styles, facts, base.used[facts.unit][-1])

    panels = bottom.subplots(1, columns)
    for axis, reward in zip(panels, rewards, strict=False):
        _curves(axis, rows, [row.rewards[reward] for row in rows], styles, facts.unit)
        axis.set_title(f"{reward}{' (held out)' if reward in rows[0].held_out else ''}", fontsize=9)
    _dots(panels[-1], rows, [row.diversity for row in rows], styles)
    panels[-1].axvline(facts.untrained_diversity, **_DOTTED)
    panels[-1].set_title("diversity (dotted: before training)", fontsize=9)
    handles, names = left.get_legend_handles_labels()
    canvas.legend(handles, names, loc="outside lower center", ncols=min(len(names), 8), fontsize=8, frameon=False)
    return figures.rendered(canvas)


def _styles(rows: Sequence[Row], baseline: str) -> dict[str, dict]:
    """A colour and dashes for each."""
    others = [row.name for row in rows if row.name != baseline]
    styles = {
        name: {"color": _OTHERS[i % len(_OTHERS)], "linestyle": _DASHES[i // len(_OTHERS) % len(_DASHES)]}
        for i, name in enumerate(others)
    }
    return {**styles, baseline: {"color": _BASELINE, "linestyle": "-"}}


def _mark(style: Mapping) -> dict:
    return {"color": style["color"], "marker": "o" if style["linestyle"] == "-" else "s", **_STEM}


def _curves(axis, rows: Sequence[Row], curves: Sequence[Sequence[Interval]], styles, unit: str) -> None:
    for row, curve in zip(rows, curves, strict=True):
        low, high = [point.low for point in curve], [point.high for point in curve]
        opacity = _FAINT if len(rows) > _FEW else 2 * _FAINT
        axis.fill_between(row.used[unit], low, high, color=styles[row.name]["color"], alpha=opacity, linewidth=0)
        axis.plot(row.used[unit], [at.mean for at in curve], linewidth=1.7, label=row.name, **styles[row.name])
    _dress(axis, "", unit)
    axis.margins(x=0.01)


def _dress(axis, title: str, below: str) -> None:
    axis.set_title(title, fontsize=9)
    axis.set_xlabel(below, fontsize=8)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _pareto(axis, rows: Sequence[Row], styles: Mapping[str, dict], facts: Facts) -> None:
    """One point a workflow, with its intervals; a ring around those that no other one dominates."""
    if not facts.judge:
        axis.set_axis_off()
        return
    for row in rows:
        score, judged, mark = row.final, row.held_out[facts.judge], _mark(styles[row.name])
        line = {"color": mark["color"], "linewidth": 1, "alpha": 0.6}
        axis.plot([score.low, score.high], [judged.mean] * 2, **line)
        axis.plot([score.mean] * 2, [judged.low, judged.high], **line)
        axis.plot(score.mean, judged.mean, **mark)
        if row.undominated:
            ring = {"marker": "o", "markersize": 12, "fillstyle": "none", "markeredgecolor": mark["color"]}
            axis.plot(score.mean, judged.mean, **{**mark, **ring})
    axis.axhline(facts.untrained_held_out[facts.judge], **_DOTTED)
    _dress(axis, "Score and judge; ring: dominated by none; dotted: before training", "final score")
    axis.set_ylabel(f"{facts.judge} (held out)", fontsize=8)


def _times(axis, rows: Sequence[Row], styles: Mapping[str, dict], facts: Facts, whole: float) -> None:
    """The mean with its interval, and a stroke a seed; what is never reached lies at the right edge."""
    edge = 1.25 * max(row.used[facts.unit][-1] for row in rows) / whole

    def shown(amount: float) -> float:
        return min(amount / whole, edge)

    for height, row in enumerate(rows):
        seeds = [shown(amount) for amount in row.reached_by_seed[facts.unit]]
        axis.plot(seeds, [height] * len(seeds), linestyle="", marker="|", markersize=8, color=styles[row.name]["color"])
    times = [row.reached[facts.unit] for row in rows]
    times = [replace(own, mean=shown(own.mean), low=shown(own.low), high=shown(own.high)) for own in times]
    _dots(axis, rows, times, styles)
    axis.set_xlim(0, 1.03 * edge)
    axis.axvline(1, **_DOTTED)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}" if value < edge else "never")
    axis.set_xticks([0, 0.25, 0.5, 0.75, 1, edge])
    axis.set_title(f"{facts.unit} to {facts.baseline}'s score; strokes: seeds", fontsize=8)


def _dots(axis, rows: Sequence[Row], intervals: Sequence[Interval | None], styles: Mapping[str, dict]) -> None:
    for height, (row, own) in enumerate(zip(rows, intervals, strict=True)):
        if own is not None:
            bar = {"linewidth": 2.2, "alpha": 0.75, "solid_capstyle": "butt", "color": styles[row.name]["color"]}
            axis.plot([own.low, own.high], [height, height], **bar)
            axis.plot(own.mean, height, **_mark(styles[row.name]))
    axis.set_yticks(range(len(rows)), [row.name for row in rows])
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.tick_params(axis="x", labelsize=8)
    axis.tick_params(axis="y", labelsize=8, length=0)
    axis.grid(alpha=0.25, axis="x")
    axis.spines[["top", "right", "left"]].set_visible(False)
