"""From opinions to the values that an update takes, and how often the trained model agrees with those that were held out."""

from __future__ import annotations

import functools
import logging
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ...host import devices, distributed
from ..credit.steps import plain
from ..errors import standard_error
from ..families.base import FlowModel
from ..pictures import media
from ..prompts import numbers_at
from ..rewards.base import Reward
from ..rollout import share_of, stream
from ..types import Advantages, Prompts, SamplerSettings, Trajectories
from .kept import KeptLatents
from .plan import PAIRS, Group, Item, Plan, places
from .trajectories import check_rewards, of_scores, on_lines

logger = logging.getLogger(__name__)

MOST_JUDGED = 64  # held-out pairs that agreement is measured on: the first by their order
LEVELS = 4  # noise levels of each

_kept: weakref.WeakKeyDictionary[FlowModel, dict[tuple[int, int], KeptLatents]] = weakref.WeakKeyDictionary()


def take(
    plan: Plan,
    model: FlowModel,
    settings: SamplerSettings,
    *,
    form: str,
    count: int,
    index: int,
    shuffle: bool,
    seed: int,
    check_every: int,
    rewards: Sequence[Reward] = (),
    on_step: Callable[[], None] = lambda: None,
) -> tuple[Trajectories, Advantages]:
    """The opinions of iteration `index`: `count` pairs, each a group of two, or twice as many pictures, each a group of one.

    Nothing is sampled, see `trajectories.take`. z is a pair's 1 and -1, or the picture's value; regions become the credit's
    places.

    Args:
        settings: see `SamplerSettings.of_pairs`; pictures are fitted to its size.
        check_every: iterations between two measurements of `agreement`; 0: never.
        rewards: held-out ones, which evaluations ask.

    Raises:
        RewardError: a reward that is not held out.
        ValueError: a size that the model cannot make, or a picture that went meanwhile.
    """
    check_rewards(rewards)
    started = time.perf_counter()
    model.come_back()
    model.latent_shape(settings.height, settings.width)
    each = 2 if form == PAIRS else 1
    groups_taken = 2 * count // each
    positions = tuple(range(index * groups_taken, (index + 1) * groups_taken))
    numbers = numbers_at(positions, len(plan.groups), seed if shuffle else None)
    groups = [plan.groups[number] for number in numbers]
    items = [item for group in groups for item in group.items]
    share = share_of(model, len(items))
    mine = [items[row] for row in share.rows]
    images = _images(plan, mine, settings, on_step)
    final = _latents(model, mine, images, settings)
    prompts = Prompts(tuple(group.prompt for group in groups), positions)
    of_rows = [row // each for row in share.rows]
    trajectories = on_lines(model, settings, final, images, prompts, share, of_rows, seed + index)
    trajectories = replace(trajectories, seconds=time.perf_counter() - started)
    liked = torch.tensor([(1 + item.value) / 2 for item in mine])
    advantages = of_scores(trajectories, liked, rewards, _credit(trajectories, plan, items, settings))
    if check_every and index % check_every == 0 and plan.held_out:
        figures = agreement(model, plan, settings, seed)
        advantages = replace(advantages, metrics={**advantages.metrics, **figures})
    return trajectories, advantages


def agreement(model: FlowModel, plan: Plan, settings: SamplerSettings, seed: int) -> dict[str, float]:
    """How often the model's implicit preference is that of the held-out pairs, and its standard error, clustered by prompt.

    A model prefers the picture whose ℓ it has lowered more against the untrained one: (ℓ - ℓ_ref) of the better below that of the
    worse, as the mean over LEVELS noise levels, the same noise for both and in every measurement. Alike counts as a half.

    Returns:
        `opinions/agreement`, `opinions/agreement_error` (NaN becomes no figure), `opinions/held_out`: how many pairs.
    """
    pairs = plan.held_out[:MOST_JUDGED]
    items = [item for group in pairs for item in group.items]
    final = _latents(model, items, _images(plan, items, settings, lambda: None), settings)
    every = model.sigmas(settings)[:-1]
    levels = [every[int(place)] for place in np.linspace(0, len(every) - 1, min(LEVELS + 1, len(every)))[1:]]
    margins = []
    for number, group in enumerate(pairs):
        clean = devices.upload(final[2 * number : 2 * number + 2], model.device)
        gained = torch.zeros(2)
        for place, sigma in enumerate(levels):
            source = stream(seed, number, place, 0, branch=(3,))
            noise = devices.upload(torch.randn(final.shape[1:], generator=source).expand_as(final[:2]), model.device)
            gained += _gained(model, group, settings, clean, noise, sigma)
        margins.append((gained[1] - gained[0]).item())
    right = [0.5 if margin == 0 else float(margin > 0) for margin in margins]
    mean, error, _ = standard_error(right, [group.prompt for group in pairs])
    figures = {"opinions/agreement": mean, "opinions/agreement_error": error, "opinions/held_out": float(len(pairs))}
    return {name: value for name, value in figures.items() if np.isfinite(value)}


@torch.no_grad()
def _gained(
    model: FlowModel, group: Group, settings: SamplerSettings, clean: Tensor, noise: Tensor, sigma: float
) -> Tensor:
    """ℓ - ℓ_ref of both pictures of a pair at one level, [2] in main memory."""
    plain_settings = model.unguided(settings)
    condition = model.condition([group.prompt], plain_settings).rows(torch.tensor([0, 0]))

    def error() -> Tensor:
        x = (1 - sigma) * clean + sigma * noise
        velocity = model.velocity(
            x, torch.full((2,), sigma, dtype=torch.float64), condition, model.guidance_at(sigma, settings)
        )
        return (velocity.float() - (noise - clean)).square().flatten(1).mean(1).cpu()

    with model.policy.reference():
        before = error()
    return error() - before


def _images(plan: Plan, items: Sequence[Item], settings: SamplerSettings, on_step: Callable[[], None]) -> Tensor:
    """[B, H, W, 3] in [0, 1], fitted to the size."""
    images = []
    for item in items:
        on_step()
        images.append(
            media.fitted(plan.source.read(plan.source.pictures[item.picture]), settings.width, settings.height)
        )
    return torch.from_numpy(np.stack(images)).float() / 255


def _latents(model: FlowModel, items: Sequence[Item], images: Tensor, settings: SamplerSettings) -> Tensor:
    size, of_model = (settings.width, settings.height), _kept.setdefault(model, {})
    if size not in of_model:
        of_model[size] = KeptLatents(model, size)
    encode = functools.partial(_encoded, model, images, settings)
    return of_model[size].of([item.picture for item in items], encode)


def _encoded(model: FlowModel, images: Tensor, settings: SamplerSettings, rows: Sequence[int]) -> Tensor:
    return model.encode(images[list(rows)], settings.batch_size)


def _credit(trajectories: Trajectories, plan: Plan, items: Sequence[Item], settings: SamplerSettings):
    """Every level alike, and of the whole batch the places that its regions name; None of them: everywhere alike."""
    credit = distributed.whole(plain(trajectories))
    if not any(item.regions for item in items):
        return credit
    shape, size = trajectories.final.shape[2:], (settings.width, settings.height)
    masks = [places(item, plan.source.pictures[item.picture], size, (shape[-2], shape[-1])) for item in items]
    spatial = torch.from_numpy(np.stack(masks)).float()
    return replace(credit, spatial=spatial if len(shape) == 2 else spatial[:, None].expand(-1, *shape))
