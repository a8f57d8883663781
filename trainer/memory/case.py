"""A training as the estimate sees it, and what would need less. Imports neither torch nor ComfyUI."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Self

from .estimate import Estimate
from .iteration import Iteration


class Case(ABC):
    """One training. Cases that follow from it by a change are cases too."""

    iteration: Iteration

    @property
    @abstractmethod
    def title(self) -> str: ...

    @abstractmethod
    def estimate(self, room: float = 0) -> Estimate:
        """See `estimate.estimate`."""

    @abstractmethod
    def ways(self) -> Iterator[tuple[str, dict, dict]]:
        """What to change, from cheap to costly: in words, and the fields of the iteration and of the case that differ."""

    @cached_property
    def needs(self) -> Estimate:
        """With whatever can step aside aside."""
        return self.estimate()

    def _with(self, of_iteration: Mapping, of_case: Mapping) -> Self:
        return replace(self, iteration=self.iteration.changed(dict(of_iteration)), **of_case)  # pyright: ignore[reportArgumentType] a data class

    def changes(self) -> dict[str, Self]:
        """{what to change: the case that it makes}, for changes that need less memory, from cheap to costly."""
        cases = {words: self._with(*fields) for words, *fields in self.ways()}
        return {words: case for words, case in cases.items() if case.needs.total < self.needs.total}

    def together(self, has: float) -> tuple[list[str], Self]:
        """Changes one after another, each that needs less than those before it, until all of it fits or none is left."""
        case, taken = self, []
        for words, *fields in self.ways():
            if case.needs.total <= has:
                break
            changed = case._with(*fields)
            if changed.needs.total < case.needs.total:
                case, taken = changed, [*taken, words]
        return taken, case
