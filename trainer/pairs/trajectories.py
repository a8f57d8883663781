"""From pairs to the values that an update takes: trajectories whose end is a given picture, and advantages of 1 and -1."""

from __future__ import annotations

import hashlib
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ...host import distributed
from ..advantages import of_pairs
from ..credit.steps import plain
from ..families.base import FlowModel
from ..pictures import media
from ..prompts import numbers_at
from ..rewards.base import Reward, RewardError
from ..rewards.overlap import Overlap
from ..rollout import share_of, stream
from ..types import OPINION, Advantages, Prompts, SamplerSettings, Scores, StepCredit, Trajectories
from .reading import Pair, PairFolder

MOST_LATENT_BYTES = 2 * 1024**3  # of main memory, to a model: pictures that may come again

Key = tuple[str, int, int]  # a file's digest, and the width and height that it was fitted to


class Latents:
    """Latents of pictures by their files' content, in main memory. Each is encoded once; the longest unused go first."""

    def __init__(self):
        self._rows: dict[Key, Tensor] = {}  # the latest used ones last

    def of(self, keys: Sequence[Key], encode: Callable[[Sequence[int]], Tensor]) -> Tensor:
        """[B, C, (F,) h, w] of B pictures. `encode` makes those of the rows that it is given, none twice."""
        missing = {key: row for row, key in enumerate(keys) if key not in self._rows}
        if missing:
            self._rows |= zip(missing, encode(list(missing.values())), strict=True)
        for key in keys:
            self._rows[key] = self._rows.pop(key)
        found = torch.stack([self._rows[key] for key in keys])
        most = max(len(set(keys)), MOST_LATENT_BYTES // found[0].nbytes)
        for key in list(self._rows)[: max(0, len(self._rows) - most)]:
            del self._rows[key]
        return found


_latents: weakref.WeakKeyDictionary[FlowModel, Latents] = weakref.WeakKeyDictionary()


def take(
    folder: PairFolder,
    model: FlowModel,
    settings: SamplerSettings,
    *,
    count: int,
    index: int,
    shuffle: bool,
    seed: int,
    rewards: Sequence[Reward] = (),
    on_step: Callable[[], None] = lambda: None,
) -> tuple[Trajectories, Advantages]:
    """The pairs of iteration `index`, each of which is a group of two: the chosen picture, then the rejected one.

    Nothing is sampled. x̂0 is the picture's latent, σ are the levels of a deterministic sampler, and all of them are trained.
    The points between are those of the straight line x_σ = (1-σ)·x̂0 + σ·ε, with one ε for both of a pair: an update that
    noises x̂0 again does not look at them, and whatever does (the divergence from the reference, credit by similarity) sees the
    points that the model was trained on, not where this policy would have gone.

    Args:
        settings: see `SamplerSettings.of_pairs`; pictures are fitted to its size.
        count: pairs to an iteration; each of several processes takes its share of their pictures.
        shuffle: into a new order in every pass over the folder, by `seed`.
        seed: of the noise too, which is another in every iteration.
        rewards: held-out ones, which evaluations ask.
        on_step: called before every picture; may raise to stop.

    Raises:
        PairError: a file is not a picture.
        RewardError: a reward that is not held out.
        ValueError: a size that the model cannot make.
    """
    check_rewards(rewards)
    started = time.perf_counter()
    model.come_back()
    model.latent_shape(settings.height, settings.width)  # refuses a size before anything is read
    positions = tuple(range(index * count, (index + 1) * count))
    numbers = numbers_at(positions, len(folder.pairs), seed if shuffle else None)
    pairs, share = [folder.pairs[number] for number in numbers], share_of(model, 2 * count)
    images, keys = _pictures(folder, [(pairs[row // 2], row % 2) for row in share.rows], settings, on_step)
    held = _latents.setdefault(model, Latents())
    final = held.of(keys, lambda rows: model.encode(images[list(rows)], settings.batch_size))
    prompts = Prompts(tuple(pair.prompt for pair in pairs), positions)
    of_rows = [row // 2 for row in share.rows]
    trajectories = on_lines(model, settings, final, images, prompts, share, of_rows, seed + index)
    trajectories = replace(trajectories, seconds=time.perf_counter() - started)
    chosen = torch.tensor([1.0 - row % 2 for row in share.rows])
    return trajectories, of_scores(trajectories, chosen, rewards, distributed.whole(plain(trajectories)))


def on_lines(
    model: FlowModel,
    settings: SamplerSettings,
    final: Tensor,
    images: Tensor,
    prompts: Prompts,
    share: distributed.Share,
    groups: Sequence[int],
    seed: int,
) -> Trajectories:
    """Trajectories of the pictures with these latents [B, C, (F,) h, w], from the noise of their groups [B]."""
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


def _pictures(
    folder: PairFolder, wanted: Sequence[tuple[Pair, int]], settings: SamplerSettings, on_step: Callable[[], None]
) -> tuple[Tensor, list[Key]]:
    """[B, H, W, 3] in [0, 1] of B files, each the chosen (0) or the rejected (1) one of a pair, and the keys of their latents."""
    size, images, keys = (settings.width, settings.height), [], []
    for pair, member in wanted:
        on_step()
        name = pair.files[member]
        content = folder.picture(pair, name)
        try:
            images.append(media.fitted(content, *size))
        except ValueError as error:
            raise folder.error(pair, name, str(error)) from error
        keys.append((hashlib.sha256(content).hexdigest(), *size))
    return torch.from_numpy(np.stack(images)).float() / 255, keys


def of_scores(trajectories: Trajectories, values: Tensor, rewards: Sequence[Reward], credit: StepCredit) -> Advantages:
    """The advantages of the whole batch, of which these trajectories and their scores [B] in [0, 1] may be a share."""
    scores = Scores(
        values=values[:, None],
        names=(OPINION,),
        coefficients=(1.0,),
        groups=trajectories.groups,
        held_out=torch.empty(len(values), 0),
        held_out_names=(),
        rewards=rewards,
        prompts=trajectories.prompts,
    )
    return of_pairs(replace(distributed.whole(scores), plain=credit), credit)


def check_rewards(rewards: Sequence[Reward]) -> None:
    if trained := [repr(reward.name) for reward in rewards if not reward.held_out]:
        raise RewardError(
            f"reward {', '.join(trained)}: pairs are learned from, and rewards only judge evaluations here. Fix: switch on "
            "held_out on its node"
        )
