"""What: one advantage of several rewards, and what it makes of the steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ...trainer.advantages import best_of_n as select
from ...trainer.advantages import fuse, fuse_gains
from ...trainer.credit.gains import rewards_along
from ...trainer.credit.steps import tcd
from ...trainer.fusion import moca
from ...trainer.pictures.figures import new_figure, rendered
from .drawing import COLORS, advantage_heatmap, rendered_with_legend, step_labels
from .sources import GROUP_SIZE, credit, scores, shapes_flux, trajectories


def moca_z() -> np.ndarray:
    """z over λ/2 for objectives that agree and that do not; where their sum is negative λ is 0, and z one point."""
    cases = {
        "all like it": (0.3, 0.9, 1.6),
        "mixed, sum positive": (-0.8, 0.2, 1.4),
        "mixed, sum negative": (-1.4, -0.6, 0.7),
        "all dislike it": (-1.5, -0.9, -0.4),
    }
    figure = new_figure(5.6, 3.2)
    axis = figure.subplots()
    half = torch.linspace(0, 0.5, 51)
    for (label, values), color, marker in zip(cases.items(), COLORS, "os^D", strict=False):
        advantages = torch.tensor([values])
        label = f"{label}: A = {', '.join(f'{value:g}' for value in values)}"
        if sum(values) > 0:
            z = moca(advantages.expand(len(half), -1), 2 * half).advantage
            axis.plot(half, z, color=color, linewidth=2.2, label=label)
        else:
            z = moca(advantages, torch.zeros(1)).advantage
            axis.plot([0], z, color=color, marker=marker, markersize=8, linestyle="", label=label)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_xlabel("λ/2 (nearly always 0 or 0.5)", fontsize=9)
    axis.set_ylabel("fused advantage z", fontsize=9)
    axis.set_title("MOCA: z = λ/2, clipped to the objectives' range", fontsize=10)
    return rendered_with_legend(figure, axis)


def moca_heatmap() -> np.ndarray:
    own = fuse(scores(2), credit(tcd), "moca")
    return advantage_heatmap(own, "Effective advantage Ã, best sample of a group on top")


def best_of_n() -> np.ndarray:
    own = select(fuse(scores(2), credit(tcd), "weighted_advantages"), 4, 4)
    return advantage_heatmap(own, "Effective advantage Ã: four best, four worst of a group")


def fusion_agreement() -> np.ndarray:
    """How far each fusion's advantage follows each reward, over four groups."""
    methods = {"weighted_advantages": "weighted_advantages", "weighted_sum": "weighted_sum", "MOCA": "moca"}
    figure = new_figure(5.6, 3.0)
    axis = figure.subplots()
    for number, ((label, method), color) in enumerate(zip(methods.items(), COLORS, strict=False)):
        own = fuse(scores(4), credit(tcd, groups=4), method)
        fused = own.fused.advantage
        correlation = [torch.corrcoef(torch.stack([fused, column]))[0, 1].item() for column in own.per_objective.T]
        axis.bar(np.arange(len(correlation)) + 0.26 * (number - 1), correlation, 0.26, color=color, label=label)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_xticks(range(len(own.scores.names)), own.scores.names, fontsize=9)
    axis.set_ylabel("correlation with its own advantage", fontsize=9)
    axis.set_title("Whom the fused advantage follows: 48 samples, 4 prompts", fontsize=10)
    return rendered_with_legend(figure, axis)


def stepwise_gain() -> np.ndarray:
    """Rewards of the predicted picture along six trajectories of a prompt, each step coloured by its advantage."""
    own, judged, name = trajectories(1), scores(1), "sharpness"
    place = judged.names.index(name)
    values, rewards = judged.values[:, [place]], judged.rewards[place : place + 1]
    judged = replace(judged, values=values, names=(name,), coefficients=(1.0,), rewards=rewards)
    along = rewards_along(shapes_flux(), own, judged, range(len(own.sigmas)), 5)
    gains = along.diff(dim=1)[:, list(own.trained)]
    similarity = credit(tcd, groups=1).similarity
    advantage = fuse_gains(gains, similarity, judged, own.trained).step_advantage
    figure = new_figure(5.6, 3.2)
    axis = figure.subplots()
    places = range(len(own.trained) + 1)
    for row in range(0, GROUP_SIZE, 2):
        for position, step in enumerate(own.trained):
            color = COLORS[1] if advantage[row, position] > 0 else "#7B5AA6"
            strength = 0.8 + 1.6 * min(2.0, advantage[row, position].abs().item())
            axis.plot([step, step + 1], along[row, step : step + 2, 0], color=color, linewidth=strength)
        axis.plot(places, along[row, :-1, 0], "o", color="#333333", markersize=3)
    axis.set_xticks(places, step_labels(own.sigmas, places))
    axis.set_xlabel("point of the trajectory and its noise level", fontsize=9)
    axis.set_ylabel(f"{name} of the predicted picture", fontsize=9)
    axis.set_title("Six samples of a prompt; orange steps gained more than their group", fontsize=10)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25)
    return rendered(figure)
