"""The training loop: runs an exported graph N times, and is where stopping and resuming are decided.

What one iteration computes: docs/one_iteration.py. On 8 GPUs: `otca train WORKFLOW --gpus 8`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...host import distributed, paths, silence, stopping
from ...host.silence import Silence
from ...host.stopping import STOP, asks_to_stop
from ...host.text import as_repr
from .. import keys
from ..families.base import FlowModel
from ..rewards import RewardError
from ..rewards.base import Reward
from ..types import ASKING_NODES, DATASET_NODE, GIVEN_NODES, RUN_NODE, SAMPLER_NODE, STEP_NODES, RunSettings
from ..workflow.problem import Problem
from ..workflow.running import NodeError, Workflow
from . import checkpoint, status, verdicts
from .folder import BEST, CHECKPOINTS, RunError, Say, has_saved
from .held import Held
from .record import Run, keep_open

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """A training that may begin, as `checks.prepare` makes it: its graph can be trained, and its folder is ours.

    Attributes:
        settings: of Training Run.
        iterations: how many the run has in all.
        problems: warnings about the graph.
        memory: what it needs of main memory and what there was, to stand behind a node; "" where that is not known.
    """

    workflow: Workflow
    held: Held
    settings: RunSettings
    iterations: int
    problems: Sequence[Problem]
    memory: str = ""


def train(prepared: Prepared, *, say: Say = print) -> int:
    """Trains until the Training Run node's number of iterations is reached or the user stops it.

    One iteration is one run of the graph; before each, the inputs that carry `control_after_generate` advance by one, as
    ComfyUI's queue does it. Everything random is drawn from those inputs, so a resumed run repeats what it would have done.

    `say`: receives lines for a human.

    Returns:
        The exit code: 0, or 128 + the signal that stopped it (130 for Ctrl-C, 143 for SIGTERM; 0 for a stop file).

    Raises:
        RunError: the folder cannot be written.
        Damaged: a file of the run that it cannot do without.
    """
    held, workflow, total = prepared.held, prepared.workflow, prepared.iterations
    folder = held.folder
    say = say if distributed.is_main() else lambda line: None
    try:
        with contextlib.closing(held), paths.writing_to(folder):
            for line in differences(held.graph, workflow.entries) if held.graph else ():
                say(f"changed since the run began: {line}")
            if killed := status.killed(held.status):
                say(f"{folder}: {killed}")
            run = Run(held, prepared.settings, workflow.graph)
            with stopping.stop_signals(folder), _marked(run, total), silence.broken(say, "beginning") as quiet:
                return _train(prepared, run, quiet)
    except BaseException as error:
        distributed.announce(error, while_scoring=(RewardError,))
        raise


def _train(prepared: Prepared, run: Run, quiet: Silence) -> int:
    workflow, total, say = prepared.workflow, prepared.iterations, quiet.say
    folder, resume = run.folder, run.held.resume
    # 1. The model, as the graph loads it, and its last checkpoint.
    if run.settings.best_metric:
        run.check_metric(_rewards(workflow))
    begins = _begins(prepared, run, quiet)
    model = trained_model(workflow, begins)
    keep_open(run, model)
    start = checkpoint.restore(model, folder / CHECKPOINTS) if resume else 0
    if not start and run.iteration and has_saved(folder):
        raise RunError(
            f"{folder} has {run.iteration} iterations on record, but its checkpoints are gone. Fix: put the "
            f"folder {CHECKPOINTS} back, or begin again with another --output"
        )
    if resume and start:
        say(f"resuming {folder} after iteration {start}")
    elif resume:
        lost = f", and the {run.iteration} iterations on record are made again" if run.iteration else ""
        say(f"{folder} has no checkpoint yet: starting from the beginning{lost}")
    # 2. The record begins, or goes on, at that iteration.
    run.begin(start)
    # Who trains what, for a human: "2 processes on 1 machine, cpu, float32, 8 samples (4 each), scenes-flux, LoRA …"
    processes, machines = distributed.world(), distributed.machines()
    words = [f"{processes} process{'es' * (processes > 1)} on {machines} machine{'s' * (machines > 1)}"]
    words += [str(model.device), str(model.dtype).removeprefix("torch.")]
    if samples := _samples(workflow):
        most = f" (at most {-(-samples // processes)} each)" if processes > 1 else ""
        words.append(f"{samples} samples{most}")
    trained = sum(p.numel() for adapters in model.adapters.values() for p in adapters.parameters().values())
    kind = f"LoRA of {trained:,} parameters" if model.policy.is_adapted else "full training"
    run.who = ", ".join([*words, Path(model.source).name, kind])
    say(f"{run.who}; {folder}, after iteration {start}")
    run.apply_brake(model)  # of an evaluation after which its process was killed
    outputs = workflow.output_nodes()
    at_end = [node for node in outputs if getattr(workflow.node_class(node), "RUN_AT_END", False)]
    every = [node for node in outputs if node not in at_end]
    advancing = workflow.advancing()

    def at(iteration: int) -> dict:
        return {(node, name): value + iteration for node, name, value in advancing}

    # 3. The graph once for each iteration, and once more what runs at the end.
    began = time.monotonic()
    try:
        for iteration in range(start, total):
            if run.brake() or run.spent():
                break
            workflow.run(overrides=at(iteration), targets=every, on_node=begins)
            say(_line(run, total, began, start))
        results = {}
        if run.iteration == start:  # an earlier process trained all of it, and may have failed at what comes after
            run.save_weights(model)
            results = {only(workflow, *STEP_NODES): (model,)}
        if at_end:
            workflow.run(overrides=at(run.iteration - 1), targets=at_end, results=results)
    # 4. Stopped or failed: what was learned is saved.
    except stopping.Stopped as stopped:
        lost = distributed.announce(stopped)
        # An iteration either finished or left no trace, so the model stands where the last recorded line says it does.
        run.save(model)
        if run.history:
            run.plot()
        if asks_to_stop(run.folder):
            (run.folder / STOP).unlink(missing_ok=True)
        ((lambda line: None) if lost else say)(
            f"stopped by {stopped} after iteration {run.iteration}; --resume continues from there: {run.folder}"
        )
        code = 128 + stopping.request.signal if stopping.request.signal else 0
        if lost:  # torchrun asked this process to stop, since another one died
            raise lost from None
        run.mark("stopped", total)  # once all is saved: who reads it may resume
        return code
    except NodeError as error:
        # Between the update and its line on record the model stands nowhere that could be resumed. And what each process
        # trains a part of cannot be put together by one that failed alone. What cuts an evaluation off, as another process's
        # end, would leave that out for ever: it is made again, after the iterations since the last checkpoint.
        cut = run.evaluating and isinstance(error.__cause__, distributed.PeerFailed)
        if run.stands_at(model) and not model.policy.trains_shards and not cut:
            with _as_well_as_can_be():
                run.save(model)
        raise
    finally:
        with _as_well_as_can_be():
            run.close()
    # 5. Finished, in all processes.
    distributed.meet()  # nobody leaves while another may still fail
    run.mark("finished", total, reason=(run.spent() if run.iteration < total else None) or run.reason)
    _summary(run, total, say)
    return 0


def _samples(workflow: Workflow) -> int | None:
    """How many samples an iteration has; None where a link says it only when the graph runs."""
    values = {node.class_type: node.defaults | node.constants for node in workflow.nodes.values()}
    counts = [values.get(DATASET_NODE, {}).get("prompts_per_iteration"), values.get(SAMPLER_NODE, {}).get("group_size")]
    for kind in filter(values.__contains__, GIVEN_NODES):
        counts = [2, values[kind].get("pairs_per_iteration")]
    numbers = [count for count in counts if isinstance(count, int)]
    return math.prod(numbers) if len(numbers) == len(counts) else None


def _begins(prepared: Prepared, run: Run, quiet: Silence) -> Callable[[str, bool], None]:
    """Says which node is at work: to a human where it takes long, and in status.json, the first time that each begins: a process
    that is killed says nothing itself."""
    begun = set()

    def begins(node: str, cached: bool) -> None:
        at = f'node {node} "{prepared.workflow.title(node)}"'
        if not cached:
            quiet.now(at)
        if node not in begun and not cached:
            begun.add(node)
            run.mark("running", prepared.iterations, at=f"{at}{prepared.memory}")

    return begins


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
    """The id of the one node of these classes. Raises RunError if there is not exactly one."""
    nodes = [node for class_type in class_types for node in workflow.find(class_type)]
    if len(nodes) != 1:
        raise RunError(
            f"the workflow has {len(nodes)} {' or '.join(class_types)} nodes, and training needs exactly one. Fix: add or remove "
            "one in ComfyUI and export again"
        )
    return nodes[0]


def trained_model(workflow: Workflow, on_node: Callable[[str, bool], None] | None = None) -> FlowModel:
    """The handle that the step will update; the graph's later runs find it in their cache."""
    node, output = workflow.graph[only(workflow, *STEP_NODES)]["inputs"]["model"]
    return workflow.run(targets=[node], on_node=on_node)[node][output]


