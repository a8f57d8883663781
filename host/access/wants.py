"""Wants of a graph, files, hosts, code, secrets, by its nodes' WANTS: listed before it runs, by `otca validate` and on the page.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from .. import environment
from .addresses import host_of, is_hub_id, wandb_host
from .opening import shown
from .permissions import DOWNLOAD, POST, READ, Want, is_plain

# What a file is for, besides those of `permissions`: by this a bundle knows what to do with it.
MODEL, REWARD_MODEL, TASTE, ENCODER = "the model", "a reward model", "a taste", "an image encoder"
ADAPTER, RUN_BEFORE, GUIDE, VOTES, TOKENIZER = "an adapter", "a run before", "a guide", "votes", "a tokenizer of CLIP"
UPLOADED, PROMPT_LINES = "a picture of the input folder", "prompts, a line each"
TOKEN, FIELDS, ACCOUNT = "a token", "fields of a request", "an account"
SECRET = "secret"  # a kind of which nobody is asked: a variable of the environment, or a text that may hold a key


@dataclass(frozen=True)
class Naming:
    """The kind of name that an input has, for a Want; `asks`: when the user is, since a plain name stays in the known folders."""

    why: str
    kind: str = READ
    asks: Literal["paths", "always", "never"] = "paths"

    def wants(self, value: object, input: str) -> list[Want]:
        if value is None:
            return [Want(self.kind, "", self.why, input, plain=self.asks == "never")]
        if not isinstance(value, str) or not value:
            return []
        unasked = self.asks == "never" or (self.asks == "paths" and self.kind == READ and is_plain(value))
        if self.kind == POST:
            try:
                value = host_of(value)
            except ValueError:  # it is refused anyway
                value, unasked = "", True
        return [Want(self.kind, value, self.why, input, plain=unasked)]


SENDING = Naming("pictures and prompts", POST)  # of a server that scores


def of_node(cls: type, inputs: Mapping) -> list[Want]:
    """All that a node names, by WANTS of its class. An input that is missing names nothing."""
    links = {name: value for name, value in inputs.items() if isinstance(value, list)}
    values = {name: value for name, value in inputs.items() if name != "cls" and value is not None}
    wants = cls.WANTS(**values | dict.fromkeys(links)) if hasattr(cls, "WANTS") else ()
    # What comes through a link is known only when the graph runs.
    handed = {name: f"what node {shown(*link[:1] or [''])} hands over" for name, link in links.items()}
    return [replace(want, what=handed[want.input], linked=True) if want.input in links else want for want in wants]


def named(graph: Mapping[str, Mapping], node_classes: Mapping[str, type]) -> list[Want]:
    """All that the nodes of a graph in API form name, each with its node."""
    wants: dict[Want, None] = {}
    for node_id, entry in graph.items():
        cls, inputs = node_classes.get(entry.get("class_type", "")), entry.get("inputs")
        if cls is not None and isinstance(inputs, Mapping):
            wants |= {replace(want, node=node_id): None for want in of_node(cls, inputs)}
    return list(wants)


def wants_of(graph: Mapping[str, Mapping], node_classes: Mapping[str, type]) -> list[Want]:
    """The wants that the nodes of a graph have of the user."""
    return [want for want in named(graph, node_classes) if not want.plain]


def downloads(name: object, switch: object, input: str) -> list[Want]:
    """For WANTS of an input that may name a repository. `switch` is the workflow's own, which can only ask for the download."""
    wish = switch is None or bool(switch)
    return [Want(DOWNLOAD, name or "", "a model", input)] if wish and (name is None or is_hub_id(name)) else []


def figures_go_out(project: object, input: str = "wandb_project") -> list[Want]:
    """The wants of a project of Weights & Biases; for WANTS, and checked again before figures go out."""
    if project == "" or environment.read("WANDB_MODE").lower() in ("offline", "disabled", "dryrun"):
        return []
    return [Want(POST, "" if project is None else wandb_host() or "wandb", "the run's figures and settings", input)]
