"""A vision-language model as judge, asked by any server that speaks OpenAI's chat completions.

Each sample is one question: its picture (of a video, some frames) and a text. Where the server gives log-probabilities, the score
is how likely the answer is to begin with yes rather than no; else a number in a stated range, brought to [0, 1].
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ...host import json_files
from ..networks import RewardError
from ..types import JUDGE_ANSWERS, metadata_of
from .chat import Asked, ChatServer, Reply, data_urls
from .server import SHOWN, ServerReward, check_token_variable, check_url, shared

logger = logging.getLogger(__name__)

ALTERNATIVES = 20  # to a token, whose log-probabilities are asked for: as many as OpenAI, vLLM and Ollama give
OURS = ("model", "messages", "max_tokens", "logprobs", "stream", "n")  # fields of a request that `extra` cannot set
NO_QUESTION = "it has no question. Fix: write one more line into questions, or disconnect that output"
MOST_TOLD = 3  # answers without a score that one line of the log shows

PLACEHOLDER = re.compile(r"\{(prompt|source|metadata\.[\w.-]+)\}", re.ASCII)
MEANT_AS_ONE = re.compile(r"\{[\w.\s-]*\}")  # what somebody may have taken for one
LABEL = re.compile(r"\s*([A-Za-z]\w*):\s+(?=\S)", re.ASCII)
NUMBER = re.compile(r"([+-]?\d+(?:\.\d+)?)(?:\s*/\s*(\d+(?:\.\d+)?))?\.?", re.ASCII)
WORD = re.compile(r"[\W_]*([^\W_]+)")
YES, NO = "yes", "no"
SEEN_AS = "the first picture"  # what {source} stands for: it comes before the others
GRADE = "1, 5"
LEAST_KNOWN = 0.5  # of P(yes) + P(no): below it, most of the probability is on neither
# Spaces as tokenizers write them, quotation marks and Markdown, around a token or instead of one.
AROUND = " \t\r\n\u0120\u010a\u2581\"'`*_.,:;!"


class VLMJudge(ServerReward):
    """One question about each sample.

    Args:
        url: the server's address, as clients of OpenAI take it: it ends in /v1.
        model: the model's name on that server.
        question: what it is asked. {prompt} stands for the prompt, {metadata.KEY} for what the prompt says beside its text. An
            empty one is an error only when it would be asked.
        answer: one of JUDGE_ANSWERS. auto: yes_no where the server gives log-probabilities, else number. grade: a number from 1
            to 5.
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
        if answer not in JUDGE_ANSWERS:
            raise ValueError(f"answer={answer!r} is unknown. Fix: one of {', '.join(JUDGE_ANSWERS)}")
        self.meaning = "" if answer == "auto" else answer
        if answer == "grade":
            answer, scale = "number", GRADE
        self.question = check_question(question) if question else ""
        self.answer, self.scale, self.frames = answer, parse_scale(scale), frames
        token_variable = check_token_variable(token_variable)
        self.server = shared(ChatServer, check_url(url), timeout, retries, token_variable, concurrency, model)
        self.fields = {"max_tokens": max_tokens, "temperature": 0, "top_logprobs": ALTERNATIVES} | parse_extra(extra)

    def score(self, images: Tensor, prompts: Sequence[str]) -> list[float | None]:
        return self._column(images, prompts)

    def score_videos(self, videos: Tensor, prompts: Sequence[str]) -> list[float | None]:
        return self._column(videos, prompts)

    def _column(self, batch: Tensor, prompts: Sequence[str]) -> list[float | None]:
        if not self.question:
            raise RewardError(NO_QUESTION)
        texts = [filled(self.question, prompt) for prompt in prompts]
        pictures = self.server.once(batch, ("pictures", self.frames), lambda: data_urls(batch, self.frames))
        applies = [sample for sample, text in enumerate(texts) if text is not None]
        questions = [Asked(pictures[sample], str(texts[sample])) for sample in applies]
        replies, score_of = self._replies(questions) if questions else ([], self._number)
        scores: list[float | None] = [None] * len(texts)
        wrong = {}
        for sample, reply in zip(applies, replies, strict=True):
            try:
                scores[sample] = score_of(reply)
            except ValueError as error:
                scores[sample], wrong[sample] = math.nan, str(error)
        if wrong:
            self._tell(wrong, len(texts))
        return scores

    def _replies(self, asked: Sequence[Asked]) -> tuple[list[Reply], Callable[[Reply], float]]:
        """One to each question, and what makes a score of it."""
        if self.answer != "number":
            replies = self.server.with_probabilities(asked, self.fields)
            if replies is not None:
                self.meaning = "yes_no"
                return replies, probability_of_yes
            if self.answer == "yes_no":
                fix = "set answer=auto or answer=number, or ask a server that gives log-probabilities"
                raise RewardError(
                    f"{self.server.url} gives no log-probabilities, which answer=yes_no needs. Fix: {fix}"
                )
        fields = {name: value for name, value in self.fields.items() if name != "top_logprobs"}
        return self.server.replies(asked, number_instruction(*self.scale), fields), self._number

    def _number(self, reply: Reply) -> float:
        low, high = self.scale
        if reply.cut:
            raise ValueError(f"it answered {shown(reply.text)}, and was cut off by max_tokens")
        return (number_in(reply.text, low, high) - low) / (high - low)

    def _tell(self, wrong: Mapping[int, str], count: int) -> None:
        """Names what was answered instead of a score; the samples are masked as failed."""
        text = "; ".join(f"sample {sample}: {why}" for sample, why in [*wrong.items()][:MOST_TOLD])
        more = ", …" if len(wrong) > MOST_TOLD else ""
        logger.warning("reward %r: %d of %d answers are not scores: %s%s", self.name, len(wrong), count, text, more)


