"""The training loop: runs an exported graph N times, and is where stopping and resuming are decided."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...host import claim, distributed, paths, stopping
from ...host.files import Damaged, present
from ...host.own_folders import put_back
from ...host.stopping import STOP, asks_to_stop
from ...host.terminal import terminal
from .. import keys
from ..checks import preflight
from ..rewards import RewardError
from ..types import ASKING_NODES, RUN_NODE, SAVE_NODE, STEP_NODES, RunSettings
from ..workflow.problem import errors
from ..workflow.running import NodeError, Workflow, WorkflowError
from . import checkpoint
from .folder import ADAPTERS, BEST, CHECKPOINTS, STATUS, WORKFLOW, RunError, not_writable, read_own
from .opening import in_the_way, on_record, open_run

if TYPE_CHECKING:
    from ..families.base import FlowModel
    from ..rewards import Reward
    from .budget import Meter
    from .record import Run

logger = logging.getLogger(__name__)

Say = Callable[[str], None]


def train(workflow: Workflow, *, resume: bool = False, take_over: bool = False, say: Say = print) -> int:
    """Trains until the Training Run node's number of iterations is reached or somebody stops it.

    One iteration is one run of the graph; before each, the inputs that carry `control_after_generate` advance by one, as
    ComfyUI's queue does it. Everything random is drawn from those inputs, so a resumed run repeats what it would have done.

    Args:
        workflow: validated here again, with all problems at once.
        resume: continue from the folder's last checkpoint, bit for bit.
        take_over: claim the folder even where it cannot be seen whether the process that claimed it has ended.
        say: receives lines for a human.

    Returns:
        The exit code: 0, or 128 + the signal that stopped it (130 for Ctrl-C, 143 for SIGTERM; 0 for a stop file).

    Raises:
        WorkflowError: the graph cannot run.
        RunError: the folder cannot be used, or holds another run.
        Claimed: another process trains in the folder, or may.
        Damaged: a file of the run that it cannot do without.
    """
    if problems := errors(preflight.problems(workflow, distributed.world())):
        raise WorkflowError(problems)
    inputs = workflow.nodes[only(workflow, RUN_NODE)].constants
    folder = _folder(workflow)
    total = int(inputs["iterations"])
    terminal.output = folder
    resume = resume or _begun_before_restart(folder)
    if not distributed.is_main():
        say = _silent
    try:
        with _claimed(workflow, folder, resume, take_over, say):
            return _train_in(folder, workflow, inputs, total, resume, say)
    except BaseException as error:
        distributed.announce(error, while_scoring=(RewardError,))
        raise


def _silent(line: str) -> None:
    pass


@contextlib.contextmanager
def _claimed(workflow: Workflow, folder: Path, resume: bool, take_over: bool, say: Say) -> Iterator[None]:
    """The folder is this process's alone, and can be begun in or resumed. Of several processes the first one claims it."""
    if not distributed.is_main():
        yield
        return
    check_folder(workflow, resume, take_over)  # before anything is written there
    try:
        taken = claim.take(folder, take_over=take_over, say=say)
    except OSError as error:
        raise not_writable(folder, error) from error
    with taken:
        check_folder(workflow, resume, take_over)  # somebody may have been there until now
        yield


def _train_in(folder: Path, workflow: Workflow, inputs: dict, total: int, resume: bool, say: Say) -> int:
    if distributed.is_main():
        for line in _changes(folder, workflow) if resume else ():
            say(f"changed since the run began: {line}")
        if _old_stop(folder):
            (folder / STOP).unlink()
        put_back(folder / BEST)
    distributed.meet()
    names = RunSettings.__dataclass_fields__
    settings = RunSettings(**{name: value for name, value in inputs.items() if name in names})
    run = open_run(folder, settings, workflow.graph, resume=True)
    if run.writes:
        run.claim = claim.take(folder)  # which this process has: the run looks at it before it writes
    with stopping.stop_signals(), _marked(run, total):
        return _train(workflow, run, total, resume, say)


