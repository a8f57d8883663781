"""JSON files, read so that a damaged or hostile one is an error in one line: the file, what is wrong with it, what helps."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .checks import Check, check
from .files import MOST_BYTES, Damaged, read_bytes

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

    Args:
        kind: of the whole.
        fields: what an object must hold.

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
        raise ValueError("is no text in UTF-8") from error
    # Counting brackets is quick, and shows of nearly every file that it cannot be deep.
    if text.count("[") + text.count("{") > most_depth and _depth(text) > most_depth:
        raise ValueError(f"is nested deeper than {most_depth} levels")
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON ({error})") from error
    except ValueError as error:  # of the two below, or a whole number of more digits than Python reads
        raise ValueError(f"holds a number that is none ({str(error)[:80]})") from error


def _depth(text: str) -> int:
    """Of brackets outside strings, before a parser has to follow them down."""
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
