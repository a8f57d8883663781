"""A vision-language model as judge, asked by any server that speaks OpenAI's chat completions.

Each sample is one question: its picture (of a video, some frames) and a text. Where the server gives log-probabilities, the score
is how likely the answer is to begin with yes rather than no; else a number in a stated range, brought to [0, 1].
"""

from __future__ import annotations

import base64
import json
import logging
import math
import re
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..networks import RewardError
from ..pictures import media
from ..types import metadata_of
from .server import SHOWN, Question, Refused, Server, ServerReward, check_token_variable, check_url, png, shared

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

CHAT = "/chat/completions"
ANSWERS = ("auto", "yes_no", "number")
ALTERNATIVES = 20  # to a token, whose log-probabilities are asked for: as many as OpenAI, vLLM and Ollama give
# What is read of an answer, and for each of its tokens with all its alternatives.
ANSWER_BYTES, TOKEN_BYTES = 65536, 4096
OURS = ("model", "messages", "max_tokens", "logprobs", "stream", "n")  # fields of a request that `extra` cannot set
MOST_TOLD = 3  # answers without a score that one line of the log shows

PLACEHOLDER = re.compile(r"\{([A-Za-z_][\w.-]*)\}", re.ASCII)
LABEL = re.compile(r"\s*([A-Za-z]\w*):\s+(?=\S)", re.ASCII)
NUMBER = re.compile(r"([+-]?\d+(?:\.\d+)?)(?:\s*/\s*(\d+(?:\.\d+)?))?\.?", re.ASCII)
WORD = re.compile(r"[\W_]*([^\W_]+)")
YES, NO = "yes", "no"
# Spaces as tokenizers write them, quotation marks and Markdown, around a token or instead of one.
AROUND = " \t\r\n\u0120\u010a\u2581\"'`*_.,:;!"


class VLMJudge(ServerReward):
    """One question about each sample.

    Args:
        url: the server's address, as clients of OpenAI take it: it ends in /v1.
        model: the model's name on that server.
        question: what it is asked. {prompt} stands for the prompt, {metadata.KEY} for what the prompt says beside its text.
        answer: one of ANSWERS. auto: yes_no where the server gives log-probabilities, else number.
        scale: the lowest and the highest number that may be answered, as in "0, 10".
        max_tokens: tokens of an answer.
        concurrency: questions under way at once.
        frames: of a video, evenly spread, that it sees.
        timeout, retries, token_variable: as `Server` has them.
        extra: more fields of the request, as JSON.
    """

    def __init__(
        self,
        name: str = "vlm_judge",
        *,
        url: str,
        model: str,
        question: str,
        answer: str = "auto",
        scale: str = "0, 10",
        max_tokens: int = 16,
        concurrency: int = 4,
        frames: int = 4,
        timeout: float = 120.0,
        retries: int = 3,
        token_variable: str = "",
        extra: str = "",
        **use,
    ):
        super().__init__(name, **use)
        if answer not in ANSWERS:
            raise ValueError(f"answer={answer!r} is unknown. Fix: one of {', '.join(ANSWERS)}")
        self.question, self.answer, self.scale, self.frames = (
            check_question(question),
            answer,
            parse_scale(scale),
            frames,
        )
        token_variable = check_token_variable(token_variable)
        self.server = shared(ChatServer, check_url(url), timeout, retries, token_variable, concurrency, model)
        self.fields = {"max_tokens": max_tokens, "temperature": 0, "top_logprobs": ALTERNATIVES} | parse_extra(extra)

    def score(self, images: Tensor, prompts: Sequence[str]) -> list[float | None]:
        return self._column(images, prompts)

    def score_videos(self, videos: Tensor, prompts: Sequence[str]) -> list[float | None]:
        return self._column(videos, prompts)

    def _column(self, batch: Tensor, prompts: Sequence[str]) -> list[float | None]:
        texts = [filled(self.question, prompt) for prompt in prompts]
        pictures = self.server.once(batch, ("pictures", self.frames), lambda: data_urls(batch, self.frames))
        applies = [sample for sample, text in enumerate(texts) if text is not None]
        asked = [Asked(pictures[sample], str(texts[sample])) for sample in applies]
        replies = self._replies(asked) if asked else []
        scores: list[float | None] = [None] * len(texts)
        wrong = {}
        for sample, reply in zip(applies, replies, strict=True):
            try:
                scores[sample] = self._score(reply)
            except ValueError as error:
                scores[sample], wrong[sample] = math.nan, str(error)
        if wrong:
            self._tell(wrong, len(texts))
        return scores

    def _replies(self, asked: Sequence[Asked]) -> list[Reply]:
        """To each question, all with log-probabilities or all without."""
        if self.answer != "number":
            replies = self.server.with_probabilities(asked, self.fields)
            if replies is not None:
                return replies
            if self.answer == "yes_no":
                fix = "set answer=auto or answer=number, or ask a server that gives log-probabilities"
                raise RewardError(
                    f"{self.server.url} gives no log-probabilities, which answer=yes_no needs. Fix: {fix}"
                )
        low, high = (f"{end:g}" for end in self.scale)
        instruction = (
            f"Answer with one number from {low} to {high} and nothing else: {low} is the worst, {high} the best."
        )
        return self.server.replies(asked, instruction, {k: v for k, v in self.fields.items() if k != "top_logprobs"})

    def _score(self, reply: Reply) -> float:
        if reply.tokens is not None:
            return probability_of_yes(reply.text, reply.tokens)
        low, high = self.scale
        if reply.cut:
            raise ValueError(f"{shown(reply.text)} was cut off: raise max_tokens")
        return (number_in(reply.text, low, high) - low) / (high - low)

    def _tell(self, wrong: Mapping[int, str], count: int) -> None:
        """Names what was answered instead of a score; the samples are masked as failed."""
        told = "; ".join(f"sample {sample}: {why}" for sample, why in [*wrong.items()][:MOST_TOLD])
        more = ", …" if len(wrong) > MOST_TOLD else ""
        logger.warning("reward %r: %d of %d answers are no score: %s%s", self.name, len(wrong), count, told, more)


