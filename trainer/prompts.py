"""The prompt dataset: reading it, and which prompts an iteration takes."""

from __future__ import annotations

import codecs
import csv
import functools
import hashlib
import io
import itertools
import json
import logging
import math
import os
import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, overload

import numpy as np

from ..host import errors, json_files
from ..host.access import folders, opening, permissions
from ..host.recent import Recent
from .types import Prompt, Prompts, metadata_of, place_of

logger = logging.getLogger(__name__)

PRESET = "general.txt"  # of Prompt Dataset, where nothing is given: a file of assets/prompts
KEYS = ("prompt", "caption", "text")  # of a row, in which its prompt stands: the first that is there
FILE_NAME = "file_name"  # of a row: the picture that it is about
# Tables that folders of others have, the first that is there: image folders of datasets, and the tasks of Flow-GRPO.
LISTS = tuple(f"metadata.{kind}" for kind in ("jsonl", "csv", "parquet")) + ("train_metadata.jsonl",)
LISTS += tuple(f"train.{kind}" for kind in ("jsonl", "json", "csv", "parquet"))
LINES = "train.txt"  # and where none of them is there
FILE, WEIGHT, JUDGED_BY = "file", "weight", "judged_by"  # keys of a line that names a file
OF_A_FILE = re.compile(rf'\{{\s*"({FILE}|{WEIGHT}|{JUDGED_BY})"\s*:')  # how such a line begins
MOST_TURNS = 10_000  # of all files in a round, in which each has as many as its weight says
LISTED: Mapping[str, json_files.Check] = {
    FILE: ("the name of a file", lambda name: isinstance(name, str) and bool(name.strip())),
    WEIGHT: ("a number above 0", lambda weight: weight is None or json_files.is_number(weight) and weight > 0),
    JUDGED_BY: ("names of rewards", lambda names: True),  # which their reader judges
}
IMAGE, IMAGES = "image", "images"  # keys of a line: one picture that the prompt works on, or several
MOST_PICTURES = 10  # of one prompt
MOST_UNPACKED = 256 * 1024**2  # bytes of the text in a .parquet file
ROWS_TOGETHER = 64  # of such a file that are unpacked at a time
LARGE = 1024**2  # bytes of a file whose prompts are remembered: each iteration asks for some of them
MOST_DEPTH = 20  # of lists and objects in a line: less than the files that metadata are written into may have


class PromptError(errors.Expected, ValueError):
    """A prompt source that cannot be used, with the fix."""


class Lines(Sequence[str]):
    """The prompts of a text, each made when it is asked for: a million of them take hardly more memory than their file.

    Args:
        content: the text in UTF-8, where each prompt's line has been found to be one.
        ends: where each prompt begins and ends in it, one after another.
        numbers: of their lines.
        made: makes the prompt of a line and its number.
    """

    def __init__(self, content: bytes, ends: array, numbers: array, made: Callable[[str, int], str]):
        self._content, self._ends, self._numbers, self._made = content, ends, numbers, made

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> list[str]: ...
    def __getitem__(self, number):
        if isinstance(number, slice):
            return [self[index] for index in range(*number.indices(len(self)))]
        number = range(len(self))[number]
        return self._at(*self._ends[2 * number : 2 * number + 2], self._numbers[number])

    def __iter__(self) -> Iterator[str]:
        return map(self._at, self._ends[::2], self._ends[1::2], self._numbers)

    def _at(self, start: int, end: int, number: int) -> str:
        return self._made(self._content[start:end].decode().strip(), number)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(str.__eq__, self, other))


