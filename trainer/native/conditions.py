"""Prompts as ComfyUI's CLIP encodes them, and as its samplers hand them to a network."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...host.recent import Recent
from ..families.condition import MOST_BYTES
from .foreign import ordinary
from .sources import REFERENCES, Asked

if TYPE_CHECKING:
    from comfy.sd import CLIP

    from .expert import Expert

Conditioning = list[list[Any]]  # ComfyUI's: [[embedding, {name: value}], …]
Processed = dict[str, list[dict[str, Any]]]  # {"positive": …, "negative": …} as a network takes them


@dataclass(frozen=True)
class Prompt:
    """A prompt for each of the networks: what ComfyUI's sampler would hand to it."""

    processed: Mapping[str, Processed]

    def kind(self, network: str) -> tuple | None:
        """Equal for prompts that one call of that network can serve together; None: such a call serves this one alone."""
        kinds = []
        for part, conds in sorted(self.processed[network].items()):
            for cond in conds:
                tensors = [getattr(part, "cond", None) for part in cond["model_conds"].values()]
                # One row of a batch each, which can stand below those of other prompts.
                rows = [isinstance(part, Tensor) and part.ndim > 0 and len(part) == 1 for part in tensors]
                if len(conds) > 1 or cond.keys() & _ALONE or not all(rows):
                    return None
                shapes = [(name, type(c), c.cond.shape, c.cond.dtype) for name, c in cond["model_conds"].items()]
                kinds.append((part, tuple(sorted(shapes, key=str))))
        return tuple(kinds)

    @property
    def is_scheduled(self) -> bool:
        """Whether it holds at some noise levels only, so that one call can serve only one of them."""
        conds = (cond for entries in self.processed.values() for part in entries.values() for cond in part)
        return any(cond.get("timestep_start") is not None or cond.get("timestep_end") is not None for cond in conds)


@dataclass(frozen=True)
class NativeCondition:
    """P prompts, and the number of each row's prompt; ComfyUI's options for the calls. Prompts may be of different length."""

    prompts: tuple[Prompt, ...]
    index: tuple[int, ...]
    options: Mapping[str, dict]  # of each network

    def rows(self, index: Tensor) -> NativeCondition:
        return replace(self, index=tuple(self.index[row] for row in index.tolist()))


# Entries of a cond that holds for a part of the picture or of the sampling.
PARTIAL = {"area", "mask", "strength", "timestep_start", "timestep_end", "start_percent", "end_percent"}
# Other networks or weights, a prompt for where no other is, or a mask over tokens that a node has put behind the text.
BROUGHT = {"control", "gligen", "hooks", "default", "attention_mask"}
# A cond with one of these is no row that can stand below another prompt's.
_ALONE = PARTIAL | BROUGHT


def together(prompts: Sequence[Prompt], network: str) -> Processed:
    """Prompts of one `kind` as one, with a row for each."""
    first = prompts[0].processed[network]
    if all(prompt is prompts[0] for prompt in prompts):
        return first
    joined: Processed = {}
    for part, [cond] in first.items():
        rows = {
            name: type(kind)(
                torch.cat([prompt.processed[network][part][0]["model_conds"][name].cond for prompt in prompts])
            )
            for name, kind in cond["model_conds"].items()
        }
        joined[part] = [{**cond, "model_conds": rows}]
    return joined


class Encodings:
    """Encodings by a CLIP of texts and of their pictures, in main memory; the longest unused are forgotten first."""

    def __init__(self, clip: CLIP, with_pictures: Callable[[Asked], Conditioning] | None = None):
        """`with_pictures` encodes a text that is about pictures."""
        self._clip, self._with_pictures = clip, with_pictures
        self._known: Recent[Asked, Conditioning] = Recent(MOST_BYTES, _bytes)

    def of(self, asked: Sequence[Asked]) -> list[Conditioning]:
        with torch.no_grad():
            for text in dict.fromkeys(asked):
                self._known.use(text, lambda text=text: self._encoded(text), len(asked))
        return [self._known[text] for text in asked]

    def _encoded(self, asked: Asked) -> Conditioning:
        if asked.pictures and self._with_pictures is not None:
            return ordinary_copy(self._with_pictures(asked))
        return ordinary_copy(self._clip.encode_from_tokens_scheduled(self._clip.tokenize(asked.text)))


def with_keys(conditioning: Conditioning, keys: Mapping[str, Any]) -> Conditioning:
    """The same embeddings with these entries besides; reference latents of both, a prompt's own first."""
    joined = []
    for embedding, entries in conditioning:
        references = [*entries.get(REFERENCES, []), *keys.get(REFERENCES, [])]
        joined.append([embedding, {**entries, **keys, **({REFERENCES: references} if references else {})}])
    return joined


def extra_keys(conditioning: Conditioning, encoded: Conditioning) -> dict[str, Any]:
    """The extras in a CONDITIONING: entries that are not the text encoder's own, such as reference latents."""
    entries = conditioning[0][1] if conditioning else {}
    own = {name for _, keys in encoded for name in keys}
    return {name: ordinary_copy(value) for name, value in entries.items() if name not in own}


def processed(expert: Expert, conds: Mapping[str, Conditioning], x: Tensor, seed: int | None = None) -> Processed:
    """Conditionings as ComfyUI's sampler prepares them for a network, for latents of the shape of x [1, C, (F,) h, w]."""
    import comfy.sampler_helpers
    import comfy.samplers

    converted = {name: comfy.sampler_helpers.convert_cond(value) for name, value in conds.items()}
    nothing, parameters = torch.zeros_like(x), inspect.signature(comfy.samplers.process_conds).parameters
    shapes = {"latent_shapes": [tuple(x.shape)]} if "latent_shapes" in parameters else {}
    # Some models run a part of the network here, once for all noise levels: an adapter there is not trained.
    with torch.no_grad():
        made = comfy.samplers.process_conds(expert.core, nothing, converted, x.device, nothing, None, seed, **shapes)
    return {name: list(value) for name, value in made.items()}


def ordinary_copy(value: Any) -> Any:
    """The same value with its tensors in main memory and out of inference mode: autograd keeps nothing of inference tensors."""
    if isinstance(value, Tensor):
        return ordinary(value.detach()).cpu().clone() if type(value) is Tensor else value
    if isinstance(value, dict):
        return {name: ordinary_copy(part) for name, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(ordinary_copy(part) for part in value)
    return value


def _bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return sum(map(_bytes, parts))
