"""`Recent`: what was made and may be asked for again. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(dict[K, V]):
    """Values by their keys, the latest used ones last; the longest unused are forgotten first.

    Args:
        most: of all values' sizes together.
        size: of a value; by default each counts 1.
    """

    def __init__(self, most: float, size: Callable[[V], float] = lambda value: 1):
        super().__init__()
        self._most, self._size = most, size

    def use(self, key: K, make: Callable[[], V] | None = None, least: int = 1) -> V:
        """The value of that key, now the latest; made if it is missing, or KeyError without `make`."""
        self[key] = make() if make is not None and key not in self else self.pop(key)
        self.trim(least)
        return self[key]

    def trim(self, least: int = 1) -> None:
        """Forgets values until the others fit; the latest `least` stay, whatever their size."""
        total = sum(map(self._size, self.values()))
        for key in list(self)[: -least or None]:
            if total <= self._most:
                return
            total -= self._size(self.pop(key))
