"""A ComfyUI graph as it was read: nodes with their declared inputs, constants and links; types, and order."""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

from ..types import LOAD_NODE

LONGEST_TITLE = 100  # characters; what is longer is cut
LONGEST_GUESS = 100  # of a wrong name, what is compared with the right ones

BOOLEANS = {**dict.fromkeys(("true", "yes", "on", "1"), True), **dict.fromkeys(("false", "no", "off", "0"), False)}


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
        return list(self.options.get("options", [])) if self.type == "COMBO" else None

    def offers(self, value: Any) -> bool:
        return self.choices is None or value in self.choices

    @property
    def type_name(self) -> str:
        return type_name(self.type)

    @property
    def wanted(self) -> str:
        """What this input takes, in words."""
        if self.choices is not None:
            return suggest("", self.choices)
        if self.type not in CONVERSIONS:
            return f"connect a {self.type_name}"
        words = {"min": "from", "max": "to", "default": "default"}
        limits = [f" {word} {self.options[key]}" for key, word in words.items() if key in self.options]
        return f"give {self.type_name}{''.join(limits)}"


@dataclass(frozen=True)
class Node:
    """A node of a known class. Each given input that is declared is a constant, a link or unreadable (why)."""

    id: str
    entry: dict
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
    def given(self) -> dict[str, Any]:
        return self.entry["inputs"]

    def judges(self, input_name: str) -> bool:
        """Does VALIDATE_INPUTS take this input? ComfyUI then leaves its range and combo to it."""
        return self.validates_all or input_name in self.validates


def read_node(node_id: str, entry: dict, cls: type) -> Node:
    types, given = cls.INPUT_TYPES(), entry["inputs"]
    declared: dict[str, Declaration] = {}
    for section in ("required", "optional"):
        table = types.get(section, {})
        for name in dict.fromkeys([*table, *given]):  # a table may answer for names that it does not list
            if name in table and name not in declared:
                type_, options = (*table[name], {})[:2]
                declared[name] = Declaration(type_, options, section == "required")
    constants, links, unreadable = {}, {}, {}
    for name in [name for name in given if name in declared]:
        if is_link(given[name]):
            links[name] = tuple(given[name])
            continue
        try:
            constants[name] = convert(_unwrapped(given[name]), declared[name])
        except ValueError as error:
            unreadable[name] = str(error)
    validates, validates_all = _judged(getattr(cls, "VALIDATE_INPUTS", None))
    hidden = types.get("hidden", {})
    return Node(node_id, entry, cls, declared, hidden, validates, validates_all, constants, links, unreadable)


@functools.lru_cache(maxsize=256)
def _judged(function: Callable | None) -> tuple[list[str], bool]:
    """Parameters of a VALIDATE_INPUTS, and whether it takes any others too."""
    specification = inspect.getfullargspec(function or (lambda: True))
    return specification.args, specification.varkw is not None


def hidden_values(nodes: Mapping[str, Node], node: Node) -> dict[str, Any]:
    makers = {
        "UNIQUE_ID": lambda: node.id,
        # what runs, overrides included; a copy, since a node may write into it
        "PROMPT": lambda: copy.deepcopy({other.id: other.entry for other in nodes.values()}),
    }
    return {name: makers.get(kind, lambda: None)() for name, kind in node.hidden.items()}


