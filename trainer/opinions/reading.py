"""Folders of pairs, and what one row of any list of pairs says.

A folder holds one of LISTS, whose rows name a prompt and two pictures of the folder, or two folders of pictures of the same names
and captions, see SIDES. What stands beside these keys in a row is the prompt's metadata, which rewards may read:

    {"prompt": "a red circle", "chosen": "0001/a.png", "rejected": "0001/b.png"}

The folder may be a stranger's, and so is read as a prompt file is: names stay in it, and a file has a largest size. Imports no
torch.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...host.access import folders, opening, permissions
from ...host.access.opening import shown
from ...host.errors import Expected
from ..prompts import LISTS as OF_PROMPTS
from ..prompts import TABLES, PromptError, caption, prompt_of_row, rows
from ..types import Prompt, metadata_of

FILE = "pairs.jsonl"
LISTS = (*(f"pairs{kind}" for kind in TABLES), *OF_PROMPTS)  # the first that is there
SIDES = (("w", "l"), ("chosen", "rejected"))  # folders of the better pictures, and of the others
WHY = permissions.PAIRS
CHOSEN, REJECTED = "chosen", "rejected"
SCORED = (("image_0", "image_1"), ("jpg_0", "jpg_1"))  # of rows that say by label_0 which one is better
MOST_LIST_BYTES = 64 * 1024**2


class PairError(Expected, ValueError):
    """A folder of pairs that cannot be used, with the fix."""


@dataclass(frozen=True)
class Pair:
    """One row of the list; `place` is where it stands, as `line 3`."""

    prompt: str
    chosen: str
    rejected: str
    place: str

    @property
    def files(self) -> tuple[str, str]:
        """The better one first."""
        return self.chosen, self.rejected


@dataclass(frozen=True)
class PairFolder:
    """A folder whose list could be read."""

    path: Path
    pairs: tuple[Pair, ...]
    list: Path  # what they were read from

    def as_lines(self) -> str:
        """Returns what FILE would say."""
        keys = (({CHOSEN: pair.chosen, REJECTED: pair.rejected}, pair.prompt) for pair in self.pairs)
        return "".join(json.dumps({"prompt": str(p), **files, **metadata_of(p)}) + "\n" for files, p in keys)

    def picture(self, pair: Pair, name: str) -> bytes:
        """The content of one of a pair's files.

        Raises:
            PairError: names the line and the file.
        """
        try:
            return opening.in_time(lambda: folders.read_below(self.path, name, permissions.MOST_PICTURE_BYTES))
        except (OSError, opening.Refused) as error:
            raise self.error(pair, name, str(getattr(error, "strerror", None) or error)) from error

    def error(self, pair: Pair, name: str, wrong: str) -> PairError:
        """The error about one of a pair's files."""
        return PairError(
            f"{self.list}, {pair.place}: file {shown(name)} {_sentence(wrong)}. Fix: put a plain picture there "
            "(PNG, JPEG, WebP or BMP), or correct or remove that line"
        )


def read_folder(name: str) -> PairFolder:
    """The pairs of a folder that a workflow names. Each of their files has to exist; what is in it is not read yet.

    Raises:
        NotAllowed: a folder that workflows may not read.
        PairError: no folder of that name, no list in it, a line that is not a pair, a file that is not there, or an empty list.
    """

    def read() -> PairFolder:
        return read_pairs(folders.input_folder(name, WHY))

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


def find_list(path: Path) -> Path | None:
    """Returns the list of a folder of pairs, or the first folder of its two sides; None if it has neither."""
    sides = (better for better, worse in SIDES if (path / worse).is_dir())
    return next((path / name for name in (*LISTS, *sides) if (path / name).exists()), None)


def _state(path: Path) -> tuple[int, int]:
    if (source := find_list(path)) is None:
        raise PairError(
            f'{path} holds no {FILE}. Fix: write one, with a line {{"prompt": "…", "chosen": "a.png", "rejected": "b.png"}} for '
            "each pair"
        )
    sides = (source, path / dict(SIDES)[source.name]) if source.name in dict(SIDES) else ()
    texts = [folder / name for folder in (*sides, path) for name in folders.names_below(folder, (".txt",)) if sides]
    stats = [os.stat(place) for place in (source, *sides, *texts)]  # a picture that comes or goes changes its folder
    return max(stat.st_mtime_ns for stat in stats), sum(stat.st_size for stat in stats)


def read_pairs(path: Path) -> PairFolder:
    """Returns the pairs of a folder of the user's own. Raises PairError as `read_folder`."""
    return _read(path, _state(path))


