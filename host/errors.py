"""Errors whose cause is outside of the code, and which their reader can mend: the base of each. Any other is a fault of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Expected(Exception):
    """An error whose text says what is wrong and what helps: "… Fix: …".

    Attributes:
        status: what a server answers, by HTTP. From 500 on, nothing is wrong with what was asked.
        more: what a page is told beside the text.
    """

    status = 409
    more: Mapping[str, Any] = {}

    def __init_subclass__(cls, status: int | None = None) -> None:
        cls.status = status or cls.status

    @property
    def message(self) -> str:
        return parts(self)[0]

    @property
    def fix(self) -> str:
        return parts(self)[1]


def parts(text: object) -> tuple[str, str]:
    """Returns what the text of an error says is wrong, and the fix, "" where it names none."""
    message, _, fix = str(text).partition("Fix: ")
    return message.rstrip(". \n"), fix
