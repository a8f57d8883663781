"""Parts of rewards that ask a server: which hosts may be asked, tokens, sessions, further tries, limits and Stop.

A `Server` posts JSON and gives back the text of good answers. What is asked, and what an answer means, is its subclass's.
"""

from __future__ import annotations

import asyncio
import io
import threading
import weakref
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ...host import environment, stopping
from ...host.access import permissions
from ...host.access.addresses import host_of
from ..networks import RewardError
from ..networks.network import OncePerBatch
from .base import Reward

if TYPE_CHECKING:
    from ...host import network

TOKEN_PREFIX = "OTCA_REWARD_TOKEN"
FIRST_WAIT = 0.5  # seconds before the first further try; twice as long before each next one
JSON = {"Content-Type": "application/json"}
STOP_INTERVAL = 0.1  # seconds between two looks whether to stop
SHOWN = 200  # characters of an answer in an error

T = TypeVar("T")


class Refused(RewardError):
    """The server will not answer such a request, however often it is sent: a status of 4xx, or a redirect.

    Attributes:
        said: the beginning of its answer.
    """

    def __init__(self, message: str, said: str):
        super().__init__(message)
        self.said = said


@dataclass(frozen=True)
class Question:
    """One request.

    Attributes:
        body: JSON, as it is sent.
        about: what the answer is about, for errors.
        most: bytes that the answer may have.
    """

    body: bytes
    about: str
    most: int


class ServerReward(Reward):
    """A reward that asks a server.

    Args:
        groups_only: it may only be asked about the group's own pictures, because questions cost money or time.
        use: `coefficient` and `held_out`.
    """

    def __init__(self, name: str, *, groups_only: bool = False, **use):
        super().__init__(name, **use)
        self.groups_only = groups_only


class Server(OncePerBatch):
    """One address, and how it is asked.

    Args:
        url: where requests go.
        timeout: seconds that one request may take.
        retries: further tries after a connection that failed, a timeout, a status of 5xx or 429.
        token_variable: the environment variable that holds a bearer token; empty: none is sent.
        concurrency: requests under way at once.
    """

    # In errors: the input that makes the server's work smaller, what url must lead to, and what a good answer holds.
    SMALLER = "batch_size"
    PATH = "the path that takes scores by POST"
    GOOD = "scores alone"

    def __init__(self, url: str, timeout: float, retries: int, token_variable: str, concurrency: int = 1):
        super().__init__()
        self.url, self.timeout, self.retries = url, timeout, retries
        self.token_variable, self.concurrency = token_variable, concurrency
        check_host(url)

    def ask(self, questions: Sequence[Question]) -> list[str]:
        """The text of the answer to each question, in their order; Stop ends it.

        Raises:
            NotAllowed: the user has not allowed that host, or not that it gets the token.
            Refused: the server will not answer that.
            RewardError: the server could not be reached, or failed.
        """
        check_host(self.url)
        return _stoppable(self._ask(questions))

    async def _ask(self, questions: Sequence[Question]) -> list[str]:
        from ...host import network

        token = self._token() if self.token_variable else ""
        turns = asyncio.Semaphore(self.concurrency)
        async with network.session(token, network.limit(self.timeout)) as session:

            async def in_turn(question: Question) -> str:
                async with turns:
                    return await self._answer(session, question)

            tasks = [asyncio.ensure_future(in_turn(question)) for question in questions]
            try:
                return await asyncio.gather(*tasks)
            finally:
                for task in tasks:  # if one failed, the others are not waited for
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _answer(self, session: network.Session, question: Question) -> str:
        """The text of a good answer to one request."""
        from ...host import network

        problem = fix = ""
        for attempt in range(self.retries + 1):
            if attempt:
                await asyncio.sleep(FIRST_WAIT * 2 ** (attempt - 1))
            try:
                # A redirect would take pictures and token to another host.
                ask = session.post(self.url, data=question.body, headers=JSON, allow_redirects=False)
                async with ask as response:
                    content, whole = await network.read_at_most(response, question.most)
            except asyncio.TimeoutError:
                problem = f"gave no answer within {self.timeout:g} s"
                fix = f"raise timeout, lower {self.SMALLER}, or look at the server's own log"
                continue
            except network.FAILED as error:
                problem = f"could not be reached ({type(error).__name__}: {error})"
                fix = "start the reward server, or correct url"
                continue
            text = content.decode("utf-8", "replace")
            if response.status == 200 and whole:
                return text
            if response.status == 200:
                raise RewardError(
                    f"{self.url} answered more than {question.most:,} bytes about {question.about}, or compressed: "
                    f"{text[:SHOWN]!r}. Fix: it must answer with {self.GOOD}, uncompressed"
                )
            problem = f"answered {response.status} {response.reason}: {text[:SHOWN]!r}"
            fix = self._remedy(response.status, response.headers.get("Location", ""))
            if response.status != 429 and response.status < 500:
                raise Refused(f"{self.url} {problem}. Fix: {fix}", text)
        tries = f", {self.retries + 1} times in a row" if self.retries else ""
        raise RewardError(f"{self.url} {problem}{tries}. Fix: {fix}")

    def _remedy(self, status: int, target: str) -> str:
        """The fix for an answer of that status; `target`: where a redirect leads."""
        if 300 <= status < 400:
            return f"redirects are not followed; if you trust {target[:SHOWN]!r}, give that as url"
        if status in (401, 403):
            return "name the variable with the server's token in token_variable"
        if status in (404, 405):
            return f"correct url: it needs {self.PATH}"
        if status == 413:
            return f"lower {self.SMALLER}"
        return "look at the server's own log"

    def _token(self) -> str:
        permissions.check_token(self.token_variable, self.url)
        token = environment.read(self.token_variable)
        if not token:
            raise RewardError(
                f"{self.url} should get the token in the environment variable {self.token_variable}, which is not set. "
                f"Fix: set it where ComfyUI or otca is started, or leave token_variable empty"
            )
        return token


