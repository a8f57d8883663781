"""Whose LoRA files are: whether two hold the same adapter, and where one may be copied to."""

from __future__ import annotations

from pathlib import Path

from ..trainer.policy.files import read_metadata, read_tensors


def saved_already(folder: Path, filename: str, source: Path) -> Path | None:
    """A file of Save LoRA in `folder`, be it numbered or named after its run, with the tensors of `source`."""
    candidates = sorted(path for path in folder.glob("*.safetensors") if path.name.startswith(filename))
    own = _tensors(source)
    return next((path for path in candidates if own is not None and path.is_file() and _tensors(path) == own), None)


def _tensors(path: Path) -> dict[str, tuple] | None:
    """The content of a safetensors file, whose header may say anything; None for another one."""
    import torch

    try:
        tensors = read_tensors(path)
    except ValueError:
        return None
    return {
        name: (tensor.dtype, tensor.shape, tensor.flatten().view(torch.uint8).numpy().tobytes())
        for name, tensor in tensors.items()
    }


def free_copy(target: Path, source: Path) -> Path:
    """Where to copy an adapter to: never over the file of another run that had the same name before."""
    stem, number = target.stem, 1
    while _of_another_run(target, source):
        number += 1
        target = target.with_name(f"{stem}-{number}{target.suffix}")
    return target


def _of_another_run(target: Path, source: Path) -> bool:
    """Whether both files name their run, and the runs differ."""
    try:
        there, run = (read_metadata(path).get("otca_run_id") for path in (target, source))
    except ValueError:  # nothing there, or nothing that training wrote
        return False
    return bool(there and run) and there != run
