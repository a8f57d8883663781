"""Names of a family's layers in published checkpoints, and of the family in the field.

In names.json, first the families by how their classes begin, in diffusers and in ComfyUI: what stands in an adapter's header as
modelspec.architecture and ss_base_model_version, and the table of their layers. There on the left a layer's name as published,
`#` for a number; on the right diffusers' name, or the names of those whose rows follow one another in it.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..policy.layouts import Network, Rows, Shapes

_TABLES = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


FIELDS = ("architecture", "version")


def network(family: str, shapes: Shapes) -> Network:
    """A network of diffusers, with what published checkpoints call its layers. `family`: its pipeline's class."""
    return Network(shapes, _places(published(family), shapes), field(family, shapes))


def field(family: str, shapes: Shapes) -> tuple[str, str]:
    """modelspec.architecture and ss_base_model_version of a family, by its pipeline's class or that of ComfyUI's model; where
    models of one class have names of their own, by what most layers read."""
    families, widths = _family(family), Counter(shape[1] for shape in shapes.values() if len(shape) > 1)
    width = str(widths.most_common(1)[0][0]) if widths else ""
    architecture, version = families.get("widths", {}).get(width) or (families.get(key, family) for key in FIELDS)
    return architecture, version


def published(family: str) -> Mapping[str, str]:
    """{a layer's name in published checkpoints: in diffusers}."""
    return _TABLES["layers"].get(_family(family).get("layers"), {})


def others(shapes: Shapes) -> dict[str, list[Rows]]:
    """The names that the other layout, published or diffusers', has for layers; q, k and v are as wide as what they read."""
    places: dict[str, list[Rows]] = {}
    for table in _TABLES["layers"].values():
        places |= _places(table, shapes)
        for name, layers in _named(table, shapes):
            height, width = shapes.get(name, (0, 0))[:2]
            ends = [*(width * number for number in range(1, len(layers))), height]
            for layer, start, end in zip(layers, [0, *ends], ends, strict=False):
                places |= {layer: [Rows(name, 0, end - start, start)]} if name in shapes else {}
    return places


def _family(name: str) -> Mapping[str, Any]:
    families = _TABLES["families"].items()
    return next((family for start, family in families if name.lower().startswith(start.lower())), {})


def _places(table: Mapping[str, str], shapes: Shapes) -> dict[str, list[Rows]]:
    places = {}
    for name, layers in _named(table, shapes):
        if all(layer in shapes for layer in layers):
            firsts = itertools.accumulate([0, *(shapes[layer][0] for layer in layers)])
            places[name] = [Rows(layer, first, shapes[layer][0]) for layer, first in zip(layers, firsts, strict=False)]
    return places


def _named(table: Mapping[str, str], shapes: Shapes) -> Iterator[tuple[str, list[str]]]:
    """(a layer's published name, its names in diffusers) for each block's number that some layer has."""
    numbers = sorted({part for name in shapes for part in name.split(".") if part.isdecimal()}, key=int)
    for original, layer in table.items():
        stem, _, parts = layer.rstrip(")").partition("(")
        for number in numbers if "#" in original else [""]:
            layers = [f"{stem}{part}".replace("#", number) for part in parts.split() or [""]]
            yield original.replace("#", number), layers
