"""From prompts to trajectories: the sampling loop, and the same transition taken again for the update."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..host import devices, distributed
from ..host.json_files import is_whole
from .families.base import Condition, FlowModel
from .memo import Memo
from .rewards.overlap import Overlap
from .schedule import misfits, step_kinds, stochastic_count, unequal_shares, untrainable
from .sde import MIN_STD, Gaussian, adams_bashforth, transition
from .types import THETA, KeptCall, KeptGraph, NextRollout, Prompts, SamplerSettings, Trajectories

if TYPE_CHECKING:
    from .memo import Saved


def sample(
    model: FlowModel,
    prompts: Prompts,
    settings: SamplerSettings,
    *,
    group_size: int,
    seed: int,
    keep_graph: bool = False,
    most_kept: int | None = None,
    keep_predictions: bool = False,
    on_step: Callable[[], None] = lambda: None,
    overlap: Overlap | None = None,
) -> Trajectories:
    """Samples a group of `group_size` trajectories for every prompt; each of several processes samples its share of them.

    Noise depends on the seed, the prompt's position in the dataset and the member's number alone: neither the batch size nor
    the other prompts of the iteration change a trajectory. Where only some steps of the window are stochastic, the seed alone
    says which, alike for all samples. Which weights sample the policy says (`Policy.samples_with`). With
    `settings.merge_adapter` the adapter is merged into them meanwhile, unless graphs are kept: those have to reach the adapter.

    `keep_graph`: keep the autograd graph of the calls that the next update trains (`trained_calls`), so that an on-policy update
        is a backward pass only; not if the old policy samples, which is not what is trained.
    `most_kept`: of so many of a sample's calls, at most; None: of all.
    `keep_predictions`: keep x̂0 at every step, to look at; this takes as much memory again as the latents.
    `on_step`: called before every model call; may raise to stop.
    `overlap`: rewards that score what has been sampled, while the next `batch_size` samples are made.

    Raises:
        ValueError: see `schedule.misfits` and `schedule.untrainable`; or weights that no adapter can be merged into.
    """
    if misfit := next(misfits(settings, group_size), None):
        raise ValueError(str(misfit))
    started, policy = time.perf_counter(), model.policy
    model.come_back()
    policy.forget_gradients()
    sigmas = model.sigmas(settings)
    if misfit := untrainable(settings, sigmas):
        raise ValueError(str(misfit))
    if settings.stochastic_steps:
        steps = trained_steps(settings, sigmas)
        order = torch.randperm(len(steps), generator=stream(seed, branch=(7,))).tolist()
        settings = replace(settings, drawn=tuple(sorted(steps[n] for n in order[: settings.stochastic_steps])))
    condition = model.condition(prompts.texts, settings)
    share = share_of(model, len(prompts.texts) * group_size)
    groups = torch.tensor([row // group_size for row in share.rows])
    keeps = keep_graph and policy.samples_with == THETA
    calls = trained_calls(model, settings, sigmas, groups, share.rows, seed, most_kept) if keeps else None
    walk = partial(_walk, model, condition, sigmas, settings, calls, keep_predictions, on_step)
    shape = model.sample_shape(prompts.texts, settings)
    members = ((prompts.positions[row // group_size], row % group_size) for row in share.rows)
    noise = [_noise(shape, settings, seed, *member) for member in members]
    overlap, merge = overlap or Overlap(), settings.merge_adapter and calls is None
    paths, images, waited = _with_images(model, walk, groups, noise, prompts.texts, settings, overlap, merge)
    return Trajectories(
        **vars(paths),
        images=images,
        sigmas=sigmas,
        groups=groups,
        share=share,
        prompts=prompts.texts,
        positions=prompts.positions,
        settings=settings,
        policy_version=policy.version,
        sampled_with=policy.samples_with,
        seed=seed,
        model=model,
        seconds=time.perf_counter() - started - waited,
        overlap=overlap,
    )


@torch.no_grad()
def generate(
    model: FlowModel,
    texts: list[str],
    settings: SamplerSettings,
    seeds: list[int],
    on_step: Callable[[], None] = lambda: None,
    compose: Callable[[int, Callable[[], Tensor]], Tensor] | None = None,
) -> Tensor:
    """Pictures [B, H, W, 3] by the deterministic sampler, one for each text and seed: for evaluation, not for training.

    A picture's noise depends on its seed and its text alone: neither the batch, the other texts nor the weights change it, and
    pictures of two texts are independent draws, also under one seed.

    `on_step` is called before every model call and may raise to stop. `compose(step, call)` puts the velocities of several
    adapters together (`inference.guidance`); `call()` is that of the adapter which is active.
    """
    model.come_back()
    settings = replace(settings, kind="ode", window=None)  # all steps, since those after a window may be fewer
    sigmas = model.sigmas(settings)
    shape = model.sample_shape(texts, settings)
    images = []

    def predict(x: Tensor, sigma: float, condition: Condition) -> Tensor:
        on_step()
        return model.velocity(x, sigma, condition, model.guidance_at(sigma, settings))

    for rows in torch.arange(len(texts)).split(settings.batch_size or len(texts)):
        condition = model.condition([texts[row] for row in rows], settings)
        x = torch.stack([evaluated_noise(shape, seeds[row], texts[row]) for row in rows]).to(model.device)
        # Not around the encoders and the autoencoder, which may need the memory. Composed adapters change at every call.
        with _merged(model, settings.merge_adapter and compose is None):
            for step, (sigma, sigma_next) in enumerate(zip(sigmas, sigmas[1:], strict=False)):
                call = partial(predict, x, sigma, condition)
                velocity = compose(step, call) if compose else call()
                x = transition("ode", velocity, x, sigma, sigma_next, eta=0.0).mean
        images.append(model.decode(x.cpu(), settings.batch_size, [texts[row] for row in rows]))
    return torch.cat(images)


def model_calls(steps: int, samples: int, batch_size: int) -> int:
    """Number of model calls, and so of `on_step`, in one rollout."""
    return steps * -(-samples // (batch_size or samples))


def first_of_each(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """The first row of each different number, by rising number; and for each of [B] which of those rows has its number."""
    _, inverse = numbers.unique(return_inverse=True)
    none = torch.full((int(inverse.max()) + 1,), len(numbers))
    return none.scatter_reduce(0, inverse, torch.arange(len(numbers)), "amin"), inverse


def at_one_point(trajectories: Trajectories, steps: Tensor | int) -> Tensor | bool:
    """Whether a group's members are still at one point at these steps: they started there, and no noise was added before."""
    return trajectories.settings.shared_noise & (steps <= trajectories.trained[0])


