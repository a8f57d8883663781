"""The picture that was edited, for rewards that look at it: one for all samples, or each prompt's own, by its line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...host.recent import Recent
from ..families import given
from ..networks import RewardError
from ..types import Prompt, metadata_of, place_of

if TYPE_CHECKING:
    from .base import Reward

MASK = "mask"  # of a prompt's line: a picture that is white where it may change
REMEMBERED = 64  # pictures that prompts name


class Sources:
    """Pictures that were edited.

    Args:
        source: [N, H, W, 3], one for all samples; or the name of a file that is; without one a prompt's `image` is it, or the
            first of its `images`.
    """

    def __init__(self, source: Tensor | str | None = None):
        self.name = source if isinstance(source, str) else ""
        self.pictures = list(source[..., :3].float().clamp(0, 1).cpu()) if isinstance(source, Tensor) else []
        self._read: Recent[str, Tensor] = Recent(REMEMBERED)  # by digest, so that one picture is one tensor

    def of(self, prompt: str) -> Tensor:
        """float32 [H, W, 3] in [0, 1] of a prompt's source, in its own size.

        Raises:
            RewardError: no picture is there, or several are connected.
            PromptError, NotAllowed: as `given.sources`.
        """
        if len(self.pictures) > 1:
            raise RewardError(
                f"source: {len(self.pictures)} pictures, and one stands for all samples. Fix: connect one, or name each "
                'prompt\'s own in its line: {"prompt": "…", "image": "start.png"}'
            )
        if self.pictures:
            return self.pictures[0]
        pictures = self._pictures(prompt, self.name)
        if pictures is None:
            raise RewardError(
                f"it looks at the picture that was edited, and {place_of(prompt)} has no {given.KEY}. Fix: name one in that "
                'line: {"prompt": "…", "image": "start.png"}, or connect source'
            )
        return pictures

    def fitted(self, prompts: Sequence[str], like: Tensor) -> Tensor:
        """The sources [B, H, W, 3] of pictures [B, H, W, 3], each in their size, on their device. Raises as `of`."""
        return torch.stack([covering(self.of(prompt), *like.shape[1:3]) for prompt in prompts]).to(like)

    def masks(self, prompts: Sequence[str], like: Tensor) -> list[Tensor | None]:
        """Where each picture may change, [H, W] in [0, 1]; None for a prompt whose line has no `mask`."""
        masks = []
        for prompt in prompts:
            name = metadata_of(prompt).get(MASK)
            if name is not None and not isinstance(name, str):
                raise RewardError(f"{place_of(prompt)} has {name!r} for its {MASK}. Fix: the name of a picture")
            mask = self._pictures(prompt, name) if name else None
            masks.append(None if mask is None else covering(mask, *like.shape[1:3]).mean(-1).to(like))
        return masks

    def _pictures(self, prompt: str, name: str = "") -> Tensor | None:
        """The picture of that name, else the first that the prompt's line names, if it does."""
        line = Prompt(prompt, {given.KEY: name}, place_of(prompt)) if name else prompt
        picture = next(iter(given.pictures(line)), None)
        return self._read.use(picture.digest, lambda: picture.pixels / 255) if picture else None


def beside(prompts: Sequence[str], rewards: Sequence[Reward]) -> tuple[list[Tensor], list[int | None]]:
    """The pictures that were edited, each once, and which of them is each prompt's: its line's, else the one that a reward of
    edits has for all; None for a prompt without one."""
    readers = [held for reward in rewards if isinstance(held := getattr(reward, "sources", None), Sources)]
    connected = next((sources.pictures[0] for sources in readers if sources.pictures), None)
    reader, distinct, places = Sources(), [], []
    for prompt in prompts:
        picture = reader._pictures(prompt) if given.named(prompt) else connected
        if picture is not None and not any(picture is source for source in distinct):
            distinct.append(picture)
        places.append(next((place for place, source in enumerate(distinct) if source is picture), None))
    return distinct, places


def covering(picture: Tensor, height: int, width: int) -> Tensor:
    """A picture [H, W, 3], scaled until it just covers that size, and cropped about its centre."""
    if picture.shape[:2] == (height, width):
        return picture
    scale = max(height / picture.shape[0], width / picture.shape[1])
    size = [max(least, round(side * scale)) for side, least in zip(picture.shape[:2], (height, width), strict=True)]
    planes = picture.movedim(-1, 0)[None]
    made = torch.nn.functional.interpolate(planes, size, mode="bicubic", antialias=True, align_corners=False)
    top, left = (size[0] - height) // 2, (size[1] - width) // 2
    return made[0, :, top : top + height, left : left + width].movedim(0, -1).clamp(0, 1)