# --- what is asked ----------------------------------------------------------------------------------------------------


def number_instruction(low: float, high: float) -> str:
    """The instruction behind a question that a number shall answer."""
    return (
        f"Answer with one number from {low:g} to {high:g} and nothing else. "
        f"{low:g} means not at all, {high:g} means fully."
    )


def check_question(question: str) -> str:
    """A question that can be asked. Raises ValueError for an empty one, and for a placeholder that nothing fills."""
    if not question.strip():
        raise ValueError("the question is empty. Fix: for example Does this picture show {prompt}?")
    for match in MEANT_AS_ONE.finditer(question):
        if not PLACEHOLDER.fullmatch(match[0]):
            raise ValueError(
                f"{match[0]} is not a placeholder. Fix: {{prompt}}, or {{metadata.KEY}} for what is beside it, or {{source}} "
                "for the picture that was edited"
            )
    return question


def parse_questions(text: str, most: int) -> list[str]:
    """The question of each line that is not empty, without the label that it may begin with, as in `quality: Is it sharp?`.

    Raises:
        ValueError: no line, more than `most`, one that cannot be asked, or two with the same label.
    """
    questions = [check_question(question) for _, question in _lines(text)] or [check_question("")]
    labels = [label for label, _ in _lines(text) if label]
    if len(questions) > most:
        raise ValueError(f"{len(questions)} questions are too many. Fix: at most {most} lines; more on a second node")
    if len(set(labels)) < len(labels):
        raise ValueError(f"two questions share a label: {', '.join(labels)}. Fix: give each line another")
    return questions


def names_of(text: str, name: str, count: int) -> list[str]:
    """The names of `count` rewards: `name` with the label of each line, or its number; `name` alone of a single question."""
    labels = [label for label, _ in _lines(text)]
    if labels == [""]:
        return [name, *(f"{name}_{number}" for number in range(2, count + 1))]
    labels += [""] * (count - len(labels))
    return [f"{name}_{label or number}" for number, label in enumerate(labels[:count], 1)]


def _lines(text: str) -> list[tuple[str, str]]:
    """(label, question) of each line that is not empty."""
    matches = [(LABEL.match(line), line) for line in text.splitlines() if line.strip()]
    return [(match[1] if match else "", line[match.end() if match else 0 :].strip()) for match, line in matches]


def filled(question: str, prompt: str) -> str | None:
    """The question about that prompt; None if the prompt lacks what the question asks for, so that it does not apply.

    Placeholders are replaced in one go, so braces within a prompt mean nothing.
    """
    metadata = metadata_of(prompt)
    names = [
        match[1].partition(".")[2] for match in PLACEHOLDER.finditer(question) if match[1] not in ("prompt", "source")
    ]
    if any(metadata.get(name) in (None, "", [], {}) for name in names):
        return None
    values = {"prompt": str(prompt), "source": SEEN_AS}
    for name, value in ((name, metadata[name]) for name in names):
        values[f"metadata.{name}"] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return PLACEHOLDER.sub(lambda match: values[match[1]], question)


def parse_scale(text: str) -> tuple[float, float]:
    """`"0, 10"` to (0.0, 10.0). Raises ValueError for anything else."""
    try:
        low, high = map(float, text.split(","))
    except ValueError:
        low, high = math.nan, math.nan
    if not (low < high and math.isfinite(high - low)):
        raise ValueError(f"{text!r} is not a range. Fix: two numbers, the lower first, as in 0, 10")
    return low, high


def parse_extra(text: str) -> dict[str, Any]:
    """More fields of a request. Raises ValueError for what is not a JSON object, and for fields that are the reward's own."""
    try:
        extra = json_files.parse(text) if text.strip() else {}
    except ValueError:
        extra = None
    if not isinstance(extra, dict) or (own := [name for name in OURS if name in extra]):
        problem = f"sets {', '.join(own)}" if isinstance(extra, dict) else "is not a JSON object"
        fix = 'other fields, as in {"chat_template_kwargs": {"enable_thinking": false}}'
        raise ValueError(f"{text[:SHOWN]!r} {problem}. Fix: {fix}")
    return extra


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
        raise ValueError(f"it answered {shown(text)}, which is not a number from {low:g} to {high:g}")
    if not low <= (number := float(match[1])) <= high:
        raise ValueError(f"it answered {shown(text)}, outside {low:g} to {high:g}")
    return number


def probability_of_yes(reply: Reply) -> float:
    """P(yes) / (P(yes) + P(no)) at the first token that is more than a space or a mark: the sums over all ways to write them.

    Raises:
        ValueError: the text does not begin with yes or no, or its first token is neither.
    """
    first = WORD.match(reply.text)
    if not first or first[1].casefold() not in (YES, NO):
        raise ValueError(f"it answered {shown(reply.text)}, which begins with neither yes nor no")
    listed = next((listed for listed in reply.tokens or () if listed[0][0].strip(AROUND)), ())
    mass = {
        answer: sum(math.exp(min(logprob, 0.0)) for token, logprob in listed if _plain(token) == answer)
        for answer in (YES, NO)
    }
    if not listed or _plain(listed[0][0]) not in mass or not (total := mass[YES] + mass[NO]) > 0:
        raise ValueError(f"it answered {shown(reply.text)}, and the probability of its first word is not known")
    if total < LEAST_KNOWN:
        raise ValueError(f"it answered {shown(reply.text)}, and yes and no together are only {total:.2f} probable")
    return mass[YES] / total


def _plain(token: str) -> str:
    return token.strip(AROUND).casefold()
