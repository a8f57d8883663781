"""Which run an adapter belongs to, on the canvas: decided before the first picture is made, and checked before each update.

ComfyUI hands one and the same model to every workflow whose loading node has the same inputs. So it is remembered which run a
model belongs to (`record.run_of`). A graph that samples under another name, or has another structure, first gets the model back
as Load Flow Model made it, or as its run left it at its last checkpoint. Headlessly a process trains one run, and the training
loop decides.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import json
import logging
import os
import re
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ..host import claim, comfyui, paths, stopping
from ..host.claim import Claimed
from ..host.files import Damaged, real
from ..host.text import plain_name
from ..trainer.families.base import FlowModel
from ..trainer.policy import lora
from ..trainer.policy.files import ADAPTER
from ..trainer.run import checkpoint, verdicts
from ..trainer.run.folder import CHECKPOINTS, WORKFLOW, RunError, read_own
from ..trainer.run.held import Asked, Held, Taken, hold, is_free, judge
from ..trainer.run.record import Run, close_run, keep_open, run_at, run_of
from ..trainer.run.status import CANVAS
from ..trainer.types import TRAJECTORY_NODES, RunSettings
from ..trainer.workflow import lineage
from . import here

logger = logging.getLogger(__name__)

_folders: dict[Asked, Path] = {}  # where this process trains what was asked for
_lost: Counter[Asked] = Counter()  # how often a run of that key lost its model: it is then sampled again
_last_key: list[tuple[str, int]] = []


@dataclass(frozen=True)
class Start:
    """The content that a fresh adapter gets: nothing, the last checkpoint of a run, or an adapter's file."""

    run: Path | None = None
    file: Path | None = None

    def __str__(self) -> str:
        """The name that a person knows it by; empty for a fresh adapter."""
        if self.file is not None:
            return self.file.name if self.file.name != ADAPTER else f"{self.file.parent.name}/{ADAPTER}"
        return self.run.name if self.run is not None else ""


@dataclass(frozen=True)
class _Begun:
    """How a model began: what was put into it, the iteration it then stood at (None once a run has it), and its version."""

    where: Start = Start()
    iteration: int | None = 0
    version: int = 0


_begun: weakref.WeakKeyDictionary[FlowModel, _Begun] = weakref.WeakKeyDictionary()


def _begun_with(model: FlowModel) -> _Begun:
    return _begun.get(model, _Begun())


def _is_at_start(model: FlowModel) -> bool:
    """Whether it still is what was loaded."""
    begun = _begun_with(model)
    return begun.iteration is not None and model.policy.version == begun.version


def start(model: FlowModel, where: Start) -> int:
    """Puts into a model that was just loaded, or made fresh, what it begins with.

    Returns the iteration that it then stands at: 0 unless it is that of a run's checkpoint. Raises RunError if the run has none.
    """
    if where.file is not None:
        lora.load(model, where.file)
    iteration = 0
    if where.run is not None and not (iteration := checkpoint.restore(model, where.run / CHECKPOINTS)):
        raise RunError(
            f"resume_run = {where.run.name!r}: {where.run} has no checkpoint. Fix: choose a run that has one, or leave it empty"
        )
    _begun[model] = _Begun(where, iteration, model.policy.version)
    return iteration


def start_over(model: FlowModel) -> int:
    """The model as Load Flow Model made it: whatever was learned since is gone from it. Returns as `start`."""
    model.make_fresh()
    return start(model, _begun_with(model).where)


def take_up(model: FlowModel, graph: Mapping, sampler: str) -> str:
    """Gives the model to the run that records what it samples now. Called before sampling, on the canvas.

    In a graph without Training Run the model stays as it is: nothing is recorded there.

    `graph`: the prompt that ComfyUI is executing.
    `sampler`: id of the node that is about to sample.

    Returns:
        What the loading node shows: "new run NAME", "NAME, iteration 4", with where it began.

    Raises:
        RunError: several runs would record these samples, a name is linked or is not a plain one, or the run cannot be used.
    """
    node = _run_node(graph, sampler)
    if node is None:
        return (
            f"{standing(model)}: no Training Run records it"
            if model.policy.version
            else "not recorded: no Training Run"
        )
    wish, run = _asked(graph, node), run_of(model)
    if run is not None and run.held.asked == wish:
        run.held.check()
        run.held.node = node  # its id is another in a subgraph, a copy and a paste
        _undo_what_is_not_on_record(run, model)
        run.apply_brake(model)  # one that could not be applied before
    else:
        if run is not None:
            let_go(run)
        run = _open(model, wish, graph, node)
    _refuse_ended(run, graph, node)
    return standing(model)


