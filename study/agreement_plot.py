"""The figures of `otca analyze`: what steps gained in reward, over what the proxies say."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..trainer.pictures.figures import COLORS, SEQUENTIAL, new_figure, rendered


def scatter(
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
            axis.set_title("no spread" if math.isnan(r) else f"r = {r:.2f}", fontsize=9)
            axis.tick_params(labelsize=8)
            axis.grid(alpha=0.25)
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


def curves(
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
    columns = min(3, len(shown))
    lines = math.ceil(len(shown) / columns)
    figure = new_figure(3.6 * columns, 0.8 + 2.2 * lines)
    axes = np.atleast_1d(figure.subplots(lines, columns, sharex=True, sharey=True)).ravel()
    for axis, row in zip(axes, shown, strict=False):
        axis.bar(range(gain.shape[1]), _scaled(gain[row]), color="#bbbbbb", label=f"ΔR, {objective}")
        correlations = []
        for (proxy, delta), look in zip(deltas.items(), _looks(len(deltas)), strict=True):
            axis.plot(_scaled(delta[row]), label=f"ΔS, {proxy}", **look)
            correlations.append(f"{correlation(delta[row][None], gain[row][None])[0]:.2f}")
        axis.axhline(0, color="black", linewidth=0.7)
        axis.set_title(f"trajectory {row}: Pearson {', '.join(correlations)}", fontsize=9)
        axis.set_xticks(range(len(labels)), labels, fontsize=7)
        axis.tick_params(axis="y", labelsize=8)
        axis.grid(alpha=0.25, axis="y")
    for axis in axes[len(shown) :]:
        axis.set_axis_off()
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), fontsize=9, frameon=False)
    title = "One trajectory of each of the first groups; every curve divided by its largest"
    figure.suptitle("\n".join(textwrap.wrap(title, 50 * columns)), fontsize=10)
    return rendered(figure)


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
        axis.set_title(title, fontsize=10)
        axis.set_xticks(range(len(labels)), labels, fontsize=8)
        axis.tick_params(axis="y", labelsize=8)
        axis.grid(alpha=0.25)
        axis.legend(fontsize=8)
    return rendered(figure)


def _looks(count: int) -> list[dict]:
    return [
        {"color": COLORS[i % len(COLORS)], "marker": "os^Dv*xP"[i % 8], "markersize": 4, "linewidth": 1.6}
        for i in range(count)
    ]


def _scaled(values: np.ndarray) -> np.ndarray:
    return values / (np.abs(values).max() or 1.0)
