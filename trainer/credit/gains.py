"""How good a trajectory looks on its way: x̂0 at the points that it visited, decoded and scored (method.md §4, §7).

Points are numbered 0 … T in sampling order: x_0 is noise, and x_T stands for the picture that the rewards saw. A reward model
asked at every step costs T times as much as one asked at the end, so nothing is asked twice: the last picture has its scores,
and points that a whole group shares are looked at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...host import distributed, stopping
from ..advantages import fuse_gains
from ..families.base import FlowModel
from ..rewards.base import RewardError, refuse_groups_only, score
from ..rollout import at_one_point, first_of_each
from ..types import Advantages, Scores, Trajectories
from .steps import similarity_gain


def is_final(trajectories: Trajectories, point: int, tweedie_steps: int = 1) -> bool:
    """Whether x̂0 at this point is the latent of the picture that was scored, which is where the last step leads.

    An Euler step, or one that adds noise, leads to x̂0; a step of second order leads elsewhere, also where it is trained.
    """
    last = len(trajectories.sigmas) - 1
    noisy = last - 1 in trajectories.trained and trajectories.stds[last - 1] > 0
    to_prediction = noisy or trajectories.settings.ode_solver == "euler"
    return point == last or (point == last - 1 and tweedie_steps == 1 and to_prediction)


def predictions(
    model: FlowModel, trajectories: Trajectories, points: Sequence[int], tweedie_steps: int = 1
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """x̂0 at each of these points before the last one, as the model predicts it now, or as kept from the rollout.

    By `tweedie_steps` Euler steps of equal length from σ_j to 0. A single step is Tweedie's formula, x - σ·v; a kept prediction
    saves the first model call. Moves ComfyUI's progress bar, and may be stopped before every model call and every yield.

    Yields:
        x̂0 [n, C, h, w] on the CPU, of n different latents; the row of one trajectory for each of these n; and for each of the
        B trajectories which of the n is its x̂0, [B].
    """
    model.come_back()
    plan = [_distinct(model, trajectories, point) for point in points]
    size = trajectories.settings.batch_size
    calls = tweedie_steps - (trajectories.predictions is not None)
    parts = [rows.split(size or len(rows)) for rows, _ in plan]
    on_step = stopping.progress(sum(1 + calls * len(rows) for rows in parts))
    for point, (rows, inverse), split in zip(points, plan, parts, strict=True):
        clean = torch.cat([_prediction(model, trajectories, point, part, tweedie_steps, on_step) for part in split])
        on_step()
        yield clean, rows, inverse


def rewards_along(
    model: FlowModel,
    trajectories: Trajectories,
    scores: Scores,
    points: Sequence[int],
    tweedie_steps: int = 1,
    held_out: bool = False,
) -> Tensor:
    """r_j = R(decode(x̂0 at x_j)) at these points, [B, len(points), K] float32, NaN where a reward could not score.

    `scores`: of the final pictures; their rewards score the other pictures too.
    `held_out`: also score by the rewards that are held out, after the trained ones: [B, len(points), K + H].

    Raises:
        RewardError: a reward failed, or may not be asked about other pictures.
    """
    final = torch.cat([scores.values, scores.held_out], 1) if held_out else scores.values
    final = torch.where(final.isfinite(), final, torch.nan)  # whether a reward failed or did not apply
    rewards, texts = scores.rewards[: final.shape[1]], trajectories.texts
    named = [*scores.names, *(scores.held_out_names if held_out else ())]
    if named != [reward.name for reward in rewards]:
        raise RewardError(
            f"the scores {', '.join(map(repr, named))} come from no reward that could be asked about every step's picture. Fix: "
            "a credit that asks no reward"
        )
    refuse_groups_only(rewards, "a measure of every step's gain")
    along = dict.fromkeys(points, final)
    inner = [point for point in points if not is_final(trajectories, point, tweedie_steps)]
    looks = predictions(model, trajectories, inner, tweedie_steps)
    for point, (clean, rows, inverse) in zip(inner, looks, strict=True):
        prompts = [texts[row] for row in rows.tolist()]
        values = score(rewards, model.decode(clean, trajectories.settings.batch_size, prompts), prompts)
        along[point] = torch.where(values.isfinite(), values, torch.nan)[inverse]
    return torch.stack([along[point] for point in points], 1)


def stepwise_gains(model: FlowModel, trajectories: Trajectories, scores: Scores, tweedie_steps: int = 1) -> Tensor:
    """g_j = r_{j+1} - r_j of the trained steps (Stepwise-Flow-GRPO, 2603.28718), [B, T', K]; NaN where r_j or r_{j+1} is.

    Over all T steps the gains add up to r_T - r_0.
    """
    trained = trajectories.trained
    points = sorted({*trained, *(step + 1 for step in trained)})
    rewards = rewards_along(model, trajectories, scores, points, tweedie_steps)
    before, after = ([points.index(step + offset) for step in trained] for offset in (0, 1))
    return rewards[:, after] - rewards[:, before]


def advantages_of_gains(
    model: FlowModel, trajectories: Trajectories, scores: Scores, tweedie_steps: int, **options
) -> Advantages:
    """`advantages.fuse_gains` with these `options`, of the stepwise gains of all processes; their seconds count as credit's."""
    started = time.perf_counter()
    gains = stepwise_gains(model, trajectories, scores, tweedie_steps)
    similarity, _ = similarity_gain(trajectories.latents, trajectories.final)
    seconds = time.perf_counter() - started
    gains, similarity = map(distributed.whole, (gains, similarity))
    advantages = fuse_gains(gains, similarity, distributed.whole(scores), trajectories.trained, **options)
    return replace(advantages, credit=replace(advantages.credit, sigmas=trajectories.sigmas, seconds=seconds))


def _distinct(model: FlowModel, trajectories: Trajectories, point: int) -> tuple[Tensor, Tensor]:
    """One row for each different latent at this point, and for each trajectory which of them has the same latent."""
    # Processes that share a model have to call it with equally many parts.
    if at_one_point(trajectories, point) and not model.policy.is_sharded:
        return first_of_each(trajectories.groups)
    every = torch.arange(len(trajectories.groups))
    return every, every


@torch.no_grad()
def _prediction(
    model: FlowModel,
    trajectories: Trajectories,
    point: int,
    rows: Tensor,
    tweedie_steps: int,
    on_step: Callable[[], None],
) -> Tensor:
    settings, sigma = trajectories.settings, trajectories.sigmas[point]
    x = trajectories.latents[rows, point]
    if trajectories.predictions is not None:
        kept = trajectories.predictions[rows, point]
        if tweedie_steps == 1:
            return kept
        # x̂0 is where the first velocity leads, so the first of several steps goes a part of the way to it.
        x = x + (kept - x) / tweedie_steps
    x = x.to(model.device)
    condition = model.condition(trajectories.prompts, settings).rows(trajectories.groups[rows])
    for number in range(0 if trajectories.predictions is None else 1, tweedie_steps):
        on_step()
        level = sigma * (1 - number / tweedie_steps)
        velocity = model.velocity(x, level, condition, model.guidance_at(level, settings))
        x = x - sigma / tweedie_steps * velocity
    return x.cpu()
