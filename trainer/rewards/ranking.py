"""Any pictures or videos, ranked by several rewards: no rollout is needed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..advantages import standing
from ..networks import RewardError
from ..prompts import key, lines, prompt_of
from ..types import LEFT_OUT, Scores
from .base import Columns, Reward, score_stack

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ranking:
    """B samples by K ranking and H held-out rewards.

    Attributes:
        scores: grouped by prompt and its metadata.
        standings: [B, K + H], (r - mean) / std over all samples, whatever their prompts; NaN without a score.
        totals: [B], Σ_k coefficient_k · standing_k, over the rewards that rank; NaN: no place of its own, see `order`.
        order: [B] numbers of the samples, best first; equal ones as they came, those without a total last.
    """

    scores: Scores
    standings: Tensor
    totals: Tensor
    order: Tensor

    @property
    def places(self) -> list[int]:
        """[B], from 1."""
        return (self.order.argsort() + 1).tolist()

    def columns(self) -> list[float]:
        """(K + H)·B raw scores: all samples' by the first reward, then by the next; NaN for a score that is missing."""
        values = torch.cat([self.scores.values, self.scores.held_out], 1).T.flatten()
        return torch.where(values.isfinite(), values, torch.nan).tolist()

    def as_one_group(self) -> Scores:
        """The scores as those of one group, in which they are compared."""
        return replace(self.scores, groups=torch.zeros_like(self.scores.groups))


def samples_of(images: Tensor, frames: int | None) -> Tensor:
    """Pictures [N, H, W, C] as they are, or videos [N / frames, frames, H, W, C]; frames: None for pictures, 0 for one video.

    Raises:
        ValueError: the pictures do not fill whole videos.
    """
    if frames is None:
        return images
    count = len(images)
    if frames and count % frames:
        raise ValueError(
            f"frames = {frames}: the {count} images do not make a whole number of videos. Fix: the number of frames that each "
            "video has, or 0 if all of them are one video"
        )
    return images.reshape(-1, frames or count, *images.shape[1:])


def as_pictures(samples: Tensor) -> Tensor:
    """The pictures that rewards are shown: red, green and blue in [0, 1], without transparency, on the CPU."""
    return samples[..., :3].float().clamp(0, 1).cpu()


def prompts_of(text: str, count: int, one_a_line: bool) -> list[str]:
    """The prompt of each of `count` samples; {"prompt": …} is one with metadata, as a line of a .jsonl file.

    Raises:
        ValueError: another number of lines, or no such object.
    """
    if not one_a_line:
        return [prompt_of(text.strip())] * count
    prompts = lines(text)
    if len(prompts) != count:
        raise ValueError(
            f"prompt has {len(prompts)} lines for {count} pictures or videos. Fix: a line for each, or switch "
            "prompt_per_image off, and all of the text is the prompt of all"
        )
    return prompts


def check(rewards: Sequence[Reward]) -> None:
    """Raises RewardError if no reward ranks."""
    if all(reward.held_out for reward in rewards):
        raise RewardError(
            "K = 0 rewards rank the pictures: all of them are held out. Fix: connect a reward whose held_out switch is off"
        )


def rank(
    rewards: Sequence[Reward],
    samples: Tensor,
    prompts: Sequence[str],
    on_step: Callable[[], None] = lambda: None,
    scored: Sequence[Columns] = (),
) -> Ranking:
    """Ranks pictures [B, H, W, 3] or videos [B, F, H, W, 3] by all rewards that are not held out.

    A reward that does not apply to a sample says nothing for or against it: it counts as average there. A sample that a reward
    failed to score, or that none applies to, ranks last.

    `scored`: what the rewards that judge one by one said, if they were asked before.

    Raises:
        RewardError: all rewards are held out, one threw, or no sample has its scores.
    """
    check(rewards)
    keys = list(map(key, prompts))
    numbers = {prompt_key: number for number, prompt_key in enumerate(dict.fromkeys(keys))}
    groups = torch.tensor([numbers[prompt_key] for prompt_key in keys])
    texts = [prompts[keys.index(prompt_key)] for prompt_key in numbers]
    scores = score_stack(rewards, samples, texts, groups, on_step, scored=scored)
    standings = standing(replace(scores, groups=torch.zeros_like(groups)))
    own = standings[:, : len(scores.names)]
    left_out = scores.values == LEFT_OUT
    coefficients = torch.tensor(scores.coefficients, dtype=own.dtype)
    totals = (torch.where(left_out, 0.0, own) * coefficients).sum(1)
    totals[left_out.all(1)] = torch.nan
    _say_unscored(scores, totals)
    order = totals.nan_to_num(-torch.inf).argsort(descending=True, stable=True)
    return Ranking(scores, standings, totals, order)


def _say_unscored(scores: Scores, totals: Tensor) -> None:
    unscored = totals.isnan()
    if not unscored.any():
        return
    missing = ~scores.values[unscored].isfinite()
    names = [name for name, of_it in zip(scores.names, missing.any(0).tolist(), strict=True) if of_it]
    if unscored.all():
        raise RewardError(f"no picture has its scores: {', '.join(names)} gave no score. Fix: look at its help page")
    numbers = ", ".join(str(number + 1) for number in unscored.nonzero()[:, 0].tolist())
    logger.warning("Score Images: the pictures %s rank last, since they have no score by %s", numbers, ", ".join(names))
