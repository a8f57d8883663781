"""manifest.json of a bundle: sizes and SHA-256 of its files and of the models that it expects.

Who gets a bundle may have it from a stranger: names in a manifest stay in the bundle's folder and in those of the models.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..host import files
from ..host.access import permissions
from ..host.checks import TEXT, WHOLE, Check, check, maybe
from ..host.json_files import read_json
from .found import MODELS

NAME, FORMAT = "manifest.json", 1
MOST_ENTRIES = 100_000

Progress = Callable[[int], object]  # called with the bytes that were read since the last call


@dataclass(frozen=True)
class Entry:
    """A file: its path in the bundle, or below `where` (OTCA_MODELS, or a folder of ComfyUI's models). `sha256` is None where
    nobody computed it, and so is `bytes` of a model that was not there."""

    path: str
    bytes: int | None
    sha256: str | None = None
    where: str = ""


@dataclass
class Manifest:
    """What a bundle says of itself. `memory` and `pace`: see `estimate`."""

    run_name: str
    otca: str
    python: str
    torch: str
    packages: dict[str, str]
    iterations: int | None = None
    files: list[Entry] = field(default_factory=list)
    models: list[Entry] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)
    pace: dict[str, Any] = field(default_factory=dict)

    def text(self) -> str:
        content = {"format": FORMAT, **asdict(self)}
        return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


# --- reading ----------------------------------------------------------------------------------------------------------

_DIGEST: Check = (
    "64 hexadecimal digits",
    lambda value: isinstance(value, str) and len(value) == 64 and not set(value) - set("0123456789abcdef"),
)
_FIELDS: dict[str, Check] = {
    "format": ("the number 1", lambda value: value == FORMAT and type(value) is int),
    **dict.fromkeys(("run_name", "otca", "python", "torch"), TEXT),
    "packages": (
        "an object of texts",
        lambda value: isinstance(value, dict) and all(isinstance(one, str) for one in value.values()),
    ),
    "iterations": maybe(WHOLE),
    **dict.fromkeys(("files", "models"), ("a list of entries", lambda value: _entries(value) is not None)),
    **dict.fromkeys(("memory", "pace"), ("an object", lambda value: isinstance(value, dict))),
}
_ENTRY: dict[str, Check] = {"path": TEXT, "bytes": maybe(WHOLE), "sha256": maybe(_DIGEST), "where": TEXT}


def read(folder: Path) -> Manifest:
    """The manifest of a bundle.

    Raises:
        FileNotFoundError: there is none.
        Damaged: it is none, or a name in it leads elsewhere.
    """
    path, fix = folder / NAME, "make the bundle again, or copy it again"
    content = read_json(path, fields=_FIELDS, fix=fix)
    if content is None:
        raise FileNotFoundError(
            f"{folder} has no {NAME}, so it is no bundle. Fix: give the folder that otca bundle wrote"
        )
    for entry in (*content["files"], *content["models"]):
        if not is_below(entry["path"]) or not (entry["where"] in ("", MODELS) or is_below(f"{entry['where']}/x")):
            raise files.Damaged(path, f"names {entry['path']!r}, which leads out of its folder", fix)
    values = {name: content[name] for name in Manifest.__dataclass_fields__ if name in content}
    for name in ("files", "models"):
        values[name] = [Entry(**{key: entry[key] for key in _ENTRY}) for entry in content[name]]
    return Manifest(**values)


def _entries(value: Any) -> list | None:
    if not isinstance(value, list) or len(value) > MOST_ENTRIES:
        return None
    try:
        for entry in value:
            check(entry, dict, _ENTRY)
    except ValueError:
        return None
    return value


def is_below(name: str) -> bool:
    """Whether a name can only mean a file below a folder, on any system."""
    parts = name.replace("\\", "/").split("/")
    return (
        permissions.is_plain(name) and ":" not in name and name.isprintable() and not {"", ".", ".."} & set(parts[:-1])
    )


def packages_of(requirements: str, constraints: str) -> dict[str, str]:
    """{package: version} of the lines with == of the two texts."""
    lines = (line.partition("==") for line in (requirements + constraints).splitlines() if not line.startswith("#"))
    return {name.partition("[")[0]: version for name, equals, version in lines if equals}
