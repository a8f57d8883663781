"""Features of pictures by networks, on disk; and latents, in main memory too: each is encoded once, for all trainings with that
autoencoder."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ...host import files, paths
from ...host.recent import Recent
from ..families.base import FlowModel

MOST_BYTES = 4 * 1024**3  # of all latents on disk
MOST_MEMORY = 2 * 1024**3  # of main memory, to a model and a size
_ENDING = ".safetensors"


class Kept:
    """Tensors that can be made again, a file each in a folder."""

    def __init__(self, folder: Path, key: str):
        self.folder, self._key = folder, key

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}{_ENDING}"

    def read(self, name: str) -> Tensor | None:
        """None for one that is not there, or that a full disk cut short."""
        try:
            tensor = load_file(self._file(name))[self._key]
        except (OSError, SafetensorError, KeyError):
            return None
        with contextlib.suppress(OSError):
            os.utime(self._file(name))  # the longest unused go first
        return tensor

    def write(self, name: str, tensor: Tensor) -> None:
        """Without a word if the disk is full: it can be made again."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            files.write_bytes(self._file(name), save({self._key: tensor.contiguous()}))


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
        self._kept = Kept(paths.opinions_cache("latents") / f"{identity}-{width}x{height}", "latent")
        self._rows: Recent[str, Tensor] = Recent(MOST_MEMORY, lambda latent: latent.nbytes)

    def of(self, names: Sequence[str], encode: Callable[[Sequence[int]], Tensor]) -> Tensor:
        """[B, C, (F,) h, w] of B pictures by their files' digests. `encode` makes those of the rows that it is given."""
        rows = {name: self._rows.pop(name, None) for name in dict.fromkeys(names)}
        rows = {name: self._kept.read(name) if latent is None else latent for name, latent in rows.items()}
        missing = [name for name, latent in rows.items() if latent is None]
        if missing:
            for name, latent in zip(missing, encode([names.index(name) for name in missing]), strict=True):
                rows[name] = latent
                self._kept.write(name, latent)
            files.trim(paths.opinions_cache("latents").glob(f"*/*{_ENDING}"), MOST_BYTES)
        self._rows |= {name: latent for name, latent in rows.items() if latent is not None}
        self._rows.trim(len(rows))
        return torch.stack([self._rows[name] for name in names])
