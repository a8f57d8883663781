"""What published checkpoints of a family call the layers of its network, and what the field calls the family.

In names.json, first the families by how their classes begin, in diffusers and in ComfyUI: what stands in an adapter's header as
modelspec.architecture and ss_base_model_version, and the table of their layers. There on the left a layer's name as published,
`#` for a number; on the right diffusers' name, or the names of those whose rows follow one another in it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..policy.layouts import Network, Rows, Shapes

_TABLES = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


def network(family: str, shapes: Shapes) -> Network:
    """A network of diffusers, with what published checkpoints call its layers. `family`: its pipeline's class."""
    return Network(shapes, dict(_places(published(family), shapes)), field(family))


def field(family: str) -> tuple[str, str]:
    """modelspec.architecture and ss_base_model_version of a family, by its pipeline's class or that of ComfyUI's model."""
    known = _family(family)
    return known.get("architecture", family), known.get("version", family)


def published(family: str) -> Mapping[str, str]:
    """{a layer's name in published checkpoints: in diffusers}."""
    return _TABLES["layers"].get(_family(family).get("layers"), {})


def of_wan(shapes: Shapes) -> dict[str, list[Rows]]:
    """Diffusers' names of Wan's layers, in a network that has Wan's own: ComfyUI's loader does not know them."""
    return dict(_places({ours: theirs for theirs, ours in published("Wan").items()}, shapes))


def _family(name: str) -> Mapping[str, str]:
    known = _TABLES["families"].items()
    return next((family for start, family in known if name.lower().startswith(start.lower())), {})


def _places(table: Mapping[str, str], shapes: Shapes) -> Iterator[tuple[str, list[Rows]]]:
    numbers = sorted({part for name in shapes for part in name.split(".") if part.isdecimal()}, key=int)
    for theirs, ours in table.items():
        stem, _, parts = ours.rstrip(")").partition("(")
        for number in numbers if "#" in theirs else [""]:
            layers = [f"{stem}{part}".replace("#", number) for part in parts.split() or [""]]
            if all(layer in shapes for layer in layers):
                firsts = itertools.accumulate([0, *(shapes[layer][0] for layer in layers)])
                rows = [Rows(layer, first, shapes[layer][0]) for layer, first in zip(layers, firsts, strict=False)]
                yield theirs.replace("#", number), rows
