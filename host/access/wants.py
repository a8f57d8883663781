"""What a graph asks for outside of itself, by its nodes' WANTS: listed before it runs, by `otca validate` and on the page.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .. import environment
from .addresses import host_of, is_hub_id, wandb_host
from .opening import shown
from .permissions import DOWNLOAD, POST, READ, Want, is_plain


def wants_of(graph: Mapping[str, Mapping], node_classes: Mapping[str, type]) -> list[Want]:
    """What the nodes of a graph in API form ask for, by WANTS of their classes. An input that is missing asks for nothing."""
    wants: dict[Want, None] = {}
    for node_id, entry in graph.items():
        cls, inputs = node_classes.get(entry.get("class_type", "")), entry.get("inputs")
        if cls is None or not hasattr(cls, "WANTS") or not isinstance(inputs, Mapping):
            continue
        links = {name: value for name, value in inputs.items() if isinstance(value, list)}
        constants = {name: value for name, value in inputs.items() if name != "cls" and value is not None}
        values = constants | dict.fromkeys(links)  # None: what comes is known only when the graph runs
        for want in cls.WANTS(**values):
            if want.input in links:
                source = f"what node {shown(*links[want.input][:1] or [''])} hands over"
                want = replace(want, what=source, linked=True)
            wants[replace(want, node=node_id)] = None
    return list(wants)


def reads(value: object, why: str, input: str, always: bool = False) -> list[Want]:
    """For WANTS of an input that names a model or a file. A plain name can only mean a file in the known folders, so it is
    listed only if `always` is set."""
    if value is None:
        return [Want(READ, "", why, input)]
    if not isinstance(value, str) or not value:
        return []
    return [] if is_plain(value) and not always else [Want(READ, value, why, input)]


def posts(url: object, why: str, input: str) -> list[Want]:
    """For WANTS of an input that names an address."""
    if url is None:
        return [Want(POST, "", why, input)]
    try:
        return [Want(POST, host_of(url), why, input)]
    except ValueError:
        return []  # it is refused anyway


def downloads(name: object, switch: object, input: str) -> list[Want]:
    """For WANTS of an input that may name a repository. `switch` is the workflow's own, which can only ask for the download."""
    wish = switch is None or bool(switch)
    return [Want(DOWNLOAD, name or "", "a model", input)] if wish and (name is None or is_hub_id(name)) else []


def figures_go_out(project: object, input: str = "wandb_project") -> list[Want]:
    """What naming a project of Weights & Biases asks for; for WANTS, and checked again before figures go out."""
    if project == "" or environment.read("WANDB_MODE").lower() in ("offline", "disabled", "dryrun"):
        return []
    return [Want(POST, "" if project is None else wandb_host() or "wandb", "the run's figures and settings", input)]
