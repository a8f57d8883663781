"""Latents of pictures, in main memory and on disk: each is encoded once, for all trainings with that autoencoder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ...host import files, paths
from ..families.base import FlowModel

MOST_BYTES = 4 * 1024**3  # of all latents on disk
MOST_MEMORY = 2 * 1024**3  # of main memory, to a model and a size
_ENDING = ".safetensors"


class Latents:
    """Holds the latents of pictures of one size, by one autoencoder; the longest unused go first.

    Which one it is, is said by what it makes of one fixed picture: the same for a folder of diffusers and for ComfyUI's VAE, and
    another one after any change. A wrong guess costs an encoding, and never a wrong latent.

    Args:
        size: width and height that pictures are fitted to.
    """

    def __init__(self, model: FlowModel, size: tuple[int, int]):
        width, height = size
        picture = torch.rand(1, height, width, 3, generator=torch.Generator().manual_seed(0))
        made = model.encode(picture).mul(100).round().to(torch.int32).numpy()
        identity = hashlib.sha256(made.tobytes()).hexdigest()[:16]
        self.folder = paths.opinions_cache("latents") / f"{identity}-{width}x{height}"
        self._rows: dict[str, Tensor] = {}  # the latest used ones last

    def of(self, names: Sequence[str], encode: Callable[[Sequence[int]], Tensor]) -> Tensor:
        """[B, C, (F,) h, w] of B pictures by their files' digests. `encode` makes those of the rows that it is given."""
        known = {name: self._rows.pop(name, None) for name in dict.fromkeys(names)}
        known = {name: self._read(name) if latent is None else latent for name, latent in known.items()}
        missing = [name for name, latent in known.items() if latent is None]
        if missing:
            for name, latent in zip(missing, encode([names.index(name) for name in missing]), strict=True):
                known[name] = latent
                self._write(name, latent)
            trim(MOST_BYTES)
        self._rows |= {name: latent for name, latent in known.items() if latent is not None}
        latents = torch.stack([self._rows[name] for name in names])
        most = max(len(known), MOST_MEMORY // latents[0].nbytes)
        for name in list(self._rows)[: max(0, len(self._rows) - most)]:
            del self._rows[name]
        return latents

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}{_ENDING}"

    def _read(self, name: str) -> Tensor | None:
        """None for one that is not there, or that a full disk cut short."""
        try:
            latent = load_file(self._file(name))["latent"]
            os.utime(self._file(name))  # the longest unused go first
        except (OSError, SafetensorError, KeyError):
            return None
        return latent

    def _write(self, name: str, latent: Tensor) -> None:
        """Without a word if the disk is full: it can be made again."""
        aside = files.beside(self._file(name))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            save_file({"latent": latent.contiguous()}, aside)
            files.put_in_place(aside, self._file(name))
        except (OSError, SafetensorError):
            aside.unlink(missing_ok=True)


def trim(most_bytes: int) -> int:
    """Removes the longest unused latents until all of them together have at most so many bytes; returns how many they have."""
    listed = []
    for file in paths.opinions_cache("latents").glob(f"*/*{_ENDING}"):
        try:
            stat = os.lstat(file)
        except OSError:
            continue  # another process was faster
        listed.append((stat.st_mtime_ns, stat.st_size, file))
    total = sum(size for _, size, _ in listed)
    for _, size, file in sorted(listed):
        if total <= most_bytes:
            break
        file.unlink(missing_ok=True)
        total -= size
    return total
