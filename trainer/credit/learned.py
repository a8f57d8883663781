"""Step credit that is measured: which share of each reward's variance each step decides (method.md §4, learned credit).

What step j adds to the reward of the predicted picture, g_j = r_{j+1} - r_j, is nearly a martingale difference: if r_j were
exactly the reward that is to be expected at x_j, gains of different steps would be uncorrelated, and their variances would add up
to that of the whole way, R = r_T - r_0. So Var(g_j)/Var(R) is the share that step j decides of what a group's members differ in.
Cov(g_j, R)/Var(R) adds up to one for any rewards whatsoever, but may be negative.

Everything is measured within groups and before any normalisation, on a few groups every few updates. What was found is averaged
over the training and is remembered as `LearnedShares`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from ...host import distributed
from ...host.json_files import WHOLE
from .. import keys
from ..groups import per_group
from ..memo import Memo
from ..rewards.base import refuse_groups_only
from ..types import StepCredit
from .gains import rewards_along
from .steps import uniform

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from ..families.base import FlowModel
    from ..memo import Saved
    from ..types import Scores, Trajectories

    D = TypeVar("D", bound=DataclassInstance)

MOST_OFF = 0.1  # by which Σ_j Var(g_j)/Var(R) may differ from 1 before the covariances are used instead
FIGURES = LEVEL, NEXT_LEVEL, GAIN, SHARED, SUM, TOTAL = range(6)  # the rows of `StepShares.figures`


@dataclass(frozen=True)
class StepShares:
    """The shares of one reward until now.

    Attributes:
        again: the policy's version from which on it is to be measured again.
        figures: [6, n] float64, a column for each step number: the noise levels σ_j and σ_{j+1} that the step had, and averages
            over those measurements in which it was trained, of Var(g_j), Cov(g_j, R), Σ_i Var(g_i) and Var(R). Zeros where it
            never was.
    """

    again: int
    figures: Tensor


class LearnedShares(dict[str, StepShares], Memo):
    """The shares until now, by the names of rewards."""

    NAME = "credit"

    def saved(self) -> Saved | None:
        figures = {name: shares.figures for name, shares in self.items()}
        return (figures, {name: shares.again for name, shares in self.items()}) if self else None

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor], values: Mapping[str, int]) -> LearnedShares:
        if not all(map(WHOLE[1], values.values())):
            raise ValueError("no whole numbers")
        return cls((name, StepShares(again, tensors[name])) for name, again in values.items())


def looks_ahead(model: FlowModel) -> bool:
    """Whether learned credit is going to measure at this version of the policy, and would use the rollout's predictions."""
    return any(model.policy.version == shares.again for shares in model.memo[LearnedShares].values())


@dataclass(frozen=True)
class Moments:
    """Variances within groups of one measurement, of T steps and K rewards, float64; zeros for a reward without any spread."""

    gain: Tensor  # [T, K] Var(g_j)
    shared: Tensor  # [T, K] Cov(g_j, R)
    total: Tensor  # [K] Var(R)


def moments(rewards: Tensor, groups: Tensor) -> Moments:
    """Variances of the gains and their covariances with the whole way's, each centred on its group's mean.

    The unbiased estimate of all groups together. A sample that a reward could not score at some point is left out for that
    reward, and so is a group of which fewer than two are left.

    Args:
        rewards: r_j [N, T+1, K] of the picture predicted at each point, not finite where there is no score.
        groups: [N].
    """
    steps, count = rewards.shape[1] - 1, rewards.shape[2]
    gain, shared = torch.zeros(2, steps, count, dtype=torch.float64)
    total = torch.zeros(count, dtype=torch.float64)
    for k, along in enumerate(rewards.double().unbind(2)):
        members = [along[member] for member in per_group(groups, along.isfinite().all(1))]
        members = [own for own in members if len(own) > 1]
        if not members:
            continue
        centred = torch.cat([_centred(own.diff(dim=1)) for own in members])
        way = torch.cat([_centred(own[:, -1] - own[:, 0]) for own in members])
        freedom = len(way) - len(members)
        gain[:, k] = centred.square().sum(0) / freedom
        shared[:, k] = (centred * way[:, None]).sum(0) / freedom
        total[k] = way.square().sum() / freedom
    return Moments(gain, shared, total)


