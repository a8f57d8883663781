"""A graph whose nodes were read by their classes: what each input takes (INPUT_TYPES), and what the graph gives for it.

A constant is converted more strictly than ComfyUI does it, where its conversion would hide a mistake (2.7 to 2, "false" to True).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from typing import Any

from ..types import PREFIX
from . import graph
from .graph import is_link, wrapped
from .problem import Problem, WorkflowError, did_you_mean, refusal, suggest

CHOSEN = ("COMBO", "COMFY_DYNAMICCOMBO_V3")  # the second brings the inputs that belong to a choice
BOOLEANS = {**dict.fromkeys(("true", "yes", "on", "1"), True), **dict.fromkeys(("false", "no", "off", "0"), False)}


# --- one node ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Declaration:
    """One input of INPUT_TYPES. `type`: a name, a union "A,B", "*", or the list of a combo's values."""

    type: Any
    options: Mapping[str, Any]
    required: bool

    @property
    def choices(self) -> list | None:
        if isinstance(self.type, list | tuple):
            return list(self.type)
        if self.type not in CHOSEN:
            return None
        return [row["key"] if isinstance(row, Mapping) else row for row in self.options.get("options", [])]

    def offers(self, value: Any) -> bool:
        return self.choices is None or value in self.choices

    @property
    def type_name(self) -> str:
        return type_name(self.type)

    @property
    def wanted(self) -> str:
        """The values that this input takes, in words."""
        if self.choices is not None:
            return suggest("", self.choices)
        if self.type not in CONVERSIONS:
            return f"connect a {self.type_name}"
        limits = [
            f" {word} {self.options[key]}" for key, word in (("min", "from"), ("max", "to")) if key in self.options
        ]
        default = f" (default {self.options['default']})" if self.options.get("default") not in (None, "") else ""
        return f"give {WORDS[self.type]}{''.join(limits)}{default}"


@dataclass(frozen=True)
class Node:
    """A node of a known class. Each input that the graph gives is a constant, a link, unreadable (with why) or not declared."""

    id: str
    entry: Mapping
    cls: type
    declared: dict[str, Declaration]
    hidden: Mapping[str, str]
    validates: list[str]  # parameters of VALIDATE_INPUTS …
    validates_all: bool  # … and whether it takes **kwargs
    constants: dict[str, Any]
    links: dict[str, tuple[str, int]]
    unreadable: dict[str, str]

    @property
    def class_type(self) -> str:
        return self.entry["class_type"]

    @property
    def inputs(self) -> dict[str, Any]:
        return self.entry["inputs"]

    @property
    def defaults(self) -> dict[str, Any]:
        """Values of the inputs that a graph does not give."""
        return {
            name: declared.options["default"]
            for name, declared in self.declared.items()
            if "default" in declared.options
        }

    def judges(self, input_name: str) -> bool:
        """Whether VALIDATE_INPUTS takes this input. ComfyUI then leaves its range and choices to it."""
        return self.validates_all or input_name in self.validates


def read_node(node_id: str, entry: Mapping, cls: type) -> Node:
    """A node's entry in API form, read by what its class says in INPUT_TYPES and VALIDATE_INPUTS."""
    inputs = entry["inputs"]
    types = cls.INPUT_TYPES_OF(inputs) if hasattr(cls, "INPUT_TYPES_OF") else cls.INPUT_TYPES()
    declared: dict[str, Declaration] = {}
    for section in ("required", "optional"):
        table = types.get(section, {})
        for name in dict.fromkeys([*table, *inputs]):  # a table may answer for names that it does not list
            if name in table and name not in declared:
                type_, options = (*table[name], {})[:2]
                declared[name] = Declaration(type_, options, section == "required")
    constants, links, unreadable = {}, {}, {}
    for name in [name for name in inputs if name in declared]:
        if is_link(inputs[name]):
            links[name] = tuple(inputs[name])
            continue
        try:
            constants[name] = convert(_unwrapped(inputs[name]), declared[name])
        except ValueError as error:
            unreadable[name] = str(error)
    validates, validates_all = _judged(getattr(cls, "VALIDATE_INPUTS", None))
    return Node(
        node_id, entry, cls, declared, types.get("hidden", {}), validates, validates_all, constants, links, unreadable
    )


