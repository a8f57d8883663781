"""The update from clean samples: noise x̂0 again, and match the velocity there by advantage (method.md §9).

Every loss of `matching` is the same loop: for some noise levels of each sample x_σ = (1-σ)·x0 + σ·ε, one call for the policy, and
one without gradient for each other policy that the loss or a KL term compares it with. What differs is which levels are drawn,
and which samples have to be together; `drawn_levels` and `KINDS` say that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ..host import devices, distributed, stopping
from .credit import sampled_steps
from .families.base import FlowModel
from .groups import per_group
from .rollout import beside, stream
from .types import OLD_POLICIES, Advantages, MatchingSettings, Metrics, NextRollout, SamplerSettings, Trajectories
from .updates import refusals
from .updates.matching_losses import KINDS, matching_loss
from .updates.optimizer import check_source, outcome, part_of, prepared, take_steps
from .updates.passes import Part, Passes, networks, pack

# How much of the old policy stays after so many optimizer steps (DiffusionNFT, 2509.16117): see `Policy.follow`.
OLD_DECAYS: dict[str, Callable[[int], float]] = {
    "gradual": lambda steps: min(0.001 * steps, 0.5),
    "late": lambda steps: 0.0 if steps < 75 else min(0.0075 * (steps - 75), 0.999),
    "on_policy": lambda steps: 0.0,
}
NOISIEST = 0.6  # share of the levels that dgpo takes, from the first one on


@stopping.whole()
def update(
    model: FlowModel,
    trajectories: Trajectories,
    advantages: Advantages,
    settings: MatchingSettings,
    on_step: Callable[[], None] = lambda: None,
) -> Metrics:
    """Moves the policy by one optimizer step for each part in each epoch, with gradients of its samples of all processes.

    The loss is the mean of `matching_loss` over all valid samples and all noise levels that they visited, each level weighted by
    its credit; with `sampled_steps` an unbiased estimate of it. Levels and noise are drawn once for all epochs, from the seed,
    the policy's version and the sample's number alone: neither the number of processes nor a resume changes them. Where the
    credit says how the objectives differ by step, its Ã_j is the advantage at σ_j; else z is, and the credit weighs the loss.

    Afterwards the old policy follows: old ← d·old + (1-d)·θ, with d by `settings.old_policy` and the number of optimizer steps.

    `advantages`: of the whole batch, of which the trajectories may be a share.
    `on_step`: called before every backward pass of the first epoch and may raise to stop: until then nothing has changed.

    Returns:
        Figures of this update, for the log.

    Raises:
        NonFiniteUpdate: after ten updates in a row without a finite gradient.
        ValueError: a setting or a credit that this update has no use for, advantages of other trajectories, or a gradient that
            is known to be wrong.
    """
    check_source(trajectories, advantages)
    _check(trajectories, advantages, settings)
    started, policy = time.perf_counter(), model.policy
    trajectories = prepared(model, trajectories)
    if trajectories.kept:
        trajectories.kept.take()  # of a rollout that knew nothing of this update
    counts = drawn_levels(trajectories, advantages, settings, policy.version)
    parts = [counts * part_of(advantages, part, settings.parts).valid[:, None] for part in range(settings.parts)]
    passes = [_Backward(model, trajectories, advantages, part, settings) for part in parts]
    backward, differs, decay = passes[0], policy.old is not None, OLD_DECAYS[settings.old_policy]

    def one(number: int) -> None:
        own = passes[number % settings.parts]
        own.tally = backward.tally
        own.accumulate(
            (lambda: None) if number else on_step
        )  # after the first optimizer step a stop waits for the last
        if settings.epochs * settings.parts > 1 or decay(policy.old_steps + 1):
            policy.keep_old()

    steps = take_steps(model, trajectories, settings, backward.tally, one, NextRollout(uses_graphs=False))
    if not (steps or differs):
        policy.follow(0)  # and no `forget_old`, which would begin the schedule again
    policy.version += steps > 0
    policy.old_steps += steps
    if steps:
        policy.follow(decay(policy.old_steps))
    metrics = backward.figures() | {"old_policy/decay": decay(policy.old_steps)}
    if settings.sampled_steps and advantages.valid.any():
        metrics["update/sampled_share"] = (counts[advantages.valid] != 0).double().mean().item()
    return metrics | outcome(model, trajectories, settings, backward.tally, steps, started)


def one_pass(
    model: FlowModel, trajectories: Trajectories, advantages: Advantages, settings: MatchingSettings
) -> tuple[Callable[[Callable[[], None]], None], Callable[[], Metrics]]:
    """The gradient alone, for an update that adds it to its own: what leaves it in the weights, and then its figures."""
    check_source(trajectories, advantages)
    _check(trajectories, advantages, settings)
    counts = drawn_levels(trajectories, advantages, settings, model.policy.version)
    backward = _Backward(model, trajectories, advantages, counts, settings)
    backward.tally.passes = 1
    return backward.accumulate, backward.figures


def _check(trajectories: Trajectories, advantages: Advantages, settings: MatchingSettings) -> None:
    credit = advantages.credit
    if settings.loss not in KINDS or settings.old_policy not in OLD_POLICIES:
        raise ValueError(
            f"loss must be one of {tuple(KINDS)} and old_policy one of {OLD_POLICIES}, not {settings.loss!r} and "
            f"{settings.old_policy!r}"
        )
    if KINDS[settings.loss].groups and len(trajectories.prompts) % distributed.world():
        raise ValueError(str(refusals.of_processes(settings.loss, len(trajectories.prompts), distributed.world())))
    misfits = [*refusals.of_parts(settings.parts, len(trajectories.prompts))]
    if not trained_levels(trajectories, settings).any():
        misfits.append(refusals.of_range(settings, trajectories.sigmas))
    # By selection alone: where rewards failed, a later iteration may have pairs again.
    if advantages.most_of_a_group is not None:
        misfits += refusals.of_selection(settings.loss, advantages.most_of_a_group)
    misfits += refusals.of_matching(
        trajectories.settings, keeps_graph=trajectories.kept is not None and trajectories.kept.asked_for
    )
    if credit.ratio_scale or credit.regulated:
        misfits.append(refusals.of_credit(f"the credit {credit.method}"))
    if credit.measures is not None:
        misfits.append(refusals.of_measuring(f"the credit {credit.method}"))
    if misfits:
        raise ValueError(str(misfits[0]))


# -- what is drawn -----------------------------------------------------------------------------------------------------


def drawn_levels(
    trajectories: Trajectories, advantages: Advantages, settings: MatchingSettings, version: int
) -> Tensor:
    """How many levels each level stands for, [B, T'] of the whole batch: 1/π where it is drawn, else 0; 0 for masked samples.

    Drawn for the whole batch, of which every process takes its rows. Every level of a valid sample has π > 0: where θ is not the
    old policy, a loss may have a gradient where the advantage is 0. By loss:

    - nft, awm: each sample draws its own, by its credit. (AWM's authors draw them stratified, without the first level, and
      alike for all samples of a pass; DiffusionNFT's take all but one.)
    - dgpo: alike for all samples, from the noisiest 60 % unless a lowest level is set: a group is compared at one point.
    - dpo: alike for both members of a pair, every level with the same chance; only pairs train.
    """
    valid = advantages.valid
    groups = advantages.scores.groups
    generator = sampled_steps.generator(trajectories.seed, version)
    alike = trained_levels(trajectories, settings).float()[None]  # [1, T']
    if settings.loss == "dgpo":
        pull, which = alike, torch.zeros_like(groups)  # [1, T'], [B]
    elif settings.loss == "dpo":
        valid = _of_pairs(advantages)
        pull, which = alike.repeat(int(groups.max()) + 1, 1), groups  # [P, T'], [B]
    else:
        size = advantages.step_advantage if advantages.by_step else advantages.credit.weights  # [B, T']
        pull, which = sampled_steps.everywhere(size.abs(), valid) * alike, torch.arange(len(groups))
    count = settings.sampled_steps
    drawn = sampled_steps.draw(pull, count, generator) if count else (pull != 0).float()  # [1 or P or B, T']
    return drawn[which] * valid[:, None]  # [B, T']


def trained_levels(trajectories: Trajectories, settings: MatchingSettings) -> Tensor:
    """[T'] bool: those of the range; of dgpo without a lowest one, the noisiest 60 % of all."""
    sigmas = torch.tensor(trajectories.sigmas, dtype=torch.float64)[list(trajectories.trained)]
    inside = (sigmas >= settings.lowest_level) & (sigmas <= settings.highest_level)
    if settings.loss == "dgpo" and not settings.lowest_level:
        inside[math.ceil(NOISIEST * len(inside)) :] = False
    return inside


def _of_pairs(advantages: Advantages) -> Tensor:
    """[B] bool: the best and the worst valid sample of each group, by z; not in a group whose samples are all equal."""
    z, chosen = advantages.fused.advantage, torch.zeros_like(advantages.valid)
    for member in per_group(advantages.scores.groups, advantages.valid):
        rows = member.nonzero()[:, 0]
        if len(rows) and z[rows].max() > z[rows].min():
            chosen[rows[z[rows].argmax()]] = chosen[rows[z[rows].argmin()]] = True
    return chosen


def fresh_noise(
    loss: str, trajectories: Trajectories, version: int, positions: Sequence[int], rows: Sequence[int]
) -> Tensor:
    """ε [N, C, (F,) h, w] of N (level, sample) pairs: a stream for each; one for a group at a level (dpo), or at all (dgpo)."""
    shape, noise = trajectories.final.shape[1:], []
    for position, row in zip(positions, rows, strict=True):
        if KINDS[loss].groups:
            number, position = int(trajectories.groups[row]), 0 if loss == "dgpo" else position
        else:
            number = trajectories.share.rows[row]
        source = stream(trajectories.seed, version, number, position, branch=(2,))
        noise.append(torch.randn(shape, generator=source))
    return torch.stack(noise)


# -- one pass ----------------------------------------------------------------------------------------------------------


class _Backward(Passes):
    """Accumulates the gradient of the loss over all (sample, level) pairs."""

    def __init__(self, model, trajectories, advantages, counts: Tensor, settings):
        has_level = counts.any(1)  # [B] of the whole batch
        levels = int(trained_levels(trajectories, settings).sum())
        total, computed = max(1, int(has_level.sum()) * levels), max(1, int((counts != 0).sum()))
        super().__init__(model, total, settings, computed)
        self.trajectories, self.settings, self.kind = trajectories, settings, KINDS[settings.loss]
        self.version = model.policy.version
        rows, credit = list(trajectories.share.rows), advantages.credit
        self.drawn = counts[rows]  # [B, T']
        if advantages.by_step and settings.loss != "dpo":  # whose pairs are the same at every level
            self.advantage, self.weight = advantages.step_advantage[rows], self.drawn
        else:
            self.advantage = advantages.fused.advantage[rows, None].expand_as(self.drawn)  # z [B] as [B, T']
            self.weight = self.drawn if advantages.by_step else self.drawn * credit.weights[rows]
        self.spatial = None if credit.spatial is None else credit.spatial[rows]  # [B, (F,) h, w]
        # Without classifier-free guidance there is no negative half; the guidance of a distilled model is a part of its input.
        self.sampler = trajectories.settings if settings.guidance else model.unguided(trajectories.settings)
        self.levels = torch.tensor(trajectories.sigmas, dtype=torch.float64)[list(trajectories.trained)]  # [T']
        calls = networks(model, self.levels.tolist())
        groups = trajectories.groups if self.kind.groups else None
        size = settings.batch_size or max(1, len(rows))
        self.parts = pack(self.drawn != 0, calls, size, groups, keeps_pace=model.policy.is_sharded)

    def losses(self, part: Part) -> Iterator[Tensor]:
        self.on_step()
        settings, trajectories, policy = self.settings, self.trajectories, self.model.policy
        rows, steps = part.rows, part.steps  # [N], [N]
        noise = fresh_noise(
            settings.loss, trajectories, self.version, steps.tolist(), rows.tolist()
        )  # [N, C, (F,) h, w]
        clean, noise = (devices.upload(values, self.model.device) for values in (trajectories.final[rows], noise))
        sigma = self.levels[steps].to(clean.dtype)  # [N], in main memory, as all that is compared there
        level = beside(sigma, clean)  # [N, 1, 1, 1]
        x, levels = (1 - level) * clean + level * noise, self.levels[steps]  # [N, C, (F,) h, w], [N]

        def predict(sampler: SamplerSettings = self.sampler) -> Tensor:
            condition = self.model.condition(trajectories.prompts, sampler).rows(trajectories.groups[rows])
            return self.model.velocity(x, levels, condition, self.model.guidance_at(float(levels[0]), sampler))

        old = reference = None
        if self.kind.old and policy.old is not None:
            with torch.no_grad(), policy.sampling():
                old = predict()
        if self.kind.reference or self.kl_coefficient:
            with torch.no_grad(), policy.reference():
                reference = predict(self.sampler.of_reference(settings.reference_guidance))
        velocity = predict()  # [N, C, (F,) h, w]
        if part.idle:
            yield 0.0 * velocity.sum()
            return
        loss, statistics = matching_loss(
            settings.loss,
            velocity,
            clean,
            noise,
            sigma,
            self.advantage[rows, steps].to(sigma),
            old=old,
            reference=reference,
            groups=steps * len(trajectories.prompts) + trajectories.groups[rows],
            beta=settings.beta or self.kind.beta,
            weight=self.weight[rows, steps].to(sigma),
            spatial=None if self.spatial is None else self.spatial[rows].to(sigma),
            keep_winner=settings.keep_winner,
            weighting=settings.weighting,
        )
        kl = None
        if self.kl_coefficient and reference is not None:
            counts = devices.upload(self.drawn[rows, steps].to(sigma), clean.device)  # [N]
            kl = self.divergence(velocity, reference, counts).mean()
        yield self.share(loss, statistics, len(rows), kl)

    def figures(self) -> dict[str, float]:
        """The figures of all passes, for the log."""
        names = {"loss": "loss", "kl": "kl/penalty"}
        names |= {name: f"matching/{name}" for name in self._statistics()}
        means = self.tally.means(names)
        figures = {name: means[key] for key, name in names.items() if key in means}
        return {"loss": 0.0} | figures | {"gradient_norm": self.tally.gradient_norm}

    def _statistics(self) -> list[str]:
        """Names of what this loss reports, which a process without any pair has to know too."""
        two = torch.zeros(2, 1, 1, 1)
        ends, group = torch.tensor([1.0, -1.0]), torch.tensor([0, 0])
        others = {"old": two, "reference": two, "groups": group, "keep_winner": self.settings.keep_winner}
        _, statistics = matching_loss(self.settings.loss, two, two, two, torch.full((2,), 0.5), ends, **others)
        return list(statistics)
