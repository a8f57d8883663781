"""How far a trajectory has come at each point: what TCD may take for the progress that a step made (method.md §4, §7).

OTCA measures it by the latent itself, which stands for the reward: to measure that costs one scoring for each step. Between the
two lie the predicted latent and the features of the predicted picture.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...host import distributed
from ..groups import total_reward
from ..rewards.base import stills
from ..types import LEFT_OUT, PROXIES
from .gains import is_final, predictions, rewards_along
from .steps import similarity_gain

if TYPE_CHECKING:
    from ..families.base import FlowModel
    from ..networks.features import Clip, Encoder
    from ..types import Scores, Trajectories


def complaint(proxy: str, connected: Collection[str]) -> str | None:
    """The problem of a proxy, or of the inputs that are connected for it; None without one."""
    if proxy not in PROXIES:
        return f"proxy = {proxy!r} is unknown. Fix: one of {', '.join(PROXIES)}"
    missing = [name for name in PROXIES[proxy] if name not in connected]
    if not missing:
        return None
    return (
        f"proxy = {proxy!r} needs {' and '.join(missing)}, which {'is' if len(missing) == 1 else 'are'} not connected. "
        f"Fix: connect {' and '.join(missing)}, or choose the proxy latents"
    )


def similarity(
    proxy: str,
    trajectories: Trajectories,
    model: FlowModel | None = None,
    scores: Scores | None = None,
    encoder: Encoder | Clip | None = None,
) -> Tensor:
    """S_j [B, T+1] of T+1 points, of which the last one stands for the final picture.

    "latents": cos(x_j, x̂0) (OTCA Eq. 6). "prediction": the same of x̂0 as predicted at x_j. "image_features": the same of the
    encoder's features of the pictures decoded from both. "measured_gain": the rewards of the predicted picture, added up by
    `groups.total_reward`, so that ΔS is what the step gained; a reward that does not apply to a sample gains nothing. If some
    reward could not score a sample at some point, it is 0 at all points of that sample, whose steps then all weigh the same.

    `model`, `scores`, `encoder`: for the proxies that need them. All processes have to ask for the same proxy.

    Raises:
        ValueError: an unknown proxy, or one that lacks what it needs.
    """
    connected = {name for name, value in (("model", model), ("scores", scores)) if value is not None}
    if problem := complaint(proxy, connected):
        raise ValueError(problem)
    if proxy == "latents":
        return similarity_gain(trajectories.latents, trajectories.final)[0]
    points = range(len(trajectories.sigmas))
    assert model is not None  # `complaint` has looked
    if proxy == "measured_gain":
        assert scores is not None
        rewards = rewards_along(model, trajectories, scores, points)
        rewards = torch.where((scores.values == LEFT_OUT)[:, None], 0.0, rewards)
        complete = rewards.isfinite().flatten(1).all(1)[:, None]
        return torch.where(complete, total_reward(rewards, scores.coefficients, distributed.whole(scores.values)), 0.0)
    similar = torch.ones(len(trajectories.groups), len(points))  # where x̂0 is the final picture, it is like itself
    inner = [point for point in points if not is_final(trajectories, point)]
    features = partial(_features, encoder)
    final = trajectories.final if proxy == "prediction" else features(trajectories.images)
    texts = trajectories.texts
    for point, (clean, rows, inverse) in zip(inner, predictions(model, trajectories, inner), strict=True):
        if proxy == "image_features":
            prompts = [texts[row] for row in rows.tolist()]
            clean = features(model.decode(clean, trajectories.settings.batch_size, prompts))
        similar[:, point] = torch.nn.functional.cosine_similarity(clean[inverse].flatten(1), final.flatten(1))
    return similar


@torch.no_grad()
def _features(encoder: Encoder | Clip | None, images: Tensor) -> Tensor:
    """[B, D] of pictures, [B, F·D] of videos' frames, as many as rewards look at."""
    assert encoder is not None  # the caller gives one for this proxy
    encoder.come_back()
    frames = images if images.ndim == 4 else stills(images)
    return encoder.pictures(frames).cpu().reshape(len(images), -1)
