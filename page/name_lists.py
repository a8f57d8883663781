"""Names that a page may offer while somebody types: of files and folders in the folders that are known, few levels deep.

Bounded in what is looked at and in what is listed, since a folder may hold a hundred thousand pictures. Links are left out: what
they lead to may lie elsewhere, and a name that is offered has to be one that is accepted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

MOST_LOOKED_AT = 20_000  # names in one folder and all below it
MOST_LISTED = 500

Wanted = Callable[[os.DirEntry], bool]


def names_in(folders: Iterable[Path], wanted: Wanted, depth: int) -> list[str]:
    """Names relative to their folder, as a graph has them, of what is wanted in `folders` and `depth` levels below them; sorted
    folder by folder, and no name twice."""
    names: dict[str, None] = {}
    for folder in folders:
        names |= dict.fromkeys(sorted(_below(folder, wanted, depth)))
    return list(names)[:MOST_LISTED]


def file_of(*suffixes: str) -> Wanted:
    """A file with one of these endings."""
    return lambda entry: entry.is_file(follow_symlinks=False) and entry.name.lower().endswith(suffixes)


def is_folder(entry: os.DirEntry) -> bool:
    return entry.is_dir(follow_symlinks=False)


def folder_with(marker: str) -> Wanted:
    """A folder that holds a file of that name."""
    return lambda entry: is_folder(entry) and os.path.isfile(os.path.join(entry.path, marker))


def _below(folder: Path, wanted: Wanted, depth: int) -> Iterator[str]:
    left, waiting = MOST_LOOKED_AT, [(str(folder), 0)]
    while waiting:
        path, level = waiting.pop(0)
        for entry in _entries(path):
            left -= 1
            if left < 0:
                return
            if entry.name.startswith("."):
                continue
            if wanted(entry):
                yield Path(os.path.relpath(entry.path, folder)).as_posix()
            if level < depth and is_folder(entry):
                waiting.append((entry.path, level + 1))


def _entries(path: str) -> Iterator[os.DirEntry]:
    """None of a folder that is not there, or that may not be read: others may be."""
    try:
        with os.scandir(path) as entries:
            yield from entries
    except OSError:
        return
