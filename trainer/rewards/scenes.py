"""The scenes world: captions of one or two objects with a colour, a shape, a count or a relation, and an exact judge of them.

The embedded model scenes-flux was trained on pictures drawn from this grammar, at last on careless ones with captions of which
some are wrong, as those of the web are. The judge takes its idea from GenEval (2310.11513): find the objects, then compare
them with what was asked, by category. Nothing here is learned: objects are connected regions, colour and shape are read off the
pixels.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import ndimage
from torch import Tensor

from .base import Reward
from .shapes import PALETTE, SHAPES, cie_lab, ideal_masks

COLORS = ("red", "yellow", "green", "blue")
RELATIONS = ("and", "left of", "above")

_BACKGROUND = 22.0  # CIE Lab distance from the background below which a pixel belongs to it
_SPECK = 0.006  # regions below this share of the picture are none; …
_OBJECT = 0.02  # … and below this one no object, but something that was not asked for
_OVERLAP = 0.66  # intersection over union with the ideal shape in the same box; a worse fit is no shape at all
_ASPECT = 1.6  # longest side of the bounding box over the shortest
_APART = 0.12  # of the picture's side: by how much one centre has to be left of, or above, the other
_COLOR_SCALE = 30.0  # CIE Lab distance at which a colour's grade has fallen to 1/e
_SHAPE_FROM, _SHAPE_TO = 0.45, 0.65  # overlaps at which a region begins to have a shape, and has one
_SHAPE_MARGIN = 0.1  # by which an overlap is larger than the best other one where a shape is beyond doubt
_RELATION_SCALE = 0.08  # of the picture's side: how steeply the grade of a relation rises

_OBJECTS = rf"({'|'.join(COLORS)}) ({'|'.join(SHAPES)})"
_CAPTION = re.compile(rf"\ba {_OBJECTS}(?: ({'|'.join(RELATIONS)}) a {_OBJECTS})?\b|\btwo {_OBJECTS}s\b", re.IGNORECASE)


@dataclass(frozen=True)
class Scene:
    """The scene of a caption: one or two objects (colour, shape) and how they stand, None for one object or two alike."""

    objects: tuple[tuple[str, str], ...]
    relation: str | None = None

    @property
    def category(self) -> str:
        """The kind of caption: "single", "two", or the relation."""
        return self.relation or ("two" if len(self.objects) == 2 else "single")

    @property
    def caption(self) -> str:
        color, shape = self.objects[0]
        if self.relation:
            return f"a {color} {shape} {self.relation} a {' '.join(self.objects[1])}"
        return f"two {color} {shape}s" if len(self.objects) == 2 else f"a {color} {shape}"


@dataclass(frozen=True)
class Region:
    """One object in a picture: colour and shape, None if the judge cannot tell; its centre (x, y) as shares of the side.

    `distances` are of its colour from those of COLORS, `overlaps` those with the ideals of SHAPES.
    """

    color: str | None
    shape: str | None
    center: tuple[float, float]
    distances: tuple[float, ...]
    overlaps: tuple[float, ...]


def parse_caption(text: str) -> Scene | None:
    """The scene that a prompt describes, or None when it is not of this world."""
    match = _CAPTION.search(text)
    if not match:
        return None
    color, shape, relation, other_color, other_shape, twice_color, twice_shape = (
        word and word.lower() for word in match.groups()
    )
    if twice_color:
        return Scene(((twice_color, twice_shape),) * 2)
    return Scene(((color, shape), (other_color, other_shape)), relation) if relation else Scene(((color, shape),))


def regions(image: np.ndarray) -> list[Region]:
    """The objects of a picture [H, W, 3] in [0, 1]: connected regions that are not of the background's colour."""
    colors = cie_lab(image)
    border = np.concatenate([colors[0], colors[-1], colors[:, 0], colors[:, -1]])
    paper = np.median(border, 0)
    away = np.linalg.norm(colors - paper, axis=-1)
    labels, count = ndimage.label(away > _BACKGROUND)  # pyright: ignore[reportGeneralTypeIssues] its stub says a number
    sizes = np.bincount(labels.ravel())
    kept = [label for label in range(1, count + 1) if sizes[label] >= _SPECK * labels.size]
    return [_region(colors, labels == label, away) for label in kept]


def judge(image: np.ndarray, caption: str) -> float | None:
    """1.0 where exactly the objects that were asked for are there, and stand as asked, else 0.0; None for other captions."""
    scene = parse_caption(caption)
    if scene is None:
        return None
    objects = regions(image)
    if len(objects) != len(scene.objects):
        return 0.0
    return float(
        any(
            all((region.color, region.shape) == thing for region, thing in zip(order, scene.objects, strict=True))
            and (scene.relation in (None, "and") or _apart(order, scene.relation) >= _APART)
            for order in itertools.permutations(objects)
        )
    )


