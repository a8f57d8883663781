"""GenEval's structured prompts (2310.11513): what should be in a picture, and which of it is, given the objects found in it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..networks import RewardError
from ..networks.detector import Corners, Found
from ..types import metadata_of

COLORS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
POSITIONS = ("left of", "right of", "above", "below")
NEAR = 0.1  # share of both objects' sizes by which they have to be apart to be beside each other


@dataclass(frozen=True)
class Clause:
    """At least `count` objects of that name, which have that color and stand so to those of an earlier clause."""

    name: str
    count: int
    color: str | None = None
    position: tuple[str, int] | None = None


@dataclass(frozen=True)
class Wish:
    """What a prompt asks for: every clause of `include`, and fewer than the count of each of `exclude`."""

    include: tuple[Clause, ...]
    exclude: tuple[Clause, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(clause.name for clause in (*self.include, *self.exclude)))


def wish(prompt: str) -> Wish | None:
    """What the metadata of a prompt ask for; None where they ask for no objects.

    Raises:
        RewardError: it names the prompt, the key and what should stand there.
    """
    metadata = metadata_of(prompt)
    clauses = {key: _listed(metadata, key, prompt) for key in ("include", "exclude")}
    if not any(clauses.values()):
        return None
    include = tuple(
        _clause(f"include[{place}]", content, prompt, place, ("color", "position"))
        for place, content in enumerate(clauses["include"])
    )
    exclude = tuple(_clause(f"exclude[{place}]", content, prompt) for place, content in enumerate(clauses["exclude"]))
    return Wish(include, exclude)


def _listed(metadata: Mapping[str, Any], key: str, prompt: str) -> Sequence[Any]:
    given = metadata.get(key) or ()
    if not isinstance(given, list | tuple):
        raise _refusal(prompt, key, given, 'a list, as in [{"class": "cat", "count": 2}]')
    return given


def _clause(key: str, content: Any, prompt: str, place: int = 0, more: tuple[str, ...] = ()) -> Clause:
    allowed = ("class", "count", *more)
    if not isinstance(content, Mapping) or set(content) - set(allowed) or "class" not in content:
        raise _refusal(prompt, key, content, f"an object with class and, where wanted, {', '.join(allowed[1:])}")
    name, count, color, position = (content.get(own) for own in ("class", "count", "color", "position"))
    count = 1 if count is None else count
    if not isinstance(name, str) or not name.strip():
        raise _refusal(prompt, f"{key}.class", name, 'what to look for, as in "cat"')
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise _refusal(prompt, f"{key}.count", count, "a whole number above 0")
    if color is not None and color not in COLORS:
        raise _refusal(prompt, f"{key}.color", color, f"one of {', '.join(COLORS)}")
    if position is not None:
        position = _position(f"{key}.position", position, prompt, place)
    return Clause(name.strip(), count, color, position)


def _position(key: str, given: Any, prompt: str, place: int) -> tuple[str, int]:
    advice = f"[one of {', '.join(POSITIONS)}, number of a clause before it in include, from 0]"
    if not isinstance(given, list | tuple) or len(given) != 2 or given[0] not in POSITIONS:
        raise _refusal(prompt, key, given, advice)
    if not isinstance(given[1], int) or isinstance(given[1], bool) or not 0 <= given[1] < place:
        raise _refusal(prompt, key, given, advice)
    return given[0], given[1]


def _refusal(prompt: str, key: str, given: Any, advice: str) -> RewardError:
    return RewardError(f"the metadata of the prompt {prompt!r} say {key} = {given!r}. Fix: in its line, {advice}")


def met(
    asked: Wish, found: Mapping[str, Sequence[Found]], colors: Callable[[str, Sequence[Found]], Sequence[str]]
) -> list[bool]:
    """Which requirements are met, in their order: of a clause its count, then its color and position if it has them.

    As GenEval has it: of more objects than asked for the surest count; what has the wrong number has no right color, and what has
    the wrong number or color no right place.

    Args:
        found: the objects of each name, the surest first.
        colors: the colors of some objects of a name; asked only where a clause has one.
    """
    answers: list[bool] = []
    right: list[Sequence[Found] | None] = []  # the objects of each clause, if all that it asks for is met
    for clause in asked.include:
        objects = found.get(clause.name, ())[: clause.count]
        so_far = len(objects) == clause.count
        answers.append(so_far)
        if clause.color is not None:
            so_far = so_far and all(color == clause.color for color in colors(clause.name, objects))
            answers.append(so_far)
        if clause.position is not None:
            relation, number = clause.position
            others = right[number]
            so_far = so_far and others is not None and _all_stand(relation, objects, others)
            answers.append(so_far)
        right.append(objects if so_far else None)
    answers += [len(found.get(clause.name, ())) < clause.count for clause in asked.exclude]
    return answers


def _all_stand(relation: str, objects: Sequence[Found], others: Sequence[Found]) -> bool:
    return all(relation in relations(own.box, other.box) for own in objects for other in others)


def relations(one: Corners, other: Corners) -> set[str]:
    """How the one box stands to the other; nothing where they are too near to say, two names where it is diagonal."""
    offsets, apart = [], []
    for axis in (0, 1):
        offset = (one[axis] + one[axis + 2] - other[axis] - other[axis + 2]) / 2
        near = NEAR * (one[axis + 2] - one[axis] + other[axis + 2] - other[axis])
        offsets.append(offset)
        apart.append(math.copysign(max(abs(offset) - near, 0), offset))
    distance = math.hypot(*offsets)
    if max(map(abs, apart)) < 1e-3:
        return set()
    right, down = (value / distance for value in apart)
    holds = {"left of": right < -0.5, "right of": right > 0.5, "above": down < -0.5, "below": down > 0.5}
    return {name for name, is_so in holds.items() if is_so}
