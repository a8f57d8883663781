"""The fit of every taste: a frozen encoder, and a fit to choices between pictures that it has read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch

from ..networks import features
from ..rewards.taste import Head, Scaling, fingerprint, read_features
from .utility import Utility, fit

T = TypeVar("T")


class Encoder:
    """Reads features of pictures, of each once.

    Args:
        name: a folder, the name of one, or a hub id in the local cache; see `features.find`.
        device: auto, or a torch device.

    Raises:
        FileNotFoundError: the encoder was not found.
        RewardError: its weights cannot be read.
    """

    def __init__(self, name: str, device: str = "auto"):
        self.name, self.folder = name, features.find(name)
        self.network = features.load(name, device)
        self._rows: dict[str, np.ndarray | None] = {}

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.folder)

    def row(self, pixels: np.ndarray) -> np.ndarray:
        """Features [D] of one picture of uint8 [H, W, 3]."""
        return read_features(self.network, torch.from_numpy(pixels.copy())[None].float() / 255)[0]

    def rows(self, names: Iterable[str], read: Callable[[str], np.ndarray | None]) -> dict[str, np.ndarray]:
        """Features by picture, without those of which `read` gives none."""
        for name in (names := list(dict.fromkeys(names))):
            if name not in self._rows:
                self._rows[name] = read(name)
        return {name: row for name in names if (row := self._rows[name]) is not None}


@dataclass(frozen=True)
class Fitted:
    """The utility of pictures that choices show, by their features [n, D] as the encoder gives them."""

    scaling: Scaling
    utility: Utility

    @classmethod
    def to(cls, groups: Iterable[Sequence[T]], pairs: Iterable[tuple[T, T]], rows: Mapping[T, np.ndarray]) -> Fitted:
        """By pairs (better, worse) of pictures, by their names. `groups` are those that were compared with each other."""
        scaling = Scaling.of([np.stack([rows[name] for name in group]) for group in groups])
        number = {name: place for place, name in enumerate(rows)}
        numbers = [(number[better], number[worse]) for better, worse in pairs]
        return cls(scaling, fit(scaling(np.stack([*rows.values()])), numbers))

    @classmethod
    def before(cls, rows: np.ndarray) -> Fitted:
        """Before the first choice, when nothing but these pictures is known."""
        return cls(Scaling.of([rows]), Utility.before(rows.shape[1]))

    def head(self, encoder: Encoder, about: Mapping[str, Any]) -> Head:
        """The head as `otca taste fit` saves it, for Reward: My Taste."""
        return Head(self.scaling, self.utility.mean, encoder.name, encoder.fingerprint, about)

    def differences(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation [n, n] of every utility minus every other one."""
        return self.utility.differences(self.scaling(rows))
