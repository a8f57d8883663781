"""A model's calls, taken once on the meta device, whose tensors have shapes and no numbers: what they hold is counted.

The family's own code runs, with the networks that its configurations describe. So the counts are those of our code, whatever it
keeps for the backward pass. Kernels of a GPU may take workspaces of their own, which no such count sees.
"""

from __future__ import annotations

import contextlib
import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from ..families import family_class, streaming
from ..families.base import EXAMPLE
from ..families.condition import Condition, Embeddings
from ..families.options import LoadOptions, conflict
from ..families.pipeline import PipelineModel
from ..families.sizes import RULES
from ..policy.adapters import Adapter
from ..types import NextRollout, SamplerSettings
from .blueprint import Blueprint
from .case import ANY_GPU, ENCODING, GB, RESERVE, Case, Graph, Held, Iteration, Machine, Way, with_halo
from .meta import META, Live, as_on_a_gpu, there_and_back

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

GUIDED = 3.5  # above what any family takes as no guidance
# Bits of a weight in bitsandbytes' formats; in 4 bits every 64 weights have a factor in float32 (QLoRA, 2305.14314).
BITS = {"8bit": 8.0, "4bit": 4.5}
SMALL_ADAPTER = Adapter(16, 16.0)
PICTURES = ((1024, 1024, 1), (768, 768, 1), (512, 512, 1), (256, 256, 1))
VIDEOS = ((832, 480, 81), (832, 480, 49), (640, 352, 49), (416, 240, 53), (416, 240, 33), (416, 240, 17))


@dataclass(frozen=True)
class Call:
    """One call of the network. `guided`: a second half for the negative prompt; `both`: which has a gradient, too; `through`: so
    has the point where it is asked."""

    rows: int
    height: int
    width: int
    frames: int = 1
    guided: bool = False
    both: bool = True
    checkpointing: bool = False
    through: bool = False


