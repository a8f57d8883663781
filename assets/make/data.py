"""The drawn training set, held in memory: pictures with the caption of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ...trainer.rewards.shapes import scenes
from .draw import draw


@dataclass(frozen=True)
class Drawings:
    """Pictures [N, 3, H, W] uint8 and the number of each one's caption [N], in the order of `scenes()`."""

    pictures: torch.Tensor
    caption: torch.Tensor

    def floats(self, index: torch.Tensor) -> torch.Tensor:
        """Pictures as [B, 3, H, W] in [-1, 1], every second one mirrored (no caption speaks of left or right)."""
        batch = self.pictures[index].float().div(127.5).sub(1)
        batch[::2] = batch[::2].flip(-1)
        return batch


def drawings(per_caption: int, seed: int) -> Drawings:
    random = np.random.default_rng(seed)
    pairs = [(draw(scene, random), number) for number, scene in enumerate(scenes()) for _ in range(per_caption)]
    pictures = torch.from_numpy(np.stack([picture for picture, _ in pairs])).permute(0, 3, 1, 2).contiguous()
    return Drawings(pictures, torch.tensor([number for _, number in pairs]))
