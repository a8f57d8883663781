"""The one reader of a run's small files, and the one remover of a run's folders. Imports no torch.

A run's folder may have been on a disk that filled up, in an archive, under an editor, or in a stranger's hands. So a file is
opened as it is (never through a link, never a pipe or a device), and its size, depth and types are checked before anything is
made of it. What is wrong is one line: the file, what is wrong with it, and what helps. `FILES` says for each file whether a run
goes on without it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .checks import (
    FLAG,
    MOMENT,
    NUMBER,
    NUMBERS,
    SPREAD,
    TEXT,
    TEXTS,
    WHOLE,
    Check,
    check,
    is_number,
    is_whole,
    maybe,
    one_of,
    shortened,
)
from .layout import (
    BEST,
    BEST_FIGURES,
    CANVAS,
    CHANGES,
    EVALUATIONS,
    METRICS,
    STATUS,
    WANDB,
    WORKFLOW,
    NotOurs,
    flush,
    put_in_place,
)

logger = logging.getLogger(__name__)

Say = Callable[[str], None]

MOST_BYTES = 64 * 1024**2  # of a JSON file
MOST_BYTES_OF_LINES = 4 * 1024**3
MOST_DEPTH = 100  # of lists and objects in each other; a canvas with subgraphs has some 12
MARKER = ".otca"  # in a folder that we made, and so may remove
_MADE = b"made by otca, which removes this folder when it is not needed any more\n"
_MOST_RENAMED = 100  # how often a file may get another one's name while it is being opened


class Damaged(ValueError):
    """A file that is not as it was written: `path`, what is `wrong` with it, and the `fix`."""

    def __init__(self, path: Path, wrong: str, fix: str):
        self.path, self.wrong, self.fix = path, wrong, fix
        super().__init__(f"{path} {wrong}. Fix: {fix}")


# --- opening ----------------------------------------------------------------------------------------------------------


def open_plain(path: Path, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a plain file: never through a link at its name, and never of a pipe or a device, which could block.

    What was looked at is what is opened, also on Windows, which has no O_NOFOLLOW.

    Raises:
        OSError: there is none, or it is something else; names it.
    """
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    for _ in range(_MOST_RENAMED):
        try:
            seen = os.lstat(path)
        except FileNotFoundError:
            if not flags & os.O_CREAT:
                raise
            with contextlib.suppress(FileExistsError):
                return os.open(path, flags | os.O_EXCL, 0o666)  # which follows no link on any system
            continue
        if not stat.S_ISREG(seen.st_mode):
            raise OSError(f"{path} is {_kind(seen.st_mode)}, and no plain file")
        try:
            descriptor = os.open(path, flags, 0o666)
        except FileNotFoundError:
            continue
        if os.path.samestat(seen, os.fstat(descriptor)):
            return descriptor
        os.close(descriptor)  # another one took its name in between
    raise OSError(f"{path} is exchanged all the time, and cannot be opened")


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISLNK, "a link"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISSOCK, "a socket"),
    )
    return next((name for test, name in kinds if test(mode)), "a device")


def present(path: Path) -> bool:
    """Whether there is anything of that name, be it a link that leads nowhere."""
    return os.path.lexists(path)


