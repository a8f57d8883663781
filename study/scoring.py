"""`otca score`: pictures and videos that are already there, judged by any rewards, with an interval for every mean."""

from __future__ import annotations

import inspect
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..host.files import read_bytes
from ..trainer.pictures.media import PICTURES, VIDEOS, frame_rate, read
from ..trainer.prompts import FILE_NAME, KEYS, LISTS, TABLES, caption, identity, prompt_of_row, read_prompts, rows
from ..trainer.rewards import REWARDS, reward_class
from ..trainer.rewards.base import Reward, parse_bounds, score
from . import statistics

logger = logging.getLogger(__name__)

CLIP_JUDGE = "clip_judge"
KINDS = (*sorted(REWARDS), CLIP_JUDGE)


def no_comfyui(name: str) -> Any:
    """Refuses to load a text encoder. Raises ValueError."""
    raise ValueError(f"judge={name!r} is a text encoder that ComfyUI loads. Fix: add --comfyui PATH")


def parse_reward(text: str, text_encoder: Callable[[str], Any] = no_comfyui) -> Reward:
    """`kind` or `kind:option=value,option=value` to a reward: a row of REWARDS or clip_judge, and its constructor's options.

    `clip` is an option of every reward.

    `text_encoder`: (the name of a file) -> ComfyUI's CLIP, for the judge of clip_judge.

    Raises:
        ValueError: an unknown kind or option; it names those that there are.
    """
    kind, _, rest = text.partition(":")
    if kind not in KINDS:
        raise ValueError(f"--reward {text!r}: no reward has the kind {kind!r}. Fix: one of {', '.join(KINDS)}")
    made = reward_class(kind)
    # What its constructor takes, and the keywords of those below it that it hands the rest on to
    declared = {"name": inspect.signature(made).parameters["name"]}
    for owner in [kind for kind in made.__mro__ if "__init__" in vars(kind)]:
        parameters = inspect.signature(owner.__init__).parameters.values()
        own = (p.name for p in parameters if owner is made and p.kind is p.POSITIONAL_OR_KEYWORD)
        words = {*own} - {"self", "coefficient", "held_out"}
        declared |= {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY or p.name in words}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            break
    options = {}
    for part in re.split(r",(?=\w+=)", rest) if rest else ():  # a value may itself have commas
        name, equals, value = part.partition("=")
        if not equals or name not in (*declared, "clip"):
            listed = ", ".join([*declared, "clip"])
            raise ValueError(f"--reward {text!r}: {part!r} is not an option of it. Fix: OPTION=VALUE, with {listed}")
        options[name] = value
    missing = [n for n, p in declared.items() if p.default is p.empty and n not in options]
    if missing:
        raise ValueError(f"--reward {text!r} needs {', '.join(missing)}. Fix: --reward {kind}:{missing[0]}=…")
    try:
        name, bounds = "clip", parse_bounds(options.pop("clip", ""))
        converted = {(name := key): _converted(value, declared[key].default) for key, value in options.items()}
    except ValueError as error:
        raise ValueError(f"--reward {text!r}: {name}: {error}") from error
    if isinstance(other := converted.get("reward"), str):  # of a reward that asks another
        converted["reward"] = parse_reward(other, text_encoder)
    if kind == CLIP_JUDGE:
        converted["judge"] = text_encoder(converted["judge"])
    try:
        reward = made(**converted)
    except ValueError as error:
        raise ValueError(f"--reward {text!r}: {error}") from error
    reward.bounds = bounds
    return reward


def _converted(text: str, default: Any) -> Any:
    """In the default's type; text if it has no default."""
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise ValueError(f"{text!r} is neither true nor false")
        return text.lower() == "true"
    return type(default)(text) if isinstance(default, int | float) else text


def find_files(names: Sequence[str]) -> list[Path]:
    """Pictures and videos, by path, folder or pattern: in the order given, a folder's by name.

    Raises:
        FileNotFoundError: a name that matches nothing.
        ValueError: a file of another kind.
    """
    files: list[Path] = []
    for name in names:
        entry = Path(name).expanduser()
        if entry.is_dir():
            matches = files_of(entry, PICTURES + VIDEOS)
        else:
            matches = [entry] if entry.is_file() else sorted(entry.parent.glob(entry.name))
        if not matches:
            raise FileNotFoundError(f"{name!r} is neither a file, nor a folder or pattern of pictures or videos")
        files += matches
    for path in files:
        if path.suffix.lower() not in PICTURES + VIDEOS:
            raise ValueError(f"{path} is neither a picture nor a video. Fix: one of {', '.join(PICTURES + VIDEOS)}")
    return files


