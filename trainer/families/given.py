"""The picture that a prompt's video begins with: `image` in its line of a .jsonl file, as image-to-video models want it."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from ...host.access import opening, permissions
from ..prompts import PromptError
from ..types import metadata_of

KEY = "image"
SEVERAL = "images"  # the first of them is the one that an edit begins with


def names(prompts: Sequence[str]) -> list[str]:
    """The picture of each prompt, by its name; none where no prompt has one.

    Raises:
        PromptError: some have one, and some have not; or it is not a text.
    """
    found = [metadata_of(prompt).get(KEY) for prompt in prompts]
    if all(name is None for name in found):
        return []
    for prompt, name in zip(prompts, found, strict=True):
        if not isinstance(name, str):
            wrong = "no" if name is None else f"{opening.shown(name)} for its"
            message = f"prompt {prompt[:60]!r} has {wrong} {KEY}, and others have one"
            raise PromptError(f"{message}. Fix: give every line the name of a picture, or none")
    return [name for name in found if isinstance(name, str)]


def edited(prompt: str) -> str | None:
    """The name of the picture that a prompt's line says is edited: its `image`, or the first of its `images`."""
    metadata = metadata_of(prompt)
    several = metadata.get(SEVERAL)
    name = metadata.get(KEY) or (several[0] if isinstance(several, list) and several else several)
    return name if isinstance(name, str) else None


def missing(prompt: str) -> PromptError:
    """The error of a model that needs a picture."""
    return PromptError(
        f"prompt {prompt[:60]!r} has no {KEY}, and this model makes videos of pictures. Fix: a .jsonl file with lines like "
        '{"prompt": "…", "image": "start.png"}'
    )


def check(name: str) -> None:
    """Raises as `picture` where that file may not be opened."""
    opening.in_time(lambda: os.close(_opened(name)))


def picture(name: str, width: int, height: int) -> np.ndarray:
    """uint8 [height, width, 3] of a picture that a prompt names, see `media.fitted`.

    Raises:
        NotAllowed: a file that workflows may not read.
        PromptError: no picture of that name.
    """
    from ..pictures import media

    content = opening.in_time(lambda: opening.read(_opened(name), permissions.MOST_PICTURE_BYTES))
    try:
        return media.fitted(content, width, height)
    except ValueError as error:
        raise _unfit(name, error) from error


def _opened(name: str) -> int:
    try:
        return permissions.open_prompts(name, picture=True)[1]
    except permissions.NotAllowed:
        raise
    except (OSError, ValueError) as error:
        raise _unfit(name, error) from error


def _unfit(name: str, error: Exception) -> PromptError:
    message = f"{KEY} {opening.shown(name)} of a prompt: {error}".partition(". Fix: ")[0]
    return PromptError(f"{message}. Fix: put a picture of that name into ComfyUI's input folder")
