"""The routes of the panel that asks which pictures are the best: what is asked, its pictures, and the answers.

On ComfyUI's server as on that of `otca vote`. Questions are named by their ids, and pictures by their place in a question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from ..host.questions import Desk, NotOpen, Question
from .checks import Field, Refused, answered, body, object_or_null

ANSWER = {"answer": Field(object_or_null, required=True)}


def add_vote_routes(routes: web.RouteTableDef, desk: Desk) -> None:
    """Adds all three to those of a server."""

    async def asked(request: web.Request) -> dict[str, Any]:
        return {"questions": list(map(_as_json, desk.questions())), "seconds_each": desk.seconds_each()}

    async def picture(request: web.Request) -> web.StreamResponse:
        question = _question(desk, request)
        number = request.match_info["number"]
        if not (number.isascii() and number.isdecimal() and int(number) < len(question.pictures)):
            raise Refused(
                404, f"question {question.id} has no picture {number!r}. Fix: 0 to {len(question.pictures) - 1}"
            )
        return web.FileResponse(question.pictures[int(number)])

    async def answer(request: web.Request) -> dict[str, Any]:
        given = (await body(request, ANSWER))["answer"]
        question = _question(desk, request)
        try:
            await asyncio.to_thread(desk.answer, question.id, given)
        except NotOpen as error:
            raise Refused(404, str(error)) from error
        except ValueError as error:
            raise Refused(400, f"the answer {error}. Fix: vote again, or reload the page") from error
        except OSError as error:
            raise Refused(
                500, f"the vote could not be saved ({error}). Fix: make room or the folder writable"
            ) from error
        return _as_json(question)

    get: Mapping[str, Callable] = {"/otca/votes": asked, "/otca/votes/{id}/pictures/{number}": picture}
    for path, handler in get.items():
        routes.get(path)(answered(handler))
    routes.post("/otca/votes/{id}")(answered(answer))


def _question(desk: Desk, request: web.Request) -> Question:
    wanted = request.match_info["id"]
    for question in desk.questions():
        if question.id == wanted:
            return question
    raise Refused(404, f"question {wanted!r} is not open any more. Fix: look at what is asked now")


def _as_json(question: Question) -> dict[str, Any]:
    return {
        "id": question.id,
        "prompt": question.text,
        "pictures": [{"video": picture.suffix == ".mp4"} for picture in question.pictures],
        "answered": question.answer is not None,
        **question.about,
    }
