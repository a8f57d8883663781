"""A vision-language model that ComfyUI loaded as judge: about each picture by itself, or about two of a group at a time."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...host import stopping
from ...host.recent import Recent
from ..networks import RewardError
from ..networks.answers import Answers, Asked, Reading
from .base import GroupReward, Reward
from .judge import LEAST_KNOWN, MOST_TOLD, NO, NO_QUESTION, YES, check_question, filled, shown
from .sources import Sources
from .templates import GRADES, SOURCE, TEMPLATES, WRITTEN, Template, lowest_written

if TYPE_CHECKING:
    from comfy.sd import CLIP

logger = logging.getLogger(__name__)

CHOICES: Mapping[str, tuple[str, ...]] = {
    "yes_no": (YES, NO),
    "grade": GRADES,
    "which": ("1", "2"),
    "share": ("0", "1"),
}
DIGITS = tuple("0123456789")
FOLLOWED = 0.01  # of the probability: what a less likely digit is followed by is not asked
ENDINGS = {
    "yes_no": "Answer with one word: yes or no.",
    "grade": "Answer with one number from 1 to 5 and nothing else.",
    "which": "Answer with Picture 1 or Picture 2 and nothing else.",
}
REMEMBERED = 10_000  # scores of pictures, so that a stopped Score Images goes on where it was
MOST_OPPONENTS = 8  # of a picture, in groups of more than nine
LONGEST_TOLD = 24  # tokens of an answer that an error shows


class ClipJudge(Reward):
    """One question about each sample, answered by a CLIP object in one forward pass.

    Args:
        judge: a CLIP as ComfyUI's loaders give it; what cannot answer is refused.
        question: what it is asked: {prompt}, {metadata.KEY}, and {source}, the picture that was edited. An empty one is an error
            only when it would be asked.
        answer: yes_no, grade, or auto, which is yes_no.
        template: one of TEMPLATES in place of question and answer.
        source: pictures [N, H, W, 3] that were edited: one for all samples, or none; then a prompt's `image` is it.
        batch_size: questions to one forward pass; 0: all that have one size.
        frames: of a video, evenly spread, that it sees.
        offload: between two uses the model waits in main memory.
    """

    asks_comfyui = True

    def __init__(
        self,
        name: str = "vlm_judge",
        *,
        judge: CLIP,
        question: str = "",
        answer: str = "auto",
        template: str = "",
        source: Tensor | None = None,
        batch_size: int = 8,
        frames: int = 4,
        offload: bool = False,
        groups_only: bool = False,
        **use,
    ):
        super().__init__(name, **use)
        self.answers = Answers(judge)
        self.template = TEMPLATES[template] if template else self._own(question, answer)
        self.meaning = self.template.answer
        self.batch_size, self.frames, self.offload = batch_size, frames, offload
        self.groups_only = groups_only or self.groups_only
        self.sources = Sources(source)
        self._known: Recent[bytes, float] = Recent(REMEMBERED)
        self.reads_prompt = "{prompt}" in self.template.text
        self._check_template()

    def _own(self, question: str, answer: str) -> Template:
        if answer == "number":
            raise ValueError("answer='number' needs a server. Fix: answer=grade, whose grades are 1 to 5")
        answer = "yes_no" if answer == "auto" else answer
        if question:
            check_question(question)
            question += "\n" + ENDINGS[answer]
        return Template(question, answer, sees_source=SOURCE in question)

    def _check_template(self) -> None:
        if self.template.compares:
            raise ValueError(
                "its question is about two pictures. Fix: use it where the pictures of a group are compared"
            )

    def score(self, images: Tensor, prompts: Sequence[str]) -> list[float | None]:
        return self._column([(image,) for image in images], prompts)

    def score_videos(self, videos: Tensor, prompts: Sequence[str]) -> list[float | None]:
        count = min(self.frames, videos.shape[1])
        frames = videos[:, torch.linspace(0, videos.shape[1] - 1, count).round().long()]
        return self._column([tuple(video) for video in frames], prompts)

    def rest(self) -> None:
        if self.offload:
            self.answers.leave()

    def _column(self, samples: Sequence[tuple[Tensor, ...]], prompts: Sequence[str]) -> list[float | None]:
        questions = {n: self._asked(s, p) for n, (s, p) in enumerate(zip(samples, prompts, strict=True))}
        applies = {number: question for number, question in questions.items() if question is not None}
        values = self._values(list(applies.values()))
        scores = dict(zip(applies, values, strict=True))
        return [scores.get(number) for number in range(len(samples))]

    def _asked(self, pictures: tuple[Tensor, ...], prompt: str) -> Asked | None:
        """The question about that sample; None if the prompt lacks what the question asks for."""
        if not self.template.text:
            raise RewardError(NO_QUESTION)
        text = filled(self.template.text, prompt)
        if text is None:
            return None
        many = len(pictures) > 1 and not self.template.compares
        frames = f"These are {len(pictures)} frames of one video, in their order.\n" if many else ""
        before = [self.sources.of(prompt)] if self.template.sees_source else []
        return Asked((*before, *pictures), frames + text, self.template.begun)

    # -- numbers of answers ----------------------------------------------------------------------------------------------

    def _values(self, asked: Sequence[Asked]) -> list[float]:
        """In [0, 1]; NaN for a question that is not answered. What was known before is not asked again.

        Raises:
            RewardError: none is answered.
        """
        keys = [_key(question) for question in asked]
        new = [number for number, key in enumerate(keys) if key not in self._known]
        step = stopping.progress(len(new))
        wrong: dict[int, Reading | str] = {}
        for part in self._read([asked[number] for number in new]):
            for number, value in part.items():
                if isinstance(value, Reading | str):
                    wrong[new[number]] = value
                else:
                    self._known[keys[new[number]]] = value
            for _ in part:  # which may stop, and then what the whole pass answered is known
                step()
        if wrong:
            self._tell(wrong, asked)
        values = [self._known.get(key, math.nan) for key in keys]
        self._known.trim()
        return values

    def _read(self, asked: Sequence[Asked]) -> Iterator[dict[int, float | Reading | str]]:
        """{number of the question: its value, or what its answer begins with or is instead}, as the forward passes end."""
        kind = self.template.answer
        if kind == WRITTEN:
            for number, question in enumerate(asked):
                written = self.answers.write(question)
                yield {number: written if (value := lowest_written(written)) is None else value}
            return
        if kind in ("yes_no", "which"):
            for part in self.answers.ask(asked, CHOICES[kind], self.batch_size):
                yield {
                    number: shares(reading)[0] if is_answer(reading) else reading for number, reading in part.items()
                }
            return
        lowest, highest = int(CHOICES[kind][0]), int(CHOICES[kind][-1])
        size = self.batch_size or len(asked)
        for start in range(0, len(asked), size):
            values = enumerate(self._expected(asked[start : start + size], CHOICES[kind]), start)
            yield {
                number: (value - lowest) / (highest - lowest) if isinstance(value, float) else value
                for number, value in values
            }

    def _expected(self, asked: Sequence[Asked], digits: Sequence[str], place: int = 0) -> list[float | Reading]:
        """The expected number Σ P(digit)·(digit + what is expected behind it), as deep as the template has decimals. The highest
        of the first digits has none, and what is less likely than FOLLOWED is not followed."""
        values: dict[int, float | Reading] = {}
        owners, likely, deeper = [], [], []
        for part in self.answers.ask(asked, digits, self.batch_size):
            for number, reading in part.items():
                if not is_answer(reading):
                    values[number] = reading
                    continue
                chances = dict(zip(digits, shares(reading), strict=True))
                values[number] = sum(chance * int(digit) for digit, chance in chances.items()) / 10**place
                for digit, chance in chances.items() if place < self.template.decimals else ():
                    if chance >= FOLLOWED and (place or digit != digits[-1]):
                        owners.append(number)
                        likely.append(chance)
                        point = "" if place else "."
                        deeper.append(replace(asked[number], begun=f"{asked[number].begun}{digit}{point}"))
        behind = self._expected(deeper, DIGITS, place + 1) if deeper else []
        for number, chance, value in zip(owners, likely, behind, strict=True):
            before = values[number]
            if isinstance(value, float) and isinstance(before, float):
                values[number] = before + chance * value
        return [values[number] for number in range(len(asked))]

    def _tell(self, wrong: Mapping[int, Reading | str], asked: Sequence[Asked]) -> None:
        """Says what is answered instead; the samples are masked as failed.

        Raises:
            RewardError: no question is answered.
        """
        choices = " or ".join(CHOICES.get(self.template.answer, ()))
        lines = []
        for number, reading in list(wrong.items())[:MOST_TOLD]:
            if isinstance(reading, str):
                lines.append(f"question {number}: it answered {shown(reading)}, which has no scores")
                continue
            total = sum(reading.mass)
            if math.isnan(total):
                lines.append(f"question {number}: the model's numbers are NaN")
            else:
                text = self.answers.write(asked[number], LONGEST_TOLD)
                lines.append(f"question {number}: {choices} is only {total:.2f} probable, and it would answer {text!r}")
        more = ", …" if len(wrong) > MOST_TOLD else ""
        message = f"{len(wrong)} of {len(asked)} questions are not answered: {'; '.join(lines)}{more}"
        if len(wrong) == len(asked):
            raise RewardError(
                f"{message}. Fix: ask what can be answered so, or load a model that was trained to answer, not a base model"
            )
        logger.warning("reward %r: %s", self.name, message)


class PairJudge(GroupReward, ClipJudge):
    """The share of its comparisons that a picture wins within its group: P(it is the better one), in both orders, averaged.

    In groups of up to nine each picture meets all others. In larger ones each meets MOST_OPPONENTS, as many of those before it as
    behind it, in the order of their seeds. A group of one has no score.
    """

    groups_only = True  # the mean of a group is always a half, which says nothing of an evaluation

    def _own(self, question: str, answer: str) -> Template:
        template = super()._own(question, "which" if answer == "auto" else answer)
        if template.answer != "which":
            raise ValueError(f"answer={answer!r} is about one picture. Fix: answer=auto where pictures are compared")
        return replace(template, begun="Picture ")

    def _check_template(self) -> None:
        if not self.template.compares:
            raise ValueError(
                "its question is about one picture. Fix: switch compare off, or choose a template that compares"
            )

    def score_groups(self, samples: Tensor, prompts: Sequence[str], groups: Sequence[int]) -> list[float | None]:
        if samples.ndim == 5:
            raise RewardError("it compares pictures, and these are videos. Fix: switch compare off")
        members: dict[int, list[int]] = {}
        for number, group in enumerate(groups):
            members.setdefault(group, []).append(number)
        pairs = [pair for numbers in members.values() for pair in opponents(numbers)]
        orders = [order for first, other in pairs for order in ((first, other), (other, first))]
        pictures = list(samples)  # each once, so that it is looked at once
        questions = {order: self._asked(tuple(pictures[n] for n in order), prompts[order[0]]) for order in orders}
        applies = {order: first for order, first in questions.items() if first is not None}
        chance = dict(zip(applies, self._values(list(applies.values())), strict=True))
        won: dict[int, list[float]] = {}
        for first, other in pairs:
            if (first, other) in chance:
                wins = (chance[first, other] + 1 - chance[other, first]) / 2
                won.setdefault(first, []).append(wins)
                won.setdefault(other, []).append(1 - wins)
        return [_mean(won[number]) if number in won else None for number in range(len(samples))]


def opponents(members: Sequence[int]) -> list[tuple[int, int]]:
    """Who meets whom: all pairs of up to nine members, else each one and the next MOST_OPPONENTS / 2 in a circle."""
    count = len(members)
    if count <= MOST_OPPONENTS + 1:
        return list(combinations(members, 2))
    steps = range(1, MOST_OPPONENTS // 2 + 1)
    return [(members[place], members[(place + step) % count]) for place in range(count) for step in steps]


def _mean(values: Sequence[float]) -> float:
    """The mean of those comparisons that were answered; NaN if none was."""
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def is_answer(reading: Reading) -> bool:
    """Whether the choices have most of the probability."""
    return sum(reading.mass) >= LEAST_KNOWN


def shares(reading: Reading) -> list[float]:
    """The probability of each choice, given that it is one of them."""
    return [mass / sum(reading.mass) for mass in reading.mass]


def _key(asked: Asked) -> bytes:
    digest = hashlib.blake2b(f"{asked.text}\0{asked.begun}".encode(), digest_size=16)
    for picture in asked.pictures:
        digest.update(str(tuple(picture.shape)).encode())
        digest.update(picture.contiguous().cpu().numpy().tobytes())
    return digest.digest()