def velocity_at(model: FlowModel, trajectories: Trajectories, steps: int | Tensor, rows: Tensor) -> Tensor:
    """The policy's velocity [N, C, h, w] at visited points of these trajectories.

    `steps`: a step's number, or one for each row, [N], all of the model's `same_network`.
    `rows`: N numbers of samples.
    """
    settings, groups = trajectories.settings, trajectories.groups[rows]
    steps = torch.as_tensor(steps).expand(len(rows))
    levels = torch.tensor(trajectories.sigmas, dtype=torch.float64)[steps]
    x = devices.upload(trajectories.latents[rows, steps], model.device)
    # A number for each different point: that of the group where its members are at one point, else that of the sample.
    count = len(trajectories.prompts)
    points = torch.where(torch.as_tensor(at_one_point(trajectories, steps)), groups, count + rows)
    points = points + steps * (count + len(trajectories.groups))
    return _velocity(model, model.condition(trajectories.prompts, settings), levels, settings, x, groups, points)


def sampled_noise(trajectories: Trajectories) -> Tensor:
    """The noise [B, T', C, h, w] that the trained steps added, drawn again from the same streams."""
    settings, shape = trajectories.settings, trajectories.latents.shape[2:]
    group_size = trajectories.share.total // len(trajectories.prompts)
    sampled = []
    for row in trajectories.share.rows:
        position = trajectories.positions[row // group_size]
        noise = _noise(shape, settings, trajectories.seed, position, row % group_size)
        next(noise)  # where it started
        sampled.append(torch.stack([next(noise) for _ in trajectories.trained]))
    return torch.stack(sampled)


def stored_log_prob_maps(trajectories: Trajectories) -> Tensor:
    """Log-probs of the sampled points by latent position, [B, T', h, w], under the policy that sampled them.

    The rollout stores only their means; but x_{j+1} = μ + std·noise, so that the noise is enough to compute them.
    """
    noise, norm = sampled_noise(trajectories), trajectories.settings.log_prob_norm
    stds = [trajectories.stds[step] for step in trajectories.trained]
    maps = [
        Gaussian(torch.zeros_like(noise[:, position]), std).log_prob_map(std * noise[:, position], norm)
        for position, std in enumerate(stds)
    ]
    return torch.stack(maps, 1)


def trained_transition(trajectories: Trajectories, step: int, velocity: Tensor, rows: Tensor) -> Gaussian:
    """The transition that these trajectories took at a trained step, for a given velocity."""
    settings, sigmas = trajectories.settings, trajectories.sigmas
    x = devices.upload(trajectories.latents[rows, step], velocity.device)
    return transition(
        settings.kind, velocity, x, sigmas[step], sigmas[step + 1], eta=settings.eta, sigma_after_first=sigmas[1]
    )


def slopes(settings: SamplerSettings, sigmas: Sequence[float], step: int) -> tuple[float, float]:
    """∂/∂x and ∂/∂v of where a step leads; the last one leads to x̂0. Both are numbers, since transitions are linear."""
    if step == len(sigmas) - 2:
        return 1.0, -sigmas[step]
    kind, pair = step_kinds(settings)[step], sigmas[step : step + 2]
    of_x, of_v = (
        float(transition(kind, v, x, *pair, eta=settings.eta, sigma_after_first=sigmas[1]).mean)
        for v, x in ((0.0, 1.0), (1.0, 0.0))
    )
    return of_x, of_v


def beside(values: Tensor, other: Tensor) -> Tensor:
    """[B, …] with as many axes as `other` [B, …], of its type and where it is."""
    return devices.upload(values.to(other.dtype), other.device).view(*values.shape, *[1] * (other.ndim - values.ndim))


class GraphDecisions(dict[str, int], Memo):
    """How many of a sample's calls keep their graphs, by settings without their window, samples and wish: decided once for a run.

    The free memory changes, and updates with and without kept graphs differ in rounding.
    """

    NAME = "kept_graphs"

    def saved(self) -> Saved | None:
        return ({}, dict(self)) if self else None

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor], values: Mapping[str, int]) -> GraphDecisions:
        if not all(map(is_whole, values.values())):
            raise ValueError("no counts")
        return cls(values)


