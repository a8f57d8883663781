"""The exact packages of this Python, and the pack's own files as the Comfy Registry would hand them out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ..host import extras
from ..nodes import NODE_CLASS_MAPPINGS

PACK = Path(__file__).resolve().parents[1]
FOLDER = "ComfyUI-OTCA"  # the pack's name in a bundle
TORCH = "torch"
# What the archive of the registry has, see .comfyignore and tests/bundle/test_making.py: names at the pack's top, and what of
# `assets` made the rest of it. Anything else in the pack's folder, as runs or an environment, is the user's.
FOLDERS = (
    "assets bundle canvas commands docs host inference locales nodes page study subgraphs trainer web workflows".split()
)
FILES = ("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "pyproject.toml", "requirements.txt")
FILES += ("__init__.py", "__main__.py", ".comfyignore", ".gitignore")
LEFT_OUT = ("assets/pictures",)
WITHOUT = ("__pycache__", ".pyc", ".pyo")


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


def installed(graph: Mapping[str, Mapping]) -> tuple[dict[str, str], dict[str, str]]:
    """{package: version} of what the pack needs for a graph, with extras, and of all that these need in turn, as they are here.

    Both without torch and what only torch needs, since that depends on the machine's GPU.

    Raises:
        ValueError: a package that the pack needs is not here.
    """
    lines = (PACK / "requirements.txt").read_text("utf-8").splitlines()
    asked = [*map(Requirement, lines), *_optional(graph)]
    needed = {canonicalize_name(one.name): one for one in asked if one.name != TORCH}
    direct = {name: _version(name) for name in needed}
    others: dict[str, str] = {}
    pending = list(needed.values())
    while pending:
        for one, name in _needs_of(pending.pop()):
            if name == TORCH or name in direct or name in others:
                continue
            try:
                others[name] = _version(name)
            except ValueError:  # of a system or a Python that this is not
                continue
            pending.append(one)
    extras = {name: f"[{','.join(sorted(one.extras))}]" if one.extras else "" for name, one in needed.items()}
    return {name + extras[name]: own for name, own in direct.items()}, dict(sorted(others.items()))


def _optional(graph: Mapping[str, Mapping]) -> Iterator[Requirement]:
    """What requirements.txt leaves out: what these nodes need, and what draws and joins processes, as far as it is here."""
    for needs in extras.wanted(graph, NODE_CLASS_MAPPINGS):
        yield from extras.requirements(*needs)
    for one in (*extras.requirements("plots"), *extras.requirements("diffusers", "accelerate")):
        if extras.installed(one.name):
            yield one


def _needs_of(package: Requirement) -> Iterator[tuple[Requirement, str]]:
    for line in metadata.requires(package.name) or ():
        one = Requirement(line)
        if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *package.extras)):
            yield one, canonicalize_name(one.name)


def _version(name: str) -> str:
    """The version of an installed package, without what says which machine it was built for."""
    try:
        return metadata.version(name).partition("+")[0]
    except metadata.PackageNotFoundError:
        raise ValueError(
            f"package {name} is not installed here, so a bundle cannot say its version. Fix: {extras.command(name)}"
        ) from None


def version() -> str:
    """The version of the pack."""
    match = re.search(r'__version__ = "([^"]+)"', (PACK / "__init__.py").read_text("utf-8"))
    assert match is not None  # a test holds it to that of pyproject.toml
    return match[1]


def torch_version() -> str:
    return _version(TORCH)


def requirements_text(direct: Mapping[str, str]) -> str:
    """requirements.txt of a bundle. torch is left to the image, or to the user, who knows the machine's GPU."""
    head = (
        "# The packages that the pack needs, as they were where this bundle was made; constraints.txt has what these need.",
        f"# torch was {torch_version()} there. Which build of it is right depends on the GPU: https://pytorch.org/get-started",
        "torch>=2.7",
    )
    return "\n".join(head) + "\n" + pinned(direct)


def pinned(packages: Mapping[str, str]) -> str:
    return "".join(f"{name}=={version}\n" for name, version in packages.items())
