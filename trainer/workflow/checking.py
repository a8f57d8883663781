"""The problems of a graph by what its node classes declare: classes, links, choices, ranges, cycles, VALIDATE_INPUTS."""

from __future__ import annotations

import re
from collections.abc import Iterator
from graphlib import CycleError
from typing import Any

from ...host.comfyui import comfy_loaded, is_ours
from ...host.errors import parts
from ..types import GONE
from . import foreign
from .declared import DeclaredGraph, Node, type_name, types_match
from .problem import Problem, errors, general, suggest

ADD_COMFYUI = "add --comfyui PATH, the folder of your ComfyUI, or set COMFYUI_PATH (docs/training.md)"
OF_A_PACK = (
    "if it is of a custom pack, add --custom-nodes NAME, the pack's folder in custom_nodes; if it is ComfyUI's own, update "
    "ComfyUI, and see in its log whether it can import all of its nodes"
)


def graph_problems(graph: DeclaredGraph, targets: tuple[str, ...]) -> Iterator[Problem]:
    """Every problem of what would run (the targets and their ancestors), warnings included."""
    needed = graph.ancestors(targets)
    yield from _class_problems(graph, needed)
    if not targets:
        yield general("no output node, so there is nothing to run", "add one, for example Training Run")
    for node_id, node in graph.nodes.items():
        if node_id in needed:
            yield from node_problems(graph, node)
    while True:  # every cycle that shares no node with one already found
        try:
            graph.order(needed)
            return
        except CycleError as error:
            cycle = error.args[1]
            message = f"the nodes {' -> '.join(cycle)} form a cycle"
            yield graph.problem(cycle[0], None, None, message, "remove one of these links")
            needed -= set(cycle)


def _class_problems(graph: DeclaredGraph, needed: set[str]) -> Iterator[Problem]:
    # a PreviewImage at the end of a canvas must not stop a training; what our own nodes read from must exist
    readers = [node for id_, node in graph.nodes.items() if id_ in needed or is_ours(node.entry)]
    read_from = {source for node in readers for source, _ in node.links.values()} | set(foreign.foreign(graph.entries))
    lacking: dict[str, list[str]] = {}
    for node_id, entry in graph.entries.items():
        class_type, is_known = entry["class_type"], node_id in graph.nodes
        is_own = is_ours(entry)
        if is_known and not foreign.wants_comfyui(graph.nodes[node_id].cls):
            continue
        if not comfy_loaded() and (is_known or node_id in read_from and not is_own):
            lacking.setdefault(class_type, []).append(node_id)
        elif not is_known and (is_own or node_id in read_from):
            fix = suggest(class_type, graph.node_classes) if is_own else OF_A_PACK
            yield graph.problem(node_id, None, None, f"unknown node class {class_type}", fix)
        elif not is_known:
            message = f"left out, since class {class_type} is not known here and no known node needs it"
            yield graph.problem(node_id, None, None, message, "", "warning")
    if lacking:
        listed = ", ".join(f"{class_type} (node {', '.join(ids)})" for class_type, ids in lacking.items())
        yield general(f"needs ComfyUI for {listed}", ADD_COMFYUI)


def node_problems(graph: DeclaredGraph, node: Node) -> list[Problem]:
    problems = []
    if why := getattr(node.cls, "REFUSED", None):
        fix = "connect what it is connected to, so that our nodes do not need it"
        problems.append(graph.problem(node.id, None, None, f"class {node.class_type} {why}", fix))
    for name, declaration in node.declared.items():
        if declaration.required and name not in node.inputs:
            problems.append(graph.problem(node.id, name, None, "required input is missing", declaration.wanted))
    for name, value in node.inputs.items():
        if name not in node.declared:
            if not is_ours(node.entry) or name not in GONE:
                fix = suggest(name, node.declared)
                problems.append(graph.problem(node.id, name, value, "unknown input, ignored", fix, "warning"))
            elif value != (gone := GONE[name])[0]:
                message = f"this input was removed, and is {gone[0]!r} for everybody"
                severity = "error" if gone[1] else "warning"  # what would train otherwise than it did does not run
                problems.append(graph.problem(node.id, name, value, message, gone[1], severity))
        elif name in node.unreadable:
            fix = node.declared[name].wanted
            problems.append(graph.problem(node.id, name, value, node.unreadable[name], fix))
        elif name in node.links:
            problems += _link_problems(graph, node, name)
        elif not node.judges(name):
            problems += value_problems(graph, node, name, node.constants[name])
    failed = {problem.input for problem in errors(problems) if problem.input is not None}
    if not any(node.judges(name) for name in failed):  # else it would stumble over what is already reported
        problems += _own_problems(graph, node)
    return problems


