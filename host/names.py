"""Names that become files and folders on any system."""

from __future__ import annotations

from pathlib import Path

LONGEST_NAME = 100
SEPARATORS = frozenset('/\\:*?"<>|')
_PORTS = [f"{port}{n}" for port in ("COM", "LPT") for n in "0123456789¹²³"]
_WINDOWS_DEVICES = {"CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$", *_PORTS}


def plain_name(value: object) -> str:
    """A new name, which becomes a folder or file on any system. Raises ValueError with the fix."""
    wrong = None
    if not isinstance(value, str) or not value.strip():
        wrong = "must be text"
    elif len(value) > LONGEST_NAME:
        wrong = f"must not be longer than {LONGEST_NAME} characters"
    elif set(value) & SEPARATORS or not value.isprintable():
        wrong = f"must be a plain name, without any of {' '.join(sorted(SEPARATORS))}"
    elif value[0] in ".-" or value != value.strip() or value.endswith("."):
        wrong = "must not begin with a dot, a dash or a space, nor end with a dot or a space"
    elif is_windows_device(value):
        wrong = "is a device's name on Windows"
    if wrong:
        raise ValueError(f"{wrong}. Fix: for example my_run")
    return value


def is_windows_device(name: str) -> bool:
    """Whether Windows takes a name without folders for a device's, whatever follows a dot, and with spaces before that."""
    return name.split(".")[0].rstrip().upper() in _WINDOWS_DEVICES


def named_place(text: str, what: str) -> tuple[str, Path]:
    """`PLACE` or `NAME=PLACE`, as it is given on the command line; else a folder's own name, or a file's without its suffix.

    Raises:
        ValueError: the name is no plain one; says what it is of.
    """
    name, equals, place = text.partition("=")
    place = Path(place if equals else text).expanduser()
    whole = place.resolve()  # that of "." too
    name = name if equals else whole.name if whole.is_dir() else whole.stem
    try:
        return plain_name(name), place
    except ValueError as error:
        raise ValueError(f"{what} {text!r}: the name {name!r} {error}; NAME=FILE gives another") from error
