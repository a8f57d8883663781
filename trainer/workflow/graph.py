"""A graph in ComfyUI's API form, {id: {"class_type": …, "inputs": …, "_meta": …}}, without its node classes. Imports no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ...host.comfyui import is_ours
from ..types import RUN_NODE

LONGEST_TITLE = 100  # characters; what is longer is cut


def is_link(value: Any) -> bool:
    """Whether an input's value is [id of a node, which of its outputs]."""
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and type(value[1]) is int


def wrapped(value: Any) -> Any:
    """A constant as it is exported: a plain list could be taken for a link."""
    return {"__value__": list(value)} if isinstance(value, list | tuple) else value


def constants(entry: Mapping) -> dict[str, Any]:
    """The inputs of a node that are not links."""
    return {name: value for name, value in entry["inputs"].items() if not is_link(value)}


def links(entry: Mapping) -> dict[str, tuple[str, int]]:
    """The inputs of a node that come from another one: (its id, which of its outputs)."""
    return {name: (value[0], value[1]) for name, value in entry["inputs"].items() if is_link(value)}


def title(entry: Mapping, class_titles: Mapping[str, str] | None = None) -> str:
    """A node's own title as one short line, else that of its class. What a file holds as `_meta` may be anything."""
    meta = entry.get("_meta")
    text = meta.get("title") if isinstance(meta, Mapping) else None
    line = " ".join(text[: 2 * LONGEST_TITLE].split())[:LONGEST_TITLE] if isinstance(text, str) else ""
    class_type: str = entry["class_type"]
    return line or (class_titles or {}).get(class_type, class_type)


def settings(graph: Mapping[str, Mapping]) -> dict[str, dict[str, Any]]:
    """{title of a node: {input: constant}} of a graph in API form; a title that occurs twice is followed by the node's id."""
    titles = told_apart({node_id: title(entry) for node_id, entry in graph.items()})
    return {titles[node_id]: constants(entry) for node_id, entry in graph.items()}


def told_apart(titles: Mapping[str, str]) -> dict[str, str]:
    """{node: its title}, where one that occurs twice is followed by the node's id."""
    counts = Counter(titles.values())
    return {node: title if counts[title] == 1 else f"{title} {node}" for node, title in titles.items()}


def planned_iterations(graph: Mapping[str, Mapping]) -> int | None:
    """The iterations that Training Run asks for; None where the graph has none, or says no number."""
    planned = [entry["inputs"].get("iterations") for entry in graph.values() if entry["class_type"] == RUN_NODE]
    return planned[0] if planned and isinstance(planned[0], int) else None


def plain(graph: Mapping[str, Mapping]) -> dict[str, dict]:
    """A graph without what ComfyUI writes into it while it runs: the answers of IS_CHANGED, some of which are not JSON (NaN)."""
    return {
        node_id: {key: value for key, value in entry.items() if key != "is_changed"} for node_id, entry in graph.items()
    }


def resumable(graph: Mapping[str, Mapping]) -> dict[str, dict]:
    """A graph in API form as a run's folder keeps it: without `resume_run`, since --resume names the run."""
    kept = {node_id: {**entry, "inputs": dict(entry["inputs"])} for node_id, entry in plain(graph).items()}
    for entry in kept.values():
        if is_ours(entry) and "resume_run" in entry["inputs"]:
            entry["inputs"]["resume_run"] = ""
    return kept