class Mix(Sequence[str]):
    """The prompts of several files one after another, which `choose` draws as often as the files' weights say.

    Args:
        rows: of `files_in`.

    Attributes:
        parts: {file: its prompts}.
        weights: of each file, as whole numbers: its turns in a round.

    Raises:
        PromptError, NotAllowed: as `read_source`; a file without prompts, one that is named twice, or weights that are not round.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]]):
        self.parts: dict[Path, Sequence[str]] = {}
        for row in rows:
            path, prompts = read_source(row[FILE])
            if not prompts or path in self.parts:
                wrong = "is named twice" if prompts else "has no prompts"
                raise PromptError(f"{path} {wrong}. Fix: take a line out; a weight says how often")
            if JUDGED_BY in row:
                more = {JUDGED_BY: row[JUDGED_BY]}
                prompts = [Prompt(text, {**more, **metadata_of(text)}, getattr(text, "place", "")) for text in prompts]
            self.parts[path] = prompts
        exact = [Fraction(str(row.get(WEIGHT) or 1)) for row in rows]
        whole = math.lcm(*(weight.denominator for weight in exact))
        if sum(exact) * whole > MOST_TURNS:
            raise PromptError(f"the weights make more than {MOST_TURNS} turns a round. Fix: round them, as 0.7 and 0.3")
        self.weights = [int(weight * whole) for weight in exact]

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))

    def __iter__(self) -> Iterator[str]:
        return itertools.chain.from_iterable(self.parts.values())

    def __getitem__(self, number: Any) -> Any:
        return list(self)[number]

    def drawn(self, positions: Sequence[int], seed: int | None) -> tuple[str, ...]:
        """The prompts at these positions. In a round each file has as many turns as its weight says, spread evenly (by
        Sainte-Laguë's method), and at each turn it gives its next prompt, in an order of its own."""
        parts = [*self.parts.values()]
        turns = sorted(
            ((turn + 0.5) / weight, part, turn) for part, weight in enumerate(self.weights) for turn in range(weight)
        )
        draws = [
            (part, position // len(turns) * self.weights[part] + turn)
            for position in positions
            for _, part, turn in [turns[position % len(turns)]]
        ]
        numbers = [
            iter(numbers_at([draw for of, draw in draws if of == part], len(prompts), seed, part))
            for part, prompts in enumerate(parts)
        ]
        return tuple(parts[part][next(numbers[part])] for part, _ in draws)


# Of the last large files, by path, number, time and size.
_remembered: Recent[tuple[Path, int, int, int], Sequence[str]] = Recent(4)


def read_prompts(text: str, file: str = "", preset: str = "") -> Sequence[str]:
    """Returns the prompts of a text box; of a file or folder when one is named; of `preset` if the box is empty.

    A text has a prompt a line, see `lines`, or names a file a line, see `files_in`. Rows of a table (.jsonl, .json, .csv, .tsv,
    .parquet) are `Prompt`s, whose metadata is all that they say beside the prompt. A folder holds one of LISTS or LINES, or
    pictures with a text of the same name each.

    Raises:
        NotAllowed: a file that workflows may not read.
        PromptError: nothing is there, it cannot be read, a row has no prompt, or there is no prompt at all; names file and line.
    """
    file = file or (preset if not text.strip() else "")
    source, prompts = read_source(file) if file else (None, Mix(rows) if (rows := files_in(text)) else lines(text))
    if not prompts:
        raise PromptError(f"no prompts{f' in {source}' if source else ''}. Fix: type one per line, or choose a file")
    return prompts


def files_in(text: str) -> list[dict[str, Any]]:
    """Returns the rows of a text whose lines name files, as {"file": "signs.txt", "weight": 3, "judged_by": ["text"]}; an empty
    list where its lines are prompts.

    `weight`: how often a prompt of that file is drawn, beside those of the others; 1 if it is left out.
    `judged_by`: of each of its prompts that does not say so itself.

    Raises:
        PromptError: a line without a file's name, or with a weight that is not a number above 0.
    """
    rows = []
    for line in _stripped(text):
        if not OF_A_FILE.match(line):
            return []
        try:
            row = json_files.parse(line, MOST_DEPTH)
            json_files.check(row, dict, LISTED)
            if unknown := row.keys() - LISTED.keys():
                raise ValueError(f"has {min(unknown)!r}")
        except ValueError as error:
            fix = f'such a line as {{"{FILE}": "signs.txt", "{WEIGHT}": 3, "{JUDGED_BY}": ["text"]}}'
            raise PromptError(f"line {line[:60]!r}, which names a file, {error}. Fix: {fix}") from error
        rows.append(row)
    return rows


def read_source(name: str) -> tuple[Path, Sequence[str]]:
    """Returns where the prompts of a file or folder stand, and them. Raises as `read_prompts`."""
    if (folder := _read_folder(name)) is not None:
        return folder
    state, content = _content(name)
    if not isinstance(content, bytes):
        return state[0], content
    prompts = prompts_in(content, state[0])
    if len(content) > LARGE:
        _remembered.use(state, lambda: prompts)
    return state[0], prompts


def _read_folder(name: str) -> tuple[Path, list[str]] | None:
    """Returns a folder and its prompts: those of the first of LISTS in it, or of LINES; else one for each picture with a text
    of the same name, as `a.png` and `a.txt`, which says what to do with it. None if the name is not a folder's.

    Raises:
        NotAllowed: a folder that workflows may not read, or a link out of it.
        PromptError: neither a list nor a pair in it, a picture or a text that stands alone, two pictures for one text, or a text
            that is empty or cannot be read.
    """
    if name.lower().endswith(permissions.PROMPT_SUFFIXES):
        return None
    try:
        return opening.in_time(lambda: _folder(name.rstrip("/")))
    except FileNotFoundError:
        return None
    except (OSError, opening.Refused) as error:
        if isinstance(error, permissions.NotAllowed):
            raise
        raise PromptError(f"folder {name!r} {error}. Fix: copy it into ComfyUI's input folder") from error


def _folder(name: str) -> tuple[Path, list[str]]:
    path = folders.input_folder(name, permissions.PROMPTS)
    if listed := next((file for file in (*LISTS, LINES) if (path / file).is_file()), None):
        content = folders.read_below(path, listed, permissions.MOST_PROMPT_BYTES)
        return path / listed, [_in_folder(name, prompt) for prompt in prompts_in(content, path / listed)]
    return path, _pairs(path, name)


def _in_folder(name: str, prompt: str) -> str:
    """The prompt of a row about a picture of that folder, which it then works on."""
    metadata = dict(metadata_of(prompt))
    picture = metadata.pop(FILE_NAME, None)
    if picture is None or metadata.keys() & {IMAGE, IMAGES}:
        return prompt
    return Prompt(prompt, {**metadata, IMAGE: f"{name}/{picture}"}, place_of(prompt))


def _pairs(path: Path, name: str) -> list[str]:
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
    return [_pair(path, name, texts[stem], shown[stem]) for stem in sorted(texts)]


def _pair(folder: Path, name: str, text: str, picture: str) -> Prompt:
    try:
        content = folders.read_below(folder, text, permissions.MOST_PROMPT_BYTES)
    except opening.Refused as error:
        raise PromptError(f"{folder / text} {error}. Fix: put a plain text there") from error
    return Prompt(caption(content, folder / text), {IMAGE: f"{name}/{picture}"}, str(folder / text))


# --- lines and rows ---------------------------------------------------------------------------------------------------


def decoded(content: bytes, path: Path) -> str:
    """Returns a text without its byte order mark. Raises PromptError, which names the line, where it is not UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        wrong = f"byte 0x{content[error.start]:02x}, {error.reason}"
        raise PromptError(f"{path}, line {number} is not text in UTF-8 ({wrong}). Fix: save it as UTF-8") from error


def caption(content: bytes, path: Path) -> str:
    """Returns the text of a picture's .txt as it is, JSON too. Raises PromptError where it is empty, or as `decoded`."""
    if not (text := decoded(content, path).strip()):
        raise PromptError(f"{path} is empty. Fix: write the prompt of its picture into it")
    return text


def lines(text: str) -> list[str]:
    """Returns the prompts of a text, one a line as editors count them. Empty lines and those that begin with # are left out.

    An object {"prompt": …} is a prompt with metadata, and what else begins with { is text. Raises PromptError for such an object
    that cannot be read.
    """
    return list(map(prompt_of, _stripped(text)))


def _stripped(text: str) -> list[str]:
    return [line for line in map(str.strip, _split(text)) if line and not line.startswith("#")]


def _split(text: str) -> list[str]:
    return re.split(r"\r\n|[\r\n]", text)


def prompt_of(text: str) -> str:
    """Returns one line's prompt, see `lines`."""
    if OF_A_FILE.match(text):
        raise PromptError(
            f"{text[:60]!r} names a file, as only the prompts of a Prompt Dataset may, and then each line. Fix: put the prompts "
            "beside it into a file of their own, and name that too"
        )
    if not text.startswith("{") or not re.match(r'\{\s*"prompt"\s*:', text):
        return text
    try:
        return prompt_of_row(json_files.parse(text, MOST_DEPTH))
    except ValueError as error:
        raise PromptError(
            f'prompt {text[:60]!r} is not an object like {{"prompt": "…"}}: {error}. Fix: such an object, or plain text'
        ) from error


def as_line(prompt: str) -> str:
    """Returns the line that `lines` reads as this prompt."""
    is_text = not (metadata_of(prompt) or OF_A_FILE.match(prompt)) and lines(prompt) == [prompt]
    return str(prompt) if is_text else as_row(prompt)


def as_row(prompt: str) -> str:
    """Returns the line of a .jsonl file that says this prompt."""
    return json.dumps({"prompt": str(prompt), **metadata_of(prompt)}, ensure_ascii=False)


def _lines(content: bytes, path: Path) -> Lines:
    table = path.suffix.lower() == ".jsonl"
    made = functools.partial(_of_json, path) if table else lambda text, number: prompt_of(text)
    ends, numbers, content = array("I"), array("I"), content.removeprefix(codecs.BOM_UTF8)
    for number, line in enumerate(re.finditer(rb"([^\r\n]*)(?:\r\n|[\r\n]|\Z)", content), 1):
        try:
            text = line[1].decode().strip()
        except UnicodeDecodeError:
            decoded(content, path)  # raises with the number of the line
            raise
        if text and (table or not text.startswith("#")):
            made(text, number)
            ends.extend(line.span(1))
            numbers.append(number)
    return Lines(content, ends, numbers, made)


def _of_json(path: Path, text: str, number: int) -> Prompt:
    return _of_row(f"{path}, line {number}", _json_line(path, text, number))


def _of_row(place: str, row: Any) -> Prompt:
    try:
        return prompt_of_row(row if isinstance(row, Mapping) else {"prompt": row}, place)
    except ValueError as error:
        raise PromptError(
            f'{place} is not a row like {{"prompt": "…"}}: {error}. Fix: one such row a prompt'
        ) from error


def prompts_in(content: bytes, path: Path) -> Sequence[str]:
    """Returns the prompts of a file, by the ending of its name. Raises PromptError, which names the line."""
    if path.suffix.lower() == ".jsonl" or path.suffix.lower() not in TABLES:
        return _lines(content, path)
    return [_of_row(place, row) for place, row in rows(content, path)]


def rows(content: bytes, path: Path) -> Iterator[tuple[str, Any]]:
    """Yields the rows of a table, by the ending of its name, each with its place for messages; nulls of an object are absent.

    Raises:
        PromptError: names the place, what is wrong and the fix.
    """
    try:
        for place, row in TABLES[path.suffix.lower()](content, path):
            yield f"{path}, {place}", _without_nulls(row)
    except ValueError as error:
        raise error if isinstance(error, PromptError) else PromptError(f"{path}, {error}") from error


def _json_lines(content: bytes, path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(_split(decoded(content, path)), 1):
        if line.strip():
            yield f"line {number}", _json_line(path, line, number)


def _json_line(path: Path, line: str, number: int) -> Any:
    try:
        return json_files.parse(line, MOST_DEPTH)
    except ValueError as error:
        raise PromptError(f'{path}, line {number} {error}. Fix: one object like {{"prompt": "…"}} a line') from error


def _json_list(content: bytes, path: Path) -> Iterator[tuple[str, Any]]:
    fix = 'a list, as ["a red circle", …] or [{"prompt": "…"}, …]'
    try:
        listed = json_files.parse(decoded(content, path), MOST_DEPTH)
    except ValueError as error:
        raise error if isinstance(error, PromptError) else PromptError(f"{path} {error}. Fix: {fix}") from error
    if not isinstance(listed, list):
        raise PromptError(f"{path} is not a list of prompts. Fix: {fix}")
    yield from ((f"entry {number}", row) for number, row in enumerate(listed, 1))


def _csv(content: bytes, path: Path) -> Iterator[tuple[str, Any]]:
    text = decoded(content, path)
    head = _split(text)[0]
    reader = csv.DictReader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=head.count), strict=True)
    names = [str(name).strip().lower() for name in reader.fieldnames or ()]
    reader.fieldnames = ["prompt" if name == "prompts" else name for name in names]
    if not {*KEYS} & {*reader.fieldnames}:
        fix = f"a first line that names the columns, one of them {', '.join(KEYS)}"
        raise PromptError(f"{path}, line 1 names no column of prompts: {opening.shown(head)}. Fix: {fix}")
    try:
        for row in reader:
            if None in row or None in row.values():
                raise PromptError(
                    f"{path}, line {reader.line_num} has another number of columns than line 1. Fix: quote commas"
                )
            yield f"line {reader.line_num}", {name: value for name, value in row.items() if value}
    except csv.Error as error:
        raise PromptError(f"{path}, line {reader.line_num} {error}. Fix: correct that line") from error


def _parquet(content: bytes, path: Path) -> Iterator[tuple[str, Any]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise PromptError(
            f"{path} is read by pyarrow ({error}). Fix: pip install pyarrow, or save it as .jsonl"
        ) from error
    number, size = 0, 0
    try:
        table = parquet.ParquetFile(io.BytesIO(content))
        # Pictures are binary, and not asked for.
        names = [field.name for field in table.schema_arrow if "binary" not in str(field.type)]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise PromptError(f"{path} has two columns {twice!r}. Fix: give one of them another name")
        # In parts, since a text that is repeated lies in the file once: what a file says of its size says nothing of its rows.
        for part in table.iter_batches(ROWS_TOGETHER, columns=names):
            part = part.select(names)  # it also has "a"'s "b" of a column "a.b"
            size += part.nbytes
            if size > MOST_UNPACKED:
                raise PromptError(f"{path} has over {MOST_UNPACKED:,} bytes of text, which are the most. Fix: split it")
            for row in part.to_pylist():
                number += 1
                # As a line of a .jsonl file, so that the same holds for it: without NaN, and not too deep.
                yield f"row {number}", json_files.parse(json.dumps(row, default=str), MOST_DEPTH)
    except PromptError:
        raise
    except (ArrowException, OSError) as error:
        raise PromptError(f"{path} cannot be read as a table ({error}). Fix: copy it again") from error
    except ValueError as error:
        fix = "leave that out, or save the table as .jsonl"
        raise PromptError(f"{path}, what follows row {number} cannot be read ({error}). Fix: {fix}") from error


TABLES = {".jsonl": _json_lines, ".json": _json_list, ".csv": _csv, ".tsv": _csv, ".parquet": _parquet}


def _without_nulls(value: Any) -> Any:
    """A row without what Arrow writes for a key that is not there."""
    if isinstance(value, dict):
        return {name: _without_nulls(part) for name, part in value.items() if part is not None}
    return [_without_nulls(part) for part in value] if isinstance(value, list) else value


def prompt_of_row(row: Any, place: str = "") -> Prompt:
    """Returns the prompt of a row, whose other keys are its metadata. Raises ValueError with what is wrong."""
    metadata = _without_nulls(row)
    key_name = next((name for name in KEYS if name in metadata), None) if isinstance(metadata, dict) else None
    if key_name is None:
        raise ValueError("has no prompt")
    text = metadata.pop(key_name)
    if not isinstance(text, str):
        raise ValueError(f"has {key_name} = {opening.shown(text)}, which is not text")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # no tokenizer takes it
        raise ValueError("has half a character in its prompt") from error
    prompt = Prompt(text.strip(), metadata, place)
    picture_names(prompt)
    return prompt


def choose(prompts: Sequence[str], count: int, index: int, seed: int | None) -> Prompts:
    """The `count` prompts of iteration `index`; the dataset is repeated without end.

    `seed`: of a new order in every pass; None keeps the file's order.
    """
    positions = range(index * count, (index + 1) * count)
    if isinstance(prompts, Mix):
        return Prompts(prompts.drawn(positions, seed), tuple(positions))
    return Prompts(tuple(prompts[number] for number in numbers_at(positions, len(prompts), seed)), tuple(positions))


def numbers_at(positions: Sequence[int], count: int, seed: int | None, stream: int = 0) -> list[int]:
    """The numbers at these positions when `count` things are repeated without end: in their order, or in a new order in
    every pass, which is another one for each `stream`."""
    orders: dict[int, np.ndarray] = {}
    numbers = []
    for position in positions:
        epoch, index_in_epoch = divmod(position, count)
        if seed is not None and epoch not in orders:
            orders[epoch] = np.random.default_rng([seed, epoch, stream]).permutation(count)
        numbers.append(int(orders[epoch][index_in_epoch]) if seed is not None else index_in_epoch)
    return numbers


@functools.cache
def warn_of_two_sources(text: str, file: str) -> None:
    """Says once that the text box is not used while a file is named."""
    if text.strip() and file:
        logger.warning("prompts come from the file %s; the text box is not used: empty `file` to use it", file)


def file_state(file: str, text: str = "") -> str:
    """Changes when the file does, or one that the text names, so that an edited prompt file is read again."""
    if not file:
        return " ".join(file_state(row[FILE]) for row in files_in(text))
    if (folder := _read_folder(file)) is not None:
        return hashlib.sha256(json.dumps([key(prompt) for prompt in folder[1]]).encode()).hexdigest()

    def state() -> os.stat_result:
        _, descriptor = permissions.open_prompts(file)
        try:
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)

    stat = opening.in_time(state)
    return f"{stat.st_mtime_ns}:{stat.st_size}"


def _content(file: str) -> tuple[tuple[Path, int, int, int], bytes | Sequence[str]]:
    """Returns which file that is and what is in it, or its prompts where they are remembered, within a time limit: a name may
    lead to a network drive that hangs."""

    def read() -> tuple[tuple[Path, int, int, int], bytes | Sequence[str]]:
        path, descriptor = permissions.open_prompts(file)
        stat = os.fstat(descriptor)
        state = (path, stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if (prompts := _remembered.get(state)) is not None:
            os.close(descriptor)
            return state, prompts
        return state, opening.read(descriptor, permissions.MOST_LINES_BYTES)

    try:
        return opening.in_time(read)
    except permissions.NotAllowed:
        raise
    except FileNotFoundError as error:
        raise PromptError(
            f"{error}. Fix: give the name of a .txt or .jsonl file in ComfyUI's input folder or $OTCA_INPUT"
        ) from error
    except (OSError, opening.Refused) as error:
        raise PromptError(f"file {file!r} {error}. Fix: copy it into ComfyUI's input folder") from error
    except ValueError as error:
        raise PromptError(str(error)) from error


def picture_names(prompt: str) -> tuple[str, ...]:
    """The pictures that a prompt works on, by the names in its line: `image`, or `images`, in their order.

    Raises:
        ValueError: with what is wrong with these two keys.
    """
    if not (metadata := metadata_of(prompt)):
        return ()
    single, several = metadata.get(IMAGE), metadata.get(IMAGES)
    if single is not None and several is not None:
        raise ValueError(f"has both {IMAGE} and {IMAGES}")
    if single is not None:
        if not isinstance(single, str) or not single:
            raise ValueError(f"has {opening.shown(single)} for its {IMAGE}, which is not the name of a picture")
        return (single,)
    if several is None:
        return ()
    if not isinstance(several, list) or not all(isinstance(name, str) and name for name in several):
        raise ValueError(f"has {opening.shown(several)} for its {IMAGES}, which is not a list of names of pictures")
    if not several:
        raise ValueError(f"has an empty list for its {IMAGES}: leave the key out where nothing is shown")
    if len(several) > MOST_PICTURES:
        raise ValueError(f"has {len(several)} pictures for its {IMAGES}, and {MOST_PICTURES} may be given")
    return tuple(several)


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
    texts: dict[str, str] = {}
    twice = {}
    for prompt in prompts:
        if key(texts.setdefault(identity(prompt), prompt)) != key(prompt):
            twice[str(prompt)] = None
    if twice:
        raise PromptError(
            f"{len(twice)} prompts stand there twice with different metadata: {', '.join(map(repr, [*twice][:3]))}. Fix: another "
            "text for each, or one of them"
        )
    return list(texts.values())
