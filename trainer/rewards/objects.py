"""Objects that a prompt asks for: are they in the picture, as many as asked for, of that color, in that place?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import normalize

from ..networks import RewardError
from ..networks.clip import MARKER as CLIP_MARKER
from ..networks.clip import VIT_L, Clip
from ..networks.detector import MARKER, OWLV2, Detector, Found, apart, kind_of
from ..networks.network import shared
from .base import NetworkReward
from .geneval import COLORS, Wish, met, wish

if TYPE_CHECKING:
    from torch import Tensor

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
            self.clip = shared(Clip, VIT_L.find_folder(clip_model, CLIP_MARKER), **where)
        self._nearest: dict[str, Tensor] = {}

    def come_back(self) -> None:
        super().come_back()
        if self.clip is not None:
            self.clip.come_back()

    def rest(self) -> None:
        super().rest()
        if self.offload and self.clip is not None:
            self.clip.leave()

    def score(self, images: Tensor, prompts: Sequence[str]) -> list[float | None]:
        wishes = [wish(prompt) for prompt in prompts]
        for prompt, asked in zip(prompts, wishes, strict=True):
            self._check_colors(prompt, asked)
        alike: dict[tuple[str, ...], list[int]] = {}  # which pictures are asked for the same names
        for row, asked in enumerate(wishes):
            if asked:
                alike.setdefault(asked.names, []).append(row)
        scores: list[float | None] = [None] * len(prompts)
        for names, rows in alike.items():
            size = self.batch_size or len(rows)
            for part in (rows[start : start + size] for start in range(0, len(rows), size)):
                for row, found in zip(part, self.network.find(images[part], names, self.threshold), strict=True):
                    scores[row] = self._share(images[row], wishes[row], found)
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
        answers = met(asked, clear, lambda name, objects: [self._color(image, own, name) for own in objects])
        return float(all(answers)) if self.strict else sum(answers) / len(answers)

    def _color(self, image: Tensor, found: Found, name: str) -> str:
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
