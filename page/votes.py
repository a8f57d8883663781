"""The routes of the panel that asks which pictures are the best: what is asked, its pictures, and the answers.

On ComfyUI's server as on that of `otca vote`. Questions are named by their ids, and pictures by their place in a question.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import itertools
import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web

from ..host import stopping
from ..host.access.addresses import is_home
from ..host.json_files import is_number, is_whole
from ..host.paths import ASSETS
from ..host.questions import Desk, Question, desk
from ..host.text import quoted
from ..trainer.opinions.asking import VoteFolder
from ..trainer.pictures.media import sent
from ..trainer.rewards.http import LEFT_OUT, VERSION
from .requests import Field, Handler, Refused, answered, body, bytes_of, disk, guard, json_object, optional, refusing
from .runs import within

ROOM = "make room or the folder writable"
ANSWER = {"answer": Field(optional(json_object), required=True)}


def add_vote_routes(routes: web.RouteTableDef, desk: Desk) -> None:
    """Adds all three to those of a server."""

    async def asked(request: web.Request) -> dict[str, Any]:
        return {"questions": list(map(_as_json, desk.questions())), "seconds_each": desk.seconds_each()}

    async def picture(request: web.Request) -> Path:
        question = _question(desk, request)
        number = request.match_info["number"]
        pictures = {str(place): path for place, path in enumerate(question.pictures)}
        if number == "source" and question.source is not None:
            return question.source
        if number not in pictures:
            raise Refused(404, f"question {question.id} has no picture {quoted(number)}. Fix: 0 to {len(pictures) - 1}")
        return pictures[number]

    async def answer(request: web.Request) -> dict[str, Any]:
        vote = (await body(request, ANSWER))["answer"]
        question = _question(desk, request)
        with (
            disk("the vote could not be saved", ROOM, 507),
            refusing("the answer ", ". Fix: vote again, or reload the page"),
        ):
            await asyncio.to_thread(desk.answer, question.id, vote)
        return _as_json(question)

    routes.get("/otca/votes")(answered(asked))
    routes.get("/otca/votes/{id}/pictures/{number}")(answered(picture))
    routes.post("/otca/votes/{id}")(answered(answer))


def _question(desk: Desk, request: web.Request) -> Question:
    wanted = request.match_info["id"]
    for question in desk.questions():
        if question.id == wanted:
            return question
    raise Refused(404, f"question {quoted(wanted)} is not open any more. Fix: look at what is asked now")


def _as_json(question: Question) -> dict[str, Any]:
    return {
        "id": question.id,
        "prompt": question.text,
        "pictures": [{"video": picture.suffix == ".mp4"} for picture in question.pictures],
        "source": question.source is not None,
        "answered": question.answer is not None,
        **question.about,
    }


MOST_BYTES = 2**30  # of one request
MOST_WAITING = 64  # requests at a time
MOST_FPS = 240
COOKIE = "otca_vote"
WEB = ASSETS.parent / "web"


def application(folder: VoteFolder, token: str = "") -> web.Application:
    """The server's routes. Without a token it answers only who reaches it by a name of this machine."""
    desk.attended = True
    app = web.Application(middlewares=[_guard(token)])
    routes = web.RouteTableDef()
    add_vote_routes(routes, desk)
    scorer = Scorer(folder)
    app.on_shutdown.append(scorer.give_up)

    @routes.get("/")
    async def page(request: web.Request) -> web.StreamResponse:
        return web.FileResponse(ASSETS / "vote.html", headers={"Cache-Control": "no-cache"})

    @routes.get("/web/{name:.+}")
    @answered
    async def module(request: web.Request) -> Path:
        name = request.match_info["name"]
        path = await asyncio.to_thread(within, WEB, name)
        if path is None or not path.is_file():
            raise Refused(404, f"there is no {quoted(name)}. Fix: reload the page")
        return path

    routes.post("/score")(answered(scorer.score))
    app.add_routes(routes)
    return app


def _guard(token: str) -> Callable:
    """Lets in who has the token; without one, who reaches the server by a name of this machine."""
    if token:
        return guard(token, "the token is missing or wrong. Fix: open the address that otca vote printed", COOKIE)

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not is_home(request.host):
            raise web.HTTPForbidden(text=f"this server answers on this machine only, and not as {quoted(request.host)}")
        return await handler(request)

    return guarded


