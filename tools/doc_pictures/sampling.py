"""The sampler: the noise of its steps, which of them are trained, and a group of samples."""

from __future__ import annotations

import numpy as np
import torch

from ...trainer.pictures import grids
from ...trainer.pictures.figures import new_figure, rendered
from ...trainer.schedule import noise_levels, window_start
from ...trainer.sde import transition
from ...trainer.types import SamplerSettings
from .drawing import COLORS, rendered_with_legend, step_labels
from .sources import GROUP_SIZE, trajectories

ETAS = {"dance_sde": 0.3, "flow_sde": 0.7, "cps": 0.7, "ddim_sde": 0.7, "ddim_sde_schedule": 0.7, "precise": 0.7}


def sampler_noise() -> np.ndarray:
    """Standard deviation of each transition, by sampler kind."""
    sigmas = noise_levels(SamplerSettings(steps=16), shift=3.0)
    x = torch.zeros(1, 1)
    figure = new_figure(5.6, 3.4)
    axis = figure.subplots()
    for (kind, eta), color, marker in zip(ETAS.items(), (*COLORS, "black"), "osD^vP", strict=True):
        stds = [
            transition(kind, x, x, sigma, after, eta=eta, sigma_after_first=sigmas[1]).std
            for sigma, after in zip(sigmas, sigmas[1:], strict=False)
        ][:-1]  # the last step is deterministic unless train_last_step
        axis.plot(stds, color=color, marker=marker, markersize=4, label=f"{kind}, eta {eta:g}")
    axis.set_xticks(range(0, 15, 2), step_labels(sigmas, range(0, 15, 2)), fontsize=8)
    axis.set_xlabel("denoising step", fontsize=9)
    axis.set_ylabel("std of the noise that the step adds", fontsize=9)
    axis.set_ylim(0, 1.3)  # leaves room for the legend
    axis.set_title("Exploration of each step: 16 steps, shift 3", fontsize=10)
    return rendered_with_legend(figure, axis)


def window_places() -> np.ndarray:
    """Which steps are trained in which iteration, by mode."""
    steps, length, count = 25, 4, 140
    cases = {
        "progressive, every 5": {"every": 5},
        "progressive_decay, every 5": {"mode": "progressive_decay", "every": 5},
        "random": {"mode": "random"},
    }
    figure = new_figure(5.6, 4.4)
    for axis, (title, options), color in zip(figure.subplots(3, 1, sharex=True), cases.items(), COLORS, strict=False):
        starts = np.array([window_start(iteration, steps, length, **options) for iteration in range(count)])
        axis.bar(range(count), length, bottom=starts - 0.5, width=1.0, color=color)
        axis.set_ylim(steps - 0.5, -0.5)
        axis.set_ylabel("step", fontsize=9)
        axis.set_title(title, fontsize=10)
        axis.tick_params(labelsize=8)
    axis.set_xlabel("iteration", fontsize=9)
    figure.suptitle("Stochastic, trained steps of 25: a window of 4", fontsize=10)
    return rendered(figure)


def sampler_group() -> np.ndarray:
    captions = [f"sample {number}" for number in range(GROUP_SIZE)]
    return grids.sample_grid(trajectories(1).images, captions, columns=6, scale=2)
