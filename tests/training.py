"""A training as the command line begins it, prepared and then trained; and what its folder holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file

from comfyui_otca.trainer.checks.prepare import prepare, together
from comfyui_otca.trainer.rewards.base import Reward
from comfyui_otca.trainer.run import loop, opening
from comfyui_otca.trainer.run.loop import Say
from comfyui_otca.trainer.workflow import Workflow


def train(
    workflow: Workflow,
    folder: Path | None = None,
    resume: bool = False,
    *,
    take_over: bool = False,
    say: Say = lambda line: None,
) -> int:
    """Prepares a workflow for a folder, and trains it, as a new process does. Of several processes the first one prepares."""
    opening._open.clear()
    prepared = together(
        lambda: prepare(workflow, folder, resume=resume, take_over=take_over, say=say),
        lambda graph: (workflow.node_classes, workflow.display_names),
    )
    return loop.train(prepared, say=say)


def rows(folder: Path, name: str = "metrics.jsonl") -> list[dict]:
    """The objects of one of a run's files of lines."""
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def untimed(folder: Path, name: str = "metrics.jsonl") -> list[str]:
    """The same as text, to the last digit and NaN, without timings."""
    timings = ("seconds/", "samples_per_second")
    return [json.dumps({k: v for k, v in row.items() if not k.startswith(timings)}) for row in rows(folder, name)]


def assert_same_tensors(one: Path, other: Path) -> None:
    """Two .safetensors files hold the same to the bit."""
    ours, theirs = load_file(one), load_file(other)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def reward_node(make: Callable[[], Reward]) -> type:
    """A node class that gives the reward that `make` makes."""

    class Node:
        RETURN_TYPES, FUNCTION, CATEGORY = ("OTCA_REWARD",), "build", "test"

        @classmethod
        def INPUT_TYPES(cls):
            return {"required": {}, "optional": {"coefficient": ("FLOAT", {"default": 1.0})}}

        def build(self, coefficient=1.0):
            return (make(),)

    return Node
