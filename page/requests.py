"""Checks of a request before anything acts on it, and how a refusal reaches the page: as {error} with the fix."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.http import HttpProcessingError

from ..host.access.addresses import PAGE_HOSTS, is_home, name_in
from ..host.errors import Expected
from ..host.json_files import parse
from ..host.text import quoted

logger = logging.getLogger(__name__)

MOST_HOURS = 10_000
LARGEST_BODY = 4 * 1024**2  # a large graph with its canvas is a few hundred kB

Check = Callable[[Any], Any]


class Refused(Expected):
    """A request that is not done: HTTP status, a message with the fix, and what else the page should know."""

    def __init__(self, status: int, message: str, **more: Any):
        self.status, self.more = status, more
        super().__init__(message)


@contextlib.contextmanager
def refusing(
    before: str = "", after: str = "", status: int = 400, kind: type[Exception] = ValueError
) -> Iterator[None]:
    """Turns an error of Python's own into a refusal: its text between these two."""
    try:
        yield
    except Expected:
        raise
    except kind as error:
        raise Refused(status, f"{before}{error}{after}") from error


def disk(failed: str, fix: str, status: int = 409) -> AbstractContextManager:
    """Turns an error of the disk into a refusal, which says what failed by it."""
    return refusing(f"{failed} (", f"). Fix: {fix}", status, OSError)


# --- answers --------------------------------------------------------------------------------------------------------