def _centred(values: Tensor) -> Tensor:
    """Rows without their mean; exactly 0 where all rows are equal, and no rounding error that would pass for a spread."""
    values = values - values[0]
    return values - values.mean(0)


def learned(
    model: FlowModel,
    trajectories: Trajectories,
    scores: Scores,
    *,
    measure_every: int = 10,
    groups: int = 2,
    decay: float = 0.8,
    w_min: float = 0.5,
) -> StepCredit:
    """Weights of each step for each reward, by the share of the reward's variance that the step decides.

    Measured are `groups` of the batch's groups, at one version of the policy only once: where the last time is `measure_every`
    updates ago, or a trained step or a reward has never been measured. A step belongs to what was found before by its number and
    its two noise levels, a reward by its name; whatever else changes, such as the place of a window, continues the averages.
    The rollout before a measurement that is due keeps its predictions (`looks_ahead`), which saves the model calls.

    w_{j,k} = w_min + (1 - w_min)·T'·(share of step j among the trained ones): of Var(g_j)/Var(R), or, where those do not
    add up to one, of max(0, Cov(g_j, R)/Var(R)). A reward for which nothing has been found yet has weights of 1, and a step that
    could not be measured the mean of the others.

    `groups`: 0: all of them, as where several processes hold the model's weights together.
    `decay`: of the averages, a measurement.

    Raises:
        RewardError: a reward failed, or may not be asked about other pictures.
        ValueError: scores or a model that are not of these trajectories.
    """
    refuse_groups_only(scores.rewards[: len(scores.names)], "the credit learned")
    if len(scores.values) != len(trajectories.groups):
        raise ValueError(
            f"scores: they are of {len(scores.values)} samples, the trajectories are {len(trajectories.groups)}. Fix: let both "
            "come from the same SDE Sampler"
        )
    if not trajectories.made_by(model):
        raise ValueError(
            "model: it is not the one that sampled these trajectories. Fix: connect the model of SDE Sampler"
        )
    if not 0 <= w_min <= 1:
        raise ValueError(f"the smallest weight (w_min) must lie in [0, 1], not {w_min}. Fix: a number in it")
    started = time.perf_counter()
    version = model.policy.version
    if _due(shares := model.memo[LearnedShares], scores.names, trajectories, version):
        measured = _measured(model, trajectories, scores, 0 if model.policy.is_sharded else groups)
        again = {
            name: StepShares(version + measure_every, _averaged(shares.get(name), trajectories, measured, k, decay))
            for k, name in enumerate(scores.names)
        }
        model.memo.keep(LearnedShares(shares | again))
    credit = uniform(trajectories.latents, trajectories.final, trajectories.trained)
    own = [model.memo[LearnedShares][name] for name in scores.names]
    raw, sums = zip(*(_shares(share, trajectories.trained) for share in own), strict=True)
    raw = torch.stack(raw, 1).float()
    weights = w_min + (1 - w_min) * len(raw) * raw
    metrics = {keys.credit_variance(name): value for name, value in zip(scores.names, sums, strict=True)}
    count = len(credit.weights)
    return replace(
        credit,
        weights=weights.mean(1).expand(count, -1),
        raw=raw.mean(1).expand(count, -1),
        by_objective=weights.expand(count, -1, -1),
        objectives=scores.names,
        metrics={name: value for name, value in metrics.items() if value is not None},
        method="learned",
        sigmas=trajectories.sigmas,
        seconds=time.perf_counter() - started,
    )