@dataclass(frozen=True)
class TrainedCalls:
    """The calls at visited points that the next update makes, as far as its wish says before the rollout.

    Attributes:
        steps: [B, S] the step of each of a sample's S calls.
        parts: [B] number; those of one have their backward pass together.
        with_slopes: whether the gradient in the points is asked for, too.
    """

    steps: Tensor
    parts: Tensor
    with_slopes: bool


def trained_calls(
    model: FlowModel,
    settings: SamplerSettings,
    sigmas: Sequence[float],
    groups: Tensor,
    numbers: Sequence[int],
    seed: int,
    most: int | None = None,
) -> TrainedCalls | None:
    """The first `most` of each sample's calls that the next update trains; None: no graph has a use.

    `groups`: [B] of this process's samples; `numbers`: theirs in the whole batch.
    """
    wish = model.memo[NextRollout]
    if wish.pulled is None:
        own = () if settings.kind == "ode" else trained_steps(settings, sigmas)
        steps = torch.tensor([own] * len(groups))  # [B, S]
        parts = torch.zeros(len(groups), dtype=torch.long)
    else:
        pulled, which = wish.pulled, groups.tolist() if wish.pulled.whole_groups else numbers
        levels = [step for step, sigma in enumerate(sigmas[:-1]) if sigma <= pulled.highest_level]
        draw = partial(levels_drawn, seed, model.policy.version, which, levels)
        if pulled.mode == "last_steps":
            steps = torch.arange(len(sigmas) - 1)[-pulled.steps :].repeat(len(groups), 1)
        elif pulled.mode == "leap":
            steps = torch.cat([draw(2, again) for again in range(pulled.steps)], 1)
        else:
            steps = draw(pulled.steps)
        parts = parts_of(groups, pulled.batch_size, pulled.whole_groups)
    calls = TrainedCalls(steps[:, :most].long(), parts, wish.pulled is not None and wish.pulled.mode != "one_call")
    return calls if calls.steps.numel() else None