def files_of(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """The files of a folder with these endings, by name; without hidden ones, such as what a Mac puts beside each file."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in suffixes and path.name[0] != ".")


def prompts_of(files: Sequence[Path], source: Path | None) -> list[str]:
    """The prompt of every file: from `source`, else from <name>.txt beside it, else from the first of LISTS beside it.

    `source`: as Prompt Dataset reads it; in the order of the files, unless every row says by `file_name` whose it is.

    Raises:
        ValueError: too few or too many prompts, or a file without one.
    """
    if source is not None:
        named = _by_name(source)
        if named:
            return [_named(file, named, source) for file in files]
        texts = read_prompts("", str(source))
        if len(texts) != len(files):
            raise ValueError(
                f"{source} has {len(texts)} prompts for {len(files)} files. Fix: one a file, in their order"
            )
        return [*texts]
    prompts: list[str] = []
    tables: dict[Path, tuple[Mapping[str, str], Path]] = {}
    for file in files:
        if (text := file.with_suffix(".txt")).is_file():
            prompts.append(caption(read_bytes(text) or b"", text))
            continue
        if (folder := file.parent) not in tables:
            table = next(filter(Path.is_file, map(folder.joinpath, LISTS)), folder / LISTS[0])
            tables[folder] = _by_name(table), table
        prompts.append(_named(file, *tables[folder]))
    return prompts


def _named(file: Path, named: Mapping[str, str], source: Path) -> str:
    below = str(file.relative_to(source.parent)) if file.is_relative_to(source.parent) else file.name
    if (name := below if below in named else file.name) not in named:
        raise ValueError(
            f"{file} has no prompt, neither in {file.stem}.txt beside it nor in {source}. Fix: --prompts FILE, or --prompt TEXT "
            "for all"
        )
    return named[name]


def _by_name(path: Path) -> Mapping[str, str]:
    """{file_name, and its last part: prompt, with the rest of its row} of a table; empty where that is not there, or a row names
    no file.

    Raises:
        PromptError: names the line.
    """
    if path.suffix.lower() not in TABLES or not path.is_file():
        return {}
    table = list(rows(read_bytes(path) or b"", path))
    if not all(isinstance(row, dict) and FILE_NAME in row for _, row in table):
        return {}
    named = [(str(row.pop(FILE_NAME)), prompt_of_row(row, place)) for place, row in table if row.keys() & {*KEYS}]
    return {Path(name).name: prompt for name, prompt in named} | {
        os.path.normpath(name): prompt for name, prompt in named
    }


def check_names(names: Sequence[str]) -> None:
    if len(set(names)) < len(names):
        raise ValueError(f"two rewards share a name: {', '.join(names)}. Fix: --reward KIND:name=another")


def score_files(rewards: Sequence[Reward], files: Sequence[Path], prompts: Sequence[str], batch_size: int) -> Tensor:
    """[len(files), len(rewards)]; files that follow each other and are of one size are scored together. NaN: of a file that
    cannot be read.

    Raises:
        ValueError: none can be read.
    """
    check_names([reward.name for reward in rewards])
    scores = torch.full((len(files), len(rewards)), torch.nan)
    for numbers, batch in batches(files, batch_size):
        fps = frame_rate(files[numbers[0]])
        for reward in rewards:
            reward.of_files(fps)
        scores[numbers] = score(rewards, batch, [prompts[number] for number in numbers])
    return scores


def batches(files: Sequence[Path], size: int) -> Iterator[tuple[list[int], Tensor]]:
    """(their numbers, pictures [B, H, W, 3] or videos [B, F, H, W, 3] in [0, 1]) of files that follow each other,
    of one size and frame rate.

    A file that cannot be read is left out, with a line in the log that names it.

    Raises:
        ValueError: none can be read.
    """
    numbers: list[int] = []
    samples: list[np.ndarray] = []
    kind_before = None
    for number, file in enumerate(files):
        try:
            sample = read(file)
        except ValueError as error:
            logger.warning("%s: it is left out", error)
            continue
        kind = sample.shape, frame_rate(file)
        if samples and (kind != kind_before or len(samples) == size):
            yield numbers, _floats(samples)
            numbers, samples = [], []
        kind_before = kind
        numbers.append(number)
        samples.append(sample)
    if kind_before is None:
        raise ValueError(f"no file of {len(files)} can be read, see above. Fix: name other pictures or videos")
    yield numbers, _floats(samples)


def _floats(samples: Sequence[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.stack(samples)).float() / 255


def table(names: Sequence[str], scores: Tensor, prompts: Sequence[str]) -> str:
    """Markdown: a row a reward, its interval clustered by prompt."""
    body = []
    for name, column in zip(names, scores.T.tolist(), strict=True):
        own = statistics.clustered(column, list(map(identity, prompts)))
        bounds = f"{own.low:.4g} … {own.high:.4g}" if own.low == own.low else "–"
        body.append([name, statistics.number(own.mean, ".4g", "–"), bounds, f"{own.count} of {len(column)}"])
    return "\n".join(statistics.table(["reward", "mean", "95 % interval", "scored"], body))


def write_csv(path: Path, files: Sequence[Path], prompts: Sequence[str], names: Sequence[str], scores: Tensor) -> None:
    """A line a file; empty if it could not be scored."""
    rows = [[file, prompt, *row] for file, prompt, row in zip(files, prompts, scores.tolist(), strict=True)]
    path.write_text(statistics.as_csv(["file", "prompt", *names], rows), encoding="utf-8")