class Rehearsal:
    """One model, as it is loaded with these options. Each count is made once."""

    def __init__(
        self,
        blueprint: Blueprint,
        dtype: torch.dtype,
        adapter: Adapter | None,
        vae_tiling: bool = False,
        max_sequence_length: int = 0,
    ):
        """`adapter`: None trains all weights."""
        self.blueprint, self.dtype = blueprint, dtype
        self.family: type[PipelineModel] = family_class(blueprint.pipeline)
        self.rules = RULES[blueprint.pipeline]
        limit = min(self.rules.most_tokens, blueprint.tokens.get(self.rules.tokenizer, self.rules.most_tokens))
        self.tokens = max_sequence_length or limit
        networks = blueprint.networks()
        self.model = self.family(blueprint.pipeline_of(networks), blueprint.folder or Path(blueprint.name), self.tokens)
        self.model.dtype = dtype
        self.model._embeddings = Embeddings(self._embedded)
        on_meta = partial(tree_map_only, torch.Tensor, partial(torch.empty_like, device=META))
        for encoder in self.model.components("text_encoder").values():
            encoder.register_forward_pre_hook(lambda _, args, kwargs: on_meta((args, kwargs)), with_kwargs=True)
        if vae_tiling:
            self.model.pipeline.vae.enable_tiling()
        if adapter is None:
            self.model.policy.train_everything()
        else:
            self.model.policy.add_adapter(adapter)
        # Counting casts itself: it has to be there in the backward pass too, where blocks run again.
        vars(self.model)["autocast"] = contextlib.nullcontext
        # Numbers in each component without its adapter; one that is held in float32 counts as all of the bytes that it has.
        self.counts = {name: _in_dtypes(network, dtype) // dtype.itemsize for name, network in networks.items()}
        self.trained = sum(parameter.numel() for parameter in self.model.policy.trainable_parameters())

    # -- what is held ------------------------------------------------------------------------------------------------------

    @cached_property
    def linear(self) -> Mapping[str, int]:
        """Numbers in the Linear layers of each trained network without their adapters, which is what quantizing changes."""
        return {name: sum(_linear(network)) for name, network in self.model.experts.items()}

    @cached_property
    def largest_layer(self) -> int:
        """Bytes of the largest Linear layer's weights, in the dtype that it is computed with."""
        return max(size for network in self.model.experts.values() for size in _linear(network)) * self.dtype.itemsize

    @cached_property
    def adapted(self) -> int:
        """Bytes of the weights that have an adapter."""
        from peft.tuners.lora import LoraLayer

        layers = (m for network in self.model.experts.values() for m in network.modules() if isinstance(m, LoraLayer))
        return sum(layer.get_base_layer().get_parameter("weight").nbytes for layer in layers)

    @cached_property
    def blocks(self) -> list[int]:
        """Bytes of each block of the trained networks, without its adapter."""
        return streaming.sizes(self.model.experts.values())

    @cached_property
    def encoder_blocks(self) -> list[int]:
        """The same of the text encoders."""
        return streaming.sizes(self.model.components("text_encoder").values())

    # -- what calls take ---------------------------------------------------------------------------------------------------

    @cache  # noqa: B019
    def forward(self, call: Call) -> int:
        """A call without a gradient."""
        with self._blocks(), self._counting(call) as (live, velocity), torch.no_grad():
            velocity()
        return live.peak

    @cache  # noqa: B019
    def graph(self, call: Call) -> Graph:
        """A call with a gradient, and the backward pass from its velocity. Gradients are there before.

        Blocks of one kind keep the same each. So two of each kind are called; then, for each kind, three, and the difference
        counts as often as there are more of them.
        """
        with self._blocks():
            first, over, backward = self._graph(call)
        kept = first
        for kind, blocks in self._kinds.items():
            if len(blocks) > 2:
                with self._blocks(kind):
                    kept += (self._graph(call, with_backward=False)[0] - first) * (len(blocks) - 2)
        return Graph(kept, kept + max(over, backward), backward)

    def _graph(self, call: Call, with_backward: bool = True) -> tuple[int, int, int]:
        """Kept bytes, and what the forward and the backward pass have at most beside them."""
        trained = self.model.policy.trainable_parameters()
        for parameter in trained:
            parameter.grad = torch.empty_like(parameter)
        with self._counting(call) as (live, velocity):
            memory = there_and_back(live, velocity, with_backward)
        self.model.policy.forget_gradients()
        return memory

    @cached_property
    def _kinds(self) -> dict[tuple, list[int]]:
        """Numbers of the blocks of a trained network by their list and the shapes of their weights; the networks are alike."""
        kinds: dict[tuple, list[int]] = {}
        for name, blocks in streaming.lists(next(iter(self.model.experts.values()))):
            for number, block in enumerate(blocks):
                shapes = tuple((key, tuple(weight.shape)) for key, weight in block.named_parameters())
                kinds.setdefault((name, shapes), []).append(number)
        return kinds

    @contextlib.contextmanager
    def _blocks(self, once_more: tuple | None = None) -> Iterator[None]:
        """Within it the networks have two blocks of each kind, and of the kind `once_more` three."""
        lists = [
            (network, name, blocks)
            for network in self.model.experts.values()
            for name, blocks in streaming.lists(network)
        ]
        for network, name, blocks in lists:
            sizes = [
                n for kind, all_ in self._kinds.items() if kind[0] == name for n in all_[: 2 + (kind == once_more)]
            ]
            setattr(network, name, torch.nn.ModuleList(blocks[number] for number in sorted(sizes)))
        try:
            yield
        finally:
            for network, name, blocks in lists:
                setattr(network, name, blocks)

    @cache  # noqa: B019
    def decoding(self, call: Call) -> int:
        """Pictures of so many latents."""
        with torch.no_grad(), self._live() as live:
            self.model.decode_latents(torch.empty(call.rows, *self._shape(call), device=META)).float().clamp(0, 1)
        return live.peak

    @cache  # noqa: B019
    def decoder(self, call: Call) -> Graph:
        """The same with a gradient, and the way back to the latents."""
        latents = torch.empty(call.rows, *self._shape(call), device=META, requires_grad=True)
        streaming.compute_again(self.model.pipeline.vae, call.checkpointing)
        with self._live() as live:
            kept, over, back = there_and_back(live, lambda: self.model.decode_latents(latents).float().clamp(0, 1))
        return Graph(kept, kept + max(over, back), back)

    @cache  # noqa: B019
    def encoding(self, prompts: int) -> int:
        """Bytes that the text encoders take for so many prompts at once; 0 without encoders."""
        if not self.model.components("text_encoder"):
            return 0
        with self._live() as live:
            self._embedded([EXAMPLE] * prompts)
        return live.peak

    @cache  # noqa: B019
    def pictures(self, call: Call) -> int:
        """Bytes that the autoencoder takes for a picture that a prompt's video begins with; 0 where prompts need none."""
        if not self.rules.needs_pictures:
            return 0
        with torch.no_grad(), self._live() as live:
            self.model.encode_images(torch.empty(1, call.frames, call.height, call.width, 3, device=META))
        return live.peak

    def latent_bytes(self, call: Call) -> int:
        return 4 * math.prod(self._shape(call))

    # -- how -----------------------------------------------------------------------------------------------------------------

    def _shape(self, call: Call) -> tuple[int, ...]:
        return self.model.latent_shape(call.height, call.width, call.frames)

    @contextlib.contextmanager
    def _counting(self, call: Call) -> Iterator[tuple[Live, Callable[[], Tensor]]]:
        for network in self.model.experts.values():
            streaming.compute_again(network, call.checkpointing)
        self.model.memo.keep(NextRollout(unconditional_gradient=call.both))
        x = torch.empty(call.rows, *self._shape(call), device=META, requires_grad=call.through)
        condition = self._condition(call)
        with self._live(self.dtype) as live:
            yield live, lambda: self.model.velocity(x, 0.5, condition, GUIDED)

    @contextlib.contextmanager
    def _live(self, autocast: torch.dtype = torch.float32) -> Iterator[Live]:
        networks = self.model.components()
        weights = [p for network in networks.values() for p in (*network.parameters(), *network.buffers())]
        held = [tensor for p in weights for tensor in (p, p.grad) if tensor is not None]
        with as_on_a_gpu(autocast), Live(held) as live:
            yield live

    def _condition(self, call: Call) -> Condition:
        """A condition whose rows all have the same prompt, as long as a usual one."""
        settings = SamplerSettings(
            width=call.width,
            height=call.height,
            frames=call.frames,
            guidance=GUIDED if call.guided else 0.0,
            negative_prompt=EXAMPLE,
        )
        with as_on_a_gpu():
            return self.model.example(settings).rows(torch.zeros(call.rows, dtype=torch.int64))

    def _embedded(self, texts: Sequence[str]) -> Condition:
        with torch.no_grad(), as_on_a_gpu(reads=True):
            return self.model.embed(texts, META)


def _in_dtypes(network: nn.Module, dtype: torch.dtype) -> int:
    """Gives weights the dtypes that loading gives them, and moves what a class has made elsewhere to the meta device.

    Returns the bytes that the network has before it is made trainable.
    """
    from diffusers import ModelMixin

    exact = set(network._keep_in_fp32_modules or ()) if isinstance(network, ModelMixin) else set()
    made: dict[int, Any] = {}  # some weights are shared
    size = 0
    for name, module in network.named_modules():
        both: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for tensors in both:
            for key, old in tensors.items():
                if old is None:
                    continue
                if id(old) not in made:
                    loaded = old.dtype
                    if old.is_floating_point():
                        loaded = torch.float32 if exact & {*name.split("."), key} else dtype
                    size += 0 if "lora_" in name else old.numel() * loaded.itemsize
                    new = torch.empty(old.shape, dtype=torch.float32 if old.requires_grad else loaded, device=META)
                    is_weight = isinstance(old, torch.nn.Parameter)
                    made[id(old)] = torch.nn.Parameter(new, old.requires_grad) if is_weight else new
                tensors[key] = made[id(old)]
    return size


def _linear(network: nn.Module) -> Iterator[int]:
    for name, module in network.named_modules():
        if isinstance(module, torch.nn.Linear) and ".lora_" not in name:
            yield module.weight.numel()


@dataclass(frozen=True)
class PipelineCase(Case):
    """A training of a model of diffusers, rehearsed. Quantizing counts by its bits alone.

    Attributes:
        adapter: None trains all weights.
        processes: that share what can be shared.
        reserve: see `case.RESERVE`.
        blocks_out: so many blocks stay in main memory, see `families/streaming`. None: decided by memory.
    """

    blueprint: Blueprint
    adapter: Adapter | None
    options: LoadOptions
    dtype: torch.dtype
    iteration: Iteration | None
    processes: int = 1
    reserve: int = RESERVE
    machine: Machine = ANY_GPU
    blocks_out: int | None = None

    @property
    def title(self) -> str:
        return self.blueprint.name

    @property
    def can_stream(self) -> bool:
        o = self.options
        return (
            bool(self.machine.device)
            and self.adapter is not None
            and o.quantize == "none"
            and not (o.shard or o.compile)
        )

    def filled(self) -> Self:
        """The case with as few blocks out as need to be."""
        if not self.can_stream or self.blocks_out is not None:
            return self
        cases = [replace(self, blocks_out=count) for count in range(len(self.rehearsal.blocks) + 1)]
        if self.options.memory == "low":
            return cases[-1]
        has, least = self.machine.has, cases[-1]
        if not has or cases[0].estimate().total <= has:
            return cases[0]

        def fits(case: Self) -> bool:  # each phase that can be made to
            phases = least.estimate().totals
            return all(total <= max(has, phases[phase]) for phase, total in case.estimate().totals.items())

        return cases[bisect_left(cases, True, hi=len(cases) - 1, key=fits)]

    @property
    def out(self) -> list[int]:
        """Bytes of the blocks that are out."""
        sizes = self.rehearsal.blocks
        return [sizes[number] for number in streaming.out(len(sizes), self.blocks_out or 0)]

    @property
    def travelling(self) -> str:
        out, all_ = self.decided.out, self.rehearsal
        moved = f"{sum(out) / len(all_.model.experts) / GB:.1f} GB go to the GPU in each pass through a network"
        return f"{len(out)} of {len(all_.blocks)} blocks stay in main memory: {moved}" if out else ""

    @property
    def rehearsal(self) -> Rehearsal:
        o = self.options
        return _rehearsal(self.blueprint, self.dtype, self.adapter, o.vae_tiling, o.max_sequence_length)

    def held(self) -> Held:
        rehearsal, options, whole = self.rehearsal, self.options, self.adapter is None
        experts = {name: count for name, count in rehearsal.counts.items() if name in rehearsal.model.experts}
        encoders = sum(count for name, count in rehearsal.counts.items() if name.startswith("text_encoder"))
        all_weights, itemsize = sum(experts.values()), self.dtype.itemsize
        others = sum(rehearsal.counts.values()) - all_weights - encoders
        parts = self.processes if whole or options.shard else 1
        weights = all_weights * itemsize
        if options.quantize != "none":
            quantized = sum(rehearsal.linear.values())
            weights = round(quantized * BITS[options.quantize] / 8) + (all_weights - quantized) * itemsize
        weights -= streaming.away(self.out)
        least = "text encoder", encoders * itemsize - streaming.away(rehearsal.encoder_blocks)
        return Held(
            weights=weights // parts,
            trained=all_weights // parts if whole else rehearsal.trained,
            whole=whole,
            encoders=encoders * itemsize,
            vae=others * itemsize,
            encoders_visit=options.offload_encoders,
            vae_visit=options.offload_vae,
            steps_aside=(ENCODING,) if options.offload_encoders else (),
            streams={ENCODING: least} if options.offload_encoders and self.machine.device else {},
            at_once=True,
            loading=4 * all_weights if whole and self.processes > 1 else 0,
            reserve=self.reserve,
        )

    def latent(self) -> int:
        return self.rehearsal.latent_bytes(self._call(1))

    def forward(self, samples: int) -> int:
        return self.rehearsal.forward(self._call(samples))

    def graph(self, samples: int) -> Graph:
        return self.rehearsal.graph(self._call(samples))

    def decoding(self, samples: int) -> int:
        return self.rehearsal.decoding(self._call(samples))

    def decoder(self, samples: int, tile: int) -> Graph:
        call, scale = self._call(samples), self.rehearsal.model.latent_grid.scale
        width, height, frames = with_halo((call.width, call.height, call.frames), tile, scale)
        again = self.options.gradient_checkpointing
        return self.rehearsal.decoder(Call(samples, height, width, frames, checkpointing=again))

    def encoding(self) -> int:
        assert self.iteration is not None, "asked only about an iteration"
        return max(self.rehearsal.encoding(self.iteration.prompts), self.rehearsal.pictures(self._call(1)))

    def layer(self) -> int:
        return self.rehearsal.largest_layer if self.options.quantize != "none" else 0

    def merged(self) -> int:
        stays = self.rehearsal.adapted * (1 - sum(self.out) / sum(self.rehearsal.blocks))
        return round(stays) + max(self.out, default=0)

    def _call(self, samples: int) -> Call:
        it = self.iteration
        assert it is not None, "asked only about an iteration"
        width, height, frames = it.size
        checkpointing, through = (
            self.options.gradient_checkpointing or bool(self.blocks_out),
            bool(it.pull and not it.pull.holds_a_call),
        )
        return Call(samples, height, width, frames, it.guided, it.both, checkpointing, through)

    def ways(self) -> Iterator[Way]:
        training = "lora" if self.adapter else "full"
        for way in self._ways():
            options = way.case.get("options", self.options)
            if not conflict(training, vars(options)):
                yield way

    def _ways(self) -> Iterator[Way]:
        def memory(name: str, value: Any) -> Way:
            words = f"Model Memory {name} {({True: 'on', False: 'off'}).get(value, value)}"
            return Way(words, case={"options": replace(self.options, **{name: value})}, kind=name)

        it, is_frozen = self.iteration, self.adapter is not None
        yield memory("offload_encoders", True)
        if it is not None:
            yield from it.ways()
            yield memory("gradient_checkpointing", True)
        if self.options.compile:
            yield memory("compile", False)
        if self.can_stream:
            yield memory("memory", "low")
        if it is not None:
            yield memory("vae_tiling", True)
        yield memory("offload_vae", True)
        if it is not None:
            yield from it.elsewhere()
            if it.guided:
                yield Way("GRPO Step unconditional_gradient off (another gradient)", {"both": False})
            yield from it.smaller(VIDEOS if it.size[2] > 1 else PICTURES)
        if not is_frozen:
            yield Way("Load Flow Model training lora", case={"adapter": SMALL_ADAPTER})
        for kind in BITS if is_frozen else ():
            yield memory("quantize", kind)
        for processes in (2, 4, 8):
            words = f"{processes} GPUs (--gpus {processes})" + (" with Model Memory shard on" if is_frozen else "")
            shared = replace(self.options, shard=is_frozen, quantize="none")
            yield Way(words, case={"processes": processes * self.processes, "options": shared}, kind="quantize")


_rehearsal = lru_cache(maxsize=8)(Rehearsal)
