"""How every figure is set up and drawn.

Colour scales are readable without red-green vision: viridis where a value has a size, blue-white-orange where it has a sign.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...host import extras
from ...host.places import place
from .. import keys

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SEQUENTIAL, DIVERGING = "viridis", "PuOr_r"
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")  # Okabe-Ito
_DPI = 110
MOST_BARS = 60  # beside each other in a panel; more evaluations are a line in a band


def _of_matplotlib(function: str) -> Path | None:
    if not extras.installed("matplotlib"):
        return None
    import matplotlib

    return Path(getattr(matplotlib, function)())


place("fonts", "matplotlib's list of fonts, which it makes when it draws for the first time", ours=False)(
    lambda _: _of_matplotlib("get_cachedir")
)
place("figures", "matplotlib's own settings, a folder that it makes and leaves empty", ours=False)(
    lambda _: _of_matplotlib("get_configdir")
)


def new_figure(width: float, height: float) -> Figure:
    """Raises MissingPackage where there is no matplotlib."""
    extras.check("A figure of curves or heatmaps", "plots", "matplotlib")
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=_DPI, layout="constrained")


def rendered(figure: Figure) -> np.ndarray:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3].copy()


def svg(draw: Callable[[], Figure]) -> str:
    """A figure for a page: without a background, and black as the page's own ink, so that it is readable on light and dark."""
    extras.check("A figure of curves or heatmaps", "plots", "matplotlib")
    import matplotlib

    # Text as text, in the page's fonts; names as they are, whatever $ signs they have.
    with matplotlib.rc_context({"svg.fonttype": "none", "text.parse_math": False, "legend.frameon": False}):
        figure = draw()
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    code = re.sub(r"<metadata>.*?</metadata>", "", text.getvalue()[text.getvalue().index("<svg") :], flags=re.DOTALL)
    used = set(re.findall(r"#([\w.]+)", code))
    code = re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", code)
    return re.sub("#000000|#333333", "currentColor", code)


# --- reward curves ----------------------------------------------------------------------------------------------------


def reward_curves(
    history: Sequence[Mapping], evaluations: Sequence[Mapping], changed: Sequence[int] = ()
) -> np.ndarray:
    """One panel a reward: each iteration's mean, a running mean, and the fixed evaluation as points."""
    return rendered(curves_figure(history, evaluations, panels(history, evaluations), changed))


@dataclass(frozen=True)
class Panel:
    """One reward among the curves; `key` is that of its means in the metrics."""

    key: str
    name: str
    label: str
    color: str


def panels(history: Sequence[Mapping], evaluations: Sequence[Mapping]) -> list[Panel]:
    """One a reward, held-out ones last: of those that scored samples, and of those that only judge evaluations."""
    names = list({name: None for row in history for name in row})
    kinds = {name: kind for kind in keys.KINDS for name in keys.rewards(names, kind)}
    for row in evaluations[:1]:
        for name, figures in row["rewards"].items():
            kinds.setdefault(name, keys.HELD_OUT if figures["held_out"] else keys.REWARD)
    return [
        Panel(
            keys.mean(kind, name),
            name,
            name if kind == keys.REWARD else f"{name} (held out)",
            COLORS[number % len(COLORS)],
        )
        for number, (name, kind) in enumerate(kinds.items())
    ]


def curves_figure(
    history: Sequence[Mapping], evaluations: Sequence[Mapping], chosen: Sequence[Panel], changed: Sequence[int] = ()
) -> Figure:
    """Each reward's iteration means, their running mean, and the fixed evaluation as points. A dotted line stands before each
    iteration that was the first with a changed value."""
    columns = min(4, max(1, len(chosen)))
    rows = max(1, math.ceil(len(chosen) / columns))
    figure = new_figure(3.6 * columns, 2.9 * rows + 0.4)
    axes = np.atleast_1d(figure.subplots(rows, columns)).ravel()
    for axis, panel in zip(axes, chosen, strict=False):
        _draw_panel(axis, panel, history, evaluations)
        for number, iteration in enumerate(changed):
            label = None if number else "a value was changed"
            axis.axvline(iteration - 0.5, color="#777777", linestyle=":", linewidth=1, label=label)
    for axis in axes[len(chosen) :]:
        axis.set_axis_off()
    if chosen:
        axes[0].legend(fontsize=7)
    else:
        axes[0].text(0.5, 0.5, "no reward is asked here", ha="center", transform=axes[0].transAxes)
    return figure


def _draw_panel(axis, panel: Panel, history: Sequence[Mapping], evaluations: Sequence[Mapping]) -> None:
    from matplotlib.ticker import MaxNLocator

    x = np.array([row["iteration"] for row in history])
    mean = np.array([row.get(panel.key, np.nan) for row in history], dtype=float)
    axis.plot(x, mean, color=panel.color, alpha=0.3, linewidth=1, label="iteration mean")
    axis.plot(x, running_mean(mean), color=panel.color, linewidth=2, label="running mean")
    points = [(row["iteration"], row["rewards"][panel.name]) for row in evaluations if panel.name in row["rewards"]]
    points = [(x, figures) for x, figures in points if figures["mean"] is not None]
    if points:
        at, means = [x for x, _ in points], np.array([figures["mean"] for _, figures in points])
        errors = np.array([figures["standard_error"] or np.nan for _, figures in points], dtype=float)
        look = {"color": "#333333", "linewidth": 1, "label": "evaluation ± s.e."}
        if len(points) <= MOST_BARS:
            axis.errorbar(at, means, errors, marker="o", markersize=4, capsize=2, **look)
        else:
            axis.plot(at, means, **look)
            axis.fill_between(at, means - errors, means + errors, color=look["color"], alpha=0.25, linewidth=0)
    axis.set_title(panel.label, fontsize=10)
    axis.set_xlabel("iteration", fontsize=8)
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25)


def running_mean(values: np.ndarray) -> np.ndarray:
    window = max(1, len(values) // 10)
    measured, filled = np.isfinite(values), np.nan_to_num(values)
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    total, count = np.append(0, filled.cumsum()), np.append(0, measured.cumsum())
    with np.errstate(invalid="ignore"):  # nothing measured in the window: NaN, which leaves a gap in the line
        return (total[ends] - total[starts]) / (count[ends] - count[starts])
