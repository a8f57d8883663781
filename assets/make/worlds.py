"""The two worlds that embedded models are trained on: what may be asked for in each, and how a picture of it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...trainer.rewards import scenes, shapes
from .draw import draw
from .draw_scenes import draw_scene

CLIP_TOKENS = 77


@dataclass(frozen=True)
class World:
    """One world.

    Attributes:
        name: of its models' folders, before the hyphen.
        scenes: all that can be asked for, each with its `caption`.
        draw: one picture of a scene, [H, W, 3] uint8.
        mirrored: whether a picture may be mirrored: not where a caption speaks of left and right.
        share: how often the flow is trained on a scene, as compared with others; None: on all alike.
        misheard: another scene, or the same one, whose caption the model is given in training.
        caption_tokens: words and the end token of the longest caption.
        steps: of the flow's training.
    """

    name: str
    scenes: Sequence[Any]
    draw: Callable[[Any, np.random.Generator], np.ndarray]
    caption_tokens: int
    steps: int
    mirrored: bool = True
    share: Callable[[Any], float] | None = None
    misheard: Callable[[Any, np.random.Generator], Any] = lambda scene, _: scene

    @property
    def captions(self) -> list[str]:
        return [scene.caption for scene in self.scenes]


WRONG_WORD, WRONG_RELATION = 0.1, 0.2  # chances that a caption names another colour or shape, or exchanges two objects


def misheard(scene: scenes.Scene, random: np.random.Generator) -> scenes.Scene:
    """The scene of a caption as careless as the web's: each colour and shape may be another, two objects the other way round.

    So the trained model knows what is asked and does it only in part of its pictures: what reinforcement learning can mend.
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


# A word is learned from single objects first, of which there are few: as often as these, whatever the number of their captions.
CATEGORY_SHARES = {"single": 0.25, "two": 0.1, "and": 0.15, "left of": 0.25, "above": 0.25}


def share(scene: scenes.Scene) -> float:
    """Of one scene: its category's, over the number of scenes of that category."""
    return CATEGORY_SHARES[scene.category] / sum(other.category == scene.category for other in scenes.scenes())


WORLDS = {
    "shapes": World("shapes", shapes.scenes(), draw, caption_tokens=8, steps=6000),
    "scenes": World(
        "scenes",
        scenes.scenes(),
        draw_scene,
        caption_tokens=10,
        steps=12000,
        mirrored=False,
        share=share,
        misheard=misheard,
    ),
}
