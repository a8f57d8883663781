"""What every flow-model family shares: the handle that travels on the graph's model edge."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...host import devices, distributed
from ...host.resident import Resident
from .. import schedule
from ..types import NextRollout
from . import merging
from .sizes import RULES

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline
    from torch import Tensor

    from ..run.ownership import Start
    from ..run.record import Run
    from ..types import SamplerSettings, UpdateSettings
    from . import LoadOptions
    from .sizes import LatentGrid


@dataclass(frozen=True)
class Condition:
    """Text embeddings by name, each [P, …]."""

    tensors: dict[str, Tensor]

    def rows(self, index: Tensor) -> Condition:
        return Condition({name: tensor[index.to(tensor.device)] for name, tensor in self.tensors.items()})


def noise_levels(sigma: float | Tensor, x: Tensor) -> Tensor:
    """One noise level for each sample of x, of one for all or of [B]: [B] float64 on the CPU, as some devices have none."""
    return torch.as_tensor(sigma, dtype=torch.float64).expand(len(x))


NEGATIVE = "negative_"
OWN = "default"  # peft's name of the adapter that is trained
EMBEDDINGS_BYTES = 2 * 1024**3  # of main memory, for prompts that may come again


@dataclass
class LossScale:
    """Dynamic loss scaling (Micikevicius et al., 1710.03740): float16 has no numbers for most gradients of a large model.

    A power of two, so that nothing but underflow changes; 1 for every other dtype.
    """

    value: float = 1.0
    good: int = 0  # updates since it last changed

    PATIENCE, MOST = 200, 2.0**24

    @classmethod
    def of(cls, dtype: torch.dtype) -> LossScale:
        return cls(2.0**16 if dtype == torch.float16 else 1.0)

    def undo(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Takes the scale out of the gradients."""
        if self.value != 1:
            torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], 1 / self.value)

    def overflowed(self) -> None:
        self.value, self.good = max(1.0, self.value / 2), 0

    def held(self) -> None:
        self.good += 1
        if 1 < self.value < self.MOST and self.good >= self.PATIENCE:
            self.value, self.good = self.value * 2, 0


