"""The shapes world: its captions, its palette, and an exact judge of its pictures.

The embedded models in assets/ were trained on pictures drawn from this grammar. Nothing here is learned: the judge reads
colour and shape off the pixels, so that it can say whether training kept the prompt's meaning while a reward rose.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from ..families import given
from .base import Reward
from .sources import Sources, covering

PALETTE = {
    "red": (200, 50, 50),
    "orange": (228, 135, 50),
    "yellow": (226, 210, 70),
    "green": (60, 150, 75),
    "blue": (60, 90, 190),
    "purple": (135, 70, 165),
    "white": (230, 230, 230),
    "black": (40, 40, 40),
}
SHAPES = ("circle", "square", "triangle")

_AREA = (0.03, 0.6)  # a shape fills this share of the picture, or it is none
_ASPECT = 1.6  # longest side of the bounding box over the shortest
_OVERLAP = 0.74  # intersection over union with the ideal shape in the same box; a worse fit is no shape at all
_MAIN_COLOR = 0.5  # share of the pixels off the background that have the shape's own colour; edges take the rest
_CAPTION = re.compile(
    rf"\ban? ({'|'.join(PALETTE)}) ({'|'.join(SHAPES)}) on an? ({'|'.join(PALETTE)}) background\b", re.IGNORECASE
)

_EDIT = re.compile(
    rf"\b(?:make it ({'|'.join(PALETTE)})|draw an? ({'|'.join(PALETTE)}) ({'|'.join(SHAPES)}))\b", re.IGNORECASE
)
_STAYS = 0.7  # intersection over union of a shape before and after it got another colour


@dataclass(frozen=True)
class Scene:
    """The shape that a caption asks for, or what the judge saw (`None` where it could not tell)."""

    color: str | None
    shape: str | None
    background: str | None

    @property
    def caption(self) -> str:
        return f"{_article(self.color)} {self.color} {self.shape} on {_article(self.background)} {self.background} background"


def _article(word: str | None) -> str:
    return "an" if word and word[0] in "aeiou" else "a"


@dataclass(frozen=True)
class Edit:
    """The edit that an instruction asks of a picture of the world: another colour for its shape, or on plain ground a shape."""

    color: str
    shape: str | None = None

    @property
    def caption(self) -> str:
        return f"draw {_article(self.color)} {self.color} {self.shape}" if self.shape else f"make it {self.color}"

    def of(self, before: Scene) -> Scene:
        """The scene that it makes of another one."""
        return replace(before, color=self.color, shape=self.shape or before.shape)


def parse_edit(text: str) -> Edit | None:
    """The edit that a prompt asks for, or None when it is not of this world."""
    match = _EDIT.search(text)
    return Edit((match[1] or match[2]).lower(), match[3] and match[3].lower()) if match else None


def parse_caption(text: str) -> Scene | None:
    """The scene a prompt describes, or None when it is not of this world."""
    match = _CAPTION.search(text)
    return Scene(*(word.lower() for word in match.groups())) if match else None


def recognise(image: np.ndarray) -> Scene:
    """Reads a picture [H, W, 3] in [0, 1] by palette and geometry alone.

    Returns:
        The background is the commonest palette colour along the border, the colour that of most remaining pixels, the shape
        the one that fits best into their bounding box.
    """
    return _seen(image)[0]


def _seen(image: np.ndarray) -> tuple[Scene, np.ndarray]:
    """The shape that `recognise` reads, and where the shape is, [H, W]."""
    lab = cie_lab(image)
    palette = cie_lab(np.array(list(PALETTE.values()), dtype=np.float64) / 255)
    names = list(PALETTE)
    nearest = np.linalg.norm(lab[:, :, None] - palette, axis=-1).argmin(-1)
    border = np.concatenate(
        [nearest[:2].ravel(), nearest[-2:].ravel(), nearest[:, :2].ravel(), nearest[:, -2:].ravel()]
    )
    background = int(np.bincount(border, minlength=len(names)).argmax())
    inside = np.bincount(nearest[nearest != background], minlength=len(names))
    color = int(inside.argmax())
    if inside.sum() < _AREA[0] * nearest.size or inside[color] < _MAIN_COLOR * inside.sum():
        return Scene(None, None, names[background]), np.zeros(nearest.shape, dtype=bool)
    # Anti-aliased edges fall on third colours of the palette, so the outline is drawn between the two means instead.
    ink, paper = lab[nearest == color].mean(0), lab[nearest == background].mean(0)
    mask = np.linalg.norm(lab - ink, axis=-1) < np.linalg.norm(lab - paper, axis=-1)
    return Scene(names[color], _shape(mask), names[background]), mask


def accuracy(image: np.ndarray, caption: str) -> float | None:
    """1.0 where colour, shape and background are all as asked, else 0.0; None for a caption that is not of this world."""
    scene = parse_caption(caption)
    return None if scene is None else float(recognise(image) == scene)


def followed(image: np.ndarray, source: np.ndarray, edit: Edit) -> float:
    """1.0 where the picture shows what the edit makes of its source [H, W, 3], and a recoloured shape stays in place."""
    (before, place), (after, other) = _seen(source), _seen(image)
    stays = edit.shape is not None or (place & other).sum() >= _STAYS * (place | other).sum()
    return float(stays and after == edit.of(before))


class ShapesAccuracy(Reward):
    """The judge as a reward: 1 where colour, shape and background are as asked, or, of a prompt with a picture, where its edit
    was made. Held out unless switched off."""

    reads_prompt = False  # but for what its grammar knows

    def __init__(self, name: str = "accuracy", coefficient: float = 1.0, held_out: bool = True):
        super().__init__(name, coefficient, held_out)
        self._sources = Sources()

    @classmethod
    def applies_to(cls, prompt: str) -> bool:
        return parse_caption(prompt) is not None or bool(given.named(prompt) and parse_edit(prompt))

    def score(self, images: Tensor, prompts: Sequence[str]) -> list[float | None]:
        return [self._right(image, text) for image, text in zip(images, prompts, strict=True)]

    def _right(self, image: Tensor, text: str) -> float | None:
        edit = parse_edit(text) if given.named(text) else None
        if edit is None:
            return accuracy(image.numpy(), text)
        return followed(image.numpy(), covering(self._sources.of(text), *image.shape[:2]).numpy(), edit)


def _shape(mask: np.ndarray) -> str | None:
    area = mask.sum()
    if not _AREA[0] <= area / mask.size <= _AREA[1]:
        return None
    # One stray pixel in a row must not widen the box.
    rows, columns = np.flatnonzero(mask.sum(1) >= 2), np.flatnonzero(mask.sum(0) >= 2)
    if not rows.size or not columns.size:
        return None
    height, width = rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1
    if max(height, width) > _ASPECT * min(height, width):
        return None
    crop = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    overlap = {
        shape: (crop & ideal).sum() / (crop | ideal).sum() for shape, ideal in ideal_masks(height, width).items()
    }
    best = max(overlap, key=overlap.__getitem__)
    return best if overlap[best] >= _OVERLAP else None


def ideal_masks(height: int, width: int) -> dict[str, np.ndarray]:
    """The mask [height, width] of each shape that fills its box."""
    y, x = (np.arange(height)[:, None] + 0.5) / height, (np.arange(width)[None] + 0.5) / width
    return {
        "circle": (2 * y - 1) ** 2 + (2 * x - 1) ** 2 <= 1,
        "square": np.ones((height, width), dtype=bool),
        "triangle": np.abs(2 * x - 1) <= y,
    }


def cie_lab(rgb: np.ndarray) -> np.ndarray:
    """sRGB in [0, 1] to CIE L*a*b* (D65)."""
    rgb = np.clip(rgb, 0, 1)
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = linear @ to_xyz.T / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.stack([116 * f[..., 1] - 16, 500 * (f[..., 0] - f[..., 1]), 200 * (f[..., 1] - f[..., 2])], -1)
