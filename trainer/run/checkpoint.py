"""All that a run needs to go on bit-exactly, in safetensors and JSON: adapter, optimizer, average, counters, RNG.

A checkpoint is a folder that appears as a whole or not at all. Its state.json holds the SHA-256 of every other file, so that a
damaged one is noticed before any of it is used, and the one before is taken instead.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...host import distributed
from ...host.checks import FLAG, NUMBER, WHOLE, Check, check
from ...host.files import Damaged, is_own, mark_own, new_folder, open_plain, put_back, read_json, remove_own
from ..flow.lora import read_tensors, write_tensors
from ..types import NextRollout, RunSettings

if TYPE_CHECKING:
    from ..flow.base import FlowModel

logger = logging.getLogger(__name__)

KEEP = RunSettings.keep_checkpoints
STATE = "state.json"
ADAPTER, RNG, OPTIMIZER, AVERAGE = (f"{name}.safetensors" for name in ("adapter", "rng", "optimizer", "ema"))
_FIX = "put the file back, or delete its folder"
_MOST_ITERATIONS = 10**7  # as Training Run has them
_FIELDS: dict[str, Check] = {
    "iteration": (f"from 0 to {_MOST_ITERATIONS}", lambda value: WHOLE[1](value) and value <= _MOST_ITERATIONS),
    "policy_version": WHOLE,
    "nonfinite_in_a_row": WHOLE,
    "optimizer": FLAG,
    "processes": WHOLE,
    "unconditional_gradient": FLAG,
    "uses_graphs": FLAG,
    "loss_scale": (
        "a number and a whole number",
        lambda value: isinstance(value, list) and len(value) == 2 and NUMBER[1](value[0]) and WHOLE[1](value[1]),
    ),
    "sha256": ("an object", lambda value: isinstance(value, dict)),
}
_AVERAGE_FIELDS: dict[str, Check] = {"step": WHOLE, "decay": NUMBER}
_told: set[Path] = set()  # folders of which it was said that they are left alone


def save(
    model: FlowModel, folder: Path, iteration: int, keep: int = KEEP, identity: Mapping[str, str] | None = None
) -> Path:
    """Writes `folder/<iteration>/`, which appears when it is complete, and keeps the last `keep`.

    Those of later iterations go too: the run went back behind them. A folder that no training made stays, whatever its name is.
    `identity` says whose the checkpoint is, beside the numbers.

    Raises:
        OSError: it could not be written. Those that were there still are.
    """
    target = folder / f"{iteration:06d}"
    trained, optimizer = model.trained_state(), model.optimizer_state()
    average = model.average_state() if model.ema is not None else {}
    if not distributed.is_main():
        return target
    put_back(target)
    for left in folder.glob(".[0-9]*"):  # by a process that was killed while it wrote
        remove_own(left)
    _is_ours(target)
    with new_folder(target) as aside:
        write_tensors(aside / ADAPTER, trained)
        write_tensors(aside / RNG, {"torch": torch.get_rng_state()})
        if optimizer:
            write_tensors(aside / OPTIMIZER, optimizer)
        state = {"iteration": iteration, "policy_version": model.version}
        state |= {"nonfinite_in_a_row": model.nonfinite_in_a_row, "optimizer": bool(optimizer)}
        # The next rollout's graphs are kept, or not, as this update wanted them.
        state |= {"processes": distributed.world(), "unconditional_gradient": model.wish.unconditional_gradient}
        state["uses_graphs"] = model.wish.uses_graphs
        state |= identity or {}
        state["loss_scale"] = [model.loss_scale.value, model.loss_scale.good]
        if model.ema is not None:
            write_tensors(aside / AVERAGE, average)
            state["ema"] = {"step": model.ema.optimization_step, "decay": model.ema.decay}
        state["sha256"] = {place.name: _sha256(place) for place in sorted(aside.glob("*.safetensors"))}
        (aside / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
    ours = [place for place in _numbered(folder) if _is_ours(place) or _leave(place)]
    kept = [place for place in ours if (place / STATE).is_file() and int(place.name) <= iteration][-keep:]
    for other in ours:
        if other not in kept:
            remove_own(other)
    return target


def _is_ours(place: Path) -> bool:
    """Whether a training made that folder: it has our marker, or lost it when it was copied and has a state that we wrote."""
    if not is_own(place):
        try:
            if place.is_symlink() or read_json(place / STATE, fields=_FIELDS) is None:
                return False
            mark_own(place)
        except (Damaged, OSError):  # something else has the marker's name
            return False
    return True


def _leave(folder: Path) -> None:
    """Says once that a folder stays."""
    if folder not in _told:
        logger.warning("%s was not made by a training, and is left alone", folder)
        _told.add(folder)


def run_id(place: Path) -> str | None:
    """Whose checkpoint it is; None where it does not say."""
    try:
        state = read_json(place / STATE)
    except Damaged:  # which whoever restores it is told
        return None
    found = (state or {}).get("otca_run_id")
    return found if isinstance(found, str) else None


def restore(model: FlowModel, folder: Path) -> int:
    """Puts the last checkpoint that is whole into the model; returns its iteration, or 0 where there is none.

    Raises:
        ValueError: all are damaged, or the last belongs to another model or adapter.
    """
    problems = []
    for place in reversed(_numbered(folder)):
        if not (_is_ours(place) or (place / STATE).is_file()):
            _leave(place)
            continue
        try:
            state = _verified(place)
        except Damaged as error:
            problems.append(f"{error.path} {error.wrong}")
            continue
        for problem in problems:
            logger.warning("%s: going on from iteration %d instead", problem, state["iteration"])
        try:
            return _restore(model, place, state)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{error}. Fix: resume with the model, rank and targets of the run, or delete {place} to use the one before"
            ) from error
    if problems:
        raise ValueError(f"{'; '.join(problems)}. Fix: put the files back, or train anew in another folder")
    return 0


def _verified(place: Path) -> dict:
    """The checkpoint's state. Raises Damaged, with the first file that is not as it was written."""
    path = place / STATE
    state = read_json(path, fields=_FIELDS, fix=_FIX)
    if state is None:
        raise Damaged(path, "is missing", _FIX)
    if state["iteration"] != int(place.name):
        raise Damaged(path, f"is of iteration {state['iteration']}, and not {int(place.name)}", _FIX)
    if "ema" in state:
        try:
            check(state["ema"], dict, _AVERAGE_FIELDS)
        except ValueError as error:
            raise Damaged(path, f"has an ema that {error}", _FIX) from error
    for name in [ADAPTER, RNG, *[OPTIMIZER] * state["optimizer"], *[AVERAGE] * ("ema" in state)]:
        try:
            digest = _sha256(place / name)
        except FileNotFoundError as error:
            raise Damaged(place / name, "is missing", _FIX) from error
        except OSError as error:
            raise Damaged(place / name, f"cannot be read ({error.strerror or error})", _FIX) from error
        if digest != state["sha256"].get(name):
            raise Damaged(place / name, f"is damaged: its SHA-256 is not that of {STATE}", _FIX)
    return state


