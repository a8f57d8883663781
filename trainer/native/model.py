"""A flow model out of what ComfyUI has loaded: one MODEL, or two that share the noise levels, with their CLIP and VAE."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...host import devices
from ...host.devices import moving
from ...host.recent import Recent
from .. import schedule
from ..families import given, names
from ..families.base import EXAMPLE, FlowModel, frame_size, noise_levels
from ..memory import fitting
from ..memory.case import Iteration
from ..memory.native import ARCHITECTURES, WAN21_VAE, Architecture, NativeCase
from ..policy.layouts import Network, Rows, plain
from ..types import NextRollout, SamplerSettings
from . import conditions, frozen, guard, sources, suitable, trial
from .checkpointing import Mutable, blocks_again
from .conditions import Conditioning, Encodings, NativeCondition, Processed, Prompt
from .expert import Expert, page
from .foreign import ordinary, rewrap
from .sources import Asked

if TYPE_CHECKING:
    from pathlib import Path

    from comfy.model_patcher import ModelPatcher
    from comfy.sd import CLIP, VAE

    from ..types import Trajectories

HIGH, LOW = "model", "low_noise_model"
CONDITIONS = 8  # the latest prompts and settings, as the sampler's, the update's and the evaluation's
WEIGHTS_SEEN = 16  # of a network, to tell it from another one of its kind
TRIED_GUIDANCE = 3.5
STARTS_AT = 0.9999  # some schedules begin a rounding error below 1
EVERYTHING = 1e20  # bytes, more than any device has: where so much room is asked for, all weights stay in main memory


@dataclass(frozen=True)
class NativeOptions:
    """How a model is held and computed with.

    Attributes:
        boundary: the noise level below which the low-noise model works, where there is one.
        checkpointing: whether blocks are computed again in the backward pass instead of keeping what they computed; None: decided
            at the first prompt, by what they would keep.
        is_low_memory: whether weights stay in main memory and visit the device layer by layer.
        vae_tiling: whether pictures are decoded in tiles.
        check_gradients: whether a gradient is compared with finite differences before it is first used.
        extra: entries of a CONDITIONING that go along with every prompt, such as reference latents.
        is_guided_inside: whether guidance is a number for the network even if it takes none, as FLUX's pipeline means it.
    """

    boundary: float = 0.875
    checkpointing: bool | None = None
    is_low_memory: bool = False
    vae_tiling: bool = False
    check_gradients: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)
    is_guided_inside: bool = False


class NativeModel(FlowModel):
    """A model that ComfyUI loaded, called by ComfyUI's own path: its samplers, its memory management, its nodes' patches."""

    def __init__(
        self, model: ModelPatcher, clip: CLIP, vae: VAE, low_noise: ModelPatcher | None, options: NativeOptions
    ):
        """Raises FlowModelError where a model cannot be trained, or the VAE is not its own."""
        models = {HIGH: model, **({LOW: low_noise} if low_noise is not None else {})}
        for name, patcher in models.items():
            suitable.check(patcher, name)
            suitable.check_vae(patcher, vae)
        self.clip, self.vae, self.options, self.models = clip, vae, options, models
        self.wrapped = {name: Expert(patcher) for name, patcher in models.items()}
        for name, expert in self.wrapped.items():
            expert.prepare = functools.partial(self._load, name)
        adapters = {name: expert.adapters for name, expert in self.wrapped.items()}
        networks = {name: expert.network for name, expert in self.wrapped.items()}
        super().__init__(networks, adapters, self._first.dtype)
        for expert in self.wrapped.values():
            expert.count = self.forwards.count
        self._encodings = Encodings(clip, self._with_pictures)
        self.grid = suitable.grid(model, vae)
        self.planned: Iteration | None = None  # what the graph that samples does with it
        self._room = 0.0  # bytes that computing needs beside the weights
        self._encoder_files: list[Path] = []  # as the graph names them
        self._settled: tuple | None = None  # for what the memory was decided last
        self.checkpointing = bool(options.checkpointing)  # whether blocks are computed again in the backward pass
        self._conditions: Recent[tuple, NativeCondition] = Recent(CONDITIONS)
        self.most_pictures = 0  # of a prompt, so far
        self.is_untried = False  # whether the first prompts' condition is to be tried
        self._decoding = threading.RLock()
        # Whether the network writes over what autograd keeps; None: not known yet.
        self._writes_over: bool | None = None

    @property
    def _first(self) -> Expert:
        return self.wrapped[HIGH]

    @property
    def source(self) -> str:
        """The class, and a figure of the weights: a MODEL does not say which file it came from."""
        digest = hashlib.sha256()
        for expert in self.wrapped.values():
            patched = expert.patcher.backup  # what was there before the patches of a LoRA
            weights = {
                name: getattr(patched.get(f"diffusion_model.{name}"), "weight", parameter)
                for name, parameter in expert.network.named_parameters()
                if type(parameter.data) is torch.Tensor
            }
            for name in list(weights)[:: max(1, len(weights) // WEIGHTS_SEEN)]:
                # In float64 on the CPU, where a sum is the same for every device.
                part = weights[name].detach().flatten()[:64].cpu().double().abs().sum().item()
                digest.update(f"{name} {tuple(weights[name].shape)} {part:.5e}".encode())
        return f"{type(self._first.core).__name__}-{digest.hexdigest()[:12]}"

    @property
    def device(self) -> torch.device:
        return self._first.patcher.load_device

    @property
    def is_quantized(self) -> bool:
        return any(expert.is_quantized for expert in self.wrapped.values())

    @property
    def guidance_is_embedded(self) -> bool:
        return self.options.is_guided_inside or suitable.embeds_guidance(self._first.core)

    def make_room(self, graph: Mapping[str, Mapping] | None = None) -> None:
        """Moves nothing: ComfyUI knows of this model as of its own, and moves whatever it needs the room of."""
        if graph is not None:
            self.planned = fitting.planned(graph, self.guidance_is_embedded, self.device)
            self._encoder_files = fitting.encoder_files(graph)

    # -- in memory ---------------------------------------------------------------------------------------------------------

    def come_back(self) -> None:
        if self._first.adapters.device != self.device:
            self._move(self.device)
        self._look_again()
        self._load(HIGH)  # with which sampling and the update begin; another one follows when it is called

    def _look_again(self) -> None:
        """Notes that ComfyUI may have moved weights."""
        for expert in self.wrapped.values():
            expert.is_stale = True

    def _load(self, name: str) -> Expert:
        """A network where it computes, with its adapter. If there are two, the other one may have had to leave for it."""
        expert = self.wrapped[name]
        if not expert.is_ready:
            expert.load(EVERYTHING if self.options.is_low_memory else self._room)
        return expert

    def leave(self) -> bool:
        import comfy.model_management

        if self.device.type == "cpu":
            return False
        for expert in self.wrapped.values():
            comfy.model_management.unload_model_and_clones(expert.patcher)
        self._move(torch.device("cpu"))
        return True

    def _move(self, device: torch.device) -> None:
        for expert in self.wrapped.values():
            expert.adapters.move(device)
        self.policy.move(device)

    # -- prompts -----------------------------------------------------------------------------------------------------------

    def condition(self, texts: Sequence[str], settings: SamplerSettings) -> NativeCondition:
        return self._of(self._asked(texts, settings), settings)

    def example(self, settings: SamplerSettings) -> NativeCondition:
        pictures = (given.grey(settings.width, settings.height),) * self.most_pictures
        return self._of([Asked(EXAMPLE, pictures, settings.width * settings.height if pictures else 0)], settings)

    def _asked(self, texts: Sequence[str], settings: SamplerSettings) -> list[Asked]:
        pictures, area = list(map(given.pictures, texts)), settings.width * settings.height
        self.most_pictures = max(self.most_pictures, *map(len, pictures))
        return [Asked(str(text), group, area if group else 0) for text, group in zip(texts, pictures, strict=True)]

    def _of(self, asked: Sequence[Asked], settings: SamplerSettings) -> NativeCondition:
        self._settle_memory(settings)
        distinct = tuple(dict.fromkeys(asked))
        condition = self._conditions.use((distinct, settings), lambda: self._condition(distinct, settings))
        return replace(condition, index=tuple(map(distinct.index, asked)))

    def _condition(self, distinct: Sequence[Asked], settings: SamplerSettings) -> NativeCondition:
        shape = self.latent_shape(settings.height, settings.width, settings.frames)
        x = self.with_frames(torch.zeros((1, *shape), device=self.device))
        positive, negative = self._encodings.of(distinct), [None] * len(distinct)
        if self._has_negative(settings):
            # The negative prompt sees the same pictures, so that guidance strengthens what the text says alone.
            negative = self._encodings.of([replace(request, text=settings.negative_prompt) for request in distinct])
        self.come_back()  # the text encoder may have taken its room
        options = {name: self._call_options(expert, settings) for name, expert in self.wrapped.items()}
        made: list[dict[str, Processed]] = [{} for _ in distinct]
        for name in self.wrapped:  # the outer loop: two networks may not have room side by side
            expert = self._load(name)
            for processed, prompt, away in zip(made, positive, negative, strict=True):
                processed[name] = conditions.processed(expert, self._conds(prompt, away, settings), x)
        condition = NativeCondition(tuple(map(Prompt, made)), (), options)
        if self.is_untried:
            self.is_untried = False
            noise = torch.randn((1, *shape), generator=torch.Generator().manual_seed(0)).to(self.device)
            self.try_out(replace(condition, index=(0,)), noise, settings.guidance)
        return condition

    def try_out(self, condition: NativeCondition, x: Tensor, guidance: float) -> None:
        """Tries each network as `trial.run` does."""
        for name, expert in self.wrapped.items():
            trial.run(self.velocity, expert, self.range_of(name), condition, x, guidance)

    def _with_pictures(self, asked: Asked) -> Conditioning:
        way, unit = sources.way_of(self._first.core, self.clip), self.grid.scale * self.grid.patch
        with torch.inference_mode(), self._autoencoder():  # as ComfyUI's nodes are
            encode = self.vae.encode_tiled if self.options.vae_tiling else self.vae.encode
            return sources.conditioning(way, self.clip, encode, asked, unit)

    def smallest(self) -> tuple[NativeCondition, Tensor, float]:
        """A prompt, three samples of noise of the least pixels that there can be, and a guidance."""
        side = self.grid.scale * self.grid.patch * 2
        # Of one length, for one call. Empty, as guided sampling has it, unless another node may keep how the two differ.
        text = "a" if any(expert.is_alone for expert in self.wrapped.values()) else ""
        settings = SamplerSettings("ode", 0.0, 1, side, side, 1.0, TRIED_GUIDANCE, negative_prompt=text and "b")
        condition, shape = self.condition([text], settings), self.latent_shape(side, side)
        x = torch.randn((3, *shape), generator=torch.Generator().manual_seed(0)).to(self.device)
        return condition, x, TRIED_GUIDANCE

    def _conds(self, positive: Conditioning, negative: Conditioning | None, settings: SamplerSettings) -> dict:
        """The conditions. As in ComfyUI's graphs, the negative prompt goes around FluxGuidance: its default is the network's."""
        extra = dict(self.options.extra)
        keys = {"guidance": settings.guidance} if self.guidance_is_embedded else {}
        conds = {"positive": conditions.with_keys(positive, keys | extra)}
        if negative is not None:
            extra.pop("guidance", None)
            conds["negative"] = conditions.with_keys(negative, extra)
        return conds

    def _call_options(self, expert: Expert, settings: SamplerSettings) -> dict:
        import comfy.model_patcher
        import comfy.sampler_helpers
        import comfy.samplers

        options = comfy.model_patcher.create_model_options_clone(expert.patcher.model_options)
        levels = torch.tensor(self.sigmas(settings), device=self.device)
        options.setdefault("transformer_options", {})["sample_sigmas"] = levels
        # With other nodes' wrappers, each once.
        comfy.sampler_helpers.prepare_model_patcher(expert.patcher, {}, options)
        comfy.samplers.cast_to_load_options(options, device=self.device, dtype=expert.patcher.model_dtype())
        return options

    def _settle_memory(self, settings: SamplerSettings) -> None:
        """Takes the case's decision for these settings, and asks for the room that they take."""
        if self._settled == (settings, self.planned, self.most_pictures):
            return
        self._settled, case = (settings, self.planned, self.most_pictures), self.case(settings)
        self.checkpointing = bool(case.checkpointing)
        self._writes_over = None  # blocks that were computed again were not looked at
        for expert in self.wrapped.values():
            expert.checkpointing, expert.kept_blocks = self.checkpointing, case.kept_blocks or 0
        if not case.encoder_stays:
            page(self.clip.cond_stage_model, self._encoder_files)
        self._room = max(self._room, float(fitting.room(case)))

    def case(self, settings: SamplerSettings) -> NativeCase:
        """A training at these settings as it is counted and run; what was decided for an equal one holds."""
        case = case_of(self, settings)
        key = repr((case.iteration, case.model, case.trained))
        made = self.memo[fitting.Decisions]
        if key not in made:
            made[key] = tuple(getattr(case.decided, name) for name in made.FIELDS)
        decided = dict(zip(made.FIELDS, made[key], strict=False))  # a run of before has none for kept_blocks
        return replace(case, **{"kept_blocks": 0, **decided})

    def memory_line(self, settings: SamplerSettings) -> str:
        case = self.case(settings)
        return f"Memory: {case.sentence(case.machine.has)}"

    def kept_calls(self, settings: SamplerSettings, counts: Sequence[int]) -> int:
        return min(self.case(settings).decided.iteration.kept_calls or 0, len(counts))

    # -- the velocity --------------------------------------------------------------------------------------------------------

    def velocity(self, x: Tensor, sigma: float | Tensor, condition: NativeCondition, guidance: float) -> Tensor:
        levels = noise_levels(sigma, x).float()
        name = self._expert_at(float(levels[0]))
        parts, places = [], []
        # Not while a reward, in another thread, asks ComfyUI for room: this network would leave in the middle of a pass.
        with moving:
            self._load(name)  # again, where another node has used or unloaded the model
            with frozen.training(), self._recording():
                for rows in _alike(condition, name, levels, self.wrapped[name].is_alone):
                    chosen = torch.tensor(rows)
                    call = x[devices.upload(chosen, x.device)], devices.upload(levels[chosen], x.device)
                    prompts = [condition.prompts[condition.index[row]] for row in rows]
                    conds = conditions.together(prompts, name)
                    parts.append(self._velocity(name, *call, conds, condition.options[name], guidance))
                    places += rows
        back = torch.tensor(places).argsort()
        return torch.cat(parts)[devices.upload(back, x.device)] if len(parts) > 1 else parts[0]

    def _velocity(
        self, name: str, x: Tensor, sigma: Tensor, conds: Processed, options: dict, guidance: float
    ) -> Tensor:
        import comfy.samplers

        expert = self.wrapped[name]
        guider = comfy.samplers.CFGGuider(expert.patcher)
        guider.inner_model, guider.conds, guider.model_options = expert.core, dict(conds), options
        guider.cfg = guidance if "negative" in guider.conds and not self.guidance_is_embedded else 1.0
        one_sided = torch.is_grad_enabled() and not self.memo[NextRollout].unconditional_gradient
        if "negative" in guider.conds and one_sided and not expert.functions:  # which may need both halves in one call
            options = {**options, "sampler_calc_cond_batch_function": self._without_negative_gradient}
        latents = self.with_frames(x)
        clean = guider(latents, sigma, model_options=options, seed=None)
        velocity = (latents - clean) / sigma.view(-1, *[1] * (latents.ndim - 1))
        return velocity.reshape(x.shape).float()

    def _without_negative_gradient(self, call: dict) -> list:
        from comfy.samplers import calc_cond_batch

        halves = []
        for number, conds in enumerate(call["conds"]):
            with torch.set_grad_enabled(number == 0):
                halves += calc_cond_batch(call["model"], [conds], call["input"], call["sigma"], call["model_options"])
        return halves

    def _recording(self):
        """Around a forward pass: what autograd keeps of it survives operations in place, of which some networks have many.

        The first pass with a gradient shows whether this network has any; with checkpointing the blocks see to it themselves.
        """
        if not torch.is_grad_enabled() or self._writes_over is False:
            return contextlib.nullcontext()
        return _Observed(self)

    def calls_per_velocity(self, guidance: float) -> int:
        """How many rows of the network's calls a sample's velocity takes: 2 where the negative prompt is computed too."""
        is_guided = not self.guidance_is_embedded and not math.isclose(guidance, 1.0)
        return 1 + (is_guided or any(expert.asks_negative for expert in self.wrapped.values()))

    def _has_negative(self, settings: SamplerSettings) -> bool:
        """ComfyUI's sampler always has one, and other nodes' functions may look for it; without any it is not encoded."""
        values = settings.guidance, settings.guidance_2 or settings.guidance
        functions = any(expert.functions for expert in self.wrapped.values())
        return functions or any(self.calls_per_velocity(value) > 1 for value in values)

    def range_of(self, name: str) -> tuple[float, float]:
        """Two noise levels, a high and a low one, at which that network works."""
        if len(self.wrapped) == 1:
            return 0.9, 0.3
        edge = self.options.boundary
        return (1.0, (1 + edge) / 2) if name == HIGH else (0.9 * edge, 0.3 * edge)

    def _expert_at(self, sigma: float) -> str:
        return LOW if LOW in self.wrapped and sigma < self.options.boundary else HIGH

    def guidance_at(self, sigma: float, settings: SamplerSettings) -> float:
        return settings.guidance_2 if settings.guidance_2 and self._expert_at(sigma) == LOW else settings.guidance

    def same_network(self, sigma: float, other: float) -> bool:
        return self._expert_at(sigma) == self._expert_at(other)

    def check_gradient(self, trajectories: Trajectories) -> None:
        held = replace(self.options, extra={}), self.checkpointing, self.dtype, self.is_quantized, torch.__version__
        shape, guidance = tuple(trajectories.latents.shape[2:]), trajectories.settings.guidance
        kind = f"{type(self._first.core).__name__} {self.device} {held} {shape} {guidance}"
        if self.options.check_gradients and kind not in self.memo[guard.Tried].forms:
            levels = {self._expert_at(trajectories.sigmas[step]): step for step in reversed(trajectories.trained)}
            for name in (name for name in self.wrapped if name in levels):
                guard.check(self, self.wrapped[name], trajectories, levels[name])
            self.memo[guard.Tried].forms.add(kind)

    # -- latents, noise levels, pictures -------------------------------------------------------------------------------------

    def latent_shape(self, height: int, width: int, frames: int = 1) -> tuple[int, ...]:
        grid = replace(self.grid, time=None) if frames == 1 else self.grid  # one frame is a picture, of any model
        return grid.shape(height, width, frames)

    def with_frames(self, x: Tensor) -> Tensor:
        """The latents as the network takes them: a picture's latents get an axis of frames where it has one."""
        return x.unsqueeze(2) if x.ndim == 4 and suitable.has_frames(self.models[HIGH]) else x

    def sigmas(self, settings: SamplerSettings) -> tuple[float, ...]:
        """The noise levels of KSampler's scheduler `simple`; with a shift of the settings' own, `schedule.noise_levels`."""
        if settings.shift:
            return schedule.noise_levels(settings, settings.shift)
        import comfy.samplers

        sampling = self._first.patcher.get_model_object("model_sampling")
        levels = comfy.samplers.calculate_sigmas(sampling, "simple", settings.steps).tolist()
        if levels[0] < STARTS_AT:
            raise ValueError(
                f"the model's schedule begins at the noise level {levels[0]:g}, and sampling starts from pure noise, at 1. Fix: "
                "set shift on SDE Sampler"
            )
        if settings.transitions < settings.steps:  # as even in number as all of the steps after the window would be
            rest = torch.linspace(settings.window_end, settings.steps, settings.transitions - settings.window_end + 1)
            levels = [levels[number] for number in [*range(settings.window_end), *rest.round().int().tolist()]]
        return (1.0, *levels[1:])

    @torch.no_grad()
    def decode(self, latents: Tensor, batch_size: int = 0, texts: Sequence[str] = ()) -> Tensor:
        # It may be for the page, whose thread takes no room amid a pass of the prompt's.
        with self._autoencoder(), moving:
            images = torch.cat([self._decoded(part) for part in latents.split(batch_size or len(latents))])
        # the one frame of each picture
        return images.flatten(0, 1) if images.ndim == 5 and latents.ndim == 4 else images

    @contextlib.contextmanager
    def decoder(self, texts: Sequence[str], vae: VAE | None = None) -> Iterator[Callable[[Tensor], Tensor]]:
        """`vae`: decodes in place of the model's own. Raises FlowModelError where its latents are not the model's."""
        import comfy.model_management

        if vae is not None:
            suitable.check_vae(self._first.patcher, vae, "decoder")
        by = self.vae if vae is None else vae

        def decode(latents: Tensor) -> Tensor:
            plain = self._first.core.process_latent_out(self.with_frames(latents).float())
            if plain.ndim == 5 and by.latent_dim == 2:  # a decoder of pictures for a picture's one frame
                plain = plain[:, :, 0]
            # ComfyUI asks for no room that a gradient takes.
            devices.ask_for_room(self._decoding_bytes(plain), self.device)
            comfy.model_management.load_models_gpu([by.patcher])
            rewrap(by.first_stage_model)
            again = blocks_again(by.first_stage_model) if self.checkpointing else contextlib.nullcontext()
            with frozen.training(), again, Mutable():  # some autoencoders write over what they have computed
                made = by.process_output(by.first_stage_model.decode(plain.to(by.vae_dtype)).float())
            images = made.movedim(1, -1)[..., :3].clamp(0, 1)
            return images.flatten(0, 1) if images.ndim == 5 and latents.ndim == 4 else images

        with self._autoencoder():
            yield decode

    def _decoding_bytes(self, latents: Tensor) -> int:
        """Bytes that decoding them takes, by the count of the model's published autoencoder."""
        width, height = (side * self.grid.scale for side in (latents.shape[-1], latents.shape[-2]))
        frames = (latents.shape[2] - 1) * (self.grid.time or 1) + 1 if latents.ndim == 5 else 1
        size, vae = (width, height, frames), published(self).vae
        if not (torch.is_grad_enabled() and latents.requires_grad):
            return len(latents) * vae.decoding(size, tiled=False)
        return len(latents) * vae.with_gradient(size, 0, self.checkpointing).peak

    @torch.no_grad()
    def encode(self, images: Tensor, batch_size: int = 0) -> Tensor:
        shape = self.latent_shape(*frame_size(images))
        with self._autoencoder():  # one alone: to some of ComfyUI's autoencoders a batch of pictures is a video
            parts = [self._encoded(image if image.ndim == 4 else image.unsqueeze(0)) for image in images]
        return torch.cat(parts).reshape(len(images), *shape)

    # Under inference_mode, as ComfyUI's nodes are: some of its autoencoders write over what they have computed.

    def _decoded(self, latents: Tensor) -> Tensor:
        """The VAE's pictures of latents [B, C, (F,) h, w], in [0, 1] on the CPU; pictures may have an axis of one frame."""
        with torch.inference_mode():
            plain = self._first.core.process_latent_out(self.with_frames(latents).float())
            made = self.vae.decode_tiled(plain) if self.options.vae_tiling else self.vae.decode(plain)
        return ordinary(made)[..., :3].float().clamp(0, 1).cpu()

    def _encoded(self, frames: Tensor) -> Tensor:
        """Latents [1, C, (F,) h, w] on the CPU, of one picture [1, H, W, 3] or one video [F, H, W, 3]."""
        with torch.inference_mode():
            made = self.vae.encode_tiled(frames) if self.options.vae_tiling else self.vae.encode(frames)
            latents = self._first.core.process_latent_in(self.with_frames(made).float())
        return ordinary(latents).float().cpu()

    @contextlib.contextmanager
    def _autoencoder(self) -> Iterator[None]:
        """For one at a time. It may take the networks' room."""
        with self._decoding:
            try:
                yield
            finally:
                self._look_again()

    def lora_key(self, name: str) -> str:
        return f"diffusion_model.{name}"

    def layers(self, expert: str) -> Network:
        """With the names that ComfyUI's own loader takes, which may be of slices; and those that it does not know, as Wan's."""
        import comfy.lora

        shapes = self.adapters[expert].shapes()
        others = names.others(shapes)
        for name, place in comfy.lora.model_lora_keys_unet(self.wrapped[expert].core, {}).items():
            weight, rows, *turned = (place, None) if isinstance(place, str) else place
            layer = weight.removeprefix("diffusion_model.").removesuffix(".weight")
            if layer in shapes and not turned:
                _, first, count = rows or (0, 0, shapes[layer][0])
                others[plain(name)] = [Rows(layer, 0, min(count, shapes[layer][0] - first), first)]
        return Network(shapes, others, names.field(type(self._first.core.model_config).__name__, shapes))


