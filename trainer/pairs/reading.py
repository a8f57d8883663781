"""A folder of pairs: the list in it, and the pictures that the list names.

`pairs.jsonl` has one object a line; what stands beside these three keys is the prompt's metadata, which rewards may read:

    {"prompt": "a red circle", "chosen": "0001/a.png", "rejected": "0001/b.png"}

The folder may be a stranger's, and so is read as a prompt file is: names stay in it, and a file has a largest size. Imports no
torch.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

from ...host.access import folders, opening, permissions
from ...host.access.opening import shown
from ..prompts import json_prompt
from ..types import Prompt

FILE = "pairs.jsonl"
WHY = permissions.PAIRS
CHOSEN, REJECTED = "chosen", "rejected"
MOST_LIST_BYTES, MOST_PICTURE_BYTES = 64 * 1024**2, 64 * 1024**2


class PairError(ValueError):
    """A folder of pairs that cannot be used, with the fix."""


@dataclass(frozen=True)
class Pair:
    """One line of the list; `line` is its number, from 1."""

    prompt: str
    chosen: str
    rejected: str
    line: int

    @property
    def files(self) -> tuple[str, str]:
        """The better one first."""
        return self.chosen, self.rejected


@dataclass(frozen=True)
class PairFolder:
    """A folder whose list could be read."""

    path: Path
    pairs: tuple[Pair, ...]

    def picture(self, pair: Pair, name: str) -> bytes:
        """The content of one of a pair's files.

        Raises:
            PairError: names the line and the file.
        """
        try:
            return opening.in_time(lambda: folders.read_below(self.path, name, MOST_PICTURE_BYTES))
        except (OSError, opening.Refused) as error:
            raise self.error(pair, name, str(getattr(error, "strerror", None) or error)) from error

    def error(self, pair: Pair, name: str, wrong: str) -> PairError:
        """The error about one of a pair's files."""
        return PairError(
            f"{self.path / FILE}, line {pair.line}: file {shown(name)} {_sentence(wrong)}. Fix: put a plain picture there "
            "(PNG, JPEG, WebP or BMP), or correct or remove that line"
        )


def read_folder(name: str) -> PairFolder:
    """The pairs of a folder that a workflow names. Each of their files has to exist; what is in it is not read yet.

    Raises:
        NotAllowed: a folder that workflows may not read.
        PairError: no folder of that name, no list in it, a line that is not a pair, a file that is not there, or an empty list.
    """

    def read() -> PairFolder:
        path = folders.input_folder(name, WHY)
        return _read(path, _state(path))

    try:
        return opening.in_time(read)
    except (permissions.NotAllowed, PairError):
        raise
    except FileNotFoundError as error:
        raise PairError(f"{error}. Fix: give a folder that holds {FILE} and its pictures") from error
    except (OSError, opening.Refused) as error:
        raise PairError(
            f"folder {shown(name)} {_sentence(str(error))}. Fix: copy it into ComfyUI's input folder"
        ) from error


def folder_state(name: str) -> str:
    """Changes when the list does, so that it is read again. Raises as `read_folder`."""
    return ":".join(map(str, _state(read_folder(name).path)))


def _state(path: Path) -> tuple[int, int]:
    try:
        stat = os.stat(path / FILE)
    except FileNotFoundError as error:
        raise PairError(
            f'{path} holds no {FILE}. Fix: write one, with a line {{"prompt": "…", "chosen": "a.png", "rejected": "b.png"}} for '
            "each pair"
        ) from error
    return stat.st_mtime_ns, stat.st_size


@functools.lru_cache(maxsize=4)  # asked for in every iteration, and by every check of the graph
def _read(path: Path, state: tuple[int, int]) -> PairFolder:
    """`state` is that of the list, and only says whether this is still the answer."""
    try:
        text = folders.read_below(path, FILE, MOST_LIST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PairError(f"{path / FILE} is not a text in UTF-8 ({error.reason}). Fix: save it as UTF-8") from error
    except opening.Refused as error:
        raise PairError(f"{path / FILE} {_sentence(str(error))}. Fix: put a plain file there") from error
    lines = enumerate(text.split("\n"), 1)
    found = PairFolder(path, tuple(_pair(path, number, line) for number, line in lines if line.strip()))
    if not found.pairs:
        raise PairError(f"{path / FILE} has no pair. Fix: write one pair a line")
    _check_files(found)
    return found


def _pair(path: Path, number: int, line: str) -> Pair:
    try:
        prompt = json_prompt(line)
        more = dict(prompt.metadata)
        names = [more.pop(key, None) for key in (CHOSEN, REJECTED)]
        for key, name in zip((CHOSEN, REJECTED), names, strict=True):
            _check_name(key, name)
        if os.path.normpath(names[0]) == os.path.normpath(names[1]):
            raise ValueError(f"names {shown(names[0])} as both of its pictures")
    except ValueError as error:
        raise PairError(
            f'{path / FILE}, line {number} is not a pair like {{"prompt": "…", "chosen": "a.png", "rejected": "b.png"}}: it '
            f"{_sentence(str(error))}. Fix: one such object a line, with files of that folder"
        ) from error
    return Pair(Prompt(prompt, more), names[0], names[1], number)


def _check_name(key: str, name: object) -> None:
    if not isinstance(name, str) or not name:
        raise ValueError(f"has {key} = {shown(name)}, which is not the name of a file")
    try:
        opening.check_name(name)
    except ValueError as error:
        raise ValueError(f"has {key} = {shown(name)}: {error}") from error
    if not permissions.is_plain(name):
        raise ValueError(f"has {key} = {shown(name)}, which leads out of its folder")


def _check_files(folder: PairFolder) -> None:
    """By their names alone. What is in them is seen when they are read."""
    missing = folders.missing(folder.path, {name for pair in folder.pairs for name in pair.files})
    for pair in folder.pairs if missing else ():
        for name in missing.intersection(pair.files):
            raise folder.error(pair, name, "is not there")


def _sentence(wrong: str) -> str:
    """The text as it continues a sentence: without the full stop at the end of a system's error."""
    return wrong.rstrip(". ")
