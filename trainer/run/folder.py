"""The folder of a run: names of what it holds, what each of its files must hold to be read, and how they are written. Imports no
torch."""

from __future__ import annotations

import functools
import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...host import files, json_files, json_lines
from ...host.errors import Expected
from ...host.files import Damaged, write_text
from ...host.json_files import (
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
)
from ...host.stopping import STOP
from ...host.text import quoted
from .. import keys
from ..policy.files import ADAPTERS, NETWORKS

logger = logging.getLogger(__name__)

Say = Callable[[str], None]


@functools.lru_cache(maxsize=1000)
def say_once(line: str) -> None:
    """For what is looked at again and again."""
    logger.warning(line)


METRICS = "metrics.jsonl"  # one object an iteration
EVALUATIONS = "evaluation.jsonl"  # one object an evaluation
CHANGES = "changes.jsonl"  # one object for each iteration whose graph had other values than the one before
WORKFLOW = "workflow.json"  # the graph in API form …
CANVAS = "canvas.json"  # … and as ComfyUI's canvas has it, where that is known
STATUS = "status.json"
BUDGET = "budget.json"  # what ends the training instead of its number of iterations
WANDB = "wandb.json"  # project and id of the run there
REMOTE = "remote.json"  # where the run lives of which this folder is a copy
NOTES = "notes.json"  # what the user says of the run; no training writes it
LOG = "train.log"  # what a trainer printed that the page started
PICTURES = ("samples.png", "rewards.png", "credit.png")
SAMPLES, CHECKPOINTS = "samples", "checkpoints"
PAIRS = "before_after"  # a folder for each prompt that a person has tried with the run's model, without and with its adapter …
BEFORE, AFTER, ABOUT = "before.png", "after.png", "about.json"  # … and what is in it
BEST, BEST_FIGURES = "best", "best.json"  # a folder with the adapter of the best evaluation, and in it what makes it so
TENSORBOARD = "tensorboard"
FOLDERS = (SAMPLES, CHECKPOINTS, BEST, TENSORBOARD, *NETWORKS)
# All that a training writes into its folder, or removes there, by itself. A new one begins only where nothing of that name is.
WRITTEN = (METRICS, EVALUATIONS, CHANGES, WORKFLOW, CANVAS, STATUS, BUDGET, STOP, WANDB, *PICTURES, *ADAPTERS, *FOLDERS)


# --- each file of a run -----------------------------------------------------------------------------------------------

STATES = ("queued", "running", "idle", "finished", "stopped", "interrupted", "failed")


def _nodes(value: Any) -> bool:
    return (
        isinstance(value, dict) and isinstance(value.get("class_type"), str) and isinstance(value.get("inputs"), dict)
    )


@dataclass(frozen=True)
class OwnFile:
    """A JSON object in a run's folder.

    Attributes:
        lost: what a run does not know without it; empty where no run continues without it.
        fix: said where the file is damaged.
        fields: of the object, with what each must be.
        values: what every value must be, whatever its name.
    """

    lost: str = ""
    fix: str = "put the file back"
    fields: Mapping[str, Check] = field(default_factory=dict)
    values: Check | None = None


FILES: dict[str, OwnFile] = {
    STATUS: OwnFile(
        "since when it runs, how long it should be and how it ended",
        fields={
            "status": one_of(*STATES),
            "place": maybe(one_of("headless", "canvas", "remote")),
            "total": maybe(WHOLE),
            "pid": maybe(("the number of a process", lambda value: is_whole(value) and value < 2**31)),
            "process_started": maybe(MOMENT),
            "started": maybe(MOMENT),
            "error": maybe(TEXT),
            "node": maybe(TEXT),
            "reason": maybe(TEXT),
            "at": maybe(TEXT),
            "who": maybe(TEXT),
            "id": maybe(TEXT),
        },
    ),
    BEST_FIGURES: OwnFile(
        "which evaluation was the best; the next one counts as the first",
        fields={"metric": TEXT, "value": NUMBER, "iteration": WHOLE, "before_training": maybe(NUMBER)},
    ),
    BUDGET: OwnFile(
        fields={
            "unit": one_of("forwards", "seconds", "seconds by the clock"),
            "amount": ("a number above 0", lambda value: is_number(value) and value > 0),
            "evaluations": WHOLE,
        }
    ),
    ABOUT: OwnFile(
        "what the pictures beside it show", fields={"prompt": TEXT, "seed": WHOLE, "iteration": maybe(WHOLE)}
    ),
    CANVAS: OwnFile("how its graph looks on ComfyUI's canvas"),
    NOTES: OwnFile("your notes", fields={"notes": maybe(TEXT)}),
    REMOTE: OwnFile("where it lives", fix="watch it again", fields={"url": TEXT, "key": TEXT}),
    WANDB: OwnFile("which run of Weights & Biases it is, and another is begun", fields={"project": TEXT, "id": TEXT}),
    WORKFLOW: OwnFile(
        fix="put the file back, or export the workflow again and train that with --output and --resume",
        values=("a node with class_type and inputs", _nodes),
    ),
}