def _alike(condition: NativeCondition, network: str, levels: Tensor, is_alone: bool) -> list[list[int]]:
    """The rows that one call can serve together: prompts of equal length, or of one prompt. `is_alone`: no two."""
    if is_alone:
        return [[row] for row in range(len(condition.index))]
    kinds = [prompt.kind(network) for prompt in condition.prompts]
    groups: dict[tuple, list[int]] = {}
    for row, prompt in enumerate(condition.index):
        level = float(levels[row]) if condition.prompts[prompt].is_scheduled else None
        alike = ("prompt", prompt) if kinds[prompt] is None else ("kind", kinds[prompt])
        groups.setdefault((alike, level), []).append(row)
    return list(groups.values())


class _Observed(Mutable):
    """Notes on the model, after a pass, whether anything had to be copied."""

    def __init__(self, model: NativeModel):
        super().__init__()
        self._model = model

    def __exit__(self, *error) -> None:
        super().__exit__(*error)
        if error[0] is None:
            self._model._writes_over = bool(self._model._writes_over or self.copies)


# --- what its training takes ---------------------------------------------------------------------------------------------

ROWS = 4  # samples in a call, if the sampler takes all of them at once and says no number
UNKNOWN = Architecture("", 0, 0, 0, 0, 0, WAN21_VAE, text_tokens=512)  # as many as a long prompt has


