"""Objects that a prompt asks for, after GenEval (2310.11513): are they in the picture, as many, of that color, in that place?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError
from torch import Tensor
from torch.nn.functional import normalize

from ..networks import RewardError
from ..networks.detector import OWLV2, Corners, Detector, Found, apart, kind_of
from ..networks.features import MARKER, VIT_L, Clip
from ..networks.network import shared
from ..types import metadata_of
from .base import NetworkReward

# --- what is asked for, and what is met of it -------------------------------------------------------------------------

Color = Literal["red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white"]
Position = Literal["left of", "right of", "above", "below"]
COLORS = get_args(Color)
NEAR = 0.1  # share of both objects' sizes by which they have to be apart to be beside each other
EXAMPLE = '{"class": "cat", "count": 2, "color": "red", "position": ["left of", 0]}'


class Counted(BaseModel):
    """At least `count` objects of that name."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    name: str = Field(alias="class", min_length=1)
    count: StrictInt = Field(1, ge=1)


class Clause(Counted):
    """At least `count` objects of that name, which have that color and stand so to those of an earlier clause."""

    color: Color | None = None
    position: tuple[Position, StrictInt] | None = None


class Wish(BaseModel):
    """The objects that a prompt asks for: every clause of `include`, and fewer than the count of each of `exclude`."""

    include: tuple[Clause, ...] = ()
    exclude: tuple[Counted, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(clause.name for clause in (*self.include, *self.exclude)))


def wish(prompt: str) -> Wish | None:
    """The objects that a prompt's metadata ask for; None if they ask for no objects.

    Raises:
        RewardError: names the prompt and the key, and what should stand there.
    """
    metadata = metadata_of(prompt)
    try:
        objects = Wish(**{key: metadata[key] for key in ("include", "exclude") if metadata.get(key)})
    except ValidationError as error:
        wrong = error.errors()[0]
        raise _refusal(prompt, wrong["loc"], wrong["input"], wrong["msg"]) from None
    for place, clause in enumerate(objects.include):
        if clause.position and not 0 <= clause.position[1] < place:
            message = "The number should be that of a clause before it in include, from 0"
            raise _refusal(prompt, ("include", place, "position"), clause.position, message)
    return objects if objects.names else None


def _refusal(prompt: str, where: Sequence[int | str], given: Any, message: str) -> RewardError:
    key = ".".join(map(str, where))
    return RewardError(
        f"the metadata of the prompt {prompt!r} say {key} = {given!r}. {message}. Fix: in its line, objects as {EXAMPLE}; "
        "all but class may be left out, and in exclude there are only class and count"
    )


def met(
    asked: Wish, found: Mapping[str, Sequence[Found]], colors: Callable[[str, Sequence[Found]], Sequence[str]]
) -> list[bool]:
    """Which requirements are met, in their order: of a clause its count, then its color and position if it has them.

    As GenEval has it: of more objects than asked for the surest count; what has the wrong number has no right color, and what has
    the wrong number or color no right place.

    `found`: the objects of each name, the surest first.
    `colors`: the colors of some objects of a name; asked only where a clause has one.
    """
    answers: list[bool] = []
    right: list[Sequence[Found] | None] = []  # the objects of each clause, if all that it asks for is met
    for clause in asked.include:
        objects = found.get(clause.name, ())[: clause.count]
        so_far = len(objects) == clause.count
        answers.append(so_far)
        if clause.color is not None:
            so_far = so_far and all(color == clause.color for color in colors(clause.name, objects))
            answers.append(so_far)
        if clause.position is not None:
            relation, number = clause.position
            others = right[number]
            pairs = itertools.product(objects, others or ())
            so_far = so_far and others is not None and all(relation in relations(a.box, b.box) for a, b in pairs)
            answers.append(so_far)
        right.append(objects if so_far else None)
    answers += [len(found.get(clause.name, ())) < clause.count for clause in asked.exclude]
    return answers


def relations(one: Corners, other: Corners) -> set[str]:
    """How the one box stands to the other; nothing where they are too near to say, two names where it is diagonal."""
    offsets, apart = [], []
    for axis in (0, 1):
        offset = (one[axis] + one[axis + 2] - other[axis] - other[axis + 2]) / 2
        near = NEAR * (one[axis + 2] - one[axis] + other[axis + 2] - other[axis])
        offsets.append(offset)
        apart.append(math.copysign(max(abs(offset) - near, 0), offset))
    distance = math.hypot(*offsets)
    if max(map(abs, apart)) < 1e-3:
        return set()
    right, down = (value / distance for value in apart)
    holds = {"left of": right < -0.5, "right of": right > 0.5, "above": down < -0.5, "below": down > 0.5}
    return {name for name, is_so in holds.items() if is_so}


