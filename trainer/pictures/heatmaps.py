"""Heatmaps as pictures [H, W, 3] uint8: credit and advantages by step, credit over training, the table of scores."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .. import keys
from ..advantages import correlation, standing
from ..types import LEFT_OUT, Advantages, Scores, StepCredit
from .figures import COLORS, DIVERGING, SEQUENTIAL, new_figure, rendered
from .grids import sample_grid, stills

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def weight_heatmap(credit: StepCredit, groups: Tensor, prompts: Sequence[str]) -> np.ndarray:
    """Step weights w of every sample: rows are samples by group, columns the trained steps with their σ.

    Above them stand the mean weights of each objective, if the credit is by objective.
    """
    weights = credit.weights.cpu().numpy()
    order = np.argsort(groups.numpy(), kind="stable")
    title = f"Step weights w ({credit.method}): where each sample's credit goes"
    limits = 0, weights.max()
    samples = _heatmap(
        weights[order], credit, groups.numpy()[order], prompts, title, "weight w", SEQUENTIAL, limits, 1.0
    )
    return samples if credit.by_objective is None else _stacked(objective_heatmap(credit, credit.by_objective), samples)


def advantage_heatmap(advantages: Advantages) -> np.ndarray:
    """Effective advantage Ã of every sample: within a group the best sample is on top."""
    effective, groups = advantages.step_advantage.cpu().numpy(), advantages.scores.groups.numpy()
    order = np.lexsort((-advantages.fused.advantage.numpy(), groups))
    limit = max(abs(effective).max(), 1e-6)
    title = "Effective advantage Ã: orange steps are reinforced, purple ones discouraged; best sample on top"
    prompts, limits = advantages.scores.prompts, (-limit, limit)
    return _heatmap(effective[order], advantages.credit, groups[order], prompts, title, "Ã", DIVERGING, limits, 0.0)


def lit(images: Tensor, spatial: Tensor) -> np.ndarray:
    """Pictures, or a video's middle frames, side by side with themselves lit by a map over their latent [B, (F,) h, w]."""
    pictures = stills(images)
    maps = spatial[:, spatial.shape[1] // 2] if spatial.ndim == 4 else spatial
    size = pictures.shape[1:3]
    maps = torch.nn.functional.interpolate(maps[:, None], size, mode="bicubic", antialias=True)[:, 0]
    light = (0.15 + 0.85 * maps / maps.flatten(1).amax(1).view(-1, 1, 1)).clamp(0, 1)
    both = torch.cat([pictures, pictures * light[..., None]], 2)
    return sample_grid(both, [""] * len(both), columns=4, scale=max(1, 240 // both.shape[2]))


def reward_table(scores: Scores, images: Tensor, limit: int = 48) -> np.ndarray:
    """Samples x rewards: thumbnails and raw scores, coloured by how far each is from its group's mean.

    The title says how the rewards correlate, so that a conflict is seen before training.
    """
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
    table.imshow(standings[:shown].numpy(), cmap=DIVERGING, aspect="auto", vmin=-3, vmax=3)
    for row, column in np.ndindex(shown, len(names)):
        ink = "white" if abs(standings[row, column]) > 1.8 else "black"
        score = "–" if values[row, column] == LEFT_OUT else f"{values[row, column]:.3g}"
        table.text(column, row, score, ha="center", va="center", fontsize=8, color=ink)
    for bound in np.flatnonzero(np.diff(scores.groups[:shown].numpy())):
        table.axhline(bound + 0.5, color="black", linewidth=1.2)
    table.set_xticks(range(len(names)), names, fontsize=9)
    table.xaxis.tick_top()
    table.tick_params(left=False)
    heading = f"Scores of {shown} of {len(values)} samples: orange is above the group's mean, purple below"
    # One line a pair of trained rewards that can be compared
    matrix = correlation(standing(scores)[:, : len(scores.names)])
    pairs = [(i, j) for i in range(len(matrix)) for j in range(i) if matrix[i, j].isfinite()]
    lines = [f"correlation of {scores.names[j]} and {scores.names[i]}: {matrix[i, j]:+.2f}" for i, j in pairs]
    figure.suptitle("\n".join([heading, *lines]), fontsize=9)
    return rendered(figure)


def credit_over_time(history: Sequence[Mapping], advantages: Advantages) -> np.ndarray:
    """Above: mean weight of each step as training went on. Below: the last iteration's effective advantages."""
    credit, steps = advantages.credit, credit_steps(history)
    # What follows the last trained step may be another schedule than it was in earlier iterations.
    labels = [_step_label(credit, step, " ") if step <= credit.trained[-1] else str(step) for step in steps]
    return _stacked(rendered(credit_figure(history, steps, labels)), advantage_heatmap(advantages))


def credit_steps(history: Sequence[Mapping]) -> list[int]:
    """Numbers of all steps that were ever trained: a window moves."""
    names = {name for row in history for name in row}
    return sorted(int(number) for name in names if (number := keys.credit_step_number(name)) is not None)


def credit_figure(history: Sequence[Mapping], steps: Sequence[int], labels: Sequence[str]) -> Figure:
    """Mean weight of each trained step as training went on; below, the same of each objective that has weights of its own."""
    from matplotlib.ticker import MaxNLocator

    names = {name for row in history for name in row}
    rewards = sorted(keys.rewards(names, keys.REWARD))
    objectives = [name for name in rewards if any(keys.objective_step(name, step) in names for step in steps)]
    titles = {"Mean step weight over training: which steps earn the credit": keys.credit_step}
    titles |= {f"for {name} alone": partial(keys.objective_step, name) for name in objectives}
    fields = [
        np.array([[row.get(key(step), np.nan) for row in history] for step in steps], dtype=float)
        for key in titles.values()
    ]
    figure = new_figure(9, len(fields) * (1.2 + 0.26 * len(steps)))
    axes = figure.subplots(len(fields), 1, sharex=True, squeeze=False)[:, 0]
    most = max((np.nanmax(field) for field in fields if np.isfinite(field).any()), default=1.0)
    limits = {"vmin": 0, "vmax": most} if objectives else {}  # one scale, by which objectives compare
    for axis, field, title in zip(axes, fields, titles, strict=True):
        image = axis.imshow(
            field,
            cmap=SEQUENTIAL,
            aspect="auto",
            interpolation="nearest",
            extent=(history[0]["iteration"] - 0.5, history[-1]["iteration"] + 0.5, len(steps) - 0.5, -0.5),
            **limits,
        )
        axis.set_yticks(range(len(steps)), labels, fontsize=8)
        axis.set_title(title, fontsize=10)
        figure.colorbar(image, ax=axis, label="mean weight w (1 = uniform)" if len(fields) == 1 else "mean w")
    axes[-1].set_xlabel("iteration", fontsize=9)
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def objective_heatmap(credit: StepCredit, weights: Tensor) -> np.ndarray:
    """Mean weights of each objective, a row each, with their numbers; `weights` [B, T', K] are the credit's by objective."""
    field = weights.mean(0).T.cpu().numpy()
    figure = new_figure(9, 1.4 + 0.34 * len(field))
    axis = figure.subplots()
    image = axis.imshow(field, cmap=SEQUENTIAL, aspect="auto", vmin=0, interpolation="nearest")
    for row, column in np.ndindex(*field.shape):
        ink = "white" if field[row, column] < 0.5 * field.max() else "black"
        axis.text(column, row, f"{field[row, column]:.2f}", ha="center", va="center", fontsize=8, color=ink)
    axis.set_yticks(range(len(field)), credit.objectives, fontsize=9)
    axis.set_xticks(range(field.shape[1]), [_step_label(credit, step, "\n") for step in credit.trained], fontsize=8)
    axis.set_title(f"Step weights w by objective ({credit.method}): which steps decide which reward", fontsize=10)
    figure.colorbar(image, ax=axis, label="mean w")
    return rendered(figure)


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
    strip.bar(range(field.shape[1]), field.mean(0) - neutral, bottom=neutral, color=COLORS[0])
    strip.axhline(neutral, color="black", linewidth=0.8)
    strip.set_ylabel("mean", fontsize=8)
    strip.tick_params(labelsize=8)
    strip.set_xticks(range(field.shape[1]), [_step_label(credit, step, "\n") for step in credit.trained], fontsize=8)
    strip.set_xlabel("denoising step, in sampling order, with its noise level", fontsize=9)
    return rendered(figure)


def _step_label(credit: StepCredit, step: int, separator: str) -> str:
    return f"{step}{separator}σ {credit.sigmas[step]:.2f}" if credit.sigmas else str(step)


def _stacked(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """One picture below the other, as wide as the wider one."""
    width = max(top.shape[1], bottom.shape[1])
    widened = (np.pad(own, ((0, 0), (0, width - own.shape[1]), (0, 0)), constant_values=255) for own in (top, bottom))
    return np.concatenate([*widened])
