"""A person's answers about groups of pictures, the store that keeps them, and the scores that follow. Imports no torch.

A folder of votes holds `votes.sqlite`, a store whose opinions are votes, and the pictures below `votes/`, each under its
fingerprint. A `votes.jsonl` of before, or of a bundle, is taken into it. That has one vote a line, as the store has them too:

    {"version": 1, "id": "9f…", "time": 1760000000.0, "prompt": "a red circle",
     "pictures": ["votes/0f3a….png", "votes/77c2….png", "votes/e01b….png"],
     "answer": {"kind": "order", "order": [[2], [0, 1]]}, "replaces": null}

An answer names pictures by their place in that list. In "order" the best come first, and those in one inner list are alike;
nothing is said of a picture that is missing. "pair" has a `winner` and a `loser`. "alike" says that no picture is better than
another, "skip" that the group was not judged; "withdrawn" takes back the vote that it replaces, so that the group is
asked about again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...host import json_lines
from ...host.files import Damaged
from ...host.json_files import MOMENT, TEXT, TEXTS, check, is_whole, maybe, one_of
from ...host.text import quoted
from .identity import pixels_id
from .kinds import Opinion
from .store import Store
from .utility import Pair, fit

logger = logging.getLogger(__name__)

FILE, LINES, FOLDER = "votes.sqlite", "votes.jsonl", "votes"
VERSION = 1
KIND = "vote"  # of opinions; it is no page's and no file's, whose kinds are in kinds.py
WITHDRAWN = "withdrawn"
KINDS = ("order", "pair", "alike", "skip", WITHDRAWN)
PICTURE = re.compile(rf"{FOLDER}/[0-9a-f]{{16}}([0-9a-f]{{48}})?\.(png|mp4)")  # all of the digits, or their beginning
# Prior on a picture's score in the Bradley-Terry model: with it an order without contradictions has finite scores too.
PRIOR_STD = 1.0
FIX = "correct or remove that line"


@dataclass(frozen=True)
class Answer:
    """An answer: `kind` is one of KINDS; `order` is of "order" and "pair", best first, each level's pictures being alike."""

    kind: str
    order: tuple[tuple[int, ...], ...] = ()

    @property
    def pairs(self) -> list[Pair]:
        """Each picture with each one of every lower level; none between those that are alike."""
        return [
            (better, worse)
            for place, level in enumerate(self.order)
            for better in level
            for below in self.order[place + 1 :]
            for worse in below
        ]

    def as_json(self) -> dict[str, Any]:
        if self.kind == "pair":
            ((winner,), (loser,)) = self.order
            return {"kind": "pair", "winner": winner, "loser": loser}
        if self.kind == "order":
            return {"kind": "order", "order": [list(level) for level in self.order]}
        return {"kind": self.kind}


@dataclass(frozen=True)
class Vote:
    """One vote. `pictures` are paths from the folder of votes; `replaces` is the id of the vote that it corrects."""

    prompt: str
    pictures: tuple[str, ...]
    answer: Answer
    replaces: str | None = None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    time: float = field(default_factory=time.time)

    @property
    def pairs(self) -> list[Pair]:
        return self.answer.pairs

    def as_json(self) -> dict[str, Any]:
        own = {**vars(self), "pictures": list(self.pictures), "answer": self.answer.as_json()}
        return {name: own[name] for name in ("id", "time", "prompt", "pictures", "answer", "replaces")} | {
            "version": VERSION
        }


# --- the store --------------------------------------------------------------------------------------------------------


def of_folder(folder: Path) -> Store:
    """The store of a folder of votes, which has its votes.jsonl too: each vote of that is taken in once, and the file stays.

    Raises:
        Damaged: votes.jsonl, with the line that is wrong.
        Unwritable: see `Store`.
    """
    store, old = Store(folder / FILE), read_lines(folder / LINES)
    ids = {vote.id for vote in read(store)} if old else set()
    if new := [vote for vote in old if vote.id not in ids]:
        append(store, *new)
        logger.warning("%s: %s of its %s votes are new, and are in %s now", folder / LINES, len(new), len(old), FILE)
    return store


def read(store: Store) -> list[Vote]:
    """All votes, also those that were replaced, the earliest first."""
    try:
        return [_vote(opinion.value) for opinion in store.standing(KIND)]
    except ValueError as error:
        raise Damaged(store.file, f"holds a vote that {error}", "move it away, or put the file back") from error


def append(store: Store, *votes: Vote) -> None:
    """Adds votes, and returns once the disk has them."""
    digests = [hashlib.sha256(vote.id.encode(errors="surrogatepass")).hexdigest()[:32] for vote in votes]
    store.give(Opinion(KIND, "", vote.as_json(), own, own, vote.time) for own, vote in zip(digests, votes, strict=True))


