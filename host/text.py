"""Text that can be shown: what a stranger's graph or a damaged file holds may be megabytes long, or turn a terminal's letters.
And names that become files and folders on any system.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

LONGEST_LINE = 2000  # characters of a logged message
LONGEST_NAME = 100  # characters
# Bytes, of the 255 that file systems allow: the rest is for what we put around a name: .NAME_high_noise.safetensors.PID.NUMBER
MOST_NAME_BYTES = 200
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
        sign if sign.isprintable() or sign.isspace() else sign.encode("unicode_escape").decode("ascii") for sign in text
    )


def quoted(value: Any, most: int = 80) -> str:
    """A value of a JSON file as it is written there, shortened."""
    return shortened(json.dumps(value), most)


def as_repr(value: Any, most: int = 80) -> str:
    """A value as Python writes it, shortened."""
    return shortened(repr(value), most)


class _Short(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if len(message) > LONGEST_LINE:
            record.msg, record.args = shortened(message, LONGEST_LINE), ()
        return True


_short = _Short()


def shorten_logs(*loggers: str) -> None:
    """Shortens what the handlers of these loggers print, "" being the root: a library may quote a whole prompt, of megabytes."""
    for name in loggers:
        for handler in logging.getLogger(name).handlers:
            handler.addFilter(_short)


def plain_name(value: object) -> str:
    """Returns a name that can become a folder or file on any system. Raises ValueError, with the fix, for any other one."""
    name = value if isinstance(value, str) else ""
    wrong = None
    if not isinstance(value, str):
        wrong = "must be text"
    elif not name.strip():
        wrong = "is empty"
    elif len(name) > LONGEST_NAME:
        wrong = f"must not be longer than {LONGEST_NAME} characters"
    elif set(name) & SEPARATORS or not name.isprintable():
        wrong = f"must be a plain name, without any of {' '.join(sorted(SEPARATORS))}"
    elif (size := len(name.encode())) > MOST_NAME_BYTES:
        wrong = f"has {size} bytes, and must not have more than {MOST_NAME_BYTES}, of which a letter takes 1 to 4"
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
    whole = Path(os.path.realpath(path))  # which gives "." a name too
    name = name if equals else whole.name if whole.is_dir() else whole.stem
    try:
        return plain_name(name), path
    except ValueError as error:
        raise ValueError(f"{what} {text!r}: the name {name!r} {error}; NAME=FILE gives another") from error