class FlowModel(Resident, ABC):
    """Weights, adapter, optimizer, average and policy version of one flow model.

    A family says how its pipeline is loaded, how prompts become a `Condition`, what the velocity of a noisy latent is, and how
    latents become pictures; what sizes it can make and which noise schedule it was trained for is in `sizes`. Everything else
    is here.
    """

    PIPELINE: str  # the class's name in diffusers
    TOKENIZER: str  # the one of the longest text encoder …
    MOST_TOKENS: int  # … and the length that the family was trained for
    LORA_TARGETS: tuple[str, ...]
    COMPONENTS: tuple[str, ...]  # the pipeline's networks, which are frozen
    EXPERTS = {"transformer": ""}  # the networks that are trained, and what their adapters' files are called
    LORA_PREFIX = "transformer."
    CLASSIFIER_FREE = False  # guidance > 1 calls the network a second time, for the negative prompt

    def __init__(self, pipeline: DiffusionPipeline, path: Path, max_sequence_length: int):
        self.pipeline = pipeline
        self.transformer = pipeline.transformer
        self.dtype = pipeline.transformer.dtype  # to compute in; what is trained is held in float32
        self.visitors: set[str] = set()  # components that are on the device only while they work
        self.path = path
        self.max_sequence_length = max_sequence_length
        self.version = 0
        self.nonfinite_in_a_row = 0
        self.loss_scale = LossScale.of(self.dtype)
        self.ema = None
        self.lora_rank = self.lora_alpha = None
        self._optimizer: torch.optim.Optimizer | None = None
        self.graph_decisions: dict[tuple[SamplerSettings, int, int, bool], bool] = {}
        self._graph_bytes: dict[tuple[tuple[int, ...], bool], int] = {}
        self._embedded: dict[str, dict[str, Tensor]] = {}  # the latest used ones last
        self._decoding = threading.RLock()
        self.run: Run | None = None  # on the canvas: the run that it belongs to, which records what it learns
        self.start: Start | None = None  # on the canvas: what Load Flow Model put into it; None: nothing
        self.start_iteration: int | None = 0  # of the run that it began with; None once it belongs to a run
        self.version_at_start = 0
        self._adapter: dict | None = None  # what it was made with
        self._originals: list[Tensor] = []  # the untrained weights, where all of them are trained
        self.wish = NextRollout()  # of the last update
        self.is_sharded = False  # its weights over several processes, which then have to call it equally often
        self._forwards = [0, 0]  # samples that went through a network since they were asked for: all, and with gradient
        self._is_merged = False
        for name in self.COMPONENTS:
            if (network := getattr(pipeline, name)) is not None:  # some checkpoints do without an encoder
                network.eval().requires_grad_(False)

    # -- what a family provides ------------------------------------------------------------------------------------------

    @abstractmethod
    def embed(self, texts: Sequence[str], device: torch.device) -> Condition:
        """Runs the text encoders, which are on that device."""

    @abstractmethod
    def velocity(self, x: Tensor, sigma: float | Tensor, condition: Condition, guidance: float) -> Tensor:
        """v(x, σ) for x [B, C, h, w] and B conditions, float32; differentiable in the adapter.

        One σ for all or one for each, [B] on the CPU, all of the `same_network`.

        `guidance` is the embedded one of a distilled model; a family with CLASSIFIER_FREE returns v⁻ + guidance·(v - v⁻)
        where the condition has a negative part, v⁻ under `negative_half`.
        """

    def guidance_at(self, sigma: float, settings: SamplerSettings) -> float:
        """The guidance that `velocity` is given at that noise level."""
        return settings.guidance

    def same_network(self, sigma: float, other: float) -> bool:
        """Whether one call of `velocity` may hold samples at both noise levels."""
        return True

    @abstractmethod
    def decode_latents(self, latents: Tensor) -> Tensor:
        """[B, C, (F,) h, w] to pictures [B, (F,) H, W, 3], not yet clamped to [0, 1]."""

    @classmethod
    def lora_key(cls, name: str) -> str:
        """What ComfyUI's LoraLoader calls an adapter's tensor, by its name in diffusers."""
        return cls.LORA_PREFIX + name

    def negative_half(self):
        """Around the negative half of classifier-free guidance: without gradient, unless the update wants it."""
        return torch.set_grad_enabled(torch.is_grad_enabled() and self.wish.unconditional_gradient)

    # -- shared ----------------------------------------------------------------------------------------------------------

    @property
    def latent_grid(self) -> LatentGrid:
        return RULES[self.PIPELINE].grid(self.pipeline.vae.config, self.transformer.config)

    def latent_shape(self, height: int, width: int, frames: int = 1) -> tuple[int, ...]:
        """[C, h, w], or [C, F, h, w] of a video: one sample's latent. Raises ValueError for a size that cannot be made."""
        return self.latent_grid.shape(height, width, frames)

    def shift(self, settings: SamplerSettings) -> float:
        """The timestep shift that the checkpoint asks for at this size. Raises ValueError, with the fix, if it is none."""
        rule = RULES[self.PIPELINE].shift
        return rule(self.pipeline.scheduler.config, self.latent_grid, settings.height, settings.width)

    @classmethod
    def load(cls, path: Path, options: LoadOptions, training: str) -> FlowModel:
        """Builds the handle from a diffusers folder, in main memory. Raises FlowModelError, before loading where possible."""
        from . import loading

        device = loading.resolve_device(options.device)
        dtype = loading.resolve_dtype(options.dtype, device)
        loading.check_memory(cls, path, options, training, device, dtype)
        pipeline = loading.load_pipeline(cls, path, options, device, dtype)
        tokenizer = getattr(pipeline, cls.TOKENIZER)
        limit = min(cls.MOST_TOKENS, tokenizer.model_max_length) if tokenizer is not None else cls.MOST_TOKENS
        model = cls(pipeline, path, options.max_sequence_length or limit)
        model.visitors = {name for name in cls.COMPONENTS if options.offloads(name)}
        if options.vae_tiling:
            pipeline.vae.enable_tiling()
        for network in model.experts.values():
            loading.speed_up(network, options)
            network.register_forward_hook(model._count_forward, with_kwargs=True)
        return model

    @property
    def experts(self) -> dict[str, torch.nn.Module]:
        """The networks that are trained, by their names in the pipeline: one, or two that share the noise levels."""
        found = {name: getattr(self.pipeline, name) for name in self.EXPERTS}
        return {name: network for name, network in found.items() if network is not None}

    def _count_forward(self, network: torch.nn.Module, args: tuple, inputs: Mapping[str, Tensor], output) -> None:
        samples = len(inputs["hidden_states"])
        self._forwards[0] += samples
        self._forwards[1] += samples * torch.is_grad_enabled()

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """Forwards within it are not counted: those of an evaluation, which is no part of training."""
        before = list(self._forwards)
        try:
            yield
        finally:
            self._forwards = before

    def take_forwards(self) -> dict[str, float]:
        """Samples x denoising steps that went through the network since the last call, of all processes together.

        Classifier-free guidance counts twice. A backward pass goes back through those `with_gradient`.
        """
        own, self._forwards = self._forwards, [0, 0]
        every, with_gradient = distributed.each(torch.tensor(own)).sum(0).tolist()
        return {"forwards/all": float(every), "forwards/with_gradient": float(with_gradient)}

    @property
    def device(self) -> torch.device:
        # Not the network's own property, which goes through all its modules for offloading hooks that ours never has.
        return next(self.transformer.parameters()).device

    def _networks(self) -> list[torch.nn.Module]:
        """Those that live on the device; the others only visit it."""
        found = (getattr(self.pipeline, name) for name in self.COMPONENTS if name not in self.visitors)
        return [network for network in found if network is not None]

    @contextlib.contextmanager
    def _visit(self, device: torch.device, kind: str) -> Iterator[None]:
        """Offloaded components of that kind visit the device; where encoders have no room beside the others, those step aside."""
        names = (name for name in self.COMPONENTS if name in self.visitors and name.startswith(kind))
        guests = [network for network in (getattr(self.pipeline, name) for name in names) if network is not None]
        need = sum(parameter.nbytes for guest in guests for parameter in guest.parameters())
        # The autoencoder is small, and may be asked by the page while the others compute.
        aside = self._movable() if kind != "vae" and need > 0.9 * devices.free_memory(device) else []
        for network in aside:
            network.to("cpu")
        for guest in guests:
            guest.to(device)
        try:
            yield
        finally:
            for guest in guests:
                guest.to("cpu")
            for network in aside:
                network.to(device)

    def _move(self, device: torch.device) -> None:
        with self._decoding:
            super()._move(device)
        self._originals = [original.to(device) for original in self._originals]
        if self.ema is not None:
            self.ema.to(device)
        for state in (self._optimizer.state if self._optimizer else {}).values():
            for name, value in state.items():
                state[name] = value.to(device)

    def encode(self, texts: Sequence[str]) -> Condition:
        """Embeddings of P prompts on the model's device, computed once per distinct prompt."""
        missing = [text for text in dict.fromkeys(texts) if text not in self._embedded]
        if missing:
            device = self.device
            with torch.no_grad(), self._visit(device, "text_encoder"):
                tensors = self.embed(missing, device).tensors
            for row, text in enumerate(missing):
                self._embedded[text] = {name: tensor[row].cpu() for name, tensor in tensors.items()}
        for text in dict.fromkeys(texts):
            self._embedded[text] = self._embedded.pop(text)
        names = self._embedded[texts[0]]
        size = sum(tensor.nbytes for tensor in names.values())
        for text in list(self._embedded)[: max(0, len(self._embedded) - max(len(texts), EMBEDDINGS_BYTES // size))]:
            del self._embedded[text]
        return Condition(
            {name: torch.stack([self._embedded[text][name] for text in texts]).to(self.device) for name in names}
        )

    def condition(self, texts: Sequence[str], settings: SamplerSettings) -> Condition:
        """What `velocity` needs of P prompts: their embeddings and, where guidance calls for it, the negative prompt's."""
        tensors = self.encode(texts).tensors
        if self.CLASSIFIER_FREE and max(settings.guidance, settings.guidance_2) > 1:
            negative = self.encode([settings.negative_prompt] * len(texts)).tensors
            tensors = tensors | {NEGATIVE + name: tensor for name, tensor in negative.items()}
        return Condition(tensors)

    def sigmas(self, settings: SamplerSettings) -> tuple[float, ...]:
        """T+1 noise levels from 1 to 0, see `schedule.noise_levels`."""
        return schedule.noise_levels(settings, settings.shift or self.shift(settings))

    @torch.no_grad()
    def decode(self, latents: Tensor, batch_size: int = 0) -> Tensor:
        """Pictures [B, H, W, 3], or videos [B, F, H, W, 3], float32 in [0, 1] on the CPU, from latents [B, C, (F,) h, w]."""
        parts = latents.split(batch_size or len(latents))
        # One at a time: autoencoders of videos keep state between frames, and the page decodes while a prompt runs.
        device = self.device
        with self._decoding, self._visit(device, "vae"):
            return torch.cat([self.decode_latents(part.to(device)).float().clamp(0, 1).cpu() for part in parts])

    def add_adapter(self, rank: int, alpha: float, targets: str, seed: int, name: str = OWN) -> None:
        """Attaches a LoRA adapter (peft) in float32; with B = 0 the policy starts as the reference.

        Under another name it stands beside the one that is trained, and acts in its place.
        """
        from peft import LoraConfig

        modules = [name.strip() for name in targets.split(",") if name.strip()] or list(self.LORA_TARGETS)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                for network in self.experts.values():
                    network.add_adapter(LoraConfig(r=rank, lora_alpha=alpha, target_modules=modules), name)
            except ValueError as error:
                known = ", ".join(self.LORA_TARGETS)
                raise ValueError(
                    f"lora_targets {targets!r} fit no module. Fix: leave it empty, or use {known}"
                ) from error
        for parameter in self.trainable_parameters():
            parameter.data = parameter.data.float()
        if name == OWN:
            self.lora_rank, self.lora_alpha = rank, alpha
            self._adapter = {"rank": rank, "alpha": alpha, "targets": targets, "seed": seed}

    @property
    def is_at_start(self) -> bool:
        """Whether it still is what Load Flow Model gave."""
        return self.start_iteration is not None and self.version == self.version_at_start

    def make_fresh(self) -> None:
        """As it was loaded: a new adapter from the same seed, or the untrained weights; no optimizer, no average."""
        if self.is_adapted:
            for network in self.experts.values():
                network.unload_lora()
            self.add_adapter(**self._adapter)
        else:
            self._copy(self._originals)
        self._optimizer = self.ema = None
        self.version = self.nonfinite_in_a_row = 0
        self.loss_scale = LossScale.of(self.dtype)
        self.wish = NextRollout()
        self.start_iteration, self._forwards = None, [0, 0]

    def shard_frozen(self) -> None:
        """Spreads the frozen weights over all processes, onto their devices; a process alone keeps them.

        The adapter stays whole in each of them: its gradients, moments, average and files are those of any adapter.
        """
        self.is_sharded = distributed.world() > 1
        for network in self.experts.values() if self.is_sharded else ():
            distributed.shard_frozen(network)

    def train_everything(self) -> None:
        """Makes all weights of the trained networks trainable, in float32, and keeps a copy of them as the reference.

        Several processes share them out among themselves.
        """
        for network in self.experts.values():
            network.requires_grad_(True)
        dtypes = [parameter.dtype for parameter in self.trainable_parameters()]
        for parameter in self.trainable_parameters():
            parameter.data = parameter.data.float()
        self.is_sharded = distributed.world() > 1
        for network in self.experts.values() if self.is_sharded else ():
            distributed.shard(network, self.dtype)
        parameters = zip(self.trainable_parameters(), dtypes, strict=True)
        self._originals = [parameter.detach().to(dtype, copy=True) for parameter, dtype in parameters]

    def original_dtypes(self) -> list[torch.dtype]:
        """Of the weights as they were loaded, in the order of `trainable_parameters`: some networks keep parts in float32."""
        return [original.dtype for original in self._originals]

    @property
    def is_adapted(self) -> bool:
        """Whether an adapter is trained, and not the weights themselves."""
        return self.lora_rank is not None

    @property
    def trains_shards(self) -> bool:
        """Whether each process holds only a part of what is trained, of its gradient and of its moments."""
        return self.is_sharded and not self.is_adapted

    def trainable_named(self) -> dict[str, torch.nn.Parameter]:
        first, *others = self.experts.items()
        named = dict(first[1].named_parameters())
        for expert, network in others:
            named |= {f"{expert}.{name}": parameter for name, parameter in network.named_parameters()}
        return {name: parameter for name, parameter in named.items() if parameter.requires_grad}

    def forget_gradients(self) -> None:
        """Those of the last update, which nobody needs while the next samples are made."""
        for parameter in self.trainable_parameters():
            parameter.grad = None

    def trainable_parameters(self) -> list[torch.nn.Parameter]:
        return list(self.trainable_named().values())

    @contextlib.contextmanager
    def merged(self) -> Iterator[None]:
        """Within it the adapter is part of the weights: up to rounding the same velocity, sooner, and without its gradient.

        Takes as much memory again as the adapted weights of all experts. Where the adapter is off, as within `reference`, or
        all weights are trained, nothing changes. The other way round, `reference` within it, is an error.

        Raises:
            ValueError: weights that are quantized, or shared out over several processes.
        """
        if self.is_adapted and self.is_sharded:
            raise ValueError(
                "merge_adapter: each process holds a part of the weights only. Fix: merge_adapter off on the SDE Sampler"
            )
        with merging.merged(self.experts.values()):
            self._is_merged = True
            try:
                yield
            finally:
                self._is_merged = False

    @contextlib.contextmanager
    def reference(self) -> Iterator[None]:
        """Within it the model is the one that training started from: adapter off, or the untrained weights."""
        if self._is_merged:
            raise RuntimeError("the adapter is part of the weights: there is no reference within `merged`")
        if self.is_adapted:
            for network in self.experts.values():
                network.disable_adapters()
            try:
                yield
            finally:
                for network in self.experts.values():
                    network.enable_adapters()
            return
        parameters = self.trainable_parameters()
        if self.trains_shards:  # FSDP2 knows only the memory of its parameters, so values have to change places
            trained = [parameter.detach().clone() for parameter in parameters]
            self._copy(self._originals)
            try:
                yield
            finally:
                self._copy(trained)
            return
        trained = [parameter.data for parameter in parameters]
        for parameter, original in zip(parameters, self._originals, strict=True):
            parameter.data = original.float()
        try:
            yield
        finally:
            for parameter, data in zip(parameters, trained, strict=True):
                parameter.data = data

    @torch.no_grad()
    def _copy(self, values: Sequence[Tensor]) -> None:
        for parameter, value in zip(self.trainable_parameters(), values, strict=True):
            parameter.copy_(value)

    def trained_state(self) -> dict[str, Tensor]:
        """What is trained, by name, whole, on the CPU.

        Where each trains a part all processes have to ask for it, here and below, and only the main one gets it.
        """
        return self.whole(self.trainable_named())

    def whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Tensors of this model on the CPU, as `trained_state`."""
        state = {}
        for name, tensor in tensors.items():
            full = distributed.full(tensor)
            if distributed.is_main() or not self.trains_shards:  # one at a time, else there would be no room for them
                state[name] = full
        return state

    def load_trained_state(self, tensors: Mapping[str, Tensor]) -> None:
        self._copy([distributed.like(tensors[name], own) for name, own in self.trainable_named().items()])

    @contextlib.contextmanager
    def averaged(self) -> Iterator[None]:
        """Within it the weights are their exponential moving average, if one is kept."""
        if self.ema is None:
            yield
            return
        parameters = self.trainable_parameters()
        self.ema.store(parameters)
        self.ema.copy_to(parameters)
        try:
            yield
        finally:
            self.ema.restore(parameters)

    def optimizer_for(self, settings: UpdateSettings) -> torch.optim.Optimizer:
        """The AdamW of this policy, made at the first call; later calls may change its rates but keep its moments."""
        if self._optimizer is None:
            self._optimizer = torch.optim.AdamW(self.trainable_parameters(), fused=True)
        rates = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
        self._optimizer.param_groups[0].update(rates)
        if not settings.ema_decay:
            self.ema = None
        elif self.ema is None:
            self.ema = self._average(settings.ema_decay)
        else:
            self.ema.decay = settings.ema_decay
        return self._optimizer

    def optimizer_state(self) -> dict[str, Tensor]:
        """The optimizer's moments and step counts, as `<parameter number>.<name>`; empty before the first update."""
        state = self._optimizer.state_dict()["state"] if self._optimizer else {}
        return self.whole({f"{number}.{name}": tensor for number, own in state.items() for name, tensor in own.items()})

    def load_optimizer_state(self, tensors: dict[str, Tensor]) -> None:
        parameters = self.trainable_parameters()
        self._optimizer = torch.optim.AdamW(parameters, fused=True)
        state: dict[int, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            number, name = key.split(".")
            state.setdefault(int(number), {})[name] = distributed.like(tensor, parameters[int(number)])
        self._optimizer.load_state_dict({"state": state, "param_groups": self._optimizer.state_dict()["param_groups"]})

    def average_state(self) -> dict[str, Tensor]:
        """The moving average, as `optimizer_state`."""
        return self.whole({f"{number:05d}": shadow for number, shadow in enumerate(self.ema.shadow_params)})

    def restore_average(self, tensors: dict[str, Tensor], step: int, decay: float) -> None:
        self.ema = self._average(decay)
        pairs = zip(sorted(tensors), self.trainable_parameters(), strict=True)
        self.ema.shadow_params = [distributed.like(tensors[key], parameter) for key, parameter in pairs]
        self.ema.optimization_step = step

    def _average(self, decay: float):
        from diffusers.training_utils import EMAModel

        return EMAModel(self.trainable_parameters(), decay=decay)

    def autocast(self):
        """For one forward pass. A context around the optimizer step too would keep stale casts of the adapter's weights."""
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32)

    def graph_bytes(self, settings: SamplerSettings) -> int:
        """What autograd saves for the backward pass of one sample's velocity, measured once for each kind of it."""
        shape = self.latent_shape(settings.height, settings.width, settings.frames)
        kind = shape, self.wish.unconditional_gradient
        if kind not in self._graph_bytes:
            networks = self.experts.values()
            weights = {p.untyped_storage().data_ptr() for network in networks for p in network.parameters()}
            saved: dict[int, int] = {}

            def count(tensor: Tensor) -> Tensor:
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in weights:
                    saved[storage.data_ptr()] = storage.nbytes()
                return tensor

            condition, x = self.condition([""], settings), torch.zeros((1, *shape), device=self.device)
            saving = torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor)
            with self.uncounted(), torch.enable_grad(), saving:
                velocity = self.velocity(x, 0.5, condition, self.guidance_at(0.5, settings))
            self._graph_bytes[kind] = sum(saved.values())
            del velocity  # the graph must live until all it saved is counted: freed memory would be counted twice
        return self._graph_bytes[kind]
