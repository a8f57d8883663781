"""Reads run folders. A run is asked for by its id, the folder's name, and nothing outside its folder is ever read."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
import re
import shutil
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..host import claim, files, own_folders
from ..host.comfyui import is_ours
from ..host.files import is_plain_file, open_plain, present, write_text, written_aside
from ..host.text import SEPARATORS
from ..trainer import keys
from ..trainer.pictures import grids
from ..trainer.pictures.media import stored_size
from ..trainer.run import budget, status, verdicts
from ..trainer.run.folder import (
    ADAPTERS,
    CANVAS,
    CHANGES,
    CHECKPOINTS,
    EVALUATIONS,
    LOG,
    METRICS,
    NOTES,
    PICTURES,
    SAMPLES,
    STATUS,
    WORKFLOW,
    check_changes,
    check_evaluation,
    read_own,
)
from ..trainer.run.status import Status
from ..trainer.workflow.graph import planned_iterations, title
from ..trainer.workflow.lineage import change_line
from . import reading
from .adapters import free_copy, saved_already
from .reading import Reader
from .requests import Refused

MOST_LOG = 64 * 1024
MOST_PICTURES = 32  # in a grid, as `save_pictures` of trainer/run/evaluation.py makes it
MOST_OPENED = 16  # runs whose rows are kept in memory
SAVE_NODE = "OTCA_SaveLoRA"
PROOF, FACTS = "proof/proof.html", "proof.json"  # as proof.py and study/prove.py write them
INTERRUPTED = "the process ended without a word. Fix: resume continues from the last checkpoint"


class Runs:
    """The runs folder, which may move while ComfyUI runs, and so is asked for each time."""

    def __init__(self, folder: Callable[[], Path], canvas_at_work: Callable[[str], bool]):
        """`canvas_at_work`: is ComfyUI executing a prompt of that run? Between prompts a run on its canvas idles."""
        self.folder, self.canvas_at_work = folder, canvas_at_work
        self._readers: dict[Path, Reader] = {}
        self._opened: list[Reader] = []
        self._opening = threading.Lock()

    def summaries(self) -> list[dict[str, Any]]:
        """The summary of every run, newest first. One that cannot be read is listed with the reason."""
        summaries = [self._summary(self._run(name)) for name in self._names()]
        listed = (summary for summary in summaries if summary and not _never_began(summary))
        return sorted(listed, key=lambda summary: summary["started"], reverse=True)

    def all(self) -> list[Run]:
        """Every run that can be looked at."""
        return [self._run(name) for name in self._names() if self._holds(name)]

    def _names(self) -> list[str]:
        """The names in the folder that can be those of runs."""
        try:
            return sorted(filter(is_id, os.listdir(self.folder())))
        except FileNotFoundError:  # nothing was trained yet
            return []

    def _summary(self, run: Run) -> dict[str, Any] | None:
        """A run's summary, with whatever is wrong with it; None if the folder is not a run or was removed."""
        try:
            mode = os.lstat(run.folder).st_mode
            if stat.S_ISLNK(mode) and leads_inside(self.folder(), run.folder):
                mode = os.stat(run.folder).st_mode
            if not stat.S_ISDIR(mode):
                return None
            summary = run.reader.summary(run.folder, run.summary) if holds_a_run(run.folder) else None
        except FileNotFoundError:  # it went away, or is a link to nothing
            return None
        except (OSError, ValueError, RuntimeError) as error:  # a loop of links is either, as Python's version has it
            return run.unreadable(error)
        return summary if run.folder.is_dir() else None

    def run(self, name: str) -> Run:
        """The run of that id. Raises Refused: 400 for what is not a plain name, 404 if the folder is missing."""
        if not is_id(name):
            raise Refused(400, f"run {name!r} is not a plain name. Fix: use an id that /otca/runs lists")
        if not self._holds(name):
            raise Refused(404, f"run {name!r} is missing in {self.folder()}. Fix: reload the list of runs")
        return self._run(name)

    def create(self, name: str) -> Run:
        """An empty folder for a new run of a checked name. Raises Refused (409) where the name is taken."""
        self.folder().mkdir(parents=True, exist_ok=True)
        try:
            (self.folder() / name).mkdir()
        except FileExistsError:
            raise Refused(409, f"there is a run {name!r} already. Fix: resume it, or choose another name") from None
        own_folders.mark_own(self.folder() / name)
        return self._run(name)

    def opened(self, run: Run) -> Run:
        """The run, whose rows are about to be read, while those of runs that were looked at long ago are let go."""
        with self._opening:
            others = [reader for reader in self._opened if reader is not run.reader]
            self._opened = [*others[1 - MOST_OPENED :], run.reader]
        for reader in others[: 1 - MOST_OPENED]:  # which may be read at this moment, and is waited for
            reader.let_go()
        return run

    def forget(self, run: Run) -> None:
        """Forgets what was read of a run whose folder is gone."""
        self._readers.pop(run.folder, None)

    def _run(self, name: str) -> Run:
        folder = self.folder() / name
        return Run(folder, self._readers.setdefault(folder, Reader()), self.canvas_at_work)

    def _holds(self, name: str) -> bool:
        return is_id(name) and (path := within(self.folder(), name)) is not None and path.is_dir()


