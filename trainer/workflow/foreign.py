"""Needs of a graph in API form from ComfyUI: node classes that are not ours, files of its model folders, custom packs.

A training runs our output nodes and what they need. The rest of a canvas, as a KSampler with its preview, is not run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ...host.comfyui import is_ours
from .graph import constants, links

MOST_ADDRESSES = 1000  # of model files in one canvas


@dataclass(frozen=True)
class Needs:
    """The things that ComfyUI has to bring for a graph.

    Attributes:
        classes: the names of the node classes.
        files: (folder below ComfyUI's `models`, name) of the files that its loaders name.
        packs: the custom packs that classes come from.
    """

    classes: tuple[str, ...]
    files: tuple[tuple[str, str], ...]
    packs: tuple[str, ...]


def foreign(graph: Mapping[str, Mapping]) -> list[str]:
    """Ids of the nodes that are not ours and that one of ours needs."""
    needed: set[str] = set()
    pending = [id_ for id_, entry in graph.items() if is_ours(entry)]
    while pending:
        for source, _ in links(graph[pending.pop()]).values():
            if source in graph and source not in needed:
                needed.add(source)
                pending.append(source)
    return [id_ for id_ in graph if id_ in needed and not is_ours(graph[id_])]


def headless(graph: Mapping[str, Mapping]) -> dict[str, Mapping]:
    """The part of a graph that a training without ComfyUI's server can touch: our nodes, and what they need."""
    needed = set(foreign(graph))
    return {id_: entry for id_, entry in graph.items() if id_ in needed or is_ours(entry)}


def needs_comfyui(graph: Mapping[str, Mapping], node_classes: Mapping[str, type]) -> list[str]:
    """Names of the classes for which a graph needs ComfyUI's packages; of ours, those that say NEEDS_COMFYUI."""
    own = [kind for kind in (entry["class_type"] for entry in graph.values()) if wants_comfyui(node_classes.get(kind))]
    return list(dict.fromkeys([*(graph[id_]["class_type"] for id_ in foreign(graph)), *own]))


def wants_comfyui(node_class: type | None) -> bool:
    """Whether a class of ours works with ComfyUI's own objects."""
    return getattr(node_class, "NEEDS_COMFYUI", False)


def needs(graph: Mapping[str, Mapping], node_classes: Mapping[str, type]) -> Needs | None:
    """None where the graph does without ComfyUI."""
    if not (classes := needs_comfyui(graph, node_classes)):
        return None
    files: dict[tuple[str, str], None] = {}
    packs: dict[str, None] = {}
    for entry in (graph[id_] for id_ in foreign(graph)):
        cls = node_classes.get(entry["class_type"])
        if pack := getattr(cls, "PACK", None):
            packs[pack] = None
        for name, value in constants(entry).items():
            if cls is not None and isinstance(value, str) and (folder := folder_of(cls, name)):
                files[folder.name, value] = None
    return Needs(tuple(classes), tuple(files), tuple(packs))


def folder_of(node_class: type, input_name: str) -> Any:
    """The folder (a Path) of the files that an input names; None where the class does not say."""
    say = getattr(node_class, "folder", None)
    return say(input_name) if say is not None and getattr(node_class, "FOREIGN", False) else None


# --- where its files can be had ---------------------------------------------------------------------------------------


def addresses(canvas: Any) -> dict[str, str]:
    """{name of a model file: its address}, as the nodes of a canvas have them in `properties.models`. A stranger's canvas may
    hold anything; what is not an address is left out. Nothing is ever fetched from there."""
    urls: dict[str, str] = {}
    for node in canvas_nodes(canvas):
        properties = node.get("properties")
        models = properties.get("models") if isinstance(properties, Mapping) else None
        for model in models if isinstance(models, list) else ():
            name, url = (model.get("name"), model.get("url")) if isinstance(model, Mapping) else (None, None)
            if (
                not (isinstance(name, str) and isinstance(url, str) and url.isprintable())
                or len(urls) == MOST_ADDRESSES
            ):
                continue
            if re.match(r"https?://[\w.-]", url):
                urls.setdefault(name, url)
    return urls


def canvas_nodes(canvas: Any) -> Iterator[Mapping]:
    for graph in _graphs(canvas):
        yield from _nodes(graph)


def kind_at(canvas: Any, path: str) -> str:
    """The class of a node by its id in a queued graph, where 3:5 is node 5 of the subgraph that node 3 is; "" without one."""
    kind, graph, subgraphs = "", canvas, {str(part.get("id")): part for part in _graphs(canvas)[1:]}
    for number in path.split(":"):
        kind = next((str(node.get("type")) for node in _nodes(graph) if str(node.get("id")) == number), "")
        graph = subgraphs.get(kind, {})
    return kind


def _graphs(canvas: Any) -> list[Mapping]:
    """A canvas, and the subgraphs that it brings."""
    graphs = [canvas] if isinstance(canvas, Mapping) else []
    definitions = graphs[0].get("definitions") if graphs else None
    subgraphs = definitions.get("subgraphs") if isinstance(definitions, Mapping) else None
    return graphs + [part for part in (subgraphs if isinstance(subgraphs, list) else ()) if isinstance(part, Mapping)]


def _nodes(graph: Mapping) -> Iterator[Mapping]:
    nodes = graph.get("nodes")
    yield from (node for node in (nodes if isinstance(nodes, list) else ()) if isinstance(node, Mapping))
