"""What an opinion is: its kinds, what each must hold, and what a stranger's may not. Imports no torch.

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

from ...host.json_files import check, is_number, is_whole
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
    """What is kept of a picture, also when its file is gone. `path` is where it was seen last; `id` see `identity`."""

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
        """What it is about: the later one of two opinions of a kind about the same counts."""
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
    given = {name: row[name] for name in ("prompt", "path", "width", "height") if row.get(name) is not None}
    return Picture(row["id"], models=tuple(row.get("models") or ()), **given)


def opinion_of(row: Any) -> Opinion:
    """An opinion of what a page or a file says; without `id` and `time` it is a new one. Raises ValueError with what is wrong."""
    own = {"id": ("32 hexadecimal digits", lambda value: value is None or _is(_NAME, value))}
    own["time"] = ("a time", lambda value: value is None or (is_number(value) and value >= 0))
    check(row, dict, {"kind": (f"one of {', '.join(KINDS)}", lambda value: value in KINDS), "picture": _PICTURE, **own})
    kind, other, value = row["kind"], row.get("other", ""), row.get("value")
    _OTHERS[kind](row["picture"], other)
    if value is not None:
        _VALUES[kind](value)
    if kind == REGION and not other:
        other = uuid.uuid4().hex
    given = {name: row[name] for name in ("id", "time") if row.get(name) is not None}
    return Opinion(kind, row["picture"], value, other, **given)


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


def _no_other(picture: str, other: Any) -> None:
    if other != "":
        raise ValueError(f"has other = {quoted(other)}, which only pairs, regions and tags have")


def _other_picture(picture: str, other: Any) -> None:
    if not _is(_ID, other):
        raise ValueError(f"has other = {quoted(other)}, and not the rejected picture's 64 hexadecimal digits")
    if other == picture:
        raise ValueError("is a pair of a picture with itself")


def _own_name(picture: str, other: Any) -> None:
    if other != "" and not _is(_NAME, other):
        raise ValueError(f"has other = {quoted(other)}, and not a region's 32 hexadecimal digits")


def _tag(picture: str, other: Any) -> None:
    fits = isinstance(other, str) and 0 < len(other.strip()) and len(other) <= MOST_TAG and other.isprintable()
    if not fits or other != other.strip():
        raise ValueError(f"has the tag {quoted(other)}, and not a line of 1 to {MOST_TAG} characters")


def _thumb(value: Any) -> None:
    if type(value) is not int or value not in (1, -1):
        raise ValueError(f"has value = {quoted(value)}, and a thumb is 1 or -1")


def _stars(value: Any) -> None:
    if type(value) is not int or not 1 <= value <= MOST_STARS:
        raise ValueError(f"has value = {quoted(value)}, and stars are 1 to {MOST_STARS}")


def _true(value: Any) -> None:
    if value is not True:
        raise ValueError(f"has value = {quoted(value)}, and of a pair or a tag it is true, or null to take it away")


def _region(value: Any) -> None:
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


_OTHERS: Mapping[str, Callable[[str, Any], None]] = {
    THUMB: _no_other,
    STARS: _no_other,
    PAIR: _other_picture,
    REGION: _own_name,
    TAG: _tag,
}
_VALUES: Mapping[str, Callable[[Any], None]] = {THUMB: _thumb, STARS: _stars, PAIR: _true, REGION: _region, TAG: _true}


def line(value: Picture | Opinion) -> str:
    """As one line of an exported file."""
    name = "picture" if isinstance(value, Picture) else "opinion"
    return json.dumps({name: value.as_json()}, ensure_ascii=False, allow_nan=False)
