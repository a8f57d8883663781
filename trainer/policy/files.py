"""What trained models are kept in: the names of their files, and safetensors files read and written. Imports no torch."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
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


def files_of(networks: Sequence[str], path: Path) -> dict[str, Path]:
    """An adapter's file for each network that is trained: `path`, or beside it `<stem>_high_noise`, `<stem>_low_noise`."""
    if len(networks) == 1:
        return {networks[0]: path}
    noises = zip(networks, ("high", "low"), strict=True)
    return {network: path.with_name(f"{path.stem}_{noise}_noise{path.suffix}") for network, noise in noises}


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


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """{name: shape} of the tensors in a safetensors file, by its header. Raises ValueError as `opened`."""
    with opened(path, "np") as content:
        return {key: tuple(content.get_slice(key).get_shape()) for key in content.keys()}


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
