"""A folder of votes at work: groups of pictures are asked about, and what was said of them before is not asked again."""

from __future__ import annotations

import hashlib
import io
import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....host import files
from ....host.questions import Question, desk
from ...pictures import media
from . import votes
from .votes import FILE, FOLDER, Answer, Vote

if TYPE_CHECKING:
    import numpy as np

logger = logging.getLogger(__name__)

Score = float | None


@dataclass(frozen=True)
class Group:
    """The pictures of one prompt. `members` are the samples that have each of them: samples that are equal are shown once."""

    prompt: str
    pictures: tuple[str, ...]
    members: tuple[tuple[int, ...], ...]

    @property
    def id(self) -> str:
        text = "\n".join([self.prompt, *sorted(self.pictures)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def is_of(self, vote: Vote) -> bool:
        return vote.prompt == self.prompt and set(vote.pictures) == set(self.pictures)


class VoteFolder:
    """`votes.jsonl` and the pictures beside it.

    Args:
        folder: made at the first vote.
        fps: of the mp4 files that videos are kept as.
    """

    def __init__(self, folder: Path, fps: float = 16.0):
        self.folder, self.fps = folder, fps
        self._writing = threading.Lock()

    @property
    def file(self) -> Path:
        return self.folder / FILE

    def scores(
        self, samples: Sequence[np.ndarray | None], prompts: Sequence[str], groups: Sequence[int]
    ) -> list[Score]:
        """[B] scores, from what was said of these groups' pictures before, or else from what is said now.

        Args:
            samples: B pictures [H, W, 3] or videos [F, H, W, 3] of uint8; None for what cannot be shown.
            groups: which of them are of one group.

        Returns:
            NaN for a sample that cannot be shown; None in a group that nobody ranks, and for a picture of which nothing is said.

        Raises:
            Damaged: votes.jsonl, with the line.
        """
        sorted_groups = self._groups(samples, prompts, groups)
        said = votes.read(self.file)
        questions = [self._question(group) for group in sorted_groups if self._to_ask(group, said)]
        if questions:
            logger.info("%d groups are to be voted on", len(questions))
            desk.ask(questions)
            said = votes.read(self.file)
        scores: list[Score] = [math.nan if sample is None else None for sample in samples]
        for group in sorted_groups:
            for score, members in zip(
                votes.group_scores(said, group.prompt, group.pictures), group.members, strict=True
            ):
                for member in members:
                    scores[member] = score
        return scores

    def _groups(self, samples, prompts, groups) -> list[Group]:
        """The groups in their order, with their pictures on disk."""
        found: list[Group] = []
        for number in dict.fromkeys(groups):
            members: dict[str, list[int]] = {}
            for sample, (pixels, group) in enumerate(zip(samples, groups, strict=True)):
                if group == number and pixels is not None:
                    members.setdefault(self._kept(pixels), []).append(sample)
            prompt = str(prompts[list(groups).index(number)])
            found.append(Group(prompt, tuple(members), tuple(map(tuple, members.values()))))
        return found

    def _kept(self, pixels: np.ndarray) -> str:
        """The path of a picture, which is written where it is not there."""
        name = votes.picture_path(pixels)
        path = self.folder / name
        if not files.is_plain_file(path):
            (self.folder / FOLDER).mkdir(parents=True, exist_ok=True)
            files.write_bytes(path, media.mp4(pixels, self.fps) if pixels.ndim == 4 else png(pixels))
        return name

    def _to_ask(self, group: Group, said: Sequence[Vote]) -> bool:
        if len(group.pictures) < 2:
            return False
        return not any(group.is_of(vote) for vote in votes.standing(said))

    def _question(self, group: Group) -> Question:
        return Question(
            id=group.id,
            text=group.prompt,
            pictures=[self.folder / picture for picture in group.pictures],
            keep=self._keeper(group),
        )

    def _keeper(self, group: Group) -> Callable[[Any], None]:
        """What keeps the answers about a group: each but the first one replaces the one before."""
        last: list[str] = []

        def keep(answer: Any) -> None:
            parsed = Answer("withdrawn") if answer is None else votes.parse_answer(answer, len(group.pictures))
            vote = Vote(group.prompt, group.pictures, parsed, last[0] if last else None)
            with self._writing:
                votes.append(self.file, vote)
            last[:] = [vote.id]

        return keep


def png(pixels: np.ndarray) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def as_pictures(samples) -> list[np.ndarray | None]:
    """uint8 pictures or videos of a tensor [B, …] in [0, 1]; None for one with a value that is no number."""
    finite = samples.isfinite().flatten(1).all(1).tolist()
    return [pixels if good else None for pixels, good in zip(media.eight_bits(samples).numpy(), finite, strict=True)]
