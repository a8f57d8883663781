"""What a value read from a file must be: each kind in words, for the error, and as a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .text import quoted

Check = tuple[str, Callable[[Any], bool]]  # what is wanted, in words, and whether a value is that


def check(value: Any, kind: type, fields: Mapping[str, Check]) -> None:
    """Raises ValueError where a value is not of that kind, or one of its fields is missing or not what is wanted."""
    if not isinstance(value, kind):
        raise ValueError(f"holds {_WORDS.get(type(value), 'something else')}, and not {_WORDS[kind]}")
    for name, (wanted, good) in fields.items():
        if name not in value and not good(None):
            raise ValueError(f"has no {name!r}")
        if not good(value.get(name)):
            raise ValueError(f"has {name} = {quoted(value[name])}, and not {wanted}")


_WORDS = {dict: "an object", list: "a list", str: "a text", int: "a number", float: "a number", bool: "true or false"}
_WORDS[type(None)] = "null"


def is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300


def _between(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: is_number(value) and low <= value <= high


TEXT: Check = ("a text", lambda value: isinstance(value, str))
WHOLE: Check = ("a whole number from 0", is_whole)
NUMBER: Check = ("a number", is_number)
SPREAD: Check = ("a number from 0", _between(0, 1e300))
MOMENT: Check = ("a time in seconds since 1970", _between(0, 1e11))
FLAG: Check = ("true or false", lambda value: isinstance(value, bool))
TEXTS: Check = ("a list of texts", lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value))
OBJECTS: Check = (
    "an object of objects",
    lambda value: isinstance(value, dict) and all(isinstance(one, dict) for one in value.values()),
)
NUMBERS: Check = (
    "a list of numbers and null",
    lambda value: isinstance(value, list) and all(one is None or is_number(one) for one in value),
)


def maybe(wanted: Check) -> Check:
    """That, or null, or nothing."""
    words, good = wanted
    return f"{words} or null", lambda value: value is None or good(value)


def one_of(*choices: str) -> Check:
    return f"one of {', '.join(choices)}", lambda value: isinstance(value, str) and value in choices
