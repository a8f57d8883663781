"""From opinions to what an update takes: trajectories whose end is a given picture, and advantages of what is thought of them;
and how often the trained model agrees with opinions that were held out."""

from __future__ import annotations

import hashlib
import logging
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ...host import devices, distributed
from ...host.access.opening import shown
from ..advantages import of_pairs
from ..credit.steps import plain
from ..errors import standard_error
from ..families.base import FlowModel
from ..pictures import media
from ..prompts import numbers_at
from ..rewards.base import Reward, RewardError
from ..rewards.overlap import Overlap
from ..rollout import share_of, stream
from ..types import OPINION, Advantages, Prompts, SamplerSettings, Scores, Trajectories, place_of
from .latents import Latents
from .plan import PAIRS, Group, Item, Plan, places
from .reading import PairError

logger = logging.getLogger(__name__)

MOST_JUDGED = 64  # held-out pairs that agreement is measured on: the first by their order
LEVELS = 4  # noise levels of each
CHECK_EVERY = 10  # iterations between two measurements of it

_latents: weakref.WeakKeyDictionary[FlowModel, dict[tuple[int, int], Latents]] = weakref.WeakKeyDictionary()


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
    rewards: Sequence[Reward] = (),
    on_step: Callable[[], None] = lambda: None,
) -> tuple[Trajectories, Advantages]:
    """The opinions of iteration `index`: `count` pairs, each a group of two, or twice as many pictures, each a group of one.

    Nothing is sampled, see `_on_lines`. z is a pair's 1 and -1, or the picture's value; regions become the credit's places.

    `settings`: see `SamplerSettings.of_pairs`; pictures are fitted to its size.
    `count`: pairs to an iteration; each of several processes takes its share of their pictures.
    `shuffle`: into a new order in every pass over the pairs, by `seed`.
    `seed`: of the noise too, which is another in every iteration.
    `rewards`: held-out ones, which evaluations ask.
    `on_step`: called before every picture; may raise to stop.

    Raises:
        PairError: a file is not a picture.
        RewardError: a reward that is not held out.
        ValueError: a size that the model cannot make, or a picture that went meanwhile.
    """
    if trained := [repr(reward.name) for reward in rewards if not reward.held_out]:
        raise RewardError(
            f"reward {', '.join(trained)}: pairs are learned from, and rewards only judge evaluations here. Fix: switch on "
            "held_out on its node"
        )
    started = time.perf_counter()
    model.come_back()
    model.latent_shape(settings.height, settings.width)
    size = 2 if form == PAIRS else 1
    groups_taken = 2 * count // size
    positions = tuple(range(index * groups_taken, (index + 1) * groups_taken))
    numbers = numbers_at(positions, len(plan.groups), seed if shuffle else None)
    groups = [plan.groups[number] for number in numbers]
    items = [item for group in groups for item in group.items]
    share = share_of(model, len(items))
    own = [items[row] for row in share.rows]
    images, final = _encoded(
        model, plan, [(groups[row // size].prompt, items[row]) for row in share.rows], settings, on_step
    )
    prompts = Prompts(tuple(group.prompt for group in groups), positions)
    of_rows = [row // size for row in share.rows]
    trajectories = _on_lines(model, settings, final, images, prompts, share, of_rows, seed + index)
    trajectories = replace(trajectories, seconds=time.perf_counter() - started)
    liked = torch.tensor([(1 + item.value) / 2 for item in own])
    # The advantages of the whole batch, of which these trajectories and their scores [B] in [0, 1] may be a share
    credit = _credit(trajectories, plan, items, settings)
    scores = Scores(
        values=liked[:, None],
        names=(OPINION,),
        coefficients=(1.0,),
        groups=trajectories.groups,
        held_out=torch.empty(len(liked), 0),
        held_out_names=(),
        rewards=rewards,
        prompts=trajectories.prompts,
    )
    advantages = of_pairs(replace(distributed.whole(scores), plain=credit), credit)
    if index % CHECK_EVERY == 0 and plan.held_out:
        advantages = replace(advantages, metrics={**advantages.metrics, **agreement(model, plan, settings, seed)})
    return trajectories, advantages


def _on_lines(
    model: FlowModel,
    settings: SamplerSettings,
    final: Tensor,
    images: Tensor,
    prompts: Prompts,
    share: distributed.Share,
    groups: Sequence[int],
    seed: int,
) -> Trajectories:
    """Returns trajectories of the pictures with these latents [B, C, (F,) h, w], from the noise of their groups [B].

    Nothing is sampled. x̂0 is the picture's latent, σ are the levels of a deterministic sampler, and all of them are trained.
    The points between are those of the straight line x_σ = (1-σ)·x̂0 + σ·ε, with one ε for all of a group: an update that
    noises x̂0 again does not look at them, and whatever does (the divergence from the reference, credit by similarity) sees the
    points that the model was trained on, not where this policy would have gone.
    """
    sigmas = model.sigmas(settings)
    noise = [torch.randn(final.shape[1:], generator=stream(seed, prompts.positions[group], 0)) for group in groups]
    steps = len(sigmas) - 1
    return Trajectories(
        latents=torch.stack([(1 - sigma) * final + sigma * torch.stack(noise) for sigma in sigmas], 1),
        final=final,
        images=images,
        sigmas=sigmas,
        trained=tuple(range(steps)),
        stds=(0.0,) * steps,
        log_probs=torch.empty(len(final), 0),
        groups=torch.tensor(groups),
        share=share,
        prompts=prompts.texts,
        positions=prompts.positions,
        settings=settings,
        policy_version=model.policy.version,
        sampled_with=model.policy.samples_with,
        seed=seed,
        model=model,
        overlap=Overlap(),
    )


def agreement(model: FlowModel, plan: Plan, settings: SamplerSettings, seed: int) -> dict[str, float]:
    """How often the model's implicit preference is that of the held-out pairs, and its standard error, clustered by prompt.

    A model prefers the picture whose ℓ it has lowered more against the untrained one: (ℓ - ℓ_ref) of the better below that of the
    worse, as the mean over LEVELS noise levels, the same noise for both and in every measurement. Alike counts as a half.

    Returns:
        `opinions/agreement`, `opinions/agreement_error` (NaN becomes no figure), `opinions/held_out`: how many pairs.
    """
    pairs = plan.held_out[:MOST_JUDGED]
    _, final = _encoded(model, plan, [(group.prompt, item) for group in pairs for item in group.items], settings)
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


def _encoded(
    model: FlowModel,
    plan: Plan,
    chosen: Sequence[tuple[str, Item]],
    settings: SamplerSettings,
    on_step: Callable[[], None] = lambda: None,
) -> tuple[Tensor, Tensor]:
    """The pictures of B items with their prompts, fitted to the size, [B, H, W, 3] in [0, 1]; their latents [B, C, (F,) h, w]."""
    size = (settings.width, settings.height)
    fitted, digests = [], []
    for prompt, item in chosen:
        on_step()
        picture = plan.source.pictures[item.picture]
        content = plan.source.read(picture)
        try:
            fitted.append(media.fitted(content, *size))
        except ValueError as error:
            fix = "put a plain picture there (PNG, JPEG, WebP or BMP), or take it out of the list"
            raise PairError(
                f"{place_of(prompt)}: file {shown(picture.path or picture.id)} {error}. Fix: {fix}"
            ) from error
        digests.append(hashlib.sha256(content).hexdigest())
    images = torch.from_numpy(np.stack(fitted)).float() / 255
    of_model = _latents.setdefault(model, {})
    if size not in of_model:
        of_model[size] = Latents(model, size)
    return images, of_model[size].of(digests, lambda rows: model.encode(images[list(rows)], settings.batch_size))


def _credit(trajectories: Trajectories, plan: Plan, items: Sequence[Item], settings: SamplerSettings):
    """Every level alike, and of the whole batch the places that its regions name; None of them: everywhere alike."""
    credit = distributed.whole(plain(trajectories))
    if not any(item.regions for item in items):
        return credit
    shape, size = trajectories.final.shape[2:], (settings.width, settings.height)
    masks = [places(item, plan.source.pictures[item.picture], size, (shape[-2], shape[-1])) for item in items]
    spatial = torch.from_numpy(np.stack(masks)).float()
    return replace(credit, spatial=spatial if len(shape) == 2 else spatial[:, None].expand(-1, *shape))
