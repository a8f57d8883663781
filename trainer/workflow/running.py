"""Workflow: a graph that is read, checked, changed and run without ComfyUI, with its execution semantics and its cache.

Runs classic (V1) node classes, and others through the views of `host/foreign_nodes.py`. What the pack does not use is not here:
lazy inputs (all are computed), list mapping, graph expansion.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...host.comfyui import is_ours
from ...host.errors import Expected
from ...host.text import shortened
from .checking import graph_problems, node_problems, not_a_choice, value_problems
from .declared import CONVERSIONS, PREFIX, Declaration, DeclaredGraph, Node, convert, parse, read_node
from .graph import told_apart, wrapped
from .problem import MOST_CHARACTERS, Problem, WorkflowError, errors, refusal, suggest
from .reading import api_graph, read_workflow

logger = logging.getLogger(__name__)

Classes = Callable[[Mapping[str, Mapping]], tuple[Mapping[str, type], Mapping[str, str]]]


class NodeError(Expected, RuntimeError, status=503):
    """A node raised while it ran; `__cause__` is what it raised."""

    def __init__(self, node_id: str, title: str, class_type: str, error: Exception):
        self.node_id, self.title, self.class_type = node_id, title, class_type
        names = (shortened(text, MOST_CHARACTERS["title"]) for text in (node_id, title, class_type))
        message = shortened(str(error), MOST_CHARACTERS["message"] + MOST_CHARACTERS["fix"])
        super().__init__('node {} "{}" ({}) failed: {}: {}'.format(*names, type(error).__name__, message))


class Workflow:
    """A graph in ComfyUI's API format, its node classes, and the cached results of what ran.

    `ui` maps a node id to what that node last returned for ComfyUI's front end. `addresses` says where model files can be had:
    {name: address}, for messages alone.
    """

    def __init__(
        self,
        graph: dict,
        node_classes: Mapping[str, type] | Classes,
        display_names: Mapping[str, str] | None = None,
        addresses: Mapping[str, str] | None = None,
    ):
        """Raises WorkflowError if `graph` is not in API form; what is wrong *inside* it is validate()'s business.

        `node_classes`: by their names, or a function of the graph in API form that returns them and their display names.
        """
        self.declared_graph = api_graph(graph)
        if not isinstance(node_classes, Mapping):
            node_classes, display_names = node_classes(self.declared_graph)
        self.node_classes, self.display_names = node_classes, display_names or {}
        self.ui: dict[str, dict] = {}
        self.addresses = addresses or {}
        self._instances: dict[str, Any] = {}
        self.cached_outputs: dict[str, tuple[str, tuple]] = {}  # node id: (signature, outputs)
        self._serial = itertools.count()
        self._judged = False
        self._read_nodes()

    @classmethod
    def load(cls, path, node_classes, display_names=None) -> Workflow:
        """Read an exported .json, or a .png that ComfyUI saved. Raises WorkflowError, also for a missing file."""
        return cls(read_workflow(Path(path)), node_classes, display_names)

    def _read_nodes(self) -> None:
        self._declared = DeclaredGraph.read(self.declared_graph, self.node_classes, self.display_names, self.addresses)
        # Nodes that were judged without overrides; None: nothing was, or something has an error.
        self._sound: set[str] | None = None

    def _put(self, node_id: str, entry: dict) -> None:
        """Puts another entry in a node's place."""
        self.declared_graph[node_id] = entry
        node = read_node(node_id, entry, self.node_classes[entry["class_type"]])
        self._declared = replace(self._declared, nodes={**self.nodes, node_id: node})
        self._sound = None

    # --- asking -------------------------------------------------------------------------------------------------

    @property
    def graph(self) -> dict:
        """A copy of the graph as ComfyUI would export it, with every set() applied."""
        return copy.deepcopy(self.declared_graph)

    @property
    def entries(self) -> Mapping[str, Mapping]:
        """The graph itself, which is not to be changed."""
        return self.declared_graph

    def save(self, path) -> None:
        Path(path).write_text(json.dumps(self.declared_graph, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    @property
    def nodes(self) -> Mapping[str, Node]:
        """The nodes of known classes by their ids, as they were last read."""
        return self._declared.nodes

    @property
    def ours(self) -> Mapping[str, Node]:
        """The nodes that are ours: what is asked or set by an input's name is asked of these alone."""
        return {node_id: node for node_id, node in self.nodes.items() if is_ours(node.entry)}

    def node_class(self, node_id: str) -> type:
        return self.nodes[node_id].cls

    def title(self, node_id: str) -> str:
        return self._declared.title(node_id)

    def titles(self, node_ids: Iterable[str]) -> dict[str, str]:
        """{id: title} of some nodes, no title twice."""
        return told_apart({node_id: self.title(node_id) for node_id in node_ids})

    def find(self, class_type: str) -> list[str]:
        """Ids of the nodes of that class, given with or without the OTCA_ prefix."""
        return self._declared.find(class_type)

    def output_nodes(self) -> tuple[str, ...]:
        """Ids of the OUTPUT_NODEs: what `run` runs, with all that it needs."""
        return self._declared.output_nodes()

    def needed(self) -> list[str]:
        """Ids of what would run, sources first. The graph must be one that validates."""
        return self._declared.order(self._declared.ancestors(self.output_nodes()))

    def advancing(self) -> list[tuple[str, str, Any]]:
        """(node id, input, value) of the constants that ComfyUI's queue would advance after every prompt.

        Only of our own nodes: what a canvas does with the number of another node is not in the API format.
        """
        return [
            (node.id, name, value)
            for node in self.ours.values()
            for name, value in node.constants.items()
            if node.declared[name].options.get("control_after_generate")
        ]

    # --- checking and changing ----------------------------------------------------------------------------------

    def validate(self) -> list[Problem]:
        """Every problem of what would run (the output nodes and their ancestors), warnings included."""
        if self._judged:  # the files behind a combo may have changed since
            self._read_nodes()
        self._judged = True
        outputs = self.output_nodes()
        problems = list(graph_problems(self._declared, outputs))
        if not errors(problems):
            self._sound = self._declared.ancestors(outputs)
        return problems

    def check_value(self, node: Node, name: str, value: Any) -> Iterable[Problem]:
        """The problem of the value of an input by its declaration alone: its choices and its range."""
        return value_problems(self._declared, node, name, value)

    def problem(self, node_id, input_name, value, message, fix, severity="error") -> Problem:
        return self._declared.problem(node_id, input_name, value, message, fix, severity)

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
        node = self._declared.resolve(name)
        declaration = self._declared.declaration(node, input_name, value)
        try:
            value = convert(parse(value, declaration), declaration)
        except ValueError as error:
            raise WorkflowError([self.problem(node.id, input_name, value, str(error), declaration.wanted)]) from error
        if not node.judges(input_name) and not declaration.offers(value):
            raise WorkflowError([not_a_choice(self._declared, node, input_name, value)])
        self._put(node.id, {**node.entry, "inputs": {**node.inputs, input_name: wrapped(value)}})
        return node.id, input_name

    def exchange(self, name: str, class_type: str) -> str:
        """Puts a node of another class in the place of NODE, as a user does who rewires the canvas. Returns its id.

        The new node keeps the links and constants whose inputs it has too; its other constants are its defaults. Links that
        others have to it stay, so its outputs must be of the same types.

        Raises:
            WorkflowError: no such node, several such nodes, a class that is not known, or outputs of other types.
        """
        node = self._declared.resolve(name)
        full, new = self._class(class_type)
        if tuple(new.RETURN_TYPES) != tuple(node.cls.RETURN_TYPES):
            message = (
                f"{full} gives {', '.join(new.RETURN_TYPES)}, and {node.class_type} {', '.join(node.cls.RETURN_TYPES)}"
            )
            raise WorkflowError([self.problem(node.id, None, full, message, "name a class that gives the same")])
        declared, inputs = _defaults(full, new)
        inputs |= {key: value for key, value in node.entry["inputs"].items() if key in declared}
        self._put(node.id, {"class_type": full, "inputs": inputs})
        return node.id

    def add(self, node_id: str, class_type: str) -> None:
        """Adds a node with its defaults, and connects its outputs to every socket of their types that is open.

        Raises:
            WorkflowError: a node of that id is there, a class that is not known, or no such socket.
        """
        full, new = self._class(class_type)
        if node_id in self.nodes or "." in node_id:
            raise refusal(f"a new node cannot be called {node_id!r}", "another name, without a dot")
        links = {
            (node.id, name): [node_id, number]
            for node in self.nodes.values()
            for name, declaration in node.declared.items()
            for number, kind in enumerate(new.RETURN_TYPES)
            if declaration.type == kind and kind not in CONVERSIONS and name not in node.inputs
        }
        if not links:
            wanted = ", ".join(map(str, new.RETURN_TYPES))
            raise refusal(f"no node has an open socket for what {full} gives ({wanted})", "another node")
        self._put(node_id, {"class_type": full, "inputs": _defaults(full, new)[1]})
        for (target, name), link in links.items():
            entry = self.entries[target]
            self._put(target, {**entry, "inputs": {**entry["inputs"], name: link}})

    def _class(self, class_type: str) -> tuple[str, type]:
        full = class_type if class_type in self.node_classes else PREFIX + class_type
        if full not in self.node_classes:
            raise refusal(f"unknown node class {class_type!r}", suggest(class_type, self.node_classes))
        return full, self.node_classes[full]

    # --- running ------------------------------------------------------------------------------------------------

    def run(
        self,
        overrides: Mapping[tuple[str, str], Any] | None = None,
        targets: Iterable[str] | None = None,
        on_node: Callable[[str, bool], None] | None = None,
        results: Mapping[str, tuple] | None = None,
    ) -> dict[str, tuple]:
        """Run what the targets need and what changed since the last run.

        The result refers to every output, as the cache does: let go of it before the next run, so that the old
        trajectories can be freed before new ones are made.

        Args:
            overrides: {(node id, input): constant} for this run only.
            targets: node ids; all output nodes when None.
            on_node: called with (node id, whether its cached result is used) before each node.
            results: {node id: outputs} that count as what those nodes return; neither they nor what they need runs.

        Returns:
            {node id: outputs} of the targets and all their ancestors.

        Raises:
            WorkflowError: this run's inputs do not validate. Nothing has run.
            NodeError: a node raised an Exception. What finished before it stays cached.
        """
        graph = self._declared.overridden(overrides or {})
        targets = self.output_nodes() if targets is None else tuple(targets)
        for target in targets:
            if target not in graph.nodes:
                raise refusal(f"the graph has no node {target!r} to run", suggest(target, graph.nodes))
        results = results or {}
        needed = graph.ancestors(targets, results)
        self._refuse_errors(graph, targets, needed, {node_id for node_id, _ in overrides or {}})
        # results that this run does not need are judged too: kept if they still hold, freed if not
        order = graph.order(graph.ancestors([*targets, *self.cached_outputs]))
        signatures = self._signatures(graph, order)
        for node_id in [
            node_id for node_id, (signature, _) in self.cached_outputs.items() if signature != signatures[node_id]
        ]:
            del self.cached_outputs[node_id]
            self.ui.pop(node_id, None)
        self.cached_outputs |= {node_id: (signatures[node_id], outputs) for node_id, outputs in results.items()}
        order = [node_id for node_id in order if node_id in needed]
        for node_id in order:
            cached = node_id in self.cached_outputs
            if on_node is not None:
                on_node(node_id, cached)
            if not cached:
                self.cached_outputs[node_id] = (signatures[node_id], self._execute(graph, graph.nodes[node_id]))
        return {node_id: self.cached_outputs[node_id][1] for node_id in order}

    def _refuse_errors(
        self, graph: DeclaredGraph, targets: tuple[str, ...], needed: set[str], overridden: set[str]
    ) -> None:
        # validation may read folders and a training runs thousands of times: a node is judged once, then only where this run
        # overrides it (all of them while one has an error, which overrides may repair)
        if (self._sound is None or not needed <= self._sound) and not errors(graph_problems(self._declared, targets)):
            self._sound = (self._sound or set()) | self._declared.ancestors(targets)
        if self._sound is None or not needed <= self._sound:
            problems = errors(graph_problems(graph, targets))
        else:
            nodes = [node for id_, node in graph.nodes.items() if id_ in overridden & needed]
            problems = [problem for node in nodes for problem in node_problems(graph, node)]
        if errors(problems):
            raise WorkflowError(errors(problems))

    def _signatures(self, graph: DeclaredGraph, order: list[str]) -> dict[str, str]:
        """The signature of a node's result: of the node itself, its constants, its IS_CHANGED and its ancestors' signatures."""
        signatures: dict[str, str] = {}
        for node_id in order:
            node = graph.nodes[node_id]
            links = {name: [signatures[source], index] for name, (source, index) in node.links.items()}
            parts = [node_id, node.class_type, self._is_changed(graph, node), node.constants, links]
            text = json.dumps(parts, sort_keys=True, default=repr)
            # hashed, since a signature holds its ancestors': written out, a chain of diamonds doubles at every link
            signatures[node_id] = hashlib.sha256(text.encode()).hexdigest()
        return signatures

    def _is_changed(self, graph: DeclaredGraph, node: Node) -> Any:
        if not hasattr(node.cls, "IS_CHANGED"):
            return None
        try:
            value = node.cls.IS_CHANGED(**graph.static_arguments(node))
        except Exception as error:  # ComfyUI, too, warns and runs the node
            logger.warning('IS_CHANGED of node %s "%s" failed: %s', node.id, graph.title(node.id), error)
            value = float("nan")
        # NaN means always; written as text, two NaN would be equal
        return ["always", next(self._serial)] if isinstance(value, float) and value != value else ["value", value]

    def _execute(self, graph: DeclaredGraph, node: Node) -> tuple:
        try:
            arguments = {**node.constants, **graph.hidden_values(node)}
            for name, (source, index) in node.links.items():
                outputs = self.cached_outputs[source][1]
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
            raise NodeError(node.id, graph.title(node.id), node.class_type, error) from error
        if isinstance(returned, dict) and "ui" in returned:
            self.ui[node.id] = returned["ui"]
        return tuple(result or ())


def _defaults(class_type: str, node_class: type) -> tuple[Mapping[str, Declaration], dict[str, Any]]:
    """The inputs of a node class, and a value for each that has a default."""
    declared = read_node("", {"class_type": class_type, "inputs": {}}, node_class).declared
    values = {name: wrapped(of.options["default"]) for name, of in declared.items() if "default" in of.options}
    return declared, values
