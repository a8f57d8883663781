"""The exact gradient of a reward that has one, and what each step's policy gradient has of it (method.md §4, signal).

With the noise of the SDE held fixed a trajectory is a differentiable function of the weights θ, so that G = ∇ E[R] is the mean
of ∇ R over trajectories. A policy gradient g estimates the same by scores alone. Progress of a normalised step is proportional
to its *efficiency* e = ⟨E g, G⟩ / (|G|·√E|g|²), and the samples for equal progress to 1/e².
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...host import devices
from ..families.base import FlowModel
from ..rewards.base import Reward, score_with_gradient
from ..rollout import beside, kept_calls, slopes, stream, trained_transition, velocity_at
from ..schedule import step_kinds, stochastic_count
from ..sde import MIN_STD, transition
from ..types import Prompts, SamplerSettings, StepCredit, Trajectories


def exact_gradient(
    model: FlowModel,
    prompts: Prompts,
    settings: SamplerSettings,
    reward: Reward,
    seed: int,
    on_step: Callable[[], None] = lambda: None,
) -> tuple[Tensor, Tensor]:
    """∇ of the mean reward of one trajectory for each prompt, [θ] float32 in main memory, and the rewards [P].

    Each has noise of its own, which depends on the seed and the prompt's position, and which rollouts do not use. A step is taken
    back by one backward pass, of a graph that was kept if there is memory for it, else computed again. Deterministic steps are
    those of Euler.

    `on_step`: called before each model call; may raise to stop.

    Raises:
        RewardError: the reward has no gradient.
    """
    model.come_back()
    size = settings.batch_size or len(prompts.texts)
    gradient, rewards = torch.zeros(count(model)), []
    for first in range(0, len(prompts.texts), size):
        some = Prompts(prompts.texts[first : first + size], prompts.positions[first : first + size])
        part, scores = _of_part(model, some, settings, reward, seed, on_step)
        gradient += part
        rewards.append(scores)
    return gradient / len(prompts.texts), torch.cat(rewards)


def _of_part(model, prompts: Prompts, settings: SamplerSettings, reward, seed: int, on_step) -> tuple[Tensor, Tensor]:
    sigmas, condition = model.sigmas(settings), model.condition(prompts.texts, settings)
    levels, kinds = list(zip(sigmas, sigmas[1:], strict=False)), step_kinds(settings)
    keeps = kept_calls(model, settings, range(len(prompts.texts))) >= stochastic_count(settings)

    def velocity(x: Tensor, sigma: float) -> Tensor:
        on_step()
        return model.velocity(x, sigma, condition, model.guidance_at(sigma, settings))

    shape = (len(levels) + 1, *model.sample_shape(prompts.texts, settings))
    noise = torch.stack([torch.randn(shape, generator=stream(seed, n, branch=(3,))) for n in prompts.positions])
    noise = devices.upload(noise, model.device)
    x, points, velocities = noise[:, 0], [], []
    for j, (sigma, following) in enumerate(levels):
        points.append(x.detach().requires_grad_(j > 0))
        with torch.set_grad_enabled(keeps):
            velocities.append(velocity(points[j], sigma))
        step = transition(
            kinds[j], velocities[j].detach(), x, sigma, following, eta=settings.eta, sigma_after_first=sigmas[1]
        )
        clean = x - sigma * velocities[j].detach()  # what is decoded in the end, as in a rollout
        x = step.sample(noise[:, j + 1]) if step.std >= MIN_STD else step.mean
    pull, scores = _of_final(model, reward, clean, prompts.texts)
    total = torch.zeros(count(model))
    for j in reversed(range(len(levels))):
        v = velocities.pop()
        if not keeps:
            with torch.enable_grad():
                v = velocity(points[j], levels[j][0])
        of_x, of_v = slopes(settings, sigmas, j)
        back = _gradient(model, v, of_v * pull, [points[j]] if j else [])
        total += back[0]
        pull = of_x * pull + (back[1] if j else 0)
    return total, scores


@dataclass(frozen=True)
class StepGradients:
    """Gradients of one batch, in main memory.

    Attributes:
        policy: [T', θ] the policy gradient g_j of each trained step by itself, at weight 1.
        exact: [T', θ] what the same steps are expected to be, from gradients through the trajectories.
        credits: by name, [θ] of all steps, of the credits that tell samples apart.
    """

    policy: Tensor
    exact: Tensor
    credits: dict[str, Tensor]


def factors(credit: StepCredit, trajectories: Trajectories, objective: str = "") -> Tensor:
    """The factors of each sample's ∇ log-prob at each step: [B, T'], or [B, T', (F,) h, w] of a credit that tells places apart.

    Weights and factors of the log-ratio, which an update at ρ = 1 multiplies too; of a credit by objective, those of `objective`.
    """
    weights = credit.weights
    if credit.by_objective is not None and objective in credit.objectives:
        weights = credit.by_objective[:, :, credit.objectives.index(objective)]
    if credit.ratio_scale:
        scale = torch.tensor(credit.ratio_scale)
        if trajectories.settings.log_prob_norm == "squared_error":
            scale = scale / (2 * torch.tensor([trajectories.stds[step] for step in credit.trained]) ** 2)
        weights = weights * scale
    if credit.spatial is None:
        return weights
    places = credit.spatial[:, None]  # [B, 1, (F,) h, w]
    return beside(weights, places) * places


def tells_samples_apart(factor: Tensor) -> bool:
    return factor.ndim > 2 or not torch.equal(factor, factor[:1].expand_as(factor))


def step_gradients(
    model: FlowModel,
    trajectories: Trajectories,
    reward: Reward,
    advantage: Tensor,
    slope: Tensor,
    credits: dict[str, Tensor],
    on_step: Callable[[], None] = lambda: None,
) -> StepGradients:
    """g_j = ∇ mean over samples of A·log p_j, Σ_j ∇ mean of f_j·A·log p_j for `factors` f, and the expectations of all g_j.

    E[R·∇ log p_j] is E of ∇ R through the mean of step j alone, which has far less noise: that is `exact`.

    `advantage`: A [B] of the rewards R.
    `slope`: dA/dR [B].
    `credits`: by name, `factors`.
    `on_step`: called before each model call; may raise to stop.
    """
    model.come_back()
    samples = len(trajectories.groups)
    size = trajectories.settings.batch_size or samples
    policy, exact = torch.zeros(2, len(trajectories.trained), count(model))
    sums = {name: torch.zeros(count(model)) for name in credits}
    for rows in torch.arange(samples).split(size):
        texts = [trajectories.prompts[group] for group in trajectories.groups[rows].tolist()]
        pull = _of_final(model, reward, devices.upload(trajectories.final[rows], model.device), texts)[0]
        pull = beside(slope[rows], pull) * pull
        for step in reversed(range(trajectories.trained[0], len(trajectories.stds))):
            on_step()
            here, velocity = _at_step(model, trajectories, step, rows)
            of_x, of_v = slopes(trajectories.settings, trajectories.sigmas, step)
            gradients = _gradient(model, velocity, of_v * pull, here, retain=step in trajectories.trained)
            if step in trajectories.trained:
                position = trajectories.trained.index(step)
                # In units of the density: log p_j is a mean over elements and, as squared error, without the variance.
                is_plain = trajectories.settings.log_prob_norm == "squared_error"
                unit = (2 * trajectories.stds[step] ** 2 if is_plain else 1) / trajectories.final[0].numel()
                exact[position] += gradients[0] * unit
                losses = _losses(trajectories, step, rows, velocity, advantage, credits)
                for name, loss in losses.items():
                    own = _gradient(model, loss, None, retain=name != list(losses)[-1])[0]
                    (sums[name] if name else policy[position]).add_(own)
            pull = of_x * pull + (gradients[1] if here else 0)
    return StepGradients(policy / samples, exact / samples, {name: total / samples for name, total in sums.items()})


def _at_step(model, trajectories: Trajectories, step: int, rows: Tensor) -> tuple[list[Tensor], Tensor]:
    """The velocity of some samples at a step, and where they are, except at the first trained step."""
    with torch.enable_grad():
        if step == trajectories.trained[0]:
            return [], velocity_at(model, trajectories, step, rows)
        x = devices.upload(trajectories.latents[rows, step], model.device).requires_grad_()
        settings, sigma = trajectories.settings, trajectories.sigmas[step]
        condition = model.condition(trajectories.prompts, settings).rows(trajectories.groups[rows])
        return [x], model.velocity(x, sigma, condition, model.guidance_at(sigma, settings))


def _losses(trajectories, step: int, rows: Tensor, velocity: Tensor, advantage: Tensor, credits) -> dict[str, Tensor]:
    """Σ over some samples of A·log p_j, by "", and of f_j·A·log p_j, by each credit's name."""
    following = devices.upload(trajectories.latents[rows, step + 1], velocity.device)
    with torch.enable_grad():
        gaussian = trained_transition(trajectories, step, velocity, rows)
        density = gaussian.log_prob_map(following, trajectories.settings.log_prob_norm)
        pulled = density * beside(advantage[rows], density)
        position = trajectories.trained.index(step)
        parts = {name: pulled * beside(factor[rows, position], pulled) for name, factor in credits.items()}
        return {name: part.flatten(1).mean(1).sum() for name, part in ({"": pulled} | parts).items()}


def _of_final(model, reward: Reward, final: Tensor, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """∂R/∂x̂0 of decoded latents [B, …], and the rewards [B]."""
    with model.decoder(texts) as decode, torch.enable_grad():
        final = final.detach().requires_grad_()
        scores = score_with_gradient(reward, decode(final), texts)
        (pull,) = torch.autograd.grad(scores.sum(), final)
    return pull, scores.detach().cpu()


def count(model: FlowModel) -> int:
    """How many numbers are trained, θ."""
    return sum(parameter.numel() for parameter in model.policy.trainable_parameters())


def _gradient(model, output: Tensor, pull: Tensor | None, more: Sequence[Tensor] = (), retain: bool = False) -> list:
    """[θ] in main memory and the gradients of `more`. What `output` does not depend on, as LoRA's A at B = 0, is 0."""
    parameters = model.policy.trainable_parameters()
    gradients = torch.autograd.grad(
        output, [*parameters, *more], pull, retain_graph=retain, allow_unused=True, materialize_grads=True
    )
    flat = torch.cat([gradient.flatten().float() for gradient in gradients[: len(parameters)]]).cpu()
    return [flat, *gradients[len(parameters) :]]