@functools.lru_cache(maxsize=256)
def _judged(function: Callable | None) -> tuple[list[str], bool]:
    """Parameters of a VALIDATE_INPUTS, and whether it takes any others too."""
    specification = inspect.getfullargspec(function or (lambda: True))
    return specification.args, specification.varkw is not None


def _unwrapped(value: Any) -> Any:
    if isinstance(value, list):
        raise ValueError('neither a link nor a value, since lists are exported as {"__value__": [...]}')
    value = value["__value__"] if isinstance(value, dict) and "__value__" in value else value
    if value is None:  # which is what ComfyUI hands to VALIDATE_INPUTS for a link
        raise ValueError("null is not a value")
    return value


# --- all nodes --------------------------------------------------------------------------------------------------------


WORDS = {"INT": "a whole number", "FLOAT": "a number", "STRING": "a text", "BOOLEAN": "true or false"}


@dataclass(frozen=True)
class DeclaredGraph:
    """A graph in API form with its node classes.

    Attributes:
        entries: {id: node in API form}, those of unknown classes too.
        node_classes, display_names: by class name.
        nodes: {id: node} of known classes.
        addresses: {name of a model file: where it can be had}, for messages.
    """

    entries: Mapping[str, dict]
    node_classes: Mapping[str, type]
    display_names: Mapping[str, str]
    nodes: Mapping[str, Node]
    addresses: Mapping[str, str]

    @classmethod
    def read(cls, entries, node_classes, display_names, addresses) -> DeclaredGraph:
        """Asks every class for its inputs, whose choices may be files and so may change."""
        nodes = {
            node_id: read_node(node_id, entry, node_classes[entry["class_type"]])
            for node_id, entry in entries.items()
            if entry["class_type"] in node_classes
        }
        return cls(entries, node_classes, display_names, nodes, addresses)

    def overridden(self, overrides: Mapping[tuple[str, str], Any]) -> DeclaredGraph:
        """The graph with other constants: {(node id, input): value}. Raises WorkflowError for what there is not."""
        nodes = dict(self.nodes)
        for (node_id, name), value in overrides.items():
            if node_id not in nodes:
                raise refusal(f"override of unknown node {node_id!r}", suggest(node_id, nodes))
            node = nodes[node_id]
            self.declaration(node, name, value)
            entry = {**node.entry, "inputs": {**node.inputs, name: wrapped(value)}}
            nodes[node_id] = read_node(node_id, entry, node.cls)
        return replace(self, nodes=nodes)

    def title(self, node_id: str) -> str:
        return graph.title(self.entries[node_id], self.display_names)

    def find(self, class_type: str) -> list[str]:
        """Ids of the nodes of that class, given with or without the OTCA_ prefix."""
        return [
            node_id
            for node_id, entry in self.entries.items()
            if entry["class_type"] in (class_type, PREFIX + class_type)
        ]

    def output_nodes(self) -> tuple[str, ...]:
        """Ids of the OUTPUT_NODEs: what `run` runs, with all that it needs."""
        return tuple(node.id for node in self.nodes.values() if getattr(node.cls, "OUTPUT_NODE", False) is True)

    def resolve(self, name: str) -> Node:
        """The node that `name` means: ids win over titles, titles over classes. Raises WorkflowError."""
        titled = [node_id for node_id in self.entries if self.title(node_id) == name]
        matches = [name] if name in self.entries else titled or self.find(name)
        if len(matches) > 1:
            raise refusal(f"{name!r} means several nodes", f"use one of the ids {', '.join(matches)}")
        if not matches:
            close = did_you_mean(name, [word for id_ in self.entries for word in (id_, self.title(id_))])
            listed = ", ".join(f'{node_id} "{self.title(node_id)}"' for node_id in self.entries)
            raise refusal(f"the graph has no node {name!r}", f"{close}use one of: {listed}")
        if matches[0] not in self.nodes:
            message = f"class {self.entries[matches[0]]['class_type']} is not known here, so it has no inputs to set"
            raise WorkflowError([self.problem(matches[0], None, None, message, "set an input of another node")])
        return self.nodes[matches[0]]

    def declaration(self, node: Node, input_name: str, value: Any) -> Declaration:
        """The declaration of an input that is to be given `value`. Raises WorkflowError where the node has no such input."""
        if input_name not in node.declared:
            fix = suggest(input_name, node.declared)
            raise WorkflowError([self.problem(node.id, input_name, value, "the node has no such input", fix)])
        return node.declared[input_name]

    def problem(self, node_id, input_name, value, message, fix, severity="error") -> Problem:
        return Problem(node_id, self.title(node_id), input_name, value, message, fix, severity)

    def static_arguments(self, node: Node) -> dict[str, Any]:
        """The arguments that ComfyUI hands to IS_CHANGED and VALIDATE_INPUTS: constants, hidden inputs, and None for links."""
        return {**node.constants, **dict.fromkeys(node.links), **self.hidden_values(node)}

    def hidden_values(self, node: Node) -> dict[str, Any]:
        makers = {
            "UNIQUE_ID": lambda: node.id,
            # what runs, overrides included; a copy, since a node may write into it
            "PROMPT": lambda: copy.deepcopy({other.id: other.entry for other in self.nodes.values()}),
        }
        return {name: makers.get(kind, lambda: None)() for name, kind in node.hidden.items()}

    # Loops, not recursion, since a graph may be deeper than Python's stack.

    def ancestors(self, targets: Iterable[str], results: Collection[str] = ()) -> set[str]:
        """The targets and everything upstream of them that exists. Nothing upstream of nodes whose `results` are there."""
        needed, pending = set(), list(targets)
        while pending:
            node_id = pending.pop()
            if node_id in self.nodes and node_id not in needed:
                needed.add(node_id)
                pending += [source for source, _ in self.nodes[node_id].links.values() if node_id not in results]
        return needed

    def order(self, chosen: set[str]) -> list[str]:
        """Sources first. Always the same, but nothing may rely on more than the links. Raises CycleError."""
        sources = {
            node_id: [source for source, _ in node.links.values() if source in chosen]
            for node_id, node in self.nodes.items()
            if node_id in chosen
        }
        return list(TopologicalSorter(sources).static_order())


