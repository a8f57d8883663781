"""What the questions share: a tiny model made trainable as the node does it, its samples, and derivatives by differences."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from comfyui_otca.tests.comfyui import tiny
from comfyui_otca.trainer import gradient, rollout
from comfyui_otca.trainer.advantages import fuse
from comfyui_otca.trainer.credit.steps import uniform
from comfyui_otca.trainer.grpo import UpdateSettings, update
from comfyui_otca.trainer.native.loading import make_trainable
from comfyui_otca.trainer.native.model import NativeModel
from comfyui_otca.trainer.policy.adapters import Adapter
from comfyui_otca.trainer.rewards import reward_class
from comfyui_otca.trainer.rewards.base import score_stack
from comfyui_otca.trainer.types import GradientSettings, Prompts, SamplerSettings, Scores, Trajectories

TEXTS = ("a red circle", "a much longer text about a green square")  # of different length
MOVED = 0.05  # how far the adapter is moved where it has to matter
LEVELS = (0.9, 0.7, 0.5, 0.3)


@dataclass
class Made:
    """A tiny family and its trainable model."""

    tiny: tiny.Tiny
    model: NativeModel

    @property
    def one_by_one(self) -> bool:
        """Whether the network takes one sample in one call."""
        return self.tiny.batch == 1

    def settings(self, **changes) -> SamplerSettings:
        size = {"width": self.tiny.width, "height": self.tiny.height, "frames": self.tiny.frames}
        values = {"kind": "flow_sde", "eta": 0.7, "steps": 4, "guidance": 1.0, "batch_size": int(self.one_by_one)}
        return SamplerSettings(**{**values, **size, **changes})

    def sample(self, seed: int = 1, keep_graph: bool = False, **changes) -> Trajectories:
        """Two prompts of different length with two samples each."""
        prompts = Prompts(TEXTS, (0, 1))
        return rollout.sample(
            self.model, prompts, self.settings(**changes), group_size=2, seed=seed, keep_graph=keep_graph
        )

    def update(self, trajectories: Trajectories, **changes) -> dict:
        """One update by made-up scores."""
        count = len(trajectories.groups)
        values = torch.randn((count, 1), generator=torch.Generator().manual_seed(trajectories.seed))
        scores = Scores(values, ("a",), (1.0,), trajectories.groups, torch.empty(count, 0), (), ())
        credit = uniform(trajectories.latents, trajectories.final, trajectories.trained)
        advantages = fuse(scores, credit, "weighted_advantages")
        settings = {"learning_rate": 1e-2, "ema_decay": 0.5, "batch_size": int(self.one_by_one)}
        return dict(update(self.model, trajectories, advantages, UpdateSettings(**{**settings, **changes})))

    def follow(self, trajectories: Trajectories, mode: str, **changes) -> dict:
        """One update by a reward's gradient, which leaves the weights where they are."""
        scores = score_stack(
            [reward_class("brightness")()], trajectories.images, trajectories.prompts, trajectories.groups
        )
        settings = {"learning_rate": 0.0, "mode": mode, "max_grad_norm": 1e9, "batch_size": int(self.one_by_one)}
        self.model.policy.version = trajectories.policy_version
        self.model.memo.keep(gradient.RewardSpread())
        figures, _ = gradient.update(self.model, trajectories, scores, GradientSettings(**{**settings, **changes}))
        self.model.policy.version = trajectories.policy_version
        return dict(figures)

    def move(self, names: Collection[str] | None = None) -> None:
        """Puts the adapter, or its parameters of these names, away from zero, so that all of it has a gradient."""
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, parameter in self.model.policy.trainable_named().items():
                if names is None or name in names:
                    parameter += MOVED * torch.randn(parameter.shape, generator=generator).to(parameter)

    def noise(self, batch: int) -> Tensor:
        shape = self.model.latent_shape(self.tiny.height, self.tiny.width, self.tiny.frames)
        return torch.randn((batch, *shape), generator=torch.Generator().manual_seed(5))

    def parameters(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.model.policy.trainable_parameters()]


def make(name: str, build: dict | None = None, **options) -> Made:
    """As Make Trainable does it, rank 4. float16 is computed in, as on a GPU; on a CPU ComfyUI would cast it."""
    import comfy.model_management

    build = build or {}
    half = build.get("dtype") == torch.float16
    with attribute(comfy.model_management, "unet_manual_cast", lambda *_: None) if half else nullcontext():
        made = tiny.build(name, **build)
    with torch.inference_mode(False):
        return trainable(made, **options)


