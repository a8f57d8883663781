"""The file of what the user allowed by clicks on the page: {"folders": […], "hosts": […], "downloads": […]}.

Imports neither torch nor anything of ours that does.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from pathlib import Path

from .. import environment, files, json_files
from ..json_files import TEXTS, maybe
from ..places import place
from . import opening

logger = logging.getLogger(__name__)

FILE = "OTCA_PERMISSIONS"  # names that file; "none": clicks allow nothing
FOLDERS, HOSTS, DOWNLOADS = LISTS = ("folders", "hosts", "downloads")
MOST_BYTES, MOST_ENTRIES = 1024**2, 1000

_cache: dict[Path, tuple[tuple, dict[str, list[str]]]] = {}  # file: (its state, what it says)
_changing = threading.Lock()


@place("permissions", "what you allowed by clicks on the page", "what you allowed: it is asked for again")
def file(_: object = None) -> Path | None:
    """None where clicks allow nothing."""
    if named := environment.read(FILE):
        return None if named == "none" else Path(named).expanduser()
    if opening.WINDOWS and (named := environment.read("APPDATA")):
        base = Path(named)
    else:
        base = Path(environment.read("XDG_CONFIG_HOME") or Path.home() / ".config")
    return base / "comfyui_otca" / "permissions.json"


def entries() -> dict[str, list[str]]:
    """The entries of each of LISTS. A damaged file counts as an empty one, and the log says so once."""
    path, nothing = file(), {name: [] for name in LISTS}
    try:
        state = path.stat() if path else None
    except OSError:  # nothing was allowed yet
        state = None
    if path is None or state is None:
        return nothing
    stamp = (state.st_mtime_ns, state.st_size, state.st_ino)
    if path not in _cache or _cache[path][0] != stamp:
        try:
            content = _read(path)
        except files.Damaged as error:
            logger.warning("what was allowed by clicks is not allowed now: %s", error)
            content = nothing
        _cache[path] = stamp, content
    return _cache[path][1]


def add(name: str, value: str) -> None:
    """Adds to one of LISTS.

    Raises:
        ValueError: nothing is remembered here, or too much already, or the file is damaged, and is left as it is.
        OSError: the file cannot be written.
    """
    path = file()
    if path is None:
        raise ValueError(f"nothing is remembered here, since {FILE}=none. Fix: allow it by the environment")
    with _changing:
        lists = _read(path)  # and not `entries`: a file written by hand, with a comma too many, must not be lost
        if value in lists[name]:
            return
        if sum(map(len, lists.values())) >= MOST_ENTRIES:
            raise ValueError(f"{path} has {MOST_ENTRIES} entries already. Fix: take out those that you need no more")
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, {**lists, name: [*lists[name], value]})


def remove(name: str, value: str) -> None:
    """Takes a value out of one of LISTS, if it is there. Raises Damaged, or OSError as `add`."""
    path = file()
    with _changing:
        if path and value in (lists := _read(path))[name]:
            _write(path, {**lists, name: [entry for entry in lists[name] if entry != value]})


def _write(path: Path, lists: dict[str, list[str]]) -> None:
    files.write_text(path, json.dumps(lists, indent=1, ensure_ascii=False) + "\n")


def _read(path: Path) -> dict[str, list[str]]:
    """The file's content; empty lists if it is missing. Raises Damaged."""
    real = Path(os.path.realpath(path))  # a link is the user's own here
    fields = {name: maybe(TEXTS) for name in LISTS}
    content = json_files.read_json(
        real, fields=fields, most_bytes=MOST_BYTES, fix="mend it, or delete it and allow again"
    )
    return {name: (content or {}).get(name) or [] for name in LISTS}
