"""A taste as a file: a linear head on the features of one frozen encoder, with what it is sure of."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from ....host import json_files
from ...networks import RewardError, features
from .posterior import Posterior

if TYPE_CHECKING:
    from torch import Tensor

FORMAT, VERSION = "otca-taste", "1"
TENSORS = ("centre", "scale", "mean", "basis", "covariance")
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
        encoder: the name of the encoder's folder.
        fingerprint: of the encoder's weights.
        about: what else its file says: counts, accuracy, calibration.
    """

    scaling: Scaling
    posterior: Posterior
    encoder: str
    fingerprint: str
    about: Mapping[str, Any] = field(default_factory=dict)

    def scores(self, rows: np.ndarray) -> np.ndarray:
        """[N], of features [N, D]."""
        return self.scaling(rows) @ self.posterior.mean

    def check(self, folder: Path) -> None:
        """Raises RewardError where the encoder in that folder is not the one that this head was fitted on."""
        there = fingerprint(folder)
        if there != self.fingerprint:
            raise RewardError(
                f"this taste was fitted on the encoder {self.encoder!r} (weights {self.fingerprint[:12]}), and {folder} holds "
                f"another one (weights {there[:12]}): the head would read features that it does not know. Fix: set encoder to "
                f"{self.encoder!r}, or fit the taste again with `otca taste fit --encoder {folder.name}`"
            )

    def save(self, path: Path) -> None:
        from safetensors.torch import save_file

        arrays = (
            self.scaling.centre,
            self.scaling.scale,
            self.posterior.mean,
            self.posterior.basis,
            self.posterior.covariance,
        )
        tensors = {
            name: torch.from_numpy(np.ascontiguousarray(array, np.float32))
            for name, array in zip(TENSORS, arrays, strict=True)
        }
        about = {"format": FORMAT, "version": VERSION, "encoder": self.encoder, "encoder_sha256": self.fingerprint}
        about |= {"strength": repr(self.posterior.strength)}
        about |= {name: json.dumps(value) for name, value in self.about.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, path, about)

    @classmethod
    def load(cls, path: Path) -> Head:
        """Raises RewardError where the file is no taste, or one of another version."""
        try:
            with safe_open(path, "np") as file:
                about = dict(file.metadata() or {})
                arrays = {name: file.get_tensor(name).astype(np.float64) for name in file.keys()}
        except (OSError, SafetensorError, ValueError, TypeError) as error:
            raise RewardError(f"{path} cannot be read as a taste ({error}). Fix: {_FIX}") from error
        if about.pop("format", None) != FORMAT:
            raise RewardError(f"{path} is no taste: its metadata have no format {FORMAT!r}. Fix: {_FIX}")
        if (version := about.pop("version", None)) != VERSION:
            raise RewardError(f"{path} is a taste of version {version}, and this version reads {VERSION}. Fix: {_FIX}")
        centre, scale, mean, basis, covariance = cls._checked(path, arrays)
        try:
            encoder, digest, strength = about.pop("encoder"), about.pop("encoder_sha256"), float(about.pop("strength"))
            more = {name: json_files.parse(value) for name, value in about.items()}
        except (KeyError, ValueError) as error:
            raise RewardError(f"{path} has damaged metadata ({error}). Fix: {_FIX}") from error
        return cls(Scaling(centre, scale), Posterior(mean, basis, covariance, strength), encoder, digest, more)

    @staticmethod
    def _checked(path: Path, arrays: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        missing = [name for name in TENSORS if name not in arrays]
        if missing:
            raise RewardError(f"{path} has no {missing[0]!r}, which every taste has. Fix: {_FIX}")
        width, rank = arrays["mean"].size, len(np.atleast_1d(arrays["covariance"]))
        shapes = ((width,), (width,), (width,), (width, rank), (rank, rank))
        for name, shape in zip(TENSORS, shapes, strict=True):
            if arrays[name].shape != shape or _damaged(name, arrays[name]):
                raise RewardError(f"{path} has a {name!r} of shape {arrays[name].shape} that is damaged. Fix: {_FIX}")
        return [arrays[name] for name in TENSORS]


def _damaged(name: str, array: np.ndarray) -> bool:
    """An infinite scale alone is right: of what does not vary."""
    return bool(np.isnan(array).any() or (name != "scale" and np.isinf(array).any()))


@functools.cache
def _digest(files: tuple[tuple[Path, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for path, _, _ in files:
        with open(path, "rb") as file:
            while block := file.read(2**24):
                digest.update(block)
    return digest.hexdigest()


def fingerprint(folder: Path) -> str:
    """SHA-256 of an encoder's weights: of its .safetensors files, in the order of their names."""
    files = sorted(folder.glob("*.safetensors"))
    return _digest(tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in files))


def read(network, images: Tensor, batch_size: int = 0) -> np.ndarray:
    """Features [B, D] of pictures [B, H, W, 3], as float64; the same ones for rewards that share the encoder."""
    size = batch_size or len(images)

    def compute() -> Tensor:
        network.come_back()
        with torch.no_grad():
            return torch.cat([features.of_layers(network, part) for part in images.split(size)])

    return network.once(images, "of_layers", compute).double().numpy()
