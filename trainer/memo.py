"""Memos: what the parts of a method remember of a model between iterations.

A part keeps it in a class of its own; the model holds it, a checkpoint saves it, and neither knows what it is. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    Saved = tuple[Mapping[str, Tensor], Any]  # tensors by name, and what JSON can hold
    M = TypeVar("M", bound="Memo")


class Memo:
    """The memory of one part. A subclass that is made without arguments is what holds before the first update.

    Attributes:
        NAME: what checkpoints call it; empty where it ends with the process.
    """

    NAME: ClassVar[str] = ""

    def saved(self) -> Saved | None:
        """The state for a checkpoint; None without one."""
        return None

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor], values: Any) -> Memo:
        """The inverse of `saved`. Raises ValueError, TypeError, KeyError or AttributeError for anything else."""
        return cls()


class Memos:
    """All that is remembered of one model, by the classes of `Memo`."""

    def __init__(self) -> None:
        self._kept: dict[type[Memo], Memo] = {}
        self._unread: dict[str, Saved] = {}  # of a checkpoint, until its class asks

    def __getitem__(self, kind: type[M]) -> M:
        """Raises ValueError where a checkpoint holds something else under its name."""
        if kind.NAME in self._unread:
            try:
                self._kept[kind] = kind.read(*self._unread.pop(kind.NAME))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                fix = "delete that checkpoint to use the one before"
                raise ValueError(f"{kind.NAME} of the checkpoint cannot be read ({error!r}). Fix: {fix}") from error
        return self._kept.setdefault(kind, kind())  # pyright: ignore[reportReturnType]  what is kept under a class is of it

    def keep(self, memo: Memo) -> None:
        self._unread.pop(memo.NAME, None)
        self._kept[type(memo)] = memo

    def saved(self) -> dict[str, Saved]:
        kept = {memo.NAME: memo.saved() for memo in self._kept.values() if memo.NAME}
        return self._unread | {name: content for name, content in kept.items() if content is not None}

    def restore(self, saved: Mapping[str, Saved]) -> None:
        """Everything as a checkpoint holds it; what it does not hold is forgotten, but for what has no name there."""
        self._kept = {kind: memo for kind, memo in self._kept.items() if not kind.NAME}
        self._unread = dict(saved)
