"""The environment's variables: read, set for this process and those that it starts, and handed to one of them, here alone.

Imports nothing of ours and nothing heavy, since some variables must be set before torch and its friends are imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping


def read(name: str, default: str = "") -> str:
    """The variable's value; `default` where it is not set."""
    return os.environ.get(name, default)


def has(name: str) -> bool:
    return name in os.environ


def write(name: str, value: str) -> None:
    """Sets the variable, also for every process that this one starts from now on."""
    os.environ[name] = value


def write_default(name: str, value: str) -> None:
    """Writes the variable, unless the user has set it."""
    os.environ.setdefault(name, value)


def remove(name: str) -> None:
    """Takes back what `write` has set. Raises KeyError where it is not set."""
    del os.environ[name]


def of_child(changes: Mapping[str, str]) -> dict[str, str]:
    """All variables for a process that is about to be started, with these changes, which this process does not see."""
    return {**os.environ, **changes}
