"""A graph that validates, as its checks see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...host import search
from ...host.access.permissions import NotAllowed
from ...host.errors import parts
from ..families.configured import Configuration, read_configuration
from ..flow import FlowModelError
from ..types import LOAD_NODE, MODEL_NODES, TRAJECTORY_NODES, SamplerSettings
from ..workflow.declared import CONVERSIONS
from ..workflow.problem import Misfit, Problem
from ..workflow.running import Workflow

MODEL_TYPE = "OTCA_MODEL"


class CheckedGraph:
    """What runs of a graph that validates, with the values that follow from it alone.

    Attributes:
        nodes: ours by id, sources first: what checks are about. What ComfyUI's nodes mean by their inputs, they judge themselves.
        values: {id: {input: value}}, constants and what comes through links from nodes that are PURE, at the first iteration.
        models: {id of a loader: its model's configuration, what is wrong with it, or None where it is not here yet}.
        samplers: {id: the SDE Sampler nodes whose trajectories that node looks at, or what was made of them}.
        failed: problems of PURE nodes, and of what they give.
    """

    def __init__(self, workflow: Workflow, processes: int):
        self.workflow, self.processes = workflow, processes
        self._running = {node_id: workflow.nodes[node_id] for node_id in workflow.needed()}
        self.nodes = {node_id: node for node_id, node in self._running.items() if node_id in workflow.ours}
        self.values: dict[str, dict[str, Any]] = {}
        self.failed: list[Problem] = []
        self._outputs: dict[str, tuple] = {}
        self._evaluate()
        self.samplers = self._samplers()
        self.models = {loader: _configuration(self.values[loader]) for loader in self.of(LOAD_NODE)}

    def known(self, node_id: str, name: str) -> Any:
        """An input's value; None where it comes through a link of which only the run will say what it gives."""
        link = self._running[node_id].links.get(name)
        return None if link and link[0] not in self._outputs else self.values[node_id].get(name)

    def _evaluate(self) -> None:
        outputs = self._outputs
        for node_id, node in self._running.items():
            through = {
                name: outputs[source][index] for name, (source, index) in node.links.items() if source in outputs
            }
            self.values[node_id] = node.defaults | node.constants | through
            for name, value in through.items():
                if node.declared[name].type in CONVERSIONS:
                    self.failed += self.workflow.check_value(node, name, value)
            if getattr(node.cls, "PURE", False) and node.links.keys() <= through.keys():
                try:
                    outputs[node_id] = getattr(node.cls(), node.cls.FUNCTION)(**node.constants, **through)
                except ValueError as error:
                    message, fix = parted(error)
                    name = message.split()[0] if message.split()[0] in node.declared else None
                    self.failed.append(self.problem(node_id, name, message, fix))

    def of(self, *class_types: str) -> list[str]:
        return [node_id for node_id, node in self.nodes.items() if node.class_type in class_types]

    def problem(self, node_id: str, name: str | None, message: str, fix: str) -> Problem:
        value = self._running[node_id].inputs.get(name) if name else None
        return self.workflow.problem(node_id, name, value, message, fix)

    def misfit(self, node_id: str, misfit: Misfit) -> Problem:
        return self.problem(node_id, misfit.input, misfit.message, misfit.fix)

    def model(self, node_id: str, name: str = "model") -> str | None:
        """The node that an input's model comes from; the update passes it on."""
        seen = set()
        while name in self._running[node_id].links and node_id not in seen:
            seen.add(node_id)
            node_id = self._running[node_id].links[name][0]
            if self._running[node_id].class_type in MODEL_NODES:
                return node_id
            name = "model"
        return None

    def _samplers(self) -> dict[str, set[str]]:
        samplers: dict[str, set[str]] = {}
        for node_id, node in self._running.items():
            looked_at = [source for name, (source, _) in node.links.items() if node.declared[name].type != MODEL_TYPE]
            itself = {node_id} if node.class_type in TRAJECTORY_NODES else set()
            samplers[node_id] = itself or set().union(*(samplers[source] for source in looked_at))
        return samplers

    def settings(self, sampler: str) -> SamplerSettings:
        """What one of TRAJECTORY_NODES samples with, or makes trajectories for."""
        return SamplerSettings.of_node(self.nodes[sampler].class_type, self.values[sampler])

    def only_of_groups(self, reward: str) -> bool:
        """Whether it may be asked about the pictures that are trained on, and about no others."""
        limited = getattr(self._running[reward].cls, "only_of_groups", None)
        wrapped = self._running[reward].links.get("reward")
        itself = limited is not None and limited(**self.values[reward])
        return itself or (wrapped is not None and self.only_of_groups(wrapped[0]))

    def titles(self, node_ids: Iterable[str]) -> str:
        return ", ".join(f'{node_id} "{self.workflow.title(node_id)}"' for node_id in sorted(node_ids))


def _configuration(values: Mapping[str, Any]) -> Configuration | Misfit | None:
    """The configuration of a loader's model, by its folder; None if it is yet to be downloaded."""
    name = named_by(values)
    try:
        folder = search.model(values[name], "model_index.json")
    except (FileNotFoundError, NotAllowed):
        return None  # which the node itself refuses, unless it may be downloaded
    try:
        return read_configuration(folder)
    except FlowModelError as error:
        return Misfit(name, *parted(error))


def named_by(values: Mapping[str, Any]) -> str:
    """The input of a loader that names its model."""
    return "path" if values["path"] else "model"


def parted(error: Exception) -> tuple[str, str]:
    """What an error says, and its fix."""
    message, fix = parts(error)
    return message, fix or "give another value"
