"""Who may ask a server of ours that is not ComfyUI's: whoever has its token."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def guard(token: str, hint: str, cookie: str = "") -> Callable:
    """A middleware that lets in who has the token, as a bearer token; `hint` is said to everybody else.

    With a `cookie` of that name a browser has it, too: once by ?token=…, and from then on by the cookie.
    """

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if cookie and request.method == "GET" and _same(request.query.get("token", ""), token):
            response = web.HTTPFound(request.path)
            response.set_cookie(cookie, token, httponly=True, samesite="Strict")
            raise response
        given = [request.headers.get("Authorization", "").removeprefix("Bearer ")]
        given += [request.cookies.get(cookie, "")] if cookie else []
        if not any(_same(each, token) for each in given):
            raise web.HTTPUnauthorized(text=hint)
        return await handler(request)

    return guarded


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode(), wanted.encode())
