"""*Train on these*: the workflow that learns from opinions about some pictures, filled into a template, and what it costs.

The graph is in API form. The page opens that as it opens any exported workflow, and lays the nodes out itself.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...host import paths
from ...host.text import plain_name
from ..memory import needs
from ..memory.case import TRIAL_CALLS
from ..types import MAKE_NODE, MATCHING_NODE, MODEL_NODES, PICTURES_NODE, RUN_NODE, SAVE_NODE, TRAJECTORY_NODES
from ..workflow import lineage
from ..workflow.graph import is_link
from . import plan as plans
from .kinds import MOST_TAG, TAG
from .store import Store

WORKFLOWS = paths.ASSETS.parent / "workflows" / "api"
TEMPLATE = "my_pictures"
# The models that it knows: the name of a template of ours, whose loaders, size and guidance are taken.
MODELS = {
    TEMPLATE: "the tiny model of the pack, to try it",
    "z_image": "Z-Image Turbo",
    "qwen_image": "Qwen-Image",
    "krea2": "Krea 2",
    "flux2_klein": "FLUX.2 klein",
    "flux1": "FLUX.1 dev",
}
PASSES, ITERATIONS = 8, (20, 200)  # over all opinions, and the fewest and most iterations that this may be
MOST_EVALUATED = 16  # prompts; held-out ones first


@dataclass(frozen=True)
class Recipe:
    """A workflow that is ready to be opened, and what is known of its cost.

    Attributes:
        graph: in API form.
        tag: by which its pictures are known from now on.
        learn_from: one of FORMS.
        items: pairs or pictures that are trained on.
        held_out: pairs that are not.
        forwards: calls that try the network and that the updates take, a backward pass counted as two; without evaluations.
        memory: of the GPU in bytes, in the largest phase; None if it cannot be told.
        said: what was left out, that there are few opinions, how many iterations, why the memory is not known.
    """

    graph: dict[str, dict]
    tag: str
    learn_from: str
    items: int
    held_out: int
    forwards: int
    memory: int | None
    said: tuple[str, ...]


def write(store: Store, names: Iterable[str], model: str = TEMPLATE, tag: str = "train") -> Recipe:
    """The workflow that learns from the opinions about these pictures. They get the tag; other pictures that had it lose it.

    Pairs are made where pictures can be compared, as `plan` says; else each picture is learned from alone, by `nft`.

    `names`: ids of pictures; none: all that there are opinions about, without a tag.
    `model`: one of MODELS.

    Raises:
        PairError: fewer opinions than a training takes.
        ValueError: an unknown model, or a tag that cannot be one.
        Unwritable: see `Store`.
    """
    if model not in MODELS:
        raise ValueError(f"there is no template for the model {model!r}. Fix: one of {', '.join(MODELS)}")
    chosen = list(dict.fromkeys(names))
    tag = plain_name(tag)[:MOST_TAG] if chosen else ""
    if chosen:
        before = {opinion.picture for opinion in store.standing(TAG) if opinion.other == tag}
        changes = [(name, None) for name in before.difference(chosen)] + [
            (name, True) for name in chosen if name not in before
        ]
        store.give([{"kind": TAG, "picture": name, "other": tag, "value": value} for name, value in changes])
    source = plans.read_source("", tag)
    try:
        planned, learn_from = plans.plan(source, plans.PAIRS, 0.2), plans.PAIRS
    except plans.PairError:
        planned, learn_from = plans.plan(source, plans.PICTURES, 0.2), plans.PICTURES
    graph = _template(model)
    by_kind = {entry["class_type"]: entry["inputs"] for entry in graph.values()}
    own, update, run = by_kind[PICTURES_NODE], by_kind[MATCHING_NODE], by_kind[RUN_NODE]
    size = own["pairs_per_iteration"] if learn_from == plans.PAIRS else 2 * own["pairs_per_iteration"]
    iterations = min(max(math.ceil(PASSES * len(planned.groups) / size), ITERATIONS[0]), ITERATIONS[1])
    own |= {"learn_from": learn_from, "tag": tag, "folder": ""}
    update["loss"] = "dpo" if learn_from == plans.PAIRS else "nft"
    prompts = dict.fromkeys(group.prompt for group in (*planned.held_out, *planned.groups))
    lines = [" ".join(prompt.split()) for prompt in prompts if prompt.strip()]
    run |= {"iterations": iterations, "evaluation_prompts": "\n".join(lines[:MOST_EVALUATED])}
    levels = min(update["sampled_steps"] or own["levels"], own["levels"])
    others = 1  # the untrained model, which dpo compares with and the KL term pulls to
    forwards = iterations * 2 * own["pairs_per_iteration"] * levels * (3 + others) + TRIAL_CALLS
    remarks, memory = [*planned.notes[1:], f"{iterations} iterations"], None
    try:
        memory = needs.read(graph)[0].needs.total if model != TEMPLATE else None  # the tiny model fits everywhere
    except ValueError as error:
        remarks.append(f"Memory is not known: {error}")
    return Recipe(graph, tag, learn_from, len(planned.groups), len(planned.held_out), forwards, memory, tuple(remarks))


def _read(name: str) -> dict[str, dict]:
    return json.loads((WORKFLOWS / f"{name}.json").read_text(encoding="utf-8"))


def _template(model: str) -> dict[str, dict]:
    """The template's graph, with the loaders, the size and the guidance of the model's own one in place of the tiny model's."""
    graph = _read(TEMPLATE)
    if model == TEMPLATE:
        return _for_own_pictures(graph, {})
    template = _read(model)
    maker = next(number for number, entry in template.items() if entry["class_type"] == MAKE_NODE)
    sampler = next(entry["inputs"] for entry in template.values() if entry["class_type"] in TRAJECTORY_NODES)
    update = next(entry["inputs"] for entry in template.values() if "learning_rate" in entry["inputs"])
    loader = next(number for number, entry in graph.items() if entry["class_type"] in MODEL_NODES)
    for number in lineage.above(graph, loader).keys() - {loader}:
        del graph[number]
    number_of = {number: str(100 + int(number)) for number in lineage.above(template, maker)} | {maker: loader}
    for number, new in number_of.items():
        entry = copy.deepcopy(template[number])
        entry["inputs"] = {
            name: [number_of[value[0]], value[1]] if is_link(value) else value
            for name, value in entry["inputs"].items()
        }
        graph[new] = entry
    same = {
        name: sampler[name] for name in ("width", "height", "shift", "guidance", "negative_prompt") if name in sampler
    }
    return _for_own_pictures(
        graph,
        {
            PICTURES_NODE: {**same, "levels": sampler["steps"], "pairs_per_iteration": 2, "batch_size": 1},
            MATCHING_NODE: {"learning_rate": update["learning_rate"], "batch_size": 2},
            RUN_NODE: {"run_name": f"my_pictures_{model}", "evaluate_every": 20, "checkpoint_every": 20},
            SAVE_NODE: {"filename": f"my_pictures_{model}_lora"},
        },
    )


def _for_own_pictures(graph: dict[str, dict], inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict]:
    """The graph with these inputs and a preview, without the reward that knows what the template's own pictures show."""
    judges = {number for number, entry in graph.items() if entry["class_type"] == "OTCA_RewardShapesAccuracy"}
    kept = {number: entry for number, entry in graph.items() if number not in judges}
    for entry in kept.values():
        entry["inputs"] = {
            name: value for name, value in entry["inputs"].items() if not (is_link(value) and value[0] in judges)
        } | inputs.get(entry["class_type"], {})
    own = next(number for number, entry in kept.items() if entry["class_type"] == PICTURES_NODE)
    return kept | {str(max(map(int, kept)) + 1): {"class_type": "PreviewImage", "inputs": {"images": [own, 3]}}}