def read_own(folder: Path, name: str, say: Say = logger.warning) -> dict | None:
    """A JSON file of a run, by its name in the run's folder; None if it is missing, or damaged and not needed.

    Raises:
        Damaged: the run cannot do without it.
    """
    file = FILES[name]
    try:
        content = json_files.read_json(folder / name, fields=file.fields, fix=file.fix)
        if content is not None and file.values:
            check_values(content, file.values, folder / name, file.fix)
    except Damaged as error:
        if not file.lost:
            raise
        say(f"{error.path} {error.wrong}; the run continues without it, but no longer knows {file.lost}")
        return None
    return content


def check_values(content: dict, values: Check, path: Path, fix: str) -> None:
    wanted, good = values
    if not content:
        raise Damaged(path, f"holds nothing, and not {wanted}", fix)
    for name, value in content.items():
        if not good(value):
            raise Damaged(path, f"has {quoted(name)} = {quoted(value)}, and not {wanted}", fix)


# --- lines ------------------------------------------------------------------------------------------------------------


def read_lines(path: Path, row_check: Callable[[dict], None] | None = None, say: Say = logger.warning) -> list[dict]:
    """Objects of a JSON-lines file, an empty list if it is missing. A last line that a kill cut short is left out and reported.

    `row_check`: raises ValueError for a wrong row; None: that of `LINES`, whose rows also rise by their iteration.

    Raises:
        Damaged: names the line.
    """
    row_check = row_check or _rising(LINES[path.name])
    return json_lines.read_lines(path, row_check, say, "remove that line, and resume")


def _rising(row_check: Callable[[dict], None]) -> Callable[[dict], None]:
    """The same check, which also wants each row's iteration above that of the row before."""
    last: list[int] = []

    def checked(row: dict) -> None:
        row_check(row)
        if last and row["iteration"] <= last[-1]:
            raise ValueError(f"is of iteration {row['iteration']}, and the one before of {last[-1]}")
        last.append(row["iteration"])

    return checked


def json_line(row: Mapping) -> str:
    """One line of strict JSON, which has no NaN: what could not be measured is null."""
    return json.dumps(_without_nan(row), allow_nan=False) + "\n"


def _without_nan(value):
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_changes(folder: Path, say: Say = logger.warning) -> list[dict]:
    """Which values were changed while a run trained. Where that cannot be read: none, with a line to `say`, since a run continues
    without it."""
    try:
        return read_lines(folder / CHANGES, say=say)
    except Damaged as error:
        say(f"{error.path} {error.wrong}; the run continues without it, but no longer knows which values were changed")
        return []


def check_iteration(row: dict) -> None:
    """Raises ValueError if a row of metrics.jsonl is not an iteration, or a value not a number."""
    check(row, dict, {"iteration": WHOLE})
    for name, value in row.items():
        if ("/" in name or name in _PLAIN) and not (value is None or isinstance(value, bool) or is_number(value)):
            raise ValueError(f"has {quoted(name)} = {quoted(value)}, and not a number or null")
        step = keys.credit_step_number(name)
        if step is not None and not step.isdecimal():
            raise ValueError(f"has {quoted(name)}, which is not a step")


_PLAIN = ("gradient_norm", "samples_per_second")  # beside those whose names have a part before a slash
_BRAKE: dict[str, Check] = {
    "input": TEXT,
    "value": ("a number or a text", lambda value: is_whole(value) or isinstance(value, str)),
    "why": TEXT,
    "metric": TEXT,
    "kept": maybe(WHOLE),
}
_MEASURED = {"mean": maybe(NUMBER), "std": SPREAD, "standard_error": SPREAD, "held_out": FLAG, "values": NUMBERS}


def check_evaluation(row: dict) -> None:
    """Raises ValueError if a row of evaluation.jsonl is not an evaluation."""
    check(row, dict, {"iteration": WHOLE, "prompts": maybe(TEXTS), "noise": maybe(TEXT)})
    check(row, dict, {"count": WHOLE} if "count" in row else {})
    check(row.get("rewards"), dict, {})
    if (metadata := row.get("metadata")) is not None:
        check(metadata, list, {})
        if len(metadata) != len(row.get("prompts") or ()) or not all(isinstance(entry, dict) for entry in metadata):
            raise ValueError("has a `metadata` that is not a list of one object for each prompt")
    check(row.get("learned", {}), dict, {})
    check(row.get("artefacts", {}), dict, {})
    for name, values in row.get("artefacts", {}).items():
        if not NUMBERS[1](values):
            raise ValueError(f"has {quoted(name)} among its `artefacts`, which is not {NUMBERS[0]}")
    if "brake" in row:
        check(row["brake"], dict, _BRAKE)
    for name, figures in (*row["rewards"].items(), *row.get("learned", {}).items()):
        try:
            check(figures, dict, _MEASURED)
        except ValueError as error:
            raise ValueError(f"{error}, of reward {quoted(name)}") from error


