"""A folder that a stranger's workflow names, and the files in it that a list in the same folder names.

`permissions` says what is allowed; a list in the folder cannot name anything outside of it. Imports no torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from .. import paths
from . import opening, permissions
from .opening import shown

MOST_LOOKED_AT = 100_000  # names in a folder and all below it
OURS = "otca"  # how the pack's own folders in ComfyUI's output folder begin


def input_folder(name: str, why: str) -> Path:
    """The folder of that name: a path, or a name in one of the input folders; of pictures also in ComfyUI's output folder, and
    these folders themselves by their names, as in `output/cats`.

    Raises:
        NotAllowed: it may not be read, or is a link out of the folders that may be read.
        FileNotFoundError: it does not exist.
    """
    among, above = paths.input_folders(), []
    if why == permissions.PICTURES:
        among = paths.picture_folders()
        above = [folder.parent for folder in among]  # of what lies there, only they may be read
    if not name:
        raise FileNotFoundError("no folder is named")
    readable = [os.path.realpath(folder) for folder in permissions.folders(why)]
    for path in permissions.candidates(name, [*among, *above], why):
        if not os.path.isdir(path):
            continue
        real = os.path.realpath(path)
        if not any(opening.inside(real, folder) for folder in readable):
            raise permissions.NotAllowed(
                f"{path} ({why}) is a link out of its folder, to {real}. Fix: put the folder itself there"
            )
        return path
    raise FileNotFoundError(
        f"folder {shown(name)} was not found, neither as a path nor in {', '.join(map(str, among))}"
    )


def read_below(folder: Path, name: str, most_bytes: int) -> bytes:
    """The content of a regular file of that folder, or of one below it.

    Raises:
        Refused: the name leads out of the folder, by itself or by a link; or the file is not a regular one, or too large.
        OSError: it is missing, or cannot be read.
    """
    try:
        opening.check_name(name)
    except ValueError as error:
        raise opening.Refused(f"is not looked for: {error}") from error
    if not permissions.is_plain(name):
        raise opening.LeadsOut("leads out of its folder")
    return opening.read(opening.opened(folder / name, [str(folder)], most_bytes), most_bytes)


def names_below(folder: Path, suffixes: tuple[str, ...]) -> list[str]:
    """Names relative to the folder, sorted, of the files with these endings in it and below it. Hidden folders are left
    out, links to folders, and what the pack itself has put below."""
    names, left = [], MOST_LOOKED_AT
    for path, below, files in os.walk(folder):  # which follows no link to a folder, and leaves out what may not be read
        below[:] = sorted(name for name in below if not name.startswith((".", OURS)))
        left -= len(below) + len(files)
        paths = (Path(path, name) for name in files if name.lower().endswith(suffixes) and name[0] != ".")
        names += [place.relative_to(folder).as_posix() for place in paths]
        if left < 0:
            break
    return sorted(names)


def missing(folder: Path, names: Iterable[str]) -> set[str]:
    """Which of these names are missing below a folder. Looks into each folder once, since a disk may be slow."""
    listed: dict[str, frozenset[str]] = {}
    lost = set()
    for name in names:
        below, last = os.path.split(os.path.normpath(name))
        if below not in listed:
            listed[below] = _names_in(folder / below)
        # Some systems take names that differ in upper and lower case for one.
        if last not in listed[below] and not os.path.lexists(folder / name):
            lost.add(name)
    return lost


def _names_in(path: Path) -> frozenset[str]:
    try:
        return frozenset(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
