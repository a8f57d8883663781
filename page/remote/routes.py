"""The route that begins to watch a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from ...host.names import plain_name
from ..checks import Field, body
from .watching import Remotes

LONGEST = 2000  # characters


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST or not value.isprintable():
        raise ValueError(f"must be text of 1 to {LONGEST} characters. Fix: give what otca serve printed")
    return value


def _token(value: Any) -> str:
    if not _text(value).isascii() or " " in value:
        raise ValueError("must be letters, digits and signs. Fix: give what otca serve printed")
    return value


WATCH = {"url": Field(_text, required=True), "token": Field(_token, required=True), "name": Field(plain_name)}


def add_remote_routes(post: Callable[[str], Callable], remotes: Remotes) -> None:
    """Adds the route by `post`, which refuses other sites as it does for all."""

    async def watch(request: web.Request) -> dict:
        asked = await body(request, WATCH)
        return {"id": (await remotes.watch(asked["url"], asked["token"], asked["name"])).id}

    post("/otca/watch")(watch)
