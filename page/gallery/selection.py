"""Which pictures the page lists, in which order and groups."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..requests import Refused
from .index import Index
from .opinions import ABOUT, Opinions
from .taste import score_of

LONGEST_LABEL = 300  # characters of a group's heading
MOST_MODELS = 200  # names in the list of models

Said = dict[str, Any]
# What is said of a picture, by what the page calls it.
SAID: dict[str, Callable[[Said], bool]] = {
    "": lambda said: True,
    "something": lambda said: any(said.values()),
    "nothing": lambda said: not any(said.values()),
    "liked": lambda said: said["thumb"] > 0 or said["stars"] > 3,
    "disliked": lambda said: said["thumb"] < 0 or 0 < said["stars"] < 3,
    **{f"stars{least}": lambda said, least=least: said["stars"] >= least for least in range(1, 6)},
}
GROUPS = ("", "prompt", "graph")
ORDERS = ("newest", "stars", "taste")


@dataclass(frozen=True)
class Selection:
    """A selection of pictures: words that all occur, a model's file, times in seconds since 1970 (0: any), what is said."""

    words: str
    model: str
    since: int
    until: int
    said: str
    group: str
    order: str

    def __post_init__(self) -> None:
        for name, choices in {"said": SAID, "group": GROUPS, "order": ORDERS}.items():
            if (value := getattr(self, name)) not in choices:
                raise Refused(400, f"{name} = {value[:80]!r} is not known. Fix: one of {', '.join(map(repr, choices))}")

    def of(self, gallery: Index, opinions: Opinions, taste: Mapping[str, float]) -> dict[str, Any]:
        """{total, groups: [[key, label, count]], ids, models: [[name, count]]}; ids one group after the other."""
        text = "lower(prompt || ' ' || name || ' ' || model || ' ' || loras)" if self.words else "''"
        columns = f"id, hash, prompt, model, graph, about, {text}"
        conditions = {"model = ?": self.model, "changed >= ?": self.since * 10**9, "changed < ?": self.until * 10**9}
        conditions = {where: value for where, value in conditions.items() if value}
        rows = gallery.rows(columns, " and ".join(["1", *conditions]), list(conditions.values()))
        about, good = opinions.all(), SAID[self.said]
        nothing, words = ABOUT(), self.words.lower().split()
        chosen = [
            row
            for row in rows
            if (not words or all(word in row[6] or word in about.get(row[1], nothing)["tags"] for word in words))
            and good(about.get(row[1], nothing))
        ]
        if self.order == "stars":

            def rank(row: Sequence[Any]) -> tuple[int, int]:
                opinion = about.get(row[1], nothing)
                return opinion["stars"] + 2 * opinion["thumb"], opinion["better"] - opinion["worse"]

            chosen.sort(key=rank, reverse=True)
        elif self.order == "taste":
            chosen.sort(key=lambda row: score_of(taste, row[1]) or -1.0, reverse=True)
        groups: dict[str, tuple[str, list[str]]] = {}
        for row in chosen:
            label = {"": "", "prompt": row[2], "graph": row[4]}[self.group]
            shown = f"{row[3]} · {row[5]}" if self.group == "graph" and label else label
            groups.setdefault(label, (shown.strip(" ·")[:LONGEST_LABEL], []))[1].append(row[0])
        return {
            "total": gallery.progress()["pictures"],
            "complete": gallery.looked(),
            "groups": [
                [hashlib.sha256(key.encode()).hexdigest()[:12], label, len(ids)] for key, (label, ids) in groups.items()
            ],
            "ids": [id for _, ids in groups.values() for id in ids],
            "models": [list(row) for row in gallery.models(MOST_MODELS)],
        }
