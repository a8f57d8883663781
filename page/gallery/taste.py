"""My Taste from clicks, for the gallery: what a head that was fitted to the opinions would say of each picture. It begins when
the user asks for it, and works in a thread, the newest pictures first.
"""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...host import files, paths
from ...host.text import plain_name, quoted
from ...trainer.opinions.kinds import PAIR
from ...trainer.opinions.store import Store
from ..requests import Field, Refused
from .index import Index
from .opinions import picture_row

if TYPE_CHECKING:
    from ...trainer.opinions.taste import ClickedTaste

logger = logging.getLogger(__name__)

OWN = "shapes-clip"  # what the pack brings; anybody's own encoder knows more of pictures
BATCH = 16  # pictures that are looked at between two answers
SAVE = {"name": Field(plain_name, required=True)}
MOST_ASKED = 10  # pairs of one answer
TRIES = 400
_ENDINGS = range(2, 1000)


class Taste:
    """The taste that is learned of one store's opinions, by one encoder at a time.

    Attributes:
        scores: what it says of pictures, by the digits of their pixels: how probably the user likes each, in [0, 1].
    """

    def __init__(self, store: Store):
        self.store = store
        self.scores: dict[str, float] = {}
        self._told: dict[str, Any] = {"agreement": None, "problem": "", "pairs": 0, "least": 0}
        self._encoder, self._state = "", None
        self._clicked: ClickedTaste | None = None
        self._worker: threading.Thread | None = None
        self._lock = threading.Lock()

    def encoders(self) -> list[str]:
        """Names of those on this machine, the user's own first."""
        return [*(name for name in paths.list_models("preprocessor_config.json") if name != OWN), OWN]

    def told(self, gallery: Index, encoder: str) -> dict[str, Any]:
        """Tells its state, and has it go on: {encoder, encoders, scored, pairs, least: of those, agreement: [mean,
        error, pairs] or None, works, problem}."""
        names = self.encoders()
        if encoder and encoder not in names:
            raise Refused(400, f"encoder = {quoted(encoder)} is not here. Fix: one of {', '.join(names)}")
        with self._lock:
            if self._worker is None or not self._worker.is_alive():
                wanted = encoder or self._encoder or names[0]
                if wanted != self._encoder:
                    self._encoder, self._clicked, self._state = wanted, None, None
                    self.scores = {}
                self._worker = threading.Thread(target=self._work, args=(gallery,), name="otca taste", daemon=True)
                self._worker.start()
                self._worker.join(0.2)
            works = self._worker.is_alive()
        return {"encoder": self._encoder, "encoders": names, "scored": len(self.scores), "works": works, **self._told}

    def next_pairs(self, gallery: Index, skip: int) -> list[dict[str, Any]]:
        """{pair: two ids, prompt} of pairs that nothing was said about: those that tell most about the taste.

        Any before the taste was begun. `skip`: how many were passed over, so that others come.
        """
        groups: dict[str, dict[str, str]] = {}
        for id, prompt, hash in gallery.rows("id, prompt, hash", "prompt != '' and hash != ''"):
            groups.setdefault(prompt, {}).setdefault(hash, id)  # of doubles one
        prompts = {hash: prompt for prompt, hashes in groups.items() for hash in hashes}
        several = [list(hashes) for hashes in groups.values() if len(hashes) > 1]
        judged = {frozenset(opinion.pictures) for opinion in self.store.standing(PAIR)}
        generator = random.Random(f"{len(judged)} {skip}")
        generator.shuffle(several)
        pairs = self._clicked.next_pairs(several[:MOST_ASKED], MOST_ASKED)[skip:] if self._clicked else []
        for _ in range(TRIES if several and not pairs else 0):
            left, other = generator.sample(generator.choice(several), 2)
            if frozenset((left, other)) not in judged | set(map(frozenset, pairs)):
                pairs.append((left, other))
        return [
            {"pair": [groups[prompts[hash]][hash] for hash in pair], "prompt": prompts[pair[0]]}
            for pair in pairs[:MOST_ASKED]
        ]

    def save(self, name: str) -> dict[str, str]:
        """Writes the taste as a new file for *Reward: My Taste*, and says how that names it.

        Raises:
            Refused: 409 if too little was said, or it cannot be written.
        """
        head = self._clicked.head() if self._clicked else None
        folders = paths.reward_folders()
        if head is None:
            raise Refused(
                409, "too little is known of your taste. Fix: like and dislike a few more pictures of the same prompt"
            )
        if not folders:
            raise Refused(
                409, "there is no folder for reward models. Fix: start ComfyUI with the pack, or set OTCA_MODELS"
            )
        stem = name.removesuffix(".safetensors")
        names = (f"{title}.safetensors" for title in (stem, *(f"{stem}-{number}" for number in _ENDINGS)))
        path = next(Path(folders[-1], title) for title in names if not files.present(Path(folders[-1], title)))
        try:
            head.save(path)
        except OSError as error:
            raise Refused(
                409, f"it was not saved ({error}). Fix: make room in {path.parent}, or make it writable"
            ) from error
        return {"file": path.name}

    def _work(self, gallery: Index) -> None:
        """One round: what is new is looked at, and all is scored anew if something was said since."""
        try:
            from ...trainer.opinions.taste import LEAST, ClickedTaste

            if self._clicked is None:
                self._clicked = ClickedTaste(self.store, self._encoder, "cpu")  # ComfyUI may need the accelerator
            state = self.store.state()
            if state != self._state:
                agreement = self._clicked.agreement()
                figures = agreement and [None if math.isnan(figure) else figure for figure in agreement]
                self._told |= {"agreement": figures, "problem": "", "pairs": self._clicked.pairs(), "least": LEAST}
                self.scores = self._scored(list(self.scores)) if agreement else {}
                self._state = state
            if self._told["agreement"] is None:
                return
            new = [row for row in gallery.rows("id, hash", "hash != ''") if row[1] not in self.scores]
            for begin in range(0, len(new), BATCH):
                some = dict(new[begin : begin + BATCH])
                facts = gallery.details(list(some))
                self.store.give([], [picture_row(hash, facts[id]) for id, hash in some.items() if id in facts])
                # What cannot be read is not asked for again.
                self.scores |= dict.fromkeys(some.values(), math.nan) | self._scored(some.values())
                if self.store.state() != self._state:
                    return
        except Exception as error:  # shown on the page: a model's files can be wrong in any way
            logger.warning("the gallery's taste cannot be learned: %s", error)
            self._told |= {"agreement": None, "problem": str(error)[:500]}

    def _scored(self, hashes: Iterable[str]) -> dict[str, float]:
        assert self._clicked is not None
        return {
            name: 1 / (1 + math.exp(-max(-50.0, min(50.0, odds))))
            for name, odds in self._clicked.scores(hashes).items()
        }


def score_of(scores: Mapping[str, float], hash: str) -> float | None:
    """The score that is shown of a picture; None if it has none."""
    score = scores.get(hash, math.nan)
    return None if math.isnan(score) else score