def holds_a_run(folder: Path) -> bool:
    """Whether a training has written into the folder."""
    return any(present(folder / name) for name in (WORKFLOW, METRICS, STATUS))


@dataclass(frozen=True)
class Run:
    """One run's folder, as it is at this moment."""

    folder: Path
    reader: Reader
    canvas_at_work: Callable[[str], bool]

    @property
    def id(self) -> str:
        return self.folder.name

    def file(self, name: str) -> Path | None:
        """A file of this run; None if it is missing, or a link out of the run's folder."""
        path = self.folder / name
        is_plain = "/" not in name and is_plain_file(path)  # which no link leads out of
        return path if is_plain or (within(self.folder, name) and path.is_file()) else None

    def summary(self) -> dict[str, Any]:
        written, problems = self.status(), self._problems()
        iteration, proof = self.iteration(), self._proof()
        # A proof ends by the clock.
        total = None if proof else written.total or planned_iterations(self._graph())
        stands = status.now(self.folder, written, done=iteration, planned=total, executing=self.canvas_at_work(self.id))
        reasons = problems or list(filter(None, [written.error]))
        if stands == "interrupted" and written.status == "running":
            reasons = problems or [INTERRUPTED, *filter(None, [status.killed(written)])]
        if stands == "running" and (doubt := claim.doubt(self.folder)):
            reasons.append(doubt)
        times = [
            path.stat().st_mtime for path in map(self.file, (METRICS, EVALUATIONS, STATUS, *ADAPTERS, WORKFLOW)) if path
        ]
        return {
            "id": self.id,
            "status": stands,
            "place": written.place,
            "iteration": iteration,
            "rewrites": self.reader.rewrites,
            "total": total,
            "started": written.started or min(times, default=0.0),
            "updated": max(times, default=0.0),
            "error": "\n".join(reasons) or None,
            "failed_at": self._failed_at(written) if stands == "failed" else None,
            "has_lora": bool(self.adapters()),
            "has_checkpoint": self.has_checkpoint(),
            "score": reading.score(self.file(EVALUATIONS)),
            "notes": (read_own(self.folder, NOTES, _quietly) or {}).get("notes") or "",
            "proof": proof,
        }

    def _proof(self) -> dict[str, Any] | None:
        """The hours that a run was given which is a proof, and whether its page is written; None of other runs."""
        if not self.is_proof():
            return None
        from ..study import prove  # here, as in jobs.py

        try:
            hours = prove.facts(self.folder).hours
        except files.Damaged:
            return None
        return {"hours": hours, "page": self.file(PROOF) is not None}

    def _spent(self) -> str | None:
        """The sentence about a run that has used up its budget, and so ended as was asked for; None of one without."""
        try:
            limit = budget.read(self.folder)
        except files.Damaged:
            return None
        return limit.spent if limit else None

    def _failed_at(self, written: Status) -> dict[str, str] | None:
        """The node of the run's workflow that raised the error, by id and title."""
        entry = self._graph().get(written.node) if written.node else None
        return {"node": written.node, "title": title(entry)} if written.node and entry else None

    def _problems(self) -> list[str]:
        """The problems that prevent resuming the run, one line each."""
        problems = []
        for name in (WORKFLOW, STATUS):
            try:
                read_own(self.folder, name, problems.append)
            except files.Damaged as error:
                problems.append(str(error))
        return problems

    def unreadable(self, error: Exception) -> dict[str, Any]:
        """The row in place of a summary that cannot be read, with the reason."""
        path, why = getattr(error, "filename", None) or self.folder, getattr(error, "strerror", None) or error
        message = f"{path} cannot be read ({why}). Fix: allow ComfyUI to read it, or move it elsewhere"
        try:
            when = os.lstat(self.folder).st_mtime
        except OSError:
            when = 0.0
        return {
            "id": self.id,
            "status": "failed",
            "place": status.HEADLESS,
            "iteration": 0,
            "rewrites": self.reader.rewrites,
            "started": when,
            "updated": when,
            "error": message,
            "has_lora": False,
            "has_checkpoint": False,
            "notes": "",
            **dict.fromkeys(("total", "failed_at", "score", "proof")),
        }

    def details(self) -> dict[str, Any]:
        last = self.reader.last(self.file(METRICS)) or {}
        texts, _ = self.reader.texts(self.file(METRICS), max(0, self.iteration() - verdicts.WINDOW))
        cut = [self.reader.cut]
        evaluations = self._evaluations(cut.append)
        self.changes(cut.append)
        reason, spent = self.status().reason, self._spent()
        warnings = [
            None if reason == spent else reason,
            *verdicts.warnings(list(map(json.loads, texts)), evaluations).values(),
        ]
        return {
            **self.summary(),
            "settings": self.settings(),
            "rewards": keys.rewards(last, keys.REWARD),
            "held_out": keys.rewards(last, keys.HELD_OUT),
            "samples": self.samples(),
            "pictures": [name for name in PICTURES if self.file(name)],
            "spent": reason if reason == spent else None,
            # What the trainer would say of the run as it stands, and what of it cannot be shown.
            "warning": "\n".join(filter(None, [*warnings, *cut])) or None,
        }

    def status(self) -> Status:
        """The last status that was written about the run."""
        return status.read(self.folder, _quietly)

    def is_proof(self) -> bool:
        """Whether it was begun as a proof."""
        return self.file(FACTS) is not None

    def trains_headlessly(self) -> bool:
        """Whether a process other than ComfyUI is training it."""
        written = self.status()
        return written.place == status.HEADLESS and status.now(self.folder, written) == "running"

    def busy(self) -> bool:
        """Whether its process is at work, be it on the last checkpoint of a run that counts as stopped."""
        return status.busy(self.folder, self.status())

    def iteration(self) -> int:
        return (self.reader.last(self.file(METRICS)) or {}).get("iteration", 0)

    def has_node(self, class_type: str) -> bool:
        return any(entry["class_type"] == class_type for entry in self._graph().values())

    def settings(self) -> dict[str, dict[str, Any]]:
        """{title of a node: {input: constant}} of our nodes."""
        return {
            title(entry): {name: value for name, value in entry["inputs"].items() if not isinstance(value, list | dict)}
            for entry in self._graph().values()
            if is_ours(entry)
        }

    def samples(self) -> list[str]:
        names = (path.name for path in (self.folder / SAMPLES).glob("*.png") if path.stem.isdecimal())
        return sorted(
            (name for name in names if self.file(f"{SAMPLES}/{name}")), key=lambda name: int(name[: -len(".png")])
        )

    def has_checkpoint(self) -> bool:
        states = (self.folder / CHECKPOINTS).glob("[0-9]*/state.json")
        return any(state.parent.name.isdecimal() and self.file(str(state.relative_to(self.folder))) for state in states)

    def evaluations(self) -> list[dict]:
        """The scores of every reward on the fixed prompts, without the single values. The last row also says how far it has come:
        `since` which iteration, and of each reward the `rise` and its standard error."""
        rows = self._evaluations()
        if changes := verdicts.rises(rows):
            rows[-1]["since"], rises = changes
            for name, rise in rises.items():
                rows[-1]["rewards"][name]["rise"] = [value if verdicts.measured(value) else None for value in rise]
        return list(map(_without_values, rows))

    def braked_by(self) -> str | None:
        """The input of Training Run that asked for the brake by which the run ended."""
        last = (self._evaluations() or [{}])[-1]
        return last.get("brake", {}).get("input") if last.get("iteration") == self.iteration() else None

    def changes(self, say: Callable[[str], object] = str) -> list[dict]:
        """Which values were changed while it trained: [{iteration, lines}], the first iteration that had them."""
        rows = reading.rows(self.file(CHANGES), check_changes, say)
        return [{"iteration": row["iteration"], "lines": list(map(change_line, row["changes"]))} for row in rows]

    def _evaluations(self, say: Callable[[str], object] = str) -> list[dict]:
        return list(reading.rows(self.file(EVALUATIONS), check_evaluation, say))

    def grids(self) -> dict[str, Any]:
        """{grids: [{iteration, file, size, pictures: [{prompt, seed, box}]}]} of all evaluations whose grid is understood.

        `seed` counts the fixed seeds of evaluations from 0, the same in every run; `box` is left, top, width, height.
        """
        rows = {row["iteration"]: row for row in self._evaluations()}
        listed = []
        for file in self.samples():
            iteration = int(file.removesuffix(".png"))
            path = self.file(f"{SAMPLES}/{file}")
            size, row = _size(path) if path else None, rows.get(iteration)
            if size is None or row is None:
                continue
            # Prompt and seed of each picture, in the order in which an evaluation samples them
            prompts = row.get("prompts") or []
            # Rows of before 0.2 do not say how many pictures there are; those that nothing but votes would judge have no values.
            counts = [len(figures["values"]) for figures in row["rewards"].values() if figures.get("values")]
            seeds = row.get("count", max(counts, default=0)) // len(prompts) if prompts else 0
            pairs = [(prompt, seed) for seed in range(max(1, seeds)) for prompt in prompts][:MOST_PICTURES]
            places = grids.found_in(size, [prompt for prompt, _ in pairs])
            if places is not None:
                pictures = [{"prompt": p, "seed": s, "box": places.box(k)} for k, (p, s) in enumerate(pairs)]
                listed.append({"iteration": iteration, "file": file, "size": size, "pictures": pictures})
        return {"grids": listed}

    def picture(self, name: str) -> Path:
        """samples.png, rewards.png, credit.png, or samples-NNNNNN.png for samples/NNNNNN.png. Raises Refused."""
        sample = re.fullmatch(r"samples-([0-9]{6,9}\.png)", name)
        if name not in PICTURES and not sample:
            raise Refused(
                404, f"a run has no picture {name!r}. Fix: ask for {', '.join(PICTURES)} or samples-000000.png"
            )
        path = self.file(f"{SAMPLES}/{sample[1]}" if sample else name)
        if path is None:
            raise Refused(404, f"run {self.id} has no {name} (yet). Fix: wait for the next evaluation")
        return path

    def proof(self) -> str:
        """The page that a proof has written. Raises Refused (404), Damaged."""
        path = self.file(PROOF)
        if path is None:
            raise Refused(404, f"run {self.id} has no page of a proof (yet). Fix: wait for its end")
        return (files.read_bytes(path, fix="write it anew by otca prove") or b"").decode(errors="replace")

    def log(self, after: int) -> dict[str, Any]:
        """The trainer's log from that byte on, at most the last 64 kB, and how far it was read."""
        path = self.file(LOG)
        if path is None:
            return {"text": "", "size": 0}
        size = path.stat().st_size
        start = max(0, size - MOST_LOG, after if after <= size else 0)  # a shorter log is a new one
        with open(path, "rb") as file:
            file.seek(start)
            content = file.read(size - start)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(content)  # the first bytes of a character wait for its last ones
        return {"text": text, "size": start + len(content) - len(decoder.getstate()[0])}

    def workflow(self) -> dict[str, Any]:
        try:
            prompt = read_own(self.folder, WORKFLOW)
        except files.Damaged as error:
            raise Refused(404, f"run {self.id} has no readable {WORKFLOW}: {error}") from error
        if prompt is None:
            raise Refused(404, f"run {self.id} has no readable {WORKFLOW}. Fix: open the workflow it was started from")
        return {"prompt": prompt, "workflow": read_own(self.folder, CANVAS, _quietly)}

    def adapters(self) -> list[Path]:
        """The saved adapter; two files where the model has two experts."""
        return [path for path in map(self.file, ADAPTERS) if path]

    def copy_lora(self, loras: Path) -> list[str]:
        """Copies the adapter to where ComfyUI's LoraLoader finds it; returns its names there.

        A file of Save LoRA with the same tensors is used as it is. Otherwise each run has one file, which is written anew.
        """
        sources = self.adapters()
        if not sources:
            raise Refused(
                409,
                f"run {self.id} has saved no adapter yet. Fix: wait for its first checkpoint, or stop it to save one",
            )
        saving = (entry["inputs"] for entry in self._graph().values() if entry["class_type"] == SAVE_NODE)
        own = [name for inputs in saving if isinstance(name := inputs.get("filename"), str) and is_id(name)]
        names = []
        for source in sources:
            if there := next(filter(None, (saved_already(loras, name, source) for name in own)), None):
                names.append(there.name)
                continue
            target = free_copy(loras / "otca" / source.name.replace("lora", self.id, 1), source)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                # Never half a file, and never through a link that lay at the target
                with written_aside(target) as aside:
                    shutil.copyfile(source, aside)
            except PermissionError as error:
                message = f"{target} could not be written ({error.strerror}); on Windows no program may have it open"
                raise Refused(409, f"{message}. Fix: have ComfyUI unload its models, or make it writable") from error
            names.append(str(target.relative_to(loras)))
        return names

    def write(self, name: str, content: Any) -> None:
        """A JSON file of this run, whole or not at all."""
        write_text(self.folder / name, json.dumps(content, indent=1))

    def _graph(self) -> dict[str, dict]:
        """The workflow in API form; empty where it is missing or damaged."""
        try:
            return read_own(self.folder, WORKFLOW) or {}
        except files.Damaged:
            return {}


