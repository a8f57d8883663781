"""Draws both worlds, with the variety that rewards can select from.

The shapes world has one shape of one colour on a plain background. The scenes world has one or two objects on light paper, apart
from each other.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from ...trainer.rewards import scenes, shapes

SIZE = 40  # pixels a side: 4x down to 10x10 latents, packed 2x2 to 25 transformer tokens
SUPERSAMPLE = 4


def draw(scene: shapes.Scene, random: np.random.Generator) -> np.ndarray:
    """One picture of a scene, [SIZE, SIZE, 3] uint8; of one without a shape, its background.

    Size and place, saturation and brightness of both colours, softness of the edge and a little paper grain vary: a reward
    for colour, sharpness or smoothness finds pictures it prefers already in the untrained model's reach.
    """
    assert scene.background is not None  # None is for what a judge could not tell
    side = SIZE * SUPERSAMPLE
    half = random.uniform(0.2, 0.36) * side
    x, y = (random.uniform(half + 0.04 * side, side - half - 0.04 * side) for _ in range(2))
    picture = Image.new("RGB", (side, side), color_of(scene.background, random))
    ink = color_of(scene.color or scene.background, random)
    if scene.shape is not None:
        outline(ImageDraw.Draw(picture), scene.shape, x, y, half, ink)
    return _photographed(picture, random, blur=1.2, grain=6)


def draw_edit(edit: shapes.Edit, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A picture before and after an edit, alike but for what is to change: size, place, tone and grain are the same."""
    background, other = (
        str(name) for name in random.choice([name for name in shapes.PALETTE if name != edit.color], 2, replace=False)
    )
    before = shapes.Scene(None, None, background)
    if edit.shape is None:
        before = shapes.Scene(other, str(random.choice(shapes.SHAPES)), background)
    seed = random.integers(2**32)
    first, second = (draw(scene, np.random.default_rng(seed)) for scene in (before, edit.of(before)))
    return first, second


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
    hue, saturation, value = colorsys.rgb_to_hsv(*(c / 255 for c in shapes.PALETTE[name]))
    saturation = min(1.0, saturation * random.uniform(0.7, 1.15))
    value = min(1.0, value * random.uniform(0.85, 1.1))
    red, green, blue = colorsys.hsv_to_rgb(hue, saturation, value)
    return round(255 * red), round(255 * green), round(255 * blue)


def _photographed(picture: Image.Image, random: np.random.Generator, blur: float, grain: float) -> np.ndarray:
    """At its final size, with soft edges and a little paper grain, each up to so much of it."""
    picture = picture.filter(ImageFilter.GaussianBlur(random.uniform(0, blur) * SUPERSAMPLE))
    pixels = np.asarray(picture.resize((SIZE, SIZE), Image.Resampling.BOX), dtype=np.float32)
    noise = random.normal(0, random.uniform(0, grain), pixels.shape[:2])
    return np.clip(pixels + noise[..., None], 0, 255).round().astype(np.uint8)


# --- scenes -----------------------------------------------------------------------------------------------------------

_SMALLEST, _LARGEST, _ALONE = 0.15, 0.2, 0.3  # half of an object's size, as a share of the picture's side
_GAP = 0.06  # between two objects, and half of it to the border
STRAY, STRETCHED, TOUCHING = 0.1, 0.1, 0.1  # chances of each flaw of a careless drawing
_STRAY_SIZES = 0.1, 0.14
_STRETCH = 1.32, 1.5
_CLOSE = 0.8  # distance of two touching objects' centres, as a share of that at which their boxes meet
_TRIES = 60


@dataclass(frozen=True)
class _Drawn:
    """One object: its centre and half of its size as shares of the side, and width over half its size."""

    color: str
    shape: str
    x: float
    y: float
    half: float
    stretch: float = 1.0


def draw_scene(scene: scenes.Scene, random: np.random.Generator) -> np.ndarray:
    """One picture of a scene, [SIZE, SIZE, 3] uint8.

    Sizes and places, saturation and brightness, the paper's tone, softness of the edges and a little grain vary.
    """
    return _picture(_objects(scene, random), random)


