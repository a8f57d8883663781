"""Implicit Reward Guidance (PCPO, arXiv 2509.25774): adapters put together at inference, without training.

A model aligned to reward k has π_k ∝ π_base·exp(r_k/β), so v_k - v_base points along that reward's gradient, and

    v = v_base + Σ_k γ_k·(v_k - v_base)

follows several rewards at once. γ = 1 of one adapter is the tuned model, γ > 1 goes beyond it, γ < 1 not all the way. Every v
here is a model's whole velocity: classifier-free guidance is inside each of them, and is not applied to their sum again.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..host import stopping
from ..trainer import rollout
from ..trainer.families.base import FlowModel
from ..trainer.policy import lora
from ..trainer.policy.files import all_of, find, read_metadata, weights_of
from ..trainer.types import SamplerSettings

BASE = "base"


@dataclass(frozen=True)
class Guide:
    """One adapter and how much of it.

    Attributes:
        source: a run, or a LoRA's .safetensors file, as `find` takes it.
        gammas: (step, γ) by rising step: from that one on, counted from 0, it is γ; before the first, 0.
    """

    source: str
    gammas: tuple[tuple[int, float], ...]

    def at(self, step: int) -> float:
        return next((gamma for first, gamma in reversed(self.gammas) if first <= step), 0.0)

    @property
    def name(self) -> str:
        path = Path(self.source)
        return path.stem if path.suffix == ".safetensors" else path.resolve().name

    def __str__(self) -> str:
        if [first for first, _ in self.gammas] == [0]:
            return f"{self.name} {self.gammas[0][1]:g}"
        return f"{self.name} {', '.join(f'{first}:{gamma:g}' for first, gamma in self.gammas)}"


def parse(text: str) -> Guide:
    """`RUN=γ`, or `RUN=0:1.5,8:0.5`: γ from each of these steps on.

    Raises:
        ValueError: names the part that cannot be read.
    """
    source, equals, gammas = (part.strip() for part in text.rpartition("="))
    if not equals or not source:
        raise ValueError(f"guide {text!r} is not RUN=γ. Fix: for example runs/color=1.5")
    parts = [part.strip() for part in gammas.split(",")]
    if len(parts) == 1 and ":" not in gammas:
        return Guide(source, ((0, _number(gammas, text)),))
    steps = []
    for part in parts:
        first, colon, gamma = part.partition(":")
        if not colon or not first.strip().isdecimal():
            raise ValueError(f"guide {text!r}: {part!r} is not STEP:γ. Fix: for example runs/color=0:1.5,8:0.5")
        steps.append((int(first), _number(gamma, text)))
    if any(after <= before for (before, _), (after, _) in zip(steps, steps[1:], strict=False)):
        raise ValueError(f"guide {text!r}: its steps do not rise. Fix: for example runs/color=0:1.5,8:0.5")
    return Guide(source, tuple(steps))


def _number(gamma: str, text: str) -> float:
    try:
        value = float(gamma)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"guide {text!r}: γ {gamma!r} is not a number. Fix: for example runs/color=1.5")
    return value


def parse_lines(text: str) -> list[Guide]:
    """One guide a line. Raises ValueError as `parse`, or if no line names a guide."""
    lines = [line.strip() for line in text.splitlines()]
    guides = [parse(line) for line in lines if line and not line.startswith("#")]
    if not guides:
        raise ValueError("no guide is named. Fix: write RUN = γ, one per line")
    return guides


class Composition:
    """A composition of models, called in place of one: as many forward passes a step as have a share of the velocity."""

    def __init__(self, model: FlowModel, guides: Sequence[tuple[str, Guide]]):
        self.model, self.guides = model, guides  # each with the name of its adapter

    def shares(self, step: int) -> dict[str, float]:
        """{adapter: its share of the velocity}: γ_k, and 1 - Σ γ_k of the base, which comes first. Those of 0 are left out."""
        gammas = {adapter: guide.at(step) for adapter, guide in self.guides}
        shares = {BASE: 1 - math.fsum(gammas.values()), **gammas}
        return {adapter: share for adapter, share in shares.items() if share}

    def calls(self, steps: int) -> int:
        """Model calls of one batch."""
        return sum(len(self.shares(step)) for step in range(steps))

    def __call__(self, step: int, predict: Callable[[], Tensor]) -> Tensor:
        """The composed velocity; `predict` gives that of the model as it stands."""
        (first, _), *others = self.shares(step).items()
        start = velocity = self._of(first, predict)
        # Shares sum to 1, so Σ share·v may be counted from any one of them; from the base it is the formula above.
        for adapter, share in others:
            velocity = velocity + share * (self._of(adapter, predict) - start)
        return velocity

    def _of(self, adapter: str, predict: Callable[[], Tensor]) -> Tensor:
        if adapter == BASE:
            with self.model.policy.reference():
                return predict()
        self.model.policy.use_adapter(adapter)
        return predict()


@contextlib.contextmanager
def composed(model: FlowModel, guides: Sequence[Guide], steps: int) -> Iterator[Composition]:
    """The guides' adapters beside the model's own, which takes no part; afterwards the model is as it was.

    Raises:
        FileNotFoundError: as `find`.
        ValueError: an adapter of another model, a step that is never reached, or a model without an adapter.
    """
    if not model.policy.is_adapted:
        raise ValueError(
            "all weights of this run were trained, and guides need the model that it began with. Fix: give the model instead "
            "of the run"
        )
    for guide in guides:
        last, _ = guide.gammas[-1]
        if last >= steps:
            raise ValueError(
                f"guide {guide.source}: step {last} does not exist, they are 0 … {steps - 1}. Fix: name an earlier one"
            )
    adapters = [find(guide.source) for guide in guides]
    for adapter in adapters:
        # Adapters of two models of one shape have one shape too; a file of ours says by what model it was trained
        kind = model.identity.partition("-")[0]
        for file in weights_of(adapter):
            base = read_metadata(file).get(lora.BASE, model.identity)
            if base.startswith(f"{kind}-") and base != model.identity:
                raise ValueError(
                    f"guide {adapter} was trained on another base model than {model.source}. Fix: sample with the model that all "
                    "guides began with"
                )
    model.come_back()
    names = [f"guide_{number}" for number in range(len(guides))]
    try:
        for name, adapter in zip(names, adapters, strict=True):
            lora.put_on(model, adapter, name)
        yield Composition(model, list(zip(names, guides, strict=True)))
    finally:
        model.policy.remove_adapters(names)


def sample(
    model: FlowModel,
    guides: Sequence[Guide],
    prompts: Sequence[str],
    settings: SamplerSettings,
    seed: int,
    pictures: int,
) -> Tensor:
    """`pictures` pictures [B, H, W, 3] or videos of each prompt under these guides, with the seeds `seed`, `seed` + 1 …

    Raises:
        FileNotFoundError, ValueError: as `composed`.
    """
    texts = [prompt for prompt in prompts for _ in range(pictures)]
    seeds = [seed + number for _ in prompts for number in range(pictures)]
    with composed(model, guides, settings.steps) as compose:
        calls = compose.calls(settings.steps) * rollout.model_calls(1, len(texts), settings.batch_size)
        return rollout.generate(model, texts, settings, seeds, stopping.progress(calls), compose)


def file_states(guides: Sequence[Guide]) -> list[str]:
    """Changes when an adapter does, so that one that was trained on is read again."""
    states = [(file, file.stat()) for guide in guides for file in all_of(find(guide.source))]
    return [f"{file}:{state.st_mtime_ns}:{state.st_size}" for file, state in states]
