"""Models of diffusers: what they hold, by their options, and a training of one, rehearsed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from ..families.options import LoadOptions
from ..policy.adapters import Adapter
from .case import Case
from .estimate import Estimate, Held, Work, estimate
from .held import BITS, held_by
from .iteration import Iteration
from .rehearsal import Call, Rehearsal

if TYPE_CHECKING:
    import torch

    from .blueprint import Blueprint

# Tensors as large as a latent that a step of the rollout, or of the loss, has beside the network's own.
LATENTS_OF_A_STEP = 8
SMALL_ADAPTER = Adapter(16, 16.0)
PICTURES = ((1024, 1024, 1), (768, 768, 1), (512, 512, 1), (256, 256, 1))
VIDEOS = ((832, 480, 81), (832, 480, 49), (640, 352, 49), (416, 240, 53), (416, 240, 33), (416, 240, 17))


@dataclass(frozen=True)
class PipelineCase(Case):
    """A model of diffusers, rehearsed. `adapter`: None trains all weights. Quantizing counts by its bits alone."""

    blueprint: Blueprint
    adapter: Adapter | None
    options: LoadOptions
    dtype: torch.dtype
    iteration: Iteration
    processes: int = 1

    @property
    def title(self) -> str:
        return self.blueprint.name

    @property
    def rehearsal(self) -> Rehearsal:
        o = self.options
        return _rehearsal(self.blueprint, self.dtype, self.adapter, o.vae_tiling, o.max_sequence_length)

    def estimate(self, room: float = 0) -> Estimate:
        return estimate(self._held(), self._work(), room)

    def _held(self) -> Held:
        rehearsal = self.rehearsal
        return held_by(
            rehearsal.counts,
            tuple(rehearsal.model.experts),
            self.options,
            "full" if self.adapter is None else "lora",
            self.dtype.itemsize,
            linear=rehearsal.linear,
            adapter=rehearsal.trained,
            copies=self.iteration.copies,
            processes=self.processes,
        )

    def _work(self) -> Work:
        it, rehearsal = self.iteration, self.rehearsal
        sampling, update = (self._call(min(rows, it.samples)) for rows in (it.sampling_batch, it.batch))
        latent = rehearsal.latent_bytes(sampling)
        # Where weights are quantized, one layer at a time is computed with.
        layer = rehearsal.largest_layer if self.options.quantize != "none" else 0
        step = LATENTS_OF_A_STEP * latent
        # The points that were visited are stacked, and only then go to main memory.
        visited = (2 * (it.steps + 1) * latent + step) * sampling.rows
        if it.keep_graph:
            graph, first = (rehearsal.graph(call) for call in (sampling, self._call(-(-sampling.rows // it.alike))))
            of_a_batch = graph.kept * (it.trained_steps - 1) + first.kept
            kept = of_a_batch * -(-it.samples // sampling.rows)
            alone, most = 0, graph.backward
        else:
            graph = rehearsal.graph(update)
            kept, alone, most = 0, graph.kept, graph.peak
        if it.pulled:
            most = max(most, alone + rehearsal.forward(update))
        return Work(
            encoding=max(rehearsal.encoding(it.prompts), rehearsal.pictures(self._call(1))),
            sampling=rehearsal.forward(sampling) + visited + layer,
            merged=rehearsal.adapted if it.merge_adapter and not it.keep_graph else 0,
            kept=kept,
            decoding=rehearsal.decoding(sampling),
            rewards=it.reward_bytes,
            update=most + step * update.rows + layer,
            reference=rehearsal.forward(update) + step * update.rows + layer,
        )

    def _call(self, rows: int) -> Call:
        width, height, frames = self.iteration.size
        it = self.iteration
        return Call(rows, height, width, frames, it.guided, it.both, self.options.gradient_checkpointing)

    def ways(self) -> Iterator[tuple[str, dict, dict]]:
        def options(**fields) -> dict:
            return {"options": replace(self.options, **fields)}

        it, is_frozen = self.iteration, self.adapter is not None
        yield "Model Memory offload_encoders on", {}, options(offload_encoders=True)
        yield from ((words, fields, {}) for words, fields in it.cheap_changes())
        yield "Model Memory gradient_checkpointing on", {}, options(gradient_checkpointing=True)
        yield "Model Memory vae_tiling on", {}, options(vae_tiling=True)
        yield "Model Memory offload_vae on", {}, options(offload_vae=True)
        if it.rewards:
            yield "device cpu on every reward (slow)", {"rewards": ()}, {}
        if it.guided:
            yield "GRPO Step unconditional_gradient off (another gradient)", {"both": False}, {}
        yield from ((words, fields, {}) for words, fields in it.smaller(VIDEOS if it.size[2] > 1 else PICTURES))
        if not is_frozen:
            yield "Load Flow Model training lora", {}, {"adapter": SMALL_ADAPTER}
        if not any(name.startswith("transformer") for name in self.options.files):
            for kind in BITS if is_frozen else ():
                yield f"Model Memory quantize {kind}", {}, options(quantize=kind)
        for processes in (2, 4, 8):
            several = {"processes": processes, **options(shard=is_frozen, quantize="none")}
            words = f"{processes} GPUs (--gpus {processes})" + (" with Model Memory shard on" if is_frozen else "")
            yield words, {}, several


@lru_cache(maxsize=8)
def _rehearsal(*case) -> Rehearsal:
    return Rehearsal(*case)
