"""A prompt that a person tries with a run's model, without and with what was trained.

That is `otca sample --pair` as a process of its own. One at a time, at a place among the trainings: what does not fit beside a
training into the accelerator's memory would end it.
"""

from __future__ import annotations

import collections
import contextlib
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..host import files, processes
from ..host.errors import Expected
from ..trainer.policy.files import NETWORKS
from ..trainer.run.folder import ABOUT, AFTER, BEFORE, PAIRS, read_own
from .jobs import GLANCE, LAST_LINES, Jobs
from .requests import Field, Refused, text, whole_number
from .runs import Run, leads_inside

LONGEST_PROMPT = 2000  # characters; each system has its own limit for a command line
LARGEST_SEED = 2**53 - 1  # a page's numbers are exact up to here
MOST_PAIRS = 9999
PROGRESS = re.compile(r"([0-9]{1,9})/([0-9]{1,9})\s*")
PICTURES = {"before": BEFORE, "after": AFTER}


def _prompt(value: Any) -> str:
    shown = text(LONGEST_PROMPT, "type what the picture should show")(value)
    if not shown.strip() or "\0" in shown:
        raise ValueError("must say something. Fix: type what the picture should show")
    return shown


MAKE = {"prompt": Field(_prompt, required=True), "seed": Field(whole_number(0, LARGEST_SEED), required=True)}


@dataclass
class Work:
    """The pair of pictures that is being made, and how that went."""

    run: Run
    prompt: str
    seed: int
    state: str = "waits"  # waits | loads | makes | failed; gone when it is done
    done: int = 0  # model calls …
    calls: int = 0  # … of so many
    error: str | None = None
    given_up: threading.Event = field(default_factory=threading.Event)
    process: processes.Process | None = None

    def fail(self, message: str) -> None:
        self.state, self.error = "failed", message

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("prompt", "seed", "state", "done", "calls", "error")}


class BeforeAfter:
    def __init__(self, jobs: Jobs):
        self.jobs = jobs
        self._changing = threading.Lock()
        self._work: Work | None = None
        self._one = threading.Lock()  # held until the process has ended, also of work that was cancelled

    def of(self, run: Run) -> dict[str, Any]:
        """The pairs that were made for that run, the latest first, and what is being made: {pairs, work, from_comfyui}.
        `from_comfyui`: whether ComfyUI's own nodes load its model."""
        work = self._work
        pairs = []
        for name in sorted(_numbers(run), reverse=True):
            with contextlib.suppress(files.Damaged):
                if run.file(f"{PAIRS}/{name}/{ABOUT}"):
                    about = read_own(run.folder / PAIRS / name, ABOUT, lambda line: None)
                    pairs += [{"name": name, **about}] if about else []
        return {
            "pairs": pairs,
            "work": work.as_json() if work and work.run.id == run.id else None,
            "from_comfyui": run.has_node("OTCA_MakeTrainable"),
        }

    def make(self, run: Run, prompt: str, seed: int) -> None:
        """Begins, at once or when a training ends.

        Raises:
            Refused: 409, nothing is trained yet, or another pair is being made.
        """
        if not (run.adapters() or any((run.folder / name).is_dir() for name in NETWORKS)):
            raise Refused(409, f"run {run.id} has saved nothing yet. Fix: wait for its first checkpoint")
        with self._changing:
            if self._work and self._work.state != "failed" and not self._work.given_up.is_set():
                raise Refused(
                    409, f"pictures of run {self._work.run.id} are being made. Fix: wait for them, or cancel them there"
                )
            self._work = work = Work(run, prompt, seed)
        threading.Thread(target=self._do, args=(work,), name=f"otca pictures of {run.id}", daemon=True).start()

    def cancel(self, run: Run) -> None:
        """Ends what is being made for that run, or forgets that it failed."""
        with self._changing:
            if (work := self._work) is None or work.run.id != run.id:
                return
            self._work = None
            work.given_up.set()
            if work.process is not None:
                work.process.terminate()

    def _do(self, work: Work) -> None:
        with self._one:
            try:
                while not self.jobs.take_place():
                    if work.given_up.wait(GLANCE):
                        return
                self._sample(work)
            except Exception as error:  # nobody is there to read it, but those who look at the run
                expected = isinstance(error, OSError | Expected)
                work.fail(str(error) if expected else f"{type(error).__name__}: {error}")
                if not expected:
                    raise
            finally:
                self.jobs.give_place()

    def _sample(self, work: Work) -> None:
        run, pairs = work.run, work.run.folder / PAIRS
        if not leads_inside(run.folder, pairs):
            raise Refused(409, f"{pairs} is a link out of the run's folder. Fix: remove it")
        if (number := max(map(int, _numbers(run)), default=0) + 1) > MOST_PAIRS:
            raise Refused(409, f"{pairs} is full. Fix: delete what you need no more")
        folder = pairs / f"{number:04}"
        command = ["sample", str(run.folder), f"--prompt={work.prompt}", "--seed", str(work.seed)]
        command += ["--pair", str(folder)]
        self.jobs.make_room()
        with self._changing:
            if work.given_up.is_set():
                return
            work.state = "loads"
            process = work.process = processes.start(command, self.jobs.variables(run), processes.PIPE)
        self.jobs.processes.add(process.pid)
        last: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        try:
            assert process.stdout is not None
            with process.stdout as lines:
                for line in lines:
                    text = line.decode("utf-8", "replace")
                    if progress := PROGRESS.fullmatch(text):
                        work.state, work.done, work.calls = "makes", int(progress[1]), int(progress[2])
                    else:
                        last.append(text.rstrip())
        finally:
            code = process.wait()
            self.jobs.processes.discard(process.pid)
        if code:
            work.fail("\n".join(filter(None, last)) or f"the process ended with exit code {code}")
            return
        with self._changing:
            if self._work is work:
                self._work = None

    def picture(self, run: Run, pair: str, which: str) -> Path:
        """before.png or after.png of a pair. Raises Refused (404)."""
        path = run.file(f"{PAIRS}/{pair}/{PICTURES[which]}") if pair.isdecimal() and which in PICTURES else None
        if path is None:
            raise Refused(404, f"run {run.id} has no such picture. Fix: reload the page")
        return path


def _numbers(run: Run) -> list[str]:
    """The names of all pairs."""
    return [path.name for path in (run.folder / PAIRS).glob("[0-9]*") if path.name.isdecimal()]
