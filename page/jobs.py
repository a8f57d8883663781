"""Starts, resumes and stops `otca train` as a process of its own, which outlives ComfyUI and shares only the run's folder.

Only a limited number train at a time. Further ones wait in a queue, in order, and begin as others end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..host import claim, environment, extras, files, headless_comfyui, own_folders, paths, processes
from ..host.access.permissions import FROM_PAGE
from ..host.errors import Expected
from ..host.stopping import STOP
from ..trainer.checks import preflight
from ..trainer.run import status, verdicts
from ..trainer.run.budget import ANY_NUMBER
from ..trainer.run.folder import CANVAS, LOG, WORKFLOW
from ..trainer.types import RUN_NODE
from ..trainer.workflow import foreign
from ..trainer.workflow.graph import resumable
from ..trainer.workflow.problem import Problem, WorkflowError, errors
from ..trainer.workflow.running import Workflow
from . import machine
from .requests import Refused, disk, refusing
from .runs import Run, Runs

if TYPE_CHECKING:
    from ..study.prove import Facts

logger = logging.getLogger(__name__)

LAST_LINES = 12
EXIT_BAD_INPUT = 2  # of a command that was refused what it was given
ENDING_SECONDS = 20
TRAININGS = "OTCA_TRAININGS"  # a variable of the environment: how many trainings of the page are at work at a time
ON_A_CPU = 2
MOST_TRAININGS = 1024
GLANCE = 1.0  # seconds between two looks whether a training has ended and the next in the queue may begin


@dataclass(frozen=True)
class Gpus:
    """The number of GPUs that train, and the number of further ones for rewards."""

    training: int = 1
    rewards: int = 0

    def arguments(self) -> list[str]:
        """The arguments of `otca train`."""
        many = ["--gpus", str(self.training)] if self.training > 1 else []
        return many + (["--reward-gpus", str(self.rewards)] if self.rewards else [])


@dataclass(frozen=True)
class Waiting:
    """A training in the queue."""

    run: Run
    iterations: int
    arguments: tuple[str, ...]


class Jobs:
    def __init__(
        self,
        runs: Runs,
        node_classes: Mapping[str, type],
        titles: Mapping[str, str],
        input_folder: Callable[[], Path],
        make_room: Callable[[], None],
    ):
        """`make_room` asks this process's models to leave the accelerator, on which the training is about to start."""
        self.runs, self.node_classes, self.titles = runs, node_classes, titles
        self.input_folder, self.make_room = input_folder, make_room
        self.starting = threading.Lock()  # two requests at once must not start two trainings of one run
        self.queued_jobs: list[Waiting] = []
        self._setting: int | None = None  # as the page last had it
        self.guest_of = ""  # other work on the accelerator: "waits" for a place, or is "at work"
        self.processes: set[int] = set()  # numbers of those that were started here and train
        self._ended = threading.Event()
        self._watcher: threading.Thread | None = None

    def check(self, prompt: dict, processes: int = 1) -> tuple[Workflow, list[Problem]]:
        """The graph and all that keeps so many processes from training it, warnings included.

        Raises:
            WorkflowError: `prompt` is not a graph in API format.
        """
        workflow = self.read(prompt)
        return workflow, preflight.problems(workflow, processes)

    def set_limit(self, setting: int | None) -> None:
        """Takes over the page's setting OTCA.Trainings. Raises Refused (400) if the environment's is not a number."""
        trainings(setting)
        self._setting = setting

    def start(self, name: str, prompt: dict, canvas: dict | None, iterations: int, gpus: Gpus) -> Run:
        """A new run of that name, at once or in the queue.

        Raises:
            WorkflowError, Refused: the graph's problems, and 409 where the name is taken.
        """
        return self._start(name, self.ready(prompt, iterations, gpus), canvas, iterations, gpus.arguments())

    def prove(self, name: str, prompt: dict, canvas: dict | None, hours: float) -> Run:
        """A new run of that name, which is a proof: what `otca prove` does in that time, at once or in the queue.

        Raises:
            Refused: as `start`; and 400 for a graph that must not be passed on, or has no prompts to evaluate.
        """
        from ..study import prove  # here, with the page of it: both are nearly half of what the page takes to import
        from . import proof

        workflow = proof.passed_on(self.ready(prompt, ANY_NUMBER, Gpus()))
        with refusing():
            workflow = prove.plan(workflow, prove.PICTURES)
        return self._start(name, workflow, canvas, ANY_NUMBER, [], prove.Facts(hours))

    def _start(
        self,
        name: str,
        workflow: Workflow,
        canvas: dict | None,
        iterations: int,
        arguments: list[str],
        proof: Facts | None = None,
    ) -> Run:
        with self.starting:
            run = self.runs.create(name)
            try:
                run.write(WORKFLOW, workflow.graph)
                if canvas is not None:
                    run.write(CANVAS, canvas)
                if proof is not None:
                    proof.write(run.folder)
                self._begin(run, iterations, arguments)
            except BaseException:
                own_folders.remove_own(run.folder)  # else the name would be taken by a run that never began
                raise
        return run

    @contextlib.contextmanager
    def at_rest(self, run: Run) -> Iterator[None]:
        """Keeps the page from training the run meanwhile. Raises Refused (409) if something trains it already."""
        with self.starting:
            self._refuse_busy(run)
            yield

    def _refuse_busy(self, run: Run, patience: float = 0.0) -> None:
        """Raises Refused (409) if something trains the run, or will; waits so many seconds for a process that is ending."""
        if unseen := claim.doubt(run.folder):  # which no waiting would change
            raise Refused(409, unseen)
        deadline = time.monotonic() + patience
        while run.busy() and time.monotonic() < deadline:
            written = run.status()  # that it ended, and is about to exit? On the canvas that is ComfyUI, which does not
            if written.place != status.HEADLESS or written.status in (status.UNKNOWN, "running", "queued"):
                break
            time.sleep(0.1)
        if run.busy() or self._waiting(run):
            raise Refused(409, _busy(run))

    def _waiting(self, run: Run) -> Waiting | None:
        """The run's place in the queue."""
        return next((waiting for waiting in self.queued_jobs if waiting.run.id == run.id), None)

    def resume(self, run: Run, iterations: int | None, gpus: Gpus) -> str | None:
        """Continues from the last checkpoint, to `iterations` in all; returns a line for a human where something differs.

        A run that a brake has ended continues without that brake.

        Raises:
            Refused: 400, or 409 where there is nothing to do.
        """
        if run.status().place == status.REMOTE:
            raise Refused(
                409, f"run {run.id} lives on another machine. Fix: continue it there, by the command that began it"
            )
        total = iterations or (ANY_NUMBER if run.is_proof() else run.summary()["total"])
        if total is None:
            raise Refused(409, f"run {run.id} does not say how long it should be. Fix: give the number of iterations")
        begun = self.read(run.workflow()["prompt"]).graph
        graph = resumable(begun)
        self.ready(graph, total, gpus)
        with self.starting:
            self._refuse_busy(run, ENDING_SECONDS)
            claim.check(run.folder)
            done = run.iteration()
            # One that ended otherwise may lack what comes after its last iteration, as the adapter.
            if total < done or total == done and run.summary()["status"] == "finished":
                raise Refused(
                    409, f"run {run.id} has done {done} iterations of {total}. Fix: give a larger number of iterations"
                )
            with disk(f"{run.folder / STOP} is in the way", "remove it"):  # such as a folder
                (run.folder / STOP).unlink(missing_ok=True)  # also a link, but not what it leads to
            changes, message = [], None
            if ended := run.status().reason:
                name = run.braked_by() or "stop_after_decline"
                message = f"continues without {name}, which would end it at once: {ended}"
                changes = ["--set", f"{RUN_NODE}.{name}={verdicts.RELEASED[name]}"]
            if graph != begun:
                run.write(WORKFLOW, graph)
            self._begin(run, total, [*gpus.arguments(), *changes, "--resume"])
        return message

    def _begin(self, run: Run, iterations: int, arguments: list[str]) -> None:
        """Launches a training, or puts it into the queue where as many are at work as may be. With `starting` held."""
        if not self.queued_jobs and self._has_place():
            self.launch(run, iterations, arguments)
            return
        self._write_status(run, "queued", os.getpid(), iterations)
        self.queued_jobs.append(Waiting(run, iterations, tuple(arguments)))
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="otca queue", daemon=True)
            self._watcher.start()

    def _at_work(self) -> int:
        """How many runs a process other than ComfyUI is training, also those that an earlier ComfyUI has started."""
        return sum(run.trains_headlessly() for run in self.runs.all()) + (self.guest_of == "at work")

    def _has_place(self) -> bool:
        return self.guest_of != "waits" and self._at_work() < trainings(self._setting)

    def take_place(self) -> bool:
        """Whether other work on the accelerator has a place among the trainings now. If not, the next free place is kept for it,
        since such work is short, until it asks again or calls `give_place`."""
        with self.starting:
            self.guest_of = ""
            self.guest_of = "at work" if self._has_place() else "waits"
            return self.guest_of == "at work"

    def give_place(self) -> None:
        with self.starting:
            self.guest_of = ""
        self._ended.set()

    def queue(self) -> dict[str, Any]:
        """The trainings that wait, in order, and those they wait for: {at_work: [id], guest, waiting: [{id, iterations}]}."""
        waiting = list(self.queued_jobs)
        return {
            "at_work": sorted(run.id for run in self.runs.all() if run.trains_headlessly()) if waiting else [],
            "guest": self.guest_of == "at work",
            "waiting": [{"id": job.run.id, "iterations": job.iterations} for job in waiting],
        }

    def move_up(self, run: Run) -> None:
        """One place forward in the queue; the first one stays. Raises Refused (409)."""
        with self.starting:
            waiting = self._waiting(run)
            if waiting is None:
                raise Refused(409, f"run {run.id} is not in the queue (any more). Fix: reload the list of runs")
            place = self.queued_jobs.index(waiting)
            self.queued_jobs.insert(max(0, place - 1), self.queued_jobs.pop(place))

    def _watch(self) -> None:
        """Begins the trainings in the queue as others end; returns when the queue is empty. Errors are logged."""
        logged = ""
        while True:
            self._ended.wait(GLANCE)
            self._ended.clear()
            with self.starting:
                try:
                    while self.queued_jobs and self._has_place():
                        self._launch_next(self.queued_jobs.pop(0))
                except Exception as error:  # as when the disk of the runs is away for a while: it is looked at again
                    if logged != (logged := f"{type(error).__name__}: {error}"):
                        logger.exception(
                            "the queue of trainings waits, since the runs cannot be looked at (%s)", logged
                        )
                if not self.queued_jobs:
                    self._watcher = None
                    return

    def _launch_next(self, waiting: Waiting) -> None:
        run = waiting.run
        try:
            if not _is_queued(run):
                logger.warning("run %s was resumed elsewhere, and leaves the queue", run.id)
                return
            claim.check(run.folder)
            self.launch(run, waiting.iterations, list(waiting.arguments))
        except Exception as error:  # nobody is there to read it, but those who look at the run
            expected = isinstance(error, OSError | Expected)
            message = f"it could not begin: {error if expected else f'{type(error).__name__}: {error}'}"
            logger.warning("run %s: %s", run.id, message, exc_info=not expected)
            with contextlib.suppress(OSError):  # the folder is gone, or the disk is full
                if _is_queued(run):
                    self._write_status(run, "failed", None, waiting.iterations, message)

    def stop(self, run: Run) -> None:
        """Asks for the end after the current micro-step, with everything saved. Raises Refused (409)."""
        with self.starting:
            if waiting := self._waiting(run):
                self.queued_jobs.remove(waiting)
                if _is_queued(run):
                    self._write_status(run, "stopped", None, waiting.iterations)
                    return
        ask_to_stop(run)

    def read(self, prompt: dict) -> Workflow:
        """The graph, as far as it is one. Raises WorkflowError: it is not in API format."""
        return Workflow(prompt, self.node_classes, self.titles)

    def ready(self, prompt: dict, iterations: int, gpus: Gpus) -> Workflow:
        from ..bundle.contents import begun_from_runs  # here, since it is a quarter of what the pack takes to import

        workflow, problems = self.check(begun_from_runs(self.read(prompt)).graph, gpus.training)
        if wrong := errors(problems):
            raise WorkflowError(wrong)
        workflow.set(f"{RUN_NODE}.iterations", iterations)
        return workflow

    def launch(self, run: Run, iterations: int, arguments: list[str]) -> None:
        files_of_run = [str(run.folder / WORKFLOW), "--output", str(run.folder)]
        if run.is_proof():
            from ..study import prove

            command = ["prove", *files_of_run, "--hours", f"{prove.facts(run.folder).hours:g}"]
        else:
            command = ["train", *files_of_run, "--iterations", str(iterations), *arguments]
        if extras.lean():
            command += ["--comfyui", str(headless_comfyui.folder_of_server())]
        self.make_room()
        with disk(f"run {run.id} cannot be begun", "remove what is in the way"):
            descriptor = files.open_plain(run.folder / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        with os.fdopen(descriptor, "ab") as log:
            process = processes.start(command, self.variables(run), log)
        try:
            # Until the trainer, which has torch to load first, speaks for itself. Where one from elsewhere was quicker, ours is
            # refused the folder, and the status is the other's.
            if not claim.in_use(run.folder):
                self._write_status(run, "running", process.pid, iterations)
        except BaseException:  # nobody would know of it, and a new run's folder is about to go
            process.terminate()
            process.wait()
            raise
        self.processes.add(process.pid)
        threading.Thread(target=self.wait_for, args=(process, run), name=f"otca {run.id}", daemon=True).start()

    def _write_status(self, run: Run, state: str, pid: int | None, total: int, error: str | None = None) -> None:
        before = run.status()  # whose reason is still true if the trainer cannot begin
        status.write(run.folder, status.following(before, state, pid, total=total, error=error, reason=before.reason))

    def variables(self, run: Run) -> dict[str, str]:
        """The environment of a process that works on a run. Outside ComfyUI it must find the same files as inside;
        and if the graph holds ComfyUI's nodes, also this ComfyUI, its options and the packs."""
        kinds = {paths.weights_variable(kind): paths.weight_folders(kind) for kind in paths.WEIGHT_KINDS}
        folders = {"OTCA_MODELS": [folder for folder in paths.model_folders() if folder != paths.ASSETS], **kinds}
        needs = foreign.needs(run.workflow()["prompt"], self.node_classes)
        return {
            **{variable: os.pathsep.join(map(str, listed)) for variable, listed in folders.items()},
            "OTCA_INPUT": str(self.input_folder()),
            paths.RUNS: str(self.runs.folder()),
            paths.OPINIONS: str(paths.opinions_folder()),
            FROM_PAGE: "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONIOENCODING": "utf-8",
            **(headless_comfyui.of_this_server(needs.packs if needs else ()) if needs or extras.lean() else {}),
        }

    def wait_for(self, process: processes.Process, run: Run) -> None:
        """Waits for the process to end, and writes how it ended if the process could not."""
        code = process.wait()
        self.processes.discard(process.pid)
        self._ended.set()
        if code < 0:  # by a signal it did not handle: the run shows as interrupted
            return
        ended = "stopped" if code in (128 + signal.SIGINT, 128 + signal.SIGTERM) else "failed" if code else "finished"
        error = None
        if ended == "failed":
            lines = run.log(0)["text"].strip().splitlines()[-LAST_LINES:]
            error = "\n".join(lines) or f"the process ended with exit code {code}"
        node = self._wrong_node(run) if code == EXIT_BAD_INPUT else None
        with self.starting:  # the run may have been resumed by now, and the status be another process's
            written = run.status()
            if written.status == "running" and written.pid == process.pid and not claim.in_use(run.folder):
                status.write(run.folder, replace(written, status=ended, error=error, node=node))

    def _wrong_node(self, run: Run) -> str | None:
        """The node whose input the trainer refused before it began, as when a file is gone since the training was queued."""
        try:
            _, problems = self.check(run.workflow()["prompt"], 1)
        except Expected:
            return None
        return next((problem.node_id for problem in errors(problems) if problem.node_id), None)


def _is_queued(run: Run) -> bool:
    """Whether the run still waits: if it was resumed in a terminal, the status is that process's."""
    return run.status().status == "queued"


def _busy(run: Run) -> str:
    """Why a run cannot be resumed now, and what helps."""
    if _is_queued(run):
        return f"run {run.id} is in the queue. Fix: wait, or stop it to take it out of there"
    if run.status().place == status.CANVAS:
        return (
            f"run {run.id} is made on the canvas, and ComfyUI still has it. Fix: Resume on canvas continues there; or begin "
            "another run on the canvas, which lets this one go"
        )
    return f"run {run.id} is running, or about to end. Fix: stop it, or wait a moment"


def trainings(setting: int | None = None) -> int:
    """How many trainings of the page run at a time: by the environment, else by the page's setting, else one per accelerator.

    Raises:
        Refused: 400, what the environment says is not a number.
    """
    number = environment.read(TRAININGS).strip()
    if number:
        if not number.isdecimal() or not 1 <= int(number) <= MOST_TRAININGS:
            raise Refused(
                400,
                f"{TRAININGS} = {number!r} in ComfyUI's environment is not a number of trainings. Fix: set it to a whole number "
                f"from 1 to {MOST_TRAININGS}, or remove it, and restart ComfyUI",
            )
        return int(number)
    return setting or len(machine.accelerators()) or ON_A_CPU


def ask_to_stop(run: Run) -> None:
    """Asks for the end after the current micro-step, with everything saved. Raises Refused (409)."""
    summary = run.summary()
    if summary["status"] != "running":
        raise Refused(409, f"run {run.id} is not running, but {summary['status']}. Fix: reload the list of runs")
    if summary["place"] == status.CANVAS:
        raise Refused(409, f"run {run.id} is made on the canvas. Fix: stop it by ComfyUI's own Cancel button")
    with disk(f"run {run.id} cannot be asked to stop", "remove what is in the way"):
        os.close(files.open_plain(run.folder / STOP, os.O_WRONLY | os.O_CREAT))
        os.utime(run.folder / STOP)  # of an earlier request, which counts again
