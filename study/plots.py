"""The figures of all studies: `otca analyze`, `otca eval` and `otca compare`."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..trainer.pictures.figures import COLORS, SEQUENTIAL, new_figure, rendered

if TYPE_CHECKING:
    from .comparison import Row
    from .comparison_report import Facts
    from .statistics import Cell, Interval


def _dress(axis, title: str = "", below: str = "", grid: str = "both") -> None:
    """A panel's title, what its x axis is, and a faint grid."""
    axis.set_title(title, fontsize=9)
    axis.set_xlabel(below, fontsize=8)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25, axis=grid)
    axis.spines[["top", "right"]].set_visible(False)


def _panels(count: int, width: float, height: float, **shared: Any):
    """A figure of so many panels, up to three beside each other; a panel has that size."""
    columns = min(3, count)
    rows = math.ceil(count / columns)
    figure = new_figure(width * columns, 0.6 + height * rows)
    axes = np.atleast_1d(figure.subplots(rows, columns, **shared)).ravel()
    for axis in axes[count:]:
        axis.set_axis_off()
    return figure, axes[:count], columns


def _titled(figure, columns: int, title: str) -> np.ndarray:
    figure.suptitle("\n".join(textwrap.wrap(title, 50 * columns)), fontsize=9)
    return rendered(figure)


# --- otca analyze: what steps gained in reward, over what the proxies say ---------------------------------------------


def agreement(
    deltas: Mapping[str, np.ndarray],
    gains: Mapping[str, np.ndarray],
    pooled: Mapping[tuple[str, str], float],
    steps: Sequence[int],
) -> np.ndarray:
    """ΔS against ΔR: a row an objective, a column a proxy, a point a step [N, T'] of a trajectory, coloured by its number."""
    from matplotlib import colormaps
    from matplotlib.colors import BoundaryNorm

    figure = new_figure(1.2 + 3.1 * len(deltas), 0.6 + 2.3 * len(gains))
    axes = figure.subplots(len(gains), len(deltas), sharex="col", sharey="row", squeeze=False)
    norm = BoundaryNorm(np.arange(len(steps) + 1) - 0.5, colormaps[SEQUENTIAL].N)
    numbers = np.broadcast_to(np.arange(len(steps)), next(iter(deltas.values())).shape).ravel()
    for row, (objective, gain) in zip(axes, gains.items(), strict=True):
        low, high = np.nanpercentile(gain, [0.25, 99.75])  # a few far points would press all others together
        margin = 0.08 * (high - low) or 1.0
        for axis, (proxy, delta) in zip(row, deltas.items(), strict=True):
            order = np.random.default_rng(0).permutation(delta.size)  # else the last step covers the others
            look = {"c": numbers[order], "cmap": SEQUENTIAL, "norm": norm, "s": 9, "alpha": 0.6, "linewidths": 0}
            points = axis.scatter(delta.ravel()[order], gain.ravel()[order], **look)
            for line in (axis.axhline, axis.axvline):
                line(0, color="#999999", linewidth=0.7, zorder=0)
            axis.set_ylim(low - margin, high + margin)
            r = pooled[objective, proxy]
            _dress(axis, "no spread" if math.isnan(r) else f"r = {r:.2f}")
        row[0].set_ylabel(f"ΔR, {objective}", fontsize=9)
    for axis, proxy in zip(axes[-1], deltas, strict=True):
        axis.set_xlabel(f"ΔS, {proxy}", fontsize=9)
    bar = figure.colorbar(points, ax=axes, ticks=range(len(steps)), fraction=0.03)
    bar.ax.set_yticklabels([str(step) for step in steps], fontsize=8)
    bar.set_label("denoising step", fontsize=9)
    figure.suptitle(
        "What a step gained in reward over what its proxy says; ΔR in standard deviations, 99.5 % shown", fontsize=10
    )
    return rendered(figure)


def trajectories(
    deltas: Mapping[str, np.ndarray],
    gain: np.ndarray,
    objective: str,
    rows: Sequence[int],
    correlation: Callable[[np.ndarray, np.ndarray], np.ndarray],
    labels: Sequence[str],
    limit: int = 9,
) -> np.ndarray:
    """Single trajectories: ΔR and every proxy's ΔS by step, each divided by its largest, with their correlation."""
    shown = [row for row in rows if np.isfinite(gain[row]).all()][:limit] or rows[:1]
    figure, axes, columns = _panels(len(shown), 3.6, 2.2, sharex=True, sharey=True)
    for axis, row in zip(axes, shown, strict=True):
        axis.bar(range(gain.shape[1]), _scaled(gain[row]), color="#bbbbbb", label=f"ΔR, {objective}")
        correlations = []
        for (proxy, delta), look in zip(deltas.items(), _looks(len(deltas)), strict=True):
            axis.plot(_scaled(delta[row]), label=f"ΔS, {proxy}", **look)
            correlations.append(f"{correlation(delta[row][None], gain[row][None])[0]:.2f}")
        axis.axhline(0, color="black", linewidth=0.7)
        axis.set_xticks(range(len(labels)), labels)
        _dress(axis, f"trajectory {row}: Pearson {', '.join(correlations)}", grid="y")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), fontsize=9, frameon=False)
    return _titled(figure, columns, "One trajectory of each of the first groups; every curve divided by its largest")


