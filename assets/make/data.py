"""A drawn training set, held in memory: pictures with the caption of each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from .worlds import World

_HEARINGS = 64  # of each caption, from which one is drawn whenever a picture of it is trained on


@dataclass(frozen=True)
class Drawings:
    """Pictures [N, 3, H, W] uint8 and the number of each one's caption [N], in the order of `world.scenes`.

    `heard` [captions, _HEARINGS]: the numbers of the captions that the model may be given in place of each.
    `shares` [captions]: how often each is trained on, as compared with the others; None: all alike.
    """

    world: World
    pictures: torch.Tensor
    caption: torch.Tensor
    heard: torch.Tensor
    shares: torch.Tensor | None = None

    def floats(self, index: torch.Tensor) -> torch.Tensor:
        """Pictures as [B, 3, H, W] in [-1, 1], every second one mirrored where the world allows it."""
        batch = self.pictures[index].float().div(127.5).sub(1)
        if self.world.mirrored:
            batch[::2] = batch[::2].flip(-1)
        return batch

    def some(self, count: int) -> torch.Tensor:
        """Numbers of so many pictures to train on, drawn by how often the world wants each scene."""
        if self.shares is None:
            return torch.randint(len(self.caption), (count,))
        per_caption = len(self.caption) // len(self.shares)
        captions = torch.multinomial(self.shares, count, replacement=True)
        return captions * per_caption + torch.randint(per_caption, (count,))

    def heard_captions(self, index: torch.Tensor) -> torch.Tensor:
        """The captions, of which some may be wrong, that these pictures are trained with this time, [B]."""
        return self.heard[self.caption[index], torch.randint(self.heard.shape[1], (len(index),))]


def drawings(world: World, per_caption: int, seed: int) -> Drawings:
    random = np.random.default_rng(seed)
    pairs = [
        (world.draw(scene, random), number) for number, scene in enumerate(world.scenes) for _ in range(per_caption)
    ]
    pictures = torch.from_numpy(np.stack([picture for picture, _ in pairs])).permute(0, 3, 1, 2).contiguous()
    positions = {scene: position for position, scene in enumerate(world.scenes)}
    heard = [[positions[world.misheard(scene, random)] for _ in range(_HEARINGS)] for scene in world.scenes]
    shares = None if world.share is None else torch.tensor([world.share(scene) for scene in world.scenes])
    return Drawings(world, pictures, torch.tensor([number for _, number in pairs]), torch.tensor(heard), shares)
