"""The prompt dataset: reading it, and which prompts an iteration takes."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..host import json_files
from ..host.access import folders, opening, permissions
from .types import Prompt, Prompts, metadata_of

logger = logging.getLogger(__name__)

PRESET = "general.txt"  # of Prompt Dataset, where nothing is given: a file of assets/prompts
IMAGE, IMAGES = "image", "images"  # keys of a line: one picture that the prompt works on, or several
MOST_PICTURES = 10  # of one prompt
MOST_DEPTH = 20  # of lists and objects in a line: less than the files that metadata are written into may have


class PromptError(ValueError):
    """A prompt source that cannot be used, with the fix."""


def read_prompts(text: str, file: str = "", preset: str = "") -> list[str]:
    """The prompts of a text box (one per line), or of a .txt or .jsonl file when one is named, or of a folder of pairs; of
    `preset` if the box is empty.

    Those of a .jsonl file are `Prompt`s, whose metadata is all that their line says beside `prompt`.

    Raises:
        NotAllowed: a file that workflows may not read.
        PromptError: no file there, one that cannot be read, a line that is not an object with a `prompt`, or no prompt at all.
    """
    file = file or (preset if not text.strip() else "")
    if not file:
        prompts = _lines(text)
        source = None
    elif (pairs := folder_of_pairs(file)) is not None:
        source, prompts = pairs
    else:
        source, content = _content(file)
        prompts = _json_lines(content, source) if source.suffix.lower() == ".jsonl" else _lines(content)
    if not prompts:
        raise PromptError(f"no prompts{f' in {source}' if source else ''}. Fix: type one per line, or choose a file")
    return prompts


def folder_of_pairs(name: str) -> tuple[Path, list[str]] | None:
    """The folder and its prompts: one for each picture with a text of the same name, as `a.png` and `a.txt`, which says what to
    do with it. None if the name is not a folder's.

    Raises:
        NotAllowed: a folder that workflows may not read, or a link out of it.
        PromptError: no pair in it, a picture or a text that stands alone, two pictures for one text, or a text that is empty or
            cannot be read.
    """
    if name.lower().endswith(permissions.PROMPT_SUFFIXES):
        return None
    try:
        return opening.in_time(lambda: _pairs(name.rstrip("/")))
    except FileNotFoundError:
        return None
    except (OSError, opening.Refused) as error:
        if isinstance(error, permissions.NotAllowed):
            raise
        raise PromptError(f"folder {name!r} {error}. Fix: copy it into ComfyUI's input folder") from error


def _pairs(name: str) -> tuple[Path, list[str]]:
    path = folders.input_folder(name, permissions.PROMPTS)
    texts = {os.path.splitext(file)[0]: file for file in folders.names_below(path, (".txt",))}
    shown: dict[str, str] = {}
    for file in folders.names_below(path, permissions.PICTURE_SUFFIXES):
        stem = os.path.splitext(file)[0]
        if stem in shown:
            raise PromptError(f"{path}: {shown[stem]} and {file} belong to one text. Fix: keep one of them")
        shown[stem] = file
    if lonely := sorted(texts.keys() ^ shown.keys()):
        lacks = "no picture" if lonely[0] in texts else f"no {lonely[0]}.txt"
        file = texts.get(lonely[0]) or shown[lonely[0]]
        fix = "put both there, as a.png and a.txt, or take it away"
        raise PromptError(f"{path}: {file} has {lacks} beside it ({len(lonely)} such files). Fix: {fix}")
    return path, [_pair(path, name, texts[stem], shown[stem]) for stem in sorted(texts)]


def _pair(folder: Path, name: str, text: str, picture: str) -> Prompt:
    try:
        said = folders.read_below(folder, text, permissions.MOST_PROMPT_BYTES).decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise PromptError(f"{folder / text} is not text in UTF-8 ({error.reason}). Fix: save it as UTF-8") from error
    except opening.Refused as error:
        raise PromptError(f"{folder / text} {error}. Fix: put a plain text there") from error
    if not said:
        raise PromptError(f"{folder / text} is empty. Fix: write into it what is to be done with {picture}")
    return Prompt(said, {IMAGE: f"{name}/{picture}"}, str(folder / text))


def choose(prompts: list[str], count: int, index: int, seed: int | None) -> Prompts:
    """The `count` prompts of iteration `index`; the dataset is repeated without end.

    Args:
        seed: of a new order in every pass; None keeps the file's order.
    """
    positions = range(index * count, (index + 1) * count)
    return Prompts(tuple(prompts[number] for number in numbers_at(positions, len(prompts), seed)), tuple(positions))


def numbers_at(positions: Sequence[int], count: int, seed: int | None) -> list[int]:
    """What stands at these positions when `count` things are repeated without end: in their order, or in a new order in
    every pass."""
    orders: dict[int, np.ndarray] = {}
    numbers = []
    for position in positions:
        epoch, index_in_epoch = divmod(position, count)
        if seed is not None and epoch not in orders:
            orders[epoch] = np.random.default_rng([seed, epoch]).permutation(count)
        numbers.append(int(orders[epoch][index_in_epoch]) if seed is not None else index_in_epoch)
    return numbers


@functools.cache
def warn_of_two_sources(text: str, file: str) -> None:
    """Says once that the text box is not used while a file is named."""
    if text.strip() and file:
        logger.warning("prompts come from the file %s; the text box is not used: empty `file` to use it", file)


def file_state(file: str) -> str:
    """Changes when the file does, so that an edited prompt file is read again."""
    if not file:
        return ""
    if (pairs := folder_of_pairs(file)) is not None:
        return hashlib.sha256(json.dumps([key(prompt) for prompt in pairs[1]]).encode()).hexdigest()

    def state() -> os.stat_result:
        _, descriptor = permissions.open_prompts(file)
        try:
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)

    stat = opening.in_time(state)
    return f"{stat.st_mtime_ns}:{stat.st_size}"


def _content(file: str) -> tuple[Path, str]:
    """The file's path and its text, read within a time limit: a name may lead to a network drive that hangs."""

    def read() -> tuple[Path, bytes]:
        path, descriptor = permissions.open_prompts(file)
        return path, opening.read(descriptor, permissions.MOST_PROMPT_BYTES)

    try:
        path, content = opening.in_time(read)
        return path, content.decode("utf-8-sig")
    except permissions.NotAllowed:
        raise
    except FileNotFoundError as error:
        raise PromptError(
            f"{error}. Fix: give the name of a .txt or .jsonl file in ComfyUI's input folder or $OTCA_INPUT"
        ) from error
    except UnicodeDecodeError as error:
        raise PromptError(f"file {file!r} is not text in UTF-8 ({error.reason}). Fix: save it as UTF-8") from error
    except (OSError, opening.Refused) as error:
        raise PromptError(f"file {file!r} {error}. Fix: copy it into ComfyUI's input folder") from error
    except ValueError as error:
        raise PromptError(str(error)) from error


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def _json_lines(content: str, path: Path) -> list[str]:
    prompts = []
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            prompts.append(json_prompt(line, f"{path}, line {number}"))
        except ValueError as error:
            raise PromptError(
                f'{path}, line {number} is not an object like {{"prompt": "…"}}: {error}. Fix: one such object a line'
            ) from error
    return prompts