# --- constants --------------------------------------------------------------------------------------------------------


# What becomes of a constant of each type, and which values may.
CONVERSIONS: dict[str, tuple[type, Callable[[Any], bool]]] = {
    "INT": (int, lambda value: not isinstance(value, bool | float) or isinstance(value, float) and value.is_integer()),
    "FLOAT": (float, lambda value: not isinstance(value, bool)),
    "STRING": (str, lambda value: isinstance(value, str | int | float)),
    "BOOLEAN": (bool, lambda value: value in (0, 1)),
}


def convert(value: Any, declaration: Declaration) -> Any:
    """The constant as the node receives it. Raises ValueError where the input cannot take it."""
    if declaration.choices is not None:
        if not isinstance(value, str | int | float):
            raise ValueError("not a value that can be chosen")
        return value
    if declaration.type in CONVERSIONS:
        kind, accepts = CONVERSIONS[declaration.type]
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            if accepts(value):
                return kind(value)
        raise ValueError(f"not a value of type {declaration.type}")
    # ComfyUI's page has more widgets than there are conversions, as those for colours: what has a default can be typed in
    if _names(declaration.type) & {"*", *CONVERSIONS} or "default" in declaration.options:
        return value
    raise ValueError(f"takes a link of type {declaration.type_name}, not a constant")


def parse(value: Any, declaration: Declaration) -> Any:
    """Text from a command line as a value that `convert` takes; other objects as they are."""
    if not isinstance(value, str):
        return value
    if declaration.choices is not None:
        return next((choice for choice in declaration.choices if str(choice) == value), value)
    if declaration.type == "BOOLEAN":
        return BOOLEANS.get(value.strip().lower(), value)
    if declaration.type in CONVERSIONS:
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


# --- types ------------------------------------------------------------------------------------------------------------


def _names(type_: Any) -> set[str]:
    return {part.strip() for part in type_.split(",")}


def type_name(type_: Any) -> str:
    return type_ if isinstance(type_, str) else "COMBO"


def types_match(returned: Any, declaration: Declaration) -> bool:
    if not returned != declaration.type:  # in this form since packs make "any" types by overriding __ne__
        return True
    accepted = {"COMBO", "STRING"} if declaration.choices is not None else _names(declaration.type)
    returned = _names(type_name(returned))
    return bool(accepted & returned) or "*" in accepted | returned
