"""A training as the command line begins it, prepared and then trained, and what its folder holds; a batch and its advantages."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from comfyui_otca.__main__ import main
from comfyui_otca.host.distributed import Share
from comfyui_otca.trainer import rollout
from comfyui_otca.trainer.advantages import Advantages, fuse
from comfyui_otca.trainer.checks.prepare import prepare, together
from comfyui_otca.trainer.credit.steps import tcd
from comfyui_otca.trainer.families.base import FlowModel
from comfyui_otca.trainer.rewards.base import Reward
from comfyui_otca.trainer.run import loop, record
from comfyui_otca.trainer.run.loop import Say
from comfyui_otca.trainer.types import Scores, StepCredit, Trajectories
from comfyui_otca.trainer.workflow import Workflow

# Nodes of workflows/api/otca.json.
MODEL, PROMPTS, SAMPLER = "1", "2", "3"
STACK, CREDIT, FUSION = "8", "9", "10"
STEP, RUN, SAVE = "11", "12", "13"


def train(
    workflow: Workflow,
    folder: Path | None = None,
    resume: bool = False,
    *,
    take_over: bool = False,
    say: Say = lambda line: None,
) -> int:
    """Prepares a workflow for a folder, and trains it, as a new process does. Of several processes the first one prepares."""
    record.open_runs.clear()
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
    timings = ("seconds", "samples_per_second")
    return [json.dumps({k: v for k, v in row.items() if not k.startswith(timings)}) for row in rows(folder, name)]


def assert_same_tensors(one: Path, other: Path) -> None:
    """Two .safetensors files hold the same to the bit."""
    torch.testing.assert_close(load_file(one), load_file(other), rtol=0, atol=0)


def whole_and_resumed(workflow: Path, place: Path, parts: tuple[int, ...] = (1, 2)) -> list[dict]:
    """Rows of a training in one go by the command line; one with breaks after these iterations has the same figures."""
    for name, ends in {"whole": parts[-1:], "resumed": parts}.items():
        for number, last in enumerate(ends):
            record.open_runs.clear()
            command = ["train", str(workflow), "--output", str(place / name), "--iterations", str(last)]
            assert main(command + ["--resume"] * bool(number)) == 0
    assert untimed(place / "resumed") == untimed(place / "whole") and len(rows(place / "whole")) == parts[-1]
    return rows(place / "whole")


def judged(
    taken: Trajectories,
    seed: int = 0,
    coefficients: tuple[float, ...] = (1.0,),
    method: str = "weighted_advantages",
    credit: StepCredit | None = None,
) -> Advantages:
    """Advantages by made-up scores of so many rewards, a, b …, and by TCD unless another credit is given."""
    values = torch.randn((len(taken.groups), len(coefficients)), generator=torch.Generator().manual_seed(seed))
    scores = Scores(values, tuple("abc"[: len(coefficients)]), coefficients, taken.groups, values[:, :0], (), ())
    return fuse(scores, credit or tcd(taken.latents, taken.final, taken.trained), method)


def assert_recomputed(model: FlowModel, taken: Trajectories, batch_size: int = 6, tolerance: float = 1e-5) -> Tensor:
    """The model gives the log-probabilities that were stored when it sampled; returns the mean square of its velocities."""
    squares = []
    for position, step in enumerate(taken.trained):
        for members in torch.arange(len(taken.groups)).split(batch_size):
            velocity = rollout.velocity_at(model, taken, step, members)
            following = taken.latents[members, step + 1].to(velocity.device)
            gaussian = rollout.trained_transition(taken, step, velocity, members)
            again = gaussian.log_prob(following, taken.settings.log_prob_norm).detach().cpu()
            torch.testing.assert_close(again, taken.log_probs[members, position], rtol=0, atol=tolerance)
            squares.append(velocity.square().mean())
    return torch.stack(squares).mean()


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


def share_of(taken: Trajectories, rows: range) -> Trajectories:
    """Those samples of a batch that one of several processes holds."""
    names = ("latents", "final", "images", "log_probs", "groups")
    parts = {name: getattr(taken, name)[list(rows)] for name in names}
    return replace(taken, share=Share(rows, len(taken.groups)), **parts)
