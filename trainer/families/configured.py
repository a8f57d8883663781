"""A model folder by its configuration files and the headers of its weights: what can be known before anything is loaded."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..policy import layouts
from ..policy.files import NETWORKS, files_of
from ..types import SamplerSettings
from ..workflow.problem import Misfit
from . import names
from .folder import check_model_folder, read_object, tensors
from .options import FlowModelError
from .sizes import RULES, Checkpoint, LatentGrid

LOOKED, BATCH = 20_000, 1000  # prompts whose tokens are counted, and how many at once


@dataclass(frozen=True)
class Configuration:
    """The configuration of a folder."""

    folder: Path
    checkpoint: Checkpoint

    @property
    def grid(self) -> LatentGrid:
        return self.checkpoint.grid

    def too_long(self, texts: Sequence[str], most: int) -> tuple[int, int, int] | None:
        """The longest prompt's number, its tokens and how many the text encoder takes; None where it takes them all.

        What a template adds to the prompt is not counted. Only the LOOKED prompts with the most bytes are looked at.

        `most`: tokens that it shall take; 0: its own limit.
        """
        rules = RULES[self.checkpoint.family]
        folder = self.folder / rules.tokenizer
        if not (folder / "tokenizer.json").is_file():
            return None  # in an older form, or left out
        from tokenizers import Tokenizer

        own = read_object(folder / "tokenizer_config.json").get("model_max_length")
        own = int(min(own, rules.most_tokens)) if isinstance(own, int | float) and own > 0 else rules.most_tokens
        limit = most or own
        try:
            tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception:  # the library has no narrower one
            return None  # damaged, as loading it will say
        tokenizer.no_truncation()
        tokenizer.no_padding()
        numbers = heapq.nlargest(LOOKED, range(len(texts)), key=[len(text.encode()) for text in texts].__getitem__)
        longest, most_tokens = 0, 0
        for first in range(0, len(numbers), BATCH):
            batch = numbers[first : first + BATCH]
            for number, encoded in zip(batch, tokenizer.encode_batch([texts[i] for i in batch]), strict=True):
                if len(encoded.ids) > most_tokens:
                    longest, most_tokens = number, len(encoded.ids)
        return (longest, most_tokens, limit) if most_tokens > limit else None

    def lora_targets(self, text: str) -> Iterator[Misfit]:
        """Names as peft reads them: ends of module names. At least one must exist, and all must be layers with a matrix."""
        wanted = [name.strip() for name in text.split(",") if name.strip()]
        ends = tuple(f".{name}" for name in wanted)
        for expert in NETWORKS if wanted else ():
            if not (self.folder / expert).is_dir():
                continue
            layers, others = modules(self.folder / expert)
            fitting = [name for name in layers if name in wanted or name.endswith(ends)]
            wrong = sorted(name for name in others if name in wanted or name.endswith(ends))
            if wrong or not fitting:
                what = f"name {wrong[0]}, which is not a layer" if wrong else "fit no layer"
                message = f"lora_targets {what} of {expert} that an adapter can be put on"
                fix = f"leave it empty, or use ends of names such as {', '.join(sorted(layers)[:3])}"
                yield Misfit("lora_targets", message, fix)


def read_configuration(folder: Path) -> Configuration:
    """Reads the configuration of a folder. Raises FlowModelError if it cannot be used."""
    family = check_model_folder(folder)
    names = ("model_index.json", "scheduler/scheduler_config.json", "vae/config.json", "transformer/config.json")
    checkpoint = Checkpoint(family, *(read_object(folder / name) for name in names))
    try:
        side = checkpoint.grid.unit
        checkpoint.grid.shape(side, side)
        checkpoint.shift(SamplerSettings("ode", 0.0, 1, side, side))
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        reason = f"{type(error).__name__}: {error}".partition(". Fix: ")[0]  # of one size, and here none fits
        raise FlowModelError(
            f"{folder}: its configuration files say nothing that a {family} could be ({reason}). Fix: copy it again"
        ) from error
    return Configuration(folder, checkpoint)


def check_start(folder: Path, adapter: Path, rank: int, targets: str | None) -> None:
    """Looks whether an adapter of that rank and those targets, on the networks of a folder, can begin with an adapter's files.

    Without targets they are known later.

    Raises:
        FileNotFoundError, ValueError: as `lora.load` would, from the headers alone.
    """
    from ..policy.adapters import Adapter  # imports torch, as the next one
    from . import family_class

    family = check_model_folder(folder)
    kind = family_class(family)
    ends = Adapter(rank, rank, targets or "").ends(kind.LORA_TARGETS)
    networks = [name for name in kind.EXPERTS if (folder / name).is_dir()]
    held = []
    for name, file in files_of(networks, adapter).items():
        shapes = modules(folder / name)[0]
        trained = [layer for layer in shapes if targets is None or any(f".{layer}".endswith(f".{end}") for end in ends)]
        held.append((file, names.network(family, shapes), trained))
    layouts.check(held, rank)


def modules(folder: Path) -> tuple[dict[str, tuple[int, ...]], set[str]]:
    """A network's modules by the headers of its weight files: those with a matrix and its shape, and names of all others."""
    layers, others = {}, set()
    for key, shape in tensors(folder).items():
        module, _, kind = key.rpartition(".")
        if kind == "weight" and len(shape) > 1:
            layers[module] = shape
        parts = module.split(".")
        others |= {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    return layers, others - layers.keys()
