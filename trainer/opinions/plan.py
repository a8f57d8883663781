"""A training on opinions: which pictures are pulled to and which pushed away from, where in them, and which are held out.

A folder of opinions, such as a bundle has, holds `opinions.jsonl` as it is exported, and the pictures by their paths in it.
Imports no torch.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from ...host import json_files, paths
from ...host.access import folders, opening, permissions
from ...host.access.opening import shown
from ..pictures import media
from ..types import FORMS
from .identity import picture_id, read_picture
from .kinds import PAIR, REGION, TAG, Opinion, Picture, opinion_of, picture_of
from .pairs import connected, made_pairs, values_of
from .reading import FILE as PAIR_LIST
from .reading import MOST_LIST_BYTES, PairError, PairFolder, folder_state, read_folder
from .store import FILE as STORE
from .store import Store

logger = logging.getLogger(__name__)

FILE = "opinions.jsonl"
PAIRS, PICTURES = FORMS
LEAST, FEW = 4, 20  # pairs or pictures to train on: with fewer nothing is trained; below FEW that is said
OWN = "the opinions that you gave in the gallery"
_PROMPTS = 5  # from so many on whole prompts are held out; of fewer, pictures


@dataclass(frozen=True)
class Source:
    """Opinions and their pictures. `read` gives a picture's file, and raises OSError or ValueError where that cannot be read."""

    name: str
    opinions: tuple[Opinion, ...]
    pictures: Mapping[str, Picture]
    read: Callable[[Picture], bytes]
    pairs: tuple[Group, ...] = ()  # of a folder of pairs, which has no opinions


@dataclass(frozen=True)
class Item:
    """One picture to learn from. `value` in [-1, 1] says how much it is liked; `regions` where, see `places`."""

    picture: str
    value: float
    regions: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Group:
    """A group that is noised alike: of the form `pairs` the better picture and the worse one, of `pictures` one alone."""

    prompt: str
    items: tuple[Item, ...]


@dataclass(frozen=True)
class Plan:
    """The groups that are trained on, and those that are not. `held_out` are pairs in every form.

    `notes`: how many there are; then what was left out, and whether what is left is few.
    """

    source: Source
    groups: tuple[Group, ...]
    held_out: tuple[Group, ...]
    notes: tuple[str, ...] = ()


def of_pairs(folder: PairFolder) -> Source:
    """The pairs of a folder, whose pictures are known by their files."""
    pair_of = {name: pair for pair in folder.pairs for name in pair.files}
    pictures = {name: Picture(name, path=name) for name in pair_of}
    groups = (Group(pair.prompt, (Item(pair.chosen, 1.0), Item(pair.rejected, -1.0))) for pair in folder.pairs)
    read = lambda picture: folder.picture(pair_of[picture.id], picture.id)  # noqa: E731
    return Source(str(folder.path), (), pictures, read, tuple(groups))


@functools.cache
def say(said: str) -> None:
    """Logs once what is trained on."""
    if said:
        logger.warning("My Pictures: %s", said)


# --- where they come from ---------------------------------------------------------------------------------------------


def read_source(folder: str, tag: str = "") -> Source:
    """The opinions or pairs in a folder that a workflow names; without one the user's own opinions.

    `tag`: only opinions whose pictures all have it; empty: all.

    Raises:
        NotAllowed: a folder that workflows may not read.
        PairError: no such folder, a list that is not one of opinions or pairs, or not an opinion.
    """
    if path := _opinions_in(folder):
        source = _listed(path, source_state(folder))
    elif folder and tag:
        raise PairError(f"folder {shown(folder)} holds no {FILE}, and pairs have no tags. Fix: leave tag empty")
    elif folder:
        return of_pairs(read_folder(folder))
    else:
        store = Store(paths.opinions_folder() / STORE)
        source = Source(OWN, tuple(store.standing()), store.pictures(), read_picture)
    opinions = source.opinions
    if tag:
        tagged = {opinion.picture for opinion in opinions if opinion.kind == TAG and opinion.other == tag}
        opinions = tuple(opinion for opinion in opinions if tagged.issuperset(opinion.pictures))
    opinions = tuple(opinion for opinion in opinions if opinion.kind != TAG)
    if not opinions:
        which = f" about pictures with the tag {shown(tag)}" if tag else ""
        raise PairError(f"{source.name} has no opinion{which}. Fix: open Pictures in the sidebar, and give some")
    return replace(source, opinions=opinions)


def source_state(folder: str) -> str:
    """Another one when an opinion is given or taken back. Raises as `read_source`."""
    if not folder:
        return Store(paths.opinions_folder() / STORE).state()
    if path := _opinions_in(folder):
        stat = os.stat(path / FILE)
        return f"{stat.st_mtime_ns}:{stat.st_size}"
    return folder_state(folder)


