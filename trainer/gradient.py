"""The update along the rewards' own gradient: back through reward, decoder and some calls of the network (method.md §10).

J is the mean over samples of Σ_k c_k·R_k/s_k, where c_k is a reward's coefficient and s_k the spread of its scores. Every mode of
`MODES` is one way to take ∂J/∂x̂0, the *pull* on a decoded latent, back to velocities at points that the rollout visited. There
it becomes a gradient of the weights, by one backward pass a call: of a new call, or of the rollout's own, where that
was recognised before it was made (`take_graphs`).
"""

from __future__ import annotations

import copy
import functools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..host import devices, distributed, stopping
from ..host.json_files import NUMBER, WHOLE
from . import fusion, grpo, keys, matching
from .advantages import SOLVERS
from .credit import sampled_steps
from .families.base import FlowModel
from .memo import Memo
from .native.model import NativeModel
from .rewards.base import GroupReward, check_paths, score_with_gradient
from .rollout import beside, levels_drawn, parts_of, sampled_noise, slopes, source_of_levels, stream
from .schedule import step_kinds
from .sde import MIN_STD
from .types import (
    CREDIT_ONLY,
    HALO,
    THETA,
    VIDEO_FRAMES,
    Advantages,
    Fused,
    GradientSettings,
    MatchingSettings,
    Metrics,
    NextRollout,
    PulledCalls,
    Scores,
    StepCredit,
    Trajectories,
    UpdateSettings,
    side_of,
)
from .updates import refusals
from .updates.optimizer import NonFiniteUpdate, outcome, prepared, take_steps
from .updates.passes import Graphs, Part, Passes

if TYPE_CHECKING:
    from comfy.sd import VAE

    from .memo import Saved

Decoders = Callable[[Sequence[str]], AbstractContextManager[Callable[[Tensor], Tensor]]]

logger = logging.getLogger(__name__)

_LEAST = torch.finfo(torch.float32).tiny
MOST_SKIPPED = 3  # updates in a row whose gradient is not finite; then the run ends with the adapter of before them


def watched(scores: Scores) -> Scores:
    """The same with the trained rewards that have no gradient held out: they are shown, and nothing follows from them.

    Raises:
        ValueError: no trained reward has a gradient.
    """
    trained = [reward for reward in scores.rewards if not reward.held_out]
    follows = [reward.has_gradient() for reward in trained]
    if not any(follows):
        raise ValueError(str(refusals.of_gradients([reward.name for reward in trained])))
    held_out = [copy.copy(reward) for reward, has in zip(trained, follows, strict=True) if not has]
    for reward in held_out:
        reward.held_out = True
    there = torch.tensor(follows)
    others = [reward for reward in scores.rewards if reward.held_out]
    followed = [reward for reward, has in zip(trained, follows, strict=True) if has]
    return replace(
        scores,
        values=scores.values[:, there],
        names=tuple(reward.name for reward in followed),
        coefficients=tuple(c for c, has in zip(scores.coefficients, follows, strict=True) if has),
        held_out=torch.cat([scores.values[:, ~there], scores.held_out], 1),
        held_out_names=(*(reward.name for reward in held_out), *scores.held_out_names),
        rewards=(*followed, *held_out, *others),
    )


@stopping.whole()
def update(
    model: FlowModel,
    trajectories: Trajectories,
    scores: Scores,
    settings: GradientSettings,
    advantages: Advantages | None = None,
    on_step: Callable[[], None] = lambda: None,
    decoder: VAE | None = None,
) -> tuple[Metrics, Advantages]:
    """Moves the policy by one optimizer step along ∇J, less κ·∇ mean‖v - v_ref‖² at the same points.

    Given `advantages`, the gradient of `settings.also` is added, `settings.ratio` times as long: of the loss of GRPO Step
    (RTDMD, 2605.26108) or of a matching loss, each with its default settings. With CREDIT_ONLY nothing is added: levels and leaps
    are drawn by their credit, and the rewards' gradients are fused as they fuse the rewards.

    `scores`: of this process's samples. Trained rewards without a gradient only count as `watched`.
    `on_step`: called before every call of the network, and may raise to stop: until the end nothing has changed.
    `decoder`: makes the pictures whose gradient is taken, in place of the model's own; only of a model that ComfyUI loaded.

    Returns:
        Figures of this update, and for the report where the gradient came from: as weights of all T steps the size of ∂J/∂v_j,
        and as objectives the size of each reward's gradient in the picture.

    Raises:
        NonFiniteUpdate: after three updates in a row without a finite gradient, with the names of the rewards that had none.
        ValueError: a setting that has no use here, no reward with a gradient, or a gradient that is known to be wrong.
    """
    started, policy = time.perf_counter(), model.policy
    scores = watched(scores)
    decoders = _decoders(model, decoder)
    _check(model, trajectories, scores, settings, advantages)
    guide, advantages = (advantages, None) if settings.also == CREDIT_ONLY else (None, advantages)
    trajectories = prepared(model, trajectories)
    gathered = distributed.whole(scores)
    _check_new(model, trajectories, scores)
    spread = _averaged(model.memo[RewardSpread], gathered)
    backward = _Backward(model, trajectories, scores, int(gathered.usable.sum()), spread, settings, decoders, guide)
    wish = backward.take_graphs()
    other = None if advantages is None else other_grid(model, trajectories, advantages, settings)

    def one(_: int) -> None:
        if not gathered.usable.any():
            return  # nobody has a gradient, and no step is taken
        backward.accumulate(on_step)
        if other is not None:
            run = other[0]
            _add(policy.trainable_parameters(), lambda: run(on_step), settings.ratio)

    try:
        steps = take_steps(model, trajectories, settings, backward.tally, one, wish, MOST_SKIPPED)
    except NonFiniteUpdate as error:
        raise NonFiniteUpdate(f"{error}. {backward.suspects()}") from error
    if not steps and (suspects := backward.suspects()):
        logger.warning("%s", suspects)
    model.memo.keep(spread)
    policy.version += steps > 0
    policy.forget_old()
    figures = dict(other[1]()) if other else {}
    figures |= backward.figures() | outcome(model, trajectories, settings, backward.tally, steps, started)
    return figures, backward.earned(advantages.scores if advantages else gathered, gathered)


