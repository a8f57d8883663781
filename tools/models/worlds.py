"""The two worlds that embedded models are trained on: what may be asked for, how a picture of it is drawn, and training sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations, product
from typing import Any

import numpy as np
import torch

from ...trainer.rewards import scenes, shapes
from .draw import draw as draw_shape
from .draw import draw_edit, draw_scene, misdrawn_scene

CLIP_TOKENS = 77
_HEARINGS = 64  # of each caption of a careless set, from which one is drawn whenever a picture of it is trained on


@dataclass(frozen=True)
class World:
    """One world.

    Attributes:
        name: of its models' folders, before the hyphen.
        scenes: all that can be asked for, each with its `caption`.
        draw: one picture of a scene, [H, W, 3] uint8.
        judge: 1 where a picture [H, W, 3] in [0, 1] is what a caption asks for, else 0.
        caption_tokens: words and the end token of the longest caption.
        steps: of the flow's training.
        mirrored: whether a picture may be mirrored: not where a caption speaks of left and right.
        category: of a scene; the flow is trained on each category as often as `shares` says, and on all scenes of one alike.
        misheard: another scene, or the same one, whose caption the model is given when the training is careless.
        misdrawn: one picture of a scene, maybe with a flaw, when the training is careless.
        careless: the last share of the flow's steps. See `misheard`.
        noise_shift: noise levels are drawn as s·u/(1 + (s − 1)·u) (SD3, 2403.03206, eq. 23). Colour, shape and place are decided
            where there is most noise.
    """

    name: str
    scenes: Sequence[Any]
    draw: Callable[[Any, np.random.Generator], np.ndarray]
    judge: Callable[[np.ndarray, str], float | None]
    caption_tokens: int
    steps: int
    mirrored: bool = True
    category: Callable[[Any], str] = lambda scene: "all"
    shares: Mapping[str, float] = field(default_factory=lambda: {"all": 1.0})
    misheard: Callable[[Any, np.random.Generator], Any] = lambda scene, _: scene
    misdrawn: Callable[[Any, np.random.Generator], np.ndarray] = draw_shape
    careless: float = 0.0
    noise_shift: float = 1.0

    @property
    def captions(self) -> list[str]:
        return [scene.caption for scene in self.scenes]


WRONG_WORD, WRONG_RELATION = 0.03, 0.2  # chances that a caption names another colour or shape, or exchanges two objects


def misheard(scene: scenes.Scene, random: np.random.Generator) -> scenes.Scene:
    """The scene of a caption as careless as the web's: each colour and shape may be another, two objects the other way round.

    A model that knew what is asked, and was then trained on such captions, does it only in part of its pictures. That is a habit,
    which reinforcement learning can mend sooner than what a model never learned.
    """

    def word(right: str, words: Sequence[str]) -> str:
        return (
            str(random.choice([other for other in words if other != right])) if random.random() < WRONG_WORD else right
        )

    objects = tuple((word(color, scenes.COLORS), word(shape, scenes.SHAPES)) for color, shape in scene.objects)
    if scene.category == "two":
        return replace(scene, objects=objects[:1] * 2)
    if scene.relation in ("left of", "above") and random.random() < WRONG_RELATION:
        objects = objects[::-1]
    if scene.relation and objects[0] == objects[1]:
        return scene  # the grammar has no caption for that
    return replace(scene, objects=objects)


# 8 colours x 3 shapes x 7 other backgrounds; 12 objects alone, 12 twice, and 132 ordered pairs in each of 3 relations.
_ON_GROUND = [shapes.Scene(c, s, b) for c, s, b in product(shapes.PALETTE, shapes.SHAPES, shapes.PALETTE) if c != b]
_OBJECTS = list(product(scenes.COLORS, scenes.SHAPES))
_STANDING = [scenes.Scene((object_,) * count) for count in (1, 2) for object_ in _OBJECTS]
_STANDING += [scenes.Scene(pair, relation) for pair, relation in product(permutations(_OBJECTS, 2), scenes.RELATIONS)]

WORLDS = {
    "shapes": World("shapes", _ON_GROUND, draw_shape, shapes.accuracy, caption_tokens=8, steps=6000),
    "scenes": World(
        "scenes",
        _STANDING,
        draw_scene,
        scenes.judge,
        caption_tokens=10,
        steps=6000,
        mirrored=False,
        category=lambda scene: scene.category,
        # Of single objects and of two alike there are few captions.
        shares={"single": 0.15, "two": 0.15, "and": 0.15, "left of": 0.275, "above": 0.275},
        misheard=misheard,
        misdrawn=misdrawn_scene,
        careless=0.25,
        noise_shift=3.0,
    ),
}

# The shapes world's edits, whose pictures are drawn in pairs, and judged beside their sources.
EDITS = World(
    "edit",
    [shapes.Edit(*edit) for edit in product(shapes.PALETTE, (None, *shapes.SHAPES))],
    lambda edit, random: draw_edit(edit, random)[1],
    lambda *_: None,
    caption_tokens=5,
    steps=4000,
    careless=0.15,
)


# --- training sets -----------------------------------------------------------------------------------------------------


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
