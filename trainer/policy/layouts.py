"""Adapters' files in the layouts that people have: whose A and B each tensor is, what scales them, and what is not a LoRA.

All by the files' headers, so that a file is refused for the same reason before a training and in it. docs/models.md has the table
of layouts, and what other loaders make of them. Imports no torch.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, FiniteFloat, ValidationError

from .files import PEFT, PEFT_SETTINGS, opened, read_metadata, shapes

Shapes = Mapping[str, tuple[int, ...]]

# The end of a tensor's name: peft's, with or without its adapter's name, kohya's, and those of older diffusers.
_END = re.compile(
    r"(?P<layer>.+?)[._](lora_|lora\.|lora_linear_layer\.)(?P<side>A|B|down|up)(\.(?!weight)\w+)?(\.weight)?"
)
# What stands before a layer's name: the network's place in a pipeline, in ComfyUI or in peft's model; flattened ones have one.
_START = re.compile(
    r"((base_model\.model|model|diffusion_model|transformer|unet|pipe|dit)\.)*(?:(lora_unet|lora_transformer|lycoris)_+)?"
)
_TEXT = re.compile(r"(base_model\.model\.)?(text_encoder|lora_te|lora_prior_te|te\d?_|clip_|t5)")
_OTHERS = (  # what else is trained beside a network's weights, by its tensors
    (re.compile(r"\.lokr_"), "a LoKr"),
    (re.compile(r"\.hada_"), "a LoHa"),
    (re.compile(r"\.dora_scale|lora_magnitude_vector"), "a DoRA"),
    (re.compile(r"\.(oft|boft)_"), "an OFT"),
    (re.compile(r"\.lora_mid\."), "a LoCon with a third matrix"),
    (re.compile(r"\.(diff|diff_b|set_weight|reshape_weight|lora_B\.(\w+\.)?bias)$"), "more, with biases or norms"),
)
_INSTEAD = "put it on by Load LoRA in front of Make Trainable, which then trains on top of it"


@dataclass(frozen=True)
class Rows:
    """`count` rows of a layer in a file, from `start` on, which are those of our `layer` from `first` on."""

    layer: str
    start: int
    count: int
    first: int = 0


@dataclass(frozen=True)
class Network:
    """The layers of a network that adapters are put on, [out, in, …] by name, and the other names that files have for them."""

    shapes: Shapes
    names: Mapping[str, Sequence[Rows]]
    family: tuple[str, str] = ("", "")  # modelspec.architecture and ss_base_model_version of an adapter's header

    @functools.cached_property
    def _known(self) -> dict[str, Sequence[Rows]]:
        own = {layer: [Rows(layer, 0, shape[0])] for layer, shape in self.shapes.items()}
        dotted = {**self.names, **own}
        return {name.replace(".", "_"): rows for name, rows in dotted.items()} | dotted

    def rows(self, name: str) -> Sequence[Rows]:
        """Where a layer of a file is in the network; empty where it is nowhere."""
        return self._known.get(plain(name), ())


def plain(name: str) -> str:
    """A layer's name without what stands before it."""
    start = _START.match(name)
    return name[start.end() if start else 0 :].replace(".processor.", ".")


@dataclass(frozen=True)
class Part:
    """A pair A [rank, in] and B [out, rank] in a file: the names of its tensors, and the rows of B that are for one layer.

    ΔW = scale·B·A.
    """

    rows: Rows
    rank: int
    a: str
    b: str
    scale: float


def _plain_pattern(pattern: str) -> str:
    """Returns a pattern that is matched in no time: a stranger may have written it."""
    if len(re.findall(r"[*+{?]", re.compile(pattern).pattern)) > 2 or re.search(r"\)[*+{]", pattern):
        raise ValueError(f"{pattern[:40]!r} does not name layers")
    return pattern


class _Configuration(BaseModel):
    """The scale of an adapter in peft's configuration. Without an alpha it is 1."""

    lora_alpha: FiniteFloat | None = None
    alpha_pattern: dict[Annotated[str, AfterValidator(_plain_pattern)], FiniteFloat] = {}
    use_rslora: bool = False
    use_dora: bool = False

    def scale(self, name: str, rank: int) -> float:
        """alpha/rank, alpha/√rank for rsLoRA (Kalajdzievski, 2312.03732)."""
        if self.lora_alpha is None:
            return 1.0
        # As peft's get_pattern_key.
        fitting = (alpha for end, alpha in self.alpha_pattern.items() if re.match(rf"(.*\.)?({end})$", plain(name)))
        return next(fitting, self.lora_alpha) / (math.sqrt(rank) if self.use_rslora else rank)


