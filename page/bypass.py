"""What it means that a node of ours is bypassed, where ComfyUI's own answer, that the first input of the same type goes through,
has nothing to say: without a credit node all steps count alike, without a fusion node the advantages are added up, without an
update nothing is trained and so nothing is recorded, without a window the sampler's own numbers hold, and without Tuned Model
stock nodes have the untouched model.

ComfyUI's page leaves bypassed nodes out of what it queues. They are in the canvas that comes with it, and are read from there.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..nodes import NODE_CLASS_MAPPINGS
from ..trainer.types import RUN_NODE
from ..trainer.workflow.graph import is_link

MUTED, BYPASSED = 2, 4  # LiteGraph's modes
MOST_NODES = 20_000  # that are looked at: a subgraph that holds itself has no end
FROM_OUTSIDE, TO_OUTSIDE = "-10", "-20"  # what stands in a subgraph for what is connected to it
WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN")
UPDATES = ("OTCA_GRPOStep", "OTCA_MatchingStep", "OTCA_RewardGradientStep")

Graph = dict[str, dict[str, Any]]  # in API form


# --- what stands in a bypassed node's place ---------------------------------------------------------------------------


def _uniform(node: str, entry: dict) -> Graph:
    inputs = {"trajectories": entry["inputs"].get("trajectories"), "method": "uniform"}
    return {node: {**entry, "class_type": "OTCA_StepCredit", "inputs": inputs}}


def _plain_sum(node: str, entry: dict) -> Graph:
    inputs = {name: entry["inputs"].get(name) for name in ("scores", "credit")}
    inputs |= {"mode": "weighted_advantages", "std_scope": entry["inputs"].get("std_scope", "group")}
    return {node: {**entry, "class_type": "OTCA_WeightedFuse", "inputs": inputs}}


def _uniform_sum(node: str, entry: dict) -> Graph:
    """Stepwise Gain is credit and fusion in one: of uniform credit, and the same sum of what the pictures scored at the end."""
    credit, given = f"{node}_credit", entry["inputs"]
    inputs = {"scores": given.get("scores"), "credit": [credit, 0], "mode": given.get("fusion"), "std_scope": "group"}
    return _uniform(credit, entry) | {node: {**entry, "class_type": "OTCA_WeightedFuse", "inputs": inputs}}


CREDIT = ("TCDWeights", "StepCredit")
FUSION = ("MOCAFuse", "MinNormFuse", "WeightedFuse")
IN_ITS_PLACE: dict[str, Callable[[str, dict], Graph]] = {
    **{f"OTCA_{name}": _uniform for name in CREDIT},
    **{f"OTCA_{name}": _plain_sum for name in FUSION},
    "OTCA_StepwiseGain": _uniform_sum,
}
WINDOW = "OTCA_MixGRPOWindow"  # what it gives is taken from the widgets that it feeds


def _of_make_trainable(entry: dict, graph: Graph) -> list:
    """The models as Make Trainable got them: without what was trained."""
    seen: set[str] = set()
    link = entry["inputs"].get("model")
    while is_link(link) and link[0] in graph and link[0] not in seen:
        seen.add(link[0])
        source = graph[link[0]]
        given = source["inputs"]
        if source.get("class_type") == "OTCA_MakeTrainable":
            return [given.get(name) for name in ("model", "clip", "vae", "low_noise_model")]
        link = given.get("model")
    return []


# Where the outputs of a bypassed node come from instead, one by one. What has no other source, such as its picture, is not there,
# and what shows it does not run.
THROUGH: dict[str, Callable[[dict, Graph], list]] = {
    "OTCA_BestOfN": lambda entry, graph: [entry["inputs"].get("advantages")],
    "OTCA_CombineCredit": lambda entry, graph: [entry["inputs"].get("credit_1")],
    "OTCA_SpatialCredit": lambda entry, graph: [entry["inputs"].get("credit")],
    "OTCA_TrainingRun": lambda entry, graph: [],
    "OTCA_TunedModel": _of_make_trainable,
}
WITH_A_MEANING = {*IN_ITS_PLACE, *THROUGH, WINDOW}


# --- the canvas -------------------------------------------------------------------------------------------------------
# It is a stranger's, like the graph: what is not as ComfyUI writes it is taken as not there.


@dataclass
class Level:
    """A graph of the canvas, or that of a subgraph, in `node` of the graph above; ids of its nodes begin with `prefix`."""

    nodes: dict[str, dict[str, Any]]
    links: dict[Any, tuple[str, Any, str, Any]]  # {id: origin, its slot, target, its slot}
    prefix: str = ""
    above: Level | None = None
    node: str = ""
    inner: dict[str, Level] = field(default_factory=dict)

    def source(self, link: Any) -> list | None:
        """[id, output] of what a link begins at, through reroutes, subgraphs and bypassed nodes without a meaning of ours."""
        level, seen = self, set()
        while link in level.links and (level.prefix, link) not in seen:
            seen.add((level.prefix, link))
            origin, slot, *_ = level.links[link]
            if origin == FROM_OUTSIDE and level.above:
                level, link = level.above, _link_of(level.above.nodes[level.node], slot)
                continue
            node = level.nodes.get(origin)
            if node is None or node.get("mode") == MUTED:
                return None
            if origin in level.inner:
                level = level.inner[origin]
                ends = (
                    link for link, (*_, target, place) in level.links.items() if (target, place) == (TO_OUTSIDE, slot)
                )
                link = next(ends, None)
            elif node["type"] == "Reroute":
                link = _link_of(node, 0)
            elif node.get("mode") == BYPASSED and node["type"] not in WITH_A_MEANING:
                link = _link_of(node, _let_through(node, slot))
            else:
                return [level.prefix + origin, slot]
        return None


def _levels(canvas: Mapping) -> list[Level]:
    """The graph and all subgraphs in it that are not bypassed themselves."""
    definitions = canvas.get("definitions")
    listed = _objects(definitions.get("subgraphs")) if isinstance(definitions, dict) else []
    subgraphs = {str(each.get("id")): each for each in listed}
    found: list[Level] = []
    waiting: list[tuple[Mapping, Level | None, str]] = [(canvas, None, "")]
    while waiting and sum(len(level.nodes) for level in found) <= MOST_NODES:
        content, above, node = waiting.pop(0)
        links = content.get("links")
        ends = map(_ends, links if isinstance(links, list) else [])
        nodes = {
            str(each.get("id")): each for each in _objects(content.get("nodes")) if isinstance(each.get("type"), str)
        }
        prefix = f"{above.prefix}{node}:" if above else ""
        level = Level(nodes, {each[0]: each[1:] for each in ends if each}, prefix, above, node)
        if above:
            above.inner[node] = level
        found.append(level)
        for name, each in nodes.items():
            if each["type"] in subgraphs and each.get("mode") not in (MUTED, BYPASSED):
                waiting.append((subgraphs[each["type"]], level, name))
    return found


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _ends(link: Any) -> tuple[Any, str, Any, str, Any] | None:
    """(id, origin, its slot, target, its slot) of a link, which is a list or, in a subgraph, an object."""
    if isinstance(link, dict):
        link = [link.get(name) for name in ("id", "origin_id", "origin_slot", "target_id", "target_slot")]
    if not isinstance(link, list) or len(link) < 5 or not all(isinstance(each, int | str) for each in link[:5]):
        return None
    number, origin, slot, target, target_slot = link[:5]
    return number, str(origin), slot, str(target), target_slot


def _slots(node: Mapping, side: str) -> list[dict[str, Any]]:
    return _objects(node.get(side))


def _link_of(node: Mapping, slot: Any) -> Any:
    """The link that ends at an input."""
    inputs = _slots(node, "inputs")
    link = inputs[slot].get("link") if isinstance(slot, int) and 0 <= slot < len(inputs) else None
    return link if isinstance(link, int | str) else None


def _let_through(node: Mapping, slot: Any) -> int | None:
    """The input that ComfyUI lets through in place of an output: that of the same place, or else the first of the same type."""
    inputs, outputs = _slots(node, "inputs"), _slots(node, "outputs")
    if not isinstance(slot, int) or not 0 <= slot < len(outputs):
        return None
    type_ = outputs[slot].get("type")
    same = [place for place, each in enumerate(inputs) if each.get("type") == type_]
    return slot if slot in same else next(iter(same), None)


def _widgets(node: Mapping) -> dict[str, Any]:
    """The values of a node of ours as the canvas has them."""
    values, declared = node.get("widgets_values"), NODE_CLASS_MAPPINGS[node["type"]].INPUT_TYPES()
    if isinstance(values, dict):
        return dict(values)
    left, found = list(values) if isinstance(values, list) else [], {}
    for name, (type_, options) in {**declared["required"], **declared.get("optional", {})}.items():
        if left and (isinstance(type_, list) or type_ in WIDGETS):
            found[name] = left.pop(0)
            if options.get("control_after_generate"):
                left[:1] = []
    return found


# --- the graph --------------------------------------------------------------------------------------------------------


def as_meant(prompt: Graph, canvas: Mapping) -> Graph:
    """A queued graph in API form, with what bypassed nodes of ours mean, as the canvas that it was made from says."""
    if not all(isinstance(entry, dict) and isinstance(entry.get("inputs"), dict) for entry in prompt.values()):
        return prompt  # which is refused for what it is
    levels = _levels(canvas)
    places = [(level, name, node) for level in levels for name, node in level.nodes.items()]
    bypassed = [(level, name, node) for level, name, node in places if node.get("mode") == BYPASSED]
    out = {level.prefix + name: _entry(level, node) for level, name, node in bypassed if node["type"] in WITH_A_MEANING}
    graph = {name: {**entry, "inputs": dict(entry["inputs"])} for name, entry in prompt.items()}
    if out:
        for level, name, node in places:
            if (user := level.prefix + name) in graph:
                graph[user]["inputs"] |= _from_bypassed(level, node, out)
        graph = _without(graph | out, set(out))
    return _without_record(graph) if any(node["type"] in UPDATES for *_, node in bypassed) else graph


def named(prompt: Graph, canvas: Mapping, classes: Container[str]) -> Graph:
    """A queued graph with the classes of those of its nodes that ComfyUI does not list, as far as they are of `classes`: its page
    leaves them out, and ComfyUI could not say what is missing."""
    types = {level.prefix + name: node["type"] for level in _levels(canvas) for name, node in level.nodes.items()}
    lacking = {
        name: {**entry, "class_type": types[name]}
        for name, entry in prompt.items()
        if isinstance(entry, dict) and "class_type" not in entry and types.get(name, "") in classes
    }
    return {**prompt, **lacking}


def _entry(level: Level, node: Mapping) -> dict[str, Any]:
    """A bypassed node as it would be queued if it were not."""
    named = {
        str(each.get("name")): level.source(_link_of(node, slot)) for slot, each in enumerate(_slots(node, "inputs"))
    }
    linked = {name: source for name, source in named.items() if source}
    title = node.get("title") or NODE_CLASS_MAPPINGS[node["type"]].TITLE
    return {"class_type": node["type"], "inputs": _widgets(node) | linked, "_meta": {"title": f"{title} (bypassed)"}}


def _from_bypassed(level: Level, node: Mapping, out: Graph) -> dict[str, Any]:
    """The inputs of a node that bypassed ones feed: links to them, and the node's own numbers in place of a window's."""
    found = {}
    for slot, each in enumerate(_slots(node, "inputs")):
        source = level.source(_link_of(node, slot))
        if source and source[0] in out:
            name = str(each.get("name"))
            window = out[source[0]]["class_type"] == WINDOW
            found[name] = (
                (_widgets(node).get(name) if node["type"] in NODE_CLASS_MAPPINGS else None) if window else source
            )
    return found


def _without(graph: Graph, out: set[str]) -> Graph:
    """The graph with other nodes in the places of these."""
    result: Graph = {}
    for name, entry in graph.items():
        if name not in out:
            result[name] = entry
        elif stands_in := IN_ITS_PLACE.get(entry["class_type"]):
            result |= stands_in(name, entry)
    places = out | (result.keys() - graph.keys())
    lacking = set()
    for name, entry in result.items():
        for input, value in list(entry["inputs"].items()):
            entry["inputs"][input] = given = _passed(value, graph, out)
            if given is None:
                del entry["inputs"][input]
                lacking |= (
                    {name} if is_link(value) and input != "credit" else set()
                )  # without one all steps count alike
    result = _without_nodes(result, lacking)
    # What nobody needs is not run: the node was bypassed.
    kept = result.keys() - places
    waiting = list(kept)
    while waiting:
        linked = {value[0] for value in result[waiting.pop()]["inputs"].values() if is_link(value)}
        fresh = (linked & result.keys()) - kept
        kept |= fresh
        waiting += fresh
    return {name: entry for name, entry in result.items() if name in kept}


def _passed(value: Any, graph: Graph, out: set[str]) -> Any:
    """What an input is given, where bypassed nodes let something through; None where they do not."""
    seen = set()
    while is_link(value) and value[0] in out and (through := THROUGH.get(graph[value[0]]["class_type"])):
        if value[0] in seen:
            return None
        seen.add(value[0])
        outputs = through(graph[value[0]], graph)
        value = outputs[value[1]] if 0 <= value[1] < len(outputs) else None
    return value


def _without_record(graph: Graph) -> Graph:
    """The graph without what records an update that does not take place, and without what needs that."""
    records = {name for name, entry in graph.items() if entry.get("class_type") == RUN_NODE}
    return _without_nodes(graph, {name for name in records if not graph[name]["inputs"].get("report")})


def _without_nodes(graph: Graph, gone: set[str]) -> Graph:
    """The graph without these nodes and without what needs them."""
    users: dict[str, list[str]] = {}
    for name, entry in graph.items():
        for value in filter(is_link, entry["inputs"].values()):
            users.setdefault(value[0], []).append(name)
    waiting, left = list(gone), set(gone)
    while waiting:
        fresh = set(users.get(waiting.pop(), [])) - left
        left |= fresh
        waiting += fresh
    return {name: entry for name, entry in graph.items() if name not in left}
