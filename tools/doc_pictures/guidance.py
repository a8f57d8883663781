"""Guidance by what was learned: one picture by two adapters, each followed more or less."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ...host.access.permissions import user_named
from ...inference import guidance
from ...trainer import rollout
from ...trainer.pictures import grids
from .sources import CAPTIONS, SETTINGS, shapes_flux, train_otca


def by_two_adapters() -> np.ndarray:
    """One prompt and seed: γ of the one adapter rises to the right, of the other downwards."""
    gammas = (0, 0.5, 1, 1.5, 2)
    runs = [_single_reward_run(name) for name in ("colorfulness", "sharpness")]
    for run in runs:
        user_named(run)
    pairs = [(right, down) for down in gammas[::2] for right in gammas]
    images = []
    for pair in pairs:
        guides = [guidance.parse(f"{run}={gamma}") for run, gamma in zip(runs, pair, strict=True)]
        with guidance.composed(shapes_flux(), guides, SETTINGS.steps) as compose:
            images.append(rollout.generate(shapes_flux(), [CAPTIONS[0]], SETTINGS, [0], compose=compose))
    captions = [f"colour {right:g}, sharpness {down:g}" for right, down in pairs]
    return grids.sample_grid(torch.cat(images), captions, columns=len(gammas), scale=2)


def _single_reward_run(name: str) -> Path:
    """The folder of a short training on one reward, as bench/GUIDANCE.md has it."""
    nodes = {"clip_t": 4, "colorfulness": 5, "sharpness": 6}  # of the rewards in the workflow
    held_out = [part for other, node in nodes.items() if other != name for part in ("--set", f"{node}.held_out=true")]
    return train_otca(name, "--iterations", "40", "--set", "12.evaluate_every=40", *held_out)
