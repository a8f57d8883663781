"""A drawn training set, held in memory: pictures with the caption of each."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch

from .worlds import World

_HEARINGS = 64  # of each caption of a careless set, from which one is drawn whenever a picture of it is trained on


@dataclass(frozen=True)
class Drawings:
    """Pictures [N, 3, H, W] uint8 and the number of each one's caption [N], in the order of `world.scenes`.

    `heard` [captions, any]: the numbers of the captions that the model may be given in place of each.
    `shares` [captions]: how often each is trained on, as compared with the others.
    """

    world: World
    pictures: torch.Tensor
    caption: torch.Tensor
    heard: torch.Tensor
    shares: torch.Tensor

    def floats(self, index: torch.Tensor) -> torch.Tensor:
        """Pictures as [B, 3, H, W] in [-1, 1], every second one mirrored where the world allows it."""
        batch = self.pictures[index].float().div(127.5).sub(1)
        if self.world.mirrored:
            batch[::2] = batch[::2].flip(-1)
        return batch

    def some(self, count: int) -> torch.Tensor:
        """Numbers of so many pictures to train on, drawn by how often the world wants each scene."""
        per_caption = len(self.caption) // len(self.shares)
        captions = torch.multinomial(self.shares, count, replacement=True)
        return captions * per_caption + torch.randint(per_caption, (count,))

    def heard_captions(self, index: torch.Tensor) -> torch.Tensor:
        """The captions that these pictures are trained with this time, [B]."""
        return self.heard[self.caption[index], torch.randint(self.heard.shape[1], (len(index),))]


def drawings(world: World, per_caption: int, seed: int, careless: bool = False) -> Drawings:
    """So many pictures of every scene; a careless set has flawed ones among them, and captions that were misheard."""
    random = np.random.default_rng(seed)
    draw = world.misdrawn if careless else world.draw
    pairs = [(draw(scene, random), number) for number, scene in enumerate(world.scenes) for _ in range(per_caption)]
    pictures = torch.from_numpy(np.stack([picture for picture, _ in pairs])).permute(0, 3, 1, 2).contiguous()
    positions = {scene: position for position, scene in enumerate(world.scenes)}
    heard = [
        [positions[world.misheard(scene, random)] for _ in range(_HEARINGS)] if careless else [number]
        for number, scene in enumerate(world.scenes)
    ]
    kinds = [world.category(scene) for scene in world.scenes]
    counts = Counter(kinds)
    shares = torch.tensor([world.shares[kind] / counts[kind] for kind in kinds])
    return Drawings(world, pictures, torch.tensor([number for _, number in pairs]), torch.tensor(heard), shares)