def _train(workflow: Workflow, run: Run, total: int, resume: bool, say: Say) -> int:
    folder = run.folder
    if run.settings.best_metric:
        run.check_metric(_rewards(workflow))
    model = trained_model(workflow)
    model.run = run
    start = checkpoint.restore(model, folder / CHECKPOINTS) if resume else 0
    if not start and run.iteration >= run.settings.checkpoint_every:
        raise RunError(
            f"{folder} has {run.iteration} iterations on record, and none of its checkpoints is there any more. Fix: put the "
            f"folder {CHECKPOINTS} back, or begin again with another --output"
        )
    if resume:
        say(
            f"resuming {folder} after iteration {start}"
            if start
            else f"{folder} has no checkpoint yet: starting from the beginning"
        )
    run.begin(start)
    every, at_end = _targets(workflow)
    advancing = workflow.advancing()

    def at(iteration: int) -> dict:
        return {(node, name): value + iteration for node, name, value in advancing}

    with _Progress(start, total, run.meter, say) as progress:
        try:
            for iteration in range(start, total):
                if run.early_stop() or run.meter.spent(run.history):
                    break
                workflow.run(overrides=at(iteration), targets=every)
                progress(run.history)
            outputs = {}
            if run.iteration == start:  # an earlier process trained all of it, and may have failed at what comes after
                run.save_weights(model)
                outputs = {only(workflow, *STEP_NODES): (model,)}
            if at_end:
                workflow.run(overrides=at(run.iteration - 1), targets=at_end, results=outputs)
        except stopping.Stopped as stopped:
            lost = distributed.announce(stopped)
            code = _stopped(run, model, stopped, say)
            if lost:  # torchrun asked this process to stop, since another one died
                raise lost from None
            run.mark("stopped", total)  # once all is saved: whoever reads it may resume
            return code
        except NodeError:
            # Between the update and its line on record the model stands nowhere that could be resumed. And what each process
            # trains a part of cannot be put together by one that failed alone.
            if run.stands_at(model) and not model.policy.trains_shards:
                with _as_well_as_can_be():
                    run.save(model)
            raise
        finally:
            with _as_well_as_can_be():
                run.close()
    distributed.meet()  # nobody leaves while another may still fail
    run.mark("finished", total, reason=_ended_early(run, total))
    _summary(run, total, say)
    return 0


def _ended_early(run: Run, total: int) -> str | None:
    return (run.meter.spent(run.history) or run.early_stop()) if run.iteration < total else None


def _old_stop(folder: Path) -> bool:
    """Whether the stop file was meant for an earlier process.

    A stop counts if it came while this process was loading, or while torchrun was about to start this process, or start it again.
    """
    import psutil

    begun = psutil.Process(os.getppid() if "TORCHELASTIC_RUN_ID" in os.environ else os.getpid()).create_time()
    return asks_to_stop(folder) and os.lstat(folder / STOP).st_mtime < begun


@contextlib.contextmanager
def _marked(run: Run, total: int) -> Iterator[None]:
    """Says in the folder that the run is running, and why it failed if it does."""
    run.mark("running", total)
    try:
        yield
    except BaseException as error:
        with _as_well_as_can_be():
            # Of another process's failure this one only heard, at whatever node it was itself.
            heard = isinstance(error.__cause__, distributed.PeerFailed)
            node = error.node_id if isinstance(error, NodeError) and not heard else None
            run.mark("failed", total, f"{type(error).__name__}: {error}", node=node)
        raise


@contextlib.contextmanager
def _as_well_as_can_be() -> Iterator[None]:
    """For what is done because of an error, which is the one to raise: that the disk is full too goes to the log."""
    try:
        yield
    except RunError as error:
        logger.error("%s", error)


def only(workflow: Workflow, *class_types: str) -> str:
    """The id of the one node of these classes. Raises RunError where there is none, or more than one."""
    nodes = [node for class_type in class_types for node in workflow.find(class_type)]
    if len(nodes) != 1:
        raise RunError(
            f"the workflow has {len(nodes)} {' or '.join(class_types)} nodes, and training needs exactly one. Fix: add or remove "
            "one in ComfyUI and export again"
        )
    return nodes[0]


