"""Opinions out and in: as JSON lines, and of folders of votes. Imports no torch.

An exported file has one object a line, `{"picture": {…}}` or `{"opinion": {…}}`, each picture before what is said of it. It holds
prompts, names of files and of models, and no pixels.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...host import files, json_lines
from ...host.json_files import check
from . import votes
from .identity import picture_id
from .kinds import PAIR, Opinion, Picture, is_prompt, line, opinion_of, picture_of
from .store import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Imported:
    """How many opinions came in, how many were there already, and of how many a picture or the prompt could not be read."""

    new: int
    known: int
    unread: int = 0


def export_lines(store: Store) -> Iterator[str]:
    """The standing opinions, and the pictures that they are about, a line each."""
    opinions, pictures = store.standing(), store.pictures()
    for name in dict.fromkeys(name for opinion in opinions for name in opinion.pictures):
        yield line(pictures.get(name, Picture(name)))
    yield from map(line, opinions)


def import_lines(store: Store, path: Path) -> Imported:
    """Takes in an exported file, all of it or nothing. What is there already, by its id, is left as it is.

    Raises:
        Damaged: the file, with the line that is wrong.
        Unwritable: see `Store`.
    """
    pictures: list[dict] = []
    opinions: list[dict] = []

    def row_check(row: dict) -> None:
        if set(row) == {"picture"}:
            picture_of(row["picture"])
            pictures.append(row["picture"])
        elif set(row) == {"opinion"}:
            own = {"id": ("32 hexadecimal digits", lambda value: isinstance(value, str))}
            check(row["opinion"], dict, own)  # without an id it would come in again each time
            opinion_of(row["opinion"])
            opinions.append(row["opinion"])
        else:
            raise ValueError("is neither a picture nor an opinion")

    json_lines.read_lines(path, row_check, logger.warning, votes.FIX)
    return _kept(store, opinions, pictures)


def import_votes(store: Store, folder: Path) -> Imported:
    """Takes in a folder of votes, as pairs: each picture that was better than another one of its prompt. Videos are left out.

    A vote that was imported before is not imported again. Votes that contradict each other count in their order.

    Raises:
        Damaged: an old votes.jsonl, with the line that is wrong.
        Unwritable: see `Store`.
    """
    pictures: dict[str, Picture | None] = {}
    opinions: list[Opinion] = []
    unread = 0
    for vote in votes.standing(votes.read(votes.of_folder(folder))):
        for name in vote.pictures:
            if name not in pictures and is_prompt(vote.prompt):
                pictures[name] = _picture(folder / name, vote.prompt)
        for number, (better, worse) in enumerate(vote.pairs):
            chosen, rejected = pictures.get(vote.pictures[better]), pictures.get(vote.pictures[worse])
            if chosen is None or rejected is None or not chosen.prompt == rejected.prompt == vote.prompt:
                unread += 1
                continue
            # The same in each import: a vote has an id, and its pairs have an order.
            own = hashlib.sha256(f"{vote.id} {number}".encode(errors="surrogatepass")).hexdigest()[:32]
            opinions.append(Opinion(PAIR, chosen.id, True, rejected.id, own, vote.time))
    return _kept(store, opinions, [picture.as_json() for picture in pictures.values() if picture], unread)


def _kept(store: Store, opinions: Sequence[dict | Opinion], pictures: list[dict], unread: int = 0) -> Imported:
    new = len(store.give(opinions, pictures))
    return Imported(new, len(opinions) - new, unread)


def _picture(path: Path, prompt: str) -> Picture | None:
    """None for a video, and for a picture that is gone or damaged."""
    try:
        content = files.read_bytes(path)
        if content is None:
            return None
        return Picture(picture_id(content), prompt, str(path))
    except (files.Damaged, ValueError):
        return None
