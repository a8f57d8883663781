"""My Taste from clicks: the head of a frozen encoder, fitted to opinions, and what to ask next.

The prompt plays no part in a taste. So pictures of one prompt are compared first, and then what is left over of all prompts.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ...host import files, paths
from ..errors import standard_error
from ..pictures import media
from ..rewards.taste import Head, Scaling, fingerprint, read_features
from .identity import read_picture
from .kinds import PAIR, Opinion, Picture
from .learner import Learner
from .pairs import made_pairs, values_of
from .store import Store
from .utility import Utility, fit

FOLDS = 5
LEAST = 4  # pairs before which nothing is said
_MOST_ASKED = 64  # pictures of a prompt among which the next pair is looked for


@dataclass(frozen=True)
class Agreement:
    """How often a head that did not see them foretold pairs: mean, standard error clustered by prompt, and how many pairs."""

    mean: float
    error: float
    pairs: int


class ClickedTaste:
    """What is learned of a store's opinions. Each call asks the store first, and fits again if something was said meanwhile.

    Args:
        encoder: a folder, the name of one, or a hub id in the local cache.

    Raises:
        FileNotFoundError: the encoder was not found.
        RewardError: its weights cannot be read.
    """

    def __init__(self, store: Store, encoder: str = "shapes-clip", device: str = "auto"):
        self.store = store
        self._learner = Learner(encoder, device)
        self._folder = paths.opinions_cache("features") / fingerprint(self._learner.folder)[:16]
        self._rows: dict[str, np.ndarray | None] = {}
        self._state = ""
        self._pairs: list[tuple[str, str]] = []
        self._prompts: dict[str, str] = {}
        self._fitted: tuple[Scaling, Utility] | None = None
        self._busy = threading.RLock()

    def pairs(self) -> int:
        """How many it learns from."""
        with self._busy:
            self._learn()
            return len(self._pairs)

    def head(self) -> Head | None:
        """As `otca taste fit` saves it, for Reward: My Taste; None before LEAST pairs."""
        with self._busy:
            self._learn()
            if self._fitted is None:
                return None
            scaling, utility = self._fitted
            about = {"pairs": len(self._pairs)}
            return Head(scaling, utility.mean, self._learner.encoder, fingerprint(self._learner.folder), about)

    def scores(self, names: Iterable[str]) -> dict[str, float]:
        """What it would say of these pictures, in log-odds; without those that cannot be read. Empty before LEAST pairs."""
        with self._busy:
            head, rows = self.head(), self._features(names)
            if head is None or not rows:
                return {}
            return dict(zip(rows, head.scores(np.stack(list(rows.values()))).tolist(), strict=True))

    def agreement(self) -> Agreement | None:
        """By FOLDS parts of the prompts, each foretold by a head that was fitted to the others; None before LEAST pairs."""
        with self._busy:
            self._learn()
            if self._fitted is None:
                return None
            units = [self._prompts[better] for better, _ in self._pairs]
            if len(set(units)) < FOLDS:  # of few prompts, parts of the pairs
                units = [f"{better} {worse}" for better, worse in self._pairs]
            number = {unit: place % FOLDS for place, unit in enumerate(dict.fromkeys(units))}
            right, prompts = [], []
            for fold in range(FOLDS):
                seen = [pair for pair, unit in zip(self._pairs, units, strict=True) if number[unit] != fold]
                tested = [pair for pair, unit in zip(self._pairs, units, strict=True) if number[unit] == fold]
                if not seen or not tested:
                    continue
                scaling, utility = self._fit(seen)
                for better, worse in tested:
                    apart = (scaling(self._row(better)) - scaling(self._row(worse))) @ utility.mean
                    right.append(0.5 if apart == 0 else float(apart > 0))
                    prompts.append(self._prompts[better])
            mean, error, _ = standard_error(right, prompts)
            return Agreement(mean, error, len(right))

    def next_pairs(self, groups: Sequence[Sequence[str]], count: int = 1) -> list[tuple[str, str]]:
        """The pairs to ask about next, which tell most about the taste, one of a group at most; fewer where nothing is left.

        A choice between two tells about p·(1-p)·deviation²/2 nats, see `utility.most_telling`.

        Args:
            groups: the pictures of each prompt, by their ids. Pairs that were answered are not asked again.
        """
        with self._busy:
            self._learn()
            told = []
            answered = {frozenset(opinion.pictures) for opinion in self.store.standing(PAIR)}
            for group in groups:
                rows = self._features(list(dict.fromkeys(group))[:_MOST_ASKED])
                if len(rows) < 2:
                    continue
                names, values = list(rows), np.stack(list(rows.values()))
                scaling, utility = self._fitted or (Scaling.of([values]), Utility.before(values.shape[1]))
                mean, deviation = utility.differences(scaling(values))
                worth = deviation**2 / (2 + 2 * np.cosh(mean.clip(-50, 50)))  # p·(1-p) of p = σ(mean)
                pairs = [
                    (worth[one, other], (names[one], names[other]))
                    for one, other in itertools.combinations(range(len(names)), 2)
                    if frozenset((names[one], names[other])) not in answered
                ]
                told += [max(pairs)] if pairs else []
            return [pair for _, pair in sorted(told, reverse=True)[:count]]

    # --- learning -------------------------------------------------------------------------------------------------

    def _learn(self) -> None:
        state = self.store.state()
        if state == self._state:
            return
        opinions = self.store.standing()
        names = dict.fromkeys(name for opinion in opinions for name in opinion.pictures)
        known = self._features(names)
        pictures = self.store.pictures(known)
        self._prompts = {name: pictures.get(name, Picture(name)).prompt for name in known}
        self._pairs = _all_pairs(opinions, self._prompts)
        self._fitted = self._fit(self._pairs) if len(self._pairs) >= LEAST else None
        self._state = state

    def _fit(self, pairs: Sequence[tuple[str, str]]) -> tuple[Scaling, Utility]:
        members: dict[str, dict[str, None]] = {}
        for better, worse in pairs:
            group = members.setdefault(self._prompts[better], {})
            group |= {better: None, worse: None}
        scaling = Scaling.of([np.stack([self._row(name) for name in group]) for group in members.values()])
        names = list(dict.fromkeys(name for pair in pairs for name in pair))
        number = {name: place for place, name in enumerate(names)}
        rows = scaling(np.stack([self._row(name) for name in names]))
        return scaling, fit(rows, [(number[better], number[worse]) for better, worse in pairs])

    # --- features -------------------------------------------------------------------------------------------------

    def _row(self, name: str) -> np.ndarray:
        row = self._rows[name]
        assert row is not None  # asked only of pictures that `_features` gave
        return row

    def _features(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Features by picture, in memory, else on disk, else computed; without those that cannot be read."""
        names = list(dict.fromkeys(names))
        missing = [name for name in names if name not in self._rows]
        pictures = self.store.pictures(missing) if missing else {}
        for name in missing:
            self._rows[name] = self._read(pictures.get(name, Picture(name)))
        return {name: row for name in names if (row := self._rows[name]) is not None}

    def _read(self, picture: Picture) -> np.ndarray | None:
        file = self._folder / f"{picture.id}.safetensors"
        try:
            return load_file(file)["features"].astype(np.float64)
        except (OSError, SafetensorError, KeyError):  # not there, or cut short
            pass
        try:
            pixels = np.asarray(media.upright(read_picture(picture)))
        except (OSError, ValueError):
            return None
        row = read_features(self._learner.network, torch.from_numpy(pixels.copy())[None].float() / 255)[0]
        _keep(file, row.astype(np.float32))
        return row.astype(np.float32).astype(np.float64)


def _keep(file: Path, row: np.ndarray) -> None:
    """Without a word if the disk is full: it can be computed again."""
    aside = files.beside(file)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file({"features": row}, aside)
        files.put_in_place(aside, file)
    except (OSError, SafetensorError):
        aside.unlink(missing_ok=True)


def _all_pairs(opinions: Sequence[Opinion], prompts: dict[str, str]) -> list[tuple[str, str]]:
    """Pairs that were given, then within each prompt by thumbs and stars, then between what is left over of all prompts."""
    given = [
        opinion.pictures for opinion in opinions if opinion.kind == PAIR and set(opinion.pictures) <= prompts.keys()
    ]
    pairs = [(better, worse) for better, worse in given]
    values = {name: value for name, value in values_of(opinions).items() if name in prompts}
    for groups in (prompts, dict.fromkeys(prompts, "")):
        used = {name for pair in pairs for name in pair}
        pairs += made_pairs(values, groups, used)
    return pairs
