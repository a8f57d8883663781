"""Which workflows may be compared: what has to be equal in them, and what is left to differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from ..trainer.checks import preflight
from ..trainer.run.folder import RunError
from ..trainer.run.loop import only
from ..trainer.types import (
    DATASET_NODE,
    EVALUATED,
    LOAD_NODE,
    MAKE_NODE,
    MODEL_NODES,
    RUN_NODE,
    SAMPLER_NODE,
    STACK_NODE,
    STEP_NODES,
)
from ..trainer.workflow import lineage
from ..trainer.workflow.declared import read_node
from ..trainer.workflow.problem import bounded, errors
from ..trainer.workflow.running import Workflow

T = TypeVar("T")

# What would make a comparison unfair if it differs; other inputs are what is compared, and are listed.
_EQUAL = {
    LOAD_NODE: (),
    MAKE_NODE: (),
    "OTCA_EmbeddedModel": (),
    "OTCA_ModelMemory": ("quantize",),
    DATASET_NODE: (),
    SAMPLER_NODE: (
        "group_size",
        "steps",
        "width",
        "height",
        "frames",
        "shift",
        "guidance",
        "guidance_2",
        "negative_prompt",
    ),
    RUN_NODE: tuple(f"evaluation_{name}" for name in ("steps", *EVALUATED)),
}
_SIZES = {DATASET_NODE: ("prompts_per_iteration",), SAMPLER_NODE: ("group_size", "steps")}  # of an iteration
_SET = ("seed", "learning_rate", "run_name", "filename")  # by us, or without effect on what is compared


def check_equal(workflows: Mapping[str, Workflow], baseline: str, *, any_size: bool = False) -> None:
    """Raises ValueError if one cannot run, or two differ in more than their method.

    `any_size`: how large an iteration is may differ, since all have the same budget.
    """
    for name, workflow in workflows.items():
        if wrong := errors(preflight.problems(workflow)):
            raise ValueError("\n".join(f"{name}: {problem}" for problem in bounded(wrong)))
        for class_types in ((DATASET_NODE,), (SAMPLER_NODE,), (STACK_NODE,), STEP_NODES, (RUN_NODE,)):
            try:
                only(workflow, *class_types)
            except RunError as error:
                raise ValueError(f"{name}: {error}") from error
        if sum(len(workflow.find(kind)) for kind in MODEL_NODES) != 1:
            raise ValueError(f"{name}: it needs exactly one node that loads what is trained. Fix: leave one of them")
    base = _conditions(workflows[baseline], any_size)
    for name, workflow in workflows.items():
        conditions = _conditions(workflow, any_size)
        unequal = [
            f"{what} is {conditions.get(what, 'not given')!r}, not {base.get(what, 'not given')!r}"
            for what in {**base, **conditions}
            if base.get(what) != conditions.get(what)
        ]
        own, expected = rewards_of(workflow), rewards_of(workflows[baseline])
        unequal += [f"{_described(reward)} is in its stack alone" for reward in graph_without(own, expected)]
        unequal += [f"{_described(reward)} is not in its stack" for reward in graph_without(expected, own)]
        if unequal:
            raise ValueError(
                f"{name} cannot be compared with {baseline}, since {'; '.join(unequal)}. Fix: make them equal, in the file or by "
                "--set NODE.INPUT=VALUE, which is for all workflows"
            )


def _conditions(workflow: Workflow, any_size: bool) -> dict[str, Any]:
    """The conditions that have to be equal, by NODE.INPUT; of a node that is not there its defaults."""
    conditions = {}
    for class_type, names in _EQUAL.items():
        nodes = [inputs(workflow, node) for node in workflow.find(class_type)]
        for constants in nodes or [read_node("", {"inputs": {}}, workflow.node_classes[class_type]).defaults]:
            for name, value in constants.items():
                if any_size and name in _SIZES.get(class_type, ()):
                    continue
                if name not in _SET and (not names or name in names):
                    conditions[f"{class_type}.{name}"] = value
    for node in workflow.find(MAKE_NODE):  # what ComfyUI's own nodes loaded
        conditions |= {
            f"{MAKE_NODE}.{name}": lineage.fingerprint(workflow.entries, source)
            for name, (source, _) in workflow.nodes[node].links.items()
        }
    return conditions


def rewards_of(workflow: Workflow) -> list[tuple[str, int, dict]]:
    """The rewards of the stack, with all that makes it what it is; coefficients are the fusion's business."""
    stack = workflow.nodes[only(workflow, STACK_NODE)].links
    links = [link for name, link in sorted(stack.items()) if name.startswith("reward_")]
    rewards = []
    for node, output in links:  # a node may give several
        options = {name: value for name, value in inputs(workflow, node).items() if name not in (*_SET, "coefficient")}
        rewards.append((workflow.entries[node]["class_type"], output, options))
    return rewards


