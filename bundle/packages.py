"""The exact packages of this Python, and the pack's own files as the Comfy Registry would hand them out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

PACK = Path(__file__).resolve().parents[1]
FOLDER = "ComfyUI-OTCA"  # the pack's name in a bundle
TORCH = "torch"
# What the archive of the registry has, see .comfyignore and tests/bundle/test_packages.py: names at the pack's top, and what of
# `assets` made the rest of it. Anything else in the pack's folder, as runs or an environment, is the user's.
FOLDERS = (
    "assets",
    "bundle",
    "canvas",
    "commands",
    "docs",
    "host",
    "inference",
    "locales",
    "nodes",
    "page",
    "study",
    "subgraphs",
)
FOLDERS += ("trainer", "web", "workflows")
FILES = ("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "pyproject.toml", "requirements.txt")
FILES += ("__init__.py", "__main__.py", ".comfyignore", ".gitignore")
LEFT_OUT = ("assets/pictures",)
WITHOUT = ("__pycache__", ".pyc", ".pyo")
# Packages that only these nodes need.
OPTIONAL = {"OTCA_RewardText": ("rapidocr", "onnxruntime")}


def pack_files(pack: Path = PACK) -> list[tuple[str, Path]]:
    """(name in the pack, file) of all that a training needs of the pack, and its documentation. No link is followed."""
    listed = [(name, pack / name) for name in FILES if (pack / name).is_file() and not (pack / name).is_symlink()]
    for folder in FOLDERS:
        listed += [(file.relative_to(pack).as_posix(), file) for file in _below(pack / folder)]
    return sorted((name, file) for name, file in listed if not name.startswith(LEFT_OUT))


def _below(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in WITHOUT and not name.startswith(".")]
        for name in names:
            file = Path(parent, name)
            if not name.endswith(WITHOUT) and not name.startswith(".") and file.is_file() and not file.is_symlink():
                yield file


@dataclass(frozen=True)
class Packages:
    """Lines and versions: `requirements` as pip reads them, `others` by name, which those need in turn."""

    requirements: tuple[str, ...]
    others: dict[str, str]


def installed(graph: Mapping[str, Mapping]) -> Packages:
    """What the pack needs for a graph, and all that these need in turn, as they are here. Both without torch and what only torch
    needs, since that depends on the machine's GPU.

    Raises:
        ValueError: a package that the pack needs is not here.
    """
    lines = (PACK / "requirements.txt").read_text("utf-8").splitlines()
    needed = [one for line in [*lines, *_optional(graph)] if (one := _requirement(line)) and one.name != TORCH]
    versions = {one.name: _version(one.name) for one in needed}
    found, pending = set(versions), list(needed)
    others = {}
    while pending:
        for one in _needs_of(pending.pop()):
            if one.name not in found | {TORCH}:
                try:
                    others[one.name] = _version(one.name)
                except ValueError:  # of a system or a Python that this is not
                    continue
                found.add(one.name)
                pending.append(one)
    return Packages(tuple(f"{one}=={versions[one.name]}" for one in needed), dict(sorted(others.items())))


def _optional(graph: Mapping[str, Mapping]) -> Iterator[str]:
    """What only some graphs need, and requirements.txt leaves out."""
    for entry in graph.values():
        yield from OPTIONAL.get(entry["class_type"], ())
        if entry["inputs"].get("wandb_project"):
            yield "wandb"
        if entry["inputs"].get("quantize", "none") != "none":
            yield "bitsandbytes"


@dataclass(frozen=True)
class _Requirement:
    name: str
    extras: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}[{','.join(self.extras)}]" if self.extras else self.name


def _requirement(line: str) -> _Requirement | None:
    match = re.match(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^]]*)\])?", line)
    if match is None:
        return None
    return _Requirement(
        _canonical(match[1]), tuple(part.strip() for part in (match[2] or "").split(",") if part.strip())
    )


def _needs_of(package: _Requirement) -> Iterator[_Requirement]:
    for line in metadata.requires(package.name) or ():
        before, _, marker = line.partition(";")
        extra = re.search(r"""extra\s*==\s*["']([^"']+)["']""", marker)
        if (extra is None or extra[1] in package.extras) and (one := _requirement(before)):
            yield one


def _version(name: str) -> str:
    """Of an installed package, without what says which machine it was built for."""
    try:
        return metadata.version(name).partition("+")[0]
    except metadata.PackageNotFoundError:
        raise ValueError(
            f"package {name} is not installed here, so a bundle cannot say its version. Fix: pip install {name}"
        ) from None


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def version() -> str:
    """Of the pack."""
    match = re.search(r'__version__ = "([^"]+)"', (PACK / "__init__.py").read_text("utf-8"))
    assert match is not None  # a test holds it to that of pyproject.toml
    return match[1]


def torch_version() -> str:
    return _version(TORCH)


def requirements_text(packages: Packages) -> str:
    """requirements.txt of a bundle. torch is left to the image, or to whoever installs it for the machine's GPU."""
    head = (
        "# The packages that the pack needs, as they were where this bundle was made; constraints.txt has what these need.",
        f"# torch was {torch_version()} there. Which build of it is right depends on the GPU: https://pytorch.org/get-started",
        "torch>=2.7",
    )
    return "\n".join([*head, *packages.requirements]) + "\n"


def constraints_text(packages: Packages) -> str:
    return "".join(f"{name}=={version}\n" for name, version in packages.others.items())