# --- the reward -------------------------------------------------------------------------------------------------------

# GenEval's three ways to say it.
COLORED = ("a photo of a {color} {name}", "a photo of a {color}-colored {name}", "a photo of a {color} object")


class Objects(NetworkReward):
    """Share of what the prompt's metadata ask for that a detector finds in the picture, after GenEval (2310.11513).

    Does not apply to a prompt without `include` and `exclude`. A color is the one of COLORS that CLIP finds nearest to what is in
    the box, as in GenEval; what counts pixels would count the background in the box.

    Args:
        path: OWLv2's or Grounding DINO's checkpoint: a folder, the name of one, or a hub id in the local cache.
        clip_model: the CLIP that names colors, likewise. Empty: no prompt may ask for colors.
        strict: 1 where all is as asked for and else 0, which is GenEval's own score.
        threshold: how sure the detector has to be; 0: as its authors' examples.
        overlap: of two boxes of one name that overlap by more (intersection over union) the surer one counts.
    """

    reads_prompt = False  # but its metadata

    network: Detector

    def __init__(
        self,
        name: str = "objects",
        *,
        path: str = OWLV2.source,
        clip_model: str = VIT_L.source,
        strict: bool = False,
        threshold: float = 0.0,
        overlap: float = 0.5,
        **use,
    ):
        folder = OWLV2.find_folder(path, MARKER)
        super().__init__(name, kind_of(folder), folder, **use)
        self.strict, self.threshold, self.overlap = strict, threshold, overlap
        self.clip = None
        if clip_model:
            where = {key: use[key] for key in ("device", "dtype") if key in use}
            self.clip = shared(Clip, VIT_L.find_folder(clip_model, MARKER), **where)
        self._nearest: dict[str, Tensor] = {}

    @classmethod
    def applies_to(cls, prompt: str) -> bool:
        return wish(prompt) is not None

    def come_back(self) -> None:
        super().come_back()
        if self.clip is not None:
            self.clip.come_back()

    def rest(self) -> None:
        super().rest()
        if self.offload and self.clip is not None:
            self.clip.rest()

    def score(self, images: Tensor, prompts: Sequence[str]) -> list[float | None]:
        wishes = [wish(prompt) for prompt in prompts]
        for prompt, wanted in zip(prompts, wishes, strict=True):
            self._check_colors(prompt, wanted)
        alike: dict[tuple[str, ...], list[int]] = {}  # which pictures are asked for the same names
        for row, wanted in enumerate(wishes):
            if wanted:
                alike.setdefault(wanted.names, []).append(row)
        scores: list[float | None] = [None] * len(prompts)
        for names, rows in alike.items():
            size = self.batch_size or len(rows)
            for part in (rows[start : start + size] for start in range(0, len(rows), size)):
                for row, objects in zip(part, self.network.find(images[part], names, self.threshold), strict=True):
                    scores[row] = self._share(images[row], wishes[row], objects)
        return scores

    def _check_colors(self, prompt: str, asked: Wish | None) -> None:
        colored = [clause for clause in asked.include if clause.color] if asked else []
        if colored and self.clip is None:
            raise RewardError(
                f"the metadata of the prompt {prompt!r} ask for a {colored[0].color} {colored[0].name}, and this reward has "
                "no CLIP that tells colors. Fix: set clip_model"
            )

    def _share(self, image: Tensor, asked: Wish | None, found: dict[str, list[Found]]) -> float:
        assert asked is not None
        clear = {name: apart(boxes, self.overlap) for name, boxes in found.items()}
        answers = met(asked, clear, lambda name, objects: [self.color_of(image, own, name) for own in objects])
        return float(all(answers)) if self.strict else sum(answers) / len(answers)

    def color_of(self, image: Tensor, found: Found, name: str) -> str:
        """The color in COLORS that CLIP finds nearest to what is in the box of the picture [H, W, 3]."""
        assert self.clip is not None
        left, top, right, bottom = map(round, found.box)
        height, width = image.shape[:2]
        left, top = min(max(left, 0), width - 1), min(max(top, 0), height - 1)
        cut = image[top : max(bottom, top + 1), left : max(right, left + 1)]
        if name not in self._nearest:
            self._nearest[name] = torch.stack([self._meaning(color, name) for color in COLORS])
        nearness = self._nearest[name] @ normalize(self.clip.pictures(cut[None])[0], dim=0)
        return COLORS[int(nearness.argmax())]

    def _meaning(self, color: str, name: str) -> Tensor:
        """Where CLIP has things of that name and color."""
        assert self.clip is not None
        texts = self.clip.texts([way.format(color=color, name=name) for way in COLORED])
        return normalize(normalize(texts, dim=-1).mean(0), dim=0)
