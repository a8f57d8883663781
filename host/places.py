"""All places outside its own folder that the pack reads or writes. The room that owns one declares it by the function that says
where it is; `otca where` lists them, and a test holds that nothing is written elsewhere. Imports nothing of ours.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

Find = TypeVar("Find", bound=Callable[[Any], Path | None])


@dataclass(frozen=True)
class Place:
    """One place.

    Attributes:
        use: what it is for.
        loses: what is gone with it; "": nothing, or only what makes itself again.
        ours: whether all that lies there is the pack's.
        written: whether the pack, or a library that it calls, writes there.
        find: where it is, by ComfyUI's module `folder_paths`, or None for the `otca` of a terminal. None: not there.
    """

    name: str
    use: str
    loses: str
    ours: bool
    written: bool
    find: Callable[[ModuleType | None], Path | None]


PLACES: list[Place] = []


def place(name: str, use: str, loses: str = "", *, ours: bool = True, written: bool = True) -> Callable[[Find], Find]:
    """Declares the place that a function finds."""

    def declared(find: Find) -> Find:
        PLACES.append(Place(name, use, loses, ours, written, find))
        return find

    return declared


def listed(folder_paths: ModuleType | None) -> list[dict[str, Any]]:
    """Every place, as a terminal has it and as that ComfyUI has it: its path, whether it is there, bytes, files, what it is."""
    places: dict[Path, Place] = {}
    for place in PLACES:
        for source in (folder_paths, None):
            if path := place.find(source):
                places.setdefault(Path(os.path.abspath(path)), place)
    return [_described(path, place) for path, place in places.items()]


def _described(path: Path, each: Place) -> dict[str, Any]:
    sizes = sizes_of(path)
    about = {name: value for name, value in vars(each).items() if name != "find"}
    return {**about, "path": str(path), "exists": os.path.lexists(path), "bytes": sum(sizes), "files": len(sizes)}


def sizes_of(path: Path) -> list[int]:
    """Bytes of a file, or of each below a folder. What a link leads to is not counted."""
    state = os.lstat(path) if os.path.lexists(path) else None
    if state is None or not stat.S_ISDIR(state.st_mode):
        return [state.st_size] if state else []
    files = (os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
    return [os.lstat(file).st_size for file in files if os.path.lexists(file)]