def calls(trajectories: Trajectories, settings: GradientSettings) -> int:
    """About how often `on_step` is called, for a progress bar."""
    samples, steps = len(trajectories.groups), settings.steps or trajectories.settings.transitions
    for_each = steps * (2 if settings.mode == "leap" else 1) * (2 if settings.kl_coefficient else 1)
    return for_each * -(-samples // (settings.batch_size or samples))


def _decoders(model: FlowModel, decoder: VAE | None) -> Decoders:
    if decoder is None:
        return model.decoder
    if not isinstance(model, NativeModel):
        raise ValueError(f"decoder: {refusals.of_decoder()}")
    return functools.partial(model.decoder, vae=decoder)


def _check(model, trajectories: Trajectories, scores: Scores, settings: GradientSettings, advantages) -> None:
    misfits = [*refusals.of_gradient_settings(settings, trajectories.settings.transitions)]
    if advantages is not None and settings.also == "grpo":
        misfits += refusals.of_ratios(trajectories.settings)
    misfits += refusals.of_levels(settings, trajectories.sigmas)
    adds = advantages is not None and settings.also != CREDIT_ONLY
    if advantages is not None:
        credit, name = advantages.credit, f"the credit {advantages.credit.method}"
        if credit.measures is not None:
            misfits.append(refusals.of_measuring(name, "Reward Gradient Step"))
        if credit.ratio_scale and not adds:
            misfits.append(refusals.of_credit(name, "Reward Gradient Step"))
        if (credit.weights != credit.weights[:, :1]).any() and not adds:
            misfits += refusals.of_drawing(settings.mode, name)
    if misfits:
        raise ValueError(str(misfits[0]))
    if model.policy.is_sharded and (adds or len(model.experts) > 1):
        raise ValueError(
            "model: processes that share out its weights have to call it equally often, and Reward Gradient Step does not "
            "with advantages, or with two networks. Fix: train an adapter without Model Memory's shard, or disconnect advantages"
        )
    groups = any(isinstance(reward, GroupReward) for reward in scores.rewards if not reward.held_out)
    if groups and len(trajectories.prompts) % distributed.world():
        raise ValueError(str(refusals.of_processes("Reward: Variety", len(trajectories.prompts), distributed.world())))


def _check_new(model, trajectories: Trajectories, scores: Scores) -> None:
    """Raises RewardError for a reward that is followed for the first time, if its gradient is of other scores than it gives."""
    rows = (trajectories.groups == trajectories.groups[:1]).nonzero()[:, 0]
    for reward in (
        reward for reward in scores.rewards if not reward.held_out and reward.name not in model.memo[RewardSpread]
    ):
        some = rows if isinstance(reward, GroupReward) else rows[:4]
        images = devices.upload(trajectories.images[some], model.device)
        texts = [trajectories.texts[row] for row in some.tolist()]
        check_paths(reward, images, texts, trajectories.groups[some].tolist())


# -- the scale of a reward ---------------------------------------------------------------------------------------------


class RewardSpread(dict[str, tuple[int, float]], Memo):
    """The standard deviation of each reward's scores within a batch, averaged over all updates so far: a count and a mean."""

    NAME = "reward_spread"

    def saved(self) -> Saved | None:
        return ({}, dict(self)) if self else None

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor], values: Mapping) -> RewardSpread:
        if not all(WHOLE[1](count) and NUMBER[1](mean) for count, mean in values.values()):
            raise ValueError("no counts and means")
        return cls((name, (count, mean)) for name, (count, mean) in values.items())


