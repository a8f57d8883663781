"""ToyModel: a flow model of two linear layers, for tests of what surrounds a training: stop, resume, claim, budget, ownership.

It stands in for the tiny FLUX: its folder is judged as ever, and only what is loaded from it is the toy. An iteration takes
milliseconds. What a network computes is tested with real ones.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from diffusers.loaders import PeftAdapterMixin
from torch import Tensor

from comfyui_otca.host.paths import ASSETS
from comfyui_otca.trainer import flow, schedule
from comfyui_otca.trainer.families.base import FlowModel, frame_size, noise_levels
from comfyui_otca.trainer.families.condition import Condition
from comfyui_otca.trainer.families.folder import check_model_folder, identity
from comfyui_otca.trainer.policy.adapters import Adapter, PeftAdapters
from comfyui_otca.trainer.types import SamplerSettings

_wanted = True
CHANNELS, SIDE = 3, 4  # of the latents, whose positions are squares of 4 x 4 pixels
WIDTH = 4096  # of a prompt: so that an adapter's file is larger than the small files of a run


class Network(ModelMixin, ConfigMixin, PeftAdapterMixin):
    """W·(x, σ) + V·prompt at each position."""

    @register_to_config
    def __init__(self):
        super().__init__()
        self.mix, self.text = torch.nn.Linear(CHANNELS + 1, CHANNELS), torch.nn.Linear(WIDTH, CHANNELS, bias=False)

    def forward(self, hidden_states: Tensor, levels: Tensor, prompts: Tensor) -> Tensor:
        beside = levels[:, None, None, None].expand(-1, 1, *hidden_states.shape[-2:])
        moved = self.mix(torch.cat([hidden_states, beside], 1).movedim(1, -1)).movedim(-1, 1)
        return moved + self.text(prompts)[:, :, None, None]


def _pictures(latents: Tensor) -> Tensor:
    pictures = torch.nn.functional.interpolate(latents.float() / 4 + 0.5, scale_factor=SIDE)
    return pictures.clamp(0, 1).movedim(1, -1)


class ToyModel(FlowModel):
    """The handle. Pictures are the latents, enlarged; a prompt is numbers drawn by its text."""

    guidance_is_embedded = True

    def __init__(self, path: Path):
        self.path = path
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.transformer = Network().requires_grad_(False)
        experts = {"transformer": self.transformer}
        super().__init__(experts, {"transformer": PeftAdapters(self.transformer, ("mix", "text"))}, torch.float32)
        self.forwards.watch(self.transformer, "hidden_states")

    @property
    def source(self) -> str:
        return str(self.path.resolve())

    @property
    def identity(self) -> str:
        return identity(self.path)

    @property
    def device(self) -> torch.device:
        return self.transformer.device

    def _networks(self) -> list[torch.nn.Module]:
        return [self.transformer]

    def condition(self, texts: Sequence[str], settings: SamplerSettings) -> Condition:
        seeds = [int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:4], "big") for text in texts]
        rows = [torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
        return Condition({"prompt": torch.stack(rows).to(self.device)})

    def velocity(self, x: Tensor, sigma: float | Tensor, condition: Condition, guidance: float) -> Tensor:
        levels = noise_levels(sigma, x).float().to(x.device)
        return self.transformer(hidden_states=x, levels=levels, prompts=condition.tensors["prompt"])

    @torch.no_grad()
    def decode(self, latents: Tensor, batch_size: int = 0, texts: Sequence[str] = ()) -> Tensor:
        return _pictures(latents.cpu())

    @contextlib.contextmanager
    def decoder(self, texts: Sequence[str]) -> Iterator[Callable[[Tensor], Tensor]]:
        yield _pictures

    @torch.no_grad()
    def encode(self, images: Tensor, batch_size: int = 0) -> Tensor:
        self.latent_shape(*frame_size(images))
        return 4 * (torch.nn.functional.avg_pool2d(images.movedim(-1, 1), SIDE) - 0.5)

    def latent_shape(self, height: int, width: int, frames: int = 1) -> tuple[int, ...]:
        if height % SIDE or width % SIDE or frames != 1:
            raise ValueError(f"{width} x {height}, {frames} frames: the toy makes pictures of squares of {SIDE} pixels")
        return CHANNELS, height // SIDE, width // SIDE

    def sigmas(self, settings: SamplerSettings) -> tuple[float, ...]:
        return schedule.noise_levels(settings, settings.shift or 1.0)

    def lora_key(self, name: str) -> str:
        return f"transformer.{name}"


def load(path, *, training="lora", lora_rank=16, lora_alpha=16.0, lora_targets="", seed=0, **options):
    """As `load_flow_model`, of a folder that must be one that it takes."""
    check_model_folder(Path(path))
    model = ToyModel(Path(path))
    if training == "lora":
        model.policy.add_adapter(Adapter(lora_rank, lora_alpha, lora_targets, seed))
    model.settle(torch.empty(0, device="cpu" if options.get("device", "auto") == "auto" else options["device"]).device)
    if training == "full":
        model.policy.train_everything()
    return model


@contextlib.contextmanager
def loaded_instead() -> Iterator[None]:
    """Within it the node Load Flow Model loads the toy for an embedded model, in forked processes too, except in `real_one`."""
    real = flow.load_flow_model

    def chosen(path, **options):
        return (load if _wanted and Path(path).resolve().parent == ASSETS else real)(path, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow, "load_flow_model", chosen)
        yield


@contextlib.contextmanager
def real_one() -> Iterator[None]:
    """Within it the node loads what its folder holds."""
    global _wanted
    before, _wanted = _wanted, False
    try:
        yield
    finally:
        _wanted = before