def parts(path: Path, network: Network | None) -> dict[str, list[Part]]:
    """{layer: what the file has for it}, several parts where it has slices of it. None: a network that is not known yet.

    Raises:
        FileNotFoundError: no such file.
        ValueError: it is not a LoRA, holds layers that the network has not, or a configuration that cannot be read.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"{path}: no such adapter. Fix: give a run's folder or a LoRA's .safetensors file, where there are two without "
            "_high_noise and _low_noise"
        )
    tensors, config = shapes(path), _configuration(path)
    with opened(path) as content:
        alphas = {
            key.removesuffix(".alpha"): content.get_tensor(key) for key in content.keys() if key.endswith(".alpha")
        }
    for layer, alpha in alphas.items():
        if alpha.numel() != 1 or not math.isfinite(alpha.item()):
            raise ValueError(f"{path} is damaged: {layer}.alpha is not a number. Fix: copy or download that file again")
    pairs: dict[str, dict[str, str]] = {}
    for key in tensors:
        if other := next((what for pattern, what in _OTHERS if pattern.search(key)), None):
            raise ValueError(f"{path} is {other} ({key}), and adapters are LoRAs here. Fix: {_INSTEAD}")
        if _TEXT.match(key):
            raise ValueError(f"{path} changes a text encoder too ({key}), which is not trained here. Fix: {_INSTEAD}")
        if match := _END.fullmatch(key):
            side = "A" if match["side"] in ("A", "down") else "B"
            if (other := pairs.setdefault(match["layer"], {}).setdefault(side, key)) != key:
                raise ValueError(f"{path} has two adapters: {other} and {key}. Fix: give a file of one")
        elif not key.endswith(".alpha"):
            raise ValueError(f"{path} is not a LoRA: it has {key}. Fix: give a LoRA's .safetensors file")
    if config.use_dora:
        raise ValueError(f"{path} is a DoRA, by its configuration, and adapters are LoRAs here. Fix: {_INSTEAD}")
    layers: dict[str, list[Part]] = {}
    for name, keys in pairs.items():
        a, b = (tensors.get(keys.get(side, ""), ()) for side in "AB")
        if len(a) < 2 or len(a) != len(b) or not 0 < a[0] == b[1]:
            raise ValueError(f"{path} is not whole: {name} has A {list(a)} and B {list(b)}. Fix: copy that file again")
        scale = float(alphas[name]) / a[0] if name in alphas else config.scale(name, a[0])
        where = [Rows(name, 0, b[0])] if network is None else network.rows(name)
        fits = where and max(rows.start + rows.count for rows in where) == b[0]
        if not fits or network and any(network.shapes[rows.layer][1:] != a[1:] for rows in where):
            here = [f"{rows.layer} {list(network.shapes[rows.layer])}" for rows in where if network]
            raise ValueError(
                f"{path} is not an adapter of this model: {name} is {[b[0], *a[1:]]} in the file, and here is "
                f"{', '.join(here) or 'no such layer'}. "
                f"Fix: use the base model that it was trained with, or {_INSTEAD}"
            )
        for rows in where:
            layers.setdefault(rows.layer, []).append(Part(rows, a[0], keys["A"], keys["B"], scale))
    if not layers:
        raise ValueError(f"{path} is not a LoRA: it has no layers. Fix: give a LoRA's .safetensors file")
    return layers


def check(files: Iterable[tuple[Path, Network | None, Collection[str] | None]], rank: int) -> None:
    """Raises ValueError, as `parts` and `check_fits`, for the first (file, network, trained layers) that does not go on."""
    for file, network, trained in files:
        check_fits(file, parts(file, network), rank, trained)


def check_fits(path: Path, layers: Mapping[str, Sequence[Part]], rank: int, trained: Collection[str] | None) -> None:
    """Raises ValueError where such layers of a file cannot go on as an adapter of that rank on the trained layers.

    Less of either goes on: the rest begins as an adapter of that rank does, with B = 0.
    """
    most = max(sum(part.rank for part in of_one) for of_one in layers.values())
    if most > rank:
        raise ValueError(f"{path} needs rank {most} here, and lora_rank is {rank}. Fix: lora_rank = {most}")
    if more := sorted(set(layers).difference(layers if trained is None else trained)):
        fix = "lora_targets empty, or with the end of that name"
        raise ValueError(f"{path} changes {more[0]}, which gets no adapter. Fix: {fix}")


def _configuration(path: Path) -> _Configuration:
    """The configuration that diffusers writes into the header, or peft beside the file. Raises ValueError for anything else."""
    text = read_metadata(path).get("lora_adapter_metadata")
    try:
        if text is None and path.name == PEFT:
            return _Configuration.model_validate_json(path.with_name(PEFT_SETTINGS).read_text("utf-8"))
        values = {name.removeprefix("transformer."): value for name, value in json.loads(text or "{}").items()}
        return _Configuration.model_validate(values)
    except (OSError, ValueError, AttributeError, RecursionError, re.error) as error:
        reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
        raise ValueError(
            f"{path}: its configuration cannot be read ({reason}). Fix: copy it again, with the {PEFT_SETTINGS} beside it"
        ) from error
