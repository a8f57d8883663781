"""Adapters in and out, in the key layout that ComfyUI's LoraLoader and diffusers read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

if TYPE_CHECKING:
    from torch import Tensor

    from .flow.base import FlowModel

PREFIX = "transformer."


def adapter_state(model: FlowModel) -> dict[str, Tensor]:
    """`transformer.<module>.lora_A.weight` and `.lora_B.weight`; the file carries no alpha, so B holds the scale alpha/rank."""
    from peft.utils import get_peft_model_state_dict

    scale = model.lora_alpha / model.lora_rank
    return {
        PREFIX + key: (value * scale if "lora_B" in key else value).detach().cpu().contiguous().clone()
        for key, value in get_peft_model_state_dict(model.transformer).items()
    }


def save(model: FlowModel, path: Path, metadata: Mapping[str, object]) -> Path:
    """Writes the adapter as safetensors, with `metadata` (workflow, settings) in its header; never leaves half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}
    write_tensors(path, adapter_state(model), {"format": "pt", **header})
    return path


def save_named(model: FlowModel, folder: Path, filename: str, metadata: Mapping[str, object]) -> Path:
    """`save` under a plain file name. Raises ValueError for a name that would leave the folder."""
    if not filename or Path(filename).name != filename or filename.startswith("."):
        raise ValueError(f"filename {filename!r} must be a plain name without folders. Fix: for example otca_lora")
    with model.averaged():
        return save(model, folder / f"{filename}.safetensors", metadata)


def load(model: FlowModel, path: Path) -> None:
    """Puts a saved adapter into the model.

    Raises:
        ValueError: the file is no adapter of this model: names the first module that does not fit.
    """
    from peft.utils import set_peft_model_state_dict

    scale = model.lora_alpha / model.lora_rank
    tensors = read_tensors(path)
    wanted = adapter_state(model)
    for key in sorted(set(wanted) | set(tensors)):
        shapes = [tuple(state[key].shape) if key in state else "nothing" for state in (tensors, wanted)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"{path} is no adapter of this model: {key} is {shapes[0]} in the file and {shapes[1]} here. Fix: use the "
                "base model, rank and targets that it was trained with"
            )
    state = {k.removeprefix(PREFIX): v / scale if "lora_B" in k else v for k, v in tensors.items()}
    set_peft_model_state_dict(model.transformer, state)


def workflow_metadata(prompt: Mapping, canvas: Mapping | None) -> dict[str, object]:
    """The graph that made an adapter, under the keys by which ComfyUI finds it when the file is dropped on the canvas."""
    return {"prompt": prompt, **({"workflow": canvas} if canvas else {})}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file. Raises ValueError, naming it, where it is truncated or none."""
    try:
        with safe_open(path, framework="pt") as content:
            return {key: content.get_tensor(key).clone() for key in content.keys()}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is truncated or no safetensors file ({error})") from error


def read_metadata(path: Path) -> dict[str, str]:
    with safe_open(path, framework="pt") as content:
        return content.metadata() or {}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Writes aside, flushes to disk, then renames: a reader finds the old file or the new one, never part of one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file({key: value.contiguous() for key, value in tensors.items()}, aside, metadata=dict(metadata or {}))
        with open(aside, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