def trained_model(workflow: Workflow) -> FlowModel:
    """The handle that the step will update; the graph's later runs find it in their cache."""
    node, output = workflow.graph[only(workflow, *STEP_NODES)]["inputs"]["model"]
    return workflow.run(targets=[node])[node][output]


def _rewards(workflow: Workflow) -> list[Reward]:
    """What the stacks, and pairs, are connected to."""
    stacks = [workflow.nodes[stack] for kind in ASKING_NODES for stack in workflow.find(kind)]
    links = [link for stack in stacks for name, link in stack.links.items() if name.startswith("reward_")]
    made = workflow.run(targets=[node for node, _ in links])
    return [made[node][output] for node, output in links]


def _targets(workflow: Workflow) -> tuple[list[str], list[str]]:
    """Output nodes of every iteration, and those that run once at the end."""
    outputs = workflow.output_nodes()
    last = [node for node in outputs if getattr(workflow.node_class(node), "RUN_AT_END", False)]
    return [node for node in outputs if node not in last], last


def check_folder(workflow: Workflow, resume: bool, take_over: bool = False) -> None:
    """Checks that a run can be begun or resumed in its folder, and that the folder is nobody else's.

    Raises:
        RunError: it cannot.
        Claimed: another process trains in it, or may.
    """
    folder = _folder(workflow)
    claim.check(folder, take_over=take_over)
    if resume:
        if not present(folder / WORKFLOW):
            raise RunError(
                f"{folder} holds no run to resume. Fix: leave out --resume, or give the run's folder as --output"
            )
        return
    if on_record(folder):
        raise RunError(f"{folder} already holds a run. Fix: add --resume to continue it, or choose another --output")
    if foreign := _in_the_way(folder, workflow):
        raise RunError(
            f"{folder} holds {', '.join(foreign)} already, and a new run would write over that. Fix: choose another --output, or "
            "move it elsewhere"
        )


def _in_the_way(folder: Path, workflow: Workflow) -> list[str]:
    """What a new run would write over, but for the very file that is about to be trained."""
    names = in_the_way(folder) + _adapters_in_the_way(folder, workflow)
    if asks_to_stop(folder) and not _old_stop(folder):
        names = [name for name in names if name != STOP]  # it is meant for this process
    try:
        same = names == [WORKFLOW] and not differences(read_own(folder, WORKFLOW) or {}, workflow.graph)
    except Damaged:
        return names  # whatever it is, it stays
    return [] if same else names


def _adapters_in_the_way(folder: Path, workflow: Workflow) -> list[str]:
    """Files that Save LoRA would write over when the training is done; of two networks there are two."""
    names = [workflow.graph[node]["inputs"].get("filename") for node in workflow.find(SAVE_NODE)]
    endings = ("", *(f"_{expert}_noise" for expert in ("high", "low")))
    files = [f"{name}{ending}.safetensors" for name in names if isinstance(name, str) for ending in endings]
    return [file for file in files if present(folder / file) and file not in ADAPTERS]


def _folder(workflow: Workflow) -> Path:
    return paths.run_folder(workflow.nodes[only(workflow, RUN_NODE)].constants["run_name"])


def _begun_before_restart(folder: Path) -> bool:
    """Whether torchrun restarted this process, and the process before had begun the run: it was not refused the folder."""
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) == 0 or not (folder / STATUS).is_file():
        return False
    import psutil

    return (folder / STATUS).stat().st_mtime > psutil.Process(os.getppid()).create_time()


def _changes(folder: Path, workflow: Workflow) -> list[str]:
    return differences(read_own(folder, WORKFLOW) or {}, workflow.graph)


