"""The origin of a node's value: the nodes above it in a graph in API form, their structure and their values.

Two graphs have the same structure where they make the same kind of thing: the same node classes, wired alike, with the same
rewards, model and adapter. Ids, titles and everything that a user tunes while training (w_min, a coefficient, a learning rate)
are not structure. Imports no torch: the page's server reads graphs too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from ...host.comfyui import is_ours
from ...host.text import as_repr
from ..types import DATASET_NODE, LOAD_NODE, MAKE_NODE, MODEL_NODES, PICTURES_NODE, RUN_NODE, SAMPLER_NODE, STACK_NODE
from .graph import constants, links
from .graph import title as title_of

Graph = Mapping[str, Mapping]
Order = dict[str, dict[str, tuple[str, int]]]  # {id: its links}, sources first

# The inputs that ComfyUI's queue advances after every prompt: another seed means the next iteration, and is no change.
ADVANCING = {
    DATASET_NODE: {"index"},
    SAMPLER_NODE: {"seed"},
    PICTURES_NODE: {"index"},
    "OTCA_MixGRPOWindow": {"iteration"},
}
# They name the run, what it starts from and how it is kept: whose the result is, not how it is made.
NAMES = {
    RUN_NODE: {
        *("run_name", "iterations", "checkpoint_every", "evaluate_every", "keep_checkpoints"),
        *("best_metric", "stop_after_decline", "wandb_project", "artefacts"),
    },
    LOAD_NODE: {"resume_run", "start_from"},
    MAKE_NODE: {"resume_run", "start_from", "check_gradients"},
}
# Constants that are structure. Of a reward, whatever says which reward it is.
_STRUCTURE = {
    LOAD_NODE: {*("model", "path", "training", "start_from"), *("lora_rank", "lora_alpha", "lora_targets", "seed")},
    MAKE_NODE: {"start_from", "boundary", "lora_rank", "lora_alpha", "lora_targets", "seed"},
    "OTCA_EmbeddedModel": {"model"},
}
_REWARD, _OF_A_REWARD = "OTCA_Reward", {"model", "path", "base", "processor", "provider", "file", "function", "url"}
_OF_A_REWARD |= {"name", "held_out"}
# Inputs of ours that take one of our own types, and so decide what is trained, whatever stands between.
_EDGE = re.compile(
    r"model|prompts|trajectories|scores|advantages|report|memory|credit(_\d)?|reward_\d"
    r"|clip|vae|low_noise_model|conditioning"
)


def above(graph: Graph, node_id: str) -> dict[str, str]:
    """{id: path} of the node and all that it needs, nearest first. The path names the inputs that lead there, as in
    `advantages.credit`; the node's own is empty. Two graphs of one structure have the same paths."""
    paths, pending = {node_id: ""}, [node_id]
    while pending:
        current = pending.pop(0)
        for name, (source, _) in sorted(links(graph[current]).items()):
            if source in graph and source not in paths:
                paths[source] = f"{paths[current]}.{name}".lstrip(".")
                pending.append(source)
    return paths


def runs(graph: Graph) -> list[str]:
    """Ids of the Training Run nodes that record something. Without a report, as below a bypassed update, one records nothing."""
    return [id_ for id_, entry in graph.items() if entry["class_type"] == RUN_NODE and "report" in links(entry)]


def runs_below(graph: Graph, node_id: str) -> list[str]:
    """Ids of the Training Run nodes that record what this node makes."""
    return [id_ for id_ in runs(graph) if node_id in above(graph, id_)]


def advanced(graph: Graph) -> list[tuple[str, str, Any]]:
    """(id, input, value) of what moves on with every prompt, as a prompt has it."""
    return [
        (id_, name, value)
        for id_, entry in graph.items()
        for name, value in constants(entry).items()
        if name in ADVANCING.get(entry["class_type"], ())
    ]


def loader_above(graph: Graph, node_id: str) -> str | None:
    """Id of the nearest node that this node has its model from."""
    return next((id_ for id_ in above(graph, node_id) if graph[id_]["class_type"] in MODEL_NODES), None)


def structure(graph: Graph, node_id: str) -> str:
    """A digest of what the node is made of, by structure alone.

    A value that comes through a link counts as where it is typed in: what a foreign node hands to a structural input, as the
    text that is a model's path, or the switch between two models, is structure with all its constants.
    """
    order = _sources_first(graph, node_id)
    # The foreign nodes that something structural comes from: an edge of ours, or a structural input
    foreign, deciding = {id_ for id_ in order if not is_ours(graph[id_])}, set()
    for id_ in reversed(order):  # each after all that it is needed by
        entry = graph[id_]
        names = _structural_names(entry)
        if entry["class_type"] != DATASET_NODE:  # whose prompts are text
            names = names | {name for name in entry["inputs"] if _EDGE.fullmatch(name)}
        for name, (source, _) in order[id_].items():
            if source in foreign and (id_ in deciding if id_ in foreign else name in names):
                deciding.add(source)
    return _digest(graph, order, lambda id_: constants(graph[id_]) if id_ in deciding else _structural(graph[id_]))


def fingerprint(graph: Graph, node_id: str) -> str:
    """A digest of what the node is made of, its values included; the same for every iteration of an unchanged graph."""
    return _digest(graph, _sources_first(graph, node_id), lambda id_: _of_one_iteration(graph[id_]))


