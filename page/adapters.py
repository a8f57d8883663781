"""Whose LoRA files are: whether two hold the same adapter, and where one may be copied to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import BinaryIO

from ..trainer.policy.files import read_metadata

CHUNK = 2**20
MOST_HEADER = 100 * 2**20  # bytes, as safetensors itself has it


def saved_already(folder: Path, filename: str, source: Path) -> Path | None:
    """A file of Save LoRA in `folder`, be it numbered or named after its run, with the tensors of `source`."""
    candidates = sorted(path for path in folder.glob("*.safetensors") if path.name.startswith(filename))
    return next((path for path in candidates if path.is_file() and same_tensors(path, source)), None)


def same_tensors(one: Path, other: Path) -> bool:
    """Whether both have the same tensors under the same names; False for anything but safetensors files."""
    with one.open("rb") as first, other.open("rb") as second:
        described = _tensors(first)
        if described is None or described != _tensors(second):
            return False
        while True:
            part = first.read(CHUNK)
            if part != second.read(CHUNK):
                return False
            if not part:
                return True


def _tensors(file: BinaryIO) -> dict | None:
    """What the header says of the tensors; the file then stands where their data begins."""
    length = int.from_bytes(file.read(8), "little")
    if length > MOST_HEADER:
        return None
    try:
        header = json.loads(file.read(length))
    except (ValueError, RecursionError):
        return None
    if not isinstance(header, dict):
        return None
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


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
        there, ours = (read_metadata(path).get("otca_run_id") for path in (target, source))
    except ValueError:  # nothing there, or nothing that training wrote
        return False
    return bool(there and ours) and there != ours
