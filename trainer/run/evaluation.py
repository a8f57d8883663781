"""Evaluations: the same prompts and seeds again and again, sampled without noise and scored by every reward."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ...host import distributed, files
from .. import rollout
from ..errors import standard_error
from ..families.base import FlowModel, frame_size
from ..pictures import grids
from ..policy.files import read_tensors, write_tensors
from ..prompts import lines
from ..rewards.base import one_by_one, score
from ..types import Prompt, Report, RunSettings, metadata_of
from .folder import SAMPLES
from .verdicts import Artefact, by_prompt

logger = logging.getLogger(__name__)

EVALUATION_SEED = 1_000_000  # far from the small numbers that people train with
BEFORE = "before.safetensors"  # the pictures of before training
Progress = Callable[[int], Callable[[], None]]
NOISE = "seed and prompt"  # what a picture's noise depends on; rows without that word: on the seed alone


def prompts(settings: RunSettings, evaluations: Sequence[Mapping], report: Report) -> list[str]:
    """The prompts of the settings; else those of the first evaluation, so that the points of one curve are comparable; at the
    first one, those of the iteration."""
    if chosen := lines(settings.evaluation_prompts):
        return chosen
    if evaluations and (texts := evaluations[0].get("prompts")):
        return list(map(Prompt, texts, evaluations[0].get("metadata") or [{}] * len(texts)))
    return list(report.trajectories.prompts)


def evaluate(
    model: FlowModel, report: Report, iteration: int, prompts: Sequence[str], how: RunSettings, progress: Progress
) -> tuple[dict, Tensor, list[str]]:
    """Samples every prompt with every seed, by the deterministic sampler, and scores the pictures by every reward that may be
    asked about them.

    Several processes share the work, and all of them get the whole result.

    `report`: of the iteration before, whose sampler settings and rewards are taken.
    `how`: with how many seeds, steps and pixels, and under which guidance.
    `progress`: gives, for a number of model calls, what is called before each of them, and may raise to stop.

    Returns:
        The row of evaluation.jsonl, the pictures [N, H, W, 3] or videos [N, F, H, W, 3], and the N prompts.
    """
    numbers = [EVALUATION_SEED + number for number in range(how.evaluation_seeds)]
    pairs = [(text, seed) for seed in numbers for text in prompts]
    rows = distributed.rows(len(pairs))
    share = [pairs[row] for row in rows]
    most = -(-len(pairs) // distributed.world())
    share += pairs[:1] * (most - len(share))  # who has fewer keeps pace with the others
    texts = [text for text, _ in share]
    settings = how.evaluated(report.trajectories.settings)
    calls = rollout.model_calls(settings.steps, len(share), settings.batch_size)
    with model.forwards.apart() as counted:
        images = rollout.generate(model, texts, settings, [seed for _, seed in share], progress(calls))
    asking = [(reward, judge) for reward in report.advantages.scores.rewards if (judge := reward.for_other_pictures())]
    judges = [judge for _, judge in asking]
    alone = one_by_one(judges)
    columns = dict(zip(alone, distributed.whole(score(alone, images, texts)[: len(rows)]).T, strict=True))
    images = distributed.whole(images[: len(rows)])
    # The others see a prompt's pictures of all seeds together.
    if compared := [judge for judge in judges if judge not in alone]:
        groups = [number % len(prompts) for number in range(len(pairs))]
        scores = distributed.each(score(compared, images, [text for text, _ in pairs], groups))[0]
        columns |= zip(compared, scores.T, strict=True)
    values = torch.stack([columns[judge] for judge in judges], 1) if judges else torch.empty(len(pairs), 0)
    row: dict = {"iteration": iteration, "prompts": list(prompts), "noise": NOISE, "count": len(pairs), "rewards": {}}
    row |= model.forwards.of_all(counted)
    if how.own:
        row["own"] = how.own  # pictures of another size, or under another guidance, are not compared
    if any(map(metadata_of, prompts)):
        row["metadata"] = [dict(metadata_of(prompt)) for prompt in prompts]
    for k, (reward, judge) in enumerate(asking):
        column = values[:, k]  # [N], which go through the prompts again and again: the error is clustered by prompt
        scored = column[column.isfinite()]
        _, error, _ = standard_error(column.numpy(), by_prompt(prompts, len(column)))
        figures = {
            "mean": scored.mean().item(),
            "std": scored.std().item() if len(scored) > 1 else 0.0,
            "standard_error": error if error == error else 0.0,
            "held_out": reward.held_out,
            "values": column.tolist(),
        }
        # What has learned since the last evaluation measures by another scale: it is shown, and nothing is decided by it.
        row.setdefault("rewards" if judge is reward else "learned", {})[reward.name] = figures
    return row, images, [text for text, _ in pairs]


def save_pictures(folder: Path, images: Tensor, captions: list[str], iteration: int, alike: bool) -> None:
    """Writes samples/<iteration>.png, of videos also .mp4, and samples.png, which shows before and after training.

    `folder`: of the run.
    `iteration`: 0 is the evaluation before training, whose pictures are kept for samples.png.
    `alike`: whether these began as those of before training did; else samples.png stays as it is.
    """
    stills = grids.stills(images)
    if alike:
        first = folder / SAMPLES / BEFORE
        if iteration == 0:
            first.parent.mkdir(exist_ok=True)
            write_tensors(first, {"images": (stills * 255).round().byte()})
        elif files.present(first) and (before := pictures_before(first, stills)) is not None:
            grids.save(grids.before_after(before.float() / 255, stills, captions), folder / "samples.png")
    path = folder / SAMPLES / f"{iteration:06d}"
    grids.save(grids.sample_grid(stills[: grids.MOST_SHOWN], captions[: grids.MOST_SHOWN]), path.with_suffix(".png"))
    if images.ndim == 5:
        grids.save_video(images[: grids.MOST_SHOWN], captions[: grids.MOST_SHOWN], path.with_suffix(".mp4"))


def grid_periods(model: FlowModel, images: Tensor) -> tuple[int, int]:
    """Pixels to a latent's position, and to a patch of two by two of them, as most networks take them together."""
    height, width, frames = frame_size(images)
    pixels = height // model.latent_shape(height, width, frames)[-2]
    return pixels, 2 * pixels


def save_artefact(folder: Path, images: Tensor, captions: Sequence[str], found: Artefact) -> None:
    """The picture that shows it most, below the same one before training where that is still there."""
    now, number = grids.stills(images), found.picture
    before = pictures_before(folder / SAMPLES / BEFORE, now)
    stacked = [picture[number] for picture in (*([before.float() / 255] if before is not None else ()), now)]
    captions = ["before training"] * (len(stacked) - 1) + [captions[number]]
    grids.save(grids.sample_grid(torch.stack(stacked), captions, columns=1), folder / found.file)


def pictures_before(path: Path, like: Tensor) -> Tensor | None:
    """The pictures of before training; None if they are of another number or size, or if the file is damaged, with a warning."""
    try:
        os.close(files.open_plain(path))  # refuses a pipe, which would be waited for
        before = read_tensors(path).get("images")
        if before is None or before.ndim != like.ndim or before.is_floating_point():
            raise ValueError(f"{path} holds no pictures")
    except (ValueError, OSError) as error:
        logger.warning("%s: samples.png, which shows before and after, stays as it is", error)
        return None
    return before if before.shape == like.shape else None