def grade(image: np.ndarray, caption: str) -> float | None:
    """How nearly a picture is what was asked, in [0, 1]: a judge that says how far there is to go.

    The mean of each object's grade, half for its colour and half for its shape, and of the relation's, by the assignment of
    regions to objects that is best; divided by 1 + the number of regions that were not asked for.
    """
    scene = parse_caption(caption)
    if scene is None:
        return None
    objects: list[Region | None] = list(regions(image))
    missing = max(0, len(scene.objects) - len(objects))
    orders = itertools.permutations(objects + [None] * missing, len(scene.objects))
    surplus = max(0, len(objects) - len(scene.objects))
    return max(_graded(scene, order) for order in orders) / (1 + surplus)


class Scenes(Reward):
    """`judge` as a reward or, unless `strict`, `grade`."""

    reads_prompt = False  # but for what its grammar knows

    def __init__(self, name: str = "scenes", coefficient: float = 1.0, held_out: bool = False, *, strict: bool = False):
        super().__init__(name, coefficient, held_out)
        self.measure = judge if strict else grade

    @classmethod
    def applies_to(cls, prompt: str) -> bool:
        return parse_caption(prompt) is not None

    def score(self, images: Tensor, prompts: Sequence[str]) -> list[float | None]:
        return [self.measure(image, text) for image, text in zip(images.numpy(), prompts, strict=True)]


def _graded(asked: Scene, order: Sequence[Region | None]) -> float:
    grades = [
        0.0
        if region is None
        else 0.5 * float(np.exp(-region.distances[COLORS.index(color)] / _COLOR_SCALE))
        + 0.5 * _shape_grade(region, shape)
        for region, (color, shape) in zip(order, asked.objects, strict=True)
    ]
    if asked.relation in ("left of", "above"):
        both = [region for region in order if region is not None]
        apart = _apart(both, asked.relation) if len(both) == 2 else -np.inf
        grades.append(float(1 / (1 + np.exp(-np.clip((apart - _APART / 2) / _RELATION_SCALE, -50, 50)))))
    return float(np.mean(grades))


def _shape_grade(region: Region, shape: str) -> float:
    """In [0, 1]: whether the region has a shape at all, times how clearly it is this one; ½ where two fit alike."""
    fit = region.overlaps[SHAPES.index(shape)]
    other = max(overlap for name, overlap in zip(SHAPES, region.overlaps, strict=True) if name != shape)
    is_shape = np.clip((fit - _SHAPE_FROM) / (_SHAPE_TO - _SHAPE_FROM), 0, 1)
    return float(is_shape * np.clip(0.5 + (fit - other) / (2 * _SHAPE_MARGIN), 0, 1))


def _apart(pair: Sequence[Region], relation: str) -> float:
    """How far the first centre is left of, or above, the second, as a share of the picture's side."""
    axis = 0 if relation == "left of" else 1
    return pair[1].center[axis] - pair[0].center[axis]


def _region(colors: np.ndarray, mask: np.ndarray, away: np.ndarray) -> Region:
    rows, columns = np.nonzero(mask)
    center = (columns.mean() + 0.5) / mask.shape[1], (rows.mean() + 0.5) / mask.shape[0]
    # Anti-aliased edges lie between two colours, so the colour is that of the half that is farthest from the background.
    core = mask & (away >= np.median(away[mask]))
    ink = np.median(colors[core], 0)
    palette = cie_lab(np.array([PALETTE[name] for name in COLORS], dtype=np.float64) / 255)
    distances = np.linalg.norm(palette - ink, axis=-1)
    # The outline runs half way between the ink and the background.
    outline = mask & (away >= np.linalg.norm(ink - np.median(colors[~mask], 0)) / 2)
    overlaps = _overlaps(outline)
    best = int(np.argmax(overlaps))
    clear = mask.mean() >= _OBJECT and overlaps[best] >= _OVERLAP
    return Region(
        COLORS[int(distances.argmin())], SHAPES[best] if clear else None, center, tuple(distances), tuple(overlaps)
    )


def _overlaps(mask: np.ndarray) -> list[float]:
    """The overlap with each ideal shape that fills its box; zeros without a box that is nearly square."""
    rows, columns = np.flatnonzero(mask.sum(1) >= 2), np.flatnonzero(mask.sum(0) >= 2)
    if not rows.size or not columns.size:
        return [0.0] * len(SHAPES)
    height, width = int(rows[-1] - rows[0] + 1), int(columns[-1] - columns[0] + 1)
    if max(height, width) > _ASPECT * min(height, width):
        return [0.0] * len(SHAPES)
    crop = mask[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    every = ideal_masks(height, width)
    return [float((crop & every[shape]).sum() / (crop | every[shape]).sum()) for shape in SHAPES]
