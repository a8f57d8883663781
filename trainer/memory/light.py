"""The light on Make Trainable: whether the training that a graph asks for fits on this machine, before anything is loaded.

The same count as `otca memory`: by the headers of the files that the loaders name, and the settings of the other nodes. What
makes it fit is said as values of inputs, so that a click can set them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...host.errors import parts
from ..types import DATASET_NODE, MAKE_NODE, RUN_NODE, STEP_NODES, TRAJECTORY_NODES
from ..workflow import graph as api
from . import needs, own
from .case import GB, REWARDS, TIGHT, Machine, Way
from .native import NativeCase

FITS, TIGHTLY, TOO_MUCH, MISSING, UNKNOWN = "fits", "tight", "does not fit", "missing", "unknown"
# The nodes whose values are read here.
COUNTED = {MAKE_NODE, DATASET_NODE, RUN_NODE, *TRAJECTORY_NODES, *STEP_NODES, *REWARDS}


@dataclass(frozen=True)
class Setting:
    """A value that an input gets by a click."""

    node: str
    input: str
    value: Any


@dataclass(frozen=True)
class Light:
    """The light that a Make Trainable shows. All figures are GB.

    Attributes:
        state: FITS, TIGHTLY, TOO_MUCH; MISSING: files are not here, and `needs` is that of the published ones on a GPU, 0 if
            they are not known by name; UNKNOWN: why stands in `text`.
        text: beside a count, what the size of the pictures risks.
        needs, phase: the most that the device is asked for, and when.
        has, device: what there is of it; without a GPU main memory.
        ram, ram_has: the files, and what there is of main memory.
        missing: names of files.
        streamed: the part of the weights that stays in main memory, and travels at each call.
        fix: in words, the changes that make it fit, as few as possible, without weights that travel if one change is enough for
            that; none: it fits so, or nothing makes it fit.
        after: what it needs then.
        settings: the same as values.
    """

    state: str
    needs: float = 0
    phase: str = ""
    has: float = 0
    device: str = ""
    ram: float = 0
    ram_has: float = 0
    missing: tuple[str, ...] = ()
    text: str = ""
    streamed: float = 0
    fix: tuple[str, ...] = ()
    after: float = 0
    settings: tuple[Setting, ...] = ()


def unknown(graph: Mapping[str, Mapping], why: str) -> dict[str, Light]:
    """The same of a graph that cannot be counted."""
    return {node: Light(UNKNOWN, text=why) for node, entry in graph.items() if entry["class_type"] == MAKE_NODE}


def lights(graph: Mapping[str, Mapping], machine: Machine) -> dict[str, Light]:
    """{Make Trainable: its light}, without those whose model comes from no file, as the embedded one."""
    states = {}
    for node, entry in graph.items():
        if entry["class_type"] != MAKE_NODE:
            continue
        files = needs.Files.of(graph, entry["inputs"])
        missing = tuple(dict.fromkeys(file.name for file in files.all if file.path is None))
        if missing:
            states[node] = replace(_published(graph, machine), missing=missing)
        elif files.networks:
            states[node] = _light(graph, machine)
    return states


def _published(graph: Mapping[str, Mapping], machine: Machine) -> Light:
    light = Light(MISSING, device=machine.device, has=machine.has / GB)
    try:
        return replace(light, needs=needs.read(graph)[0].needs.total / GB)
    except ValueError:  # such as a name that is not that of a published model
        return light


def _light(graph: Mapping[str, Mapping], machine: Machine) -> Light:
    try:
        case, _ = needs.read(graph, machine=machine)
    except ValueError as error:
        return Light(UNKNOWN, text=parts(error)[0])
    assert isinstance(case, NativeCase), "the graph has a Make Trainable"
    made = own.of(graph, next(node for node, entry in graph.items() if entry["class_type"] in TRAJECTORY_NODES))
    light = Light(
        FITS,
        needs=case.needs.total / GB,
        phase=case.needs.phase,
        text=own.far(made, *case.iteration.size[:2]) if made else "",
        streamed=case.streamed / GB,
        has=machine.has / GB,
        device=machine.device,
        ram=case.ram / GB,
        ram_has=machine.ram / GB,
    )
    state = TOO_MUCH
    if case.needs.total <= machine.has:
        # What can leave for a phase does so without harm; what computes has to have room, with some to spare.
        less = replace(case, machine=replace(machine, has=TIGHT * machine.has))
        is_tight = less.needs.total > less.machine.has or less.streamed or light.ram > light.ram_has
        state = TIGHTLY if is_tight else FITS

    def accepts(way: Way) -> bool:
        return bool(_settings(graph, way)) and (state == TOO_MUCH or bool(case.streamed) and case.stays_with(way))

    ways, changed = case.fix(machine.has, accepts)
    return replace(
        light,
        state=state,
        fix=tuple(way.words for way in ways),
        after=changed.needs.total / GB,
        settings=tuple(setting for way in ways for setting in _settings(graph, way)),
    )


def owns(graph: Mapping[str, Mapping]) -> dict[str, dict[str, Any]]:
    """{node that samples, or gives it prompts: {input: what the model is made for}}, as far as that is known."""
    own_of: dict[str, dict[str, Any]] = {}
    for sampler, entry in graph.items():
        if entry["class_type"] not in TRAJECTORY_NODES or (made := own.of(graph, sampler)) is None:
            continue
        link = entry["inputs"].get("prompts")
        for node in [sampler, link[0]] if api.is_link(link) and link[0] in graph else [sampler]:
            if values := made.values(graph[node]["class_type"]):
                own_of[node] = values
    return own_of


def _settings(graph: Mapping[str, Mapping], way: Way) -> tuple[Setting, ...]:
    """The inputs that make a change; none where one of them is linked, or not there."""
    settings = []
    for kinds, name, value in way.sets:
        nodes = {node: entry["inputs"] for node, entry in graph.items() if entry["class_type"] in kinds}
        having = [node for node, inputs in nodes.items() if name in inputs]
        if not having or any(api.is_link(nodes[node][name]) for node in having):
            return ()
        settings += [Setting(node, name, value) for node in having]
    return tuple(settings)