def _restore(model: FlowModel, place: Path, state: dict) -> int:
    adapter, own = read_tensors(place / ADAPTER), model.trainable_named()
    if {k: v.shape for k, v in adapter.items()} != {k: v.shape for k, v in own.items()}:
        raise ValueError(f"{place} was made with another model or adapter")
    model.load_trained_state(adapter)
    if state["optimizer"]:
        model.load_optimizer_state(read_tensors(place / OPTIMIZER))
    if "ema" in state:
        model.restore_average(read_tensors(place / AVERAGE), **state["ema"])
    torch.set_rng_state(read_tensors(place / RNG)["torch"])
    model.loss_scale.value, model.loss_scale.good = state["loss_scale"]
    model.version, model.nonfinite_in_a_row = state["policy_version"], state["nonfinite_in_a_row"]
    model.wish = NextRollout(state["unconditional_gradient"], state["uses_graphs"])
    if state["processes"] != distributed.world() and distributed.is_main():
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
    with os.fdopen(open_plain(path), "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def complete(folder: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    return [place for place in _numbered(folder) if (place / STATE).is_file()]


def _numbered(folder: Path) -> list[Path]:
    places = [place for place in folder.glob("[0-9]*") if place.name.isdecimal()]  # and no copy of one
    return sorted(places, key=lambda place: int(place.name))