def trainable(made: tiny.Tiny, all_layers: bool = False, **options) -> Made:
    """`all_layers`: an adapter also on the layers outside of blocks, so that everything which enters a block has a gradient."""
    options = {"checkpointing": "off", "check_gradients": False, **options}
    if made.extra:
        options["conditioning"] = made.conditioning("")
    linear = torch.nn.Linear
    every = {name for name, layer in made.model.model.diffusion_model.named_modules() if isinstance(layer, linear)}
    adapter = Adapter(4, 4.0, ",".join(sorted(every)) if all_layers else "")
    return Made(made, make_trainable(made.model, made.clip, made.vae, adapter, **options))


class Loss:
    """Σ w·v in float64, of two prompts and four noise levels in one call: a function of the adapter."""

    def __init__(self, made: Made, **changes):
        self.made, self.model = made, made.model
        settings = made.settings(**changes)
        rows = [0] if made.one_by_one else [0, 1, 0, 1]
        self.levels = torch.tensor(LEVELS[: len(rows)], dtype=torch.float64)
        self.x = made.noise(len(rows))
        self.weights = torch.randn(self.x.shape, generator=torch.Generator().manual_seed(6)).double()
        self.condition = self.model.condition([TEXTS[row] for row in rows], settings)
        self.guidance = settings.guidance

    def velocity(self) -> Tensor:
        return self.model.velocity(self.x, self.levels, self.condition, self.guidance)

    def __call__(self) -> Tensor:
        return (self.velocity().double() * self.weights).sum()

    def recorded(self) -> Tensor:
        """The velocity with its graph."""
        with torch.enable_grad():
            return self.velocity()

    def gradients(self, velocity: Tensor | None = None) -> dict[str, Tensor]:
        """By autograd, of everything that has one."""
        named = self.model.policy.trainable_named()
        velocity = self.recorded() if velocity is None else velocity
        with torch.enable_grad():
            value = (velocity.double() * self.weights).sum()
        found = torch.autograd.grad(value, list(named.values()), allow_unused=True)
        return {name: gradient for name, gradient in zip(named, found, strict=True) if gradient is not None}

    @torch.no_grad()
    def slope(self, name: str, entry: int) -> float:
        """The derivative by one number of the adapter, from central differences at two steps that agree (Richardson)."""
        values = self.model.policy.trainable_named()[name].view(-1)
        start, still = values[entry].item(), self.velocity()

        def at(step: float, compute: Callable = self):
            values[entry] = start + step
            try:
                return compute()
            finally:
                values[entry] = start

        size = 0.1  # changed until it moves the velocity well beyond rounding
        for _ in range(8):
            share = float((at(size, self.velocity) - still).norm() / still.norm())
            if 1e-3 <= share <= 8e-3:
                break
            size *= min(100.0, max(0.01, 3e-3 / share)) if share else 100.0
        # Where a network jumps (a router sends a token to another expert), steps that agree lie between two jumps.
        estimates, wide = [], self._difference(at, size)
        for halvings in range(1, 8):
            close = self._difference(at, size / 2**halvings)
            estimates.append((abs(close - wide), (4 * close - wide) / 3))
            if estimates[-1][0] <= 2e-3 * abs(close):
                break
            wide = close
        return min(estimates)[1]

    def _difference(self, at: Callable, step: float) -> float:
        return (float(at(step)) - float(at(-step))) / (2 * step)


def entries(gradients: dict[str, Tensor]) -> list[tuple[str, int]]:
    """Numbers of the adapter to look at: of A in the first layer and of B in the last, each the one that matters most there."""
    found = []
    for part, which in (("lora_A", 0), ("lora_B", -1)):
        mattering = {name: gradient.abs().max().item() for name, gradient in gradients.items() if part in name}
        most = max(mattering.values())
        name = [name for name, value in mattering.items() if value and value >= 0.1 * most][which:][:1]
        found += [(name, int(gradients[name].abs().argmax())) for name in name]
    return found


def apart(one: Tensor, other: Tensor) -> float:
    """‖one - other‖ / ‖other‖."""
    return float((one.double() - other.double()).norm() / other.double().norm())


def furthest(some: dict[str, Tensor], others: dict[str, Tensor]) -> float:
    """The distance of two gradients as a whole, as a share; what one of them lacks counts as zero."""
    names = sorted(some.keys() | others.keys())
    flat = [
        torch.cat(
            [(each[name] if name in each else torch.zeros_like({**some, **others}[name])).flatten() for name in names]
        )
        for each in (some, others)
    ]
    return apart(*flat)


@contextmanager
def attribute(owner: object, name: str, value: object) -> Iterator[None]:
    """Within it an attribute has that value."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