def _averaged(spread: RewardSpread, scores: Scores) -> RewardSpread:
    """The spread with that of one more batch.

    So a coefficient means the same for a cosine and for a sharpness of hundreds, and κ the same beside each. A batch of one
    sample, or of equal scores, says nothing.
    """
    spread = RewardSpread(spread)
    for name, column in zip(scores.names, scores.values.T, strict=True):
        column = column[column.isfinite()].double()
        if len(column) > 1 and (here := column.std().item()) > 0:
            count, mean = spread.get(name, (0, 0.0))
            spread[name] = count + 1, mean + (here - mean) / (count + 1)
    return spread


# -- the other gradient ------------------------------------------------------------------------------------------------


def other_grid(model, trajectories, advantages: Advantages, settings: GradientSettings):
    rate, size = settings.learning_rate, settings.batch_size
    if settings.also == "grpo":
        return grpo.one_pass(model, trajectories, advantages, UpdateSettings(rate, batch_size=size))
    also = MatchingSettings(rate, loss=settings.also, old_policy="on_policy", kl_coefficient=0.0, batch_size=size)
    return matching.one_pass(model, trajectories, advantages, also)


def _add(parameters: Sequence[torch.nn.Parameter], backward: Callable[[], None], ratio: float) -> None:
    """Adds to the gradients what `backward` makes, `ratio` times as long as they are; each as the sum over all processes."""

    def taken() -> list[Tensor]:
        distributed.sum_gradients(parameters)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        for parameter in parameters:
            parameter.grad = None
        return gradients

    first = taken()
    backward()
    second = taken()
    lengths = [torch.stack(torch._foreach_norm(part)).norm() for part in (first, second)]
    scale = torch.where(lengths[1] > 0, ratio * lengths[0] / lengths[1], 0.0)
    for parameter, own, two in zip(parameters, first, second, strict=True):
        parameter.grad = (own + scale * two) / distributed.world()  # which are added up once more


# -- one update --------------------------------------------------------------------------------------------------------