def levels_drawn(seed: int, version: int, numbers: Sequence[int], of: Sequence[int], count: int, again=0) -> Tensor:
    """`count` of these steps for each number, by rising step, all alike likely, [B, count]; see `source_of_levels`."""
    sources = (source_of_levels(seed, version, number, again) for number in numbers)
    drawn = [torch.randperm(len(of), generator=source)[:count] for source in sources]
    return torch.tensor(of)[torch.stack(drawn)].sort(1).values


def source_of_levels(seed: int, version: int, number: int, again: int) -> torch.Generator:
    """The source that draws the levels of a sample, or of a group, of that number; another `again` is an independent one."""
    return stream(seed, version, number, again, branch=(4,))


def parts_of(groups: Tensor, size: int, whole_groups: bool) -> Tensor:
    """The number [B] of the part that each sample is in: `size` in each, 0: all, and whole groups if they are compared."""
    if not whole_groups:
        return torch.arange(len(groups)) // (size or len(groups))
    of_a_group = int((groups == groups[0]).sum())
    return (groups - groups[0]) // (max(1, size // of_a_group) if size else len(groups))


def kept_calls(model: FlowModel, settings: SamplerSettings, groups: Sequence[int]) -> int:
    """The number of a sample's trained calls whose graphs half of the free memory can hold (keep_graph="auto").

    `groups`: the number of the prompt of each of this process's samples.
    """
    wish, decisions = model.memo[NextRollout], model.memo[GraphDecisions]
    # Of a sharded model, each process would decide by its own free memory, and all have to call the model equally often.
    used, sigmas = wish.uses_graphs and not model.policy.is_sharded, model.sigmas(settings)
    calls = (
        trained_calls(model, settings, sigmas, torch.zeros(1, dtype=torch.long), [0], 0) if used else None
    )  # as each has
    if calls is None:
        return 0
    # The same wherever a window stands, and whichever of its steps are drawn.
    number = calls.steps.shape[1] if wish.pulled else stochastic_count(settings)
    first = set(groups) if wish.pulled is None and settings.shared_noise else groups  # points of the first call
    counts = [len(first), *[len(groups)] * (number - 1)]
    case = repr((replace(settings, window=None), counts, wish))
    if case not in decisions:
        decisions[case] = model.kept_calls(settings, counts)
    return decisions[case]


def trained_steps(settings: SamplerSettings, sigmas: Sequence[float]) -> tuple[int, ...]:
    """The transitions that a rollout would train, by their noise levels alone."""
    if settings.kind == "ode":
        return tuple(range(settings.transitions))
    levels = enumerate(zip(step_kinds(settings), sigmas, sigmas[1:], strict=False))
    step = partial(transition, velocity=0.0, x=0.0, eta=settings.eta, sigma_after_first=sigmas[1])
    return tuple(j for j, (kind, *pair) in levels if step(kind, sigma=pair[0], sigma_next=pair[1]).std >= MIN_STD)


def _merged(model: FlowModel, wanted: bool) -> contextlib.AbstractContextManager[None]:
    return model.policy.merged() if wanted else contextlib.nullcontext()