S = TypeVar("S", bound=Server)
servers: weakref.WeakValueDictionary[tuple, Server] = weakref.WeakValueDictionary()


def shared(kind: type[S], *settings) -> S:
    """The server of that kind with those settings: one for all rewards that ask it, as long as one of them lives."""
    server = servers.get((kind, *settings))
    if not isinstance(server, kind):  # it is None
        server = servers[(kind, *settings)] = kind(*settings)
    return server


def check_url(url: str) -> str:
    """The address of a server. Raises ValueError for anything but http and https, and for one that carries a password."""
    host_of(url)
    return url


def check_host(url: str) -> None:
    """Raises NotAllowed if the user has not allowed that pictures go there, ValueError as `check_url`."""
    permissions.check(permissions.Want(permissions.POST, host_of(url), "pictures and prompts"))


def check_token_variable(name: str) -> str:
    """A variable that was meant for this. Raises ValueError: a workflow must not send other secrets to its author."""
    if name and not name.startswith(TOKEN_PREFIX):
        raise ValueError(
            f"{name!r} does not begin with {TOKEN_PREFIX}. Fix: rename the variable, as in {TOKEN_PREFIX}_MINE"
        )
    return name


def png(frame) -> bytes:
    """The whole file of a picture [H, W, 3] uint8."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _stoppable(work: Coroutine[None, None, T]) -> T:
    """Returns what `work` returns; cancels it if the user asks to stop.

    It runs in a thread of its own, since ComfyUI calls nodes from within a running event loop.
    """
    abandoned = threading.Event()

    async def watched() -> T:
        task = asyncio.ensure_future(work)
        while not (await asyncio.wait({task}, timeout=STOP_INTERVAL))[0]:
            if abandoned.is_set():
                task.cancel()
        return task.result()

    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(lambda: asyncio.run(watched()))
        try:
            while not wait([future], timeout=STOP_INTERVAL).done:
                stopping.check_stop()
        except BaseException:
            abandoned.set()
            raise
        return future.result()