@functools.lru_cache(maxsize=4)  # asked for in every iteration, and by every check of the graph
def _read(path: Path, state: tuple[int, int]) -> PairFolder:
    """`state` is that of the list, and only says whether this is still the answer."""
    source = find_list(path)
    assert source is not None  # `state` is of it
    try:
        if source.name in dict(SIDES):
            pairs = _of_sides(path, source.name)
        else:
            content = folders.read_below(path, source.name, MOST_LIST_BYTES)
            pairs = [pair for place, row in rows(content, source) if (pair := _pair(source, place, row))]
    except PromptError as error:
        raise PairError(str(error)) from error
    except opening.Refused as error:
        raise PairError(f"{source} {_sentence(str(error))}. Fix: put a plain file there") from error
    if not pairs:
        raise PairError(f"{source} has no pair. Fix: write one pair a line")
    folder = PairFolder(path, tuple(pairs), source)
    # By their names alone. What is in them is seen when they are read.
    missing = folders.missing(folder.path, {name for pair in folder.pairs for name in pair.files})
    for pair in folder.pairs if missing else ():
        for name in missing.intersection(pair.files):
            raise folder.error(pair, name, "is not there")
    return folder


def _of_sides(path: Path, better: str) -> list[Pair]:
    """The pairs of two folders: pictures of one name, and a text of that name beside either, which is their prompt."""
    worse = dict(SIDES)[better]
    others = set(folders.names_below(path / worse, permissions.PICTURE_SUFFIXES))
    pairs = []
    for name in folders.names_below(path / better, permissions.PICTURE_SUFFIXES):
        text = os.path.splitext(name)[0] + ".txt"
        captions = [f"{side}{text}" for side in (f"{better}/", f"{worse}/", "") if (path / f"{side}{text}").is_file()]
        if name not in others or not captions:
            lacks = f"is not in {worse}, too" if name not in others else f"has no {text} beside it"
            raise PairError(
                f"{path / better / name} {lacks}. Fix: two pictures of one name, and their prompt as a text"
            )
        prompt = caption(folders.read_below(path, captions[0], MOST_LIST_BYTES), path / captions[0])
        pairs.append(
            Pair(Prompt(prompt, {}, captions[0]), f"{better}/{name}", f"{worse}/{name}", f"picture {shown(name)}")
        )
    return pairs


def sides_of(row: Mapping[str, Any]) -> tuple[tuple[str, str], dict[str, Any]] | None:
    """Returns the names of the better and of the worse picture of a row, and what else it says; None if both are alike.

    A row is {"chosen": …, "rejected": …}; {"image_0": …, "image_1": …, "label_0": 1, 0 or 0.5} (also jpg_0 and jpg_1), as in
    Pick-a-Pic; or {"image_path": [a, b], "human_preference": [1, 0]}, as in HPDv2.

    Raises:
        ValueError: with what is wrong.
    """
    rest = dict(row)
    if row.keys() & {CHOSEN, REJECTED}:
        return (rest.pop(CHOSEN, None), rest.pop(REJECTED, None)), rest
    for names in SCORED:
        if row.keys() >= {*names, "label_0"}:
            label = rest.pop("label_0")
            if isinstance(label, bool) or label not in (0, 0.5, 1, "0", "0.5", "1"):
                raise ValueError(f"has label_0 = {shown(label)}, and not 1, 0 or 0.5")
            first, second = (rest.pop(name) for name in names)
            return None if float(label) == 0.5 else ((first, second) if float(label) else (second, first), rest)
    if row.keys() >= {"image_path", "human_preference"}:
        pictures, preference = rest.pop("image_path"), rest.pop("human_preference")
        if not isinstance(pictures, list) or preference not in ([1, 0], [0, 1]) or len(pictures) != 2:
            raise ValueError(f"has human_preference = {shown(preference)}, and not [1, 0] or [0, 1] for two pictures")
        return (pictures[preference[0] == 0], pictures[preference[0] == 1]), rest
    raise ValueError("has neither chosen and rejected, nor image_0, image_1 and label_0")


def _pair(path: Path, place: str, row: Any) -> Pair | None:
    try:
        if not isinstance(row, Mapping):
            raise ValueError("has no prompt")
        if (sides := sides_of(row)) is None:
            return None
        names, rest = sides
        prompt = prompt_of_row(rest, place)
        for key, name in zip((CHOSEN, REJECTED), names, strict=True):
            if not isinstance(name, str) or not name:
                raise ValueError(f"has {key} = {shown(name)}, which is not the name of a file")
            try:
                opening.check_name(name)
            except ValueError as error:
                raise ValueError(f"has {key} = {shown(name)}: {error}") from error
            if not permissions.is_plain(name):
                raise ValueError(f"has {key} = {shown(name)}, which leads out of its folder")
        if os.path.normpath(names[0]) == os.path.normpath(names[1]):
            raise ValueError(f"names {shown(names[0])} as both of its pictures")
    except ValueError as error:
        raise PairError(
            f'{place} is not a pair like {{"prompt": "…", "chosen": "a.png", "rejected": "b.png"}}: it '
            f"{_sentence(str(error))}. Fix: one such object a line, with files of that folder"
        ) from error
    return Pair(prompt, names[0], names[1], place.removeprefix(f"{path}, "))


def _sentence(wrong: str) -> str:
    """The text as it continues a sentence: without the full stop at the end of a system's error."""
    return wrong.rstrip(". ")