def check(model: FlowModel, graph: Mapping, node_id: str) -> Run | None:
    """The run that the model belongs to; None if no Training Run is below that node, so that nothing is recorded.

    Raises:
        RunError: the graph records another run than the one that sampled, for example because it was rewired while samples are
            held.
    """
    node = node_id if graph[node_id]["class_type"] == lineage.RUN_NODE else _run_node(graph, node_id)
    if node is None:
        return None
    run = run_of(model)
    if run is not None and run.held.asked == _asked(graph, node):
        run.held.check()
        return run
    owner = f"run {run.folder.name}" if run is not None else "no run"
    raise RunError(
        f"these samples belong to {owner}, and this graph, as it is wired now, would be recorded as another run. Nothing was "
        "trained. Fix: let the seed of SDE Sampler move on (switch off `hold samples`), so that a new run is begun; or, to "
        "only look at the credit, mute GRPO Step or Matching Step, and the nodes after it"
    )


def recorder(model: FlowModel, graph: Mapping, node_id: str) -> Run | None:
    """The run whose model a node has: a Training Run below the same loader is run in this prompt, and records it.

    None where nothing records it, as where that node is muted. Headlessly a model has the run of its training loop.
    """
    run = run_of(model)
    if run is None or not here():
        return run
    loader = lineage.loader_above(graph, node_id)
    below = [node for node in lineage.runs(graph) if lineage.loader_above(graph, node) == loader]
    return run if any(comfyui.executes(node) and run.held.asked == _asked(graph, node) for node in below) else None


@dataclass(frozen=True)
class Coming:
    """The training that the next prompt of a graph would be.

    Attributes:
        iteration: that the run stands at; 0 for a new one.
        other: where it is a new one, a run of that name whose adapter fits the graph, which was made by another method, and its
            iteration: it can be continued, or the new one can begin with its adapter.
        at: where it goes on: (node, input, value) of the inputs that move on with every prompt; empty for a new one.
    """

    run: str
    iteration: int = 0
    other: tuple[str, int] | None = None
    at: tuple[tuple[str, str, int], ...] = ()


def coming(graph: Mapping, node: str) -> Coming:
    """Which run the next prompt of this graph would go on with, as `take_up` would decide it. Raises RunError as that does."""
    wish = _asked(graph, node)
    loader = lineage.loader_above(graph, node)
    for above in filter(lambda above: graph[above]["class_type"] in TRAJECTORY_NODES, lineage.above(graph, node)):
        _run_node(graph, above)
    resumed = lineage.constants(graph[loader]).get("resume_run") if loader is not None else None
    own = wish[0] if resumed == graph[node]["inputs"]["run_name"] else _own(wish)
    if own is not None and (iteration := _stands_at(own)):
        return Coming(own.name, iteration, at=lineage.stands_at(_graph_of(own), iteration, graph, node))
    adapter = loader and lineage.structure(graph, loader)
    others = (
        (folder.name, _stands_at(folder))
        for folder in earlier_runs(wish[0])
        if adapter in _made_by(folder, loaders=True)
    )
    return Coming(next(filter(is_free, _names(wish[0]))).name, other=next(others, None))


def _own(asked: Asked) -> Path | None:
    """Where what is asked for was trained last, by this process or before it began; None if it never was."""
    begun = _folders.get(asked)
    if begun is not None and checkpoint.complete(begun / CHECKPOINTS):
        return begun
    return next((folder for folder in earlier_runs(asked[0]) if asked[1] in _made_by(folder)), None)


def earlier_runs(wanted: Path) -> list[Path]:
    """The runs of that name, or of NAME-2, NAME-3 …, that can go on here, those that were trained last first."""
    runs: dict[object, tuple[float, Path]] = {}
    for folder in sorted(wanted.parent.glob(f"{glob.escape(wanted.name)}*")):
        named = re.fullmatch(r"(-\d+)?", folder.name.removeprefix(wanted.name))
        if named and _stands_at(folder) and (claim.ours(folder) or not claim.in_use(folder)):
            with contextlib.suppress(FileNotFoundError):  # deleted since
                # One of this process has no checkpoint before its first iteration is on record.
                when = os.path.getmtime(saved if (saved := folder / CHECKPOINTS).is_dir() else folder)
                # One that was copied by hand has its run's id.
                runs.setdefault(checkpoint.run_id(folder) or folder, (when, folder))
    return [folder for _, folder in sorted(runs.values(), key=lambda run: run[0], reverse=True)]


