"""Networks made without memory of their own, and filled with the tensors of a checkpoint: nothing is initialised in vain."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..lora import read_tensors

if TYPE_CHECKING:
    from torch import Tensor


def read(files: Iterable[Path]) -> dict[str, Tensor]:
    """All tensors of all files, safetensors or what torch.save wrote; nothing is unpickled but tensors.

    Raises:
        ValueError: a file is truncated, or holds other things than tensors.
    """
    tensors = {}
    for file in files:
        try:
            tensors |= read_tensors(file) if file.suffix == ".safetensors" else _read_pth(file)
        except (ValueError, RuntimeError, OSError, EOFError, pickle.UnpicklingError) as error:
            raise ValueError(
                f"{file} ({file.stat().st_size:,} bytes) cannot be read as weights: {str(error).splitlines()[0]}. "
                f"Fix: copy or download that file again"
            ) from error
    return tensors


def _read_pth(file: Path) -> dict[str, Tensor]:
    return torch.load(file, map_location="cpu", weights_only=True, mmap=True)


def check_type(folder: Path, model_type: str) -> None:
    """Raises ValueError where a folder's config.json is that of another kind of model."""
    found = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    if found != model_type:
        raise ValueError(
            f"{folder} holds a model of type {found}, where {model_type} is needed. Fix: give another folder"
        )


def fill(network: torch.nn.Module, tensors: Mapping[str, Tensor], place: Path) -> None:
    """Gives a network that was made under accelerate's `init_empty_weights` its weights, without a copy.

    Raises:
        ValueError: a tensor is missing, has another shape or belongs to another network.
    """
    wanted = network.state_dict()
    wrong = [f"{name} is missing" for name in wanted.keys() - tensors.keys()]
    wrong += [f"{name} is not of this network" for name in tensors.keys() - wanted.keys()]
    wrong += [
        f"{name} has shape {tuple(tensors[name].shape)} where {tuple(wanted[name].shape)} is needed"
        for name in wanted.keys() & tensors.keys()
        if tensors[name].shape != wanted[name].shape
    ]
    if wrong:
        raise ValueError(
            f"{place} holds weights that do not fit ({len(wrong)} tensors; {min(wrong)}). "
            f"Fix: copy or download all of its files again, and those of no other model beside them"
        )
    network.load_state_dict(tensors, assign=True)
    network.eval().requires_grad_(False)
