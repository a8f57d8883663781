"""Flow models from folders of diffusers: what every pipeline's family shares."""

from __future__ import annotations

import contextlib
import logging
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...host import devices
from ...host.devices import moving
from ..policy.adapters import PeftAdapters
from ..policy.layouts import Network
from . import names
from .base import FlowModel, frame_size, noise_levels
from .condition import Condition, Embeddings
from .folder import identity
from .sizes import Checkpoint
from .streaming import Stream, compute_again, fits

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

    from ..types import SamplerSettings
    from .sizes import LatentGrid

logger = logging.getLogger(__name__)


class PipelineModel(FlowModel):
    """The networks of one pipeline of diffusers.

    A family says besides what its pipeline consists of. What sizes it can make, which noise schedule it was trained for and how
    it is guided is in `sizes`.
    """

    PIPELINE: str  # the class's name in diffusers
    LORA_TARGETS: tuple[str, ...]
    COMPONENTS: tuple[str, ...]  # the pipeline's networks, which are frozen
    EXPERTS: tuple[str, ...] = ("transformer",)  # the networks that are trained
    REFUSED: tuple[str, ...] = ()  # components of checkpoints that are not supported
    LORA_PREFIX = "transformer."
    blocks_out: Stream | None = None
    LATENTS = "hidden_states"  # what the networks call the noisy latents

    def __init__(self, pipeline: DiffusionPipeline, path: Path, max_sequence_length: int):
        self.pipeline = pipeline
        self.transformer = pipeline.transformer
        self.visitors: set[str] = set()  # components that are on the device only while they work
        self.path, self._identity = path, identity(path)  # while its files are there
        self.max_sequence_length = max_sequence_length
        for network in self.components().values():
            network.train(False).requires_grad_(False)
        experts = {name: network for name, network in self.components().items() if name in self.EXPERTS}
        adapters = {name: PeftAdapters(network, self.LORA_TARGETS) for name, network in experts.items()}
        super().__init__(experts, adapters, pipeline.transformer.dtype)
        for network in self.experts.values():
            self.forwards.watch(network, self.LATENTS)
        self.encoders_out: Stream | None = None
        self._out, self._kept, self._needs = 0, 0, ""
        self._checkpoints = False  # also where all blocks stay
        self.streaming: Callable[..., tuple[int, int, str]] = lambda graph, guidance_is_embedded: (0, 0, "")
        self._embeddings = Embeddings(self._embed)
        self._decoding = threading.RLock()
        if self.checkpoint.is_distilled:
            logger.warning(
                "%s is distilled: trained by rewards alone, its pictures become blurred. Fix: kl_coefficient of 0.001 or more on "
                "GRPO Step, or train the base model",
                path.name,
            )

    # -- what a family provides ------------------------------------------------------------------------------------------

    @abstractmethod
    def embed(self, texts: Sequence[str], device: torch.device) -> Condition:
        """Runs the text encoders, which are on that device."""

    @abstractmethod
    def predict(self, x: Tensor, levels: Tensor, condition: Condition, guidance: float) -> Tensor:
        """The network's velocity at noise levels [B], float64 on the CPU; `guidance` is for networks that take it."""

    @abstractmethod
    def decode_latents(self, latents: Tensor) -> Tensor:
        """[B, C, (F,) h, w] to pictures [B, (F,) H, W, 3], not yet clamped to [0, 1]."""

    @abstractmethod
    def encode_images(self, images: Tensor) -> Tensor:
        """Pictures [B, (F,) H, W, 3] in [0, 1] to [B, C, (F,) h, w]."""

    def lora_key(self, name: str) -> str:
        return self.LORA_PREFIX + name

    def layers(self, expert: str) -> Network:
        return names.network(self.PIPELINE, self.adapters[expert].shapes())

    # -- shared ----------------------------------------------------------------------------------------------------------

    def times(self, levels: Tensor) -> Tensor:
        """[B] on the device, as most pipelines tell their network: 1000 σ in the latents' precision, divided by 1000."""
        return devices.upload((levels * 1000).float().to(self.dtype) / 1000, self.device)

    @property
    def source(self) -> str:
        return str(self.path.resolve())

    @property
    def identity(self) -> str:
        return self._identity

    @property
    def checkpoint(self) -> Checkpoint:
        pipeline = self.pipeline
        configs = (part.config for part in (pipeline, pipeline.scheduler, pipeline.vae, self.transformer))
        return Checkpoint(self.PIPELINE, *configs)

    @property
    def latent_grid(self) -> LatentGrid:
        return self.checkpoint.grid

    def latent_shape(self, height: int, width: int, frames: int = 1) -> tuple[int, ...]:
        """[C, h, w], or [C, F, h, w] of a video: one sample's latent. Raises ValueError for a size that cannot be made."""
        return self.latent_grid.shape(height, width, frames)

    def shift(self, settings: SamplerSettings) -> float:
        """The timestep shift that the checkpoint asks for at this size. Raises ValueError, with the fix, if it has no shift."""
        return self.checkpoint.shift(settings)

    @property
    def guidance_is_embedded(self) -> bool:
        return self.checkpoint.guidance is None

    def guides(self, *guidance: float) -> bool:
        """Whether one of these calls the network a second time, for the negative prompt."""
        convention = self.checkpoint.guidance
        return convention is not None and max(guidance) > convention.off

    def unguided(self, settings: SamplerSettings) -> SamplerSettings:
        convention = self.checkpoint.guidance
        return settings if convention is None else replace(settings, guidance=convention.off, guidance_2=0.0)

    @property
    def device(self) -> torch.device:
        # Not the network's own property, which goes through all its modules for offloading hooks that ours never has.
        return next(self.transformer.parameters()).device

    def stream(self, graph: Mapping[str, Mapping] | None, device: torch.device) -> None:
        """Has as many blocks of its networks as are to be out for that graph stay in main memory, see `streaming`.

        `device`: where it computes, or will.
        """
        count, self._kept, self._needs = self.streaming(graph, self.guidance_is_embedded)
        if count == self._out:
            return
        with moving:
            if self._out == 0:
                self._checkpoints = any(network.is_gradient_checkpointing for network in self.experts.values())
            self._out = -1  # until all is in its place: else the next call begins again
            if self.blocks_out:
                self.blocks_out.end()
            self.blocks_out = None  # with whose buffers main memory would hold twice what is out
            self.blocks_out = Stream(self.experts.values(), count, device, lambda: self.device) if count else None
            for network in self.experts.values():
                # A graph would hold the weights of what is out.
                compute_again(network, bool(count) or self._checkpoints)
                network.to(self.device)  # those that are not out any more
            self._out = count

    def kept_calls(self, settings: SamplerSettings, counts: Sequence[int]) -> int:
        return min(self._kept, len(counts)) if self.blocks_out else super().kept_calls(settings, counts)

    def make_room(self, graph: Mapping[str, Mapping] | None = None) -> None:
        super().make_room()
        if graph is not None:
            self.stream(graph, self._home or self.device)

    def memory_line(self, settings: SamplerSettings) -> str:
        return self._needs

    def components(self, kind: str = "") -> dict[str, Any]:
        """The networks whose names begin so; some checkpoints do without an encoder."""
        names = (name for name in self.COMPONENTS if name.startswith(kind))
        return {name: network for name in names if (network := getattr(self.pipeline, name)) is not None}

    def _networks(self) -> list[torch.nn.Module]:
        """The networks that live on the device; the others only visit it."""
        return [network for name, network in self.components().items() if name not in self.visitors]

    @contextlib.contextmanager
    def _visit(self, device: torch.device, kind: str) -> Iterator[None]:
        """Offloaded components of that kind visit the device. Where encoders do not fit beside the others, those step aside.

        Where they do not fit then either, their blocks come one by one, until they do. What is free now decides; `otca memory`
        asks the same of what there is beside all that stays.
        """
        guests = [network for name, network in self.components(kind).items() if name in self.visitors]
        stream = None if kind == "vae" else self.encoders_out
        if stream and fits(guests, device):
            stream.end()
            stream = self.encoders_out = None
        # The autoencoder is small, and may be asked by the page while the others compute.
        is_crowded = kind != "vae" and not fits(guests, device, away=stream.away if stream else 0)
        aside = self._movable() if is_crowded else []
        try:
            for network in aside:
                network.to("cpu")
            if is_crowded and not (stream or device.type == "cpu" or fits(guests, device)):
                self.encoders_out = Stream(guests, None, device, lambda: next(guests[0].parameters()).device)
            for guest in guests:
                guest.to(device)
            yield
        finally:
            for guest in guests:
                guest.to("cpu")
            for network in aside:
                network.to(device)

    def _move(self, device: torch.device) -> None:
        with self._decoding:
            super()._move(device)
        self.policy.move(device)

    def embeddings(self, texts: Sequence[str]) -> Condition:
        """Embeddings of P prompts on the model's device, computed once per distinct prompt."""
        return self._embeddings.of(texts, self.device)

    def _embed(self, texts: Sequence[str]) -> Condition:
        device = self.device
        with torch.no_grad(), self._visit(device, "text_encoder"):
            return self.embed(texts, device)

    def condition(self, texts: Sequence[str], settings: SamplerSettings) -> Condition:
        """The condition of P prompts for `velocity`: their embeddings and, where guidance calls for it, the negative prompt's."""
        condition = self.embeddings(texts)
        if self.guides(settings.guidance, settings.guidance_2):
            return condition.beside(self.embeddings([settings.negative_prompt] * len(texts)))
        return condition

    def velocity(self, x: Tensor, sigma: float | Tensor, condition: Condition, guidance: float) -> Tensor:
        levels, negative = noise_levels(sigma, x), condition.negative()
        velocity = self.predict(x, levels, condition, guidance)
        if negative is None:
            return velocity
        with self.negative_half():
            away = self.predict(x, levels, negative, guidance)
        return self.guided(velocity, away, guidance)

    def guided(self, towards: Tensor, away: Tensor, guidance: float) -> Tensor:
        """The velocities with the prompt and with the negative one put together, see `sizes.Guidance`."""
        convention = self.checkpoint.guidance
        assert convention is not None, "asked only where guidance is classifier-free"
        velocity = away + convention.weight(guidance) * (towards - away)
        return (
            velocity * self._token_norms(towards) / self._token_norms(velocity) if convention.keeps_norm else velocity
        )

    def _token_norms(self, velocity: Tensor) -> Tensor:
        """The norm of each position's token, [B, 1, h, w] of [B, C, h, w]."""
        side = self.latent_grid.patch
        rows = velocity.unflatten(-2, (-1, side)).unflatten(-1, (-1, side))  # [B, C, h/p, p, w/p, p]
        norms = torch.linalg.vector_norm(rows, dim=(1, 3, 5))
        return norms.repeat_interleave(side, -2).repeat_interleave(side, -1).unsqueeze(1)

    def sigmas(self, settings: SamplerSettings) -> tuple[float, ...]:
        """T+1 noise levels from 1 to 0, see `schedule.noise_levels`. Raises ValueError for what it cannot sample with."""
        checkpoint = self.checkpoint
        if misfit := next(checkpoint.misfits(settings), None):
            raise ValueError(str(misfit))
        return checkpoint.sigmas(settings)

    def export(self, folder: Path) -> None:
        policy = self.policy
        if self.blocks_out:
            self.leave()  # to where all weights are
        if policy.is_adapted:
            for network in self.experts.values():
                network.fuse_lora()
                network.unload_lora()
        else:
            for parameter, dtype in zip(policy.trainable_parameters(), policy.original_dtypes(), strict=True):
                parameter.data = parameter.data.to(dtype)
        self.pipeline.save_pretrained(folder)

    def decode(self, latents: Tensor, batch_size: int = 0, texts: Sequence[str] = ()) -> Tensor:
        return self._in_parts(lambda part: self.decode_latents(part).float().clamp(0, 1), latents, batch_size)

    @contextlib.contextmanager
    def decoder(self, texts: Sequence[str]) -> Iterator[Callable[[Tensor], Tensor]]:
        with self._decoding, self._visit(self.device, "vae"):
            yield lambda latents: self.decode_latents(latents).float().clamp(0, 1)

    def encode(self, images: Tensor, batch_size: int = 0) -> Tensor:
        self.latent_shape(*frame_size(images))
        return self._in_parts(lambda part: self.encode_images(part).float(), images, batch_size)

    @torch.no_grad()
    def _in_parts(self, work: Callable[[Tensor], Tensor], values: Tensor, batch_size: int) -> Tensor:
        """The autoencoder's result for [B, …], `batch_size` at a time, on the CPU."""
        device = self.device
        # One at a time: autoencoders of videos keep state between frames, and the page decodes while a prompt runs.
        with self._decoding, self._visit(device, "vae"):
            return torch.cat(
                [work(devices.upload(part, device)).cpu() for part in values.split(batch_size or len(values))]
            )

    def autocast(self):
        """For one forward pass. A context around the optimizer step too would keep stale casts of the adapter's weights."""
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32)