def _made_by(folder: Path, loaders: bool = False) -> set[str]:
    """The structures of what a run's graph records, or of the models that this is learned by."""
    graph = _graph_of(folder)
    nodes = [lineage.loader_above(graph, node) if loaders else node for node in lineage.runs(graph)]
    return {lineage.structure(graph, node) for node in nodes if node is not None}


def _graph_of(folder: Path) -> Mapping:
    """The graph that a run has on record; empty where it cannot be read: it is then no graph's own run."""
    try:
        return read_own(folder, WORKFLOW, logger.debug) or {}
    except Damaged:
        return {}


def _stands_at(folder: Path) -> int:
    """The iteration that a run would go on from."""
    run, saved = run_at(folder), checkpoint.complete(folder / CHECKPOINTS)
    return run.iteration if run is not None else int(saved[-1].name) if saved else 0


def prepare_update(model: FlowModel, graph: Mapping, node_id: str) -> None:
    """Checks, before an update, that it is for the run that sampled. An update that is not recorded can be undone afterwards."""
    if not here():
        return
    recorded, run = check(model, graph, node_id), run_of(model)
    stopping.request.recorded = recorded is not None
    if recorded is not None:
        _refuse_ended(recorded, graph, lineage.runs_below(graph, node_id)[0])
    elif run is not None and run.stands_at(model):
        run.save_once(model)


def sampling_key(graph: Mapping | None) -> str | None:
    """A text that changes when another adapter would sample under the graph's run names, although no input changed.

    A graph without Training Run takes the adapter as it is, and so the samples as they are: the last key stays.
    """
    if not here():
        return None
    graph = graph or comfyui.running_prompt()
    keys = [(str(key[0]), _lost[key]) for key in (_asked(graph, node) for node in lineage.runs(graph))]
    if keys:
        _last_key[:] = sorted(keys)
    return json.dumps(_last_key)


def let_go(run: Run) -> None:
    """The run ends here, and its model is free. The run is complete on disk, and can be resumed."""
    assert run.held.asked is not None  # every run on the canvas has it
    model = run.model()
    try:
        if model is not None and run.stands_at(model) and run.folder.is_dir():
            run.save_once(model)
    finally:
        _lost[run.held.asked] += 1
        close_run(run)


def forget() -> None:
    """Forgets all runs, like a new process."""
    _folders.clear()
    _lost.clear()
    _last_key.clear()


def _refuse_ended(run: Run, graph: Mapping, node: str) -> None:
    """Raises RunError for a run that a brake has ended, until the graph releases the brake."""
    brake = run.brake(vars(run.settings) | lineage.constants(graph[node]))
    if brake is not None:
        raise RunError(
            f"run {run.folder.name} was {run.told(brake)}. Nothing was trained. Fix: to go on from that adapter, set "
            f"{brake.input} to {verdicts.RELEASED[brake.input]} on Training Run, where it is {brake.value}; for a new run, "
            "change its run_name"
        )


def _open(model: FlowModel, asked: Asked, graph: Mapping, node: str) -> Run:
    """The run that is asked for: the one that `resume_run` names, the one that the graph has trained before, or a new one."""
    resumed = _begun_with(model).where.run
    own = asked[0] if resumed is not None and real(resumed) == asked[0] else _own(asked)
    held, put = (_hold_free(asked[0]), _as_new) if own is None else (_go_on(own), _as_left)
    held.node, held.asked = node, asked
    inputs = lineage.constants(graph[node])  # what comes by a link is not known yet
    try:
        run = Run(held, RunSettings.from_inputs(inputs), graph)
        iteration, total = put(model, run), inputs.get("iterations")
        run.mark("idle", total if isinstance(total, int) else None)  # from here on the folder is known as ours
        run.begin(iteration)
        run.owns(model)
    except BaseException:
        held.close()
        raise
    keep_open(run, model)
    _begun[model] = replace(_begun_with(model), iteration=None)
    for earlier in [key for key, path in _folders.items() if path == held.folder]:
        del _folders[earlier]  # such as that of a graph that failed before its first iteration
    _folders[asked] = held.folder
    run.apply_brake(model)  # of an evaluation after which its process was killed
    return run