def published(model: NativeModel) -> Architecture:
    """The first of the published models of its kind, and of its latents if there is one."""
    kind = next(iter(model.wrapped.values())).core.model_config.unet_config.get("image_model")
    alike = [row for row in ARCHITECTURES.values() if row.image_model == kind]
    values = model.grid.channels * model.grid.patch**2
    return next((row for row in alike if row.values == values), (alike or [UNKNOWN])[0])


def case_of(model: NativeModel, settings: SamplerSettings) -> NativeCase:
    """Its training at these settings, by the figures of the model at hand, and by the update that follows if that is known."""
    experts, samples = model.wrapped.values(), settings.batch_size or ROWS
    size = settings.width, settings.height, settings.frames
    guided = model.calls_per_velocity(settings.guidance) > 1
    iteration = Iteration(size, samples=samples, batch=samples, sampling_batch=samples, guided=guided)
    if model.planned is not None:
        iteration = replace(model.planned, size=size, guided=guided)
    iteration = replace(iteration, references=max(iteration.references, model.most_pictures))
    blocks = sum(len(expert.blocks) for expert in experts)
    # The width of a token in the blocks: what most of their layers take in
    layers = (layer for e in model.wrapped.values() for block in e.blocks.values() for layer in block.modules())
    widths: Counter[int] = Counter(
        vars(layer)["in_features"] for layer in layers if {"in_features", "out_features"} <= vars(layer).keys()
    )
    architecture = replace(
        published(model),
        title=type(next(iter(experts)).core).__name__,
        params=0,
        width=widths.most_common(1)[0][0] if widths else 1,
        layers=max(1, blocks // len(experts)),
        networks=len(experts),
        pixels=model.grid.unit,
        time=model.grid.time or 1,
        values=model.grid.channels * model.grid.patch**2,
    )
    return NativeCase(
        model=architecture,
        weights_bytes=sum(expert.patcher.model_size() for expert in experts),
        trained=sum(parameter.numel() for parameter in model.policy.trainable_parameters()),
        iteration=iteration,
        checkpointing=model.options.checkpointing,
        kept_blocks=None if model.options.checkpointing is None else 0,
        is_low_memory=model.options.is_low_memory,
        tiling=model.options.vae_tiling or model.device.type != "cpu",  # to which ComfyUI turns by itself on a GPU
        encoder_bytes=_size(model.clip),
        vae_bytes=_size(model.vae),
        compute_bytes=model.dtype.itemsize,
        machine=fitting.here(model.device),
    )


def _size(part) -> int:
    patcher = getattr(part, "patcher", None)
    return int(patcher.model_size()) if patcher is not None else 0
