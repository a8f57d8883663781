"""Preparing a training: its graph is checked, its folder is judged and claimed, once in all its processes.

What a training refuses before its first iteration is refused here, and `train` does not ask again. The first of several
processes prepares, or the one that launches them; the others are told what it decided.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ...host import claim, distributed, environment, paths, stopping
from ...host.access import permissions
from ...host.files import Damaged, present
from ..memory import fitting
from ..run.folder import ADAPTERS, STATUS, WORKFLOW, RunError, Say, read_own
from ..run.held import Taken, hold, in_the_way, on_record, read
from ..run.loop import Prepared, differences
from ..run.status import Status
from ..types import RUN_NODE, SAVE_NODE, RunSettings
from ..workflow.problem import WorkflowError, errors
from ..workflow.running import Classes, Workflow
from . import preflight

HANDED = "OTCA_PREPARED"  # an environment variable: the file in which a launching process says what it has prepared


def prepare(
    workflow: Workflow,
    folder: Path | None = None,
    *,
    resume: bool = False,
    take_over: bool = False,
    processes: int | None = None,
    say: Say = print,
) -> Prepared:
    """Checks all that keeps a graph from being trained, and claims the folder for this process.

    `folder`: of the run; None: where its name says.
    `resume`: continue from the folder's last checkpoint, bit for bit.
    `take_over`: claim the folder even if it cannot be seen whether the process that claimed it has ended.
    `processes`: how many will train it; None: as many as train together with this one.
    `say`: receives lines for a human.

    Raises:
        WorkflowError: the graph cannot be trained; with all its problems, warnings included.
        RunError: the folder cannot be used, or holds another run.
        Claimed: another process trains in the folder, or may.
    """
    with paths.writing_to(folder):
        problems = preflight.problems(workflow, processes or distributed.world())
        memory, shortages = fitting.main_memory(workflow.graph) if not errors(problems) else ("", [])
        problems += shortages
        if errors(problems):
            raise WorkflowError(problems)
        [node] = workflow.find(RUN_NODE)
        inputs = workflow.nodes[node].constants
        folder = paths.run_folder(inputs["run_name"])
    resume = resume or _begun_before_restart(folder)
    if resume and not present(folder / WORKFLOW):
        raise RunError(
            f"{folder} holds no run to resume. Fix: leave out --resume, or give the run's folder as --output"
        )
    taken = hold(folder, resume=resume, judge=functools.partial(_judge, workflow), take_over=take_over, say=say)
    if stopping.is_old(folder):
        (folder / stopping.STOP).unlink()
    settings = RunSettings.from_inputs(inputs)
    return Prepared(workflow, taken, settings, int(inputs["iterations"]), problems, memory)


def together(decide: Callable[[], Prepared], classes: Classes) -> Prepared:
    """What the first of the processes decides, in all of them. It decides nothing itself if the process that launched all of them
    has prepared the training."""
    if distributed.is_main():
        try:
            file = environment.read(HANDED)
            prepared = (
                _read(Path(file).read_text(encoding="utf-8"), classes, launched=True) if file else None
            ) or decide()
        except BaseException as error:
            distributed.announce(error)
            raise
        distributed.told(_written(prepared))
        return prepared
    return _read(distributed.told(), classes)


@contextlib.contextmanager
def hand_over(prepared: Prepared) -> Iterator[None]:
    """Within it, processes that this one launches find by the environment what it has prepared for them."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "prepared.json"
        file.write_text(_written(prepared), encoding="utf-8")
        environment.write(HANDED, str(file))
        try:
            yield
        finally:
            environment.remove(HANDED)


def _written(prepared: Prepared) -> str:
    content = {"iterations": prepared.iterations, "resume": prepared.held.resume, "folder": str(prepared.held.folder)}
    content |= {"graph": prepared.workflow.graph, "settings": vars(prepared.settings)}
    return json.dumps({**content, "memory": prepared.memory, "allowed": permissions.granted()})


def _read(text: str, classes: Classes, launched: bool = False) -> Prepared:
    """`launched`: this process writes, by the claim of the one that launched it."""
    content = json.loads(text)
    permissions.grant(content["allowed"])
    workflow, folder = Workflow(content["graph"], classes), Path(content["folder"])
    resume = content["resume"] or launched and _begun_before_restart(folder)
    held = read(folder, claim.adopt(folder) if launched else None, resume)
    settings = RunSettings(**content["settings"])
    return Prepared(workflow, held, settings, content["iterations"], [], content["memory"])


# --- the folder -------------------------------------------------------------------------------------------------------


def _judge(workflow: Workflow, folder: Path, written: Status) -> None:
    """Raises Taken if a new run would write over something in its folder."""
    if on_record(folder):
        raise Taken(f"{folder} already holds a run. Fix: add --resume to continue it, or choose another --output")
    if names := _in_the_way(folder, workflow, written):
        raise Taken(
            f"{folder} holds {', '.join(names)} already, and a new run would write over that. Fix: choose another --output, or "
            "move it elsewhere"
        )


def _in_the_way(folder: Path, workflow: Workflow, written: Status) -> list[str]:
    """What a new run would write over, except the very file that is about to be trained, and a stop that is meant for it."""
    # Files of Save LoRA too, when the training is done; for two networks there are two
    saved = [workflow.entries[node]["inputs"].get("filename") for node in workflow.find(SAVE_NODE)]
    endings = ("", *(f"_{expert}_noise" for expert in ("high", "low")))
    files = [f"{name}{ending}.safetensors" for name in saved if isinstance(name, str) for ending in endings]
    names = in_the_way(folder, written) + [file for file in files if present(folder / file) and file not in ADAPTERS]
    if stopping.asks_to_stop(folder) and not stopping.is_old(folder):
        names = [name for name in names if name != stopping.STOP]
    try:
        same = names == [WORKFLOW] and not differences(read_own(folder, WORKFLOW) or {}, workflow.entries)
    except Damaged:
        return names  # whatever it is, it stays
    return [] if same else names


def _begun_before_restart(folder: Path) -> bool:
    """Whether torchrun restarted this process, and the process before had begun the run."""
    if int(environment.read("TORCHELASTIC_RESTART_COUNT", "0")) == 0 or not (folder / STATUS).is_file():
        return False
    import psutil

    return (folder / STATUS).stat().st_mtime > psutil.Process(os.getppid()).create_time()
