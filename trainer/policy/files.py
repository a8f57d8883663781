"""Files of trained models: the names of their files, and safetensors files read and written. Imports no torch."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

from ...host import paths
from ...host.access import permissions
from ...host.files import flush, written_aside

if TYPE_CHECKING:
    from torch import Tensor

NETWORKS = ("transformer", "transformer_2")  # that are trained, of any family
ADAPTER = "lora.safetensors"
# The last two are those of a model with two networks.
ADAPTERS = (ADAPTER, "lora_high_noise.safetensors", "lora_low_noise.safetensors")
PEFT, PEFT_SETTINGS = "adapter_model.safetensors", "adapter_config.json"  # as peft's save_pretrained writes them
WEIGHTS = "diffusion_pytorch_model.safetensors"  # in a folder of the network's name, where all of it was trained


def files_of(networks: Sequence[str], path: Path) -> dict[str, Path]:
    """An adapter's file for each network that is trained: `path`, or beside it `<stem>_high_noise`, `<stem>_low_noise`."""
    if len(networks) == 1:
        return {networks[0]: path}
    noises = zip(networks, ("high", "low"), strict=True)
    return {network: path.with_name(f"{path.stem}_{noise}_noise{path.suffix}") for network, noise in noises}


def find(source: str) -> Path:
    """The adapter of a run, by its folder or name, or a LoRA file, by its path or its name in ComfyUI's loras folders.

    Raises:
        NotAllowed: a path that workflows may not read.
        FileNotFoundError: nothing there, or a run that has saved nothing yet.
        ValueError: a run that trained all weights.
    """
    candidates = permissions.candidates(source, [paths.runs_folder(), *paths.weight_folders("loras")], "a guide")
    for path in candidates:
        if weights_of(adapter := adapter_at(path)):
            return adapter
    if run := next((path for path in candidates if path.is_dir()), None):
        if list(run.glob(f"transformer*/{WEIGHTS}")):
            raise ValueError(f"run {run} trained all weights: it has no adapter. Fix: train it with training = lora")
        raise FileNotFoundError(f"run {run} has no {ADAPTER} yet. Fix: train until the first checkpoint")
    raise FileNotFoundError(
        f"adapter {source!r} was not found, looked for as {', '.join(map(str, candidates))}. Fix: give a run's folder or a "
        "LoRA's .safetensors file; if it is a pair, without _high_noise and _low_noise"
    )


def adapter_at(path: Path) -> Path:
    """The adapter in a run's folder or in one of peft's; a file itself."""
    names = (ADAPTER, PEFT) if path.is_dir() else ()
    return next((path / name for name in names if weights_of(path / name)), path / ADAPTER if names else path)


def weights_of(adapter: Path) -> list[Path]:
    """The weight files of an adapter that are there; an adapter of two networks has two."""
    names = [adapter.stem, *(f"{adapter.stem}_{expert}_noise" for expert in ("high", "low"))]
    return [file for name in names if (file := adapter.with_name(f"{name}{adapter.suffix}")).is_file()]


def all_of(adapter: Path) -> list[Path]:
    """All files of an adapter that are there: its weights, and what peft says of them beside its own."""
    settings = adapter.with_name(PEFT_SETTINGS)
    return [*weights_of(adapter), *([settings] if adapter.name == PEFT and settings.is_file() else [])]


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

    try:
        with written_aside(path) as aside:
            save_file({key: value.contiguous() for key, value in tensors.items()}, aside, metadata=dict(metadata or {}))
            flush(aside)
    except SafetensorError as error:
        raise OSError(f"{path}: {error}") from error
    flush(path.parent)
