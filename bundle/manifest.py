"""manifest.json of a bundle: sizes and SHA-256 of its files and of the models that it expects.

A bundle may come from a stranger: names in a manifest stay in the bundle's folder and in those of the models.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ..host.access import permissions
from ..host.files import Damaged
from ..host.json_files import read_json
from .found import MODELS

NAME = "manifest.json"
MOST_ENTRIES = 100_000

Progress = Callable[[int], object]  # called with the bytes that were read since the last call
Count = Annotated[int, Field(ge=0, lt=2**63)]


def _stays_below(name: str) -> str:
    if not is_below(name):
        raise ValueError(f"{name!r} leads out of its folder")
    return name


def _is_place(where: str) -> str:
    if where not in ("", MODELS):
        _stays_below(f"{where}/x")
    return where


class Entry(BaseModel):
    """A file: its path in the bundle, or below `where` (OTCA_MODELS, or a folder of ComfyUI's models). `sha256` is None if it
    was not computed, and so is `bytes` of a model that was not there."""

    model_config = ConfigDict(strict=True, frozen=True)

    path: Annotated[str, AfterValidator(_stays_below)]
    bytes: Count | None
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    where: Annotated[str, AfterValidator(_is_place)] = ""


class Manifest(BaseModel):
    """A bundle's description of itself. `memory_bytes`: of one GPU; None if not known. `estimate` says in words what memory and
    time the training takes."""

    model_config = ConfigDict(strict=True)

    format: Literal[1] = 1
    run_name: str
    otca: str
    python: str
    torch: str
    packages: dict[str, str]
    files: list[Entry] = Field(default=[], max_length=MOST_ENTRIES)
    models: list[Entry] = Field(default=[], max_length=MOST_ENTRIES)
    memory_bytes: Count | None = None
    estimate: list[Annotated[str, Field(max_length=400)]] = Field(default=[], max_length=2)

    def text(self) -> str:
        return json.dumps(self.model_dump(), indent=1, ensure_ascii=False) + "\n"


def read(folder: Path) -> Manifest:
    """The manifest of a bundle.

    Raises:
        FileNotFoundError: it has none.
        Damaged: it is something else, or a name in it leads elsewhere.
    """
    path, fix = folder / NAME, "make the bundle again, or copy it again"
    content = read_json(path, fix=fix)
    if content is None:
        raise FileNotFoundError(
            f"{folder} has no {NAME}, so it is not a bundle. Fix: give the folder that otca bundle wrote"
        )
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise Damaged(path, f"is not a manifest: {where}: {first['msg']}", fix) from error


def is_below(name: str) -> bool:
    """Whether a name can only mean a file below a folder, on any system."""
    parts = name.replace("\\", "/").split("/")
    return (
        permissions.is_plain(name) and ":" not in name and name.isprintable() and not {"", ".", ".."} & set(parts[:-1])
    )