@dataclass(frozen=True)
class Asked:
    """A question: its pictures as data URLs, and its text."""

    pictures: tuple[str, ...]
    text: str

    def message(self, instruction: str) -> dict[str, Any]:
        """What the user says. Pictures come first, so that a server which remembers how a message began has them already when the
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
        tokens: each token's alternatives, with the token first: (text, log-probability); None where the server gave none.
    """

    text: str
    cut: bool
    tokens: Sequence[Sequence[tuple[str, float]]] | None


@dataclass(eq=False)
class Abilities:
    """What is known of a model on a server. `probabilities`: whether it gives log-probabilities; None before it was asked."""

    probabilities: bool | None = None


_abilities: weakref.WeakValueDictionary[tuple[str, str], Abilities] = weakref.WeakValueDictionary()


class ChatServer(Server):
    """A server of chat completions, and one of its models."""

    SMALLER = "concurrency or max_tokens"
    PATH = "the address that clients of OpenAI take, which ends in /v1"
    GOOD = "a chat completion"

    def __init__(self, url: str, timeout: float, retries: int, token_variable: str, concurrency: int, model: str):
        super().__init__(chat_address(url), timeout, retries, token_variable, concurrency)
        self.model = model
        # Shared by all who ask that model, so that what it lacks is found out, and told, once.
        self.abilities = _abilities.setdefault((self.url, model), Abilities())

    def with_probabilities(self, asked: Sequence[Asked], fields: Mapping[str, Any]) -> list[Reply] | None:
        """Replies with log-probabilities; None, which is logged once, where the server gives none."""
        if self.abilities.probabilities is False:
            return None
        instruction, fields = "Answer with one word: yes or no.", {**fields, "logprobs": True}
        if self.abilities.probabilities:
            return self.replies(asked, instruction, fields)
        try:
            first = self.replies(asked[:1], instruction, fields)
        except Refused as refusal:
            if "logprob" not in refusal.said.lower():
                raise
            return self._without(f"refuses them: {refusal.said[:SHOWN]!r}")
        if first[0].tokens is None:
            return self._without("gives none")
        self.abilities.probabilities = True
        return first + self.replies(asked[1:], instruction, fields)

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
                json.dumps({"model": self.model, "messages": [one.message(instruction)], **fields}).encode(),
                "one sample",
                most,
            )
            for one in asked
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
                f"{self.url} answered {text[:SHOWN]!r}, which is no chat completion. Fix: correct url: it needs {self.PATH}"
            ) from None

    def _remedy(self, status: int, target: str) -> str:
        if status in (400, 404, 422):
            return (
                f"read what it says: model={self.model!r} must be one that the server lists (GET …/models) and one that sees "
                f"pictures, and url {self.PATH}"
            )
        return super()._remedy(status, target)


# --- what is asked ----------------------------------------------------------------------------------------------------


def chat_address(url: str) -> str:
    """Where questions go, by the address that clients of OpenAI take."""
    base = url.rstrip("/")
    return base if base.endswith(CHAT) else base + CHAT


def check_question(question: str) -> str:
    """A question that can be asked. Raises ValueError for an empty one, and for a placeholder that nothing fills."""
    if not question.strip():
        raise ValueError("the question is empty. Fix: for example Does this picture show {prompt}?")
    for match in PLACEHOLDER.finditer(question):
        if match[1] != "prompt" and not match[1].startswith("metadata."):
            raise ValueError(
                f"{match[0]} is no placeholder. Fix: {{prompt}}, or {{metadata.KEY}} for what is beside it"
            )
    return question


