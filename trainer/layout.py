"""What a run's folder holds, by name, and whose it is: for the trainer, which writes it, and for those who only look.

Imports neither torch nor anything of ours.
"""

from __future__ import annotations

import itertools
import os
import stat
import time
from pathlib import Path

METRICS = "metrics.jsonl"  # one object an iteration
EVALUATIONS = "evaluation.jsonl"  # one object an evaluation
CHANGES = "changes.jsonl"  # one object for each iteration whose graph had other values than the one before
WORKFLOW = "workflow.json"  # the graph in API form …
CANVAS = "canvas.json"  # … and as ComfyUI's canvas has it, where that is known
STATUS = "status.json"
WANDB = "wandb.json"  # project and id of the run there
LOG = "train.log"  # what a trainer printed that the page started
STOP = "stop"  # whoever makes this file asks the run to stop
PICTURES = ("samples.png", "rewards.png", "credit.png")
SAMPLES, CHECKPOINTS = "samples", "checkpoints"
ADAPTER = "lora.safetensors"
# The last two are those of a model with two experts.
ADAPTERS = (ADAPTER, "lora_high_noise.safetensors", "lora_low_noise.safetensors")
BEST, BEST_FIGURES = "best", "best.json"  # a folder with the adapter of the best evaluation, and in it what makes it so
TENSORBOARD = "tensorboard"
WEIGHTS = "diffusion_pytorch_model.safetensors"  # in a folder of the network's name, where all of it was trained

NETWORKS = ("transformer", "transformer_2")
FOLDERS = (SAMPLES, CHECKPOINTS, BEST, TENSORBOARD, *NETWORKS)
# All that a training writes into its folder, or removes there, by itself. A new one begins only where nothing of that name is.
WRITTEN = (
    METRICS,
    EVALUATIONS,
    CHANGES,
    WORKFLOW,
    CANVAS,
    STATUS,
    STOP,
    WANDB,
    *PICTURES,
    *ADAPTERS,
    *FOLDERS,
)

LONGEST_NAME = 100
SEPARATORS = frozenset('/\\:*?"<>|')
BUSY_SECONDS = 1.0  # how long Windows may refuse a name to a file that takes the place of an open one
_PORTS = [f"{port}{n}" for port in ("COM", "LPT") for n in "0123456789¹²³"]
_WINDOWS_DEVICES = {"CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$", *_PORTS}


def plain_name(value: object) -> str:
    """A new name, which becomes a folder or file on any system. Raises ValueError with the fix."""
    wrong = None
    if not isinstance(value, str) or not value.strip():
        wrong = "must be text"
    elif len(value) > LONGEST_NAME:
        wrong = f"must not be longer than {LONGEST_NAME} characters"
    elif set(value) & SEPARATORS or not value.isprintable():
        wrong = f"must be a plain name, without any of {' '.join(sorted(SEPARATORS))}"
    elif value[0] in ".-" or value != value.strip() or value.endswith("."):
        wrong = "must not begin with a dot, a dash or a space, nor end with a dot or a space"
    elif is_windows_device(value):
        wrong = "is a device's name on Windows"
    if wrong:
        raise ValueError(f"{wrong}. Fix: for example my_run")
    return value


def is_windows_device(name: str) -> bool:
    """Whether Windows takes a name without folders for a device's, whatever follows a dot, and with spaces before that."""
    return name.split(".")[0].rstrip().upper() in _WINDOWS_DEVICES


def named_place(text: str, what: str) -> tuple[str, Path]:
    """`PLACE` or `NAME=PLACE`, as it is given on the command line; else a folder's own name, or a file's without its suffix.

    Raises:
        ValueError: the name is no plain one; says what it is of.
    """
    name, equals, place = text.partition("=")
    place = Path(place if equals else text).expanduser()
    whole = place.resolve()  # that of "." too
    name = name if equals else whole.name if whole.is_dir() else whole.stem
    try:
        return plain_name(name), place
    except ValueError as error:
        raise ValueError(f"{what} {text!r}: the name {name!r} {error}; NAME=FILE gives another") from error


def alive(pid: object, started: object) -> bool:
    """Whether the process of that number, born at that time, still runs: numbers are given out again."""
    import psutil

    if not isinstance(pid, int) or not isinstance(started, int | float):
        return False
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started) < 2 and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError):
        return False


def _mode(path: Path) -> int:
    """Of what has that name, and not of what a link leads to; 0 where there is nothing."""
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


def asks_to_stop(folder: Path) -> bool:
    """Whether somebody has made the file `stop` there. A folder, a link or a pipe of that name is none of ours."""
    return stat.S_ISREG(_mode(folder / STOP))


def write_bytes(path: Path, content: bytes) -> None:
    """A file that may be made again, such as a picture: whole or not at all, but not waited for until the disk has it.

    It takes the place of a link, and what that leads to stays.
    """
    aside = beside(path)
    try:
        aside.write_bytes(content)
        put_in_place(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes aside, flushes to disk, then renames: a reader finds the old text or the new one, never part of one."""
    aside = beside(path)
    try:
        aside.write_text(text, encoding="utf-8")
        flush(aside)
        put_in_place(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    flush(path.parent)


_numbers = itertools.count()


def beside(path: Path) -> Path:
    """A name to write a file under before it takes its place; no other thread or process gets the same."""
    return path.with_name(f".{path.name}.{os.getpid()}.{next(_numbers)}")


class NotOurs(OSError):
    """Something that no training made is where one has to write."""


def put_in_place(aside: Path, path: Path) -> None:
    """`os.replace`, which Windows refuses for as long as somebody has the old file open, as a page that polls it may.

    Raises:
        NotOurs: a folder has the name of the file.
    """
    if stat.S_ISDIR(_mode(path)) and not stat.S_ISDIR(_mode(aside)):
        raise NotOurs(f"{path} is a folder, and a file is to be written there. Fix: move it elsewhere")
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return os.replace(aside, path)
        except PermissionError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def flush(path: Path) -> None:
    """Waits until the disk holds a file's content, or a folder's names."""
    if path.is_dir() and os.name == "nt":  # which opens no folders, and keeps names by a journal
        return
    place = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(place)
    finally:
        os.close(place)
