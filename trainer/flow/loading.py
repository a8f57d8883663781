"""Reading diffusers folders: device and dtype, and errors that name the file at fault."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from . import FlowModelError

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def resolve_device(name: str) -> torch.device:
    if name != "auto":
        return torch.device(name)
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")


def resolve_dtype(name: str, device: torch.device) -> torch.dtype:
    if name != "auto":
        return DTYPES[name]
    return torch.float32 if device.type == "cpu" else torch.bfloat16


def load_pipeline(cls: type[DiffusionPipeline], path: Path, dtype: torch.dtype) -> DiffusionPipeline:
    """`cls.from_pretrained` on a local folder, never touching the network.

    Raises:
        FlowModelError: a file is missing, or shapes do not fit the configuration.
    """
    try:
        with warnings.catch_warnings():
            # The newer name, `dtype`, would be ignored by the older diffusers that many ComfyUI installations have.
            warnings.filterwarnings("ignore", message=".*torch_dtype.*", category=FutureWarning)
            return cls.from_pretrained(path, torch_dtype=dtype, local_files_only=True, use_safetensors=True)
    except (OSError, ValueError, RuntimeError, TypeError, KeyError) as error:
        raise FlowModelError(
            f"{path} could not be loaded as a {cls.__name__}: {error}. Fix: its files do not belong together, copy it again"
        ) from error
