"""Opinions about the gallery's pictures: the page names them by the gallery's ids, the store by their content."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from ...host.errors import Expected
from ...host.files import Damaged
from ...trainer.opinions import exchange
from ...trainer.opinions.kinds import PAIR, REGION, STARS, TAG, THUMB, Opinion
from ...trainer.opinions.store import Store
from ..requests import Refused, refusing
from .index import Index

T = TypeVar("T")
UNDO = "undo"
EXPORTED = "opinions.jsonl"


def ABOUT() -> dict[str, Any]:
    """Nothing said about a picture."""
    return {"thumb": 0, "stars": 0, "tags": [], "regions": {}, "better": 0, "worse": 0}


class Opinions:
    """The opinions of one store. While it cannot be read, no picture has an opinion, and `problem` has the reason."""

    def __init__(self, store: Store):
        self.store, self.problem = store, ""

    def _read(self, ask: Callable[[], T], otherwise: T) -> T:
        try:
            answer, self.problem = ask(), ""
        except Expected as error:
            answer, self.problem = otherwise, str(error)
        return answer

    def state(self) -> str:
        """Changes with every opinion."""
        return self._read(self.store.state, "")

    def of(self, hashes: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The opinions about each of these pictures: see `ABOUT`."""
        opinions = self._read(lambda: self.store.of(filter(None, hashes)), {})
        return {name: _summary(name, rows) for name, rows in opinions.items()}

    def all(self) -> dict[str, dict[str, Any]]:
        """The same of all pictures of which something is said."""
        opinions_of: dict[str, list[Opinion]] = {}
        for opinion in self._read(self.store.standing, []):
            for name in opinion.pictures:
                opinions_of.setdefault(name, []).append(opinion)
        return {name: _summary(name, opinions) for name, opinions in opinions_of.items()}

    def say(self, gallery: Index, id: str, kind: str, picture: str | None, other: str, value: Any) -> dict[str, Any]:
        """Keeps an opinion, once, however often it is sent under its id; kind `undo`: takes back the one of the id `other`.

        Raises:
            Refused: 400 if it is wrong, 404 if there is no such picture, 507 if it could not be kept.
        """
        with refusing("the opinion ", ". Fix: reload the page"):
            if kind == UNDO:
                return {"undone": self.store.take_back(other) is not None, "opinions": self.state()}
            named = [picture or "", *([other] if kind == PAIR else [])]
            pictures = gallery.details(named)
            hashes = {name: gallery.hash_of(name) for name in named}
            if missing := [name for name in named if name not in pictures or not hashes[name]]:
                raise Refused(404, f"picture {missing[0]!r} cannot be shown, or is gone. Fix: reload the page")
            row = {"id": id, "kind": kind, "picture": hashes[named[0]], "value": value}
            row["other"] = hashes[other] if kind == PAIR else other
            self.store.give([row], [picture_row(hashes[name], pictures[name]) for name in named])
        return {"opinions": self.state()}

    def exported(self) -> bytes:
        """All that stands, as JSON lines."""
        return "".join(f"{line}\n" for line in exchange.export_lines(self.store)).encode()

    def take_in(self, content: bytes) -> dict[str, int]:
        """Takes in an exported file, all of it or nothing: {new, known, unread}. Raises Refused: 400 with its line, 507."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, EXPORTED)
            path.write_bytes(content)
            return self._taken_in(lambda: exchange.import_lines(self.store, path), path)

    def take_in_votes(self, folder: Path) -> dict[str, int]:
        """Takes in every folder of votes in this one: see `take_in`."""
        counts, damaged = {"new": 0, "known": 0, "unread": 0}, None
        for place in sorted({file.parent for file in folder.glob("*/votes.*")}):
            try:
                counted = self._taken_in(lambda place=place: exchange.import_votes(self.store, place))
                counts = {name: count + counted[name] for name, count in counts.items()}
            except Damaged as error:  # said when all others are in
                damaged = error
        if damaged is not None:
            raise damaged
        return counts

    def _taken_in(self, take: Callable[[], exchange.Imported], path: Path | None = None) -> dict[str, int]:
        try:
            with refusing("an opinion ", ". Fix: remove its line"):
                return dataclasses.asdict(take())
        except Damaged as error:
            if error.path != path:
                raise
            raise Refused(400, f"{EXPORTED} {error.wrong}. Fix: {error.fix}") from error


def picture_row(hash: str, known: dict[str, Any]) -> dict[str, Any]:
    """The store's row of a picture, by what the index knows."""
    return {
        "id": hash,
        "path": str(Path(known["folder"], known["name"])),
        "models": [name for name in (known["model"], *known["loras"]) if name],
        **{name: known[name] for name in ("prompt", "width", "height")},
    }


def _summary(name: str, said: Iterable[Opinion]) -> dict[str, Any]:
    summary = ABOUT()
    for opinion in said:
        if opinion.kind in (THUMB, STARS):
            summary[opinion.kind] = opinion.value
        elif opinion.kind == TAG:
            summary["tags"].append(opinion.other)
        elif opinion.kind == REGION:
            summary["regions"][opinion.other] = opinion.value
        else:
            summary["better" if opinion.picture == name else "worse"] += 1
    return summary
