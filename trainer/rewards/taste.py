"""My Taste: a linear head on the features of one frozen encoder, as a file that `otca taste fit` makes, and as a reward."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ...host import json_files, search
from ...host.files import sha256
from ..networks import RewardError, features, preprocess
from .base import NetworkReward

FORMAT, VERSION = "otca-taste", "1"
TENSORS = ("centre", "scale", "mean")
_FIX = "make it again with `otca taste fit`"


@dataclass(frozen=True)
class Scaling:
    """Features as the head reads them: (x - centre) / scale. Root mean square of pictures' distance to their group's mean: 1.

    So the strength of the prior means the same for every encoder: the variance of a picture's utility.
    """

    centre: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, groups: Sequence[np.ndarray]) -> Scaling:
        """By the spread of each feature within groups of pictures [n, D] that were compared; what does not vary plays no part."""
        rows = np.concatenate(groups)
        spread = np.concatenate([group - group.mean(0) for group in groups]).std(0)
        varies = spread > 1e-6 * max(float(spread.max(initial=0)), 1e-30)
        width = max(int(varies.sum()), 1) ** 0.5
        return cls(rows.mean(0), np.where(varies, spread * width, np.inf))

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        return (rows - self.centre) / self.scale


@dataclass(frozen=True)
class Head:
    """Scores pictures by their features: log-odds, so that σ(score_a - score_b) is about how often a is preferred to b.

    Attributes:
        weights: [D], of the scaled features.
        encoder: the name of the encoder's folder.
        fingerprint: of the encoder's weights.
        about: what else its file says: counts, accuracy, calibration.
    """

    scaling: Scaling
    weights: np.ndarray
    encoder: str
    fingerprint: str
    about: Mapping[str, Any] = field(default_factory=dict)

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """[N], of features [N, D]."""
        return self.scaling(rows) @ self.weights

    def check(self, folder: Path) -> None:
        """Raises RewardError if the encoder in that folder is not the one that this head was fitted on."""
        there = fingerprint(folder)
        if there != self.fingerprint:
            raise RewardError(
                f"this taste was fitted on the encoder {self.encoder!r} (weights {self.fingerprint[:12]}), and {folder} holds "
                f"another one (weights {there[:12]}): the head would read features that it does not know. Fix: set encoder to "
                f"{self.encoder!r}, or fit the taste again with `otca taste fit --encoder {folder.name}`"
            )

    def save(self, path: Path) -> None:
        arrays = (self.scaling.centre, self.scaling.scale, self.weights)
        tensors = {name: np.ascontiguousarray(array, np.float32) for name, array in zip(TENSORS, arrays, strict=True)}
        about = {"format": FORMAT, "version": VERSION, "encoder": self.encoder, "encoder_sha256": self.fingerprint}
        about |= {name: json.dumps(value) for name, value in self.about.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path, about)

    @classmethod
    def load(cls, path: Path) -> Head:
        """Raises RewardError if the file is not a taste, or one of another version."""
        try:
            with safe_open(path, "np") as file:
                about = dict(file.metadata() or {})
                arrays = {name: file.get_tensor(name).astype(np.float64) for name in file.keys()}
        except (OSError, SafetensorError, ValueError, TypeError) as error:
            raise RewardError(f"{path} cannot be read as a taste ({error}). Fix: {_FIX}") from error
        if about.pop("format", None) != FORMAT:
            raise RewardError(f"{path} is not a taste: its metadata have no format {FORMAT!r}. Fix: {_FIX}")
        if (version := about.pop("version", None)) != VERSION:
            raise RewardError(f"{path} is a taste of version {version}, and this version reads {VERSION}. Fix: {_FIX}")
        for name in TENSORS:
            if name not in arrays:
                raise RewardError(f"{path} has no {name!r}, which every taste has. Fix: {_FIX}")
            array = arrays[name]
            infinite = name != "scale" and np.isinf(array).any()  # a scale is infinite for what does not vary
            if array.shape != (arrays["mean"].size,) or np.isnan(array).any() or infinite:
                raise RewardError(f"{path} has a {name!r} of shape {array.shape} that is damaged. Fix: {_FIX}")
        try:
            encoder, digest = about.pop("encoder"), about.pop("encoder_sha256")
            more = {name: json_files.parse(value) for name, value in about.items()}
        except (KeyError, ValueError) as error:
            raise RewardError(f"{path} has damaged metadata ({error}). Fix: {_FIX}") from error
        return cls(Scaling(arrays["centre"], arrays["scale"]), arrays["mean"], encoder, digest, more)


@functools.cache
def _digest(files: tuple[tuple[Path, int, int], ...]) -> str:
    return sha256(*(path for path, _, _ in files))


def fingerprint(folder: Path) -> str:
    """SHA-256 of an encoder's weights: of its .safetensors files, in the order of their names."""
    files = sorted(folder.glob("*.safetensors"))
    return _digest(tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in files))


def read_features(network, images: torch.Tensor, batch_size: int = 0) -> np.ndarray:
    """Features [B, D] of pictures [B, H, W, 3], as float64; the same ones for rewards that share the encoder."""
    size = batch_size or len(images)

    def compute() -> torch.Tensor:
        network.come_back()
        with torch.no_grad():
            return torch.cat([features.of_layers(network, part) for part in images.split(size)])

    return network.once(images, "of_layers", compute).double().numpy()


# --- the reward --------------------------------------------------------------------------------------------------------

SIZE, SOURCE = "some 100 KB", "otca taste fit, which makes it of your own votes,"  # for the message


def find(path: str) -> Path:
    """The head's file, by its path or by its name in a model folder."""
    return search.reward_file(path, "the head", SIZE, SOURCE)


class TasteReward(NetworkReward):
    """Utility for the person who voted, in log-odds; 0 for an average picture of those voted on. The prompt plays no part.

    Args:
        head: what was learned.
        encoder: the encoder that it was fitted on: a folder, the name of one, or a hub id in the local cache; empty: by the name
            that the head has of it.

    Raises:
        FileNotFoundError: the encoder was not found.
        RewardError: it is another encoder.
    """

    reads_prompt = False
    network: features.Clip | features.Encoder

    def __init__(self, name: str, head: Head, encoder: str = "", **use):
        self.head = head
        folder = features.find(encoder or head.encoder)
        head.check(folder)
        super().__init__(name, features.kind_of(folder), folder, **use)

    def score(self, images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        return torch.from_numpy(self.head.scores(read_features(self.network, images, self.batch_size)))

    def differentiable(self, images: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        rows = self.in_batches(lambda part: features.of_layers(self.network, part, preprocess.with_gradient), images)
        scaling = self.head.scaling
        centre, scale, weights = map(torch.from_numpy, (scaling.centre, scaling.scale, self.head.weights))
        return ((rows.double() - centre) / scale @ weights).float()


class MyTaste(TasteReward):
    """The head in a file.

    Args:
        path: the file, by its path or by its name in a model folder.
        encoder: as of TasteReward.

    Raises:
        FileNotFoundError: the file or the encoder was not found.
        RewardError: the file is not a taste, or the encoder is another one.
    """

    def __init__(self, name: str = "my_taste", *, path: str = "taste.safetensors", encoder: str = "", **use):
        super().__init__(name, Head.load(find(path)), encoder, **use)
