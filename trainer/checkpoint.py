"""All that a run needs to go on bit-exactly, in safetensors and JSON: adapter, optimizer, average, counters, RNG.

A checkpoint is a folder that appears as a whole or not at all. Its state.json holds the SHA-256 of every other file, so that a
damaged one is noticed before any of it is used, and the one before is taken instead.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from . import distributed
from .layout import new_folder
from .lora import read_tensors, write_tensors

if TYPE_CHECKING:
    from .flow.base import FlowModel

logger = logging.getLogger(__name__)

KEEP = 2
STATE = "state.json"


class Damaged(ValueError):
    """A checkpoint that is not as it was written; names the file."""


def save(
    model: FlowModel, folder: Path, iteration: int, keep: int = KEEP, identity: Mapping[str, str] | None = None
) -> Path:
    """Writes `folder/<iteration>/`, which appears when it is complete, and keeps the last `keep`.

    Those of later iterations go too: the run went back behind them. `identity` says whose it is, beside the numbers.

    Raises:
        OSError: it could not be written. Those that were there still are.
    """
    target = folder / f"{iteration:06d}"
    trained, optimizer = model.trained_state(), model.optimizer_state()
    average = model.average_state() if model.ema is not None else {}
    if not distributed.is_main():
        return target
    for left in folder.glob(".[0-9]*"):  # by a process that was killed while it wrote
        shutil.rmtree(left)
    with new_folder(target) as aside:
        write_tensors(aside / "adapter.safetensors", trained)
        write_tensors(aside / "rng.safetensors", {"torch": torch.get_rng_state()})
        if optimizer:
            write_tensors(aside / "optimizer.safetensors", optimizer)
        state = {"iteration": iteration, "policy_version": model.version}
        state |= {"nonfinite_in_a_row": model.nonfinite_in_a_row, "optimizer": bool(optimizer)}
        # The next rollout's graphs are kept, or not, as this update wanted them.
        state |= {"processes": distributed.world(), "unconditional_gradient": model.unconditional_gradient}
        state["uses_graphs"] = model.uses_graphs
        state |= identity or {}
        state["loss_scale"] = [model.loss_scale.value, model.loss_scale.good]
        if model.ema is not None:
            write_tensors(aside / "ema.safetensors", average)
            state["ema"] = {"step": model.ema.optimization_step, "decay": model.ema.decay}
        state["sha256"] = {place.name: _sha256(place) for place in sorted(aside.iterdir())}
        (aside / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
    kept = [place for place in complete(folder) if int(place.name) <= iteration][-keep:]
    for other in _numbered(folder):
        if other not in kept:
            shutil.rmtree(other)
    return target


def restore(model: FlowModel, folder: Path) -> int:
    """Puts the last checkpoint that is whole into the model; returns its iteration, or 0 where there is none.

    Raises:
        ValueError: all are damaged, or the last belongs to another model or adapter.
    """
    problems = []
    for place in reversed(_numbered(folder)):
        try:
            state = _verified(place)
        except Damaged as error:
            problems.append(str(error))
            continue
        for problem in problems:
            logger.warning("%s: going on from iteration %d instead", problem, state["iteration"])
        try:
            return _restore(model, place, state)
        except (ValueError, KeyError) as error:
            raise ValueError(
                f"{error}. Fix: resume with the model, rank and targets of the run, or delete {place} to use the one before"
            ) from error
    if problems:
        raise ValueError(f"{'; '.join(problems)}. Fix: put the files back, or train anew in another folder")
    return 0


def _verified(place: Path) -> dict:
    """The checkpoint's state. Raises Damaged, with the first file that is not as it was written."""
    try:
        state = json.loads((place / STATE).read_text(encoding="utf-8"))
        for name, digest in state.get("sha256", {}).items():  # none in checkpoints of earlier versions
            if _sha256(place / name) != digest:
                raise Damaged(f"{place / name} is damaged: its SHA-256 is not that of {STATE}")
    except FileNotFoundError as error:
        raise Damaged(f"{error.filename} is missing") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise Damaged(f"{place / STATE} is damaged ({error})") from error
    return state


def _restore(model: FlowModel, place: Path, state: dict) -> int:
    adapter, own = read_tensors(place / "adapter.safetensors"), model.trainable_named()
    if {k: v.shape for k, v in adapter.items()} != {k: v.shape for k, v in own.items()}:
        raise ValueError(f"{place} was made with another model or adapter")
    model.load_trained_state(adapter)
    if state["optimizer"]:
        model.load_optimizer_state(read_tensors(place / "optimizer.safetensors"))
    if "ema" in state:
        model.restore_average(read_tensors(place / "ema.safetensors"), **state["ema"])
    torch.set_rng_state(read_tensors(place / "rng.safetensors")["torch"])
    if "loss_scale" in state:  # absent in checkpoints of earlier versions
        model.loss_scale.value, model.loss_scale.good = state["loss_scale"]
    model.version, model.nonfinite_in_a_row = state["policy_version"], state["nonfinite_in_a_row"]
    # Neither is in checkpoints of earlier versions.
    model.unconditional_gradient = state.get("unconditional_gradient", True)
    model.uses_graphs = state.get("uses_graphs", True)
    if state.get("processes", 1) != distributed.world() and distributed.is_main():
        logger.warning(
            "%s was written by %d processes and is read by %d: sums are rounded in another order, so figures may differ in "
            "their last digits from those that the run would have had",
            place,
            state["processes"],
            distributed.world(),
        )
    return state["iteration"]


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def complete(folder: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    return [place for place in _numbered(folder) if (place / STATE).is_file()]


def _numbered(folder: Path) -> list[Path]:
    places = [place for place in folder.glob("[0-9]*") if place.name.isdecimal()]  # and no copy of one
    return sorted(places, key=lambda place: int(place.name))
