"""Prompts to trajectories: the sampling loop, and the same transition taken again for the update."""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from ..host import devices, distributed
from .rewards.overlap import Ahead
from .schedule import misfits, step_kinds, untrainable
from .sde import MIN_STD, Gaussian, adams_bashforth, transition
from .types import Prompts, SamplerSettings, Trajectories

if TYPE_CHECKING:
    from torch import Tensor

    from .flow.base import Condition, FlowModel
    from .inference.guidance import Composition

GRAPH_MEMORY_SHARE = 0.5  # of the free memory, the most that kept graphs may take under keep_graph="auto"


def sample(
    model: FlowModel,
    prompts: Prompts,
    settings: SamplerSettings,
    *,
    group_size: int,
    seed: int,
    keep_graph: bool = False,
    keep_predictions: bool = False,
    on_step: Callable[[], None] = lambda: None,
    ahead: Ahead | None = None,
) -> Trajectories:
    """Samples a group of `group_size` trajectories for every prompt; of several processes each its share of them.

    Noise depends on the seed, the prompt's position in the dataset and the member's number alone: neither the batch size nor
    which prompts are sampled beside it change a trajectory.

    With `settings.merge_adapter` the adapter is part of the weights meanwhile, unless graphs are kept: those have to reach it.

    Args:
        keep_graph: keep each trained step's autograd graph, so that an on-policy update is a backward pass only.
        keep_predictions: keep x̂0 at every step, to be looked at; takes as much memory again as the latents.
        on_step: called before every model call; may raise to stop.
        ahead: rewards that score what has been sampled, while the next `batch_size` samples are made.

    Raises:
        ValueError: group_size < 2, an unknown ode_solver, fewer steps after a window where none ends, settings under which no
            step is stochastic, or weights that no adapter can be merged into.
    """
    if misfit := next(misfits(settings, group_size), None):
        raise ValueError(str(misfit))
    started = time.perf_counter()
    model.come_back()
    model.policy.forget_gradients()
    sigmas = model.sigmas(settings)
    if misfit := untrainable(settings, sigmas):
        raise ValueError(str(misfit))
    condition = model.condition(prompts.texts, settings)
    share = distributed.share(len(prompts.texts) * group_size)
    if model.policy.is_sharded and share.total % distributed.world():
        raise ValueError(
            f"{share.total} samples cannot be shared equally by {distributed.world()} processes, as a sharded model needs it. "
            "Fix: change prompts_per_iteration or group_size"
        )
    groups = torch.tensor([row // group_size for row in share.rows])
    sources = [
        (_generator(seed, position, 0), _generator(seed, position, row % group_size + 1))
        for row in share.rows
        for position in [prompts.positions[row // group_size]]
    ]
    parts, pictures = [], []
    ahead = ahead or Ahead()
    with ahead.scoring(model.device) as scored, _merged(model, settings.merge_adapter and not keep_graph):
        for rows in torch.arange(len(groups)).split(settings.batch_size or len(groups)):
            own = [sources[row] for row in rows]
            keep = (keep_graph, keep_predictions)
            parts.append(_sample_part(model, condition, groups[rows], own, sigmas, settings, *keep, on_step))
            if scored:
                pictures.append(model.decode(parts[-1]["final"]))
                scored.add(pictures[-1], [prompts.texts[group] for group in groups[rows].tolist()])
    latents, predictions, final, log_probs = (
        torch.cat([part[name] for part in parts]) for name in ("latents", "predictions", "final", "log_probs")
    )
    stds, trained = parts[0]["stds"], parts[0]["trained"]
    kept = None
    if keep_graph:
        kept = [torch.cat(velocities) for velocities in zip(*(part["kept"] for part in parts), strict=True)]
    images = torch.cat(pictures) if pictures else model.decode(final, settings.batch_size)
    if scored:
        scored.images = weakref.ref(images)
    return Trajectories(
        latents=latents,
        final=final,
        images=images,
        sigmas=sigmas,
        trained=trained,
        stds=stds,
        log_probs=log_probs,
        groups=groups,
        share=share,
        prompts=prompts.texts,
        positions=prompts.positions,
        settings=settings,
        policy_version=model.policy.version,
        seed=seed,
        kept=kept,
        unconditional_gradient=model.unconditional_gradient,
        predictions=predictions if keep_predictions else None,
        decode=model.decode,
        seconds=time.perf_counter() - started - (scored.waited if scored else 0.0),
        ahead=ahead,
    )


@torch.no_grad()
def generate(
    model: FlowModel,
    texts: list[str],
    settings: SamplerSettings,
    seeds: list[int],
    on_step: Callable[[], None] = lambda: None,
    compose: Composition | None = None,
) -> Tensor:
    """Pictures [B, H, W, 3] by the deterministic sampler, one for each text and seed: for evaluation, not for training.

    `on_step` is called before every model call and may raise to stop; `compose` puts several adapters' velocities together.
    """
    model.come_back()
    settings = replace(settings, kind="ode", window=None)  # all steps: a window's rest may be cut short
    sigmas = model.sigmas(settings)
    shape = model.latent_shape(settings.height, settings.width, settings.frames)
    images = []

    def predict(x: Tensor, sigma: float, condition: Condition) -> Tensor:
        on_step()
        return model.velocity(x, sigma, condition, model.guidance_at(sigma, settings))

    for rows in torch.arange(len(texts)).split(settings.batch_size or len(texts)):
        condition = model.condition([texts[row] for row in rows], settings)
        x = torch.stack([torch.randn(shape, generator=_generator(seeds[row], 0, 0)) for row in rows]).to(model.device)
        # Encoders and autoencoder do without the adapter, and may need the memory. Composed adapters change at every call.
        with _merged(model, settings.merge_adapter and compose is None):
            for step, (sigma, sigma_next) in enumerate(zip(sigmas, sigmas[1:], strict=False)):
                call = partial(predict, x, sigma, condition)
                velocity = compose(step, call) if compose else call()
                x = transition("ode", velocity, x, sigma, sigma_next, eta=0.0).mean
        images.append(model.decode(x.cpu(), settings.batch_size))
    return torch.cat(images)


def model_calls(steps: int, samples: int, batch_size: int) -> int:
    """Number of model calls, and so of `on_step`, in one rollout."""
    return steps * -(-samples // (batch_size or samples))


def first_of_each(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Rows with different numbers, the first of each, by rising number; and for each of [B] which of those has its number."""
    _, inverse = numbers.unique(return_inverse=True)
    none = torch.full((int(inverse.max()) + 1,), len(numbers))
    return none.scatter_reduce(0, inverse, torch.arange(len(numbers)), "amin"), inverse


def at_one_point(trajectories: Trajectories, steps: Tensor | int) -> Tensor | bool:
    """Whether a group's members have not parted yet at these steps: they share their noise, and none was added before."""
    return trajectories.settings.shared_noise & (steps <= trajectories.trained[0])


def velocity_at(model: FlowModel, trajectories: Trajectories, steps: int | Tensor, rows: Tensor) -> Tensor:
    """The policy's velocity [N, C, h, w] at visited points of these trajectories.

    Args:
        steps: a step's number, or one for each row, [N], all of the model's `same_network`.
        rows: N numbers of samples.
    """
    settings, groups = trajectories.settings, trajectories.groups[rows]
    steps = torch.as_tensor(steps).expand(len(rows))
    levels = torch.tensor(trajectories.sigmas, dtype=torch.float64)[steps]
    x = trajectories.latents[rows, steps].to(model.device)
    # Who is where, as numbers.
    count = len(trajectories.prompts)
    places = torch.where(at_one_point(trajectories, steps), groups, count + rows)
    points = places + steps * (count + len(trajectories.groups))
    condition = model.condition(trajectories.prompts, settings)
    return _velocity(model, condition, x, groups, levels, settings, points)


def sampled_noise(trajectories: Trajectories) -> Tensor:
    """The noise [B, T', C, h, w] that the trained steps added, drawn again from the same streams."""
    settings, shape = trajectories.settings, trajectories.latents.shape[2:]
    group_size = trajectories.share.total // len(trajectories.prompts)
    noise = []
    for row in trajectories.share.rows:
        own = _generator(trajectories.seed, trajectories.positions[row // group_size], row % group_size + 1)
        if not settings.shared_noise:
            torch.randn(shape, generator=own)  # where it began
        noise.append(torch.stack([torch.randn(shape, generator=own) for _ in trajectories.trained]))
    return torch.stack(noise)


def trained_transition(trajectories: Trajectories, step: int, velocity: Tensor, rows: Tensor) -> Gaussian:
    """The transition that these trajectories took at a trained step, for a given velocity."""
    settings, sigmas = trajectories.settings, trajectories.sigmas
    x = trajectories.latents[rows, step].to(velocity.device)
    return transition(
        settings.kind, velocity, x, sigmas[step], sigmas[step + 1], eta=settings.eta, sigma_after_first=sigmas[1]
    )


def graph_fits(model: FlowModel, settings: SamplerSettings, samples: int) -> bool:
    """Whether the graphs of all trained steps of so many samples fit into half of the free memory (keep_graph="auto")."""
    if not model.uses_graphs:
        return False
    if model.policy.is_sharded:
        # Each process would decide by its own free memory, and all have to call it equally often.
        return False
    # Decided once, wherever a window stands: the free memory moves from one iteration to the next, and the two ways differ in
    # rounding.
    trained = sum(kind != "ode" for kind in step_kinds(settings))
    case = replace(settings, window=None), trained, samples, model.unconditional_gradient
    if case not in model.graph_decisions:
        need = model.graph_bytes(settings) * samples * trained
        model.graph_decisions[case] = need <= GRAPH_MEMORY_SHARE * devices.free_memory(model.device)
    return model.graph_decisions[case]


def _merged(model: FlowModel, wanted: bool) -> contextlib.AbstractContextManager[None]:
    return model.policy.merged() if wanted else contextlib.nullcontext()


def _sample_part(model, condition, groups, sources, sigmas, settings, keep_graph, keep_predictions, on_step) -> dict:
    """Samples some of the trajectories together; `sources` has a noise stream of its group and one of its own for each."""
    shape, kinds = model.latent_shape(settings.height, settings.width, settings.frames), step_kinds(settings)
    x = torch.stack([torch.randn(shape, generator=group if settings.shared_noise else own) for group, own in sources])
    x = x.to(model.device)
    visited, predictions, log_probs, kept, stds, trained = [x], [], [], [], [], []
    before = None
    for j, kind in enumerate(kinds):
        on_step()
        points = groups if settings.shared_noise and not trained else None
        with torch.set_grad_enabled(keep_graph and kind != "ode"):
            velocity = _velocity(model, condition, x, groups, sigmas[j], settings, points)
            gaussian = transition(
                kind, velocity, x, sigmas[j], sigmas[j + 1], eta=settings.eta, sigma_after_first=sigmas[1]
            )
            stochastic = gaussian.std >= MIN_STD
            following = gaussian.mean.detach()
            if stochastic:
                noise = torch.stack([torch.randn(shape, generator=own) for _, own in sources])
                following = following + gaussian.std * noise.to(x.device)
                log_prob = gaussian.log_prob(following, settings.log_prob_norm).detach()
        if kind == "ode" and settings.ode_solver == "adams_bashforth":
            following = adams_bashforth(velocity, x, sigmas[j], sigmas[j + 1], before)
        before = (velocity, sigmas[j]) if kind == "ode" else None
        clean = x - sigmas[j] * velocity.detach()
        if keep_predictions:
            predictions.append(clean)
        stds.append(gaussian.std)
        if stochastic:
            trained.append(j)
            log_probs.append(log_prob)
            if keep_graph:
                kept.append(velocity)
        x = following
        visited.append(x)
    # To the host only now: a transfer at every step would make the accelerator wait each time.
    return {
        "latents": torch.stack(visited, 1).cpu(),
        "predictions": torch.stack(predictions, 1).cpu() if keep_predictions else clean[:0].cpu(),
        "final": (clean if stochastic else x).cpu(),  # of a trained last step without its noise
        "log_probs": torch.stack(log_probs, 1).cpu() if log_probs else torch.empty(len(groups), 0),
        "kept": kept,
        "stds": tuple(stds),
        "trained": tuple(trained),
    }


def _velocity(model, condition, x: Tensor, groups: Tensor, sigma, settings, points: Tensor | None) -> Tensor:
    """One model call, with one forward pass for all samples that have the same number in `points` [B]; None: all apart."""
    levels = torch.as_tensor(sigma, dtype=torch.float64).expand(len(x))
    guidance = model.guidance_at(float(levels[0]), settings)
    if points is None:
        return model.velocity(x, levels, condition.rows(groups), guidance)
    first, inverse = first_of_each(points)
    if len(first) == len(x):
        return model.velocity(x, levels, condition.rows(groups), guidance)
    velocity = model.velocity(x[first.to(x.device)], levels[first], condition.rows(groups[first]), guidance)
    return velocity[inverse.to(x.device)]


def _generator(seed: int, position: int, member: int) -> torch.Generator:
    """An independent stream for each of (seed, prompt position, member); member 0 is the group itself."""
    state = np.random.SeedSequence([seed, position, member]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(state) & (2**63 - 1))
