"""All that a run needs to go on bit-exactly, in safetensors and JSON: adapter, optimizer, average, counters, RNG."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from .lora import read_tensors, write_tensors

if TYPE_CHECKING:
    from .flow.base import FlowModel

KEEP = 2


def save(model: FlowModel, folder: Path, iteration: int) -> Path:
    """Writes `folder/<iteration>/` aside and renames it when complete; keeps the last two."""
    target = folder / f"{iteration:06d}"
    aside = folder / f".{target.name}.{os.getpid()}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    write_tensors(aside / "adapter.safetensors", {k: v.detach().cpu() for k, v in model.trainable_named().items()})
    write_tensors(aside / "rng.safetensors", {"torch": torch.get_rng_state()})
    optimizer = model.optimizer_state()
    if optimizer:
        write_tensors(aside / "optimizer.safetensors", optimizer)
    state = {"iteration": iteration, "policy_version": model.version, "nonfinite_in_a_row": model.nonfinite_in_a_row}
    state["optimizer"] = bool(optimizer)
    if model.ema is not None:
        write_tensors(aside / "ema.safetensors", {f"{i:05d}": p for i, p in enumerate(model.ema.shadow_params)})
        state["ema"] = {"step": model.ema.optimization_step, "decay": model.ema.decay}
    (aside / "state.json").write_text(json.dumps(state, indent=1))
    shutil.rmtree(target, ignore_errors=True)
    os.replace(aside, target)
    for old in complete(folder)[:-KEEP]:
        shutil.rmtree(old)
    return target


def restore(model: FlowModel, folder: Path) -> int:
    """Puts the last complete checkpoint into the model; returns its iteration, or 0 where there is none.

    Raises:
        ValueError: a file is truncated, or belongs to another model or adapter.
    """
    found = complete(folder)
    if not found:
        return 0
    place = found[-1]
    try:
        return _restore(model, place)
    except (ValueError, KeyError) as error:
        raise ValueError(
            f"{error}. Fix: resume with the model, rank and targets of the run, or delete {place} to use the one before"
        ) from error


def _restore(model: FlowModel, place: Path) -> int:
    try:
        state = json.loads((place / "state.json").read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{place / 'state.json'} is truncated ({error})") from error
    adapter, own = read_tensors(place / "adapter.safetensors"), model.trainable_named()
    if {k: v.shape for k, v in adapter.items()} != {k: v.shape for k, v in own.items()}:
        raise ValueError(f"{place} was made with another model or adapter")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(adapter[name])
    if state["optimizer"]:
        model.load_optimizer_state(read_tensors(place / "optimizer.safetensors"))
    if "ema" in state:
        model.restore_average(read_tensors(place / "ema.safetensors"), **state["ema"])
    torch.set_rng_state(read_tensors(place / "rng.safetensors")["torch"])
    model.version, model.nonfinite_in_a_row = state["policy_version"], state["nonfinite_in_a_row"]
    return state["iteration"]


def complete(folder: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    found = (place for place in folder.glob("[0-9]*") if (place / "state.json").is_file())
    return sorted(found, key=lambda place: int(place.name))