def read_bytes(path: Path, most_bytes: int = MOST_BYTES, fix: str = "put the file back") -> bytes | None:
    """The content of a plain file; None where there is nothing of that name.

    Raises:
        Damaged: it is too large, no plain file, or cannot be read.
    """
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            content = file.read(most_bytes + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        wrong = f"cannot be read ({error.strerror})" if error.strerror else str(error).removeprefix(f"{path} ")
        raise Damaged(path, wrong, fix) from error
    if len(content) > most_bytes:
        raise Damaged(path, f"is larger than {most_bytes / 1024**2:.0f} MB", fix)
    return content


# --- JSON -------------------------------------------------------------------------------------------------------------


def parse(content: bytes | str, most_depth: int = MOST_DEPTH) -> Any:
    """The value of strict JSON: no NaN, no number beyond a float's, no deeper than that.

    Raises:
        ValueError: says what is wrong.
    """
    try:
        text = content.decode("utf-8-sig") if isinstance(content, bytes) else content
    except UnicodeDecodeError as error:
        raise ValueError("is no text in UTF-8") from error
    # A look at brackets alone is quick, and tells of nearly every file that it cannot be deep.
    if text.count("[") + text.count("{") > most_depth and _depth(text) > most_depth:
        raise ValueError(f"is nested deeper than {most_depth} levels")
    try:
        return json.loads(text, parse_constant=_no_number, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON ({error})") from error
    except ValueError as error:  # of the two below, or a whole number of more digits than Python reads
        raise ValueError(f"holds a number that is none ({str(error)[:80]})") from error


# A string that does not end takes all the rest: else each quote in it would be tried as another one's beginning.
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[{\]}]', re.DOTALL)


def _depth(text: str) -> int:
    """Of brackets outside strings, before a parser has to follow them down."""
    deepest = depth = 0
    for found in _STRING_OR_BRACKET.finditer(text):
        if found[0][0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif found[0][0] in "]}":
            depth -= 1
    return deepest


def _no_number(text: str) -> None:
    raise ValueError(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def read_json(
    path: Path,
    kind: type = dict,
    *,
    fields: Mapping[str, Check] | None = None,
    most_bytes: int = MOST_BYTES,
    most_depth: int = MOST_DEPTH,
    fix: str = "put the file back",
) -> Any:
    """The content of a JSON file; None where there is nothing of that name.

    Args:
        kind: of the whole.
        fields: what an object must hold.

    Raises:
        Damaged: it is not that.
    """
    content = read_bytes(path, most_bytes, fix)
    if content is None:
        return None
    try:
        value = parse(content, most_depth)
        check(value, kind, fields or {})
    except ValueError as error:
        raise Damaged(path, "is empty" if not content.strip() else str(error), fix) from error
    return value


# --- each file of a run -----------------------------------------------------------------------------------------------

STATES = ("queued", "running", "idle", "finished", "stopped", "interrupted", "failed")


def _nodes(value: Any) -> bool:
    return (
        isinstance(value, dict) and isinstance(value.get("class_type"), str) and isinstance(value.get("inputs"), dict)
    )


@dataclass(frozen=True)
class OwnFile:
    """A JSON object in a run's folder. `lost`: what a run that goes on without it lacks; empty where it cannot."""

    lost: str = ""
    fix: str = "put the file back"
    fields: Mapping[str, Check] = field(default_factory=dict)
    values: Check | None = None  # of all values


FILES: dict[str, OwnFile] = {
    STATUS: OwnFile(
        "since when it runs, how long it should be and how it ended",
        fields={
            "status": one_of(*STATES),
            "place": maybe(one_of("headless", "canvas")),
            "total": maybe(WHOLE),
            "pid": maybe(("the number of a process", lambda value: is_whole(value) and value < 2**31)),
            "process_started": maybe(MOMENT),
            "started": maybe(MOMENT),
            "error": maybe(TEXT),
            "reason": maybe(TEXT),
            "id": maybe(TEXT),
        },
    ),
    f"{BEST}/{BEST_FIGURES}": OwnFile(
        "which evaluation was the best; the next one begins that anew",
        fields={"metric": TEXT, "value": NUMBER, "iteration": WHOLE, "before_training": maybe(NUMBER)},
    ),
    CANVAS: OwnFile("how its graph looks on ComfyUI's canvas"),
    WANDB: OwnFile("which run of Weights & Biases it is, and another is begun", fields={"project": TEXT, "id": TEXT}),
    WORKFLOW: OwnFile(
        fix="put the file back, or export the workflow again and train that with --output and --resume",
        values=("a node with class_type and inputs", _nodes),
    ),
}


def read_own(folder: Path, name: str, say: Say = logger.warning) -> dict | None:
    """A JSON file of a run, by its name in the run's folder; None where there is none, or none that the run needs.

    Raises:
        Damaged: the run cannot do without it.
    """
    own = FILES[name]
    try:
        content = read_json(folder / name, fields=own.fields, fix=own.fix)
        if content is not None and own.values:
            check_values(content, own, folder / name)
    except Damaged as error:
        if not own.lost:
            raise
        say(f"{error.path} {error.wrong}; the run goes on without it, but does not know any more {own.lost}")
        return None
    return content


def check_values(content: dict, own: OwnFile, path: Path) -> None:
    wanted, good = own.values
    if not content:
        raise Damaged(path, f"holds nothing, and not {wanted}", own.fix)
    for name, value in content.items():
        if not good(value):
            raise Damaged(path, f"has {shortened(name)} = {shortened(value)}, and not {wanted}", own.fix)


# --- lines ------------------------------------------------------------------------------------------------------------


def read_lines(path: Path, row_check: Callable[[dict], None] | None = None, say: Say = logger.warning) -> list[dict]:
    """Objects of a JSON-lines file; none where there is no file. A last line that a kill cut short is left out, and that is said.

    Args:
        row_check: raises ValueError for a row that is none; None: that of `LINES`, whose rows also rise by their iteration.

    Raises:
        Damaged: names the line.
    """
    ordered = row_check is None
    row_check = row_check or LINES[path.name]
    content = read_bytes(path, MOST_BYTES_OF_LINES)
    lines = (content or b"").split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    rows: list[dict] = []
    for number, line in enumerate(lines, 1):
        try:
            row = parse(line)
            check(row, dict, {})
            row_check(row)
            if ordered and rows and row["iteration"] <= rows[-1]["iteration"]:
                raise ValueError(f"is of iteration {row['iteration']}, and the one before of {rows[-1]['iteration']}")
        except ValueError as error:
            if number == len(lines) and str(error).startswith(("is no JSON", "is no text")):
                say(f"{path}, line {number}: the last line was cut short, and is left out")
                break
            raise Damaged(path, f"is damaged: line {number} {error}", "remove that line, and resume") from error
        rows.append(row)
    return rows


def read_changes(folder: Path, say: Say = logger.warning) -> list[dict]:
    """Which values were changed while a run trained; none, which is said, where that cannot be read: a run goes on without."""
    try:
        return read_lines(folder / CHANGES, say=say)
    except Damaged as error:
        say(
            f"{error.path} {error.wrong}; the run goes on without it, but does not know any more which values were changed"
        )
        return []


def check_iteration(row: dict) -> None:
    """Of metrics.jsonl. Raises ValueError where a row is no iteration, or a figure no number."""
    check(row, dict, {"iteration": WHOLE})
    for name, value in row.items():
        if ("/" in name or name in _FIGURES) and not (value is None or isinstance(value, bool) or is_number(value)):
            raise ValueError(f"has {shortened(name)} = {shortened(value)}, and not a number or null")
        if name.startswith(_STEP) and not name.removeprefix(_STEP).isdecimal():
            raise ValueError(f"has {shortened(name)}, which is no step")


_STEP = "credit/step/"
_FIGURES = ("gradient_norm", "samples_per_second")  # beside those whose names have a part before a slash
_MEASURED = {"mean": maybe(NUMBER), "std": SPREAD, "standard_error": SPREAD, "held_out": FLAG, "values": NUMBERS}


def check_evaluation(row: dict) -> None:
    """Of evaluation.jsonl. Raises ValueError where a row is no evaluation."""
    check(row, dict, {"iteration": WHOLE, "prompts": maybe(TEXTS)})
    check(row.get("rewards"), dict, {})
    for name, figures in row["rewards"].items():
        try:
            check(figures, dict, _MEASURED)
        except ValueError as error:
            raise ValueError(f"{error}, of reward {shortened(name)}") from error


def check_changes(row: dict) -> None:
    """Of changes.jsonl. Raises ValueError where a row is no list of changes."""
    check(row, dict, {"iteration": WHOLE})
    check(row.get("changes"), list, {})
    for change in row["changes"]:
        check(change, dict, {"node": TEXT, "input": maybe(TEXT)})
        if missing := {"before", "now"} - change.keys():
            raise ValueError(f"has a change without {min(missing)!r}")


LINES = {METRICS: check_iteration, EVALUATIONS: check_evaluation, CHANGES: check_changes}


# --- folders ----------------------------------------------------------------------------------------------------------


def mark_own(folder: Path) -> None:
    """Says in a folder that we made it, before anything else is written there."""
    with os.fdopen(open_plain(folder / MARKER, os.O_WRONLY | os.O_CREAT), "wb") as file:
        file.truncate()  # and not on opening, before it is known to be no link
        file.write(_MADE)


def is_own(folder: Path) -> bool:
    """Whether we made that folder. A link to one is none, and neither is one with another's file of the marker's name."""
    try:
        return stat.S_ISDIR(os.lstat(folder).st_mode) and read_bytes(folder / MARKER, len(_MADE)) == _MADE
    except (OSError, Damaged):
        return False


def remove_own(folder: Path) -> bool:
    """Removes a folder that we made, and follows no link in it. Whatever else is there stays; returns whether it is gone."""
    if not is_own(folder):
        return False
    shutil.rmtree(folder)
    return True


def put_back(target: Path) -> bool:
    """Gives a folder its name back that a process had set aside and was killed before the new one had that name.

    Returns whether it did.
    """
    left = [] if present(target) else [place for place in target.parent.glob(f".{target.name}.*.old") if is_own(place)]
    if left:
        put_in_place(max(left, key=lambda place: place.stat().st_mtime), target)
    return bool(left)


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill. When that is done it and all in it are flushed to disk, and it takes `target`'s place.

    A failure leaves `target` as it was. What a killed process left behind beside it is put back or swept up.

    Raises:
        NotOurs: `target` is there, and we did not make it.
    """
    if present(target) and not is_own(target):
        raise NotOurs(f"{target} was not made by a training, and is left alone. Fix: move it elsewhere")
    if target.parent.is_dir():
        put_back(target)
        for left in target.parent.glob(f".{target.name}.*"):
            remove_own(left)
    aside, old = (target.with_name(f".{target.name}.{os.getpid()}{ending}") for ending in ("", ".old"))
    aside.mkdir(parents=True)
    mark_own(aside)
    try:
        yield aside
        for place in [*aside.rglob("*"), aside]:
            flush(place)
        if target.is_dir():
            put_in_place(target, old)
        put_in_place(aside, target)
        flush(target.parent)
    except BaseException:
        if old.is_dir() and not target.is_dir():
            put_in_place(old, target)
        raise
    finally:
        for place in (aside, old):
            remove_own(place)
