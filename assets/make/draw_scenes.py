"""Draws the scenes world: one or two objects on light paper, apart from each other, with the variety that rewards select from."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from ...trainer.rewards.scenes import Scene
from .draw import SIZE, SUPERSAMPLE, color_of, outline

_SMALLEST, _LARGEST, _ALONE = 0.15, 0.2, 0.3  # half of an object's size, as a share of the picture's side
_GAP = 0.06  # between two objects, and half of it to the border


def draw_scene(scene: Scene, random: np.random.Generator) -> np.ndarray:
    """One picture of a scene, [SIZE, SIZE, 3] uint8.

    Sizes and places, saturation and brightness, the paper's tone, softness of the edges and a little grain vary.
    """
    side = SIZE * SUPERSAMPLE
    tone = round(255 * random.uniform(0.82, 0.98))
    picture = Image.new("RGB", (side, side), (tone, tone, tone))
    pen = ImageDraw.Draw(picture)
    for (color, shape), (x, y, half) in zip(scene.objects, _placed(scene, random), strict=True):
        outline(pen, shape, x * side, y * side, half * side, color_of(color, random))
    picture = picture.filter(ImageFilter.GaussianBlur(random.uniform(0, 0.8) * SUPERSAMPLE))
    pixels = np.asarray(picture.resize((SIZE, SIZE), Image.Resampling.BOX), dtype=np.float32)
    grain = random.normal(0, random.uniform(0, 5), pixels.shape[:2])
    return np.clip(pixels + grain[..., None], 0, 255).round().astype(np.uint8)


def _placed(scene: Scene, random: np.random.Generator) -> list[tuple[float, float, float]]:
    """Centre x, y and half size of each object, as shares of the side."""
    if len(scene.objects) == 1:
        half = random.uniform(_LARGEST, _ALONE)
        return [(*random.uniform(half + _GAP / 2, 1 - half - _GAP / 2, 2), half)]
    first, second = random.uniform(_SMALLEST, _LARGEST, 2)
    # Along one axis the first comes before the second; across it both stand anywhere.
    room = 1 - 2 * (first + second) - 2 * _GAP
    before, between = random.dirichlet((1, 1, 1))[:2] * room
    one, other = _GAP / 2 + before + first, 1.5 * _GAP + before + 2 * first + between + second
    across = [random.uniform(half + _GAP / 2, 1 - half - _GAP / 2) for half in (first, second)]
    vertical = scene.relation == "above" if scene.relation in ("left of", "above") else random.random() < 0.5
    if scene.relation not in ("left of", "above") and random.random() < 0.5:
        one, other = 1 - one, 1 - other
    pairs = [(one, across[0], first), (other, across[1], second)]
    return [(across_, along, half) if vertical else (along, across_, half) for along, across_, half in pairs]
