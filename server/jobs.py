"""Starts, resumes and stops `otca train` as a process of its own, which outlives ComfyUI and shares only the run's folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from ..trainer import host
from ..trainer.flow import SINGLE_FILES
from ..trainer.graph import RUN_NODE, STEP_NODE, resumable
from ..trainer.layout import CANVAS, CLAIM, LOG, STATUS, STOP, WORKFLOW
from ..trainer.permissions import FROM_PAGE
from ..trainer.workflow import Problem, Workflow, WorkflowError
from .checks import Refused
from .runs import Run, Runs

NEEDED_ONCE = (RUN_NODE, STEP_NODE)
LAST_LINES = 12
ENDING_SECONDS = 20
WINDOWS_FLAGS = ("CREATE_NEW_PROCESS_GROUP", "CREATE_NO_WINDOW")


@dataclass(frozen=True)
class Gpus:
    """How many train, and how many beside them are for rewards."""

    training: int = 1
    rewards: int = 0

    def arguments(self) -> list[str]:
        """Of `otca train`."""
        many = ["--gpus", str(self.training)] if self.training > 1 else []
        return many + (["--reward-gpus", str(self.rewards)] if self.rewards else [])


class Jobs:
    def __init__(
        self,
        runs: Runs,
        pack: Path,
        node_classes: Mapping[str, type],
        titles: Mapping[str, str],
        input_folder: Callable[[], Path],
        make_room: Callable[[], None],
    ):
        """`pack` is the folder that Python is given to run.

        `make_room` asks this process's models to leave the accelerator, on which the training is about to start.
        """
        self.runs, self.pack, self.node_classes, self.titles = runs, pack, node_classes, titles
        self.input_folder, self.make_room = input_folder, make_room
        self._starting = threading.Lock()  # two requests at once must not start two trainings of one run

    def check(self, prompt: dict) -> tuple[Workflow, list[Problem]]:
        """The graph and all that keeps it from training, warnings included.

        Raises:
            Refused: 400, `prompt` is no graph in API format.
        """
        workflow = self._read(prompt)
        problems = workflow.validate()
        for class_type in NEEDED_ONCE:
            found = workflow.find(class_type)
            if len(found) != 1:
                message = f"training needs exactly one {self.titles[class_type]} node, and there are {len(found)}"
                fix = "connect one" if not found else "remove all but one, or mute them"
                problems.append(Problem(None, None, None, None, message, fix))
        return workflow, problems

    def start(self, name: str, prompt: dict, canvas: dict | None, iterations: int, gpus: Gpus) -> Run:
        """A new run of that name. Raises Refused: 400 with the graph's problems, 409 where the name is taken."""
        workflow = self._ready(prompt, iterations)
        with self._starting:
            run = self.runs.create(name)
            try:
                run.write(WORKFLOW, workflow.graph)
                if canvas is not None:
                    run.write(CANVAS, canvas)
                self._launch(run, iterations, gpus.arguments())
            except BaseException:
                shutil.rmtree(run.folder)  # else the name would be taken by a run that never began
                raise
        return run

    def resume(self, run: Run, iterations: int | None, gpus: Gpus) -> str | None:
        """Goes on from the last checkpoint, to `iterations` in all; returns what a human should know of how.

        A run that stop_after_decline has ended, or would end, goes on without that rule.

        Raises:
            Refused: 400, or 409 where there is nothing to do.
        """
        total = iterations or run.summary()["total"]
        if total is None:
            raise Refused(409, f"run {run.id} does not say how long it should be. Fix: give the number of iterations")
        begun = self._read(run.workflow()["prompt"]).graph
        graph = resumable(begun)
        self._ready(graph, total)
        with self._starting:
            deadline = time.monotonic() + ENDING_SECONDS
            while run.busy() and run.status()["status"] != "running" and time.monotonic() < deadline:
                time.sleep(0.1)  # it has said that it ended, and its process is about to
            if run.busy():
                raise Refused(409, _busy(run))
            done, status = run.iteration(), run.status()
            # One that ended otherwise may lack what comes after its last iteration, as the adapter.
            if total < done or total == done and run.summary()["status"] == "finished":
                message = f"run {run.id} has done {done} iterations of {total}"
                raise Refused(409, f"{message}. Fix: give a larger number of iterations")
            (run.folder / STOP).unlink(missing_ok=True)
            changes, told = [], None
            if ended := status.get("reason"):
                told = f"goes on without stop_after_decline, which would end it at once: {ended}"
                changes = ["--set", f"{RUN_NODE}.stop_after_decline=0"]
            if graph != begun:
                run.write(WORKFLOW, graph)
            self._launch(run, total, [*gpus.arguments(), *changes, "--resume"])
        return told

    def stop(self, run: Run) -> None:
        """Asks for the end after the current micro-step, with everything saved. Raises Refused (409)."""
        summary = run.summary()
        if summary["status"] != "running":
            raise Refused(409, f"run {run.id} is not running, but {summary['status']}. Fix: reload the list of runs")
        if summary["place"] == "canvas":
            raise Refused(409, f"run {run.id} is made on the canvas. Fix: stop it by ComfyUI's own Cancel button")
        (run.folder / STOP).touch()

    def _read(self, prompt: dict) -> Workflow:
        try:
            return Workflow(prompt, self.node_classes, self.titles)
        except WorkflowError as error:
            raise Refused(400, str(error), problems=as_json(error.problems)) from error

    def _ready(self, prompt: dict, iterations: int) -> Workflow:
        workflow, problems = self.check(prompt)
        if errors := [problem for problem in problems if problem.severity == "error"]:
            raise Refused(400, "\n".join(map(str, errors)), problems=as_json(errors))
        workflow.set(f"{RUN_NODE}.iterations", iterations)
        return workflow

    def _launch(self, run: Run, iterations: int, arguments: list[str]) -> None:
        command = [sys.executable, str(self.pack), "train", str(run.folder / WORKFLOW), "--output", str(run.folder)]
        command += ["--iterations", str(iterations), *arguments]
        claim = uuid.uuid4().hex
        self.make_room()
        with open(run.folder / LOG, "ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment() | {CLAIM: claim},
                # Ctrl-C in ComfyUI's terminal, and its end, must not reach the training
                start_new_session=True,
                # and on Windows neither must the end of that terminal's window
                creationflags=sum(getattr(subprocess, flag, 0) for flag in WINDOWS_FLAGS),
            )
        try:
            # until the trainer, which has torch to load first, speaks for itself
            run.write(
                STATUS,
                {
                    "status": "running",
                    "place": "headless",
                    "pid": process.pid,
                    "process_started": psutil.Process(process.pid).create_time(),
                    "claim": claim,
                    "total": iterations,
                    "started": run.status().get("started") or time.time(),
                    "error": None,
                    "reason": run.status().get("reason"),  # still true if the trainer cannot begin
                },
            )
        except BaseException:  # nobody would know of it, and a new run's folder is about to go
            process.terminate()
            process.wait()
            raise
        threading.Thread(target=self._wait, args=(process, run), name=f"otca {run.id}", daemon=True).start()

    def _environment(self) -> dict[str, str]:
        """What the trainer finds in ComfyUI's folders, it must find outside ComfyUI too."""
        kinds = {host.weights_variable(kind): host.weight_folders(kind) for kind in (*SINGLE_FILES.values(), "loras")}
        folders = {"OTCA_MODELS": [folder for folder in host.model_folders() if folder != host.ASSETS], **kinds}
        return {
            **os.environ,
            **{variable: os.pathsep.join(map(str, places)) for variable, places in folders.items()},
            "OTCA_INPUT": str(self.input_folder()),
            FROM_PAGE: "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONIOENCODING": "utf-8",
        }

    def _wait(self, process: subprocess.Popen, run: Run) -> None:
        """Collects the process when it ends, and says how it ended if it could not say so itself."""
        code = process.wait()
        if code < 0:  # by a signal it did not handle: the run shows as interrupted
            return
        stopped = code in (128 + signal.SIGINT, 128 + signal.SIGTERM)
        ended = "stopped" if stopped else "failed" if code else "finished"
        error = None
        if ended == "failed":
            lines = run.log(0)["text"].strip().splitlines()[-LAST_LINES:]
            error = "\n".join(lines) or f"the process ended with exit code {code}"
        with self._starting:  # the run may have been resumed by now, and the status be another process's
            status = run.status()
            if status.get("status") == "running" and status.get("pid") == process.pid:
                run.write(STATUS, {**status, "status": ended, "error": error})


def _busy(run: Run) -> str:
    """Why a run cannot be gone on with now, and what helps."""
    if run.status().get("place") == "canvas":
        return (
            f"run {run.id} is made on the canvas, and belongs to this ComfyUI for as long as it runs. Fix: go on by queueing its "
            "workflow there, or start ComfyUI anew and resume the run then"
        )
    return f"run {run.id} is running, or about to end. Fix: stop it, or wait a moment"


def as_json(problems: list[Problem]) -> list[dict[str, Any]]:
    """Problems for the page, without the values: it has them, and some are no JSON."""
    return [{k: v for k, v in asdict(problem).items() if k != "value"} for problem in problems]
