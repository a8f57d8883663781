"""The update, and what a training gives."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from ...trainer import keys, rollout
from ...trainer.flow import load_flow_model
from ...trainer.grpo import clipped_objective
from ...trainer.matching import OLD_DECAYS
from ...trainer.pictures import curves, grids
from ...trainer.pictures.figures import new_figure
from ...trainer.policy import lora
from ...trainer.run.layout import read_lines
from .drawing import COLORS, rendered_with_legend
from .sources import CAPTIONS, SETTINGS, SHAPES_FLUX, train_otca


def clipped_loss() -> np.ndarray:
    """The loss of one entry over the importance ratio, for a step to reinforce and for one to discourage."""
    clip = 1e-4
    shift = torch.linspace(-3, 3, 121, dtype=torch.float64)
    log_ratio = torch.log1p(shift * clip)
    figure = new_figure(5.6, 3.0)
    axis = figure.subplots()
    for advantage, color, style in ((1.0, COLORS[1], "-"), (-1.0, COLORS[3], "--")):
        weight = torch.tensor(advantage, dtype=torch.float64)
        losses = [clipped_objective(own, torch.zeros_like(own), weight, clip)[0].item() for own in log_ratio]
        rise = (np.array(losses) + advantage) / clip  # against the loss at ρ = 1
        axis.plot(shift, rise, color=color, linewidth=2.2, linestyle=style, label=f"Ã = {advantage:+g}")
    for edge in (-1, 1):
        axis.axvline(edge, color="black", linewidth=0.8, linestyle=":")
    axis.set_xticks(range(-3, 4), ("1−3c", "1−2c", "1−c", "1", "1+c", "1+2c", "1+3c"))
    axis.set_xlabel("importance ratio ρ, clip_range c", fontsize=9)
    axis.set_ylabel("loss − loss at ρ = 1, in c", fontsize=9)
    axis.set_title("Flat means no gradient: the step has moved far enough", fontsize=10)
    return rendered_with_legend(figure, axis)


def old_policy() -> np.ndarray:
    """How much of the policy that samples stays, over the optimizer steps."""
    steps = range(0, 601)
    figure = new_figure(5.6, 3.0)
    axis = figure.subplots()
    for (name, decay), color, style in zip(OLD_DECAYS.items(), COLORS, ("-", "--", ":"), strict=False):
        axis.plot(steps, [decay(n) for n in steps], color=color, linewidth=2.2, linestyle=style, label=name)
    axis.set_xlabel("optimizer steps n", fontsize=9)
    axis.set_ylabel("d: what stays of the old policy", fontsize=9)
    axis.set_title("The policy that samples lags behind the trained one: a brake", fontsize=10)
    return rendered_with_legend(figure, axis)


@functools.cache
def _finished_run() -> Path:
    """The folder of a short training, whose nodes 11 and 12 are GRPO Step and Training Run."""
    changes = ("11.learning_rate=1e-3", "12.evaluate_every=10", "12.evaluation_seeds=1")
    return train_otca("run", "--iterations", "40", *(part for change in changes for part in ("--set", change)))


def reward_curves() -> np.ndarray:
    folder = _finished_run()
    history, evaluations = read_lines(folder / "metrics.jsonl"), read_lines(folder / "evaluation.jsonl")
    # Two rewards a row, where the plot itself would put four: a help page is narrow.
    rows = [("clip_t", "colorfulness"), ("sharpness", "accuracy")]
    return np.concatenate([curves.reward_curves(_means_of(names, history), evaluations) for names in rows])


def _means_of(names: Sequence[str], history: Sequence[Mapping]) -> list[dict]:
    """The history with the means of these rewards alone."""
    kept = {"iteration", *(keys.mean(kind, name) for kind in keys.KINDS for name in names)}
    return [{key: value for key, value in row.items() if key in kept} for row in history]


def before_after() -> np.ndarray:
    model = load_flow_model(SHAPES_FLUX, device="cpu")
    lora.load(model, _finished_run() / "lora.safetensors")
    with model.policy.reference():
        before = rollout.generate(model, list(CAPTIONS), SETTINGS, [0, 1, 2, 3])
    after = rollout.generate(model, list(CAPTIONS), SETTINGS, [0, 1, 2, 3])
    return grids.before_after(before, after, CAPTIONS)
