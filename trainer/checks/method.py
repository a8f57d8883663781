"""What does not go together in a graph's method: its sampler, its credit and its update. Checks of `preflight`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ..schedule import unequal_shares
from ..types import (
    ASKING_NODES,
    CREDIT_ONLY,
    CREDITS,
    GIVEN_NODES,
    GRADIENT_NODE,
    LOAD_NODE,
    MATCHING_NODE,
    SELECTING_NODE,
    STEP_NODE,
    STEP_NODES,
    TCD_NODE,
    TRAJECTORY_NODES,
    GradientSettings,
)
from ..updates import refusals
from ..workflow import lineage

if TYPE_CHECKING:
    from ..workflow.problem import Problem
    from .graph import CheckedGraph


def _traits(graph: CheckedGraph, node_id: str) -> Collection[str]:
    """What a node asks for, as the rows of `types.CREDITS` say it."""
    traits = getattr(graph.workflow.node_class(node_id), "traits", None)
    return traits(**graph.values[node_id]) if traits else ()


def _credit(graph: CheckedGraph) -> Iterator[Problem]:
    """Two credits that both rescale the ratio cannot be one."""

    rescaling: set[str] = set()
    for node_id, node in graph.nodes.items():  # sources first
        if "ratio" in _traits(graph, node_id):
            rescaling.add(node_id)
        credits = {
            name: source for name, (source, _) in node.links.items() if node.declared[name].type == "OTCA_CREDIT"
        }
        if "OTCA_CREDIT" in node.cls.RETURN_TYPES and rescaling & set(credits.values()):
            rescaling.add(node_id)
        both = [credits[name] for name in ("credit_1", "credit_2") if name in credits]
        if len(both) == 2 and rescaling.issuperset(both):
            message = f"credit_1 and credit_2 both rescale the ratio: {graph.titles(both)}"
            yield graph.problem(node_id, "credit_2", message, "keep one of the two")


def _noiseless(graph: CheckedGraph) -> Iterator[Problem]:
    """A credit that weighs steps by their noise needs some."""
    for node_id in graph.nodes:
        for sampler in graph.samplers[node_id] if "noise" in _traits(graph, node_id) else ():
            if graph.settings(sampler).kind == "ode":
                message = f"weighs steps by their noise, and {graph.titles([sampler])} adds none (kind = ode)"
                fix = "method = uniform, TCD Weights in its place, or another kind on SDE Sampler"
                yield graph.problem(node_id, "method", message, fix)


def _asked_again(graph: CheckedGraph) -> Iterator[Problem]:
    """A credit that asks rewards about the pictures predicted at every step needs rewards that may be asked about them."""
    for node_id, node in graph.nodes.items():
        stack = node.links.get("scores", ("", 0))[0]
        if stack not in graph.of(*ASKING_NODES) or "rewards" not in _traits(graph, node_id):
            continue
        if graph.nodes[stack].class_type in GIVEN_NODES:
            message = f"asks the rewards at every step, and the preferences of {graph.titles([stack])} come from none"
            yield graph.problem(node_id, "scores", message, "choose a credit that asks no reward")
            continue
        for name, (source, _) in graph.nodes[stack].links.items():
            if graph.only_of_groups(source) or getattr(graph.workflow.node_class(source), "COMPARES", False):
                message = f"asks the rewards at every step, and {graph.titles([source])} only answers at the end"
                fix = f"disconnect {name} of {graph.titles([stack])}, or choose a credit that asks no reward"
                yield graph.problem(node_id, "scores", message, fix)


def _update(graph: CheckedGraph) -> Iterator[Problem]:
    """A sampler and a credit that the update has a use for."""
    for step in graph.of(*STEP_NODES):
        kind = graph.nodes[step].class_type
        matching, follows = kind == MATCHING_NODE, kind == GRADIENT_NODE
        guided = follows and _credit_only(graph, step)
        if follows and not guided and "advantages" in graph.nodes[step].links:
            # What the other gradient refuses, this does.
            follows, matching = False, graph.values[step]["also"] != "grpo"
        for sampler in sorted(graph.samplers[step]):
            if graph.nodes[sampler].class_type in GIVEN_NODES:
                if kind != MATCHING_NODE:
                    message = f"{graph.titles([sampler])} gives pictures that no policy sampled"
                    yield graph.problem(step, "trajectories", message, "Matching Step as the update")
                continue
            settings, keeps_graph = graph.settings(sampler), graph.values[sampler]["keep_graph"] == "on"
            misfits = refusals.of_ratios(settings)
            if matching:
                misfits = refusals.of_matching(settings, keeps_graph)
            elif follows:
                misfits = refusals.of_kept_graph(
                    "Reward Gradient Step draws the calls that it trains, which auto keeps", keeps_graph
                )
            if kind == GRADIENT_NODE:
                yield from _gradient_settings(graph, step, settings.transitions)
            yield from (graph.misfit(sampler, misfit) for misfit in misfits)
        above = lineage.above(graph.workflow.entries, step) if matching or guided else ()
        title = graph.workflow.node_class(step).TITLE
        if scaling := [id_ for id_ in above if "ratio" in _traits(graph, id_)]:
            yield graph.misfit(step, refusals.of_credit(graph.titles(scaling), title))
        if measured := [id_ for id_ in above if "gradients" in _traits(graph, id_)]:
            yield graph.misfit(step, refusals.of_measuring(graph.titles(measured), title))
        values = graph.values[step]
        if guided and (weighing := [id_ for id_ in above if _weighs(graph, id_)]):
            for misfit in refusals.of_drawing(values["mode"], graph.titles(weighing)):
                yield graph.misfit(step, misfit)
        if kind == MATCHING_NODE and values["lowest_level"] >= values["highest_level"]:
            message = f"lowest_level = {values['lowest_level']} is not below highest_level = {values['highest_level']}"
            yield graph.problem(step, "lowest_level", message, "a lower one, or a higher highest_level")


def _idle(graph: CheckedGraph) -> Iterator[Problem]:
    """Inputs of a step that only count beside another one."""
    for step in graph.of(*STEP_NODES):
        values, links = graph.values[step], graph.nodes[step].links
        idle = {"also": "connect advantages"} if values.get("also") == CREDIT_ONLY and "advantages" not in links else {}
        if values.get("reference_guidance") and not values.get("kl_coefficient", "linked"):
            idle["reference_guidance"] = "a kl_coefficient above 0"
        for name, fix in idle.items():
            message = f"{name} = {values[name]} changes nothing here"
            yield replace(graph.problem(step, name, message, fix), severity="warning")


def _weighs(graph: CheckedGraph, node_id: str) -> bool:
    """Whether it is a credit that may weigh some steps more than others."""
    method = graph.values[node_id].get("method", "uniform")
    return node_id in graph.of(TCD_NODE) or (method in CREDITS and method != "uniform")


def _credit_only(graph: CheckedGraph, step: str) -> bool:
    """Whether advantages only say when and what the step follows."""
    return "advantages" in graph.nodes[step].links and graph.values[step].get("also") == CREDIT_ONLY


def _gradient_settings(graph: CheckedGraph, step: str, transitions: int) -> Iterator[Problem]:
    known = {
        name: value
        for name, value in graph.values[step].items()
        if name in GradientSettings.__dataclass_fields__ and graph.known(step, name) is not None
    }
    for misfit in refusals.of_gradient_settings(GradientSettings(**{"learning_rate": 0.0, **known}), transitions):
        yield graph.misfit(step, misfit)


def _decoder(graph: CheckedGraph) -> Iterator[Problem]:
    """A decoder that stands in for one that ComfyUI loaded."""
    for step in graph.of(GRADIENT_NODE):
        loader = graph.model(step)
        if "decoder" in graph.nodes[step].links and loader in graph.of(LOAD_NODE):
            yield graph.misfit(step, refusals.of_decoder())


def _followed(graph: CheckedGraph) -> Iterator[Problem]:
    """Rewards with a gradient, for an update that follows it; those without are only watched."""
    for step in graph.of(GRADIENT_NODE):
        stack = graph.nodes[step].links["scores"][0]
        if stack not in graph.of(*ASKING_NODES):
            continue
        follows: dict[str, bool] = {}
        for source, index in (link for name, link in graph.nodes[stack].links.items() if name.startswith("reward_")):
            cls = graph.workflow.node_class(source)
            if not hasattr(cls, "announced"):
                return  # who knows
            own, held_out = cls.announced(**graph.values[source])[index]
            if not held_out:
                follows[own] = cls.has_gradient()
        if follows and not any(follows.values()):
            yield graph.misfit(step, refusals.of_gradients(follows))
        elif "advantages" not in graph.nodes[step].links or _credit_only(graph, step):
            for own in (own for own, has in follows.items() if not has):
                message = f"reward {own!r} has no gradient: it is watched, and not trained on"
                fix = "switch on its held_out to say so, or connect advantages, whose update trains on it too"
                yield replace(graph.problem(step, "scores", message, fix), severity="warning")


def _selection(graph: CheckedGraph) -> Iterator[Problem]:
    """A selection of samples that leaves the update something to learn from."""
    for step in graph.of(MATCHING_NODE):
        above = lineage.above(graph.workflow.entries, step)
        for node_id in filter(above.__contains__, graph.of(SELECTING_NODE)):
            values = graph.values[node_id]
            for misfit in refusals.of_selection(graph.values[step]["loss"], values["best"] + values["worst"]):
                yield graph.misfit(node_id, misfit)


def _groups(graph: CheckedGraph, node_id: str) -> tuple[str, str, int | None]:
    """Node and input that say how many groups a rollout or given pictures have, and how many: None if that is not known yet."""
    if graph.nodes[node_id].class_type in GIVEN_NODES:
        return node_id, "pairs_per_iteration", graph.known(node_id, "pairs_per_iteration")
    counting = graph.nodes[node_id].links["prompts"][0]
    groups = graph.known(counting, "prompts_per_iteration") if counting in graph.nodes else None
    return counting, "prompts_per_iteration", groups


def _parts(graph: CheckedGraph) -> Iterator[Problem]:
    """A group for each part of a rollout that gets an optimizer step."""
    for step in graph.of(STEP_NODE, MATCHING_NODE):
        counts = [groups for sampler in graph.samplers[step] if (groups := _groups(graph, sampler)[2]) is not None]
        for misfit in refusals.of_parts(graph.values[step]["parts"], min(counts, default=64)):
            yield graph.misfit(step, misfit)


def _processes(graph: CheckedGraph) -> Iterator[Problem]:
    """A sample for each process of a training, and groups that stay whole where the update compares a group's samples."""
    if graph.processes == 1:
        return
    from ..updates.matching_losses import KINDS  # here, since it needs torch

    for node_id in graph.of(*TRAJECTORY_NODES):
        counting, name, groups = _groups(graph, node_id)
        of_each = 2 if counting == node_id else graph.known(node_id, "group_size")
        if groups is None or of_each is None:
            continue
        if (samples := groups * of_each) < graph.processes:
            message = f"{graph.processes} processes for {samples} samples: some would have none"
            yield graph.problem(counting, name, message, "more prompts, pairs or samples, or fewer processes")
            continue
        values = graph.values.get(graph.model(node_id) or "", {})  # of the loader
        memory = values.get("memory")  # a word where ComfyUI loaded the model, which is not sharded
        is_sharded = values.get("training") == "full" or (isinstance(memory, dict) and memory.get("shard", False))
        if samples % graph.processes and is_sharded:
            yield graph.misfit(counting, unequal_shares(samples, graph.processes, name))
        if groups % graph.processes == 0:
            continue
        for step in graph.of(MATCHING_NODE):
            loss = graph.known(step, "loss")
            if loss in KINDS and KINDS[loss].groups and node_id in graph.samplers[step]:
                yield graph.misfit(counting, refusals.of_processes(loss, groups, graph.processes, name))


CHECKS = (_asked_again, _credit, _decoder, _followed, _idle, _noiseless, _parts, _processes, _selection, _update)