def differences(before: dict, now: dict) -> list[str]:
    """Inputs that differ between two graphs, as `node.input: old -> new`."""
    lines = [f"node {node} is {'gone' if node in before else 'new'}" for node in sorted(before.keys() ^ now.keys())]
    for node in sorted(before.keys() & now.keys()):
        old, new = before[node]["inputs"], now[node]["inputs"]
        lines += [
            f"{node}.{name}: {old.get(name)!r} -> {new.get(name)!r}"
            for name in sorted(old.keys() | new.keys())
            if old.get(name) != new.get(name)
        ]
    return lines


def _summary(run: Run, total: int, say: Say) -> None:
    """What the run came to: every reward on the fixed prompts and seeds, before and after."""
    if len(run.evaluations) > 1:
        first, last = run.evaluations[0]["rewards"], run.evaluations[-1]["rewards"]
        for name, before in first.items():
            if name in last and None not in (before["mean"], last[name]["mean"]):
                means = (f"{row[name]['mean']:.3f} ± {row[name]['standard_error']:.3f}" for row in (first, last))
                say(f"{name}{' (held out)' if before['held_out'] else ''}: {' -> '.join(means)}")
    if warning := run.warning():
        say(warning)
    if spent := run.meter.spent(run.history):
        say(spent)
    elif (reason := run.early_stop()) and run.iteration < total:
        say(f"stopped early: {reason}. To continue nevertheless: --resume --set {RUN_NODE}.stop_after_decline=0")
    if best := run.best:
        before = "" if best["before_training"] is None else f", {best['before_training']:.3f} before training"
        value = f"{best['metric']} {best['value']:.3f} at iteration {best['iteration']}{before}"
        say(f"best: {value} ({run.folder / BEST})")
    say(f"done after {run.iteration} iterations: {run.folder} (samples.png, rewards.png, credit.png, lora.safetensors)")


def _stopped(run: Run, model: FlowModel, stopped: stopping.Stopped, say: Say) -> int:
    # An iteration either finished or left no trace, so the model stands where the last recorded line says it does.
    run.save(model)
    if run.history:
        run.plot()
    if asks_to_stop(run.folder):
        (run.folder / STOP).unlink(missing_ok=True)
    say(f"stopped by {stopped} after iteration {run.iteration}; --resume continues from there: {run.folder}")
    return 128 + stopping.request.signal if stopping.request.signal else 0


class _Progress:
    """A bar with ETA and rewards on a terminal, one line an iteration in a log."""

    def __init__(self, start: int, total: int, meter: Meter, say: Say):
        self.start, self.total, self.meter, self.say = start, total, meter, say
        self.began = time.monotonic()
        self.bar = None

    def __enter__(self) -> _Progress:
        if sys.stderr.isatty() and distributed.is_main():
            from tqdm import tqdm

            total = self.total if self.meter.budget is None else None
            self.bar = tqdm(total=total, initial=self.start, unit="it", dynamic_ncols=True)
        return self

    def __exit__(self, *_) -> None:
        if self.bar is not None:
            self.bar.close()

    def __call__(self, history: Sequence[dict]) -> None:
        row = history[-1]
        means = [(name, row[keys.mean(kind, name)]) for kind in keys.KINDS for name in keys.rewards(row, kind)]
        shown = "  ".join(f"{name} {mean:.3f}" for name, mean in means)
        if self.bar is not None:
            self.bar.set_postfix_str(shown, refresh=False)
            self.bar.update(1)
            return
        number, left = f"{row['iteration']}/{self.total}", f"ETA {self._left(row['iteration'])}"
        if self.meter.budget is not None:
            number, left = row["iteration"], f"{self.meter.budget.share(history):.0%} of {self.meter.budget}"
        self.say(
            f"iteration {number}  {shown}  |  gradient {row['gradient_norm']:.3g}  {row['seconds/iteration']:.2f} s  {left}"
        )

    def _left(self, iteration: int) -> str:
        left = (self.total - iteration) * (time.monotonic() - self.began) / max(1, iteration - self.start)
        return f"{int(left) // 60}:{int(left) % 60:02d}"
