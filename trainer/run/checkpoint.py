"""All that a run needs to continue bit for bit, in safetensors and JSON: adapter, old policy, optimizer, average, counters, RNG.

A checkpoint is a folder that appears as a whole or not at all. Its state.json holds the SHA-256 of every other file, so that a
damaged one is noticed before any of it is used, and the one before is taken instead.
"""

from __future__ import annotations

import json
import logging
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ...host import distributed
from ...host.files import Damaged, open_plain, real, sha256
from ...host.json_files import FLAG, NUMBER, TEXT, WHOLE, Check, check, read_json
from ...host.own_folders import is_own, mark_own, new_folder, put_back, remove_own
from ...host.text import plain_name
from ..families.base import FlowModel
from ..policy.files import read_metadata, read_tensors, write_tensors
from . import status
from .folder import CHECKPOINTS, say_once

logger = logging.getLogger(__name__)

STATE = "state.json"
ADAPTER, RNG, OPTIMIZER, AVERAGE, OLD_POLICY = (
    f"{name}.safetensors" for name in ("adapter", "rng", "optimizer", "ema", "old_policy")
)
_FIX = "put the file back, or delete its folder"
_MOST_ITERATIONS = 10**7  # as Training Run has them
_FIELDS: dict[str, Check] = {
    "iteration": (f"from 0 to {_MOST_ITERATIONS}", lambda value: WHOLE[1](value) and value <= _MOST_ITERATIONS),
    "policy_version": WHOLE,
    "nonfinite_in_a_row": WHOLE,
    "optimizer": FLAG,
    "processes": WHOLE,
    "loss_scale": (
        "a number and a whole number",
        lambda value: isinstance(value, list) and len(value) == 2 and NUMBER[1](value[0]) and WHOLE[1](value[1]),
    ),
    "sha256": ("an object", lambda value: isinstance(value, dict)),
}
_AVERAGE_FIELDS: dict[str, Check] = {"step": WHOLE, "decay": NUMBER}
_OLD_POLICY_FIELDS: dict[str, Check] = {"steps": WHOLE, "differs": FLAG}
_ENVIRONMENT_FIELDS: dict[str, Check] = {"torch": TEXT, "python": TEXT}
_MEMO_FIELDS: dict[str, Check] = {"tensors": FLAG}