def parse_questions(text: str) -> list[tuple[str, str]]:
    """(label, question) of each line that is not empty; a line may begin with its label, as in `quality: Is it sharp?`.

    Raises:
        ValueError: no line, or one that cannot be asked, or two with the same label.
    """
    found = []
    for line in filter(str.strip, text.splitlines()):
        label = LABEL.match(line)
        found.append((label[1] if label else "", check_question(line[label.end() :] if label else line.strip())))
    labels = [label for label, _ in found if label]
    if not found:
        check_question("")
    if len(set(labels)) < len(labels):
        raise ValueError(f"two questions share a label: {', '.join(labels)}. Fix: give each line another")
    return found


def filled(question: str, prompt: str) -> str | None:
    """The question about that prompt; None where the prompt lacks what the question asks for, so that it does not apply.

    Placeholders are replaced in one go, so braces within a prompt mean nothing.
    """
    metadata = metadata_of(prompt)
    names = [match[1].partition(".")[2] for match in PLACEHOLDER.finditer(question) if match[1] != "prompt"]
    if any(metadata.get(name) in (None, "", [], {}) for name in names):
        return None
    return PLACEHOLDER.sub(
        lambda match: str(prompt) if match[1] == "prompt" else _said(metadata[match[1][9:]]), question
    )


def _said(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def parse_scale(text: str) -> tuple[float, float]:
    """`"0, 10"` to (0.0, 10.0). Raises ValueError for anything else."""
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        low, high = math.nan, math.nan
    if not (low < high and math.isfinite(high - low)):
        raise ValueError(f"{text!r} is no range. Fix: two numbers, the lower first, as in 0, 10")
    return low, high


def parse_extra(text: str) -> dict[str, Any]:
    """More fields of a request. Raises ValueError for what is no JSON object, and for fields that are the reward's own."""
    try:
        extra = json.loads(text) if text.strip() else {}
    except ValueError:
        extra = None
    if not isinstance(extra, dict) or (own := [name for name in OURS if name in extra]):
        told = f"sets {', '.join(own)}" if isinstance(extra, dict) else "is no JSON object"
        fix = 'other fields, as in {"chat_template_kwargs": {"enable_thinking": false}}'
        raise ValueError(f"{text[:SHOWN]!r} {told}. Fix: {fix}")
    return extra


def data_urls(batch: Tensor, frames: int) -> list[tuple[str, ...]]:
    """For each sample its picture, or `frames` of its video, evenly spread with both ends, as PNG in data URLs."""
    if batch.ndim == 5:
        total = batch.shape[1]
        batch = batch[:, torch.linspace(0, total - 1, min(frames, total)).round().long()]
    else:
        batch = batch[:, None]
    clips = media.eight_bits(batch).numpy()
    return [tuple("data:image/png;base64," + base64.b64encode(png(frame)).decode() for frame in clip) for clip in clips]


# --- what was answered ------------------------------------------------------------------------------------------------


def shown(text: str) -> str:
    return repr(text[:SHOWN]) if text.strip() else "nothing"


def number_in(text: str, low: float, high: float) -> float:
    """The number that the whole text is, in [low, high]; `7/10` where `high` is 10.

    Raises:
        ValueError: prose, nothing, several numbers, or one outside.
    """
    match = NUMBER.fullmatch(text.strip())
    if not match or (match[2] and float(match[2]) != high):
        raise ValueError(f"it answered {shown(text)}, which is no number from {low:g} to {high:g}")
    if not low <= (number := float(match[1])) <= high:
        raise ValueError(f"it answered {shown(text)}, outside {low:g} to {high:g}")
    return number


def alternatives(logprobs: object) -> list[list[tuple[str, float]]] | None:
    """Of the `logprobs` of a choice, each token's alternatives with the token first; None where there are none.

    A token without alternatives says nothing of how likely another one was, so that counts as none.
    """
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    if (
        not isinstance(content, list)
        or not content
        or not any(len(token.get("top_logprobs") or []) > 1 for token in content)
    ):
        return None
    found = []
    for token in content:
        listed = {one["token"]: float(one["logprob"]) for one in token.get("top_logprobs") or []}
        found.append(
            [(token["token"], float(token["logprob"])), *((k, v) for k, v in listed.items() if k != token["token"])]
        )
    return found


def probability_of_yes(text: str, tokens: Iterable[Sequence[tuple[str, float]]]) -> float:
    """P(yes) / (P(yes) + P(no)) at the first token that is more than a space or a mark: the sums over all ways to write them.

    Raises:
        ValueError: the text does not begin with yes or no, or its first token is neither.
    """
    first = WORD.match(text)
    if not first or first[1].casefold() not in (YES, NO):
        raise ValueError(f"it answered {shown(text)}, which begins with neither yes nor no")
    listed = next((listed for listed in tokens if listed[0][0].strip(AROUND)), ())
    mass = {
        meant: sum(math.exp(min(logprob, 0.0)) for token, logprob in listed if _plain(token) == meant)
        for meant in (YES, NO)
    }
    if not listed or _plain(listed[0][0]) not in mass or not (total := mass[YES] + mass[NO]) > 0:
        raise ValueError(f"it answered {shown(text)}, and the probability of its first word is not known")
    return mass[YES] / total


def _plain(token: str) -> str:
    return token.strip(AROUND).casefold()
