"""Packages that ComfyUI does not bring and that some features need: for each extra of pyproject.toml what it has, what of it
this Python lacks, and the command that installs that.

requirements.txt, which ComfyUI installs for everybody, names only what ComfyUI has. So the command is typed by who wants the
feature, into the Python that runs this, and names packages alone: it works for a clone and for an archive of the registry, in a
portable Windows too, and leaves nothing of the pack behind. Imports no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import TYPE_CHECKING, NamedTuple

from .comfyui import is_ours
from .errors import Expected

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# As in pyproject.toml, to which a test holds them. Earlier versions of diffusers run Python files that lie in a model's folder.
EXTRAS = {
    "diffusers": ("diffusers>=0.38", "peft>=0.18", "accelerate>=1.8", "transformers"),
    "rewards": ("transformers>=5.5", "ftfy"),
    "plots": ("matplotlib>=3.8", "tensorboard>=2.14"),
    "ocr": ("rapidocr>=3.10", "onnxruntime>=1.17"),
    "quantize": ("bitsandbytes>=0.46",),
    "wandb": ("wandb",),
    "media": ("imageio>=2.36",),
}


SEVERAL = ("diffusers", "accelerate")  # what joins processes


class Lack(NamedTuple):
    """The packages that a feature lacks here."""

    message: str
    command: str
    change: str

    def __str__(self) -> str:
        return f"{self.message}. Fix: {self.command}, and start again. {self.change}"


class MissingPackage(Expected, ValueError):
    """A feature whose package is not here or is too old, with the command that changes that."""


def check(feature: str, extra: str, *names: str) -> None:
    """Raises MissingPackage where an extra, or those packages of it, cannot be used here."""
    if problem := wrong(feature, extra, *names):
        raise MissingPackage(str(problem))


def wrong(feature: str, extra: str, *names: str) -> Lack | None:
    """The lack of an extra, or of those packages of it; None if all is here. Says of a package that is too old what is here
    and what is needed, and what the command that mends it changes.
    """
    needed = requirements(extra, *names)
    here = {need.name: version for need in needed if (version := installed(need.name))}
    fits = {
        need.name for need in needed if need.name in here and need.specifier.contains(here[need.name], prereleases=True)
    }
    lacking = [need for need in needed if need.name not in fits]
    if not lacking:
        return None
    text = ", ".join(f"{need} ({here.get(need.name, 'none')} is here)" for need in lacking)
    raised = [f"{need.name} from {here[need.name]} to {need.specifier}" for need in lacking if need.name in here]
    # Named with the version that is here, a package stays as it is, and pip takes what fits to it.
    kept = [f"{need.name}=={here[need.name]}" for need in needed if need.name in fits]
    changes = f"raises {', '.join(raised)}, which other packs may not take" if raised else "keeps what is here"
    change = f"It {changes}; with --dry-run at its end it only lists what it would change"
    return Lack(f"{feature} needs {text}. All else goes on working", command(*map(str, lacking), *kept), change)


def requirements(extra: str, *names: str) -> list[Requirement]:
    """The requirements of an extra, or those packages of it."""
    from packaging.requirements import Requirement

    return [need for need in map(Requirement, EXTRAS[extra]) if not names or need.name in names]


def wanted(
    graph: Mapping[str, Mapping], node_classes: Mapping[str, type], processes: int = 1
) -> Iterator[tuple[str, ...]]:
    """The extras of a graph, by `needs` and MAY_NEED of its nodes, to be trained by so many processes: an extra, and those
    packages of it, of none all."""
    yield ("plots",)
    if processes > 1:
        yield SEVERAL
    for entry in graph.values():
        node = node_classes.get(entry["class_type"])
        if node is not None and is_ours(entry):
            inputs = {name: value for name, value in entry["inputs"].items() if name != "cls"}
            yield from filter(None, (*node.needs(**inputs).values(), node.MAY_NEED))


def installed(name: str) -> str | None:
    """The version of a package; None where it is not here."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def lean() -> bool:
    """Whether diffusers lacks: ComfyUI's own classes then read the embedded models, in a training of its own as on the canvas."""
    return not installed("diffusers")


def older(name: str, version: str) -> bool:
    """Whether the package here is older than that version; False where it is not here."""
    from packaging.version import Version

    return (here := installed(name)) is not None and Version(here) < Version(version)


def command(*packages: str) -> str:
    """The command that installs packages into this Python. PowerShell wants an & before a quoted path."""
    quoted = [f'"{word}"' if " " in word or ">" in word else word for word in (sys.executable, *packages)]
    return " ".join([quoted[0], "-m pip install", *quoted[1:]])
