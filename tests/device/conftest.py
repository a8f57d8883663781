"""Tests on an accelerator: the pretend one everywhere, CUDA where there is one."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from comfyui_otca.tests.device import pretend
from comfyui_otca.tests.tiny import models as tiny
from comfyui_otca.trainer import grpo, rollout
from comfyui_otca.trainer import matching as forward_process
from comfyui_otca.trainer.advantages import fuse
from comfyui_otca.trainer.credit.steps import tcd
from comfyui_otca.trainer.flow import load_flow_model
from comfyui_otca.trainer.types import MatchingSettings, Prompts, SamplerSettings, Scores, UpdateSettings

SIZES = {
    "flux": {"width": 16, "height": 16, "guidance": 3.5},
    **{family: size | {"guidance": 4.5} for family, size in tiny.SIZES.items()},
}
PROMPTS = Prompts(("a red circle", "a blue square"), (0, 1))


@pytest.fixture
def accelerator():
    """The pretend device is this machine's accelerator; how it is otherwise, see `pretend.active`."""
    if not pretend.is_registered():
        pytest.skip(f"in a process of its own: pytest --device {pretend.NAME}:0 ({pretend.MISSING})")
    with pretend.active():
        yield "pretend:0"


@pytest.fixture(scope="session")
def trained(tiny_folder):
    """trained(family, device, …): what iterations with made-up rewards come to, and what is left of them."""

    def train(family, device, *, sampler=None, update=None, matching=None, keep_graph=False, load=None, iterations=1):
        own = {"lora_rank": 2, "lora_alpha": 3.0, "dtype": "float32", "device": device, **(load or {})}
        model = load_flow_model(tiny_folder(family), **own)
        rows = [iteration(model, family, seed, sampler, update, matching, keep_graph)[0] for seed in range(iterations)]
        weights = [parameter.detach().cpu() for parameter in model.policy.trainable_parameters()]
        return SimpleNamespace(model=model, rows=rows, weights=weights)

    return train


def sampled(model, family, seed=0, sampler=None, keep_graph=False, **options):
    usual = {"kind": "dance_sde", "eta": 0.5, "steps": 3, "shift": 0.0, **SIZES[family]}
    settings = SamplerSettings(**{**usual, **(sampler or {})})
    return rollout.sample(model, PROMPTS, settings, group_size=2, seed=seed, keep_graph=keep_graph, **options)


def judged(taken, seed=0):
    """Advantages by made-up scores."""
    values = torch.randn((len(taken.groups), 2), generator=torch.Generator().manual_seed(seed))
    scores = Scores(values, ("a", "b"), (1.0, 0.5), taken.groups, torch.empty(len(values), 0), (), ())
    return fuse(scores, tcd(taken.latents, taken.final, taken.trained, w_min=0.5), "moca")


def iteration(model, family, seed, sampler=None, update=None, matching=None, keep_graph=False):
    """Its figures without timings, and its trajectories."""
    taken = sampled(model, family, seed, sampler, keep_graph)
    move, settings = grpo.update, UpdateSettings
    if matching is not None:
        move, settings = forward_process.update, MatchingSettings
    figures = move(model, taken, judged(taken, seed), settings(**{"learning_rate": 1e-3, **(update or matching or {})}))
    return {name: value for name, value in figures.items() if not name.startswith("seconds/")}, taken