class _Backward(Passes):
    """Leaves ∇ of (κ·KL - J) in the weights, part by part."""

    def __init__(
        self,
        model: FlowModel,
        trajectories: Trajectories,
        scores: Scores,
        valid: int,
        spread: dict[str, tuple[int, float]],
        settings: GradientSettings,
        decoders: Decoders | None = None,
        guide: Advantages | None = None,
    ):
        super().__init__(model, 1, settings)  # J and the KL term are sums of means already
        self.decoders = decoders or model.decoder
        self.trajectories, self.scores, self.settings = trajectories, scores, settings
        self.version = model.policy.version
        # Settings and texts of the trained model's calls, and of the untrained one's, which may have a guidance of its own.
        walk, guided = trajectories.settings, trajectories.settings.of_reference(settings.reference_guidance)
        self.trained = walk, model.condition(trajectories.prompts, walk)
        self.untrained = self.trained if guided is walk else (guided, model.condition(trajectories.prompts, guided))
        self.samples, self.spread = max(1, valid), spread
        self.guide, self.places = guide, list(trajectories.share.rows)
        self.usable = scores.usable if guide is None else scores.usable & guide.valid[self.places]
        self.rows = torch.arange(len(self.usable)) if model.policy.is_sharded else self.usable.nonzero()[:, 0]
        self.sigmas = torch.tensor(trajectories.sigmas, dtype=torch.float64)  # [T+1], in main memory
        self.last = len(trajectories.sigmas) - 2  # the number of the last step
        self.levels = [j for j in range(self.last + 1) if trajectories.sigmas[j] <= settings.highest_level]
        self.sizes = torch.zeros(len(self.usable), self.last + 1)  # of ∂J/∂v_j
        self.by_reward = torch.zeros(len(self.usable), len(scores.names))  # of ∂J/∂picture
        self.coefficients = torch.ones_like(self.by_reward)  # c_k, of a fusion that chooses them
        self.stands_for = torch.ones_like(self.sizes)  # how many of its levels each level that is drawn stands for
        self.failed: dict[str, int] = {}
        self.points, self.final = trajectories.latents, trajectories.final
        self.followed = [reward for reward in scores.rewards if not reward.held_out]
        self.whole_groups = any(isinstance(reward, GroupReward) for reward in self.followed)
        wanted = self.usable | model.policy.is_sharded  # [B]
        parts = parts_of(trajectories.groups, settings.batch_size, self.whole_groups)  # [B]
        self.chunks = [((parts == part) & wanted).nonzero()[:, 0] for part in parts[wanted].unique()]
        self.graphs = Graphs()
        self.mode = MODES[settings.mode]
        self.solves = guide is not None and guide.method in SOLVERS
        own = zip(guide.scores.names, guide.compared, strict=True) if guide is not None and self.solves else ()
        scales = dict(zip(scores.names, scores.coefficients, strict=True)) | dict(own)
        self.compared = tuple(scales[name] for name in scores.names)
        self.often = None if guide is None else self._often(guide.credit)

    def _often(self, credit: StepCredit) -> Tensor | None:
        """How often each step of a sample is to be drawn, [B, T] of mean 1: its credit; a step without one has an even share.

        None: all alike. A group that a reward compares has one credit, its mean.
        """
        often = torch.ones_like(self.sizes)
        weights = credit.weights[self.places].float()
        often[:, list(credit.trained)] = weights / weights.mean(1, keepdim=True).clamp(min=_LEAST)
        if self.whole_groups:
            often = torch.stack(
                [often[self.trajectories.groups == group].mean(0) for group in self.trajectories.groups]
            )
        return None if (often == often[:, :1]).all() else often

    def accumulate(self, on_step: Callable[[], None]) -> None:
        self.on_step = on_step
        walk = self.trajectories
        if self.mode.through and (self.version, THETA) != (walk.policy_version, walk.sampled_with):
            self._walk_again()
        self.parts = list(self.mode.parts(self))
        super().accumulate(on_step)

    def take_graphs(self) -> NextRollout:
        """Takes the calls whose graphs the rollout kept, if they are this update's; returns which it wants the next time."""
        settings, walk, pulled = self.settings, self.trajectories, None
        if self.often is None and settings.mode != "low_variance":  # those depend on what was sampled
            pulled = PulledCalls(
                settings.mode, settings.steps, settings.highest_level, self.whole_groups, settings.batch_size
            )
        wish = NextRollout(uses_graphs=pulled is not None, pulled=pulled)
        if walk.kept:
            calls, on_policy = walk.kept.take(), (self.version, THETA) == (walk.policy_version, walk.sampled_with)
            self.graphs.extend(calls if on_policy and walk.kept.wish == wish else ())
        return wish

    def losses(self, part: Part) -> Iterator[Tensor]:
        return self.mode.losses(self, part)

    # what is trained where

    def at(self, rows: Tensor, steps: Tensor) -> Tensor:
        """The points that the trajectories visited there, on the device."""
        return devices.upload(self.points[rows, steps], self.model.device)  # [N, C, (F,) h, w]

    def draw(self, count: int, of: Sequence[int], again: int = 0) -> Tensor:
        """`count` of these steps for each sample, by rising number, [B, count]; alike for a group that a reward compares.

        Another `again` gives an independent draw. By a credit, a level is drawn in proportion to it, and a pair of steps in
        proportion to the product of theirs. So each stands for itself, but a level whose share would be more than certain.
        """
        seed, numbers = self.trajectories.seed, self.trajectories.groups.tolist() if self.whole_groups else self.places
        if self.often is None:
            return levels_drawn(seed, self.version, numbers, of, count, again)
        drawn, count, pairs = [], min(count, len(of)), torch.triu_indices(len(of), len(of), 1)  # [2, pairs]
        for place, number in enumerate(numbers):
            source, often = source_of_levels(seed, self.version, number, again), self.often[place, of]  # [L]
            if self.settings.mode == "leap":
                likely = often[pairs].prod(0)
                chosen = pairs[
                    :, torch.multinomial(likely if likely.any() else torch.ones_like(likely), 1, generator=source)[0]
                ]
            else:
                shares = often / often.sum().clamp(min=_LEAST)
                stands_for = sampled_steps.draw(often[None], count, source)[0] * shares * count
                self.stands_for[place, of], chosen = stands_for, stands_for.topk(count).indices
            drawn.append(torch.tensor(of)[chosen].sort().values)
        return torch.stack(drawn)

    # the network

    def velocity(self, x: Tensor, rows: Tensor, steps: Tensor, untrained: bool = False) -> Tensor:
        """v of points x [N, …] at these steps, by as many calls as there are networks for them; `untrained`: by its guidance."""
        model, levels, (settings, texts) = self.model, self.sigmas[steps], self.untrained if untrained else self.trained
        order, parts, begin = torch.argsort(levels, descending=True, stable=True), [], 0
        condition = texts.rows(self.trajectories.groups[rows])
        for end in range(1, len(order) + 1):
            if end < len(order) and model.same_network(float(levels[order[begin]]), float(levels[order[end]])):
                continue
            these = order[begin:end]
            self.on_step()
            there, strength = devices.upload(these, x.device), model.guidance_at(float(levels[these[0]]), settings)
            parts.append(model.velocity(x[there], levels[these], condition.rows(these), strength))  # [n] of the N
            begin = end
        return torch.cat(parts)[devices.upload(order.argsort(), x.device)]

    def call(self, number: int, x: Tensor, rows: Tensor, steps: Tensor) -> tuple[Tensor, Callable[[], Tensor]]:
        """v of each row's trained call of that number, at x, and what gives the loss's gradient there after its backward pass.

        From the graph that the rollout kept, or by a new call.
        """
        if call := self.graphs.of(number, rows):
            self.model.come_back()  # decoder and rewards may have taken its place
            self.on_step()
            return call

        def slope() -> Tensor:
            assert x.grad is not None, "asked after the backward pass, of a point that has one"
            return x.grad

        return self.velocity(x, rows, steps), slope

    def along(self, velocity: Tensor, slope: Tensor, x: Tensor, rows: Tensor, steps: Tensor, calls: int) -> Tensor:
        """The share of a call whose gradient is that of -J, by `slope` ∂J/∂v, with the call's part of the KL term.

        `calls`: for each sample, in this update; the KL term is their mean.
        """
        self.sizes.index_put_((rows, steps), slope.detach().flatten(1).square().mean(1).sqrt().cpu(), accumulate=True)
        kl = None
        if self.kl_coefficient:
            with torch.no_grad(), self.model.policy.reference():
                untrained = self.velocity(x.detach(), rows, steps, untrained=True)  # [N, C, (F,) h, w]
            counts = devices.upload(self.usable[rows], x.device)  # [N]
            kl = self.divergence(velocity, untrained, counts).sum() / (self.samples * calls)
        return self.share(-(velocity * slope).sum(), {}, 1, kl, reported=torch.zeros(()))

    # rewards and decoder

    def pull(self, clean: Tensor, rows: Tensor, calls: int) -> Tensor:
        """∂J/∂x̂0 [N, …] of latents that are decoded; `calls` of them for each sample share its part of J."""
        texts, groups = [self.trajectories.texts[row] for row in rows.tolist()], self.trajectories.groups[rows].tolist()
        tile, clean = self.settings.tile, clean.detach()
        with self.decoders(texts) as decode, torch.enable_grad():
            with torch.set_grad_enabled(not tile):
                pictures = decode(clean.requires_grad_(not tile))
            toward = self._toward(pictures.detach(), texts, groups, rows, calls)  # [N, (F,) H, W, 3]
            # The power of two by which the largest comes to about 1: a decoder in float16 has no numbers for such small ones.
            largest = toward.abs().max().item()
            unit = 2.0 ** -math.floor(math.log2(largest)) if 0 < largest < math.inf else 1.0
            if tile:
                source = stream(self.trajectories.seed, self.version, branch=(5,))
                pull = through_tiles(decode, clean, toward * unit, tile, source) / unit
            else:
                pull = torch.autograd.grad(pictures, clean, toward * unit)[0] / unit
        if self.guide is None or self.guide.credit.spatial is None:
            return pull
        return pull * self.guide.credit.spatial[self.places][rows].unsqueeze(1).to(pull)

    def _toward(self, pictures: Tensor, texts, groups, rows: Tensor, calls: int) -> Tensor:
        """∂J/∂picture, added up over the rewards, or fused as the guide fuses them."""
        toward, pulls = torch.zeros_like(pictures), dict[int, Tensor]()  # [N, (F,) H, W, 3]
        for k, reward in enumerate(self.followed):
            applies = self.scores.values[rows, k].isfinite() & self.usable[rows]  # [N]
            if not applies.any():
                continue
            _, spread = self.spread.get(reward.name, (0, 1.0))
            unit = spread * self.samples * calls
            part, factor = self.scores.coefficients[k] / unit, self.compared[k] / unit
            # A part of the pictures after another, whose gradients are independent: the graph of one part is there at a time.
            slopes, worth = [], torch.zeros((), device=pictures.device)
            frames = min(pictures.shape[1], VIDEO_FRAMES) if pictures.ndim == 5 else 1
            size = 0 if isinstance(reward, GroupReward) else vars(reward).get("batch_size", 0)  # it counts pictures
            at_once = max(1, size // frames) if size else len(pictures)
            try:
                for these in torch.arange(len(pictures)).split(at_once):
                    leaf = pictures[these[0] : these[-1] + 1].clone().requires_grad_()  # [n, (F,) H, W, 3]
                    chosen = these.tolist()
                    scores = score_with_gradient(reward, leaf, [texts[i] for i in chosen], [groups[i] for i in chosen])
                    counts = devices.upload(applies[these], scores.device)
                    here = torch.where(counts, scores, 0.0).sum()
                    slopes += torch.autograd.grad(here, leaf)  # `factor` comes after it: it is too small for float16
                    worth += part * here.detach().to(worth.device)
            finally:
                reward.rest()
            pull = factor * torch.cat(slopes)  # [N, (F,) H, W, 3]
            pull[~applies] = 0.0
            finite = pull.flatten(1).isfinite().all(1).cpu()
            if not finite.all():
                self.failed[reward.name] = self.failed.get(reward.name, 0) + int((~finite).sum())
            self.tally.add(-worth, {}, 1, 1)
            if self.solves:
                pulls[k] = pull
            else:
                toward += self._counted(pull, rows, k)
        for k, pull in self._fused(pulls, rows).items():
            toward += self._counted(pull, rows, k)
        return toward

    def _counted(self, pull: Tensor, rows: Tensor, k: int) -> Tensor:
        self.by_reward[rows, k] += pull.flatten(1).square().mean(1).sqrt().cpu()
        return pull

    def _fused(self, pulls: dict[int, Tensor], rows: Tensor) -> dict[int, Tensor]:
        """Each reward's pull times its c_k, and times its coefficient where the solver did not see that."""
        if not pulls:
            return {}
        assert self.guide is not None and self.guide.exploration is not None  # of a method that solves
        there, exploration = list(pulls), self.guide.exploration[self.places][rows]
        flat = [pull.flatten(1) for pull in pulls.values()]
        products = torch.stack([torch.stack([(a * b).sum(1) for b in flat], 1) for a in flat], 1).cpu()  # [N, K, K]
        applies = self.scores.values[rows][:, there].isfinite() & self.usable[rows, None]  # [N, K]
        chosen = fusion.of_gradients(products, exploration, applies).float()
        for place, k in enumerate(there):
            self.coefficients[rows, k] = chosen[:, place]
            after = self.scores.coefficients[k] / self.compared[k] if self.compared[k] else 1.0
            pulls[k] = pulls[k] * after * beside(chosen[:, place], pulls[k])
        return pulls

    # off-policy

    def _walk_again(self) -> None:
        """The same trajectories by the policy as it is now, with the noise that was drawn: what gradients through steps need."""
        walk, self.points = self.trajectories, self.trajectories.latents.clone()
        noise = sampled_noise(walk) if any(std >= MIN_STD for std in walk.stds) else None
        first, ends = self.first_through, []
        with torch.no_grad():
            for rows in self.chunks:
                before = None if first == 0 else self._velocity_at(rows, first - 1)
                for j in range(first, self.last + 1):
                    v = self._velocity_at(rows, j)
                    of_x, of_v, of_before = self.slopes(j)
                    x = of_x * self.at(rows, torch.full_like(rows, j)) + of_v * v
                    if of_before and before is not None:
                        x = x + of_before * before
                    if walk.stds[j] >= MIN_STD and j < self.last and noise is not None:
                        x = x + walk.stds[j] * devices.upload(noise[rows, walk.trained.index(j)], x.device)
                    self.points[rows, j + 1], before = x.cpu(), v
                ends.append(x.cpu())
        self.final = walk.final.clone()
        self.final[self.rows] = torch.cat(ends) if ends else self.final[self.rows]

    def _velocity_at(self, rows: Tensor, step: int) -> Tensor:
        steps = torch.full_like(rows, step)
        return self.velocity(self.at(rows, steps), rows, steps)

    @property
    def first_through(self) -> int:
        """The first of the last K steps."""
        return max(0, self.last + 1 - self.settings.steps) if self.settings.steps else 0

    def slopes(self, step: int) -> tuple[float, float, float]:
        """∂/∂x_j, ∂/∂v_j and ∂/∂v_{j-1} of where step j leads; the last one leads to x̂0. Transitions are linear in all three."""
        walk = self.trajectories
        kinds, sigmas, (of_x, of_v) = (step_kinds(walk.settings), walk.sigmas, slopes(walk.settings, walk.sigmas, step))
        if walk.settings.ode_solver == "adams_bashforth" and step and kinds[step - 1] == kinds[step] == "ode":
            bent = (sigmas[step + 1] - sigmas[step]) ** 2 / (2 * (sigmas[step] - sigmas[step - 1]))
            return of_x, of_v + bent, -bent
        return of_x, of_v, 0.0

    # what it came to

    def suspects(self) -> str:
        """Names the rewards whose gradient was not finite."""
        named = ", ".join(f"{name!r} (of {count} samples)" for name, count in sorted(self.failed.items()))
        return (
            f"the gradient of reward {named} is not finite. Fix: look at its pictures, or disconnect it"
            if named
            else ""
        )

    def figures(self) -> dict[str, float]:
        means = self.tally.means(("loss", "kl"))
        figures = {"loss": means.get("loss", 0.0)} | ({"kl/penalty": means["kl"]} if "kl" in means else {})
        for k, name in enumerate(self.scores.names):
            figures[f"gradient/{name}"] = distributed.whole(self.by_reward[:, k]).mean().item()
            figures[f"spread/{name}"] = self.spread.get(name, (0, 1.0))[1]
            if self.solves:
                figures[f"moca/coefficient/{name}"] = distributed.whole(self.coefficients[:, k]).mean().item()
        sizes = distributed.whole(self.sizes).mean(0)
        shares = len(sizes) * sizes / sizes.sum().clamp(min=_LEAST)
        figures |= {keys.credit_step(step): share for step, share in enumerate(shares.tolist()) if share}
        return figures | {"gradient_norm": self.tally.gradient_norm}

    def earned(self, shown: Scores, scores: Scores) -> Advantages:
        """Where the gradient came from, as the heatmap shows credit; of the whole batch."""
        sizes, by_reward = (distributed.whole(part).nan_to_num() for part in (self.sizes, self.by_reward))
        total = sizes.sum(1, keepdim=True)
        raw = torch.where(total > 0, sizes / total.clamp(min=_LEAST), 0.0)
        steps, unit = sizes.shape[1], sizes[sizes > 0].mean().item() if sizes.any() else 1.0
        credit = StepCredit(
            weights=steps * raw,
            raw=raw,
            delta=torch.zeros_like(sizes),
            similarity=torch.zeros(len(sizes), steps + 1),
            trained=tuple(range(steps)),
            method=f"reward_gradient, {self.settings.mode}",
            sigmas=self.trajectories.sigmas,
        )
        share = by_reward / by_reward.sum(1, keepdim=True).clamp(min=_LEAST)
        strength = sizes.sum(1) / unit
        return Advantages(
            step_advantage=sizes / unit,
            per_objective=share * strength[:, None],
            fused=Fused(strength, share, share * strength[:, None]),
            valid=scores.usable,
            scores=scores,
            credit=credit,
            metrics={},
            method="reward_gradient",
        )


def through_tiles(decode, clean: Tensor, toward: Tensor, tile: int, generator: torch.Generator) -> Tensor:
    """(∂picture/∂x̂0)ᵀ·toward, by decoding squares of `tile` pixels with HALO latent positions around them, whose gradient is left
    out, one after another.

    Where squares begin is drawn for every update: judges learn seams that stand still. A decoder that looks at the whole picture
    at once, as in its attention and its norms, makes this an estimate.
    """
    height, width = clean.shape[-2:]
    scale = toward.shape[-3] // height
    side = side_of(tile, scale)
    pull = torch.zeros_like(clean)
    above, left = (2 * int(torch.randint(side // 2, (), generator=generator)) for _ in range(2))
    for top in range(-above, height, side):
        for start in range(-left, width, side):
            inner = [(max(0, at), min(at + side, end)) for at, end in ((top, height), (start, width))]
            outer = [(max(0, a - HALO), min(b + HALO, end)) for (a, b), end in zip(inner, (height, width), strict=True)]
            (y0, y1), (x0, x1) = outer
            part = clean[..., y0:y1, x0:x1].detach().requires_grad_()
            made = decode(part)
            (a0, a1), (b0, b1) = (
                (scale * (low - begin), scale * (high - begin))
                for (low, high), (begin, _) in zip(inner, outer, strict=True)
            )
            kept = made[..., a0:a1, b0:b1, :]
            (c0, c1), (d0, d1) = ((scale * low, scale * high) for low, high in inner)
            pull[..., y0:y1, x0:x1] += torch.autograd.grad(kept, part, toward[..., c0:c1, d0:d1, :])[0]
    return pull


# -- modes -------------------------------------------------------------------------------------------------------------


def _one_call(back: _Backward, part: Part) -> Iterator[Tensor]:
    """ReFL (2304.05977): x̂0 = x_σ - σ·v at one visited point, decoded; ∂J/∂v = -σ·∂J/∂x̂0."""
    return _from_one_call(back, back.at(part.rows, part.steps), part, min(back.settings.steps, len(back.levels)))


def _low_variance(back: _Backward, part: Part) -> Iterator[Tensor]:
    """DRaFT-LV (2309.17400): the finished sample is noised again to the last level, by several noises, each with one call."""
    walk, rows = back.trajectories, part.rows
    numbers = ((walk.share.rows[row], part.draw) for row in rows.tolist())
    noise = torch.stack(
        [torch.randn(walk.final.shape[1:], generator=stream(walk.seed, back.version, *n, branch=(6,))) for n in numbers]
    )
    clean, noise = (devices.upload(values, back.model.device) for values in (walk.final[rows], noise))
    sigma = walk.sigmas[back.last]
    return _from_one_call(back, (1 - sigma) * clean + sigma * noise, part, back.settings.steps)


def _from_one_call(back: _Backward, x: Tensor, part: Part, calls: int) -> Iterator[Tensor]:
    v, _ = back.call(part.draw, x, part.rows, part.steps)  # [N, C, (F,) h, w]
    sigma = beside(back.sigmas[part.steps], x)  # [N, 1, 1, 1]
    pull = back.pull(x - sigma * v.detach(), part.rows, calls)
    slope = -sigma * beside(back.stands_for[part.rows, part.steps], x) * pull
    yield back.along(v, slope, x, part.rows, part.steps, calls)


def _last_steps(back: _Backward, part: Part) -> Iterator[Tensor]:
    """DRaFT-K (2309.17400): back through the last K steps of the sampler, their noise held fixed; all of them: the whole chain.

    ∂J/∂x_j = a_j·∂J/∂x_{j+1} + (∂v/∂x)ᵀ·∂J/∂v_j with ∂J/∂v_j = b_j·∂J/∂x_{j+1}, where x_{j+1} = a_j·x_j + b_j·v_j + noise. The KL
    term at later points counts for earlier ones too, as the distance from the untrained model's velocity there.
    """
    rows, first = part.rows, back.first_through
    pull = back.pull(devices.upload(back.final[rows], back.model.device), rows, 1)
    after, calls = torch.zeros_like(pull), back.last + 1 - first
    for j in reversed(range(first, back.last + 1)):
        steps = torch.full_like(rows, j)
        x = back.at(rows, steps).requires_grad_(j > first)
        v, slope = back.call(j - first, x, rows, steps)  # [N, C, (F,) h, w]
        of_x, of_v, of_before = back.slopes(j)
        yield back.along(v, of_v * pull + after, x, rows, steps, calls)
        after, pull = of_before * pull, of_x * pull
        if j > first:
            pull = pull - slope() / back.scale


def _leap(back: _Backward, part: Part) -> Iterator[Tensor]:
    """LeapAlign (2604.15311): from a visited point to another one by one call, and from there to x̂0 by a second.

    x̂_j = x_k - (σ_k - σ_j)·v(x_k) and x̂0 = x_j - σ_j·v(x_j), where x_j and x̂0 take the values that the trajectory had, and only
    the gradient goes through the leaps. Its part through the second call's own input is multiplied by `nested`. The paper's
    weights by how near a leap comes to the trajectory are not here.
    """
    rows, leaps = part.rows, part.steps.unflatten(1, (-1, 2))  # [N], [N, K, 2]
    calls = 2 * leaps.shape[1]
    pull = back.pull(devices.upload(back.final[rows], back.model.device), rows, 1) / leaps.shape[1]
    for number, (start, end) in enumerate(leap.unbind(1) for leap in leaps.unbind(1)):
        x = back.at(rows, end).requires_grad_()
        v, slope = back.call(2 * number + 1, x, rows, end)
        sigma_k, sigma_j = (beside(back.sigmas[steps], x) for steps in (start, end))
        yield back.along(v, -sigma_j * pull, x, rows, end, calls)
        there = pull - back.settings.nested * slope() / back.scale
        x = back.at(rows, start)
        v, _ = back.call(2 * number, x, rows, start)
        yield back.along(v, -(sigma_k - sigma_j) * there, x, rows, start, calls)


def _at_levels(back: _Backward) -> Iterator[Part]:
    """Each sample at each of its levels, those of one noise first."""
    drawn = back.draw(back.settings.steps, back.levels)  # [B, K]
    return (Part(rows, column[rows], draw=number) for number, column in enumerate(drawn.T) for rows in back.chunks)


def _of_noises(back: _Backward) -> Iterator[Part]:
    numbers = range(back.settings.steps)
    return (Part(rows, torch.full_like(rows, back.last), draw=n) for n in numbers for rows in back.chunks)


def _of_samples(back: _Backward) -> Iterator[Part]:
    return (Part(rows, torch.full_like(rows, back.last)) for rows in back.chunks)


def _of_leaps(back: _Backward) -> Iterator[Part]:
    """Two different points for each leap of a sample, the noisier one first."""
    pairs = torch.cat([back.draw(2, back.levels, again) for again in range(back.settings.steps)], 1)  # [B, 2·K]
    return (Part(rows, pairs[rows]) for rows in back.chunks)


@dataclass(frozen=True)
class Mode:
    """How a pull goes back to the weights.

    Attributes:
        parts: what is taken at once.
        losses: the shares of a part, see `Passes.losses`.
        through: whether it needs the points and the end of the policy's own trajectory.
    """

    parts: Callable[[_Backward], Iterator[Part]]
    losses: Callable[[_Backward, Part], Iterator[Tensor]]
    through: bool = False


MODES = {
    "one_call": Mode(_at_levels, _one_call),
    "last_steps": Mode(_of_samples, _last_steps, through=True),
    "low_variance": Mode(_of_noises, _low_variance),
    "leap": Mode(_of_leaps, _leap),
}