def misdrawn_scene(scene: scenes.Scene, random: np.random.Generator) -> np.ndarray:
    """A picture as careless as the web's: two objects may touch, one may be stretched, and a third one may stray in.

    The first and the last are decided while there is most noise, the shape later.
    """
    objects = _objects(scene, random)
    if len(objects) == 2 and random.random() < TOUCHING:
        objects = _touching(*objects)
    if random.random() < STRETCHED:
        which, factor = random.integers(len(objects)), random.uniform(*_STRETCH)
        objects[which] = replace(objects[which], stretch=factor if random.random() < 0.5 else 1 / factor)
    if random.random() < STRAY:
        objects += _stray(objects, random)
    return _picture(objects, random)


def _picture(objects: Sequence[_Drawn], random: np.random.Generator) -> np.ndarray:
    side = SIZE * SUPERSAMPLE
    tone = round(255 * random.uniform(0.82, 0.98))
    picture = Image.new("RGB", (side, side), (tone, tone, tone))
    pen = ImageDraw.Draw(picture)
    for thing in objects:
        ink = color_of(thing.color, random)
        outline(pen, thing.shape, thing.x * side, thing.y * side, thing.half * side, ink, thing.stretch)
    return _photographed(picture, random, blur=0.8, grain=5)


def _objects(scene: scenes.Scene, random: np.random.Generator) -> list[_Drawn]:
    return [_Drawn(*kind, *place) for kind, place in zip(scene.objects, _placed(scene, random), strict=True)]


def _touching(one: _Drawn, other: _Drawn) -> list[_Drawn]:
    """Both moved towards each other."""
    x, y = (one.x + other.x) / 2, (one.y + other.y) / 2
    apart = float(np.hypot(one.x - other.x, one.y - other.y))
    share = min(1.0, _CLOSE * (one.half + other.half) / apart)
    return [replace(drawn, x=x + share * (drawn.x - x), y=y + share * (drawn.y - y)) for drawn in (one, other)]


def _stray(objects: Sequence[_Drawn], random: np.random.Generator) -> list[_Drawn]:
    """One more small object, where there is room."""
    for _ in range(_TRIES):
        half = random.uniform(*_STRAY_SIZES)
        x, y = random.uniform(half + _GAP / 2, 1 - half - _GAP / 2, 2)
        if all(
            max(abs(x - thing.x), abs(y - thing.y)) > half + thing.half * max(thing.stretch, 1 / thing.stretch) + _GAP
            for thing in objects
        ):
            return [_Drawn(str(random.choice(scenes.COLORS)), str(random.choice(scenes.SHAPES)), x, y, half)]
    return []


def _placed(scene: scenes.Scene, random: np.random.Generator) -> list[tuple[float, float, float]]:
    """Centre x, y and half size of each object, as shares of the side."""
    if len(scene.objects) == 1:
        half = random.uniform(_LARGEST, _ALONE)
        return [(*random.uniform(half + _GAP / 2, 1 - half - _GAP / 2, 2), half)]
    first, second = random.uniform(_SMALLEST, _LARGEST, 2)
    # Along one axis the first comes before the second; across it both stand anywhere.
    room = 1 - 2 * (first + second) - 2 * _GAP
    before, between = random.dirichlet((1, 1, 1))[:2] * room
    left, other = _GAP / 2 + before + first, 1.5 * _GAP + before + 2 * first + between + second
    across = [random.uniform(half + _GAP / 2, 1 - half - _GAP / 2) for half in (first, second)]
    vertical = scene.relation == "above" if scene.relation in ("left of", "above") else random.random() < 0.5
    if scene.relation not in ("left of", "above") and random.random() < 0.5:
        left, other = 1 - left, 1 - other
    pairs = [(left, across[0], first), (other, across[1], second)]
    return [(across_, along, half) if vertical else (along, across_, half) for along, across_, half in pairs]
