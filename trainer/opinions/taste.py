"""My Taste from clicks: the head of a frozen encoder, fitted to opinions, and what to ask next.

The prompt plays no part in a taste. So pictures of one prompt are compared first, and then what is left over of all prompts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from ...host import paths
from ..errors import standard_error
from ..pictures import media
from ..rewards.taste import Head
from .fit import Encoder, Fitted
from .identity import pixels_id, read_picture
from .kinds import PAIR, Picture
from .latents import Kept
from .pairs import FOLDS, folds, made_pairs, values_of
from .store import Store
from .utility import most_telling, worth

LEAST = 4  # pairs before which nothing is said
_MOST_ASKED = 64  # pictures of a prompt among which the next pair is looked for


class ClickedTaste:
    """A taste learned of a store's opinions. Each call asks the store first, and fits again if something was said meanwhile.

    Args:
        encoder: a folder, the name of one, or a hub id in the local cache.

    Raises:
        FileNotFoundError: the encoder was not found.
        RewardError: its weights cannot be read.
    """

    def __init__(self, store: Store, encoder: str = "shapes-clip", device: str = "auto"):
        self.store = store
        self._encoder = Encoder(encoder, device)
        self._kept = Kept(paths.opinions_cache("features") / self._encoder.fingerprint[:16], "features")
        self._state = ""
        self._pairs: list[tuple[str, str]] = []
        self._prompts: dict[str, str] = {}
        self._fitted: Fitted | None = None
        self._busy = threading.RLock()

    def pairs(self) -> int:
        """How many it learns from."""
        with self._busy:
            self._learn()
            return len(self._pairs)

    def head(self) -> Head | None:
        """The head as `otca taste fit` saves it, for Reward: My Taste; None before LEAST pairs."""
        with self._busy:
            self._learn()
            if self._fitted is None:
                return None
            return self._fitted.head(self._encoder, {"pairs": len(self._pairs)})

    def scores(self, names: Iterable[str]) -> dict[str, float]:
        """The scores of these pictures, in log-odds; without those that cannot be read. Empty before LEAST pairs."""
        with self._busy:
            head, rows = self.head(), self._rows(names)
            if head is None or not rows:
                return {}
            return dict(zip(rows, head.scores(np.stack(list(rows.values()))).tolist(), strict=True))

    def agreement(self) -> tuple[float, float, int] | None:
        """How often a head that did not see them foretold pairs: mean, standard error clustered by prompt, and how many pairs.

        By FOLDS parts of the prompts, each foretold by a head that was fitted to the others; None before LEAST pairs.
        """
        with self._busy:
            self._learn()
            if self._fitted is None:
                return None
            units = [self._prompts[better] for better, _ in self._pairs]
            if len(set(units)) < FOLDS:  # of few prompts, parts of the pairs
                units = [f"{better} {worse}" for better, worse in self._pairs]
            rows = self._rows(name for pair in self._pairs for name in pair)
            right, prompts = [], []
            for fold in map(set, folds(list(dict.fromkeys(units)))):
                rest = [pair for pair, unit in zip(self._pairs, units, strict=True) if unit not in fold]
                tested = [pair for pair, unit in zip(self._pairs, units, strict=True) if unit in fold]
                if not rest or not tested:
                    continue
                fitted = self._fit(rest)
                for better, worse in tested:
                    apart = (fitted.scaling(rows[better]) - fitted.scaling(rows[worse])) @ fitted.utility.mean
                    right.append(0.5 if apart == 0 else float(apart > 0))
                    prompts.append(self._prompts[better])
            mean, error, _ = standard_error(right, prompts)
            return mean, error, len(right)

    def next_pairs(self, groups: Sequence[Sequence[str]], count: int = 1) -> list[tuple[str, str]]:
        """The pairs to ask about next, which tell most about the taste, one of a group at most; fewer where nothing is left.

        `groups`: the pictures of each prompt, by their ids. Pairs that were answered are not asked again.
        """
        with self._busy:
            self._learn()
            best = []
            answered = {frozenset(opinion.pictures) for opinion in self.store.standing(PAIR)}
            for group in groups:
                rows = self._rows(list(dict.fromkeys(group))[:_MOST_ASKED])
                if len(rows) < 2:
                    continue
                names, values = list(rows), np.stack(list(rows.values()))
                worths = worth(*(self._fitted or Fitted.before(values)).differences(values))
                done = [[a == b or frozenset((a, b)) in answered for b in names] for a in names]
                worths[np.array(done)] = -1
                first, second = sorted(most_telling(worths, 2))
                if worths[first, second] >= 0:
                    best.append((worths[first, second], (names[first], names[second])))
            return [pair for _, pair in sorted(best, reverse=True)[:count]]

    # --- learning -------------------------------------------------------------------------------------------------

    def _learn(self) -> None:
        state = self.store.state()
        if state == self._state:
            return
        opinions = self.store.standing()
        rows = self._rows(name for opinion in opinions for name in opinion.pictures)
        pictures = self.store.pictures(rows)
        self._prompts = {name: pictures.get(name, Picture(name)).prompt for name in rows}
        # Pairs that were given, then within each prompt by thumbs and stars, then between what is left over of all
        # prompts
        pairs = [
            (opinion.picture, opinion.other)
            for opinion in opinions
            if opinion.kind == PAIR and set(opinion.pictures) <= self._prompts.keys()
        ]
        values = {name: value for name, value in values_of(opinions).items() if name in self._prompts}
        for groups in (self._prompts, dict.fromkeys(self._prompts, "")):
            pairs += made_pairs(values, groups, {name for pair in pairs for name in pair})
        self._pairs = pairs
        self._fitted = self._fit(self._pairs) if len(self._pairs) >= LEAST else None
        self._state = state

    def _fit(self, pairs: Sequence[tuple[str, str]]) -> Fitted:
        members: dict[str, dict[str, None]] = {}
        for pair in pairs:
            members.setdefault(self._prompts[pair[0]], {}).update(dict.fromkeys(pair))
        return Fitted.to(map(list, members.values()), pairs, self._rows(name for pair in pairs for name in pair))

    # --- features -------------------------------------------------------------------------------------------------

    def _rows(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Features by picture, in memory, else on disk, else computed; without those that cannot be read."""
        return self._encoder.rows(names, self._read)

    def _read(self, name: str) -> np.ndarray | None:
        if (row := self._kept.read(name)) is None:
            picture = self.store.pictures([name]).get(name, Picture(name))
            try:
                pixels = np.asarray(media.upright(read_picture(picture)))
            except (OSError, ValueError):
                return None
            if pixels_id(pixels) != name:  # another picture has its place by now
                return None
            row = torch.from_numpy(self._encoder.row(pixels)).float()
            self._kept.write(name, row)
        return row.double().numpy()
