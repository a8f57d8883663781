"""What of a graph's sampler, update and rewards decides its memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..schedule import step_kinds
from ..types import DATASET_NODE, MATCHING_NODE, PAIRS_NODE, STEP_NODES, TRAJECTORY_NODES, SamplerSettings
from ..workflow import graph as api
from .iteration import REWARDS, Iteration


def iteration(graph: Mapping[str, Mapping], off: float | None) -> Iteration:
    """Of an API graph. `off`: classifier-free guidance above it takes a second row; None: guidance is a number of the network's.

    Raises:
        ValueError: there is none of a node that it takes, or several.
    """
    source = the_only(graph, "SDE Sampler or Preference Pairs", *TRAJECTORY_NODES)
    update = the_only(graph, "GRPO Step or Matching Step", *STEP_NODES)
    sampler, step = plain(source["inputs"]), plain(update["inputs"])
    pairs = source["class_type"] == PAIRS_NODE
    settings = SamplerSettings.of_node(source["class_type"], {"levels": 1, **sampler} if pairs else sampler)
    prompts = [plain(entry["inputs"]) for entry in graph.values() if entry["class_type"] == DATASET_NODE]
    count = prompts[0].get("prompts_per_iteration", 1) if prompts else 1
    group = 2 if pairs else sampler.get("group_size", 12)
    samples = 2 * sampler.get("pairs_per_iteration", 4) if pairs else group * count
    judges = [entry for entry in graph.values() if entry["class_type"] in REWARDS]
    matching = update["class_type"] == MATCHING_NODE
    trained = settings.transitions - (settings.kind != "ode" and not settings.train_last_step)
    if settings.window:
        trained = sum(kind != "ode" for kind in step_kinds(settings))
    return Iteration(
        size=(settings.width, settings.height, settings.frames),
        samples=samples,
        alike=group if settings.shared_noise else 1,
        prompts=samples // 2 if pairs else count,
        steps=settings.transitions,
        trained_steps=max(1, trained),
        batch=step.get("batch_size") or samples,
        sampling_batch=settings.batch_size or samples,
        guided=off is not None and max(settings.guidance, settings.guidance_2) > off,
        both=step.get("unconditional_gradient", True),
        keep_graph=sampler.get("keep_graph") == "on",
        merge_adapter=settings.merge_adapter,
        copies=bool(step.get("ema_decay")) + (matching and step.get("old_policy") != "on_policy"),
        pulled=bool(step.get("kl_coefficient")) or matching,
        rewards=tuple((REWARDS[entry["class_type"]], bool(entry["inputs"].get("offload"))) for entry in judges),
    )


def plain(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that are no links; of the others their nodes' defaults have to do."""
    return {name: value for name, value in inputs.items() if not api.is_link(value)}


def the_only(graph: Mapping[str, Mapping], title: str, *kinds: str) -> Mapping:
    """The one node of these kinds. Raises ValueError where there is none, or several."""
    found = [entry for entry in graph.values() if entry["class_type"] in kinds]
    if len(found) != 1:
        raise ValueError(
            f"{title}: the workflow has {len(found)} of it, and memory is estimated for one. Fix: give a workflow with one, such "
            "as workflows/api/z_image.json or workflows/api/otca_flux.json"
        )
    return found[0]
