"""Which picture is better than which, by thumbs and stars; and which choices are left out together. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from .kinds import STARS, THUMB, Opinion

FOLDS = 5
APART = 0.5  # between two values, from which one picture is better: one star of five
T = TypeVar("T")


def values_of(opinions: Iterable[Opinion]) -> dict[str, float]:
    """By picture the mean of its thumb (1, -1) and its stars (1 … 5 as -1 … 1)."""
    opinions_of: dict[str, list[float]] = {}
    for opinion in opinions:
        if opinion.kind in (THUMB, STARS):
            value = opinion.value if opinion.kind == THUMB else (opinion.value - 3) / 2
            opinions_of.setdefault(opinion.picture, []).append(value)
    return {name: float(np.mean(values)) for name, values in opinions_of.items()}


def made_pairs(
    values: Mapping[str, float], groups: Mapping[str, str], left_out: Collection[str] = ()
) -> list[tuple[str, str]]:
    """(better, worse) of pictures of one group: the best with the worst, the second best with the second worst, and so on.

    Each picture is in one pair at most, and in none if the other is not APART from it.

    Args:
        values: by picture, see `values_of`.
        groups: by picture, such as its prompt.
        left_out: pictures that are in no pair.
    """
    members: dict[str, list[str]] = {}
    for name in values:
        if name not in left_out:
            members.setdefault(groups[name], []).append(name)
    pairs = []
    for names in members.values():
        ranked = sorted(names, key=lambda name: (-values[name], name))
        couples = zip(ranked[: len(ranked) // 2], reversed(ranked), strict=False)
        pairs += [(better, worse) for better, worse in couples if values[better] - values[worse] >= APART]
    return pairs


# --- what is left out -------------------------------------------------------------------------------------------------


def folds(parts: Sequence[T]) -> list[Sequence[T]]:
    """FOLDS lists of parts, each part in one of them."""
    return [parts[fold::FOLDS] for fold in range(FOLDS)]


def connected(groups: Sequence[Sequence[T]]) -> list[set[T]]:
    """Sets of what groups connect; the one that the last group belongs to comes last."""
    part_of: dict[T, set[T]] = {}
    for group in groups:
        touched = [part_of[name] for name in group if name in part_of]
        part = max(touched, key=len, default=set())
        for smaller in (group, *touched):
            if smaller is not part:
                part.update(smaller)
                part_of |= dict.fromkeys(smaller, part)
    latest_first = {id(part): part for group in reversed(groups) for part in [part_of[group[0]]]}
    return [*latest_first.values()][::-1]