def _with_images(model, walk, groups, noise, texts, settings, overlap, merge) -> tuple[_Paths, Tensor, float]:
    """All samples and their pictures, `batch_size` at a time, and the seconds that the last of them waited for their scores."""
    parts, pictures = [], []
    with model.policy.sampling(), overlap.scoring(model.device) as scored, _merged(model, merge):
        for rows in torch.arange(len(groups)).split(settings.batch_size or len(groups)):
            parts.append(walk(groups[rows], rows, [noise[row] for row in rows]))
            if scored:
                prompts = [texts[group] for group in groups[rows].tolist()]
                pictures.append(model.decode(parts[-1].final, 0, prompts))
                scored.add(pictures[-1], prompts)
    paths = _joined(parts)
    if not scored:
        prompts = [texts[group] for group in groups.tolist()]
        return paths, model.decode(paths.final, settings.batch_size, prompts), 0.0
    images = torch.cat(pictures)
    scored.images = weakref.ref(images)
    return paths, images, scored.waited


@dataclass(frozen=True)
class _Paths:
    """The paths that the loop makes of some samples; fields as in `Trajectories`."""

    latents: Tensor
    final: Tensor
    log_probs: Tensor
    stds: tuple[float, ...]
    trained: tuple[int, ...]
    kept: KeptGraph | None
    predictions: Tensor | None


def _walk(model, condition, sigmas, settings, calls, keep_predictions, on_step, groups, rows, noise) -> _Paths:
    """Takes some samples from noise to x̂0, together: `rows` of this process's; `noise` [B] has a stream for each, see `_noise`.

    With the sampler `ode` every step is one to train by, since an update that noises x̂0 again needs nothing but noise levels.
    """
    x = devices.upload(_drawn(noise), model.device)
    visited, predictions, log_probs, stds, trained = [x], [], [], [], []
    kept = KeptGraph([], model.memo[NextRollout])
    clean, stochastic, before = x, False, None
    for j, (kind, sigma, sigma_next) in enumerate(zip(step_kinds(settings), sigmas, sigmas[1:], strict=False)):
        on_step()
        alike, call = settings.shared_noise and not trained, partial(_velocity, model, condition, sigma, settings)
        with torch.no_grad():
            if calls is None:
                v = call(x, groups, groups if alike else None)
            else:
                v = _keeping(kept, calls, j, rows, call, x, groups, alike)
            gaussian = transition(kind, v, x, sigma, sigma_next, eta=settings.eta, sigma_after_first=sigmas[1])
        clean, stochastic = x - sigma * v, gaussian.std >= MIN_STD
        if settings.kind == "ode":
            trained.append(j)
        if stochastic:
            x_next = gaussian.sample(devices.upload(_drawn(noise), x.device))
            log_probs.append(gaussian.log_prob(x_next, settings.log_prob_norm))
            trained.append(j)
        elif kind == "ode" and settings.ode_solver == "adams_bashforth":
            x_next = adams_bashforth(v, x, sigma, sigma_next, before)
        else:
            x_next = gaussian.mean
        before = (v, sigma) if kind == "ode" else None
        x = x_next
        visited.append(x)
        stds.append(gaussian.std)
        if keep_predictions:
            predictions.append(clean)
    # To the host only now: a transfer at every step would make the accelerator wait each time.
    return _Paths(
        latents=torch.stack(visited, 1).cpu(),
        final=(clean if stochastic else x).cpu(),  # of a trained last step without its noise
        log_probs=torch.stack(log_probs, 1).cpu() if log_probs else torch.empty(len(groups), 0),
        stds=tuple(stds),
        trained=tuple(trained),
        kept=None if calls is None else kept,
        predictions=torch.stack(predictions, 1).cpu() if keep_predictions else None,
    )


