"""Reading diffusers folders: device and dtype, and errors that name the file at fault."""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from .. import host
from . import FlowModelError

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

_LOADING_ERRORS = (OSError, ValueError, RuntimeError, TypeError, KeyError, NotImplementedError)
# No float16: without loss scaling most gradients of a large model would be zero.
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def resolve_device(name: str) -> torch.device:
    if name != "auto":
        try:
            return torch.empty(0, device=name).device
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            reason = str(error).splitlines()[0]
            raise FlowModelError(f"device {name!r} cannot be used here ({reason}). Fix: use auto or cpu") from error
    return host.default_device()


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    if name != "auto":
        return DTYPES[name]
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def load_pipeline(
    cls: type[DiffusionPipeline], path: Path, components: Sequence[str], dtype: torch.dtype
) -> DiffusionPipeline:
    """`cls.from_pretrained` on a local folder, never touching the network.

    The networks are loaded one by one, since the libraries fill what a file lacks with random numbers and only say so in
    their loading report.

    Raises:
        FlowModelError: weights are missing, or their shapes do not fit the configuration.
    """
    index = json.loads((path / "model_index.json").read_text(encoding="utf-8"))
    with warnings.catch_warnings():
        # The newer name, `dtype`, would be ignored by the older diffusers that many ComfyUI installations have.
        warnings.filterwarnings("ignore", message=".*torch_dtype.*", category=FutureWarning)
        parts = {name: source for name, source in index.items() if isinstance(source, list)}
        networks = {n: _load_network(path / n, *parts[n], dtype) for n in components if parts.get(n, [None])[0]}
        # What a checkpoint does without, as SD3 may without T5, has to be said: from_pretrained asks for all.
        left_out = {name: None for name, (library, _) in parts.items() if library is None}
        try:
            return cls.from_pretrained(path, torch_dtype=dtype, local_files_only=True, **networks, **left_out)
        except _LOADING_ERRORS as error:
            raise _unfit(path, error) from error


def _load_network(folder: Path, library: str, name: str, dtype: torch.dtype) -> torch.nn.Module:
    network = getattr(importlib.import_module(library), name)
    options = {"local_files_only": True, "use_safetensors": True, "output_loading_info": True}
    try:
        name_of_dtype = "dtype" if library == "transformers" else "torch_dtype"
        module, information = network.from_pretrained(folder, **{name_of_dtype: dtype}, **options)
    except _LOADING_ERRORS as error:
        raise _unfit(folder, error) from error
    for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        # Old CLIP files carry their position numbers, which are no weights.
        if keys := sorted(key for key in map(str, information.get(kind) or ()) if not key.endswith("position_ids")):
            raise _unfit(folder, f"{len(keys)} {kind.replace('_', ' ')}, the first is {keys[0]}")
    return module


def _unfit(folder: Path, reason: object) -> FlowModelError:
    return FlowModelError(f"{folder} holds other weights than its config.json describes: {reason}. Fix: copy it again")
