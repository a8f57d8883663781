"""Settings of a run: the inputs of Training Run. Imports nothing."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RunSettings:
    """Inputs of Training Run. Intervals are in iterations.

    Attributes:
        evaluation_prompts: one a line; empty: those of the first iteration.
        evaluation_seeds: how many pictures of each prompt.
        evaluation_steps: denoising steps; 0: as many as the sampler trains with.
        best_metric: the value of evaluations whose best adapter is kept; empty: none is kept.
        stop_after_decline: evaluations in a row; 0: never.
        wandb_project: empty: none.
    """

    checkpoint_every: int = 25
    evaluate_every: int = 50
    evaluation_prompts: str = ""
    evaluation_seeds: int = 1
    evaluation_steps: int = 0
    keep_checkpoints: int = 2
    best_metric: str = ""
    stop_after_decline: int = 0
    wandb_project: str = ""
