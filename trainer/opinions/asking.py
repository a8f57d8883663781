"""A folder of votes at work: groups of pictures are asked about, and what was said of them before is not asked again."""

from __future__ import annotations

import functools
import hashlib
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...host import files
from ...host.questions import Question, desk
from ..families import given
from ..pictures import media
from ..rewards.server import png
from . import votes
from .fit import Encoder
from .learner import Accuracy, Learner
from .store import Store
from .votes import FOLDER, WITHDRAWN, Answer, Vote

Score = float | None


@dataclass(frozen=True)
class Group:
    """The pictures of one prompt. `members` are the samples that have each of them: samples that are equal are shown once.
    `source` is the picture that was edited; empty if no picture was."""

    prompt: str
    pictures: tuple[str, ...]
    members: tuple[tuple[int, ...], ...]
    source: str = ""


class VoteFolder:
    """The store of a folder of votes, and the pictures beside it.

    Args:
        folder: made at the first vote.
        fps: of the mp4 files that videos are kept as.
        encoder: of a head that learns from the votes, so that it scores what it is sure of; empty: everything is asked.
    """

    def __init__(self, folder: Path, fps: float = 16.0, encoder: str = ""):
        self.folder, self.fps, self.encoder = folder, fps, encoder
        self._writing = threading.Lock()
        self._last: dict[str, Vote] = {}  # of each question's id, whoever asked it: what the next answer replaces

    @functools.cached_property
    def store(self) -> Store:
        return votes.of_folder(self.folder)

    @functools.cached_property
    def learner(self) -> Learner | None:
        return Learner(Encoder(self.encoder), self.folder) if self.encoder else None

    def accuracy(self) -> Accuracy | None:
        """How many of all votes so far the head foretold; None if none learns."""
        if self.learner is None:
            return None
        with self.learner.busy:
            self.learner.learn(votes.read(self.store))
            return self.learner.accuracy

    def scores(
        self,
        samples: Sequence[np.ndarray | None],
        prompts: Sequence[str],
        groups: Sequence[int],
        fps: float | None = None,
        sources: Sequence[np.ndarray | None] = (),
    ) -> list[Score]:
        """[B] scores, from what was said of these groups' pictures before, or else from what is said now.

        `samples`: B pictures [H, W, 3] or videos [F, H, W, 3] of uint8; None for what cannot be shown.
        `groups`: which of them are of one group.
        `fps`: of these videos; None: the folder's.
        `sources`: the B pictures that were edited, if the prompts do not name them here.

        Returns:
            NaN for a sample that cannot be shown; None in a group that was not ranked, and for a picture that no vote is about.

        Raises:
            Damaged, Unwritable: see `votes.of_folder`.
        """
        own = [
            next((pixels.numpy() for pixels in given.sources(prompt)[:1]), None) for prompt in prompts if not sources
        ]
        shown = dict(zip(groups, sources or own, strict=True))
        asking = self._groups(samples, prompts, groups, fps or self.fps, shown)
        answers = votes.read(self.store)
        questions = self._questions(
            [group for group in asking if len(group.pictures) > 1 and not self._is_answered(group, answers)], answers
        )
        if questions:
            desk.ask(questions)
            answers = votes.read(self.store)
        scores: list[Score] = [math.nan if sample is None else None for sample in samples]
        for group in asking:
            for score, members in zip(self._scores(group, answers), group.members, strict=True):
                for member in members:
                    scores[member] = score
        return scores

    def _groups(
        self,
        samples: Sequence[np.ndarray | None],
        prompts: Sequence[str],
        groups: Sequence[int],
        fps: float,
        sources: Mapping[int, np.ndarray | None],
    ) -> list[Group]:
        """The groups in their order, with their pictures and those that were edited on disk."""
        members: dict[int, dict[str, list[int]]] = {group: {} for group in groups}
        prompt_of = dict(zip(groups, prompts, strict=True))
        for sample, (pixels, group) in enumerate(zip(samples, groups, strict=True)):
            if pixels is not None:
                members[group].setdefault(self._kept(pixels, fps), []).append(sample)
        return [
            Group(
                str(prompt_of[group]),
                tuple(of),
                tuple(map(tuple, of.values())),
                "" if (source := sources[group]) is None else self._kept(source, fps),
            )
            for group, of in members.items()
        ]

    def _is_answered(self, group: Group, said: Sequence[Vote]) -> bool:
        """Whether the standing votes cover every picture of a group; if a head learns from the votes, one vote is enough."""
        shown = {picture for vote in votes.about(said, group.prompt, group.pictures) for picture in vote.pictures}
        return bool(shown) if self.encoder else shown == set(group.pictures)

    def _kept(self, pixels: np.ndarray, fps: float) -> str:
        """The path of a picture, which is written where it is not there."""
        name = votes.picture_path(pixels)
        path = self.folder / name
        if not files.is_plain_file(path):
            (self.folder / FOLDER).mkdir(parents=True, exist_ok=True)
            files.write_bytes(path, media.mp4(pixels, fps) if pixels.ndim == 4 else png(pixels))
        return name

    def _questions(self, groups: Sequence[Group], said: Sequence[Vote]) -> list[Question]:
        """Questions about groups without votes. Once enough is learned: only about groups that the learner is not sure of, with
        the few pictures whose order tells it most."""
        learner = self.learner
        if learner is None:
            return [self._question(group, group.pictures) for group in groups]
        with learner.busy:
            learner.learn(said)
            judgements = [learner.judgement_of(group.pictures) for group in groups]
            unsure = [group for group, judged in zip(groups, judgements, strict=True) if not (judged and judged.sure)]
            shown = [learner.shown_of(group.pictures) for group in unsure]
            learned = learner.report(len(groups) - len(unsure), len(groups))
        return [self._question(group, of, learned) for group, of in zip(unsure, shown, strict=True)]

    def _question(self, group: Group, pictures: tuple[str, ...], learned: str = "") -> Question:
        prompt = group.prompt
        # A prompt out of JSON may hold half a character, which is no UTF-8.
        content = "\n".join([prompt, *sorted(pictures)]).encode(errors="surrogatepass")
        question_id = hashlib.sha256(content).hexdigest()[:16]
        return Question(
            id=question_id,
            text=prompt,
            pictures=[self.folder / picture for picture in pictures],
            keep=functools.partial(self._keep, question_id, prompt, pictures),
            about={"learned": learned},
            source=self.folder / group.source if group.source else None,
        )

    def _keep(self, question_id: str, prompt: str, pictures: tuple[str, ...], answer: Any) -> None:
        """Stores an answer to a question; it replaces the answer before, even of an earlier request."""
        parsed = Answer(WITHDRAWN) if answer is None else votes.parse_answer(answer, len(pictures))
        if answer is not None and parsed.kind == WITHDRAWN:
            raise ValueError(f"has the kind {WITHDRAWN!r}, by which nothing is said")
        with self._writing:
            before = self._last.get(question_id)
            if answer is None and (before is None or before.answer.kind == WITHDRAWN):
                raise ValueError("takes back a vote that was not given")
            vote = Vote(prompt, pictures, parsed, before.id if before else None)
            votes.append(self.store, vote)
            self._last[question_id] = vote

    def _scores(self, group: Group, said: Sequence[Vote]) -> Sequence[Score]:
        """Scores by the votes on the whole group; without one by the learned head, unless the pictures shown were not judged.
        None for each picture of a group that was not answered and of which the head is not sure."""
        about, learner = votes.about(said, group.prompt, group.pictures), self.learner
        whole = any(set(vote.pictures) == set(group.pictures) for vote in about)
        masked = about and not any(vote.pairs for vote in about)
        if learner is None or whole or masked or len(group.pictures) < 2:
            return votes.group_scores(about, group.pictures)
        with learner.busy:
            learner.learn(said)
            judgement = learner.judgement_of(group.pictures)
            if judgement is None or not (about or judgement.sure):
                return [None] * len(group.pictures)
            return judgement.scores


def as_pictures(samples) -> list[np.ndarray | None]:
    """uint8 pictures or videos of a tensor [B, …] in [0, 1]; None for one with a value that is not a number."""
    finite = samples.isfinite().flatten(1).all(1).tolist()
    return [pixels if good else None for pixels, good in zip(media.eight_bits(samples).numpy(), finite, strict=True)]