def json_prompt(text: str, place: str = "") -> Prompt:
    """The prompt of an object {"prompt": …}, whose other keys are its metadata. Raises ValueError with what is wrong."""
    metadata = json_files.parse(text, MOST_DEPTH)
    if not isinstance(metadata, dict) or "prompt" not in metadata:
        raise ValueError("has no prompt")
    text = metadata.pop("prompt")
    if not isinstance(text, str):
        raise ValueError(f"has prompt = {opening.shown(text)}, which is not text")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # no tokenizer takes it
        raise ValueError("has half a character in its prompt") from error
    prompt = Prompt(text.strip(), metadata, place)
    picture_names(prompt)
    return prompt


def picture_names(prompt: str) -> tuple[str, ...]:
    """The pictures that a prompt works on, by the names in its line: `image`, or `images`, in their order.

    Raises:
        ValueError: with what is wrong with these two keys.
    """
    said = metadata_of(prompt)
    one, several = said.get(IMAGE), said.get(IMAGES)
    if one is not None and several is not None:
        raise ValueError(f"has both {IMAGE} and {IMAGES}")
    if one is not None:
        if not isinstance(one, str) or not one:
            raise ValueError(f"has {opening.shown(one)} for its {IMAGE}, which is not the name of a picture")
        return (one,)
    if several is None:
        return ()
    if not isinstance(several, list) or not all(isinstance(name, str) and name for name in several):
        raise ValueError(f"has {opening.shown(several)} for its {IMAGES}, which is not a list of names of pictures")
    if not several:
        raise ValueError(f"has an empty list for its {IMAGES}: leave the key out where nothing is shown")
    if len(several) > MOST_PICTURES:
        raise ValueError(f"has {len(several)} pictures for its {IMAGES}, and {MOST_PICTURES} may be given")
    return tuple(several)


def prompt_of(text: str) -> str:
    """Plain text as it is; what begins with { is an object {"prompt": …}, as a line of a .jsonl file.

    Raises:
        PromptError: it is not such an object.
    """
    if not text.startswith("{"):
        return text
    try:
        return json_prompt(text)
    except ValueError as error:
        raise PromptError(
            f'prompt {text[:60]!r} is not an object like {{"prompt": "…"}}: {error}. Fix: such an object, or plain text'
        ) from error


def prompt_lines(text: str) -> list[str]:
    """The prompts of a text, one per line, each as `prompt_of` reads it."""
    return [prompt_of(line.strip()) for line in text.splitlines() if line.strip()]


def key(prompt: str) -> tuple[str, str]:
    """Equal for prompts that say the same, beside their texts too."""
    return str(prompt), json.dumps(metadata_of(prompt), sort_keys=True, default=str)


def identity(prompt: str) -> str:
    """Equal for prompts that are one and the same: those of one text that work on the same pictures. Without pictures it is the
    text."""
    names = picture_names(prompt)
    return json.dumps({"prompt": str(prompt), IMAGES: names}, ensure_ascii=False) if names else str(prompt)


def distinct(prompts: Sequence[str]) -> list[str]:
    """Each prompt once, in their order.

    Raises:
        PromptError: one and the same prompt with different metadata, which could not be told apart by text and pictures.
    """
    found: dict[str, str] = {}
    twice = {}
    for prompt in prompts:
        if key(found.setdefault(identity(prompt), prompt)) != key(prompt):
            twice[str(prompt)] = None
    if twice:
        raise PromptError(
            f"{len(twice)} prompts stand there twice with different metadata: {', '.join(map(repr, [*twice][:3]))}. Fix: another "
            "text for each, or one of them"
        )
    return list(found.values())
