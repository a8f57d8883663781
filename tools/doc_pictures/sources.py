"""What several pictures are made of, each computed once: the embedded model, groups of its samples, their scores and credit."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import replace
from pathlib import Path

from ...__main__ import main as otca
from ...trainer import rollout
from ...trainer.families.base import FlowModel
from ...trainer.flow import load_flow_model
from ...trainer.rewards import reward_class
from ...trainer.rewards.base import Reward, score_stack
from ...trainer.types import Prompts, SamplerSettings, Scores, StepCredit, Trajectories

ROOT = Path(__file__).resolve().parents[2]
SHAPES_FLUX = ROOT / "assets" / "shapes-flux"
GROUP_SIZE = 12

# The sampler of the workflow otca, and prompts of its evaluation.
SETTINGS = SamplerSettings(
    kind="dance_sde", eta=0.5, steps=8, width=40, height=40, shift=0.0, guidance=3.5, shared_noise=True
)
CAPTIONS = (
    "a red circle on a blue background",
    "a green triangle on a white background",
    "an orange square on a black background",
    "a purple circle on a yellow background",
)


@functools.cache
def shapes_flux() -> FlowModel:
    return load_flow_model(SHAPES_FLUX, device="cpu")


@functools.cache
def trajectories(groups: int) -> Trajectories:
    """Of the first `groups` captions, GROUP_SIZE samples each."""
    prompts = Prompts(CAPTIONS[:groups], tuple(range(groups)))
    return rollout.sample(shapes_flux(), prompts, SETTINGS, group_size=GROUP_SIZE, seed=0)


@functools.cache
def scores(groups: int) -> Scores:
    """By three rewards that can be trained on, and by the judge of the shapes world."""
    rewards = [reward(kind) for kind in ("clip_t", "colorfulness", "sharpness", "accuracy")]
    own = trajectories(groups)
    return score_stack(rewards, own.images, own.prompts, own.groups)


def reward(kind: str, **options) -> Reward:
    return reward_class(kind)(**options)


def credit(method, *options, groups: int = 2) -> StepCredit:
    """By a function of trainer/credit/steps.py, with its further arguments."""
    own = trajectories(groups)
    return replace(method(own.latents, own.final, own.trained, *options), sigmas=own.sigmas)


def workplace() -> Path:
    """A folder for what is written on the way. It goes when the program ends."""
    return Path(_temporary_folder().name)


@functools.cache
def _temporary_folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory()


def train_otca(name: str, *options: str) -> Path:
    """The folder of a new run of the workflow otca; the options are those of `otca train`."""
    folder = workplace() / name
    if status := otca(["train", str(ROOT / "workflows" / "api" / "otca.json"), "--output", str(folder), *options]):
        raise SystemExit(status)
    return folder