def is_link(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and type(value[1]) is int


def _unwrapped(value: Any) -> Any:
    if isinstance(value, list):
        raise ValueError('neither a link nor a value, since lists are exported as {"__value__": [...]}')
    value = value["__value__"] if isinstance(value, dict) and "__value__" in value else value
    if value is None:  # by which ComfyUI tells VALIDATE_INPUTS of a link
        raise ValueError("null is no value")
    return value


def wrapped(value: Any) -> Any:
    return {"__value__": list(value)} if isinstance(value, list | tuple) else value


# --- constants: stricter than ComfyUI where its conversion would hide a mistake (2.7 to 2, "false" to True) -----


def _integer(value: Any) -> int:
    if isinstance(value, bool) or isinstance(value, float) and not value.is_integer():
        raise ValueError
    return int(value)


def _float(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError
    return float(value)


def _string(value: Any) -> str:
    if not isinstance(value, str | int | float):
        raise ValueError
    return str(value)


def _boolean(value: Any) -> bool:
    if value not in (0, 1):
        raise ValueError
    return bool(value)


CONVERSIONS = {"INT": _integer, "FLOAT": _float, "STRING": _string, "BOOLEAN": _boolean}


def convert(value: Any, declaration: Declaration) -> Any:
    """The constant as the node receives it. Raises ValueError where the input cannot take it."""
    if declaration.choices is not None:
        if not isinstance(value, str | int | float):
            raise ValueError("not a value that can be chosen")
        return value
    if declaration.type in CONVERSIONS:
        try:
            return CONVERSIONS[declaration.type](value)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"not a value of type {declaration.type}") from error
    if _names(declaration.type) & {"*", *CONVERSIONS}:
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


# --- types and words --------------------------------------------------------------------------------------------


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


def did_you_mean(name: Any, known: Iterable[Any]) -> str:
    close = difflib.get_close_matches(str(name)[:LONGEST_GUESS], list(map(str, known)), n=1)
    return f"did you mean {close[0]}? " if close else ""


def suggest(name: Any, known: Iterable[Any]) -> str:
    known = list(known)
    listed = ", ".join(map(str, known[:20])) + (f" and {len(known) - 20} more" if len(known) > 20 else "")
    return f"{did_you_mean(name, known)}use one of: {listed or '(there is none)'}"


def settings(graph: Mapping[str, Mapping]) -> dict[str, dict[str, Any]]:
    """{title of a node: {input: constant}} of a graph in API form; titles that occur twice have the node's id behind them."""
    titles = {node_id: title(entry) for node_id, entry in graph.items()}
    counts = Counter(titles.values())
    return {
        titles[node_id] if counts[titles[node_id]] == 1 else f"{titles[node_id]} {node_id}": {
            name: value for name, value in entry["inputs"].items() if not is_link(value)
        }
        for node_id, entry in graph.items()
    }


def title(entry: Mapping, class_titles: Mapping[str, str] | None = None) -> str:
    """A node's own title as one short line, else that of its class. What a file holds as `_meta` may be anything."""
    meta = entry.get("_meta")
    own = meta.get("title") if isinstance(meta, Mapping) else None
    line = " ".join(own[: 2 * LONGEST_TITLE].split())[:LONGEST_TITLE] if isinstance(own, str) else ""
    return line or (class_titles or {}).get(entry["class_type"], entry["class_type"])


def resumable(graph: Mapping[str, Mapping]) -> dict[str, dict]:
    """A graph in API form as a run's folder keeps it: without `resume_run`, since --resume says which run is gone on with."""
    plain = {node_id: {**entry, "inputs": dict(entry["inputs"])} for node_id, entry in graph.items()}
    for entry in plain.values():
        if entry["class_type"] == LOAD_NODE and "resume_run" in entry["inputs"]:
            entry["inputs"]["resume_run"] = ""
    return plain


# --- graphs: loops, not recursion, since a graph may be deeper than Python's stack ------------------------------


def ancestors(nodes: Mapping[str, Node], targets: Iterable[str], given: Collection[str] = ()) -> set[str]:
    """The targets and everything upstream of them that exists; of what is `given`, nothing upstream."""
    found, pending = set(), list(targets)
    while pending:
        node_id = pending.pop()
        if node_id in nodes and node_id not in found:
            found.add(node_id)
            pending += [source for source, _ in nodes[node_id].links.values() if node_id not in given]
    return found


def execution_order(nodes: Mapping[str, Node], chosen: set[str]) -> list[str]:
    """Sources first. Always the same, but nothing may rely on more than the links. Raises CycleError."""
    sources = {
        node_id: [source for source, _ in node.links.values() if source in chosen]
        for node_id, node in nodes.items()
        if node_id in chosen
    }
    return list(TopologicalSorter(sources).static_order())
