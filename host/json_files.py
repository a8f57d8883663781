"""JSON files, read so that a damaged or hostile one is an error in one line: the file, what is wrong with it, what helps."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .files import MOST_BYTES, Damaged, read_bytes
from .text import quoted

MOST_DEPTH = 100  # of lists and objects in each other; a canvas with subgraphs has about 12
# A string that does not end takes all the rest: else each quote in it would be tried as another one's beginning.
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[{\]}]', re.DOTALL)


def read_json(
    path: Path,
    kind: type = dict,
    *,
    fields: Mapping[str, Check] | None = None,
    most_bytes: int = MOST_BYTES,
    most_depth: int = MOST_DEPTH,
    fix: str = "put the file back",
) -> Any:
    """The content of a JSON file; None where there is nothing of that name.

    `kind`: of the whole.
    `fields`: what an object must hold.

    Raises:
        Damaged: it is not that.
    """
    content = read_bytes(path, most_bytes, fix)
    if content is None:
        return None
    try:
        value = parse(content, most_depth)
        check(value, kind, fields or {})
    except ValueError as error:
        raise Damaged(path, "is empty" if not content.strip() else str(error), fix) from error
    return value


def parse(content: bytes | str, most_depth: int = MOST_DEPTH) -> Any:
    """The value of strict JSON: without NaN, without numbers that no float can hold, and not nested deeper than that.

    Raises:
        ValueError: says what is wrong.
    """
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
    except UnicodeDecodeError as error:
        raise ValueError("is not text in UTF-8") from error
    # Counting brackets is quick, and shows of nearly every file that it cannot be deep.
    if text.count("[") + text.count("{") > most_depth and _depth(text) > most_depth:
        raise ValueError(f"is nested deeper than {most_depth} levels")
    try:
        return _STRICT.decode(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"is not JSON ({error})") from error
    except ValueError as error:  # of the two below, or a whole number of more digits than Python reads
        raise ValueError(f"holds an invalid number ({str(error)[:80]})") from error


def _depth(text: str) -> int:
    """How deep brackets outside strings go, before a parser has to follow them down."""
    deepest = depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        if match[0][0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif match[0][0] in "]}":
            depth -= 1
    return deepest


def _no_number(text: str) -> None:
    raise ValueError(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


_STRICT = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)


# --- what a value must be: each kind in words, for the error, and as a test --------------------------------------------

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
TEXTS: Check = ("a list of texts", lambda value: isinstance(value, list) and all(isinstance(row, str) for row in value))
OBJECTS: Check = (
    "an object of objects",
    lambda value: isinstance(value, dict) and all(isinstance(row, dict) for row in value.values()),
)
NUMBERS: Check = (
    "a list of numbers and null",
    lambda value: isinstance(value, list) and all(row is None or is_number(row) for row in value),
)


def maybe(wanted: Check) -> Check:
    """The same check, which null and a missing value pass too."""
    words, good = wanted
    return f"{words} or null", lambda value: value is None or good(value)


def one_of(*choices: str) -> Check:
    return f"one of {', '.join(choices)}", lambda value: isinstance(value, str) and value in choices
