"""Text that can be shown: what a stranger's graph or a damaged file holds may be megabytes long, or turn a terminal's letters.
And names that become files and folders on any system.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LONGEST_NAME = 100
SEPARATORS = frozenset('/\\:*?"<>|')
_PORTS = [f"{port}{n}" for port in ("COM", "LPT") for n in "0123456789¹²³"]
_WINDOWS_DEVICES = {"CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$", *_PORTS}


def shortened(text: str, most: int) -> str:
    """At most so many characters. What is left out is in the middle, since a path or a message ends with what matters."""
    if len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - end - 3]} … {text[-end:]}"


def printable(text: str) -> str:
    """Characters that command a terminal or a page (control codes, reversed writing, half a character) as their escapes."""
    return "".join(
        each if each.isprintable() or each.isspace() else each.encode("unicode_escape").decode("ascii") for each in text
    )


def quoted(value: Any, most: int = 80) -> str:
    """A value of a JSON file as it is written there, shortened."""
    return shortened(json.dumps(value), most)


def plain_name(value: object) -> str:
    """Returns a name that can become a folder or file on any system. Raises ValueError, with the fix, for any other one."""
    name = value if isinstance(value, str) else ""
    wrong = None
    if not name.strip():
        wrong = "must be text"
    elif len(name) > LONGEST_NAME:
        wrong = f"must not be longer than {LONGEST_NAME} characters"
    elif set(name) & SEPARATORS or not name.isprintable():
        wrong = f"must be a plain name, without any of {' '.join(sorted(SEPARATORS))}"
    elif name[0] in ".-" or name != name.strip() or name.endswith("."):
        wrong = "must not begin with a dot, a dash or a space, nor end with a dot or a space"
    elif is_windows_device(name):
        wrong = "is a device's name on Windows"
    if wrong:
        raise ValueError(f"{wrong}. Fix: for example my_run")
    return name


def is_windows_device(name: str) -> bool:
    """Whether Windows takes a name without folders for a device's, whatever follows a dot, and with spaces before that."""
    return name.split(".")[0].rstrip().upper() in _WINDOWS_DEVICES


def named_path(text: str, what: str) -> tuple[str, Path]:
    """The name and the path of `NAME=PATH` or `PATH` on a command line.

    Without a name it is the folder's, or the file's without its suffix.

    Raises:
        ValueError: that is not a plain name; `what` it was to name is in the message.
    """
    name, equals, path = text.partition("=")
    path = Path(path if equals else text).expanduser()
    whole = path.resolve()  # which gives "." a name too
    name = name if equals else whole.name if whole.is_dir() else whole.stem
    try:
        return plain_name(name), path
    except ValueError as error:
        raise ValueError(f"{what} {text!r}: the name {name!r} {error}; NAME=FILE gives another") from error
