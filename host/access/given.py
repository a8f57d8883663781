"""What the user has allowed so far, to look at and to take back."""

from __future__ import annotations

import os
from dataclasses import dataclass

from . import remembered
from .permissions import BY_CLICK, DOWNLOAD, DOWNLOADS, FOLDERS, HOSTS, POST, PYTHON, READ, RUN

_VARIABLES = ((READ, FOLDERS, os.pathsep), (POST, HOSTS, ","), (DOWNLOAD, DOWNLOADS, ","), (RUN, PYTHON, os.pathsep))


@dataclass(frozen=True)
class Given:
    """Something that workflows may have because the user said so; `by`: the variable that says it, "" for a click."""

    kind: str
    what: str
    by: str


def given() -> list[Given]:
    """By clicks, then by the environment."""
    clicked = remembered.entries()
    named = ((kind, name, os.environ.get(name, "").split(separator)) for kind, name, separator in _VARIABLES)
    return [
        *(Given(kind, what, "") for kind, name in BY_CLICK.items() for what in clicked[name]),
        *(Given(kind, what.strip(), name) for kind, name, entries in named for what in entries if what.strip()),
    ]


def take_back(kind: str, what: str) -> None:
    """Forgets what a click allowed; nothing where no click has.

    Raises:
        ValueError: a kind that no click allows.
        Damaged, OSError: the file cannot be read or written.
    """
    if kind not in BY_CLICK:
        raise ValueError(f"must be one of {', '.join(BY_CLICK)}. Fix: what a variable allows is taken back there")
    remembered.remove(BY_CLICK[kind], what)