def check_changes(row: dict) -> None:
    """Raises ValueError if a row of changes.jsonl is not a list of changes."""
    check(row, dict, {"iteration": WHOLE})
    check(row.get("changes"), list, {})
    for change in row["changes"]:
        check(change, dict, {"node": TEXT, "input": maybe(TEXT)})
        if missing := {"before", "now"} - change.keys():
            raise ValueError(f"has a change without {min(missing)!r}")


LINES = {METRICS: check_iteration, EVALUATIONS: check_evaluation, CHANGES: check_changes}


# --- writing ----------------------------------------------------------------------------------------------------------


class RunError(Expected, RuntimeError):
    """A run folder that cannot be used, with the fix."""


def writing(method: Callable) -> Callable:
    """Has a method of Run raise RunError, with the fix, where the disk does not take what it writes."""

    @functools.wraps(method)
    def wrapped(self, *args, **kwargs):
        try:
            return method(self, *args, **kwargs)
        except files.NotOurs as error:
            raise RunError(str(error)) from error
        except OSError as error:
            raise RunError(
                f"{error.filename or self.folder} could not be written ({error.strerror or error}); {_left(self.folder)}. "
                "Fix: free space there or make it writable, then resume by --resume, or on the canvas by queueing again"
            ) from error

    return wrapped


def _left(folder: Path) -> str:
    if any((folder / CHECKPOINTS).glob("[0-9]*/state.json")):
        return "the last checkpoint stays"
    return "no checkpoint was complete yet, so the run begins again"


def has_saved(folder: Path) -> bool:
    """Whether a checkpoint of the run was complete once, be it gone by now: what is trained is written after each."""
    return any(files.present(folder / name) for name in (*ADAPTERS, *NETWORKS))


def check_links(folder: Path) -> None:
    """Raises RunError where a run would not only write into its folder."""
    for name in FOLDERS:  # as in a run that came in an archive
        if os.path.islink(folder / name):
            raise RunError(
                f"{folder / name} is a link, and what is written there would lie elsewhere. Fix: put a folder in its place"
            )


def not_writable(folder: Path, error: OSError) -> RunError:
    return RunError(
        f"the run folder {folder} cannot be written ({error}). Fix: choose another --output, on the canvas another run_name, or "
        "make it writable and free the disk"
    )


class Lines:
    """One file and its rows, which rise by their iteration.

    Args:
        rows: what the file holds.
        writes: whether this process is the one that writes; the others have the rows in memory alone.
    """

    def __init__(self, path: Path, rows: list[dict], writes: bool):
        self.path, self.rows, self.writes = path, rows, writes
        self._left: tuple[int, int] | None = None  # which file it was, and how long, when we last wrote it

    def append(self, row: dict) -> None:
        """Adds a row to those in memory and on disk: to both, or where that fails to neither."""
        if self.rows and row["iteration"] <= self.rows[-1]["iteration"]:
            # Such as the evaluation before training, where that line was lost.
            rows = sorted([*self.rows, row], key=lambda other: other["iteration"])
            if self.writes:
                self._write(rows)
            self.rows[:] = rows
            return
        if self.writes:
            self._append(json_line(row).encode())
        self.rows.append(row)

    def _append(self, line: bytes) -> None:
        self.restore()
        descriptor = files.open_plain(self.path, os.O_WRONLY | os.O_APPEND)
        # Without a buffer, which would write the rest of a line when the file is closed.
        with open(descriptor, "ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                while line:
                    line = line[file.write(line) :]
            except OSError:
                file.truncate(end)
                raise
            self._left = _which(os.fstat(descriptor))

    def restore(self) -> None:
        """Writes the file again if it was removed or changed meanwhile."""
        try:
            there = _which(os.lstat(self.path))
        except FileNotFoundError:
            there = None
        if there is None or there != self._left:
            what = "gone" if there is None else "not as this run left it: it was cut, prolonged or exchanged"
            logger.warning("%s is %s, and is written again from memory", self.path, what)
            self.write()

    def keep(self, rows: list[dict]) -> None:
        """Only these rows: the file is written anew unless it holds just them, since a night's may have gigabytes."""
        same, self.rows[:] = rows == self.rows, rows
        with files.opened(self.path) as file:  # of which a kill may have cut the last line short
            whole = file is not None and file.seek(0, 2) > 0 and file.seek(-1, 2) >= 0 and file.read() == b"\n"
        if self.writes and not (same and whole):
            self.write()
        elif self.writes:
            self._left = _which(os.lstat(self.path))

    def write(self) -> None:
        """The whole file, as the rows are."""
        self._write(self.rows)

    def _write(self, rows: list[dict]) -> None:
        write_text(self.path, "".join(map(json_line, rows)))
        self._left = _which(os.lstat(self.path))


def _which(state: os.stat_result) -> tuple[int, int]:
    return state.st_ino, state.st_size
