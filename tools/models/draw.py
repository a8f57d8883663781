"""Draws the shapes world: one shape of one colour on a plain background, with the variety that rewards can select from."""

from __future__ import annotations

import colorsys

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from ...trainer.rewards.shapes import PALETTE, Scene

SIZE = 40  # pixels a side: 4x down to 10x10 latents, packed 2x2 to 25 transformer tokens
SUPERSAMPLE = 4


def draw(scene: Scene, random: np.random.Generator) -> np.ndarray:
    """One picture of a scene, [SIZE, SIZE, 3] uint8.

    Size and place, saturation and brightness of both colours, softness of the edge and a little paper grain vary: a reward
    for colour, sharpness or smoothness finds pictures it prefers already in the untrained model's reach.
    """
    assert scene.color is not None and scene.background is not None  # None is for what a judge could not tell
    side = SIZE * SUPERSAMPLE
    half = random.uniform(0.2, 0.36) * side
    x, y = (random.uniform(half + 0.04 * side, side - half - 0.04 * side) for _ in range(2))
    picture = Image.new("RGB", (side, side), color_of(scene.background, random))
    pen, ink = ImageDraw.Draw(picture), color_of(scene.color, random)
    assert scene.shape is not None
    outline(pen, scene.shape, x, y, half, ink)
    picture = picture.filter(ImageFilter.GaussianBlur(random.uniform(0, 1.2) * SUPERSAMPLE))
    pixels = np.asarray(picture.resize((SIZE, SIZE), Image.Resampling.BOX), dtype=np.float32)
    grain = random.normal(0, random.uniform(0, 6), pixels.shape[:2])
    return np.clip(pixels + grain[..., None], 0, 255).round().astype(np.uint8)


def outline(
    pen: ImageDraw.ImageDraw,
    shape: str,
    x: float,
    y: float,
    half: float,
    ink: tuple[int, int, int],
    stretch: float = 1.0,
) -> None:
    """Fills one shape around (x, y), wider than high where `stretch` is above 1."""
    wide, high = half * stretch, half / stretch
    box = (x - wide, y - high, x + wide, y + high)
    if shape == "circle":
        pen.ellipse(box, fill=ink)
    elif shape == "square":
        pen.rectangle(box, fill=ink)
    else:
        pen.polygon([(x, y - high), (x - wide, y + high), (x + wide, y + high)], fill=ink)


def color_of(name: str, random: np.random.Generator) -> tuple[int, int, int]:
    """A colour of the palette, a little paler or darker."""
    hue, saturation, value = colorsys.rgb_to_hsv(*(c / 255 for c in PALETTE[name]))
    saturation = min(1.0, saturation * random.uniform(0.7, 1.15))
    value = min(1.0, value * random.uniform(0.85, 1.1))
    red, green, blue = colorsys.hsv_to_rgb(hue, saturation, value)
    return round(255 * red), round(255 * green), round(255 * blue)
