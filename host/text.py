"""Text that can be shown: what a stranger's graph or a damaged file holds may be megabytes long, or turn a terminal's letters."""

from __future__ import annotations

import json
from typing import Any


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
