"""The exact packages of this Python, and the pack's own files as the Comfy Registry would hand them out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ..host import extras
from ..nodes import NODE_CLASS_MAPPINGS

PACK = Path(__file__).resolve().parents[1]
FOLDER = "ComfyUI-OTCA"  # the pack's name in a bundle
TORCH = "torch"
SEVERAL = 2  # processes: run.sh starts one for each GPU
# What the archive of the registry has, see .comfyignore and tests/bundle/test_making.py: names at the pack's top, and what of
# `assets` made the rest of it. Anything else in the pack's folder, as runs or an environment, is the user's.
FOLDERS = (
    "assets bundle canvas commands docs host inference locales nodes page study subgraphs trainer web workflows".split()
)
FILES = ("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "pyproject.toml", "requirements.txt")
FILES += ("__init__.py", "__main__.py", ".comfyignore", ".gitignore")
LEFT_OUT = ("assets/pictures",)
WITHOUT = ("__pycache__", ".pyc", ".pyo")


def pack_files() -> list[tuple[str, Path]]:
    """(name in the pack, file) of all that a training needs of the pack, and its documentation. No link is followed."""
    listed = [(name, PACK / name) for name in FILES if (PACK / name).is_file() and not (PACK / name).is_symlink()]
    listed += [(file.relative_to(PACK).as_posix(), file) for folder in FOLDERS for file in _below(PACK / folder)]
    return sorted((name, file) for name, file in listed if not name.startswith(LEFT_OUT))


def _below(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in WITHOUT and not name.startswith(".")]
        for name in names:
            file = Path(parent, name)
            if not name.endswith(WITHOUT) and not name.startswith(".") and file.is_file() and not file.is_symlink():
                yield file


def needed(graph: Mapping[str, Mapping]) -> tuple[list[str], dict[str, str]]:
    """(lines of requirements.txt, {package: version here} of these and of what they need in turn) for a graph, wherever how many
    processes train it: lines are exact for what is here and fits, else as the pack bounds it. torch depends on the machine's GPU.
    """
    lines = (PACK / "requirements.txt").read_text("utf-8").splitlines()
    specs = [
        need for needs in extras.wanted(graph, NODE_CLASS_MAPPINGS, SEVERAL) for need in extras.requirements(*needs)
    ]
    direct = {canonicalize_name(need.name): need for need in (*specs, *map(Requirement, lines)) if need.name != TORCH}
    versions: dict[str, str] = {}
    pending: list[tuple[Requirement, str]] = [(need, name) for name, need in direct.items()]
    while pending:
        need, name = pending.pop()
        version = extras.installed(name)  # None: not here, or of a system or a Python that this is not
        if version is not None and name not in (TORCH, *versions):
            versions[name] = version.partition("+")[0]
            pending += _needs_of(need)
    listed = []
    for name, need in sorted(direct.items()):
        fits = name in versions and need.specifier.contains(versions[name], prereleases=True)
        extra = f"[{','.join(sorted(need.extras))}]" if need.extras else ""
        listed.append(f"{name}{extra}=={versions[name]}" if fits else str(need))
    return listed, dict(sorted(versions.items()))


def _needs_of(package: Requirement) -> Iterator[tuple[Requirement, str]]:
    for line in metadata.requires(package.name) or ():
        need = Requirement(line)
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *package.extras)):
            yield need, canonicalize_name(need.name)


def version() -> str:
    """The version of the pack."""
    match = re.search(r'__version__ = "([^"]+)"', (PACK / "__init__.py").read_text("utf-8"))
    assert match is not None  # a test holds it to that of pyproject.toml
    return match[1]


def torch_version() -> str:
    return metadata.version(TORCH).partition("+")[0]


def requirements_text(lines: Iterable[str]) -> str:
    """requirements.txt of a bundle. torch is left to the image, or to the user, who knows the machine's GPU."""
    head = (
        "# The packages that the pack needs, as they were where this bundle was made; constraints.txt has what these need.",
        f"# torch was {torch_version()} there. Which build of it is right depends on the GPU: https://pytorch.org/get-started",
        "torch>=2.7",
    )
    return "\n".join((*head, *lines)) + "\n"


def pinned(packages: Mapping[str, str]) -> str:
    return "".join(f"{name}=={version}\n" for name, version in packages.items())
