"""What trained models are kept in: the names of their files, and safetensors files read and written. Imports no torch."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from ...host.files import beside, flush, put_in_place

if TYPE_CHECKING:
    from torch import Tensor

NETWORKS = ("transformer", "transformer_2")  # that are trained, of any family
ADAPTER = "lora.safetensors"
# The last two are those of a model with two networks.
ADAPTERS = (ADAPTER, "lora_high_noise.safetensors", "lora_low_noise.safetensors")
WEIGHTS = "diffusion_pytorch_model.safetensors"  # in a folder of the network's name, where all of it was trained


@contextlib.contextmanager
def opened(path: Path, framework: str = "pt") -> Iterator[safe_open]:
    """Opens a safetensors file. Raises ValueError, with its path, where it is truncated or no such file."""
    try:
        with safe_open(path, framework=framework) as content:
            yield content
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path} is truncated or no safetensors file ({error}). Fix: copy or download that file again"
        ) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file. Raises ValueError as `opened`."""
    with opened(path) as content:
        return {key: content.get_tensor(key).clone() for key in content.keys()}


def read_metadata(path: Path) -> dict[str, str]:
    """The texts in the file's header. Raises ValueError as `opened`."""
    with opened(path) as content:
        return content.metadata() or {}


def header(metadata: Mapping[str, object]) -> dict[str, str]:
    """Metadata as a safetensors file takes it: what is not a text becomes JSON."""
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in metadata.items()}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Writes aside, flushes to disk, then renames: a reader finds the old file or the new one, never part of one.

    Raises:
        OSError: names the file.
    """
    from safetensors.torch import save_file

    aside = beside(path)
    try:
        save_file({key: value.contiguous() for key, value in tensors.items()}, aside, metadata=dict(metadata or {}))
        flush(aside)
        put_in_place(aside, path)
    except SafetensorError as error:
        raise OSError(f"{path}: {error}") from error
    finally:
        aside.unlink(missing_ok=True)
    flush(path.parent)
