"""When: step weights by several credits, and where in the picture the credit goes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ...trainer import rollout
from ...trainer.credit.learned import learned
from ...trainer.credit.spatial import credit_map
from ...trainer.credit.steps import FLOORS, combined, grpo_guard, noise_aware, pcpo, tcd, uniform
from ...trainer.networks.features import PatchFeatures
from ...trainer.networks.network import shared
from ...trainer.pictures import heatmaps
from ...trainer.pictures.figures import new_figure
from ...trainer.sde import sensitivities
from ...trainer.types import Prompts
from .drawing import COLORS, rendered_with_legend, step_labels, weight_heatmap
from .sources import CAPTIONS, GROUP_SIZE, ROOT, SETTINGS, credit, scores, shapes_flux, trajectories


def tcd_floors() -> np.ndarray:
    """One trajectory's weights under each floor; a high w_min, so that they differ."""
    w_min = 0.8
    floors = {"no floor (w_min 0)": (0.0, "affine")}
    floors |= {floor: (w_min, floor) for floor in FLOORS}
    figure = new_figure(5.6, 3.2)
    axis = figure.subplots()
    for number, ((label, options), color) in enumerate(zip(floors.items(), ("#999999", *COLORS[:3]), strict=True)):
        own = credit(tcd, *options)
        row = own.raw.std(1).argmax()  # the trajectory whose credit is the most uneven
        label = f"{label}, mean {own.weights[row].mean():.2f}"
        places = np.arange(len(own.trained)) + 0.2 * (number - 1.5)
        axis.bar(places, own.weights[row], 0.2, color=color, label=label)
    axis.axhline(w_min, color="black", linewidth=0.8, linestyle=":")
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set_xticks(range(len(own.trained)), step_labels(own.sigmas, own.trained), fontsize=8)
    axis.set_ylabel("weight w", fontsize=9)
    axis.set_title(f"One sample's weights with w_min {w_min} (dotted), by floor", fontsize=10)
    return rendered_with_legend(figure, axis)


def tcd_heatmap() -> np.ndarray:
    return weight_heatmap(credit(tcd), "Step weights w of two groups (TCD)")


def uniform_heatmap() -> np.ndarray:
    own = credit(uniform, 0.6, torch.Generator().manual_seed(0))
    return weight_heatmap(own, "Step weights w with timestep_fraction 0.6")


def combined_heatmap() -> np.ndarray:
    own = combined(credit(tcd, 0.0), credit(noise_aware, trajectories(2).stds))
    return weight_heatmap(own, "Step weights w: TCD · noise-aware")


def learned_heatmap() -> np.ndarray:
    options = {"measure_every": 1, "groups": 0, "decay": 0.0, "w_min": 0.5}
    own = learned(shapes_flux(), trajectories(4), scores(4), **options)
    shapes_flux().step_shares = {}  # what it learned would go on in the next picture
    assert own.by_objective is not None
    return heatmaps.objective_heatmap(own, own.by_objective)


def step_pull() -> np.ndarray:
    """How hard a step pulls at the velocity: weight, ratio scale and sensitivity c_j multiplied, of mean 1."""
    settings = replace(SETTINGS, kind="flow_sde", eta=0.7, steps=10)
    own = rollout.sample(shapes_flux(), Prompts(CAPTIONS[:1], (0,)), settings, group_size=2, seed=0)
    felt = sensitivities(settings.kind, own.sigmas, settings.eta)
    methods = {
        "uniform": (uniform, ()),
        "noise-aware": (noise_aware, (own.stds,)),
        "PCPO": (pcpo, (felt, own.sigmas)),
        "GRPO-Guard": (grpo_guard, (own.stds, own.sigmas)),
    }
    figure = new_figure(5.6, 3.4)
    axis = figure.subplots()
    for number, (label, (method, options)) in enumerate(methods.items()):
        found = method(own.latents, own.final, own.trained, *options)
        scale = torch.tensor(found.ratio_scale or [1.0] * len(own.trained))
        pull = found.weights[0] * scale * torch.tensor([felt[step] for step in own.trained])
        places = np.arange(len(pull)) + 0.2 * (number - 1.5)
        axis.bar(places, pull / pull.mean(), 0.2, label=label, color=COLORS[number])
    axis.set_xticks(range(len(own.trained)), step_labels(own.sigmas, own.trained), fontsize=8)
    axis.set_ylabel("pull at the velocity, mean 1", fontsize=9)
    axis.set_title("How hard each step pulls (flow_sde, η 0.7, 10 steps)", fontsize=10)
    return rendered_with_legend(figure, axis)


def credit_places() -> np.ndarray:
    """The first sample of each group, and which places of it the credit goes to."""
    own = trajectories(4)
    network = shared(PatchFeatures, ROOT / "assets" / "shapes-clip", "cpu")
    return heatmaps.lit(own.images[::GROUP_SIZE], credit_map(network, own)[::GROUP_SIZE])
