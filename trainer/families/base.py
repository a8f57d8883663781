"""The base of every flow-model family: the handle that travels on the graph's model edge."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...host import devices, distributed
from ...host.devices import Resident
from ..memo import Memos
from ..policy.layouts import Network
from ..policy.policy import Policy
from ..types import MEMORY_SHARE, NextRollout
from .condition import Condition

if TYPE_CHECKING:
    from ..policy.adapters import Adapters
    from ..types import SamplerSettings, Trajectories

EXAMPLE = "one word after another, as in a prompt; " * 8  # where a prompt's length counts, and it is not known


def noise_levels(sigma: float | Tensor, x: Tensor) -> Tensor:
    """[B] float64: a noise level for each sample of x, from one for all or from [B]. On the CPU: not every device has float64."""
    return torch.as_tensor(sigma, dtype=torch.float64).expand(len(x))


def frame_size(images: Tensor) -> tuple[int, int, int]:
    """(height, width, frames) of pictures [B, H, W, 3] or videos [B, F, H, W, 3], as `latent_shape` takes them."""
    return images.shape[-3], images.shape[-2], images.shape[1] if images.ndim == 5 else 1


class Forwards:
    """Counts samples x denoising steps that go through networks. Classifier-free guidance counts twice."""

    def __init__(self):
        self.forget()

    def forget(self) -> None:
        self._samples = [0, 0]  # all, and those with gradient

    def watch(self, network: torch.nn.Module, latents: str) -> None:
        """Counts calls of a network, whose noisy latents have that name."""

        def count(network: torch.nn.Module, args: tuple, inputs: Mapping[str, Tensor], output) -> None:
            self.count(len(inputs[latents]))

        network.register_forward_hook(count, with_kwargs=True)

    def count(self, samples: int) -> None:
        """Notes a forward pass of so many samples."""
        self._samples[0] += samples
        self._samples[1] += samples * torch.is_grad_enabled()

    @contextlib.contextmanager
    def apart(self) -> Iterator[list[int]]:
        """Counts what is not a part of training, as an evaluation, by itself: samples in all, and those with gradient."""
        before, self._samples = self._samples, [0, 0]
        try:
            yield self._samples
        finally:
            self._samples = before

    def take(self) -> dict[str, float]:
        """The counts since the last call, of all processes together. Those `with_gradient` get a backward pass too."""
        samples = self._samples
        self.forget()
        return self.of_all(samples)

    @staticmethod
    def of_all(samples: list[int]) -> dict[str, float]:
        every, with_gradient = distributed.each(torch.tensor(samples)).sum(0).tolist()
        return {"forwards/all": float(every), "forwards/with_gradient": float(with_gradient)}


class FlowModel(Resident, ABC):
    """A network that is trained, or two that share the noise levels, and in `policy` what is trained of them.

    A family says how prompts become a `Condition`, what the velocity of a noisy latent is, and how latents become pictures.

    Attributes:
        experts: the networks that are trained, by name: one, or two that share the noise levels.
        adapters: those of each of them.
        memo: what the parts of a method remember of it between iterations.
    """

    def __init__(self, experts: Mapping[str, Any], adapters: Mapping[str, Adapters], dtype: torch.dtype):
        self.experts, self.adapters = experts, adapters
        self.dtype = dtype  # to compute in; what is trained is held in float32
        self.policy = Policy(experts, adapters, dtype)
        self.forwards = Forwards()
        self._graph_bytes: dict[tuple[tuple[int, ...], bool], int] = {}
        self.memo = Memos()

    # -- what a family provides ------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def source(self) -> str:
        """The source of the model, by which a person knows it and two models can be told apart."""

    @property
    def identity(self) -> str:
        """Tells the base model by its content, wherever it lies and whatever it is called."""
        return self.source

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where it computes."""

    @abstractmethod
    def condition(self, texts: Sequence[str], settings: SamplerSettings) -> Condition:
        """The condition of P prompts for `velocity`: their embeddings and, where guidance calls for it, the negative prompt's."""

    @abstractmethod
    def velocity(self, x: Tensor, sigma: float | Tensor, condition: Condition, guidance: float) -> Tensor:
        """v(x, σ) for x [B, C, h, w] and B conditions, float32; differentiable in the adapter.

        One σ for all or one for each, [B] on the CPU, all of the `same_network`.

        `guidance` is the embedded one of a distilled model; where guidance is classifier-free v⁻ + guidance·(v - v⁻) is returned
        if the condition has a negative part, v⁻ under `negative_half`.
        """

    @abstractmethod
    def decode(self, latents: Tensor, batch_size: int = 0, texts: Sequence[str] = ()) -> Tensor:
        """Pictures [B, H, W, 3], or videos [B, F, H, W, 3], float32 in [0, 1] on the CPU, from latents [B, C, (F,) h, w].

        `texts` are their B prompts, which may give a part of the picture, see `sample_shape`.
        """

    @abstractmethod
    def decoder(self, texts: Sequence[str]) -> contextlib.AbstractContextManager[Callable[[Tensor], Tensor]]:
        """A `decode` that has a gradient, of these prompts' latents on the device to pictures there, all at once.

        The backward pass belongs into the context too: after it the autoencoder may leave the device.
        """

    @abstractmethod
    def encode(self, images: Tensor, batch_size: int = 0) -> Tensor:
        """The inverse of `decode`: latents [B, C, (F,) h, w], float32 on the CPU, of pictures [B, H, W, 3] or videos
        [B, F, H, W, 3] in [0, 1].

        The mean of the autoencoder's distribution, with the family's scale and shift. Raises ValueError for a size that
        cannot be made.
        """

    @abstractmethod
    def latent_shape(self, height: int, width: int, frames: int = 1) -> tuple[int, ...]:
        """[C, h, w], or [C, F, h, w] of a video: one sample's latent. Raises ValueError for a size that cannot be made."""

    def sample_shape(self, texts: Sequence[str], settings: SamplerSettings) -> tuple[int, ...]:
        """One sample's latent for these prompts: `latent_shape` without what they give, which is neither noised nor trained."""
        return self.latent_shape(settings.height, settings.width, settings.frames)

    @abstractmethod
    def sigmas(self, settings: SamplerSettings) -> tuple[float, ...]:
        """T+1 noise levels from 1 to 0, see `schedule.noise_levels`."""

    def layers(self, expert: str) -> Network:
        """The names of a network's layers in files."""
        return Network(self.adapters[expert].shapes(), {})

    @abstractmethod
    def lora_key(self, name: str) -> str:
        """The key of an adapter's tensor for ComfyUI's LoraLoader, by its name in the network."""

    def example(self, settings: SamplerSettings) -> Condition:
        """`condition` of one prompt of some length, for counting: what it says does not matter."""
        return self.condition([EXAMPLE], settings)

    def guidance_at(self, sigma: float, settings: SamplerSettings) -> float:
        """The guidance that `velocity` is given at that noise level."""
        return settings.guidance

    @property
    @abstractmethod
    def guidance_is_embedded(self) -> bool:
        """Whether guidance is a number that the network takes, and not classifier-free."""

    def unguided(self, settings: SamplerSettings) -> SamplerSettings:
        """The same without classifier-free guidance. A distilled model's guidance stays, since it has no velocity without."""
        return settings if self.guidance_is_embedded else replace(settings, guidance=1.0, guidance_2=0.0)

    def same_network(self, sigma: float, other: float) -> bool:
        """Whether one call of `velocity` may hold samples at both noise levels."""
        return True

    def check_gradient(self, trajectories: Trajectories) -> None:
        """Called before an update. Raises ValueError where the gradient that it is going to use is known to be wrong."""

    def export(self, folder: Path) -> None:
        """Saves the whole pipeline with what was trained merged into its weights. The model is not to be used afterwards.

        Raises:
            ValueError: a model that ComfyUI loaded, which is not a pipeline of diffusers.
        """
        raise ValueError(
            "otca export writes folders of diffusers, and this run trained what ComfyUI loaded. Fix: load the run's "
            "lora.safetensors with LoraLoader, or save Tuned Model's output with ComfyUI's ModelSave"
        )

    def make_room(self, graph: Mapping[str, Mapping] | None = None) -> None:
        """Called before anything large is computed: ComfyUI's own models leave the accelerator, as it would have them do.

        Args:
            graph: the prompt, where a sampler calls: what follows in it decides how much room there has to be.
        """
        devices.make_room()

    def memory_line(self, settings: SamplerSettings) -> str:
        """For a human: what training at these settings needs of the device, and what there is; empty where that is not known."""
        return ""

    # -- shared ----------------------------------------------------------------------------------------------------------

    def negative_half(self) -> contextlib.AbstractContextManager:
        """Around the negative half of classifier-free guidance: without gradient, unless the update wants it."""
        return torch.set_grad_enabled(torch.is_grad_enabled() and self.memo[NextRollout].unconditional_gradient)

    def kept_calls(self, settings: SamplerSettings, counts: Sequence[int]) -> int:
        """How many of these calls' graphs the memory that is there can hold, the first ones; each is of so many samples."""
        room = MEMORY_SHARE * devices.free_memory(self.device) / max(1, self.graph_bytes(settings))
        return sum(sum(counts[:number]) <= room for number in range(1, len(counts) + 1))

    def graph_bytes(self, settings: SamplerSettings) -> int:
        """Bytes that autograd saves for the backward pass of one sample's velocity, measured once for each kind of it."""
        shape = self.latent_shape(settings.height, settings.width, settings.frames)
        kind = shape, self.memo[NextRollout].unconditional_gradient
        if kind not in self._graph_bytes:
            networks = self.experts.values()
            weights = {p.untyped_storage().data_ptr() for network in networks for p in network.parameters()}
            saved: dict[int, int] = {}

            def count(tensor: Tensor) -> Tensor:
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in weights:
                    saved[storage.data_ptr()] = storage.nbytes()
                return tensor

            condition, x = self.example(settings), torch.zeros((1, *shape), device=self.device)
            hooks = torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor)
            with self.forwards.apart(), torch.enable_grad(), hooks:  # a resumed process measures again
                velocity = self.velocity(x, 0.5, condition, self.guidance_at(0.5, settings))
            self._graph_bytes[kind] = sum(saved.values())
            del velocity  # the graph must live until all it saved is counted: freed memory would be counted twice
        return self._graph_bytes[kind]

    # -- as it was loaded --------------------------------------------------------------------------------------------------

    def make_fresh(self) -> None:
        """Puts the adapter or the weights back to what was loaded."""
        self.policy.make_fresh()
        self.memo.restore({})
        self.forwards.forget()