def graph_without(some: Sequence[T], others: Sequence[T]) -> list[T]:
    """The rest of `some` after each of the others has removed one equal to it."""
    left = list(some)
    for other in others:
        if other in left:
            left.remove(other)
    return left


def _described(reward: tuple[str, int, dict]) -> str:
    class_type, output, options = reward
    listed = _listed({name: value for name, value in options.items() if value not in ("", False)})
    return f"{class_type} ({listed})" if output == 0 else f"{class_type}, output {output} ({listed})"


def inputs(workflow: Workflow, node: str) -> dict[str, Any]:
    """A node's constants; the default of an input that has none. What its class does not declare any more is left out."""
    own = workflow.nodes[node]
    return {**own.defaults, **own.constants}


def run_inputs(workflow: Workflow) -> dict[str, Any]:
    """The constants of its Training Run."""
    return inputs(workflow, only(workflow, RUN_NODE))


def differing(workflow: Workflow, base: Workflow) -> list[str]:
    """Describes nodes that only one workflow has, and inputs and links that differ in the nodes of both.

    Nodes of one class are taken in their order. A link to a node that only one of them has is left out.
    """
    own, other = _by_class(workflow), _by_class(base)
    lines = []
    for kind in {**own, **other}:
        some, others = own.get(kind, []), other.get(kind, [])
        lines += [f"{kind} ({_listed(constants)})" for constants, _ in some[len(others) :]]
        lines += [f"no {kind}"] * (len(others) - len(some))
        for (constants, links), (its_constants, its_links) in zip(some, others, strict=False):
            lines += [
                f"{kind}.{name} = {constants.get(name)} instead of {its_constants.get(name)}"
                for name in {**constants, **its_constants}
                if name not in _SET and constants.get(name) != its_constants.get(name)
            ]
            lines += [
                f"{kind}.{name} from {links[name]} instead of {its_links[name]}"
                for name in links.keys() & its_links.keys()
                if links[name] != its_links[name] and links[name] in other and its_links[name] in own
            ]
    return lines


def _by_class(workflow: Workflow) -> dict[str, list[tuple[dict, dict[str, str]]]]:
    """{class: the constants of each such node, and the classes that its links come from}, without Training Run."""
    nodes = {}
    for id_, node in workflow.nodes.items():
        if node.class_type != RUN_NODE:
            links = {
                name: workflow.entries[source]["class_type"].removeprefix("OTCA_")
                for name, (source, _) in node.links.items()
            }
            nodes.setdefault(node.class_type.removeprefix("OTCA_"), []).append((inputs(workflow, id_), links))
    return nodes


def _listed(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in options.items() if name not in _SET)


def rate(workflow: Workflow) -> float:
    """The learning rate of its update."""
    return inputs(workflow, only(workflow, *STEP_NODES))["learning_rate"]


def evaluation_steps(workflow: Workflow) -> int:
    """Denoising steps of an evaluation: as its Training Run says, else as many as it samples with."""
    return run_inputs(workflow)["evaluation_steps"] or inputs(workflow, only(workflow, SAMPLER_NODE))["steps"]


def samples(workflow: Workflow) -> int:
    """Samples to an iteration."""
    prompts, sampler = (inputs(workflow, only(workflow, kind)) for kind in (DATASET_NODE, SAMPLER_NODE))
    return prompts["prompts_per_iteration"] * sampler["group_size"]
