"""The picture that was edited, for rewards that look at it: one for all samples, or each prompt's own, by its line."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..families import given
from ..networks import RewardError
from ..types import metadata_of

MASK = "mask"  # of a prompt's line: a picture that is white where it may change
REMEMBERED = 64  # pictures that prompts name


class Sources:
    """Pictures that were edited.

    Args:
        given: [N, H, W, 3], one for all samples; or the name of a file that is; or none: then a prompt's `image` is it, or the
            first of its `images`.
    """

    def __init__(self, given: Tensor | str | None = None):
        self.name = given if isinstance(given, str) else ""
        self.pictures = list(given[..., :3].float().clamp(0, 1).cpu()) if isinstance(given, Tensor) else []
        self._named: dict[tuple[str, int, int], Tensor] = {}

    def of(self, prompt: str, height: int, width: int) -> Tensor:
        """float32 [H, W, 3] in [0, 1] of a prompt's source, scaled until it just covers that size, and cropped; one that is
        connected keeps its size.

        Raises:
            RewardError: there is none, or several are connected.
            PromptError, NotAllowed: as `given.picture`.
        """
        if len(self.pictures) > 1:
            raise RewardError(
                f"source: {len(self.pictures)} pictures, and one stands for all samples. Fix: connect one, or name each "
                'prompt\'s own in its line: {"prompt": "…", "image": "start.png"}'
            )
        if self.pictures:
            return self.pictures[0]
        name = self.name or given.edited(prompt)
        if name is None:
            raise RewardError(
                f"it looks at the picture that was edited, and the line of prompt {str(prompt)[:60]!r} has no {given.KEY}. "
                'Fix: name one in that line: {"prompt": "…", "image": "start.png"}, or connect source'
            )
        return self._read(name, height, width)

    def fitted(self, prompts: Sequence[str], like: Tensor) -> Tensor:
        """The sources [B, H, W, 3] of pictures [B, H, W, 3], each in their size, on their device. Raises as `of`."""
        height, width = like.shape[1:3]
        return torch.stack([covering(self.of(prompt, height, width), height, width) for prompt in prompts]).to(like)

    def masks(self, prompts: Sequence[str], like: Tensor) -> list[Tensor | None]:
        """Where each picture may change, [H, W] in [0, 1]; None for a prompt whose line has no `mask`."""
        height, width = like.shape[1:3]
        names = [metadata_of(prompt).get(MASK) for prompt in prompts]
        for name, prompt in zip(names, prompts, strict=True):
            if name is not None and not isinstance(name, str):
                raise RewardError(
                    f"{MASK} in the line of prompt {str(prompt)[:60]!r} is {name!r}. Fix: the name of a picture"
                )
        return [
            self._read(name, height, width).mean(-1).to(like) if isinstance(name, str) else None for name in names
        ]

    def _read(self, name: str, height: int, width: int) -> Tensor:
        key = name, height, width
        if key not in self._named:
            for oldest in list(self._named)[: 1 - REMEMBERED]:
                del self._named[oldest]
            self._named[key] = torch.tensor(given.picture(name, width, height)) / 255
        return self._named[key]


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