def _link_problems(graph: DeclaredGraph, node: Node, name: str) -> Iterator[Problem]:
    (source, index), declaration = node.links[name], node.declared[name]
    if source not in graph.entries:
        yield graph.problem(node.id, name, [source, index], f"the graph has no node {source}", declaration.wanted)
    if source not in graph.nodes:
        return  # an unknown class is reported as such
    returned, origin = graph.nodes[source].cls.RETURN_TYPES, f'node {source} "{graph.title(source)}"'
    message = ""
    if not 0 <= index < len(returned):
        message = f"{origin} has {len(returned)} outputs, counted from 0: it has no output {index}"
    elif "input_types" not in node.validates and not types_match(returned[index], declaration):
        message = f"takes {declaration.type_name}, but output {index} of {origin} is {type_name(returned[index])}"
    if message:
        yield graph.problem(node.id, name, [source, index], message, f"connect a {declaration.type_name}")


def value_problems(graph: DeclaredGraph, node: Node, name: str, value: Any) -> Iterator[Problem]:
    """The problems of the value of an input by its declaration alone: its choices and its range."""
    declaration = node.declared[name]
    if not declaration.offers(value):
        yield not_a_choice(graph, node, name, value)
    low, high = declaration.options.get("min"), declaration.options.get("max")
    if isinstance(value, int | float):  # written so that NaN fails too
        if low is not None and not value >= low:
            yield graph.problem(node.id, name, value, f"must be at least {low}", declaration.wanted)
        if high is not None and not value <= high:
            yield graph.problem(node.id, name, value, f"must be at most {high}", declaration.wanted)


def not_a_choice(graph: DeclaredGraph, node: Node, name: str, value: Any) -> Problem:
    fix = suggest(value, node.declared[name].choices or ())
    folder = foreign.folder_of(node.cls, name)
    if folder is None:
        return graph.problem(node.id, name, value, "not one of the choices", fix)
    message = f"{node.class_type}.{name} = {value!r} is not in models/{folder.name}"
    address = graph.addresses.get(value) if isinstance(value, str) else None
    source = f" (the workflow says that it can be had at {address})" if address else ""
    return graph.problem(node.id, name, value, message, f"put it into {folder}{source}; or {fix}")


# --- the node's own VALIDATE_INPUTS -----------------------------------------------------------------------------------


def _own_problems(graph: DeclaredGraph, node: Node) -> Iterator[Problem]:
    """The problem that VALIDATE_INPUTS tells, called as ComfyUI calls it; one, where ComfyUI marks every input it takes."""
    if not node.validates and not node.validates_all:
        return
    arguments = {name: value for name, value in graph.static_arguments(node).items() if node.judges(name)}
    if "input_types" in node.validates:
        outputs = {
            name: (graph.nodes[of].cls.RETURN_TYPES, at) for name, (of, at) in node.links.items() if of in graph.nodes
        }
        arguments["input_types"] = {name: types[at] for name, (types, at) in outputs.items() if 0 <= at < len(types)}
    try:
        answer = node.cls.VALIDATE_INPUTS(**arguments)
    except Exception as error:
        answer = f"VALIDATE_INPUTS raised {type(error).__name__}: {error}"
    if answer is True:
        return
    answer = answer if isinstance(answer, str) else f"refused by VALIDATE_INPUTS, which returned {answer!r}"
    message, fix = parts(answer)
    # ours name the input that they refuse, if it is one
    name = input_of(message, [name for name in arguments if name in node.constants], guess=not is_ours(node.entry))
    wanted = node.declared[name].wanted if name in node.declared else "give this node other values"
    value = node.constants.get(name) if name is not None else None
    yield graph.problem(node.id, name, value, message.removeprefix(f"{name}: "), fix or wanted)


def input_of(message: str, names: list[str], guess: bool = True) -> str | None:
    """The input that a message is about: the one that it begins with, else the only one that it mentions, else, where it may be
    guessed, the only one."""
    about = [name for name in names if re.match(rf"{re.escape(name)}\b", message)]
    about = (
        about or [name for name in names if re.search(rf"\b{re.escape(name)}\b", message)] or (names if guess else [])
    )
    return about[0] if len(about) == 1 else None
