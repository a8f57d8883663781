"""The kinds of opinions, what each must hold, and what a stranger's may not. Imports no torch.

| kind   | picture    | other                                     | value                                                     |
|--------|------------|-------------------------------------------|-----------------------------------------------------------|
| thumb  | judged     | ""                                        | 1 or -1                                                   |
| stars  | judged     | ""                                        | 1 to 5                                                    |
| pair   | chosen     | the rejected picture, of the same prompt  | true                                                      |
| region | judged     | its own name; "" for a new one            | {"like": true, "box": [left, top, right, bottom]}         |
| tag    | judged     | the tag                                   | true                                                      |

A box is in shares of width and height, from 0 to 1. In place of it a region may have `"mask": {"width": 32, "height": 24, "runs":
[100, 8, 660]}`: lengths of runs of places, row by row, that are alternately outside and inside, from outside on. A value of None
takes the opinion away: nothing is said any more.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...host.json_files import MOMENT, check, is_number, is_whole, maybe, one_of
from ...host.text import quoted

THUMB, STARS, PAIR, REGION, TAG = KINDS = ("thumb", "stars", "pair", "region", "tag")
MOST_STARS = 5
MOST_PROMPT, MOST_PATH, MOST_NAME, MOST_TAG = 100_000, 4096, 300, 100  # characters
MOST_MODELS = 64
MOST_MASK = 512  # places to a side of a region's mask
_ID = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Picture:
    """The record of a picture, also when its file is gone. `path` is where it was seen last; `id` see `identity`."""

    id: str
    prompt: str = ""
    path: str = ""
    models: tuple[str, ...] = ()
    width: int = 0
    height: int = 0

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "models": list(self.models)}


@dataclass(frozen=True)
class Opinion:
    """One thing that was said; see the table above. `id` and `time`, in seconds since 1970, are its own."""

    kind: str
    picture: str
    value: Any
    other: str = ""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    time: float = field(default_factory=time.time)

    @property
    def about(self) -> str:
        """The key of its subject: the later one of two opinions of a kind about the same counts."""
        if self.kind == PAIR:
            return " ".join(sorted((self.picture, self.other)))
        return f"{self.picture} {self.other}".strip()

    @property
    def pictures(self) -> tuple[str, ...]:
        return (self.picture, self.other) if self.kind == PAIR else (self.picture,)

    def as_json(self) -> dict[str, Any]:
        return vars(self).copy()


def picture_of(row: Any) -> Picture:
    """A picture of what a page or a file says. Raises ValueError with what is wrong."""
    texts = {"prompt": _text(MOST_PROMPT), "path": _text(MOST_PATH), "models": _MODELS}
    check(row, dict, {"id": _PICTURE, **texts, "width": _SIDE, "height": _SIDE})
    fields = {name: row[name] for name in ("prompt", "path", "width", "height") if row.get(name) is not None}
    return Picture(row["id"], models=tuple(row.get("models") or ()), **fields)


def opinion_of(row: Any) -> Opinion:
    """An opinion of what a page or a file says; without `id` and `time` it is a new one. Raises ValueError with what is wrong."""
    own = {"id": maybe(("32 hexadecimal digits", lambda value: _is(_NAME, value))), "time": maybe(MOMENT)}
    check(row, dict, {"kind": one_of(*KINDS), "picture": _PICTURE, **own})
    kind, other, value = row["kind"], row.get("other", ""), row.get("value")
    words, good = _OTHERS[kind]
    if not good(other):
        raise ValueError(f"has other = {quoted(other)}, {words}")
    if kind == PAIR and other == row["picture"]:
        raise ValueError("is a pair of a picture with itself")
    if value is not None and kind == REGION:
        _check_region(value)
    elif value is not None and not _VALUES[kind][1](value):
        raise ValueError(f"has value = {quoted(value)}, and {_VALUES[kind][0]}")
    if kind == REGION and not other:
        other = uuid.uuid4().hex
    fields = {name: row[name] for name in ("id", "time") if row.get(name) is not None}
    return Opinion(kind, row["picture"], value, other, **fields)


def _is(pattern: re.Pattern, value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _text(most: int) -> tuple[str, Callable[[Any], bool]]:
    def good(value: Any) -> bool:
        return value is None or (isinstance(value, str) and len(value) <= most and _is_storable(value))

    return f"a text of at most {most:,} characters", good


def _is_storable(text: str) -> bool:
    """Whether the text is UTF-8: JSON may hold half a character."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


is_prompt = _text(MOST_PROMPT)[1]
_PICTURE = ("a picture's 64 hexadecimal digits", lambda value: _is(_ID, value))
_SIDE = ("a whole number of pixels", lambda value: value is None or (is_whole(value) and value < 2**31))
_MODELS = (
    f"a list of at most {MOST_MODELS} names",
    lambda value: (
        value is None
        or (
            isinstance(value, list)
            and len(value) <= MOST_MODELS
            and all(isinstance(name, str) and _text(MOST_NAME)[1](name) for name in value)
        )
    ),
)


# --- of each kind: what `other` and `value` must be -------------------------------------------------------------------


def _is_tag(other: Any) -> bool:
    fits = isinstance(other, str) and 0 < len(other) <= MOST_TAG and other.isprintable()
    return fits and other == other.strip()


_NO_OTHER = ("which only pairs, regions and tags have", lambda other: other == "")
_OTHERS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    THUMB: _NO_OTHER,
    STARS: _NO_OTHER,
    PAIR: ("and not the rejected picture's 64 hexadecimal digits", lambda other: _is(_ID, other)),
    REGION: ("and not a region's 32 hexadecimal digits", lambda other: other == "" or _is(_NAME, other)),
    TAG: (f"and not a line of 1 to {MOST_TAG} characters", _is_tag),
}
_TRUE = ("of a pair or a tag it is true, or null to take it away", lambda value: value is True)
_VALUES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    THUMB: ("a thumb is 1 or -1", lambda value: type(value) is int and value in (1, -1)),
    STARS: (f"stars are 1 to {MOST_STARS}", lambda value: type(value) is int and 1 <= value <= MOST_STARS),
    PAIR: _TRUE,
    TAG: _TRUE,
}


def _check_region(value: Any) -> None:
    check(value, dict, {"like": ("true or false", lambda like: isinstance(like, bool))})
    if set(value) == {"like", "box"}:
        box = value["box"]
        numbers = isinstance(box, list) and len(box) == 4 and all(is_number(side) and 0 <= side <= 1 for side in box)
        if not numbers or not (box[0] < box[2] and box[1] < box[3]):
            raise ValueError(f"has box = {quoted(box)}, and not [left, top, right, bottom] from 0 to 1")
    elif set(value) == {"like", "mask"}:
        _mask(value["mask"])
    else:
        raise ValueError(f"has the region {quoted(value)}, and not like and either box or mask")


def _mask(mask: Any) -> None:
    side = (f"1 to {MOST_MASK}", lambda value: is_whole(value) and 1 <= value <= MOST_MASK)
    check(mask, dict, {"width": side, "height": side})
    runs, places = mask.get("runs"), mask["width"] * mask["height"]
    if not isinstance(runs, list) or len(runs) > places + 1 or not all(map(is_whole, runs)) or sum(runs) != places:
        raise ValueError(f"has a mask whose runs are not whole numbers that add up to {places} places")
    if not sum(runs[1::2]):
        raise ValueError("has a mask without a place inside")


def line(value: Picture | Opinion) -> str:
    """The opinion as one line of an exported file."""
    name = "picture" if isinstance(value, Picture) else "opinion"
    return json.dumps({name: value.as_json()}, ensure_ascii=False, allow_nan=False)