def _opinions_in(folder: str) -> Path | None:
    """The folder, if it holds opinions. What is wrong with another one, `read_folder` says.

    Raises:
        PairError: it holds pairs.jsonl too, which may say something else.
    """
    with contextlib.suppress(FileNotFoundError):
        path = opening.in_time(lambda: folders.input_folder(folder, permissions.PAIRS)) if folder else None
        names = [name for name in (FILE, PAIR_LIST) if path and (path / name).is_file()]
        if len(names) > 1:
            raise PairError(f"folder {shown(folder)} holds both {FILE} and {PAIR_LIST}. Fix: take one of them out")
        return path if names == [FILE] else None


@functools.lru_cache(maxsize=4)
def _listed(path: Path, state: str) -> Source:
    """`state` is that of the list, and only says whether this is still the answer."""
    opinions: list[Opinion] = []
    pictures: dict[str, Picture] = {}
    try:
        lines = folders.read_below(path, FILE, MOST_LIST_BYTES).split(b"\n")
    except (OSError, opening.Refused) as error:
        raise PairError(f"{path / FILE} cannot be read ({error}). Fix: put a plain file there") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json_files.parse(line)
            json_files.check(row, dict, {})
            if "picture" in row:
                picture = picture_of(row["picture"])
                pictures[picture.id] = picture
            else:
                opinions.append(opinion_of(row.get("opinion")))
        except ValueError as error:
            raise PairError(f"{path / FILE}, line {number} {error}. Fix: correct or remove that line") from error

    def read(picture: Picture) -> bytes:
        return folders.read_below(path, picture.path, permissions.MOST_PICTURE_BYTES)

    return Source(str(path), tuple(opinions), pictures, read)


# --- what they teach --------------------------------------------------------------------------------------------------


def plan(source: Source, form: str, held_out: float, on_picture: Callable[[], None] = lambda: None) -> Plan:
    """Plans what to train on and what to hold out.

    A picture's value is the mean of its thumb (1, -1) and its stars (1 … 5 as -1 … 1). The form `pairs` has the pairs that were
    given, and from the other pictures of a prompt the best with the worst, the second best with the second worst and so on, where
    their values differ. In the form `pictures` each picture is alone: by its value, else by its pairs (chosen 1, rejected -1),
    else by its regions; with a value of 0 it is left out.

    Held out are whole prompts by a hash of them, so that a further opinion moves no other one to the other side; with fewer than
    _PROMPTS of them pictures, those together that were compared.

    `form`: one of FORMS.
    `held_out`: the share of prompts that is never trained on.
    `on_picture`: called before each picture is looked at; may raise to stop.

    Raises:
        PairError: fewer than LEAST are left to train on.
    """
    if source.pairs:
        alone = [Group(group.prompt, (item,)) for group in source.pairs for item in group.items]
        split = _split(source, source.pairs if form == PAIRS else alone, source.pairs, alone, held_out)
        if not split.groups:
            raise PairError(f"{source.name}: all its pairs are held out. Fix: lower held_out, or give more pairs")
        return split
    there = {}
    for name in dict.fromkeys(name for opinion in source.opinions for name in opinion.pictures):
        on_picture()
        picture = source.pictures.get(name, Picture(name))
        if (size := _size(source, picture)) is not None:
            there[name] = replace(picture, width=size[0], height=size[1])
    opinions = [opinion for opinion in source.opinions if all(name in there for name in opinion.pictures)]
    gone = len(source.opinions) - len(opinions)
    source = replace(source, opinions=tuple(opinions), pictures=there)
    values = values_of(opinions)
    regions: dict[str, tuple[Mapping[str, Any], ...]] = {}
    for opinion in (opinion for opinion in opinions if opinion.kind == REGION):
        regions[opinion.picture] = (*regions.get(opinion.picture, ()), opinion.value)
    pairs = [opinion.pictures for opinion in opinions if opinion.kind == PAIR]
    prompts = {name: picture.prompt for name, picture in there.items()}
    as_pairs = [
        Group(prompts[better], (Item(better, 1.0, regions.get(better, ())), Item(worse, -1.0, regions.get(worse, ()))))
        for better, worse in [*pairs, *made_pairs(values, prompts, set(itertools.chain.from_iterable(pairs)))]
    ]
    alone = _alone(opinions, there, values, regions)
    split = _split(source, as_pairs if form == PAIRS else alone, as_pairs, alone, held_out)
    groups = split.groups
    notes = [f"{len(groups)} {form} from {len(opinions)} opinions, pairs held out: {len(split.held_out)}"]
    if gone:
        notes.append(f"{gone} opinions are about pictures that are gone, changed or cannot be read, and are left out")
    if form == PAIRS and (single := len(alone) - len({item.picture for group in as_pairs for item in group.items})) > 0:
        notes.append(f"{single} pictures have no partner with another opinion: learn_from = pictures takes them")
    if len(groups) < LEAST:
        other = "give more opinions" + (
            ", or set learn_from to pictures" if form == PAIRS and len(alone) >= LEAST else ""
        )
        raise PairError(
            f"{source.name}: {'. '.join(notes)}. That is too few to train on, which takes {LEAST}. Fix: {other}"
        )
    if len(groups) < FEW:
        notes.append(f"That is few: below {FEW} a training learns these pictures by heart, and not what you like")
    return replace(split, notes=tuple(notes))