def lines(store: Store) -> str:
    """All votes as votes.jsonl has them."""
    return "".join(json.dumps(vote.as_json(), allow_nan=False) + "\n" for vote in read(store))


def read_lines(path: Path, say: Callable[[str], None] = logger.warning) -> list[Vote]:
    """All votes of a votes.jsonl; empty without a file. A last line that a kill cut short is left out, which is said.

    Raises:
        Damaged: names the file and the line, and what is wrong with it.
    """
    votes: list[Vote] = []
    json_lines.read_lines(path, lambda row: votes.append(_vote(row)), say, FIX)
    return votes


def standing(votes: Iterable[Vote]) -> list[Vote]:
    """The votes that count: replaced by no later one, and not withdrawn."""
    votes = list(votes)
    replaced = {vote.replaces for vote in votes}
    return [vote for vote in votes if vote.id not in replaced and vote.answer.kind != WITHDRAWN]


def parse_answer(value: Any, count: int) -> Answer:
    """The answer about `count` pictures.

    Raises:
        ValueError: it is not an answer, or is an order that puts no picture above another.
    """
    check(value, dict, {"kind": one_of(*KINDS)})
    kind = value["kind"]
    if kind == "pair":
        order = [[value.get("winner")], [value.get("loser")]]
    elif kind == "order":
        order = value.get("order")
    else:
        return Answer(kind)
    if not isinstance(order, list) or not all(isinstance(level, list) for level in order):
        raise ValueError(f"has order = {quoted(order)}, and not a list of lists of picture numbers, the best first")
    numbers = [number for level in order for number in level]
    wrong = [number for number in numbers if not is_whole(number) or number >= count]
    if wrong:
        raise ValueError(f"names picture {quoted(wrong[0])}, and its pictures have the numbers 0 to {count - 1}")
    if len(set(numbers)) < len(numbers):
        twice = next(number for number in numbers if numbers.count(number) > 1)
        raise ValueError(f"names picture {twice} twice")
    levels = tuple(tuple(level) for level in order if level)
    if len(levels) < 2:
        raise ValueError("puts no picture above another: where all are alike, the kind is 'alike'")
    return Answer(kind, levels)


def _vote(row: Mapping[str, Any]) -> Vote:
    """Raises ValueError if it is not a vote."""
    check(row, dict, {})
    if row.get("version") != VERSION:
        raise ValueError(f"has version = {quoted(row.get('version'))}, and not {VERSION}")
    check(row, dict, {"id": TEXT, "time": MOMENT, "prompt": TEXT, "pictures": TEXTS, "replaces": maybe(TEXT)})
    pictures = tuple(row["pictures"])
    if len(pictures) < 2 or len(set(pictures)) < len(pictures):
        raise ValueError(f"has {len(pictures)} pictures, of which {len(set(pictures))} differ, and not two or more")
    for picture in pictures:
        if not PICTURE.fullmatch(picture):  # which also keeps readers in the folder
            raise ValueError(f"has the picture {quoted(picture)}, and not one as {FOLDER}/0123456789abcdef.png")
    if row.get("answer") is None:
        raise ValueError("has no 'answer'")
    try:
        answer = parse_answer(row["answer"], len(pictures))
    except ValueError as error:
        raise ValueError(f"has an answer that {error}") from error
    return Vote(row["prompt"], pictures, answer, row.get("replaces"), row["id"], float(row["time"]))


# --- pictures ---------------------------------------------------------------------------------------------------------


def picture_path(pixels: np.ndarray) -> str:
    """Where a picture [H, W, 3] or a video [F, H, W, 3] of uint8 lies in a folder of votes."""
    return f"{FOLDER}/{pixels_id(pixels)[:16]}.{'mp4' if pixels.ndim == 4 else 'png'}"


# --- scores -----------------------------------------------------------------------------------------------------------


def about(votes: Iterable[Vote], prompt: str, pictures: Collection[str]) -> list[Vote]:
    """The votes that stand and are about these pictures of one prompt, or some of them."""
    return [vote for vote in standing(votes) if vote.prompt == prompt and set(vote.pictures) <= set(pictures)]


def group_scores(votes: Iterable[Vote], pictures: Sequence[str]) -> list[float | None]:
    """A score for each of the pictures that these votes are about; None for one of which nothing is said.

    Most likely by P(i better than j) = σ(s_i - s_j), s ~ N(0, PRIOR_STD²): their mean is 0.
    """
    number = {picture: place for place, picture in enumerate(pictures)}
    pairs = [
        (number[vote.pictures[better]], number[vote.pictures[worse]]) for vote in votes for better, worse in vote.pairs
    ]
    named = {place for pair in pairs for place in pair}
    # Rounded, so that pictures of which the same is said have the same score.
    scores = fit(np.eye(len(pictures)), pairs, PRIOR_STD**2).mean.round(12).tolist()
    return [score if place in named else None for place, score in enumerate(scores)]
