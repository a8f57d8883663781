"""Pictures that prompts work on: `image` or `images` in a line of a .jsonl file. An edit model changes them, an image-to-video
model begins its video with one.

`sources` gives them as tensors; models, rewards and the page ask the same function.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ...host.access import opening, permissions
from ...host.recent import Recent
from ..prompts import IMAGE as KEY
from ..prompts import PromptError, picture_names
from ..types import place_of

if TYPE_CHECKING:
    from torch import Tensor

MOST_BYTES = 1024**3  # of decoded pictures in main memory


@dataclass(frozen=True)
class Picture:
    """One picture of a prompt: equal to any other of the same content.

    Attributes:
        digest: SHA-256 of its file.
        pixels: uint8 [H, W, 3], upright, of the file's own size. Not to be written to.
    """

    digest: str
    pixels: Tensor = field(compare=False, repr=False)


def sources(prompt: str) -> tuple[Tensor, ...]:
    """The pictures that a prompt works on, in their order: uint8 [H, W, 3] each, of the file's own size; none for plain text.

    They are kept while they are used; do not write to them.

    Raises:
        NotAllowed: a file that workflows may not read.
        PromptError: a file is missing, damaged, animated or too large: says which line and which limit.
    """
    return tuple(picture.pixels for picture in pictures(prompt))


def pictures(prompt: str) -> tuple[Picture, ...]:
    """The pictures of `sources`, each with a digest of its content."""
    return tuple(_read(name, prompt) for name in named(prompt))


def grey(width: int, height: int) -> Picture:
    """A picture of no file, where it counts only that there is one."""
    import torch

    return Picture(f"grey {width} x {height}", torch.full((height, width, 3), 128, dtype=torch.uint8))


def named(prompt: str) -> tuple[str, ...]:
    """The names of a prompt's pictures. Raises PromptError if its line names them in a wrong way."""
    try:
        return picture_names(prompt)
    except ValueError as error:
        fix = f'{{"prompt": "…", "{KEY}": "start.png"}}'
        raise PromptError(f"{place_of(prompt)} {error}. Fix: a line like {fix}") from error


def names(prompts: Sequence[str]) -> list[str]:
    """The one picture of each prompt that a video begins with, by its name; none where no prompt has one.

    Raises:
        PromptError: some have one, and some have not; or one has several.
    """
    lists = list(map(named, prompts))
    if not any(lists):
        return []
    for prompt, listed in zip(prompts, lists, strict=True):
        if len(listed) != 1:
            wrong = (
                f"has no {KEY}, and others have one"
                if not listed
                else f"has {len(listed)} pictures, and a video begins with one"
            )
            raise PromptError(f"{place_of(prompt)} {wrong}. Fix: give every line the name of a picture, or none")
    return [name for [name] in lists]


def missing(prompt: str, makes: str = "makes videos of pictures") -> PromptError:
    """The error of a model that needs a picture."""
    return PromptError(
        f'{place_of(prompt)} has no {KEY}, and this model {makes}. Fix: a .jsonl file with lines like {{"prompt": "…", '
        f'"{KEY}": "start.png"}}'
    )


def too_many(prompt: str, count: int, most: int) -> PromptError:
    """The error of a model that takes fewer pictures."""
    takes = f"this model takes {most}" if most else "this model takes none"
    return PromptError(
        f"{place_of(prompt)} has {count} pictures, and {takes}. Fix: name fewer, or choose another model"
    )


def check(prompts: Sequence[str]) -> None:
    """Looks at each picture that prompts name, without decoding it. Raises as `sources`, for the first that cannot be used."""
    from ..pictures import media

    checked = set()
    for prompt in prompts:
        for name in named(prompt):
            if name in checked:
                continue
            checked.add(name)

            def look(name: str = name) -> None:
                with open(permissions.open_prompts(name, picture=True)[1], "rb") as file:
                    media.stored_size(file)

            _in_time(look, name, prompt)


def picture(name: str, width: int, height: int) -> np.ndarray:
    """uint8 [height, width, 3] of a picture that a prompt names, see `media.fit`. Raises as `sources`."""
    from PIL import Image

    from ..pictures import media

    return media.fit(Image.fromarray(_read(name).pixels.numpy()), width, height).copy()


_known: Recent[tuple, Picture] = Recent(
    MOST_BYTES, lambda picture: picture.pixels.nbytes
)  # by path and state of the file
_knowing = threading.Lock()


def _read(name: str, prompt: str = "") -> Picture:
    def read() -> Picture:
        import torch

        from ..pictures import media

        path, descriptor = permissions.open_prompts(name, picture=True)
        status = os.fstat(descriptor)
        state = str(path), status.st_ino, status.st_mtime_ns, status.st_size
        with _knowing:
            if state in _known:
                os.close(descriptor)
                return _known.use(state)
        content = opening.read(descriptor, permissions.MOST_PICTURE_BYTES)

        pixels = np.asarray(media.upright(content))
        made = Picture(hashlib.sha256(content).hexdigest(), torch.from_numpy(pixels.copy()))
        with _knowing:
            return _known.use(state, lambda: made)

    return _in_time(read, name, prompt)


def _in_time(work: Callable[[], opening.T], name: str, prompt: str) -> opening.T:
    """Returns the result of `work` on a picture's file; whatever keeps it from that names the prompt, the picture and the fix."""
    of = place_of(prompt) + ": " if prompt else ""
    try:
        return opening.in_time(work)
    except permissions.NotAllowed as error:
        raise permissions.NotAllowed(f"{of}{error}") from error
    except (OSError, ValueError, opening.Refused) as error:
        message = f"{of}{KEY} {opening.shown(name)} of a prompt: {error}".partition(". Fix: ")[0]
        fix = "put a plain picture of that name into ComfyUI's input folder, or correct the line"
        raise PromptError(f"{message}. Fix: {fix}") from error
