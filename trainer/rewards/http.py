"""A reward server in any language: pictures or videos and their prompts go out as JSON, scores come back.

The request, a POST of application/json, and the answer:

    {"version": 1, "media": "png", "fps": null, "samples": [{"prompt": "a red circle", "data": "iVBORw0…"}, …]}
    {"scores": [0.25, null, …]}

`data` is a whole PNG, or an mp4 of `fps` frames a second, in base64. Where the prompt says more than its text, a sample has that
beside `prompt`, as in `"metadata": {"text": "OPEN"}`; else that key is missing. In the same way Reward: Vote says which samples
are of one group, as in `"group": 3`, and which picture was edited: its place in a list beside `samples`, as in `"source": 0` and
`"sources": ["iVBORw0…"]`, PNGs of MOST_SIDE pixels a side at most. null is what could not be scored, though it
should have been, and "does not apply" what this reward has no opinion of, by design. An answer may have ANSWER_BYTES, and
SAMPLE_BYTES more for each sample. A server to begin with: assets/examples/reward_server.py.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from ..families import given
from ..networks import RewardError
from ..pictures import media
from ..types import metadata_of
from .server import SHOWN, Question, Server, ServerReward, check_token_variable, check_url, png

VERSION = 1
LEFT_OUT = "does not apply"  # instead of a score
ANSWER_BYTES, SAMPLE_BYTES = 4096, 1024  # what is read of an answer: room for scores with all their digits
MOST_SIDE = 1024


class HTTPReward(ServerReward):
    """Asks a `ScoreServer`.

    Args:
        timeout: seconds that one request may take.
        retries: further tries after a connection that failed, a timeout, a status of 5xx or 429.
        batch_size: samples to one request; 0: all at once.
        token_variable: the environment variable that holds a bearer token; empty: none is sent.
        fps: frames a second of the videos that are sent; of files, what they say.
    """

    def __init__(
        self,
        name: str = "http",
        *,
        url: str,
        timeout: float = 60.0,
        retries: int = 3,
        batch_size: int = 16,
        token_variable: str = "",
        fps: float = 16.0,
        **use,
    ):
        super().__init__(name, **use)
        token_variable = check_token_variable(token_variable)
        self.server = ScoreServer(check_url(url), timeout, retries, token_variable, batch_size, fps)

    def score(self, images: Tensor, prompts: Sequence[str]) -> list[float | None]:
        return self.column(images, prompts)

    def score_videos(self, videos: Tensor, prompts: Sequence[str]) -> list[float | None]:
        return self.column(videos, prompts)

    def column(self, batch: Tensor, prompts: Sequence[str], groups: Sequence[int] | None = None) -> list[float | None]:
        """The scores of pictures or videos; `groups` are sent along where they are given."""
        return self.server.scores(batch, prompts, groups, self.file_fps)


class ScoreServer(Server):
    """A server that speaks the protocol above.

    Args:
        batch_size: samples to one request; 0: all at once.
        fps: frames a second of the videos that are sent.
    """

    def __init__(self, url: str, timeout: float, retries: int, token_variable: str, batch_size: int, fps: float):
        super().__init__(url, timeout, retries, token_variable)
        self.batch_size, self.fps = batch_size, fps

    def scores(
        self, batch: Tensor, prompts: Sequence[str], groups: Sequence[int] | None = None, file_fps: float = 0.0
    ) -> list[float | None]:
        """One score a sample.

        `batch`: pictures [B, H, W, 3] or videos [B, F, H, W, 3] in [0, 1].
        `groups`: the number of each sample's group, where the server is to know.
        `file_fps`: frames a second of these videos, where they have their own.

        Raises:
            NotAllowed: the user has not allowed that host, or not that it gets the token.
            RewardError: the server could not be reached, or gave something else.
        """
        frames = media.eight_bits(batch).numpy()
        kind = "mp4" if batch.ndim == 5 else "png"
        fps = file_fps or self.fps
        encoded = [media.mp4(clip, fps) if kind == "mp4" else png(clip) for clip in frames]
        numbers, places, sources = [None] * len(encoded), [None] * len(encoded), []
        if groups is not None:
            numbers = groups
            sources, places = _sources(prompts)
        samples = [_sample(*of) for of in zip(prompts, encoded, numbers, places, strict=True)]
        head: dict[str, Any] = {"version": VERSION, "media": kind, "fps": fps if kind == "mp4" else None}
        head |= {"sources": sources} if sources else {}
        size = self.batch_size or len(samples)
        parts = [samples[start : start + size] for start in range(0, len(samples), size)]
        requests = (json.dumps({**head, "samples": part}).encode() for part in parts)
        sizes = ((f"{len(part)} samples", ANSWER_BYTES + SAMPLE_BYTES * len(part)) for part in parts)
        answers = self.ask([Question(request, *size) for request, size in zip(requests, sizes, strict=True)])
        return [score for text, part in zip(answers, parts, strict=True) for score in self._read(text, len(part))]

    def _read(self, text: str, count: int) -> list[float | None]:
        """The scores in an answer about `count` samples."""
        shown = f"{text[:SHOWN]!r}"
        try:
            scores = json.loads(text)["scores"]
        except (ValueError, TypeError, KeyError, RecursionError):  # the last one where it is nested very deep
            raise RewardError(
                f'{self.url} answered {shown}. Fix: it must be JSON like {{"scores": [0.5, null]}}'
            ) from None
        if not isinstance(scores, list) or len(scores) != count:
            answer = f"{len(scores)} scores" if isinstance(scores, list) else "no list of scores"
            raise RewardError(
                f"{self.url} gave {answer} for {count} samples: {shown}. Fix: one a sample, in their order"
            )
        for sample, value in enumerate(scores):
            if value not in (None, LEFT_OUT) and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise RewardError(
                    f"{self.url} gave {repr(value)[:SHOWN]} among its scores, for sample {sample}. Fix: a number, "
                    f"null for what could not be scored, or {LEFT_OUT!r}"
                )
        return list(map(_score, scores))


def _sources(prompts: Sequence[str]) -> tuple[list[str], list[int | None]]:
    """The pictures that prompts work on, the first of each, as a request has them; and which of them is each prompt's."""
    sources: dict[str, tuple[int, str]] = {}  # by digest
    places: list[int | None] = []
    for prompt in prompts:
        picture = next(iter(given.pictures(prompt)), None)
        if picture is not None and picture.digest not in sources:
            image = Image.fromarray(picture.pixels.numpy())
            image.thumbnail((MOST_SIDE, MOST_SIDE))
            sources[picture.digest] = len(sources), base64.b64encode(png(np.asarray(image))).decode()
        places.append(None if picture is None else sources[picture.digest][0])
    return [data for _, data in sources.values()], places


def _sample(prompt: str, data: bytes, group: int | None, source: int | None) -> dict[str, Any]:
    """One of a request's samples."""
    more = {"metadata": dict(metadata_of(prompt)) or None, "group": group, "source": source}
    fields = {name: value for name, value in more.items() if value is not None}
    return {"prompt": prompt, **fields, "data": base64.b64encode(data).decode()}


def _score(value: float | str | None) -> float | None:
    """The score as rewards give it: NaN is a failure, or a number that no sum could hold; None: the reward does not apply."""
    if value == LEFT_OUT:
        return None
    try:
        number = math.nan if value is None else float(value)
    except OverflowError:  # a whole number of more than 308 digits
        number = math.nan
    return number if math.isfinite(number) else math.nan
