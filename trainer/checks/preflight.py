"""Everything that a training refuses before its first iteration and that its graph and its model's configuration show.

`otca validate`, `otca train` and the page ask `problems`, and so say the same. Nothing is loaded, and nothing imported that
needs torch before this is asked.

What is seen only when the training begins, since neither the graph nor a configuration file says it: whether a device can be
used and has the memory, and whether processes that hold a model together have equally many samples; whether an attention backend
is installed; weights and tokenizers that are damaged, or are of another model than their folder says; a model that has yet to be
downloaded; what a Python reward's file does, and what a reward's server answers; the run's folder.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...host import devices, extras
from ...host.access import wants
from ...host.access.permissions import POST, PROMPTS, NotAllowed
from ..families import given
from ..families.configured import Configuration
from ..families.options import LoadOptions
from ..families.sizes import Checkpoint
from ..flow import FlowModelError, conflict
from ..memory import needs, own
from ..memory.native import Architecture, architecture_of
from ..policy.files import find, read_metadata
from ..prompts import PRESET, PromptError, lines, read_prompts
from ..rewards import RewardError
from ..rewards.base import judges_of
from ..run import offered, verdicts
from ..schedule import misfits, untrainable
from ..types import (
    ASKING_NODES,
    DATASET_NODE,
    GIVEN_NODES,
    LOAD_NODE,
    MAKE_NODE,
    RUN_NODE,
    SAMPLER_NODE,
    STACK_NODE,
    STEP_NODES,
    TRAJECTORY_NODES,
    RunSettings,
    place_of,
)
from ..workflow import foreign
from ..workflow.declared import CONVERSIONS, Node
from ..workflow.problem import Misfit, Problem, errors, general
from ..workflow.running import Workflow
from . import method
from .graph import MODEL_TYPE, CheckedGraph, named_by, parted

# What a file is for without which the rest of the graph can be checked.
APART = (wants.MODEL, wants.REWARD_MODEL, wants.ENCODER, wants.TASTE, wants.TOKENIZER, wants.ADAPTER, PROMPTS)
MODEL_INPUTS = ("model", "low_noise_model")  # of Make Trainable
# as torch has them; whether one is here is seen when it is used
DEVICE = re.compile(r"auto|cpu|(cuda|xpu|mps|npu|hpu|mlu|musa|mtia)(:\d{1,3})?")


def problems(workflow: Workflow, processes: int = 1) -> list[Problem]:
    """Every problem of a graph that so many processes are to train, warnings included: what `Workflow.validate` finds, and what
    is here. A file that is not there hides no problem of the rest of the graph."""
    problems = [*workflow.validate(), *_counts(workflow)]
    if processes > 1 and (lack := extras.wrong(f"Training by {processes} processes", *extras.SEVERAL)):
        problems.append(general(lack.message, f"{lack.command}, and start again. {lack.change}"))
    refused = {(problem.node_id, problem.input) for problem in errors(problems)}
    named = wants.named(workflow.graph, workflow.node_classes)
    apart = {(want.node, want.input) for want in named if want.why in APART and not want.linked} | {
        (node_id, name)
        for node_id, node in workflow.nodes.items()
        for name in node.constants
        if foreign.folder_of(node.cls, name) is not None
    }
    if not refused <= apart:
        return problems
    graph = CheckedGraph(workflow, processes)
    problems += graph.failed
    for check in CHECKS if not graph.failed else ():
        problems += [problem for problem in check(graph) if (problem.node_id, problem.input) not in refused]
    return problems


# --- what there is, and how it hangs together -------------------------------------------------------------------------


def _counts(workflow: Workflow) -> Iterator[Problem]:
    for kinds in ((RUN_NODE,), STEP_NODES):
        nodes = [node for kind in kinds for node in workflow.find(kind)]
        if len(nodes) != 1:
            titles = [
                workflow.display_names.get(kind) or getattr(workflow.node_classes.get(kind), "TITLE", kind)
                for kind in kinds
            ]
            message = f"training needs exactly one {' or '.join(titles)} node, and there are {len(nodes)}"
            if nodes:
                message += f" ({', '.join(nodes)})"
            yield general(message, "connect one" if not nodes else "remove all but one, or mute them")


def _run_settings(graph: CheckedGraph) -> Iterator[Problem]:
    """The run is opened before anything of the graph has run: its name and its intervals have to be known by then."""
    for node_id in graph.of(RUN_NODE):
        node = graph.nodes[node_id]
        if "report" not in node.links:
            message = "is not connected, and without it nothing is recorded"
            yield graph.problem(node_id, "report", message, "connect the report of the update")
        for name in node.links:
            if node.declared[name].type in CONVERSIONS:
                message = "is linked, and has to be known before the graph runs"
                yield graph.problem(node_id, name, message, "remove the link and set the value on this node")


def _still(graph: CheckedGraph) -> Iterator[Problem]:
    """A training that moves nothing says so nowhere else."""
    for step in (node_id for kind in STEP_NODES for node_id in graph.of(kind)):
        if graph.values[step].get("learning_rate") == 0:
            message = "the learning rate is 0: nothing is trained"
            yield replace(graph.problem(step, "learning_rate", message, "for a LoRA, 1e-4 to 3e-4"), severity="warning")


def _one_sampling(graph: CheckedGraph) -> Iterator[Problem]:
    """What is compared, weighed and trained has to be of the same samples, and of the model that made them."""
    for node_id, node in graph.nodes.items():
        samplers = graph.samplers[node_id]
        apart = not any(len(graph.samplers[source]) > 1 for source, _ in node.links.values() if source in graph.nodes)
        if len(samplers) > 1 and apart:  # and not said already, of a node before it
            kinds = " or ".join(sorted({graph.nodes[sampler].cls.TITLE for sampler in samplers}))
            message = f"its inputs come from {len(samplers)} {kinds} nodes: {graph.titles(samplers)}"
            yield graph.problem(node_id, None, message, f"let all of it come from one {kinds}")
        models = {name: graph.model(node_id, name) for name in node.links if node.declared[name].type == MODEL_TYPE}
        if node.class_type in TRAJECTORY_NODES:
            continue
        makers = graph.of(*STEP_NODES) if node.class_type == RUN_NODE else samplers
        sampled = set(filter(None, map(graph.model, makers)))  # None: it comes from a node that is not ours
        for name, model in models.items():
            if model and sampled and {model} != sampled:
                message = (
                    f"is the model of node {graph.titles({model})}, and the trajectories are of {graph.titles(sampled)}"
                )
                yield graph.problem(node_id, name, message, "connect one and the same model to both")


def _advancing(graph: CheckedGraph) -> Iterator[Problem]:
    """What advances with every iteration must not run out of its range before the last."""
    for run in graph.of(RUN_NODE):
        more = graph.values[run]["iterations"] - 1
        for node_id, name, value in graph.workflow.advancing():
            most = graph.nodes[node_id].declared[name].options.get("max") if node_id in graph.nodes else None
            if most is not None and value <= most < value + more:
                message = f"advances by one an iteration, and would pass {most} within {more + 1} iterations"
                yield graph.problem(node_id, name, message, f"at most {most - more}")


# --- rewards ----------------------------------------------------------------------------------------------------------


def _announced(
    nodes: Mapping[str, Node], values: Mapping[str, Mapping[str, Any]], stack: str
) -> dict[str, tuple[str, bool] | None]:
    """{input of a stack: (name, held out)}; None where a reward does not say before it is built."""
    rewards = {}
    for name, (source, index) in nodes[stack].links.items():
        if name.startswith("reward_"):
            announced = getattr(nodes[source].cls, "announced", None) if source in nodes else None
            rewards[name] = announced(**values[source])[index] if announced else None
    return rewards


def _rewards(graph: CheckedGraph) -> Iterator[Problem]:
    for stack in graph.of(*ASKING_NODES):
        links, rewards = graph.nodes[stack].links, _announced(graph.nodes, graph.values, stack)
        trained = [name for name, reward in rewards.items() if reward is not None and not reward[1]]
        connected: dict[tuple[str, int], str] = {}
        named: dict[str, str] = {}
        for name, reward in rewards.items():
            source, index = links[name]
            unasked = getattr(graph.workflow.node_class(source), "unasked", None)
            if unasked and unasked(index, **graph.values[source]):
                message = f"output {index + 1} of {graph.titles([source])} has no question"
                yield graph.problem(stack, name, message, "write one more line into its questions, or disconnect it")
            if (other := connected.setdefault(links[name], name)) != name:
                message = f"is the same reward as {other}"
                yield graph.problem(stack, name, message, "connect each reward once; its coefficient weighs it")
            elif reward and (other := named.setdefault(reward[0], name)) != name:
                message = f"its reward is called {reward[0]!r}, as that of {other} is"
                yield graph.problem(stack, name, message, "set different names on the two reward nodes")
        if graph.nodes[stack].class_type in GIVEN_NODES:
            for name in trained:
                message = f"{graph.titles([links[name][0]])} would be trained, and here pairs are: rewards only judge evaluations"
                yield graph.problem(stack, name, message, "switch on held_out on its node")
        elif rewards and not trained and None not in rewards.values():
            message = "no reward is connected that is trained on: all of them are held out"
            yield graph.problem(stack, None, message, "connect a reward whose held_out switch is off")


def _own_encoder(graph: CheckedGraph) -> Iterator[Problem]:
    for stack, name, judge in _unwatched(graph.workflow, graph.values):
        title = graph.titles([judge])
        message = (
            f"{title} is asked with the text encoder of the model that is trained, and no other reward is held out"
        )
        fix = "hold another reward out, so that it shows what the judge does not see"
        yield replace(graph.problem(stack, name, message, fix), severity="warning")


def unwatched_judges(workflow: Workflow) -> list[str]:
    """The titles of those judges of a graph that are the trained model's own text encoder while no other reward is held out:
    for the canvas, before a graph runs. None while it is half made."""
    if errors(workflow.validate()):
        return []
    values = {node_id: node.defaults | node.constants for node_id, node in workflow.nodes.items()}
    return [workflow.title(judge) for _, _, judge in _unwatched(workflow, values)]


def _unwatched(workflow: Workflow, values: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """(what asks it, its input, the judge's node) for each judge that reads as the trained model does while nothing else watches.
    It shares the model's blind spots, and nothing says what both do not see."""
    nodes = {node_id: node for node_id, node in workflow.nodes.items() if node_id in values}
    own = [node.links["clip"] for node in nodes.values() if node.class_type == MAKE_NODE and "clip" in node.links]
    files = {file for link in own for file in _files(workflow, link)}
    for stack in (node_id for node_id, node in nodes.items() if node.class_type in ASKING_NODES):
        links, rewards = nodes[stack].links, _announced(nodes, values, stack)
        judges = {}
        for name in rewards:
            clip = _judge_of(nodes, links[name][0])
            if clip and (clip in own or files & _files(workflow, clip)):
                judges[name] = links[name][0]
        watched = any(reward is None or reward[1] for name, reward in rewards.items() if name not in judges)
        for name in sorted(judges) if not watched else ():
            yield stack, name, judges[name]


def _judge_of(nodes: Mapping[str, Node], reward: str) -> tuple[str, int] | None:
    """Where the CLIP comes from that a reward asks, itself or through the reward that it asks."""
    seen = set()
    while reward in nodes and reward not in seen:
        seen.add(reward)
        links = nodes[reward].links
        if "judge" in links:
            return links["judge"]
        reward = links.get("reward", ("", 0))[0]
    return None


def _files(workflow: Workflow, link: tuple[str, int]) -> set[str]:
    """The files that what comes through a link was loaded from: two loaders of one file give the same text encoder."""
    return {file.name for file, _ in needs.files_behind(workflow.entries, [*link])}


def _people(graph: CheckedGraph) -> Iterator[Problem]:
    """What is trained apart from the canvas has no page that asks people."""
    for node_id, node in graph.nodes.items():
        named = wants.of_node(node.cls, graph.values[node_id])
        if any(want.why == wants.VOTES for want in named) and all(want.kind != POST for want in named):
            message = "only the canvas has a page that asks people, and here the pictures would not be seen"
            fix = "start otca vote on a machine with a browser, and give its address, as http://127.0.0.1:8190/score"
            yield graph.problem(node_id, "url", message, fix)


def _best_metric(graph: CheckedGraph) -> Iterator[Problem]:
    """It is one of the figures that the rewards of what is trained will have."""
    for run in graph.of(RUN_NODE):
        try:
            verdicts.check_evaluates(graph.values[run])
        except ValueError as error:
            yield graph.problem(run, "evaluate_every", *parted(error))
        metric, stack = graph.values[run].get("best_metric"), offered.rewards_asked(graph.nodes, run)
        if not metric or stack is None:
            continue
        rewards, links = _announced(graph.nodes, graph.values, stack), graph.nodes[stack].links
        names = [one[0] for name, one in rewards.items() if one and not graph.only_of_groups(links[name][0])]
        try:
            if None not in rewards.values():
                verdicts.check_metric({"best_metric": metric}, names)
        except ValueError as error:
            yield graph.problem(run, "best_metric", *parted(error))


def _videos(graph: CheckedGraph) -> Iterator[Problem]:
    """Rewards that judge videos need videos."""
    for stack in graph.of(STACK_NODE):
        rewards = {name: link for name, link in graph.nodes[stack].links.items() if name.startswith("reward_")}
        for sampler in graph.samplers[stack]:
            model = graph.models.get(graph.model(sampler) or "")
            for name, (source, _) in rewards.items():
                least = getattr(graph.workflow.node_class(source), "LEAST_FRAMES", 0)
                runs = [graph.values[run].get("evaluation_frames") for run in graph.of(RUN_NODE)]
                frames = min(graph.settings(sampler).frames, *filter(None, runs), math.inf)
                if not (least and isinstance(model, Configuration)):
                    continue
                if model.grid.time is None or frames < least:
                    made = "pictures" if model.grid.time is None else f"{frames} frame: it needs {least}"
                    message = f"{graph.titles([source])} judges videos, and the model makes {made}"
                    fix = f"sample videos (a video model, frames at least {max(least, 2)}), or connect a reward for pictures"
                    yield graph.problem(stack, name, message, fix)


# --- the model --------------------------------------------------------------------------------------------------------


def _models(graph: CheckedGraph) -> Iterator[Problem]:
    for loader, model in graph.models.items():
        values = graph.values[loader]
        options = values.get("memory") or {}
        if misfit := conflict(values["training"], options) or _beyond_here(options):
            yield graph.misfit(loader, misfit)
        if isinstance(model, Misfit):
            yield graph.misfit(loader, model)
        elif model is not None and values["training"] == "lora":
            yield from (graph.misfit(loader, misfit) for misfit in model.lora_targets(values["lora_targets"]))


def _beyond_here(options: Mapping[str, Any]) -> Misfit | None:
    """What Model Memory asks of packages that are not here."""
    chosen = LoadOptions(**options)
    if (chosen.quantize, chosen.attention, chosen.shard) == ("none", "auto", False):
        return None
    from ..families import loading  # imports torch

    try:
        loading.check_options(chosen)
    except FlowModelError as error:
        return Misfit("memory", *parted(error))
    return None


def _starts(graph: CheckedGraph) -> Iterator[Problem]:
    """An adapter that Make Trainable begins with has layers of the networks whose files loaders name."""
    for node_id in graph.of(MAKE_NODE):
        node, values, rank = graph.nodes[node_id], graph.values[node_id], graph.known(node_id, "lora_rank")
        adapters = [
            want
            for want in wants.of_node(node.cls, values)
            if want.why == wants.ADAPTER and graph.known(node_id, want.input)
        ]
        links = [node.inputs[name] for name in MODEL_INPUTS if name in node.links]
        files = [
            file.path for link in links for file, _ in needs.files_behind(graph.workflow.entries, link)[:1] if file.path
        ]
        for adapter in adapters if rank and len(files) == len(links) else []:
            from ..native import lora  # imports torch

            try:
                lora.check_start(files, find(adapter.what), rank)
            except (OSError, ValueError) as error:
                yield graph.problem(node_id, adapter.input, *parted(error))


def theirs(graph: CheckedGraph) -> Iterator[Problem]:
    """Files that ComfyUI's loaders name, as whole as their headers say: a download that broke off looks like any other."""
    for node_id in (node_id for node_id in graph.workflow.needed() if node_id not in graph.nodes):
        for name, file in offered.files_of(graph.workflow.nodes[node_id]).items():
            try:
                read_metadata(file)
            except ValueError as error:
                yield graph.problem(node_id, name, *parted(error))


def _devices(graph: CheckedGraph) -> Iterator[Problem]:
    for node_id, node in graph.nodes.items():
        for name in (name for name, declared in node.declared.items() if declared.options.get("suggest") == "devices"):
            if not DEVICE.fullmatch(devices.chosen_device(graph.values[node_id][name])):
                yield graph.problem(node_id, name, "is the name of no device", "auto, cpu, cuda, cuda:1 …")


# --- sampling ---------------------------------------------------------------------------------------------------------


def _sampler(graph: CheckedGraph) -> Iterator[Problem]:
    for node_id in graph.of(*TRAJECTORY_NODES):
        values, settings = graph.values[node_id], graph.settings(node_id)
        unfit = list(misfits(settings, values["group_size"])) if "group_size" in values else []
        loader = graph.model(node_id)
        model = graph.models.get(loader) if loader else None
        if loader and isinstance(model, Configuration):
            unfit += model.checkpoint.misfits(settings)
            if not unfit:
                try:
                    misfit = untrainable(settings, model.checkpoint.sigmas(settings))
                except ValueError as error:
                    yield graph.misfit(loader, Misfit(named_by(graph.values[loader]), *parted(error)))
                    continue
                unfit += [misfit] if misfit else []
        yield from (graph.misfit(node_id, misfit) for misfit in unfit)
        merges = values.get("merge_adapter")
        if loader and merges and graph.nodes[loader].class_type != LOAD_NODE:
            message = "ComfyUI owns these weights and may move them at any time, so nothing can be merged into them"
            yield graph.problem(node_id, "merge_adapter", message, "switch it off")
            continue
        memory = graph.values[loader].get("memory") or {} if loader else {}
        if merges and memory.get("quantize", "none") != "none":
            message = "the weights are quantized, and rounding to so few bits would lose the adapter"
            yield graph.problem(node_id, "merge_adapter", message, "switch it off, or quantize = none on Model Memory")


def _evaluations(graph: CheckedGraph) -> Iterator[Problem]:
    """Sizes of evaluations apart from the sampler's fit the model, too."""
    for run in graph.of(RUN_NODE):
        settings = RunSettings.from_inputs(graph.values[run])
        for sampler in graph.samplers[run] if settings.evaluate_every else ():
            model = graph.models.get(graph.model(sampler) or "")
            evaluated = settings.evaluated(graph.settings(sampler))
            for misfit in model.checkpoint.misfits(evaluated) if isinstance(model, Configuration) else ():
                if graph.values[run].get(name := f"evaluation_{misfit.input}"):
                    yield graph.problem(run, name, misfit.message, misfit.fix)


def _sizes(graph: CheckedGraph) -> Iterator[Problem]:
    """A picture far from the size that its model is made for."""
    for node_id in graph.of(*TRAJECTORY_NODES):
        settings, made = graph.settings(node_id), own.of(graph.workflow.entries, node_id)
        if made and settings.frames == 1 and (message := own.far(made, settings.width, settings.height)):
            problem = graph.problem(node_id, "width", message, f"{made.width} x {made.height}, or what you will use")
            yield replace(problem, severity="warning")


# --- prompts ----------------------------------------------------------------------------------------------------------


def _texts(graph: CheckedGraph) -> Iterator[Problem]:
    for sampler in graph.of(SAMPLER_NODE):
        loader, dataset = graph.model(sampler), graph.nodes[sampler].links["prompts"][0]
        if not loader or dataset not in graph.of(DATASET_NODE):
            continue
        model, made = graph.models.get(loader), own.of(graph.workflow.entries, sampler)
        checkpoint = model.checkpoint if isinstance(model, Configuration) else None
        files = needs.files_behind(graph.workflow.entries, graph.nodes[loader].inputs.get("model"))
        kind = architecture_of(files[0][0].name) if files else None  # as far as the file's name says so
        for node_id, name, prompts in _read(graph, dataset):
            typed = graph.values[node_id][name].strip() or PRESET
            if made and made.prompts and typed == PRESET and node_id == dataset:
                message = f"{PRESET} names what this model has never seen: it is written for models of everything"
                yield replace(graph.problem(dataset, name, message, f"file = {made.prompts}"), severity="warning")
            if wrong := _wrong_pictures(prompts, checkpoint, kind):
                yield graph.misfit(node_id, Misfit(name, *wrong))
            most = graph.values[loader]["max_sequence_length"] if isinstance(model, Configuration) else 0
            if isinstance(model, Configuration) and (longest := model.too_long(prompts, most)):
                number, length, limit = longest
                message = f"prompt {number + 1}, {prompts[number][:40]!r}…, has {length} tokens, the text encoder reads {limit}"
                yield replace(graph.problem(node_id, name, message, "shorten it"), severity="warning")


def _sources(graph: CheckedGraph) -> Iterator[Problem]:
    """Rewards that look at the picture that was edited have one for each prompt, by its line or by their node."""
    for stack in graph.of(*ASKING_NODES):
        rewards = {name: link[0] for name, link in graph.nodes[stack].links.items() if name.startswith("reward_")}
        seeing = {
            name: node
            for name, node in rewards.items()
            if node in graph.nodes
            and "source" not in graph.nodes[node].links
            and getattr(graph.nodes[node].cls, "sees_source", lambda **_: False)(**graph.values[node])
        }
        for _, _, prompts in _read(graph, *graph.of(DATASET_NODE)) if seeing else ():
            try:
                lacking = [place_of(prompt) for prompt in prompts if not given.named(prompt)]
            except PromptError:
                continue  # as above
            for name, node in seeing.items() if lacking else ():
                message = (
                    f"{graph.titles([node])} looks at the picture that was edited, and {lacking[0]} has no {given.KEY}"
                )
                fix = 'name one in each line: {"prompt": "…", "image": "start.png"}, or connect source'
                yield graph.problem(stack, name, message, fix)


def _read(graph: CheckedGraph, *nodes: str) -> Iterator[tuple[str, str, Sequence[str]]]:
    """(node, input, prompts) of datasets, and of runs that evaluate by their own. What cannot be read, the nodes refuse."""
    for dataset in nodes:
        with contextlib.suppress(PromptError, NotAllowed):
            if prompts := read_prompts(graph.values[dataset]["prompts"], graph.values[dataset]["file"], PRESET):
                yield dataset, "file" if graph.values[dataset]["file"] else "prompts", prompts
    for run in (node_id for node_id in graph.of(RUN_NODE) if graph.values[node_id].get("evaluate_every")):
        for want in wants.of_node(graph.nodes[run].cls, graph.values[run]):
            if want.why == wants.PROMPT_LINES and (prompts := lines(graph.known(run, want.input) or "")):
                yield run, want.input, prompts


def applying(graph: CheckedGraph) -> Iterator[Problem]:
    """Rewards that look for what a prompt asks for understand every line, and apply to some prompt."""
    for stack in graph.of(*ASKING_NODES):
        kinds = {
            name: graph.workflow.node_class(node).scorer()
            for name, (node, _) in graph.nodes[stack].links.items()
            if name.startswith("reward_") and hasattr(graph.workflow.node_class(node), "scorer")
        }
        kinds = {name: kind for name, kind in kinds.items() if kind.chooses()}
        trained = {
            name for name, reward in _announced(graph.nodes, graph.values, stack).items() if not (reward and reward[1])
        }
        for node_id, input, prompts in _read(graph, *graph.of(DATASET_NODE)) if kinds else ():
            idle_kinds = set()
            for kind in dict.fromkeys(kinds.values()):
                try:
                    if not sum(kind.applies_to(prompt) for prompt in prompts):  # asked of each, since each may be wrong
                        idle_kinds.add(kind)
                except RewardError as error:
                    yield graph.misfit(node_id, Misfit(input, *parted(error)))
            idle = {name for name, kind in kinds.items() if kind in idle_kinds and node_id in graph.of(DATASET_NODE)}
            for name in sorted(idle):
                title = graph.titles([graph.nodes[stack].links[name][0]])
                message = f"{title} applies to no prompt of the {len(prompts)} of {graph.titles([node_id])}"
                problem = graph.problem(
                    stack, name, message, "other prompts, as its help page has them, or another reward"
                )
                yield problem if trained and trained <= idle else replace(problem, severity="warning")


def _judged_by(graph: CheckedGraph) -> Iterator[Problem]:
    """Rewards that a prompt's line names are in the stack."""
    for stack in graph.of(STACK_NODE):
        rewards = _announced(graph.nodes, graph.values, stack).values()
        names, trained = (
            {reward[0] for reward in rewards if reward and not (held and reward[1])} for held in (False, True)
        )
        for node_id, input, prompts in _read(graph, *graph.of(DATASET_NODE)) if None not in rewards else ():
            try:
                judges = [set(named) for prompt in prompts if (named := judges_of(prompt)) is not None]
                unknown = set().union(*judges) - names
            except RewardError as error:
                yield graph.misfit(node_id, Misfit(input, *parted(error)))
                continue
            for name in sorted(unknown)[:1]:
                message = f"judged_by names {name!r}, and {graph.titles([stack])} has no reward of that name"
                yield graph.misfit(node_id, Misfit(input, message, f"one of {', '.join(sorted(names))}"))
            if not all(unknown or named & trained for named in judges):
                message = "judged_by of a prompt names no reward that is trained on, so that nothing is learned from it"
                yield graph.misfit(
                    node_id, Misfit(input, message, f"one of {', '.join(sorted(trained))}, or take its line out")
                )


# Kinds of published models that ComfyUI loads, by `memory.native`, whose prompts may name pictures.
EDIT_KINDS = ("flux", "flux2", "qwen_image", "krea2")


def _wrong_pictures(
    prompts: Sequence[str], checkpoint: Checkpoint | None, kind: Architecture | None
) -> tuple[str, str] | None:
    """What is wrong with the first prompt's picture that cannot be had or used, and the fix."""
    try:
        with_pictures = [prompt for prompt in prompts if given.named(prompt)]
        if checkpoint is not None and (checkpoint.takes_pictures or checkpoint.needs_pictures) and not checkpoint.edits:
            names = given.names(prompts)
            if checkpoint.needs_pictures and not names:
                raise given.missing(prompts[0])
        elif checkpoint is not None:
            for prompt in with_pictures:
                if (count := len(given.named(prompt))) > checkpoint.edits:
                    raise given.too_many(prompt, count, checkpoint.edits)
            if checkpoint.needs_pictures and len(with_pictures) < len(prompts):
                raise given.missing(next(prompt for prompt in prompts if not given.named(prompt)), "edits pictures")
        elif kind is not None and kind.image_model not in EDIT_KINDS and with_pictures:
            raise given.too_many(with_pictures[0], len(given.named(with_pictures[0])), 0)
        given.check(with_pictures)
    except (PromptError, NotAllowed) as error:
        return error.message, error.fix
    return None


CHECKS = (
    _run_settings,
    _still,
    _one_sampling,
    _advancing,
    _rewards,
    _own_encoder,
    _people,
    _best_metric,
    _videos,
    theirs,
    _devices,
    _models,
    _starts,
    _sampler,
    _evaluations,
    _sizes,
    _texts,
    _sources,
    applying,
    _judged_by,
    *method.CHECKS,
)