def _due(shares: Mapping[str, StepShares], names: Sequence[str], trajectories: Trajectories, version: int) -> bool:
    return any(
        share is None
        or version >= share.again
        or not all(_levels(trajectories, step) == _stored_levels(share.figures, step) for step in trajectories.trained)
        for share in map(shares.get, names)
    )


def _levels(trajectories: Trajectories, step: int) -> list[float]:
    return list(trajectories.sigmas[step : step + 2])


def _stored_levels(figures: Tensor, step: int) -> list[float] | None:
    return figures[[LEVEL, NEXT_LEVEL], step].tolist() if step < figures.shape[1] else None


def _measured(model: FlowModel, trajectories: Trajectories, scores: Scores, groups: int) -> Moments:
    """The moments of so many groups, spread evenly over the batch, and so over the processes that share it."""
    count = len(trajectories.prompts)
    chosen = torch.tensor(
        [number * count // groups for number in range(groups)] if 0 < groups < count else range(count)
    )
    rows = torch.isin(trajectories.groups, chosen).nonzero()[:, 0]
    points = range(len(trajectories.sigmas))
    along = torch.zeros(0, len(points), len(scores.names))
    if len(rows):
        own = _of_rows(trajectories, rows)
        along = rewards_along(model, own, _of_rows(scores, rows), points)
        finite = own.latents.isfinite().flatten(1).all(1)
        along = torch.where(finite[:, None, None], along, torch.nan)
    return moments(*map(distributed.whole, (along, trajectories.groups[rows])))


def _of_rows(value: D, rows: Tensor) -> D:
    """Some samples of trajectories or scores."""
    parts = {field.name: getattr(value, field.name) for field in fields(value)}
    return replace(value, **{name: part[rows] for name, part in parts.items() if isinstance(part, torch.Tensor)})


def _averaged(before: StepShares | None, trajectories: Trajectories, found: Moments, k: int, decay: float) -> Tensor:
    """The figures of reward k after one more measurement.

    Each measurement is scaled so that Σ_i Var(g_i) = 1, lest a single one with an outlier outweighs all others. The averages
    begin at 0, which needs no correction: only quotients of two figures of one column are used, and both miss the same factor.
    """
    old = torch.zeros(len(FIGURES), 0, dtype=torch.float64) if before is None else before.figures
    steps = max(old.shape[1], 1 + max(trajectories.trained, default=-1))
    figures = torch.zeros(len(FIGURES), steps, dtype=torch.float64)
    figures[:, : old.shape[1]] = old
    for step in trajectories.trained:
        levels = _levels(trajectories, step)
        if _stored_levels(figures, step) != levels:
            figures[:, step] = torch.tensor([*levels, 0, 0, 0, 0], dtype=torch.float64)
        if found.total[k] > 0:
            scale = found.gain[:, k].sum()
            new = torch.stack([found.gain[step, k], found.shared[step, k], scale, found.total[k]]) / scale
            figures[GAIN:, step] = decay * figures[GAIN:, step] + (1 - decay) * new
    return figures


def _shares(found: StepShares, trained: Sequence[int]) -> tuple[Tensor, float | None]:
    """Shares [T'] of the trained steps, which add up to one, and Σ_j Var(g_j)/Var(R) over all steps, None where not known."""
    figures = found.figures[:, list(trained)]
    measured = figures[TOTAL] > 0
    alike = torch.full((len(trained),), 1 / len(trained), dtype=torch.float64)
    if not measured.any():
        return alike, None
    variance = (figures[SUM, measured] / figures[TOTAL, measured]).mean().item()
    decided = figures[SHARED].clamp(min=0) if abs(variance - 1) > MOST_OFF else figures[GAIN]
    shares = decided / torch.where(measured, figures[TOTAL], 1.0)
    shares = torch.where(measured, shares, shares[measured].mean())
    return (shares / shares.sum() if shares.sum() > 0 else alike), variance