def changes(before: Graph, now: Graph, node: str | None = None) -> list[dict[str, Any]]:
    """The differences in how two graphs train: [{node, input, before, now}], and for another structure {node, before, now}
    with class names, None if a graph lacks the node. `node` in them is a title. Seeds that advance, names, and what decides how
    long and where a run is kept do not count as a difference.

    `node`: the Training Run that it is about, where there are several; None: the first.
    """
    at = [_by_path(graph, node) for graph in (before, now)]
    if not all(at):
        return []
    differences = []
    for path in sorted(at[0].keys() | at[1].keys()):
        old, new = (graph[ids[path]] if path in ids else None for graph, ids in zip((before, now), at, strict=True))
        if old is None or new is None or old["class_type"] != new["class_type"]:
            classes = [entry and entry["class_type"] for entry in (old, new)]
            differences.append({"node": path, "before": classes[0], "now": classes[1]})
            continue
        values = _tuned(old), _tuned(new)
        differences += [
            {"node": title_of(new), "input": name, "before": values[0].get(name), "now": values[1].get(name)}
            for name in sorted(values[0].keys() | values[1].keys())
            if values[0].get(name) != values[1].get(name)
        ]
    return differences


def as_begun(graph: Graph, done: int) -> dict[str, dict]:
    """The graph as it stood before `done` iterations: a training that continues from it has the same seeds as the canvas. Where
    samples were held, a value has moved on less often than that: it then began at 0 at the lowest."""
    begun = {}
    for id_, entry in graph.items():
        names = ADVANCING.get(entry["class_type"], set()) & constants(entry).keys()
        moved = {name: max(0, entry["inputs"][name] - done) for name in names}
        begun[id_] = {**entry, "inputs": {**entry["inputs"], **moved}}
    return begun


def stands_at(begun: Graph, done: int, graph: Graph, node: str) -> tuple[tuple[str, str, int], ...]:
    """The values of `graph`'s advancing inputs after `done` iterations of a run that began with a graph of the same structure.

    `begun`: as `as_begun` gives it.
    `node`: the Training Run in `graph`.

    Returns:
        (id in `graph`, input, value), those nearest to the Training Run first.
    """
    before, advanced = _by_path(begun, node), []
    for path, id_ in _by_path(graph, node).items():
        values = constants(begun[before[path]]) if path in before else {}
        names = ADVANCING.get(graph[id_]["class_type"], set()) & constants(graph[id_]).keys()
        advanced += [(id_, name, values[name] + done) for name in sorted(names) if isinstance(values.get(name), int)]
    return tuple(advanced)


def change_line(change: Mapping[str, Any]) -> str:
    """One of `changes` for a human."""
    if "input" in change:
        return f"{change['node']}, {change['input']}: {as_repr(change['before'])} → {as_repr(change['now'])}"
    if change["before"] is None or change["now"] is None:
        return f"{change['node']}: {change['now'] or change['before']} is {'new' if change['now'] else 'gone'}"
    return f"{change['node']}: {change['before']} → {change['now']}"


def _by_path(graph: Graph, node: str | None) -> dict[str, str]:
    """{path: id} of what a Training Run is made of: of `node` if it is one, else of the graph's first; empty without one."""
    runs = [id_ for id_, entry in graph.items() if entry["class_type"] == RUN_NODE]
    top = node if node in runs else next(iter(runs), None)
    return {path: id_ for id_, path in above(graph, top).items()} if top is not None else {}


def _structural_names(entry: Mapping) -> set[str]:
    kind = entry["class_type"]
    if kind.startswith(_REWARD) and kind != STACK_NODE:
        return _OF_A_REWARD & entry["inputs"].keys()
    return _STRUCTURE.get(kind, set())


def _structural(entry: Mapping) -> dict[str, Any]:
    names = _structural_names(entry)
    # An optional input that an older file lacks is the same as one that was left empty.
    return {name: value for name, value in constants(entry).items() if name in names and value not in ("", False)}


def _tuned(entry: Mapping) -> dict[str, Any]:
    left_out = NAMES.get(entry["class_type"], set())
    return {name: value for name, value in _of_one_iteration(entry).items() if name not in left_out}


def _of_one_iteration(entry: Mapping) -> dict[str, Any]:
    left_out = ADVANCING.get(entry["class_type"], set())
    return {name: value for name, value in constants(entry).items() if name not in left_out}


def _digest(graph: Graph, order: Order, values: Callable[[str], Mapping]) -> str:
    """The digest of the last node in that order."""
    digests: dict[str, str] = {}
    for id_, sources in order.items():
        made_of = {name: [digests.get(source, "missing"), index] for name, (source, index) in sources.items()}
        own = values(id_)
        # 16.0 as 16: the page knows one kind of number, and Python's files have two
        whole = {name: int(value) for name, value in own.items() if isinstance(value, float) and value.is_integer()}
        content = [graph[id_]["class_type"], {**own, **whole}, made_of]
        digests[id_] = hashlib.sha256(json.dumps(content, sort_keys=True, default=repr).encode()).hexdigest()
    return digests[id_]


def _sources_first(graph: Graph, node_id: str) -> Order:
    """The node and all that it needs; a link of a cycle counts as missing. A loop, since a graph may be deep."""
    linked: Order = {}
    order: Order = {}
    pending = [(node_id, False)]
    while pending:
        current, ready = pending.pop()
        if ready:
            order[current] = linked[current]
        elif current not in linked and current in graph:
            linked[current] = links(graph[current])
            pending.append((current, True))
            pending += [(source, False) for source, _ in linked[current].values()]
    return order
