"""A long training saved half way: weights, their average, the optimizer's moments, the schedule, and the random numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from diffusers.training_utils import EMAModel
from safetensors import safe_open
from safetensors.torch import save_file

SAVE_EVERY = 500  # steps


def keep(
    path: Path,
    step: int,
    learned: torch.nn.Module,
    average: EMAModel,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> None:
    moments = optimizer.state_dict()["state"]
    tensors = {f"weight {name}": value for name, value in learned.state_dict().items()}
    tensors |= {f"average {number}": value for number, value in enumerate(average.shadow_params)}
    tensors |= {f"moment {number} {name}": value for number, all_ in moments.items() for name, value in all_.items()}
    numbers = {
        "step": step,
        "averaged": average.optimization_step,
        "schedule": {name: value for name, value in schedule.state_dict().items() if not name.startswith("_schedule")},
        "group": {name: value for name, value in optimizer.param_groups[0].items() if name != "params"},
    }
    aside = path.with_suffix(".aside")
    contiguous = {name: value.contiguous().clone() for name, value in tensors.items()}
    save_file(contiguous | {"random": torch.get_rng_state()}, aside, metadata={"numbers": json.dumps(numbers)})
    aside.replace(path)


def resume(
    path: Path,
    learned: torch.nn.Module,
    average: EMAModel,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> int:
    """Puts everything back, and returns the number of steps that are done."""
    with safe_open(path, framework="pt") as file:
        numbers = json.loads(file.metadata()["numbers"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (no mapping)
    learned.load_state_dict({name[7:]: value for name, value in tensors.items() if name.startswith("weight ")})
    average.shadow_params = [tensors[f"average {number}"] for number in range(len(average.shadow_params))]
    average.optimization_step = numbers["averaged"]
    state: dict[int, dict[str, Any]] = {}
    for name, value in tensors.items():
        if name.startswith("moment "):
            _, number, moment = name.split(" ")
            state.setdefault(int(number), {})[moment] = value
    groups = optimizer.state_dict()["param_groups"]
    groups[0] |= numbers["group"] | {"betas": tuple(numbers["group"]["betas"])}
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    schedule.load_state_dict(numbers["schedule"])
    torch.set_rng_state(tensors["random"])
    return numbers["step"]
