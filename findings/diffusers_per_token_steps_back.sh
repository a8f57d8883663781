#!/usr/bin/env bash
# diffusers 0.42.1: FlowMatchEulerDiscreteScheduler.step goes the other way where it is given per_token_timesteps.
#
# Seen: four steps, a velocity of 1, x = 0, the step from 1 to 0.667. Plainly x becomes -0.333, which is (0.667 - 1) · 1. With
# per_token_timesteps of 1000 for each token, the same times, it becomes +0.333. The sign of dt is turned there, and diffusers' own LTX
# pipelines hand in the negative velocity for it. Who gives each token its time, as for a video whose first frame is kept, and
# the velocity as everywhere else, adds noise with every step; nothing is said.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check "torch==2.13.0" "numpy==2.3.5" "diffusers==0.42.1"
"$folder/venv/bin/python" - <<'PY'
import diffusers
import torch
from diffusers import FlowMatchEulerDiscreteScheduler


def step(**per_token):
    scheduler = FlowMatchEulerDiscreteScheduler(shift=1.0)
    scheduler.set_timesteps(4)
    x, velocity = torch.zeros(1, 3, 2), torch.ones(1, 3, 2)
    moved = scheduler.step(velocity, scheduler.timesteps[0], x, return_dict=False, **per_token)[0]
    assert moved.unique().numel() == 1
    return round(moved[0, 0, 0].item(), 3)


plain, by_token = step(), step(per_token_timesteps=torch.full((1, 3), 1000.0))
print(diffusers.__version__, {"plain": plain, "per token": by_token})
assert (plain, by_token) == (-0.333, 0.333)
PY
