"""Read, validate and run a workflow that ComfyUI exported, without ComfyUI and with its execution semantics.

Runs classic (V1) node classes. What the pack does not use is not here: lazy inputs, list mapping, graph expansion.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from graphlib import CycleError
from pathlib import Path
from typing import Any

from ..types import PREFIX
from .graph import (
    Declaration,
    Node,
    ancestors,
    convert,
    did_you_mean,
    execution_order,
    hidden_values,
    parse,
    read_node,
    suggest,
    title,
    type_name,
    types_match,
    wrapped,
)
from .problem import MOST_CHARACTERS, Problem, WorkflowError, errors, general, refusal, shortened
from .reading import api_graph, read_workflow

__all__ = ["NodeError", "Problem", "Workflow", "WorkflowError"]

logger = logging.getLogger(__name__)


class NodeError(RuntimeError):
    """A node raised while it ran; `__cause__` is what it raised."""

    def __init__(self, node_id: str, title: str, class_type: str, error: Exception):
        self.node_id, self.title, self.class_type = node_id, title, class_type
        names = (shortened(text, MOST_CHARACTERS["title"]) for text in (node_id, title, class_type))
        told = shortened(str(error), MOST_CHARACTERS["message"] + MOST_CHARACTERS["fix"])
        super().__init__('node {} "{}" ({}) failed: {}: {}'.format(*names, type(error).__name__, told))


class Workflow:
    """A graph in ComfyUI's API format, its node classes, and the cached results of what ran.

    `ui` maps a node id to what that node last returned for ComfyUI's front end.
    """

    def __init__(self, graph: dict, node_classes: Mapping[str, type], display_names: Mapping[str, str] | None = None):
        """Raises WorkflowError where `graph` is not in API form; what is wrong *inside* it is validate()'s business."""
        self.node_classes, self.display_names = node_classes, display_names or {}
        self.ui: dict[str, dict] = {}
        self._graph = api_graph(graph)
        self._instances: dict[str, Any] = {}
        self._cache: dict[str, tuple[str, tuple]] = {}  # node id: (signature, outputs)
        self._serial = itertools.count()
        self._read_nodes()

    @classmethod
    def load(cls, path, node_classes, display_names=None) -> Workflow:
        """Read an exported .json, or a .png that ComfyUI saved. Raises WorkflowError, also for a missing file."""
        return cls(read_workflow(Path(path)), node_classes, display_names)

    @property
    def graph(self) -> dict:
        """A copy of the graph as ComfyUI would export it, with every set() applied."""
        return copy.deepcopy(self._graph)

    def save(self, path) -> None:
        Path(path).write_text(json.dumps(self._graph, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def title(self, node_id: str) -> str:
        return title(self._graph[node_id], self.display_names)

    def find(self, class_type: str) -> list[str]:
        """Ids of the nodes of that class, given with or without the OTCA_ prefix."""
        wanted = (class_type, PREFIX + class_type)
        return [node_id for node_id, entry in self._graph.items() if entry["class_type"] in wanted]

    def advancing(self) -> list[tuple[str, str, Any]]:
        """(node id, input, value) of the constants that ComfyUI's queue would advance after every prompt."""
        return [
            (node.id, name, value)
            for node in self._nodes.values()
            for name, value in node.constants.items()
            if node.declared[name].options.get("control_after_generate")
        ]

    # --- changing -----------------------------------------------------------------------------------------------

    def set(self, address: str, value: Any) -> tuple[str, str]:
        """Give the input `NODE.INPUT` a constant, in place of its constant or link; text becomes the declared type.

        NODE is an id, a title, or a class that occurs once (with or without OTCA_). Ranges are left to validate().
        Returns (node id, input).

        Raises:
            WorkflowError: no such node or input, several such nodes, an edge input, or a value of another type.
        """
        name, dot, input_name = address.rpartition(".")
        if not dot:
            raise refusal(f"{address!r} names no input", "write NODE.INPUT, for example 7.group_size")
        node = self._nodes.get(self._resolve(name)) or self._not_run(self._resolve(name))
        declaration = self._declaration(node, input_name, value)
        try:
            value = convert(parse(value, declaration), declaration)
        except ValueError as error:
            raise WorkflowError([self.problem(node.id, input_name, value, str(error), declaration.wanted)]) from error
        if not node.judges(input_name) and not declaration.offers(value):
            raise WorkflowError([self._not_a_choice(node.id, input_name, value, declaration)])
        self._graph[node.id]["inputs"][input_name] = wrapped(value)
        self._read_nodes()
        return node.id, input_name

    def _resolve(self, name: str) -> str:
        """The id that `name` means; ids win over titles, titles over classes."""
        titled = [node_id for node_id in self._graph if self.title(node_id) == name]
        matches = [name] if name in self._graph else titled or self.find(name)
        if len(matches) > 1:
            raise refusal(f"{name!r} means several nodes", f"use one of the ids {', '.join(matches)}")
        if not matches:
            close = did_you_mean(name, [word for id_ in self._graph for word in (id_, self.title(id_))])
            listed = ", ".join(f'{node_id} "{self.title(node_id)}"' for node_id in self._graph)
            raise refusal(f"there is no node {name!r}", f"{close}use one of: {listed}")
        return matches[0]

    def _not_run(self, node_id: str) -> Node:
        message = f"class {self._graph[node_id]['class_type']} is not known here, so it has no inputs to set"
        raise WorkflowError([self.problem(node_id, None, None, message, "set an input of another node")])

    def _declaration(self, node: Node, input_name: str, value: Any) -> Declaration:
        if input_name not in node.declared:
            fix = suggest(input_name, node.declared)
            raise WorkflowError([self.problem(node.id, input_name, value, "there is no such input", fix)])
        return node.declared[input_name]

    def _read_nodes(self) -> None:
        self._nodes = {
            node_id: read_node(node_id, entry, self.node_classes[entry["class_type"]])
            for node_id, entry in self._graph.items()
            if entry["class_type"] in self.node_classes
        }
        self._errors: dict[tuple[str, ...], list[Problem]] = {}  # targets: errors of the graph without overrides

    # --- validating ---------------------------------------------------------------------------------------------

    def validate(self) -> list[Problem]:
        """Every problem of what would run (the output nodes and their ancestors), warnings included."""
        self._read_nodes()  # the files behind a combo may have changed
        outputs = self.output_nodes()
        problems = list(self._check(self._nodes, outputs))
        self._errors[outputs] = errors(problems)
        return problems

    def node_class(self, node_id: str) -> type:
        return self._nodes[node_id].cls

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The nodes of known classes by their ids, as they were last read."""
        return self._nodes

    def needed(self) -> list[str]:
        """Ids of what would run, sources first. The graph must be one that validates."""
        return execution_order(self._nodes, ancestors(self._nodes, self.output_nodes()))

    def output_nodes(self) -> tuple[str, ...]:
        """Ids of the OUTPUT_NODEs: what `run` runs, with all that it needs."""
        return tuple(node.id for node in self._nodes.values() if getattr(node.cls, "OUTPUT_NODE", False) is True)

    def _check(self, nodes: dict[str, Node], targets: tuple[str, ...]) -> Iterator[Problem]:
        yield from self._check_classes(nodes)
        if not targets:
            yield general("no output node, so there is nothing to run", "add one, for example Training Run")
        needed = ancestors(nodes, targets)
        for node_id in nodes:
            if node_id in needed:
                yield from self._check_node(nodes, nodes[node_id])
        while True:  # every cycle that shares no node with one already found
            try:
                execution_order(nodes, needed)
                return
            except CycleError as error:
                cycle = error.args[1]
                message = f"the nodes {' -> '.join(cycle)} form a cycle"
                yield self.problem(cycle[0], None, None, message, "remove one of these links")
                needed -= set(cycle)

    def _check_classes(self, nodes: dict[str, Node]) -> Iterator[Problem]:
        # a PreviewImage at the end of a canvas must not stop a training; what our own nodes read from must exist
        read_from = {source for node in nodes.values() for source, _ in node.links.values()}
        for node_id, entry in self._graph.items():
            class_type = entry["class_type"]
            if node_id in nodes:
                continue
            if class_type.startswith(PREFIX) or node_id in read_from:
                fix = suggest(class_type, self.node_classes)
                yield self.problem(node_id, None, None, f"unknown node class {class_type}", fix)
            else:
                message = f"left out, since class {class_type} is not known here and no known node needs it"
                yield self.problem(node_id, None, None, message, "", "warning")

    def _check_node(self, nodes: dict[str, Node], node: Node) -> list[Problem]:
        problems = []
        for name, declaration in node.declared.items():
            if declaration.required and name not in node.given:
                problems.append(self.problem(node.id, name, None, "required input is missing", declaration.wanted))
        for name, value in node.given.items():
            if name not in node.declared:
                fix = suggest(name, node.declared)
                problems.append(self.problem(node.id, name, value, "unknown input, ignored", fix, "warning"))
            elif name in node.unreadable:
                fix = node.declared[name].wanted
                problems.append(self.problem(node.id, name, value, node.unreadable[name], fix))
            elif name in node.links:
                problems += self._check_link(node, name)
            elif not node.judges(name):
                problems += self.check_value(node, name, node.constants[name])
        failed = {problem.input for problem in errors(problems)}
        if not any(node.judges(name) for name in failed):  # else it would stumble over what is already reported
            problems += self._ask_node(nodes, node)
        return problems

    def _check_link(self, node: Node, name: str) -> Iterator[Problem]:
        (source, index), declaration = node.links[name], node.declared[name]
        if source not in self._graph:
            yield self.problem(node.id, name, [source, index], f"there is no node {source}", declaration.wanted)
        if source not in self._nodes:
            return  # an unknown class is reported as such
        returned, origin = self._nodes[source].cls.RETURN_TYPES, f'node {source} "{self.title(source)}"'
        message = ""
        if not 0 <= index < len(returned):
            message = f"{origin} has {len(returned)} outputs, counted from 0: there is no output {index}"
        elif "input_types" not in node.validates and not types_match(returned[index], declaration):
            message = f"takes {declaration.type_name}, but output {index} of {origin} is {type_name(returned[index])}"
        if message:
            yield self.problem(node.id, name, [source, index], message, f"connect a {declaration.type_name}")

    def check_value(self, node: Node, name: str, value: Any) -> Iterator[Problem]:
        """What is wrong with the value of an input by its declaration alone: its choices and its range."""
        declaration = node.declared[name]
        if not declaration.offers(value):
            yield self._not_a_choice(node.id, name, value, declaration)
        low, high = declaration.options.get("min"), declaration.options.get("max")
        if isinstance(value, int | float):  # written so that NaN fails too
            if low is not None and not value >= low:
                yield self.problem(node.id, name, value, f"must be at least {low}", declaration.wanted)
            if high is not None and not value <= high:
                yield self.problem(node.id, name, value, f"must be at most {high}", declaration.wanted)

    def _ask_node(self, nodes: dict[str, Node], node: Node) -> Iterator[Problem]:
        """What the node's own VALIDATE_INPUTS says, called the way ComfyUI calls it."""
        if not node.validates and not node.validates_all:
            return
        static = self._static_arguments(nodes, node)
        arguments = {name: value for name, value in static.items() if node.judges(name)}
        if "input_types" in node.validates:
            sources = {name: (self._nodes.get(source), index) for name, (source, index) in node.links.items()}
            arguments["input_types"] = {
                name: source.cls.RETURN_TYPES[index]
                for name, (source, index) in sources.items()
                if source is not None and 0 <= index < len(source.cls.RETURN_TYPES)
            }
        try:
            answer = node.cls.VALIDATE_INPUTS(**arguments)
        except Exception as error:
            answer = f"VALIDATE_INPUTS raised {type(error).__name__}: {error}"
        if answer is True:
            return
        answer = answer if isinstance(answer, str) else f"refused by VALIDATE_INPUTS, which returned {answer!r}"
        message, fix = (re.split(r"\s*\bFix:\s*", answer, maxsplit=1) + [""])[:2]
        taken = [name for name in arguments if name in node.constants]
        # ComfyUI marks every input that the function takes; one line should point at the one that it is about: the one
        # that the message begins with, else the only one that it mentions
        about = [name for name in taken if re.match(rf"{re.escape(name)}\b", message)]
        about = about or [name for name in taken if re.search(rf"\b{re.escape(name)}\b", message)] or taken
        name = about[0] if len(about) == 1 else None
        wanted = node.declared[name].wanted if name in node.declared else "give this node other values"
        yield self.problem(node.id, name, node.constants.get(name), message, fix or wanted)

    def problem(self, node_id, input_name, value, message, fix, severity="error") -> Problem:
        return Problem(node_id, self.title(node_id), input_name, value, message, fix, severity)

    def _not_a_choice(self, node_id: str, name: str, value: Any, declaration: Declaration) -> Problem:
        return self.problem(node_id, name, value, "not one of the choices", suggest(value, declaration.choices))

    # --- running ------------------------------------------------------------------------------------------------

    def run(
        self,
        overrides: Mapping[tuple[str, str], Any] | None = None,
        targets: Iterable[str] | None = None,
        on_node: Callable[[str, bool], None] | None = None,
        given: Mapping[str, tuple] | None = None,
    ) -> dict[str, tuple]:
        """Run what the targets need and what changed since the last run.

        The result refers to every output, as the cache does: let go of it before the next run, so that the old
        trajectories can be freed before new ones are made.

        Args:
            overrides: {(node id, input): constant} for this run only.
            targets: node ids; all output nodes when None.
            on_node: called with (node id, whether its cached result is used) before each node.
            given: {node id: outputs} that are taken for what those nodes would return; for them nothing runs.

        Returns:
            {node id: outputs} of the targets and all their ancestors.

        Raises:
            WorkflowError: this run's inputs do not validate. Nothing has run.
            NodeError: a node raised an Exception. What finished before it stays cached.
        """
        nodes = self._overridden(overrides or {})
        targets = self.output_nodes() if targets is None else tuple(targets)
        for target in targets:
            if target not in nodes:
                raise refusal(f"there is no node {target!r} to run", suggest(target, nodes))
        given = given or {}
        needed = ancestors(nodes, targets, given)
        self._refuse_errors(nodes, targets, {node_id for node_id, _ in overrides or {}} & needed)
        # results that this run does not need are judged too: kept if they still hold, freed if not
        order = execution_order(nodes, ancestors(nodes, [*targets, *self._cache]))
        signatures = self._signatures(nodes, order)
        for node_id in [node_id for node_id, (signature, _) in self._cache.items() if signature != signatures[node_id]]:
            del self._cache[node_id]
            self.ui.pop(node_id, None)
        self._cache |= {node_id: (signatures[node_id], outputs) for node_id, outputs in given.items()}
        order = [node_id for node_id in order if node_id in needed]
        for node_id in order:
            cached = node_id in self._cache
            if on_node is not None:
                on_node(node_id, cached)
            if not cached:
                self._cache[node_id] = (signatures[node_id], self._execute(nodes, nodes[node_id]))
        return {node_id: self._cache[node_id][1] for node_id in order}

    def _overridden(self, overrides: Mapping[tuple[str, str], Any]) -> dict[str, Node]:
        nodes = dict(self._nodes)
        for (node_id, name), value in overrides.items():
            if node_id not in nodes:
                raise refusal(f"override of unknown node {node_id!r}", suggest(node_id, nodes))
            node = nodes[node_id]
            self._declaration(node, name, value)
            entry = {**node.entry, "inputs": {**node.given, name: wrapped(value)}}
            nodes[node_id] = read_node(node_id, entry, node.cls)
        return nodes

    def _refuse_errors(self, nodes: dict[str, Node], targets: tuple[str, ...], overridden: set[str]) -> None:
        # validation may read folders and a training runs thousands of times: the graph is validated once, then only
        # the nodes that this run overrides (all of it while it has errors, which overrides may repair)
        if targets not in self._errors:
            self._errors[targets] = errors(self._check(self._nodes, targets))
        if self._errors[targets]:
            found = errors(self._check(nodes, targets))
        else:
            found = [p for id_ in nodes if id_ in overridden for p in errors(self._check_node(nodes, nodes[id_]))]
        if found:
            raise WorkflowError(found)

    def _signatures(self, nodes: dict[str, Node], order: list[str]) -> dict[str, str]:
        """What a node's result depends on: itself, its constants, its IS_CHANGED and its ancestors' signatures."""
        signatures: dict[str, str] = {}
        for node_id in order:
            node = nodes[node_id]
            links = {name: [signatures[source], index] for name, (source, index) in node.links.items()}
            parts = [node_id, node.class_type, self._is_changed(nodes, node), node.constants, links]
            text = json.dumps(parts, sort_keys=True, default=repr)
            # hashed, since a signature holds its ancestors': written out, a chain of diamonds doubles at every link
            signatures[node_id] = hashlib.sha256(text.encode()).hexdigest()
        return signatures

    def _is_changed(self, nodes: dict[str, Node], node: Node) -> Any:
        if not hasattr(node.cls, "IS_CHANGED"):
            return None
        try:
            value = node.cls.IS_CHANGED(**self._static_arguments(nodes, node))
        except Exception as error:  # ComfyUI, too, warns and runs the node
            logger.warning('IS_CHANGED of node %s "%s" failed: %s', node.id, self.title(node.id), error)
            value = float("nan")
        # NaN means always; written as text, two NaN would be equal
        return ["always", next(self._serial)] if isinstance(value, float) and value != value else ["value", value]

    def _static_arguments(self, nodes: dict[str, Node], node: Node) -> dict[str, Any]:
        """What ComfyUI hands to IS_CHANGED and VALIDATE_INPUTS: constants, hidden inputs, and None for links."""
        return {**node.constants, **dict.fromkeys(node.links), **hidden_values(nodes, node)}

    def _execute(self, nodes: dict[str, Node], node: Node) -> tuple:
        try:
            arguments = {**node.constants, **hidden_values(nodes, node)}
            for name, (source, index) in node.links.items():
                outputs = self._cache[source][1]
                if index >= len(outputs):
                    raise TypeError(f"input {name}: node {source} returned {len(outputs)} outputs, not {index + 1}")
                arguments[name] = outputs[index]
            if node.id not in self._instances:  # one instance a node for good, as ComfyUI keeps them
                self._instances[node.id] = node.cls()
            returned = getattr(self._instances[node.id], node.cls.FUNCTION)(**arguments)
            result = returned.get("result") if isinstance(returned, dict) else returned
            if not isinstance(result, tuple | list | None):
                raise TypeError(f"{node.cls.FUNCTION} must return a tuple of outputs, not {type(result).__name__}")
        except Exception as error:
            raise NodeError(node.id, self.title(node.id), node.class_type, error) from error
        if isinstance(returned, dict) and "ui" in returned:
            self.ui[node.id] = returned["ui"]
        return tuple(result or ())
