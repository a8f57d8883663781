"""Values that the page offers for inputs whose good values follow from the graph: metrics of its rewards, layers of its model.

A graph that is still being put together is not an error here: what it does not say yet is not offered. Loads no weights, only
the headers of their files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...host import paths, search
from .. import keys
from ..types import ASKING_NODES, LOAD_NODE, MAKE_NODE
from ..workflow import foreign
from ..workflow.declared import Node
from ..workflow.running import Workflow

PIPELINE = "model_index.json"
EMBEDDED_NODE = "OTCA_EmbeddedModel"
TO_REWARDS = ("report", "advantages", "scores")  # from Training Run to what its rewards are connected to


def metrics(workflow: Workflow, run: str) -> list[str]:
    """Figures of evaluations by which the best adapter can be kept, the sum first."""
    stack = rewards_asked(workflow.nodes, run)
    if stack is None:
        return []
    links = [link for name, link in workflow.nodes[stack].links.items() if name.startswith("reward_")]
    names = [name for source, index in links for name in _name(workflow, source, index)]
    return [keys.EVALUATION_SUM, *map(keys.evaluation, dict.fromkeys(names))] if names else []


def rewards_asked(nodes: Mapping[str, Node], run: str) -> str | None:
    """The node that the rewards of what is recorded are connected to; None where nothing leads there."""
    node_id, visited = run, set()
    while node_id in nodes and node_id not in visited:
        visited.add(node_id)
        if nodes[node_id].class_type in ASKING_NODES:
            return node_id
        links = nodes[node_id].links
        node_id = next((links[name][0] for name in TO_REWARDS if name in links), "")
    return None


def _name(workflow: Workflow, source: str, index: int) -> list[str]:
    """The name of that output's reward, unless evaluations leave it out or it is not said before it is built."""
    node = workflow.nodes.get(source)
    if node is None or not hasattr(node.cls, "announced"):
        return []
    values = {name: value for name, value in _values(node).items() if name not in node.links}
    if node.cls.only_of_groups(**values):
        return []
    announced = node.cls.announced(**values)
    return [announced[index][0]] if 0 <= index < len(announced) else []


def layers(workflow: Workflow, node_id: str) -> list[str]:
    """Ends of names of the layers that an adapter can be put on, of the model of one of MODEL_NODES."""
    from ..native import lora  # imports torch

    node = workflow.nodes[node_id]
    try:
        if node.class_type == LOAD_NODE:
            values = _values(node)
            folder = search.model(values.get("path") or values.get("model") or "", PIPELINE)
            return lora.ends(lora.of_folder(folder))
        if node.class_type == MAKE_NODE:
            return _of_loader(workflow, node)
    except (OSError, ValueError):  # it is not here, or damaged: the node itself says so when it is used
        return []
    return []


def _of_loader(workflow: Workflow, node: Node) -> list[str]:
    """By the file that a loader above the model's link names, or by the embedded model."""
    from ..native import lora

    waiting, visited = [node.links[name][0] for name in ("model",) if name in node.links], set()
    while waiting:
        source = workflow.nodes.get(waiting.pop())
        if source is None or source.id in visited:
            continue
        visited.add(source.id)
        if source.class_type == EMBEDDED_NODE:
            name = _values(source).get("model")
            if isinstance(name, str) and name in paths.list_models(PIPELINE):
                return lora.ends(lora.of_embedded(name))
            return []
        for file in files_of(source).values():
            return lora.ends(lora.of_file(file))
        waiting += [link for name, (link, _) in source.links.items() if source.declared[name].type == "MODEL"]
    return []


def files_of(loader: Node) -> dict[str, Path]:
    """{input: file} of the .safetensors files that one of ComfyUI's own loaders names, and that ComfyUI lists."""
    folders = {name: foreign.folder_of(loader.cls, name) for name in loader.constants}
    kinds = {name: (folder.name, loader.constants[name]) for name, folder in folders.items() if folder is not None}
    return {
        name: search.weights(value, kind) for name, (kind, value) in kinds.items() if value in paths.list_weights(kind)
    }


def _values(node: Node) -> dict[str, Any]:
    return node.defaults | node.constants