def _rewards(workflow: Workflow) -> list[Reward]:
    """The rewards that the stacks, and pairs, are connected to."""
    stacks = [workflow.nodes[stack] for kind in ASKING_NODES for stack in workflow.find(kind)]
    links = [link for stack in stacks for name, link in stack.links.items() if name.startswith("reward_")]
    made = workflow.run(targets=[node for node, _ in links])
    return [made[node][output] for node, output in links]


def differences(before: Mapping, now: Mapping) -> list[str]:
    """Inputs that differ between two graphs, as `node.input: old -> new`."""
    lines = [f"node {node} is {'gone' if node in before else 'new'}" for node in sorted(before.keys() ^ now.keys())]
    for node in sorted(before.keys() & now.keys()):
        old, new = before[node]["inputs"], now[node]["inputs"]
        lines += [
            f"{node}.{name}: {as_repr(old.get(name))} -> {as_repr(new.get(name))}"
            for name in sorted(old.keys() | new.keys())
            if old.get(name) != new.get(name)
        ]
    return lines


def _summary(run: Run, total: int, say: Say) -> None:
    """Tells the run's result: every reward on the fixed prompts and seeds, before and after."""
    if len(run.evaluations) > 1:
        rows = {row["iteration"]: row["rewards"] for row in run.evaluations}
        first, last = run.evaluations[0]["rewards"], rows.get(run.adapter_iteration, run.evaluations[-1]["rewards"])
        for name, before in first.items():
            if name in last and None not in (before["mean"], last[name]["mean"]):
                means = (f"{row[name]['mean']:.3f} ± {row[name]['standard_error']:.3f}" for row in (first, last))
                say(f"{name}{' (held out)' if before['held_out'] else ''}: {' -> '.join(means)}")
    for warning in run.warnings().values():
        say(warning)
    if spent := run.spent():
        say(spent)
    elif brake := run.brake():
        released = f"{brake.input}={verdicts.RELEASED[brake.input]}"
        say(run.told(brake))
        say(f"to go on from that adapter nevertheless: --resume --set {RUN_NODE}.{released}")
    if best := run.best:
        before = "" if best["before_training"] is None else f", {best['before_training']:.3f} before training"
        value = f"{best['metric']} {best['value']:.3f} at iteration {best['iteration']}{before}"
        say(f"best: {value} ({run.folder / BEST})")
    files = ("samples.png", "rewards.png", "credit.png", "lora.safetensors")
    there = ", ".join(name for name in files if (run.folder / name).is_file())
    say(f"done after {run.iteration} iterations: {run.folder} ({there})")


def _line(run: Run, total: int, began: float, start: int) -> str:
    """The line of the last iteration, and how long the rest may take. `began`: `time.monotonic()` at iteration `start`."""
    row, budget = run.history[-1], run.meter.budget
    means = [(name, row[keys.mean(kind, name)]) for kind in keys.KINDS for name in keys.rewards(row, kind)]
    shown = "  ".join(f"{name} {mean:.3f}" for name, mean in means)
    seconds = int((total - run.iteration) * (time.monotonic() - began) / max(1, run.iteration - start))
    number, left = f"{run.iteration}/{total}", f"ETA {seconds // 60}:{seconds % 60:02d}"
    if budget is not None:
        number, left = str(run.iteration), f"{budget.share(run.history, run.evaluations):.0%} of {budget}"
    return (
        f"iteration {number}  {shown}  |  gradient {row['gradient_norm']:.3g}  {row['seconds/iteration']:.2f} s  {left}"
    )
