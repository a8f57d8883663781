"""Heatmaps, curves and sample grids as pictures [H, W, 3] uint8.

Colour scales are readable without red-green vision: viridis where a value has a size, blue-white-orange where it has a sign.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from ...host.files import write_bytes
from .. import keys
from .media import mp4

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from ...study.evaluate import Cell
    from ..types import Advantages, Scores, StepCredit

_SEQUENTIAL, _DIVERGING = "viridis", "PuOr_r"
_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#000000")  # Okabe-Ito
_DPI = 110
FRAMES_PER_SECOND = 16  # of videos; that of Wan


def weight_heatmap(credit: StepCredit, groups: Tensor, prompts: Sequence[str]) -> np.ndarray:
    """Step weights w of every sample: rows are samples by group, columns the trained steps with their σ."""
    weights = credit.weights.cpu().numpy()
    order = np.argsort(groups.numpy(), kind="stable")
    title = f"Step weights w ({credit.method}): where each sample's credit goes"
    return _heatmap(
        weights[order], credit, groups.numpy()[order], prompts, title, "weight w", _SEQUENTIAL, (0, weights.max()), 1.0
    )


def advantage_heatmap(advantages: Advantages) -> np.ndarray:
    """Effective advantage Ã of every sample: within a group the best sample is on top."""
    effective, groups = advantages.step_advantage.cpu().numpy(), advantages.scores.groups.numpy()
    order = np.lexsort((-advantages.fused.advantage.numpy(), groups))
    limit = max(abs(effective).max(), 1e-6)
    title = "Effective advantage Ã: orange steps are reinforced, purple ones discouraged; best sample on top"
    prompts, limits = advantages.scores.prompts, (-limit, limit)
    return _heatmap(effective[order], advantages.credit, groups[order], prompts, title, "Ã", _DIVERGING, limits, 0.0)


def lit(images: Tensor, place: Tensor) -> np.ndarray:
    """Pictures, or a video's middle frames, side by side with themselves lit by a map over their latent [B, (F,) h, w]."""
    pictures = stills(images)
    maps = place[:, place.shape[1] // 2] if place.ndim == 4 else place
    size = pictures.shape[1:3]
    maps = torch.nn.functional.interpolate(maps[:, None], size, mode="bicubic", antialias=True)[:, 0]
    light = (0.15 + 0.85 * maps / maps.flatten(1).amax(1).view(-1, 1, 1)).clamp(0, 1)
    both = torch.cat([pictures, pictures * light[..., None]], 2)
    return sample_grid(both, [""] * len(both), columns=4, scale=max(1, 240 // both.shape[2]))


def reward_table(scores: Scores, images: Tensor, limit: int = 48) -> np.ndarray:
    """Samples x rewards: thumbnails and raw scores, coloured by how far each is from its group's mean.

    The title says how the rewards correlate, so that a conflict is seen before training.
    """
    from ..advantages import standing

    names = [*scores.names, *(f"{name}\n(held out)" for name in scores.held_out_names)]
    values = torch.cat([scores.values, scores.held_out], 1)
    standings = standing(scores)
    shown = min(len(values), limit)
    figure = new_figure(2.4 + 1.2 * len(names), 1.2 + 0.3 * shown)
    thumbnails, table = figure.subplots(1, 2, width_ratios=(0.3, 1.2 * len(names)), sharey=True)
    height, width = images.shape[1:3]
    strip = images[:shown].reshape(shown * height, width, 3).numpy()
    thumbnails.imshow(strip.clip(0, 1), aspect="auto", interpolation="nearest", extent=(0, 1, shown - 0.5, -0.5))
    thumbnails.set_axis_off()
    table.imshow(standings[:shown].numpy(), cmap=_DIVERGING, aspect="auto", vmin=-3, vmax=3)
    for row, column in np.ndindex(shown, len(names)):
        ink = "white" if abs(standings[row, column]) > 1.8 else "black"
        table.text(column, row, _score(values[row, column].item()), ha="center", va="center", fontsize=8, color=ink)
    for bound in np.flatnonzero(np.diff(scores.groups[:shown].numpy())):
        table.axhline(bound + 0.5, color="black", linewidth=1.2)
    table.set_xticks(range(len(names)), names, fontsize=9)
    table.xaxis.tick_top()
    table.tick_params(left=False)
    heading = f"Scores of {shown} of {len(values)} samples: orange is above the group's mean, purple below"
    figure.suptitle("\n".join([heading, *_correlations(scores)]), fontsize=9)
    return rendered(figure)


def _score(value: float) -> str:
    from ..rewards.base import LEFT_OUT

    return "–" if value == LEFT_OUT else f"{value:.3g}"


def reward_curves(
    history: Sequence[Mapping], evaluations: Sequence[Mapping], changed: Sequence[int] = ()
) -> np.ndarray:
    """One panel a reward: each iteration's mean, a running mean, and the fixed evaluation as points."""
    return rendered(curves_figure(history, evaluations, panels(history), changed))


@dataclass(frozen=True)
class Panel:
    """A reward's place among the curves; `key` is that of its means."""

    key: str
    name: str
    label: str
    color: str


def panels(history: Sequence[Mapping]) -> list[Panel]:
    """One a reward, held-out ones last."""
    kinds = [(name, kind) for kind in keys.KINDS for name in keys.rewards(_names(history), kind)]
    return [
        Panel(
            keys.mean(kind, name),
            name,
            name if kind == keys.REWARD else f"{name} (held out)",
            _COLORS[number % len(_COLORS)],
        )
        for number, (name, kind) in enumerate(kinds)
    ]


def curves_figure(
    history: Sequence[Mapping],
    evaluations: Sequence[Mapping],
    chosen: Sequence[Panel],
    changed: Sequence[int] = (),
) -> Figure:
    """Each reward's iteration means, their running mean, and the fixed evaluation as points. A dotted line stands before each
    iteration that was the first with a changed value."""
    columns = min(4, max(1, len(chosen)))
    rows = math.ceil(len(chosen) / columns)
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
    return figure


def _draw_panel(axis, panel: Panel, history: Sequence[Mapping], evaluations: Sequence[Mapping]) -> None:
    from matplotlib.ticker import MaxNLocator

    x = np.array([row["iteration"] for row in history])
    mean = np.array([row.get(panel.key, np.nan) for row in history], dtype=float)
    axis.plot(x, mean, color=panel.color, alpha=0.3, linewidth=1, label="iteration mean")
    axis.plot(x, _running_mean(mean), color=panel.color, linewidth=2, label="running mean")
    points = [(row["iteration"], row["rewards"][panel.name]) for row in evaluations if panel.name in row["rewards"]]
    points = [(x, figures) for x, figures in points if figures["mean"] is not None]
    if points:
        axis.errorbar(
            [p[0] for p in points],
            [p[1]["mean"] for p in points],
            [p[1]["standard_error"] for p in points],
            color="#333333",
            marker="o",
            markersize=4,
            linewidth=1,
            capsize=2,
            label="evaluation ± s.e.",
        )
    axis.set_title(panel.label, fontsize=10)
    axis.set_xlabel("iteration", fontsize=8)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25)


def comparison(rewards: Mapping[str, Mapping[str, Cell]]) -> np.ndarray:
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
        for place, (own, color) in enumerate(zip(cells.values(), _COLORS * methods, strict=False)):
            axis.plot([own.mean.low, own.mean.high], [place, place], color=color, alpha=0.45, linewidth=1.2, marker="|")
            if own.difference is not None:
                ends = base + own.difference.low, base + own.difference.high
                axis.plot(ends, [place, place], color=color, linewidth=4.5, alpha=0.8, solid_capstyle="butt")
            axis.plot(own.mean.mean, place, color=color, marker="o", markersize=6, markeredgecolor="white")
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


def agreement_scatter(
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
    norm = BoundaryNorm(np.arange(len(steps) + 1) - 0.5, colormaps[_SEQUENTIAL].N)
    numbers = np.broadcast_to(np.arange(len(steps)), next(iter(deltas.values())).shape).ravel()
    for row, (objective, gain) in zip(axes, gains.items(), strict=True):
        low, high = np.nanpercentile(gain, [0.25, 99.75])  # a few far points would press all others together
        margin = 0.08 * (high - low) or 1.0
        for axis, (proxy, delta) in zip(row, deltas.items(), strict=True):
            order = np.random.default_rng(0).permutation(delta.size)  # else the last step covers the others
            points = axis.scatter(
                delta.ravel()[order],
                gain.ravel()[order],
                c=numbers[order],
                cmap=_SEQUENTIAL,
                norm=norm,
                s=9,
                alpha=0.6,
                linewidths=0,
            )
            axis.axhline(0, color="#999999", linewidth=0.7, zorder=0)
            axis.axvline(0, color="#999999", linewidth=0.7, zorder=0)
            axis.set_ylim(low - margin, high + margin)
            r = pooled[objective, proxy]
            axis.set_title("no spread" if math.isnan(r) else f"r = {r:.2f}", fontsize=9)
            axis.tick_params(labelsize=8)
            axis.grid(alpha=0.25)
        row[0].set_ylabel(f"ΔR, {objective}", fontsize=9)
    for axis, proxy in zip(axes[-1], deltas, strict=True):
        axis.set_xlabel(f"ΔS, {proxy}", fontsize=9)
    bar = figure.colorbar(points, ax=axes, ticks=range(len(steps)), fraction=0.03)
    bar.ax.set_yticklabels(steps, fontsize=8)
    bar.set_label("denoising step", fontsize=9)
    figure.suptitle(
        "What a step gained in reward over what its proxy says; ΔR in standard deviations, 99.5 % shown", fontsize=10
    )
    return rendered(figure)


def agreement_curves(
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
        told = []
        for (proxy, delta), color, marker in zip(deltas.items(), _COLORS, "os^Dv*xP", strict=False):
            axis.plot(
                _scaled(delta[row]), color=color, marker=marker, markersize=4, linewidth=1.6, label=f"ΔS, {proxy}"
            )
            told.append(f"{correlation(delta[row][None], gain[row][None])[0]:.2f}")
        axis.axhline(0, color="black", linewidth=0.7)
        axis.set_title(f"trajectory {row}: Pearson {', '.join(told)}", fontsize=9)
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


def agreement_profile(
    deltas: Mapping[str, np.ndarray], gains: Mapping[str, np.ndarray], labels: Sequence[str]
) -> np.ndarray:
    """Mean ΔS of every proxy and mean ΔR of every objective by step, with their spread over trajectories."""
    figure = new_figure(9.5, 3.6)
    axes = figure.subplots(1, 2)
    units = {
        "ΔS by step: mean and standard deviation": deltas,
        "ΔR by step, in standard deviations of the scores": gains,
    }
    for axis, (title, curves) in zip(axes, units.items(), strict=True):
        for number, ((name, own), color) in enumerate(zip(curves.items(), _COLORS * len(curves), strict=False)):
            mean, std = np.nanmean(own, 0), np.nanstd(own, 0)
            places = np.arange(len(mean)) + 0.08 * (number - (len(curves) - 1) / 2)  # bars beside each other
            axis.errorbar(
                places,
                mean,
                std,
                color=color,
                marker="os^Dv*xP"[number % 8],
                markersize=4,
                linewidth=1.6,
                capsize=2,
                label=name,
            )
        axis.axhline(0, color="black", linewidth=0.7)
        axis.set_title(title, fontsize=10)
        axis.set_xticks(range(len(labels)), labels, fontsize=8)
        axis.tick_params(axis="y", labelsize=8)
        axis.grid(alpha=0.25)
        axis.legend(fontsize=8)
    return rendered(figure)


def _scaled(values: np.ndarray) -> np.ndarray:
    return values / (np.abs(values).max() or 1.0)


def credit_over_time(history: Sequence[Mapping], advantages: Advantages) -> np.ndarray:
    """Above: mean weight of each step as training went on. Below: the last iteration's effective advantages."""
    credit, steps = advantages.credit, credit_steps(history)
    # What follows the last trained step may be another schedule than it was in earlier iterations.
    labels = [_step_label(credit, step, " ") if step <= credit.trained[-1] else str(step) for step in steps]
    top, bottom = rendered(credit_figure(history, steps, labels)), advantage_heatmap(advantages)
    width = max(top.shape[1], bottom.shape[1])
    return np.concatenate([_widened(top, width), _widened(bottom, width)])


def credit_steps(history: Sequence[Mapping]) -> list[int]:
    """Numbers of all steps that were ever trained: a window moves."""
    return sorted(int(number) for name in _names(history) if (number := keys.credit_step_number(name)) is not None)


def credit_figure(history: Sequence[Mapping], steps: Sequence[int], labels: Sequence[str]) -> Figure:
    """Mean weight of each trained step as training went on."""
    from matplotlib.ticker import MaxNLocator

    field = np.array([[row.get(keys.credit_step(step), np.nan) for row in history] for step in steps], dtype=float)
    figure = new_figure(9, 1.2 + 0.26 * len(steps))
    axis = figure.subplots()
    image = axis.imshow(
        field,
        cmap=_SEQUENTIAL,
        aspect="auto",
        interpolation="nearest",
        extent=(history[0]["iteration"] - 0.5, history[-1]["iteration"] + 0.5, len(steps) - 0.5, -0.5),
    )
    axis.set_yticks(range(len(steps)), labels, fontsize=8)
    axis.set_xlabel("iteration", fontsize=9)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_title("Mean step weight over training: which steps earn the credit", fontsize=10)
    figure.colorbar(image, ax=axis, label="mean weight w (1 = uniform)")
    return figure


def svg(draw: Callable[[], Figure]) -> str:
    """A figure for a page: without a background, and black as the page's own ink, so that it is readable on light and dark."""
    import matplotlib

    # Text as text, in the page's fonts; names as they are, whatever $ signs they have.
    with matplotlib.rc_context({"svg.fonttype": "none", "text.parse_math": False, "legend.frameon": False}):
        figure = draw()
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    code = re.sub(r"<metadata>.*?</metadata>", "", text.getvalue()[text.getvalue().index("<svg") :], flags=re.DOTALL)
    used = set(re.findall(r"#([\w.]+)", code))
    code = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", code)
    return re.sub("#000000|#333333", "currentColor", code)


def sample_grid(images: Tensor, captions: Sequence[str], columns: int = 8, scale: int | None = None) -> np.ndarray:
    """Pictures [N, H, W, 3] in rows, each with its caption beneath; small ones are enlarged by whole pixels."""
    from PIL import Image, ImageDraw, ImageFont

    count, height, width = images.shape[:3]
    columns = min(columns, count)
    scale = scale or max(1, 120 // width)
    cell, line, gap = (width * scale, height * scale), 11, 8
    font = ImageFont.load_default(10)
    wrapped = [textwrap.wrap(caption, max(10, cell[0] // 5))[:3] for caption in captions]
    text_height = line * max((len(lines) for lines in wrapped), default=0) + gap
    sheet = Image.new(
        "RGB",
        (columns * (cell[0] + gap) + gap, math.ceil(count / columns) * (cell[1] + text_height + gap) + gap),
        "white",
    )
    pen = ImageDraw.Draw(sheet)
    for number, (picture, lines) in enumerate(zip(images, wrapped, strict=True)):
        x = gap + number % columns * (cell[0] + gap)
        y = gap + number // columns * (cell[1] + text_height + gap)
        thumbnail = Image.fromarray((picture.clamp(0, 1) * 255).round().byte().numpy())
        sheet.paste(thumbnail.resize(cell, Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS), (x, y))
        for row, text in enumerate(lines):
            pen.text((x, y + cell[1] + 2 + row * line), text, fill="#333333", font=font)
    return np.asarray(sheet)


def before_after(
    before: Tensor,
    after: Tensor,
    captions: Sequence[str],
    limit: int = 16,
    titles: tuple[str, str] = ("before training", "after training"),
) -> np.ndarray:
    """Two sample grids of the same prompts and seeds under each other, with a heading each."""
    from PIL import Image, ImageDraw, ImageFont

    sheets = [sample_grid(pictures[:limit], captions[:limit]) for pictures in (before, after)]
    band, font = 24, ImageFont.load_default(15)
    parts = []
    for title, sheet in zip(titles, sheets, strict=True):
        heading = Image.new("RGB", (sheet.shape[1], band), "white")
        ImageDraw.Draw(heading).text((8, 5), title, fill="#000000", font=font)
        parts += [np.asarray(heading), sheet]
    return np.concatenate(parts)


def stills(images: Tensor) -> Tensor:
    """[N, H, W, 3]: pictures as they are, and the middle frame of videos [N, F, H, W, 3]."""
    return images if images.ndim == 4 else images[:, images.shape[1] // 2]


def save_video(videos: Tensor, captions: Sequence[str], path: Path) -> None:
    """Videos [N, F, H, W, 3] side by side, as `sample_grid` lays them out, in one mp4."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sheets = np.stack([sample_grid(frame, captions) for frame in videos.transpose(0, 1)])
    write_bytes(path, mp4(sheets, FRAMES_PER_SECOND, quality=5))


def save(picture: np.ndarray, path: Path) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    Image.fromarray(picture).save(content, format=Image.registered_extensions().get(path.suffix.lower()))
    write_bytes(path, content.getvalue())


def as_image(picture: np.ndarray) -> Tensor:
    """ComfyUI's IMAGE [1, H, W, 3] in [0, 1]."""
    return torch.from_numpy(picture.astype(np.float32) / 255)[None]


def _heatmap(field, credit, groups, prompts, title, label, cmap, limits, neutral) -> np.ndarray:
    rows = len(field)
    body_height = max(3, rows * (0.16 if rows <= 24 else 0.11))
    figure = new_figure(9, 2.2 + body_height)
    body, strip = figure.subplots(2, 1, height_ratios=(body_height, 0.8), sharex=True)
    image = body.imshow(field, cmap=cmap, aspect="auto", vmin=limits[0], vmax=limits[1], interpolation="nearest")
    bounds = [0, *(np.flatnonzero(np.diff(groups)) + 1), rows]
    for bound in bounds[1:-1]:
        body.axhline(bound - 0.5, color="black", linewidth=1.2)
    centers = [(a + b - 1) / 2 for a, b in zip(bounds, bounds[1:], strict=False)]
    body.set_yticks(centers, ["\n".join(textwrap.wrap(prompts[groups[a]], 24)[:3]) for a in bounds[:-1]], fontsize=8)
    body.set_ylabel("samples, by prompt", fontsize=9)
    body.set_title(title, fontsize=10)
    figure.colorbar(image, ax=body, label=label, fraction=0.05)
    strip.bar(range(field.shape[1]), field.mean(0) - neutral, bottom=neutral, color=_COLORS[0])
    strip.axhline(neutral, color="black", linewidth=0.8)
    strip.set_ylabel("mean", fontsize=8)
    strip.tick_params(labelsize=8)
    strip.set_xticks(range(field.shape[1]), [_step_label(credit, step, "\n") for step in credit.trained], fontsize=8)
    strip.set_xlabel("denoising step, in sampling order, with its noise level", fontsize=9)
    return rendered(figure)


def _step_label(credit: StepCredit, step: int, separator: str) -> str:
    return f"{step}{separator}σ {credit.sigmas[step]:.2f}" if credit.sigmas else str(step)


def _correlations(scores: Scores) -> list[str]:
    """One line a pair of trained rewards that can be compared."""
    from ..advantages import correlation, standing

    matrix = correlation(standing(scores)[:, : len(scores.names)])
    pairs = [(i, j) for i in range(len(matrix)) for j in range(i) if matrix[i, j].isfinite()]
    return [f"correlation of {scores.names[j]} and {scores.names[i]}: {matrix[i, j]:+.2f}" for i, j in pairs]


def _names(history: Sequence[Mapping]) -> list[str]:
    """Of all values that any iteration has."""
    return list({name: None for row in history for name in row})


def _running_mean(values: np.ndarray) -> np.ndarray:
    window = max(1, len(values) // 10)
    known, filled = np.isfinite(values), np.nan_to_num(values)
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    total, count = np.append(0, filled.cumsum()), np.append(0, known.cumsum())
    with np.errstate(invalid="ignore"):  # nothing known in the window: NaN, which leaves a gap in the line
        return (total[ends] - total[starts]) / (count[ends] - count[starts])


def new_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=_DPI, layout="constrained")


def rendered(figure: Figure) -> np.ndarray:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[:, :, :3].copy()


def _widened(picture: np.ndarray, width: int) -> np.ndarray:
    missing = width - picture.shape[1]
    return np.pad(picture, ((0, 0), (0, missing), (0, 0)), constant_values=255)