def _keeping(
    kept: KeptGraph, calls: TrainedCalls, step: int, rows: Tensor, velocity_of, x: Tensor, groups: Tensor, alike: bool
) -> Tensor:
    """The velocity at x [B, …]. The trained calls of this step are made apart from the others, and kept with their graphs.

    `alike`: a group's samples are at one point, and share a call of it, unless each needs a gradient there of its own.
    """

    velocity, others = torch.empty_like(x), torch.ones(len(rows), dtype=torch.bool)
    for number, part in itertools.product(range(calls.steps.shape[1]), calls.parts[rows].unique()):
        here = (calls.steps[rows, number] == step) & (calls.parts[rows] == part)  # [B]
        if here.any():
            there = devices.upload(here.nonzero()[:, 0], x.device)
            point = x[there].requires_grad_(calls.with_slopes)
            with torch.enable_grad():
                own = velocity_of(point, groups[here], groups[here] if alike and not calls.with_slopes else None)
            kept.append(KeptCall(number, rows[here], point, own))
            velocity[there], others = own.detach(), others & ~here
    if others.any():
        there = devices.upload(others.nonzero()[:, 0], x.device)
        velocity[there] = velocity_of(x[there], groups[others], groups[others] if alike else None)
    return velocity


def _joined(parts: Sequence[_Paths]) -> _Paths:
    """All samples of one rollout, in their order."""
    tensors = {name: torch.cat([getattr(part, name) for part in parts]) for name in ("latents", "final", "log_probs")}
    kept = [part.kept for part in parts if part.kept is not None]
    predictions = [part.predictions for part in parts if part.predictions is not None]
    return replace(
        parts[0],
        **tensors,
        kept=KeptGraph(itertools.chain(*kept), kept[0].wish) if kept else None,
        predictions=torch.cat(predictions) if predictions else None,
    )


def _velocity(model, condition, sigma, settings, x: Tensor, groups: Tensor, points: Tensor | None) -> Tensor:
    """One model call. Samples with equal numbers in `points` [B] stand at one point and share a row of it; None: a row each."""
    levels = torch.as_tensor(sigma, dtype=torch.float64).expand(len(x))
    guidance = model.guidance_at(float(levels[0]), settings)
    if points is None:
        return model.velocity(x, levels, condition.rows(groups), guidance)
    first, inverse = first_of_each(points)
    if len(first) == len(x):
        return model.velocity(x, levels, condition.rows(groups), guidance)
    different = x[devices.upload(first, x.device)]
    velocity = model.velocity(different, levels[first], condition.rows(groups[first]), guidance)
    return velocity[devices.upload(inverse, x.device)]


def share_of(model: FlowModel, samples: int) -> distributed.Share:
    """The rows of so many samples that are this process's. Raises ValueError where a sharded model could not keep pace."""
    share = distributed.share(samples)
    if model.policy.is_sharded and share.total % distributed.world():
        raise ValueError(str(unequal_shares(share.total, distributed.world())))
    return share


def stream(*numbers: int, branch: Sequence[int] = ()) -> torch.Generator:
    """A source of random numbers that depends on these numbers alone; another `branch` gives an independent one."""
    state = np.random.SeedSequence(numbers, spawn_key=tuple(branch)).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) & (2**63 - 1))


def evaluated_noise(shape: Sequence[int], seed: int, text: str) -> Tensor:
    """Where a picture of `generate` starts. The text counts by the first 64 bits of the SHA-256 of its UTF-8."""
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
    return torch.randn(shape, generator=stream(seed, int.from_bytes(digest[:8], "big")))


def _noise(shape: Sequence[int], settings: SamplerSettings, seed: int, position: int, member: int) -> Iterator[Tensor]:
    """The noise of one sample: first where it starts, the same for its whole group or not, then that of each stochastic step."""
    group, sample = stream(seed, position, 0), stream(seed, position, member + 1)
    yield torch.randn(shape, generator=group if settings.shared_noise else sample)
    while True:
        yield torch.randn(shape, generator=sample)


def _drawn(noise: Sequence[Iterator[Tensor]]) -> Tensor:
    return torch.stack([next(sample) for sample in noise])