def _without_values(row: dict) -> dict:
    row.pop("prompts", None)
    for figures in row["rewards"].values():
        figures.pop("values", None)
    return row


def _never_began(summary: dict[str, Any]) -> bool:
    """Whether a prompt on the canvas failed, or was taken back, before the first iteration: the next one takes the folder."""
    begun = summary["iteration"] or summary["has_checkpoint"] or summary["status"] in ("running", "failed")
    return summary["place"] == status.CANVAS and not begun


def is_id(name: str) -> bool:
    return bool(name) and not name.startswith(".") and not set(name) & SEPARATORS and name.isprintable()


def within(folder: Path, name: str) -> Path | None:
    """The path of what has that name in a folder, or of what is deeper for a name with slashes.

    None where there is nothing, as of a name that no file can have, or where a link leads out of the folder.
    """
    path = folder / name
    return path if os.path.exists(path) and leads_inside(folder, path) else None


def leads_inside(folder: Path, path: Path) -> bool:
    """Whether `path`, with all links followed, lies in `folder`; `opening.inside` judges by the names alone."""
    root, real = os.path.realpath(folder), os.path.realpath(path)
    return os.path.splitdrive(root)[0] == os.path.splitdrive(real)[0] and os.path.commonpath([root, real]) == root


def _quietly(line: str) -> None:
    """A page asks every few seconds: what is wrong is in the answer, and not in the log each time."""


def _size(path: Path) -> tuple[int, int] | None:
    """Width and height of a picture, by its header."""
    with contextlib.suppress(OSError, ValueError), os.fdopen(open_plain(path), "rb") as file:
        return stored_size(file)