def save(
    model: FlowModel, folder: Path, iteration: int, keep: int = 2, identity: Mapping[str, str] | None = None
) -> Path:
    """Writes `folder/<iteration>/`, which appears when it is complete, and keeps the last `keep`.

    Checkpoints of later iterations are deleted too: the run was resumed from before them. A folder that no training made stays,
    whatever its name is. `identity` says which run the checkpoint belongs to.

    Raises:
        OSError: it could not be written. Those that were there still are.
    """
    target, policy = folder / f"{iteration:06d}", model.policy
    tensors = {  # by all processes, which put a sharded model together
        ADAPTER: policy.trained_state(),
        RNG: {"torch": torch.get_rng_state()},
        OPTIMIZER: policy.optimizer_state(),
        AVERAGE: policy.average_state() if policy.ema is not None else {},
        OLD_POLICY: policy.old_state(),
    }
    memos = model.memo.saved()
    tensors |= {f"{name}.safetensors": content for name, (content, _) in memos.items()}
    if not distributed.is_main():
        return target
    put_back(target)
    for left in folder.glob(".[0-9]*"):  # by a process that was killed while it wrote
        remove_own(left)
    _is_ours(target)
    with new_folder(target) as aside:
        for name, content in tensors.items():
            if content:
                write_tensors(aside / name, content)
        state: dict[str, Any] = {
            "iteration": iteration,
            "policy_version": policy.version,
            "nonfinite_in_a_row": policy.nonfinite_in_a_row,
            "optimizer": bool(tensors[OPTIMIZER]),
            "processes": distributed.world(),
            "environment": _environment(),
            "memos": {name: {"values": values, "tensors": bool(content)} for name, (content, values) in memos.items()},
            **(identity or {}),
            "base": model.identity,
            "lora_alpha": policy.adapter.alpha if policy.adapter is not None else None,
            "loss_scale": [policy.loss_scale.value, policy.loss_scale.good],
        }
        if policy.ema is not None:
            state["ema"] = {"step": policy.ema.optimization_step, "decay": policy.ema.decay}
        if policy.old_steps:
            state["old_policy"] = {"steps": policy.old_steps, "differs": policy.old is not None}
        state["sha256"] = {path.name: sha256(open_plain(path)) for path in sorted(aside.glob("*.safetensors"))}
        (aside / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
    own = [place for place in _numbered(folder) if _is_ours(place) or _leave(place)]
    whole = [place for place in own if (place / STATE).is_file() and int(place.name) <= iteration]
    for other in set(own).difference(whole[-keep:]):
        remove_own(other)
    return target


def _is_ours(checkpoint: Path) -> bool:
    """Whether a training made that folder: it has our marker, or lost it when it was copied and has a state that we wrote."""
    if not is_own(checkpoint):
        try:
            if checkpoint.is_symlink() or read_json(checkpoint / STATE, fields=_FIELDS) is None:
                return False
            mark_own(checkpoint)
        except (Damaged, OSError):  # something else has the marker's name
            return False
    return True


def _leave(folder: Path) -> None:
    say_once(f"{folder} was not made by a training, and is left alone")


def _run_id(checkpoint: Path) -> str | None:
    """The id of the run whose checkpoint it is; None where it does not say."""
    try:
        state = read_json(checkpoint / STATE)
    except Damaged:  # the message comes when it is restored
        return None
    value = (state or {}).get("otca_run_id")
    return value if isinstance(value, str) else None


def restore(model: FlowModel, folder: Path) -> int:
    """Puts the last checkpoint that is whole into the model; returns its iteration, or 0 if the folder has none.

    Raises:
        ValueError: all are damaged, or the last belongs to another model or adapter.
    """
    problems = []
    for checkpoint in reversed(_numbered(folder)):
        if not (_is_ours(checkpoint) or (checkpoint / STATE).is_file()):
            _leave(checkpoint)
            continue
        try:
            state = _verified(checkpoint)
        except Damaged as error:
            problems.append(f"{error.path} {error.wrong}")
            continue
        for problem in problems:
            logger.warning("%s: continuing from iteration %d instead", problem, state["iteration"])
        try:
            return _restore(model, checkpoint, state)
        except (ValueError, KeyError, TypeError) as error:
            fix = "resume with the model, rank and targets of the run, or begin a new run with start_from = its lora.safetensors"
            raise ValueError(f"{error}. Fix: {fix}") from error
    if problems:
        raise ValueError(f"{'; '.join(problems)}. Fix: put the files back, or begin again in another folder")
    return 0


def _verified(checkpoint: Path) -> dict:
    """The checkpoint's state. Raises Damaged, with the first file that is not as it was written."""
    path = checkpoint / STATE
    state = read_json(path, fields=_FIELDS, fix=_FIX)
    if state is None:
        raise Damaged(path, "is missing", _FIX)
    if state["iteration"] != int(checkpoint.name):
        raise Damaged(path, f"is of iteration {state['iteration']}, and not {int(checkpoint.name)}", _FIX)
    for name, fields in (
        ("ema", _AVERAGE_FIELDS),
        ("old_policy", _OLD_POLICY_FIELDS),
        ("environment", _ENVIRONMENT_FIELDS),
    ):
        try:
            check(state.get(name, {}), dict, fields if name in state else {})
        except ValueError as error:
            raise Damaged(path, f"has an {name} that {error}", _FIX) from error
    state = _from_0_1(state)
    try:
        check(state["memos"], dict, {})
        for name, memo in state["memos"].items():
            plain_name(name)
            check(memo, dict, _MEMO_FIELDS)
    except ValueError as error:
        raise Damaged(path, f"has memos that {error}", _FIX) from error
    optional = {
        OPTIMIZER: state["optimizer"],
        AVERAGE: "ema" in state,
        OLD_POLICY: state["old_policy"]["differs"],
        **{f"{name}.safetensors": memo["tensors"] for name, memo in state["memos"].items()},
    }
    for name in [ADAPTER, RNG, *(name for name, there in optional.items() if there)]:
        try:
            digest = sha256(open_plain(checkpoint / name))
        except FileNotFoundError as error:
            raise Damaged(checkpoint / name, "is missing", _FIX) from error
        except OSError as error:
            raise Damaged(checkpoint / name, f"cannot be read ({error.strerror or error})", _FIX) from error
        if digest != state["sha256"].get(name):
            raise Damaged(checkpoint / name, f"is damaged: its SHA-256 is not that of {STATE}", _FIX)
    return state


def _from_0_1(state: dict[str, Any]) -> dict[str, Any]:
    """Upgrades a state that named each memo by itself, and had no policy beside the trained one."""
    graph = {"values": [state.get("unconditional_gradient"), state.get("uses_graphs")], "tensors": False}
    tensors = {"credit": True, "step_noise": True, "reward_spread": False}
    memos = {name: {"values": state[name], "tensors": has} for name, has in tensors.items() if name in state}
    return {"memos": {"next_rollout": graph, **memos}, "old_policy": {"steps": 0, "differs": False}, **state}


def _from_before_names(state: dict[str, Any], model: FlowModel) -> dict[str, Any]:
    """Upgrades a state that said neither its base model nor its alpha: both are taken for those of `model`."""
    adapter = model.policy.adapter
    return {"base": model.identity, "lora_alpha": adapter.alpha if adapter is not None else None, **state}


def _restore(model: FlowModel, checkpoint: Path, state: dict) -> int:
    policy, adapter = model.policy, read_tensors(checkpoint / ADAPTER)
    state = _from_before_names(state, model)
    if {k: v.shape for k, v in adapter.items()} != {k: v.shape for k, v in policy.trainable_named().items()}:
        raise ValueError(f"{checkpoint} was made with another model or adapter")
    alpha = state["lora_alpha"] if policy.adapter is not None else 1.0
    if not NUMBER[1](alpha) or alpha <= 0:
        raise Damaged(checkpoint / STATE, f"has lora_alpha = {alpha!r}, which is not a number above 0", _FIX)
    if state["base"] != model.identity:  # of equal shapes
        raise ValueError(f"{checkpoint} was made with another base model than {model.source}")
    policy.load_trained_state(adapter)
    if state["optimizer"]:
        policy.load_optimizer_state(read_tensors(checkpoint / OPTIMIZER))
    if "ema" in state:
        policy.load_average_state(read_tensors(checkpoint / AVERAGE), **state["ema"])
    old = state["old_policy"]
    policy.load_old_state(read_tensors(checkpoint / OLD_POLICY) if old["differs"] else {}, old["steps"])
    if policy.adapter is not None:
        policy.keep_learned(alpha / policy.adapter.alpha)
    model.memo.restore(
        {
            name: (read_tensors(checkpoint / f"{name}.safetensors") if memo["tensors"] else {}, memo["values"])
            for name, memo in state["memos"].items()
        }
    )
    torch.set_rng_state(read_tensors(checkpoint / RNG)["torch"])
    policy.loss_scale.value, policy.loss_scale.good = state["loss_scale"]
    policy.version, policy.nonfinite_in_a_row = state["policy_version"], state["nonfinite_in_a_row"]
    return state["iteration"]


def _environment() -> dict[str, str]:
    return {"torch": str(torch.__version__), "python": ".".join(platform.python_version_tuple()[:2])}


def others(folder: Path, iteration: int) -> list[dict[str, Any]]:
    """Changes of the environment since the checkpoint of that iteration was written, in the form of `lineage.changes`."""
    state: dict[str, Any] = read_json(folder / f"{iteration:06d}" / STATE) or {}
    now: dict[str, Any] = {"processes": distributed.world(), **_environment()}
    before = {"processes": state.get("processes", now["processes"]), **state.get("environment", {})}
    return [
        {"node": "Training", "input": name, "before": value, "now": now.get(name)}
        for name, value in before.items()
        if value != now.get(name)
    ]


def complete(folder: Path) -> list[Path]:
    """Finished checkpoints, oldest first."""
    return [checkpoint for checkpoint in _numbered(folder) if (checkpoint / STATE).is_file()]


def _numbered(folder: Path) -> list[Path]:
    # Not a copy, as a file manager names it.
    return sorted(
        (place for place in folder.glob("[0-9]*") if place.name.isdecimal()), key=lambda place: int(place.name)
    )


# --- whose a folder is ------------------------------------------------------------------------------------------------


def run_id(folder: Path, written: status.Status | None = None) -> str | None:
    """The id of the run in that folder, as its status says, or else its last checkpoint: a status is written by others too."""
    if (written or (written := status.read(folder, logger.debug))).id:
        return written.id
    return next(filter(None, map(_run_id, reversed(complete(folder / CHECKPOINTS)))), None)


def wrote(folder: Path, run: str, file: Path) -> bool:
    """Whether the run of that folder and id wrote an adapter's file, as the file's header says.

    The id decides, since a folder may be renamed. A copied folder has the id of the one that it was copied from: a file outside
    of both belongs to the folder that it names, while that is there.
    """
    try:
        metadata = read_metadata(file)
    except ValueError:
        return False
    if metadata.get("otca_run_id") != run:
        return False
    name = metadata.get("otca_run")
    if name == folder.name or real(file.parent) == real(folder):
        return True
    try:
        return run_id(folder.with_name(plain_name(name))) != run
    except ValueError:  # no name of a folder
        return True