def _go_on(folder: Path) -> Held:
    """The run of that folder, which this process lets go where it has it for another model: two must not train one run."""
    if (other := run_at(folder)) is not None:
        let_go(other)
    return hold(folder, resume=True, judge=judge, place=CANVAS)


def _as_left(model: FlowModel, run: Run) -> int:
    begun, saved = _begun_with(model), checkpoint.complete(run.folder / CHECKPOINTS)
    if _is_at_start(model) and begun.where.run is not None and real(begun.where.run) == run.folder:
        if begun.iteration and begun.iteration == int(saved[-1].name):
            return begun.iteration  # the loading node has put it there
    _freshen(model)
    iteration = checkpoint.restore(model, run.folder / CHECKPOINTS)
    if iteration < run.iteration:  # such as a model that is trained as a whole, and that ComfyUI has freed
        logger.warning("run %s goes back to iteration %d: later ones were not saved", run.folder.name, iteration)
    return iteration


def _freshen(model: FlowModel) -> None:
    """Makes the model fresh for what a run's checkpoint holds."""
    model.make_fresh()
    _begun[model] = replace(_begun_with(model), iteration=None)


def _as_new(model: FlowModel, run: Run) -> int:
    if not _is_at_start(model):
        start_over(model)
    return 0


def _hold_free(wanted: Path) -> Held:
    """The folder that was asked for, or the first of NAME-2, NAME-3 … in which a new run can begin."""
    for folder in _names(wanted):
        with contextlib.suppress(Claimed, Taken):
            held = hold(folder, resume=False, judge=judge, place=CANVAS)
            if folder != wanted:
                logger.warning(
                    "%s holds another run, so this one is %s. To continue the former, choose it as resume_run",
                    wanted,
                    folder.name,
                )
            return held
    raise AssertionError("there is always another number")


def _names(wanted: Path) -> Iterator[Path]:
    """Folders for a new run, in the order in which they are tried: not those of runs that are open here."""
    folders = (wanted.with_name(f"{wanted.name}-{number}") for number in itertools.count(2))
    return (folder for folder in itertools.chain([wanted], folders) if run_at(folder) is None)


def _undo_what_is_not_on_record(run: Run, model: FlowModel) -> None:
    """Takes back an update whose iteration was never recorded, such as that of a graph without Training Run."""
    if run.stands_at(model):
        return
    saved, name = checkpoint.complete(run.folder / CHECKPOINTS), run.folder.name
    if run.iteration and (not saved or int(saved[-1].name) != run.iteration):
        logger.warning(
            "run %s: its model had an update that no iteration records, and no checkpoint of iteration %d to go back to",
            name,
            run.iteration,
        )
        return
    logger.warning("run %s: an update that no iteration records is undone", name)
    if run.iteration:
        _freshen(model)
        checkpoint.restore(model, run.folder / CHECKPOINTS)
    else:
        start_over(model)
    run.owns(model)


def standing(model: FlowModel) -> str:
    """Which run the model's adapter belongs to, and as of which iteration, for a human."""
    if (run := run_of(model)) is None:
        return "the adapter as the last graph left it"
    if run.iteration:
        back = f", back at iteration {run.adapter_iteration}" if run.adapter_iteration != run.iteration else ""
        return f"{run.folder.name}, iteration {run.iteration}{back}"
    where = str(_begun_with(model).where)
    return f"new run {run.folder.name}" + (f", from {where}" if where else "")


def _run_node(graph: Mapping, node_id: str) -> str | None:
    runs = lineage.runs_below(graph, node_id)
    if len(runs) > 1:
        raise RunError(
            f"nodes {', '.join(runs)} are Training Runs of the same samples, and a run owns the model that it trains. Fix: keep "
            "one of them, or mute the others"
        )
    return runs[0] if runs else None


def _asked(graph: Mapping, node: str) -> Asked:
    """Asks for the run before anything is sampled: its name is a constant of the graph."""
    name = graph[node]["inputs"].get("run_name")
    if not isinstance(name, str):
        raise RunError(
            f"Training Run (node {node}), input run_name = {name!r}: a run's name has to be known before the first picture "
            "is made, so it cannot come through a link. Fix: type the name into Training Run"
        )
    try:
        return real(paths.run_folder(plain_name(name))), lineage.structure(graph, node)
    except ValueError as error:
        raise RunError(f"Training Run (node {node}), input run_name = {name!r} {error}") from error