class Scorer:
    """Answers requests for scores by what people say of the pictures."""

    def __init__(self, folder: VoteFolder):
        self.folder = folder
        self.threads = ThreadPoolExecutor(MOST_WAITING, "votes")  # its own, since each waits for a person
        self.open: set[threading.Event] = set()

    async def score(self, request: web.Request) -> dict[str, Any]:
        content = await bytes_of(request, MOST_BYTES, "set batch_size of the Reward: HTTP node")
        task = await asyncio.to_thread(_decoded, content)
        counts = Counter(task.groups)
        if alone := [prompt for prompt, group in zip(task.prompts, task.groups, strict=True) if counts[group] < 2]:
            raise Refused(
                400,
                f"only one picture of the prompt {quoted(alone[0])} came, and a vote compares several. Fix: set batch_size of "
                "the Reward: HTTP node to 0, so that a prompt's pictures come together, and group_size of SDE Sampler above 1",
            )
        abandoned = threading.Event()
        self.open.add(abandoned)
        work = asyncio.get_running_loop().run_in_executor(self.threads, self._scores, task, abandoned)
        try:
            with disk("the pictures could not be saved", ROOM, 507):
                scores = await work
        finally:
            abandoned.set()  # also where the training hangs up, which cancels this
            self.open.discard(abandoned)
        if scores is None:
            raise Refused(503, "the server is being stopped. Fix: start it again; nothing that was voted is lost")
        # null: it failed; a word: the vote says nothing about the picture
        return {"scores": [LEFT_OUT if score is None else score if math.isfinite(score) else None for score in scores]}

    def _scores(self, asked: Asked, abandoned: threading.Event) -> list[float | None] | None:
        """The scores; None if the training no longer waits for them."""
        stopping.helper.abandoned = abandoned
        try:
            return self.folder.scores(asked.pictures, asked.prompts, asked.groups, asked.fps, asked.sources)
        except stopping.Stopped:
            return None
        finally:
            stopping.helper.abandoned = None

    async def give_up(self, app: web.Application) -> None:
        for abandoned in self.open:
            abandoned.set()
        await asyncio.to_thread(self.threads.shutdown)


@dataclass(frozen=True)
class Asked:
    """A request: pictures or videos of uint8, their prompts, the numbers of their groups from 0 on, the videos' frames per
    second, None if not given, and the picture that each was made of, None if it was made of none."""

    pictures: list[np.ndarray]
    prompts: list[str]
    groups: list[int]
    fps: float | None
    sources: list[np.ndarray | None]


def _groups(prompts: list[str], given: list[Any]) -> list[int]:
    if all(map(is_whole, given)):
        numbers: dict[tuple[int, str], int] = {}
        return [numbers.setdefault(of, len(numbers)) for of in zip(given, prompts, strict=True)]
    runs = (len(list(same)) for _, same in itertools.groupby(prompts))
    return [number for number, count in enumerate(runs) for _ in range(count)]


def _decoded(content: bytes) -> Asked:
    """The request that was sent. Raises Refused, and names the sample that cannot be read."""
    try:
        body: Mapping[str, Any] = json.loads(content)
        version, media, samples = body["version"], body["media"], body["samples"]
        prompts, encoded = zip(*((str(sample["prompt"]), str(sample["data"])) for sample in samples), strict=True)
        groups, fps = [sample.get("group") for sample in samples], body.get("fps")
        edited, places = list(map(str, body.get("sources", []))), [sample.get("source") for sample in samples]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Refused(400, f"that is not a request for scores ({error!r}). Fix: send it by Reward: HTTP") from error
    if version != VERSION or media not in ("png", "mp4"):
        raise Refused(400, f"version {quoted(version)} with media {quoted(media)} is not known here. Fix: update otca")
    if fps is not None and not (is_number(fps) and 1 <= fps <= MOST_FPS):
        raise Refused(400, f"fps is {quoted(fps)}. Fix: a number from 1 to {MOST_FPS}, or null")
    if wrong := [place for place in places if place is not None and not (is_whole(place) and place < len(edited))]:
        raise Refused(400, f"source is {quoted(wrong[0])}, and {len(edited)} sources came. Fix: look at who sent it")
    pictures, sources = _pictures("sample", encoded, media), _pictures("source", edited, "png")
    shown = [None if place is None else sources[place] for place in places]
    return Asked(pictures, list(prompts), _groups(list(prompts), groups), fps, shown)


def _pictures(what: str, encoded: Sequence[str], media: str) -> list[np.ndarray]:
    contents = []
    try:
        for number, data in enumerate(encoded):
            try:
                contents.append(base64.b64decode(data, validate=True))
            except binascii.Error as error:
                raise ValueError(f"sample {number} cannot be read as {media}: {error}") from error
        return [*sent(media, contents)]
    except ValueError as error:
        message = str(error).replace("sample", what, 1)
        raise Refused(400, f"{message}. Fix: look at who sent it") from error
