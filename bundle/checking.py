"""`otca bundle --check`: is all there that a bundle's training needs, before anything is paid for?"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ..host import environment, extras, files, paths
from ..host.text import printable
from ..trainer.memory.case import GB
from . import manifest
from .found import MODELS
from .manifest import Entry, Manifest, Progress

OLDEST_PYTHON = (3, 10)
LITTLE_DISK = 5 * GB
SHOWN = 20  # findings of one kind that are listed one by one


@dataclass(frozen=True)
class Finding:
    """`severity`: error, warning or ok."""

    severity: str
    text: str

    def __str__(self) -> str:
        return printable(f"{self.severity}: {self.text}")


def check(
    folder: Path,
    models: Sequence[Path] = (),
    *,
    with_hashes: bool = True,
    processes: int = 1,
    progress: Progress = lambda count: None,
) -> list[Finding]:
    """Compares this machine with what the bundle wants, for a training by so many processes.

    `models`: folders that hold models, looked into before $OTCA_MODELS and the bundle's own `models`.

    Raises:
        FileNotFoundError: the folder has no manifest.
        Damaged: its manifest is something else.
    """
    wanted = manifest.read(folder)
    roots = [*models, *paths.folders_of("OTCA_MODELS"), folder / "models"]
    findings = [*_files(folder, wanted, with_hashes), *_models(wanted, roots, with_hashes, progress)]
    if processes > 1 and (lack := extras.wrong(f"Training by {processes} processes", *extras.SEVERAL)):
        findings.append(Finding("error", str(lack)))
    findings += [*_python(wanted), *_disk(folder), *_gpus(wanted)]
    return [*findings, *(Finding("ok", line) for line in wanted.estimate)]


def bytes_to_hash(folder: Path) -> int:
    """Bytes of the models, for a progress bar."""
    return sum(entry.bytes or 0 for entry in manifest.read(folder).models if entry.sha256)


def _files(folder: Path, wanted: Manifest, with_hashes: bool) -> Iterator[Finding]:
    wrong = []
    for entry in wanted.files:
        path = folder / entry.path
        if not files.is_plain_file(path) or not path.resolve().is_relative_to(folder.resolve()):
            wrong.append(f"{entry.path} of the bundle is missing, or not a plain file")
        elif problem := _differs(path, entry, with_hashes, lambda count: None):
            wrong.append(f"{entry.path} of the bundle {problem}")
    yield from _listed(wrong, "copy the bundle again")
    if not wrong:
        yield Finding("ok", f"all {len(wanted.files)} files of the bundle are as they were made")


def _models(wanted: Manifest, roots: Sequence[Path], with_hashes: bool, progress: Progress) -> Iterator[Finding]:
    wrong, unknown = [], []
    for entry in wanted.models:
        candidates = list(_places(entry, roots))
        path = next((path for path in candidates if path.exists()), None)
        name = entry.path if entry.where == MODELS else f"models/{entry.where}/{entry.path}"
        if path is None:
            wrong.append(f"model file {name} is missing, looked for as {', '.join(map(str, candidates))}")
        elif entry.bytes is None:
            unknown.append(f"{name} is there; its size was not known where the bundle was made")
        elif problem := _differs(path, entry, with_hashes, progress):
            wrong.append(f"model file {path} {problem}")
    yield from _listed(wrong, "put the same file there that the bundle was made with")
    yield from (Finding("warning", text) for text in unknown)
    if not wrong and wanted.models:
        compared = "size and SHA-256" if with_hashes and all(model.sha256 for model in wanted.models) else "size only"
        yield Finding("ok", f"all {len(wanted.models)} model files are there ({compared})")


def _places(entry: Entry, roots: Iterable[Path]) -> Iterator[Path]:
    folders = [*roots, *paths.model_folders()]
    if entry.where != MODELS:
        kinds = (entry.where, paths.ONCE.get(entry.where, entry.where))
        folders = [*(root / kind for root in roots for kind in kinds), *paths.weight_folders(entry.where)]
    yield from (folder / entry.path for folder in dict.fromkeys(folders))


def _differs(path: Path, entry: Entry, with_hashes: bool, progress: Progress) -> str | None:
    if not path.is_file():
        return "is not a file"
    size = path.stat().st_size
    if size != entry.bytes:
        return f"has {size:,} bytes, and should have {entry.bytes:,}"
    if with_hashes and entry.sha256 and files.sha256(path, progress=progress) != entry.sha256:
        return "has the right size and another content (SHA-256)"
    return None


def _listed(wrong: Sequence[str], fix: str) -> Iterator[Finding]:
    yield from (Finding("error", f"{text}. Fix: {fix}") for text in wrong[:SHOWN])
    if len(wrong) > SHOWN:
        yield Finding("error", f"and {len(wrong) - SHOWN} more files like these")


def _python(wanted: Manifest) -> Iterator[Finding]:
    here = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST_PYTHON:
        yield Finding("error", f"Python {here} is too old. Fix: take 3.10 or newer, by PYTHON=…")
    elif here.split(".")[:2] != wanted.python.split(".")[:2]:
        yield Finding("warning", f"Python is {here}, and was {wanted.python} where the bundle was made")
    else:
        yield Finding("ok", f"Python {here}")
    missing, others = [], []
    for name, version in sorted(wanted.packages.items()):
        try:
            installed = metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            missing.append(name)
            continue
        if installed != version:
            others.append(f"{name} {installed} instead of {version}")
    if missing:
        fix = "bash run.sh --venv, or pip install -r requirements.txt"
        yield Finding("error", f"packages are missing: {', '.join(missing[:SHOWN])}. Fix: {fix}")
    if others:
        yield Finding("warning", f"packages of another version: {', '.join(others[:SHOWN])}")
    if not missing and not others:
        yield Finding("ok", f"all {len(wanted.packages)} packages are of the same version")


def _disk(folder: Path) -> Iterator[Finding]:
    runs = Path(environment.read("RUNS") or folder)
    place = next(path for path in (runs, *runs.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    text = f"{free / GB:.1f} GB of the disk are free for the run"
    yield Finding("warning" if free < LITTLE_DISK else "ok", text)


def _gpus(wanted: Manifest) -> Iterator[Finding]:
    try:
        import torch
    except ImportError as error:
        yield Finding("error", f"torch cannot be imported ({error}). Fix: install it for this machine's GPU")
        return
    version = torch.__version__.partition("+")[0]
    if version != wanted.torch:
        yield Finding("warning", f"torch is {version}, and was {wanted.torch} where the bundle was made")
    if not torch.cuda.is_available():
        yield Finding("warning", "no GPU is seen by torch here; the training would be on the CPU")
        return
    for number in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(number)
        little = properties.total_memory < (wanted.memory_bytes or 0)
        text = f"GPU {number}: {properties.name}, {properties.total_memory / GB:.1f} GB"
        yield Finding("warning" if little else "ok", f"{text}, less than the estimate" if little else text)
