"""What an update takes, of pictures that are there: trajectories whose end is a given picture, and advantages of what is thought
of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ...host import distributed
from ..advantages import of_pairs
from ..families.base import FlowModel
from ..rewards.base import Reward, RewardError
from ..rewards.overlap import Overlap
from ..rollout import stream
from ..types import OPINION, Advantages, Prompts, SamplerSettings, Scores, StepCredit, Trajectories


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
