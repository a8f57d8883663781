"""What is seen of a graph's prompts before its model is loaded: whether it takes the whole of them, and pictures they name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ...host.access.permissions import NotAllowed
from ..families import given
from ..families.configured import Configuration
from ..prompts import PromptError, read_prompts
from ..types import DATASET_NODE, SAMPLER_NODE
from ..workflow.problem import Misfit, Problem

if TYPE_CHECKING:
    from .preflight import _Graph


def check(graph: _Graph) -> Iterator[Problem]:
    for sampler in graph.of(SAMPLER_NODE):
        loader, dataset = graph.model(sampler), graph.nodes[sampler].links["prompts"][0]
        model = graph.models.get(loader) if loader else None
        if not loader or not isinstance(model, Configuration) or graph.nodes[dataset].class_type != DATASET_NODE:
            continue
        values = graph.values[dataset]
        try:
            prompts = read_prompts(values["prompts"], values["file"])
        except (PromptError, NotAllowed):
            continue  # which the node itself refuses
        name = "file" if values["file"] else "prompts"
        checkpoint = model.checkpoint
        if checkpoint.takes_pictures or checkpoint.needs_pictures:
            wrong = _wrong_pictures(prompts, checkpoint.needs_pictures)
            yield from (graph.misfit(dataset, Misfit(name, *parts)) for parts in wrong)
        if found := model.too_long(prompts, graph.values[loader]["max_sequence_length"]):
            number, length, limit = found
            message = f"prompt {number + 1}, {prompts[number][:40]!r}…, has {length} tokens, and the text encoder reads {limit}"
            problem = graph.problem(dataset, name, message, "shorten it")
            yield replace(problem, severity="warning")


def _wrong_pictures(prompts: list[str], needed: bool) -> Iterator[tuple[str, str]]:
    """What is wrong with the first picture that cannot be had, and the fix."""
    try:
        names = given.names(prompts)
        if needed and not names:
            raise given.missing(prompts[0])
        for name in dict.fromkeys(names):
            given.check(name)
    except (PromptError, NotAllowed) as error:
        message, _, fix = str(error).partition(". Fix: ")
        yield message, fix
