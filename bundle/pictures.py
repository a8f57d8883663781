"""Pictures that a graph takes from the input folder: of ComfyUI's own nodes, and of prompts that name one each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..host.access import opening, permissions
from ..trainer.families.given import KEY

UPLOADED = "image_upload"  # the option of an input of ComfyUI's that takes a picture of the input folder
HERE, ELSEWHERE = " [input]", (" [output]", " [temp]")  # behind a name in ComfyUI: in which of its folders

Copy = Callable[[Path, bytes], str]  # the name of what was copied, in the bundle


def uploaded(declared: Mapping[str, Any], inputs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(input, value) of those inputs of a node that name such a picture."""
    for name, value in inputs.items():
        if name in declared and declared[name].options.get(UPLOADED) and isinstance(value, str) and value:
            yield name, value


def copied(name: str, copy: Copy) -> str:
    """The name that a picture has in the bundle.

    Raises:
        NotAllowed: a file that workflows may not read.
        ValueError, OSError: no picture of that name in the input folder.
    """
    if name.endswith(ELSEWHERE):
        raise ValueError(
            "lies in a folder of ComfyUI's that is not bundled. Fix: put the picture into the input folder"
        )
    path, descriptor = permissions.open_prompts(name.removesuffix(HERE), picture=True)
    return copy(path, opening.read(descriptor, permissions.MOST_PICTURE_BYTES))


def of_lines(text: str, copy: Copy) -> str:
    """The same prompts, where those that are objects with a picture have its name in the bundle. They have been read before."""
    return "\n".join(_of_line(line, copy) for line in text.split("\n"))


def _of_line(line: str, copy: Copy) -> str:
    if not line.lstrip().startswith("{"):
        return line
    entry = json.loads(line)
    if not isinstance(entry.get(KEY), str):
        return line
    return json.dumps({**entry, KEY: copied(entry[KEY], copy)}, ensure_ascii=False)