def answered(
    handler: Callable[[web.Request], Awaitable[Any]],
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Decorates a handler that returns JSON-able data, a file's path or a response; None becomes {}. Refuses other sites, and
    turns errors into JSON.

    Every answer says no-cache: ComfyUI would let browsers keep pictures for a day, and even a missing one for an hour.
    """

    @functools.wraps(handler)
    async def wrapped(request: web.Request) -> web.StreamResponse:
        try:
            refuse_other_sites(request)
            response = await handler(request)
            if isinstance(response, Path):
                response = web.FileResponse(response)
            elif not isinstance(response, web.StreamResponse):
                response = await asyncio.to_thread(web.json_response, {} if response is None else response)
        except Expected as error:
            response = web.json_response({"error": str(error), **error.more}, status=error.status)
        except web.HTTPException:
            raise
        except Exception as error:
            logger.exception("%s %s failed", request.method, request.path)
            message = f"internal error: {type(error).__name__}: {error}. The log of ComfyUI's server says where"
            response = web.json_response({"error": message}, status=500)
        response.headers["Cache-Control"] = "no-cache"
        return response

    return wrapped


def in_one_line(record: logging.LogRecord) -> bool:
    """A filter of aiohttp's own log, for our own servers: what a stranger sends that is not HTTP is a line, without a trace."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError | web.RequestPayloadError | ConnectionError):
        record.msg, record.args = f"a request was not HTTP, or broke off ({type(error).__name__})", ()
        record.exc_info = record.exc_text = None
    return True


def refuse_other_sites(request: web.Request) -> None:
    """ComfyUI makes this check for loopback hosts only; here it holds for every host.

    What Sec-Fetch-Site says, a page cannot forge, and it is right behind proxies that rewrite Host. Without it (plain http
    to another machine), Origin decides.
    """
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site in ("same-origin", "none"):
        return
    if site == "cross-site" or (origin is not None and _host(origin) != request.host.lower()):
        raise Refused(
            403, f"refused: a request from another site ({quoted(origin or site)}). Fix: use ComfyUI's own page"
        )


def _host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def at_home(handler: Callable[[web.Request], Awaitable[Any]]) -> Callable[[web.Request], Awaitable[Any]]:
    """Decorates a handler of what gives permissions, deletes or works with processes: it is done only for who reaches the
    server by a name of this machine, or by one that the user listed."""

    @functools.wraps(handler)
    async def checked(request: web.Request) -> Any:
        if not is_home(request.host):
            raise Refused(
                403,
                f"refused: {quoted(request.host)} is not a name of this machine, and a stranger's site can have any name lead "
                "here. Fix: open http://127.0.0.1 with ComfyUI's port; or, if that name is yours, start ComfyUI with "
                f"{PAGE_HOSTS}={name_in(request.host) or 'ITS_NAME'}",
            )
        return await handler(request)

    return checked


# --- bodies ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Field:
    """One field of a JSON body; `check` returns the value or raises ValueError with what is wanted."""

    check: Check
    required: bool = False
    default: Any = None


NOTHING: dict[str, Field] = {}


async def body(request: web.Request, fields: Mapping[str, Field]) -> dict[str, Any]:
    """The JSON object that was posted, with a value for each of `fields` and nothing else in it.

    Raises:
        Refused: 413 for a large body; 400 for what is not a JSON object, or names a field, its value and the fix.
    """
    if request.content_type != "application/json":
        raise Refused(400, f"content type {request.content_type!r}. Fix: post application/json")
    content = await bytes_of(request, LARGEST_BODY, "take large texts out of the graph, into files")
    return await asyncio.to_thread(_values, content, fields)


def _values(body: bytes, fields: Mapping[str, Field]) -> dict[str, Any]:
    try:
        content = parse(body)
    except ValueError as error:
        raise Refused(400, f"the request {error}. Fix: post a JSON object") from error
    if not isinstance(content, dict):
        raise Refused(400, f"the request is {quoted(content)}. Fix: post a JSON object")
    if unknown := sorted(content.keys() - fields.keys()):
        names = ", ".join(fields) or "none"
        raise Refused(400, f"unknown field {quoted(unknown[0])}. Fix: leave it out; the fields here are: {names}")
    values = {}
    for name, field in fields.items():
        if field.required and name not in content:
            raise Refused(400, f"field {name} is missing. Fix: give all of: {', '.join(fields)}")
        try:
            values[name] = field.check(content[name]) if name in content else field.default
        except ValueError as error:
            raise Refused(400, f"{name} = {quoted(content[name])}: {error}") from error
    return values


async def bytes_of(request: web.Request, most: int, fix: str) -> bytes:
    """The request's body. Raises Refused: 413 for more than `most` bytes, 400 where it breaks off."""
    # read here piece by piece, since ComfyUI's own limit is meant for uploaded pictures and videos
    content = bytearray()
    try:
        async for piece in request.content.iter_any():
            content += piece
            if len(content) > most:
                raise Refused(413, f"the request is larger than {most // 1024**2} MB. Fix: {fix}")
    except (ConnectionError, web.RequestPayloadError) as error:  # the sender hung up, or packs otherwise than it says
        request.content.feed_eof()  # else aiohttp reads on, and logs the same error
        raise Refused(400, f"the request broke off ({type(error).__name__}). Fix: send it whole") from error
    return bytes(content)


# --- values ---------------------------------------------------------------------------------------------------------


def whole_number(low: int, high: int) -> Check:
    """A check for low ≤ value ≤ high."""

    def check(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:  # true and false are ints to isinstance
            raise ValueError(f"must be a whole number. Fix: give one from {low} to {high}")
        return value

    return check


def hours(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MOST_HOURS:
        raise ValueError(f"must be a number of hours. Fix: give one above 0, up to {MOST_HOURS}")
    return float(value)


def text(most: int, fix: str, least: int = 1) -> Check:
    """A check for text of `least` to `most` characters that can be written: without half a character."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or not least <= len(value) <= most:
            raise ValueError(f"must be text of {least} to {most} characters. Fix: {fix}")
        if not value.encode(errors="ignore").decode() == value:
            raise ValueError(f"has half a character, which cannot be written. Fix: {fix}")
        return value

    return check


def flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false. Fix: give one of them")
    return value


def json_object(value: Any) -> dict:
    if not isinstance(value, dict):
        raise ValueError("must be a JSON object. Fix: give the graph as ComfyUI's graphToPrompt() makes it")
    return value


def optional(check: Check) -> Check:
    """A check that takes null, too."""
    return lambda value: None if value is None else check(value)


# --- queries --------------------------------------------------------------------------------------------------------


def query(request: web.Request, checks: Mapping[str, Check]) -> dict[str, Any]:
    """The query's values for these names; each check gets the list of a name's values. Raises Refused (400)."""
    values = {}
    for name, check in checks.items():
        texts = request.query.getall(name, [])
        with refusing(f"{name} = {quoted(texts[0] if texts else None)}: "):
            values[name] = check(texts)
    return values


def word(default: str | None) -> Check:
    """A check for a query's first value."""
    return lambda values: values[0] if values else default


def count(default: int | None = None, most: int = 10**18 - 1) -> Check:
    """A check for a query's whole number from 0 to `most`."""

    def check(values: list[str]) -> int:
        if not values and default is not None:
            return default
        text = values[0] if values else ""
        if not (text.isascii() and text.isdecimal() and len(text) <= 18 and int(text) <= most):
            raise ValueError(f"must be a whole number. Fix: give one from 0 to {most}")
        return int(text)

    return check


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def guard(token: str, hint: str, cookie: str = "") -> Callable:
    """A middleware that answers only requests with the token, as a bearer token; all others get `hint`.

    With a `cookie` of that name a browser can have the token too: once by ?token=…, and from then on by the cookie.
    """

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if cookie and request.method == "GET" and _same(request.query.get("token", ""), token):
            response = web.HTTPFound("/")  # and not to what the address says, which may be another site's
            response.set_cookie(cookie, token, httponly=True, samesite="Strict")
            raise response
        tokens = [request.headers.get("Authorization", "").removeprefix("Bearer ")]
        tokens += [request.cookies.get(cookie, "")] if cookie else []
        if not any(_same(value, token) for value in tokens):
            raise web.HTTPUnauthorized(text=hint)
        return await handler(request)

    return guarded


def _same(given: str, wanted: str) -> bool:
    # a header may hold bytes that are no text
    return hmac.compare_digest(*(text.encode(errors="backslashreplace") for text in (given, wanted)))