_sizes: dict[tuple[str, str, int, int], tuple[int, int] | None] = {}  # by picture, path, time and bytes


def _size(source: Source, picture: Picture) -> tuple[int, int] | None:
    """Width and height of a picture whose file still has its pixels, else None. A file is decoded once, until it changes."""
    try:
        state = os.stat(picture.path) if os.path.isabs(picture.path) else None
        key = (picture.id, picture.path, state.st_mtime_ns, state.st_size) if state else None
        if key in _sizes:
            return _sizes[key]
        content = source.read(picture)
        size = media.upright(content).size if picture_id(content) == picture.id else None
    except (OSError, ValueError, opening.Refused):
        return None
    if key:
        _sizes[key] = size
    return size


def _alone(opinions: Sequence[Opinion], there: Mapping[str, Picture], values: Mapping, regions: Mapping) -> list[Group]:
    wins: dict[str, list[float]] = {}
    for opinion in opinions:
        for name, value in zip(opinion.pictures, (1.0, -1.0), strict=False) if opinion.kind == PAIR else ():
            wins.setdefault(name, []).append(value)
    items = []
    for name in there:
        own = regions.get(name, ())
        value = values.get(name, float(np.mean(wins[name])) if name in wins else None)
        if value is None:  # regions alone: what is liked pulls, and what is disliked pushes
            items += [
                Item(name, 1.0 if like else -1.0, own) for like in dict.fromkeys(region["like"] for region in own)
            ]
        elif value:
            items.append(Item(name, value, own))
    return [Group(there[item.picture].prompt, (item,)) for item in items]


def _split(source: Source, used: Sequence[Group], pairs: Sequence[Group], alone: Sequence[Group], share: float) -> Plan:
    """Returns the plan of the groups that are used, with the held-out pairs apart."""
    prompts = {group.prompt for group in (*pairs, *alone)}
    # Of few prompts: pictures that were compared are on one side together, by the first of their names.
    parts = connected([[item.picture for item in group.items] for group in pairs])
    first = {name: least for part in parts for least in [min(part)] for name in part}

    def is_held(group: Group) -> bool:
        name = group.items[0].picture
        unit = group.prompt if len(prompts) >= _PROMPTS else first.get(name, name)
        digest = hashlib.sha256(unit.encode(errors="surrogatepass")).digest()
        return int.from_bytes(digest[:8], "big") < share * 2**64

    return Plan(
        source, tuple(group for group in used if not is_held(group)), tuple(group for group in pairs if is_held(group))
    )


# --- where in the picture ---------------------------------------------------------------------------------------------


def places(item: Item, picture: Picture, size: tuple[int, int], grid: tuple[int, int]) -> np.ndarray:
    """How much each place of the latent counts, [h, w] of mean 1, of a picture that is fitted to `size` (width, height).

    Regions that agree with the item (liked of a liked picture, disliked of a disliked one) are the only places that count, if it
    has any; those that disagree do not count. Without a place that is left, all count alike.
    """
    agree = item.value > 0
    own = [_drawn(region, picture) for region in item.regions if region["like"] == agree]
    other = [_drawn(region, picture) for region in item.regions if region["like"] != agree]
    shape = (picture.height, picture.width)
    weight = functools.reduce(np.maximum, own) if own else np.ones(shape, np.float32)
    for drawn in other:
        weight = weight * (1 - drawn)
    # As `media.fit`, but with hard edges: a filter for photographs would let a region count a little outside of itself.
    drawn = ImageOps.fit(Image.fromarray((weight * 255).astype(np.uint8)), size, Image.Resampling.BOX)
    fitted = np.asarray(drawn, np.float32)
    cells = np.asarray(Image.fromarray(fitted).resize((grid[1], grid[0]), Image.Resampling.BOX))
    return cells / cells.mean() if cells.mean() > 0 else np.ones(grid, np.float32)


def _drawn(region: Mapping[str, Any], picture: Picture) -> np.ndarray:
    """1 inside and 0 outside, [H, W] of the picture."""
    drawn = np.zeros((picture.height, picture.width), np.float32)
    if "box" in region:
        left, top, right, bottom = region["box"]
        columns = slice(int(left * picture.width), max(int(np.ceil(right * picture.width)), 1))
        rows = slice(int(top * picture.height), max(int(np.ceil(bottom * picture.height)), 1))
        drawn[rows, columns] = 1
        return drawn
    mask = region["mask"]
    inside = np.repeat(np.arange(len(mask["runs"])) % 2, mask["runs"]).reshape(mask["height"], mask["width"])
    scaled = Image.fromarray(inside.astype(np.uint8) * 255).resize(
        (picture.width, picture.height), Image.Resampling.NEAREST
    )
    return np.asarray(scaled, np.float32) / 255
