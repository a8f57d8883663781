"""OpenAI's chat completions, as far as a judge of pictures needs them: what vLLM, Ollama, llama.cpp, LM Studio and
`transformers serve` speak."""

from __future__ import annotations

import base64
import json
import logging
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..networks import RewardError
from ..pictures import media
from .server import SHOWN, Question, Refused, Server, png

logger = logging.getLogger(__name__)

CHAT = "/chat/completions"
# What is read of an answer, and for each of its tokens with all its alternatives.
ANSWER_BYTES, TOKEN_BYTES = 65536, 4096
YES_OR_NO = "Answer with one word: yes or no."  # what follows a question


@dataclass(frozen=True)
class Asked:
    """A question: its pictures as data URLs, and its text."""

    pictures: tuple[str, ...]
    text: str

    def message(self, instruction: str) -> dict[str, Any]:
        """The user's message. Pictures come first, so that a server which remembers how a message began has them already when the
        next question is about the same ones."""
        frames = (
            f"These are {len(self.pictures)} frames of one video, in their order.\n" if len(self.pictures) > 1 else ""
        )
        parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in self.pictures]
        return {"role": "user", "content": [*parts, {"type": "text", "text": f"{frames}{self.text}\n{instruction}"}]}


@dataclass(frozen=True)
class Reply:
    """An answer.

    Attributes:
        text: what the model said.
        cut: whether max_tokens ended it.
        tokens: each token's alternatives, with the token first: (text, log-probability); None if the server gave none.
    """

    text: str
    cut: bool
    tokens: Sequence[Sequence[tuple[str, float]]] | None


@dataclass(eq=False)
class Abilities:
    """The abilities of a model on a server. `probabilities`: whether it gives log-probabilities; None before it was asked."""

    probabilities: bool | None = None


_abilities: weakref.WeakValueDictionary[tuple[str, str], Abilities] = weakref.WeakValueDictionary()


class ChatServer(Server):
    """A server of chat completions, and one of its models."""

    SMALLER = "concurrency or max_tokens"
    PATH = "the address that clients of OpenAI take, which ends in /v1"
    GOOD = "a chat completion"

    def __init__(self, url: str, timeout: float, retries: int, token_variable: str, concurrency: int, model: str):
        url = url.rstrip("/").removesuffix(CHAT) + CHAT  # by the address that clients of OpenAI take
        super().__init__(url, timeout, retries, token_variable, concurrency)
        self.model = model
        # Shared by all who ask that model, so that what it lacks is found out, and told, once.
        self.abilities = _abilities.setdefault((self.url, model), Abilities())

    def with_probabilities(self, asked: Sequence[Asked], fields: Mapping[str, Any]) -> list[Reply] | None:
        """Replies with log-probabilities. Returns None, and logs it once, if the server gives none."""
        if self.abilities.probabilities is False:
            return None
        replies: list[Reply] = []
        fields = {**fields, "logprobs": True}
        while self.abilities.probabilities is None and len(replies) < len(asked):
            try:
                replies += self.replies([asked[len(replies)]], YES_OR_NO, fields)
            except Refused as refusal:
                if "logprob" not in refusal.said.lower():
                    raise
                return self._without(f"refuses them: {refusal.said[:SHOWN]!r}")
            if replies[-1].text:  # an empty answer says nothing of it
                if replies[-1].tokens is None:
                    return self._without("gives none")
                self.abilities.probabilities = True
        return replies + self.replies(asked[len(replies) :], YES_OR_NO, fields)

    def _without(self, why: str) -> None:
        self.abilities.probabilities = False
        logger.warning(
            "%s was asked for log-probabilities (logprobs) of %r and %s. It is asked for a number instead of yes or no",
            *(self.url, self.model, why),
        )

    def replies(self, asked: Sequence[Asked], instruction: str, fields: Mapping[str, Any]) -> list[Reply]:
        """One to each question."""
        most = ANSWER_BYTES + TOKEN_BYTES * int(fields["max_tokens"])
        questions = [
            Question(
                json.dumps({"model": self.model, "messages": [question.message(instruction)], **fields}).encode(),
                "one sample",
                most,
            )
            for question in asked
        ]
        return [self._read(text) for text in self.ask(questions)]

    def _read(self, text: str) -> Reply:
        try:
            choice = json.loads(text)["choices"][0]
            content = choice["message"]["content"] or ""
            if not isinstance(content, str):
                raise TypeError
            return Reply(content, choice.get("finish_reason") == "length", alternatives(choice.get("logprobs")))
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError):
            raise RewardError(
                f"{self.url} answered {text[:SHOWN]!r}, which is not a chat completion. Fix: correct url: it needs {self.PATH}"
            ) from None

    def _remedy(self, status: int, target: str) -> str:
        if status in (400, 404, 422):
            return (
                f"read what it says: model={self.model!r} must be one that the server lists (GET …/models) and one that sees "
                f"pictures, and url {self.PATH}"
            )
        return super()._remedy(status, target)


def data_urls(batch: Tensor, frames: int) -> list[tuple[str, ...]]:
    """For each sample its picture, or `frames` of its video, evenly spread with both ends, as PNG in data URLs."""
    if batch.ndim == 5:
        total = batch.shape[1]
        batch = batch[:, torch.linspace(0, total - 1, min(frames, total)).round().long()]
    else:
        batch = batch[:, None]
    clips = media.eight_bits(batch).numpy()
    return [tuple("data:image/png;base64," + base64.b64encode(png(frame)).decode() for frame in clip) for clip in clips]


def alternatives(logprobs: object) -> list[list[tuple[str, float]]] | None:
    """Each token's alternatives in the `logprobs` of a choice, with the token first; None without any.

    A token without alternatives says nothing of how likely another one was, and does not count.
    """
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(content, list) or not any(len(token.get("top_logprobs") or []) > 1 for token in content):
        return None
    rows = []
    for token in content:
        listed = {place["token"]: float(place["logprob"]) for place in [token, *(token.get("top_logprobs") or [])]}
        rows.append([*listed.items()])
    return rows