def profile(deltas: Mapping[str, np.ndarray], gains: Mapping[str, np.ndarray], labels: Sequence[str]) -> np.ndarray:
    """Mean ΔS of every proxy and mean ΔR of every objective by step, with their spread over trajectories."""
    figure = new_figure(9.5, 3.6)
    axes = figure.subplots(1, 2)
    units = {
        "ΔS by step: mean and standard deviation": deltas,
        "ΔR by step, in standard deviations of the scores": gains,
    }
    for axis, (title, curves) in zip(axes, units.items(), strict=True):
        for number, ((name, values), look) in enumerate(zip(curves.items(), _looks(len(curves)), strict=True)):
            mean, std = np.nanmean(values, 0), np.nanstd(values, 0)
            positions = np.arange(len(mean)) + 0.08 * (number - (len(curves) - 1) / 2)  # bars beside each other
            axis.errorbar(positions, mean, std, capsize=2, label=name, **look)
        axis.axhline(0, color="black", linewidth=0.7)
        axis.set_xticks(range(len(labels)), labels)
        _dress(axis, title)
        axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.1), ncols=3)
    return rendered(figure)


def signal(
    signal: Sequence[Interval], noise: Sequence[float], weights: Mapping[str, Sequence[float]], labels: Sequence[str]
) -> np.ndarray:
    """By step: what a policy gradient has of the exact one, how long it is, and each credit's weights."""
    figure = new_figure(13.5, 4.2)
    axes = figure.subplots(1, 3, width_ratios=(1, 1, 1.6))
    means = np.array([interval.mean for interval in signal])
    bounds = np.array([[interval.mean - interval.low, interval.high - interval.mean] for interval in signal]).T
    axes[0].errorbar(range(len(means)), means, np.nan_to_num(bounds).clip(0), capsize=3, **_looks(1)[0])
    axes[0].axhline(0, color="black", linewidth=0.7)
    axes[1].plot(noise, **_looks(2)[1])
    axes[1].set_ylim(0)
    for (name, own), look in zip(weights.items(), _looks(len(weights)), strict=True):
        axes[2].plot(own, label=name, **look)
    axes[2].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    titles = "Signal: ⟨g, G⟩ / |G| of a step's gradient g", "Noise: √E|g|²", "Mean weights"
    for axis, title in zip(axes, titles, strict=True):
        axis.set_xticks(range(len(labels)), labels)
        _dress(axis, title)
    return rendered(figure)


def _looks(count: int) -> list[dict]:
    """No two of the first 24 look alike: from the ninth curve on they are dashed, and marked otherwise."""
    marks, strokes, colors = "os^Dv*x", ("-", "--", ":"), len(COLORS)
    return [
        {
            "color": COLORS[i % colors],
            "marker": marks[i % 7],
            "linestyle": strokes[i // colors % 3],
            "markersize": 4,
            "linewidth": 1.6,
        }
        for i in range(count)
    ]


def _scaled(values: np.ndarray) -> np.ndarray:
    return values / (np.abs(values).max() or 1.0)


# --- otca eval: means, and differences to the base -------------------------------------------------------------------


def evaluation(rewards: Mapping[str, Mapping[str, Cell]]) -> np.ndarray:
    """One panel a reward, a line a method: its mean, thin the mean's own interval, thick that of the difference to the base.

    The first method is the base, and a dashed line stands at its mean.
    """
    methods = max(map(len, rewards.values()))
    figure, axes, columns = _panels(len(rewards), 4.2, 0.8 + 0.32 * methods)
    for number, (axis, (reward, cells)) in enumerate(zip(axes, rewards.items(), strict=True)):
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
        _dress(axis, reward, grid="x")
    title = "Means with 95 % bootstrap intervals: thin of the mean, thick of the difference to the base"
    return _titled(figure, columns, title)


# --- otca compare: curves, differences to the baseline, trade-offs, time to its score, every reward, diversity -------

_BASELINE = "#000000"
_OTHERS = COLORS[:6]  # without the pale yellow
_DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)))  # after all colours were used once
_FAINT, _FEW = 0.08, 3  # opacity of the bands of more workflows than a few, which cover each other
_DOTTED = {"color": "#555555", "linewidth": 0.8, "linestyle": ":", "zorder": 1}
_STEM = {"linestyle": "", "markersize": 6, "markeredgecolor": "white"}


def comparison(rows: Sequence[Row], facts: Facts) -> np.ndarray:
    """Three rows: the score over what was used, and final differences to the baseline; the score against the judge and against
    the divergence from the untrained model, and the time to the baseline's score; every reward, and diversity."""
    others = [row.name for row in rows if row.name != facts.baseline]
    styles = {  # a colour and dashes for each
        name: {"color": _OTHERS[i % len(_OTHERS)], "linestyle": _DASHES[i // len(_OTHERS) % len(_DASHES)]}
        for i, name in enumerate(others)
    } | {facts.baseline: {"color": _BASELINE, "linestyle": "-"}}
    rewards = list(rows[0].rewards)
    columns, more = len(rewards) + 1, 0.1 * len(rows)
    heights = (4.2 + more, 3.6 + more, 3.0)
    canvas = new_figure(max(13, 2.9 * columns), sum(heights) + 0.4)
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
    return rendered(canvas)


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
    times = [
        replace(own, mean=shown(own.mean), low=shown(own.low), high=shown(own.high))
        for own in (row.reached[facts.unit] for row in rows)
    ]
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
