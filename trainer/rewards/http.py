"""A reward server in any language: pictures or videos and their prompts go out as JSON, scores come back.

The request, a POST of application/json, and the two forms of the answer:

    {"version": 1, "media": "png", "fps": null, "samples": [{"prompt": "a red circle", "data": "iVBORw0…"}, …]}
    {"scores": [0.25, null, …]}
    {"scores": {"vq": [0.25, …], "mq": [1.5, …]}}

`data` is a whole PNG, or an mp4 of `fps` frames a second, in base64; null is what could not be scored, though it should have
been, and "does not apply" what this reward has no opinion of, by design. An answer may have
ANSWER_BYTES, and SAMPLE_BYTES more for each sample. A server to begin with: assets/examples/reward_server.py.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import math
import os
import threading
import weakref
import zlib
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

from ...host import stopping
from ...host.access import permissions
from ...host.access.addresses import host_of
from ..networks import RewardError
from ..networks.network import OncePerBatch
from ..pictures import media
from .base import Reward

if TYPE_CHECKING:
    import aiohttp
    from torch import Tensor

VERSION = 1
TOKEN_PREFIX = "OTCA_REWARD_TOKEN"
FIRST_WAIT = 0.5  # seconds before the first further try; twice as long before each next one
STOP_INTERVAL = 0.1  # seconds between two looks whether to stop
SHOWN = 200  # characters of an answer in an error
LEFT_OUT = "does not apply"  # instead of a score
# What is read of an answer: room for forty named scores of a sample, with all their digits.
ANSWER_BYTES, SAMPLE_BYTES = 4096, 1024
COMPRESSIONS = ("gzip", "deflate")  # which zlib tells apart by itself

T = TypeVar("T")


class HTTPReward(Reward):
    """Asks a `Server`; rewards with the same server and the same settings of it share one request a batch.

    Args:
        score_key: which of the server's scores, where it gives several.
        timeout: seconds that one request may take.
        retries: further tries after a connection that failed, a timeout, a status of 5xx or 429.
        batch_size: samples to one request; 0: all at once.
        token_variable: the environment variable that holds a bearer token; empty: none is sent.
        fps: frames a second of the videos that are sent.
    """

    def __init__(
        self,
        name: str = "http",
        *,
        url: str,
        score_key: str = "",
        timeout: float = 60.0,
        retries: int = 3,
        batch_size: int = 16,
        token_variable: str = "",
        fps: float = 16.0,
        **use,
    ):
        super().__init__(name, **use)
        self.server = _shared(check_url(url), timeout, retries, batch_size, check_token_variable(token_variable), fps)
        self.score_key = score_key

    def score(self, images: Tensor, prompts: Sequence[str]) -> list[float | None]:
        return self._column(images, prompts)

    def score_videos(self, videos: Tensor, prompts: Sequence[str]) -> list[float | None]:
        return self._column(videos, prompts)

    def _column(self, batch: Tensor, prompts: Sequence[str]) -> list[float | None]:
        columns = self.server.once(batch, tuple(prompts), lambda: self.server.scores(batch, prompts))
        if self.score_key not in columns:
            names = ", ".join(sorted(columns)) if any(columns) else "one score a sample, without a name"
            fix = f"set score_key to one of {names}" if any(columns) else "leave score_key empty"
            raise RewardError(f"{self.server.url} gave {names}, and score_key is {self.score_key!r}. Fix: {fix}")
        return columns[self.score_key]


class Server(OncePerBatch):
    """One address, and how it is asked."""

    def __init__(self, url: str, timeout: float, retries: int, batch_size: int, token_variable: str, fps: float):
        super().__init__()
        self.url, self.timeout, self.retries, self.batch_size = url, timeout, retries, batch_size
        self.token_variable, self.fps = token_variable, fps
        check_host(url)

    def scores(self, batch: Tensor, prompts: Sequence[str]) -> dict[str, list[float | None]]:
        """{name of a score: one a sample}; the name is empty where the server gives only one.

        Args:
            batch: pictures [B, H, W, 3] or videos [B, F, H, W, 3] in [0, 1].

        Raises:
            NotAllowed: the user has not allowed that host, or not that it gets the token.
            RewardError: the server could not be reached, or gave something else.
        """
        check_host(self.url)
        frames = media.eight_bits(batch).numpy()
        kind = "mp4" if batch.ndim == 5 else "png"
        encoded = [media.mp4(clip, self.fps) if kind == "mp4" else _png(clip) for clip in frames]
        samples = [
            {"prompt": prompt, "data": base64.b64encode(data).decode()}
            for prompt, data in zip(prompts, encoded, strict=True)
        ]
        head = {"version": VERSION, "media": kind, "fps": self.fps if kind == "mp4" else None}
        size = self.batch_size or len(samples)
        parts = [samples[start : start + size] for start in range(0, len(samples), size)]
        answers = _stoppable(self._ask([{**head, "samples": part} for part in parts]))
        read = [self._read(text, len(part)) for text, part in zip(answers, parts, strict=True)]
        if any(columns.keys() != read[0].keys() for columns in read):
            names = " and ".join(str(sorted(columns)) for columns in read)
            raise RewardError(f"{self.url} gave other scores for each batch: {names}. Fix: the same for all")
        return {name: [value for columns in read for value in columns[name]] for name in read[0]}

    async def _ask(self, requests: Sequence[dict]) -> list[str]:
        import aiohttp

        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if self.token_variable:
            headers["Authorization"] = f"Bearer {self._token()}"
        limit = aiohttp.ClientTimeout(total=self.timeout)
        # Decompressed by us, since aiohttp would do it without a limit.
        async with aiohttp.ClientSession(headers=headers, timeout=limit, auto_decompress=False) as session:
            return [await self._answer(session, request) for request in requests]

    async def _answer(self, session: aiohttp.ClientSession, request: dict) -> str:
        """The text of a good answer to one request."""
        import aiohttp

        body, most = json.dumps(request).encode(), ANSWER_BYTES + SAMPLE_BYTES * len(request["samples"])
        for attempt in range(self.retries + 1):
            if attempt:
                await asyncio.sleep(FIRST_WAIT * 2 ** (attempt - 1))
            try:
                # A redirect would take pictures and token to another host.
                async with session.post(self.url, data=body, allow_redirects=False) as response:
                    content, whole = await _read_at_most(response, most)
            except asyncio.TimeoutError:
                problem = f"gave no answer within {self.timeout:g} s"
                fix = "raise timeout, lower batch_size, or look at the server's own log"
                continue
            except aiohttp.ClientError as error:
                problem = f"could not be reached ({type(error).__name__}: {error})"
                fix = "start the reward server, or correct url"
                continue
            text = content.decode("utf-8", "replace")
            if response.status == 200 and whole:
                return text
            if response.status == 200:
                raise RewardError(
                    f"{self.url} answered more than {most:,} bytes about {len(request['samples'])} samples, or in a compression "
                    f"that is not read: {text[:SHOWN]!r}. Fix: it must answer with scores alone, uncompressed"
                )
            problem, fix = f"answered {response.status} {response.reason}: {text[:SHOWN]!r}", _remedy(response)
            if response.status != 429 and response.status < 500:
                raise RewardError(f"{self.url} {problem}. Fix: {fix}")
        tries = f", {self.retries + 1} times in a row" if self.retries else ""
        raise RewardError(f"{self.url} {problem}{tries}. Fix: {fix}")

    def _read(self, text: str, count: int) -> dict[str, list[float | None]]:
        """The scores in an answer about `count` samples."""
        shown = f"{text[:SHOWN]!r}"
        try:
            scores = json.loads(text)["scores"]
        except (ValueError, TypeError, KeyError, RecursionError):  # the last one where it is nested very deep
            raise RewardError(
                f'{self.url} answered {shown}. Fix: it must be JSON like {{"scores": [0.5, null]}}'
            ) from None
        columns = scores if scores and isinstance(scores, dict) else {"": scores}
        for name, column in columns.items():
            which = f"scores {name!r}" if name else "scores"
            if not isinstance(column, list) or len(column) != count:
                answer = f"{len(column)} {which}" if isinstance(column, list) else f"no list of {which}"
                raise RewardError(
                    f"{self.url} gave {answer} for {count} samples: {shown}. Fix: one a sample, in their order"
                )
            for sample, value in enumerate(column):
                if value not in (None, LEFT_OUT) and (isinstance(value, bool) or not isinstance(value, int | float)):
                    raise RewardError(
                        f"{self.url} gave {repr(value)[:SHOWN]} among its {which}, for sample {sample}. Fix: a number, "
                        f"null for what could not be scored, or {LEFT_OUT!r}"
                    )
        return {name: list(map(_score, column)) for name, column in columns.items()}

    def _token(self) -> str:
        permissions.check_token(self.token_variable, self.url)
        token = os.environ.get(self.token_variable)
        if not token:
            raise RewardError(
                f"{self.url} should get the token in the environment variable {self.token_variable}, which is not set. "
                f"Fix: set it where ComfyUI or otca is started, or leave token_variable empty"
            )
        return token


_servers: weakref.WeakValueDictionary[tuple, Server] = weakref.WeakValueDictionary()


def _shared(*settings) -> Server:
    server = _servers.get(settings)
    if server is None:
        server = _servers[settings] = Server(*settings)
    return server


def check_url(url: str) -> str:
    """The address of a server. Raises ValueError for anything but http and https, and for one that carries a password."""
    host_of(url)
    return url


def check_host(url: str) -> None:
    """Raises NotAllowed where the user has not allowed that pictures go there, ValueError as `check_url`."""
    permissions.check(permissions.Want(permissions.POST, host_of(url), "pictures and prompts"))


def check_token_variable(name: str) -> str:
    """A variable that was meant for this. Raises ValueError: a workflow must not send other secrets to its author."""
    if name and not name.startswith(TOKEN_PREFIX):
        raise ValueError(
            f"{name!r} does not begin with {TOKEN_PREFIX}. Fix: rename the variable, as in {TOKEN_PREFIX}_MINE"
        )
    return name


def _score(value: float | str | None) -> float | None:
    """As rewards give scores: NaN is what could not be scored, or no sum could hold; None what the reward does not apply to."""
    if value == LEFT_OUT:
        return None
    try:
        number = math.nan if value is None else float(value)
    except OverflowError:  # a whole number of more than 308 digits
        number = math.nan
    return number if math.isfinite(number) else math.nan


async def _read_at_most(response: aiohttp.ClientResponse, most: int) -> tuple[bytes, bool]:
    """The first `most` bytes of an answer, decompressed, and whether that is all of it."""
    content = bytearray()
    async for piece in response.content.iter_any():
        content += piece
        if len(content) > most:
            response.close()  # else the rest would be waited for
            break
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding in COMPRESSIONS and len(content) <= most:
        try:
            content = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(bytes(content), most + 1)
        except zlib.error:
            return b"", False
    elif encoding not in ("identity", ""):
        return b"", False
    return bytes(content[:most]), len(content) <= most


def _remedy(response: aiohttp.ClientResponse) -> str:
    if 300 <= response.status < 400:
        target = response.headers.get("Location", "")
        return f"redirects are not followed; if you trust {target[:SHOWN]!r}, give that as url"
    if response.status in (401, 403):
        return "name the variable with the server's token in token_variable"
    if response.status in (404, 405):
        return "correct url: it needs the path that takes scores by POST"
    if response.status == 413:
        return "lower batch_size"
    return "look at the server's own log"


def _stoppable(work: Coroutine[None, None, T]) -> T:
    """What `work` returns. It is cancelled where the user asks to stop.

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


def _png(frame) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
