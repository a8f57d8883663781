"""One run: what it writes into its folder as it trains, and when. A line of metrics.jsonl is one iteration, counted from 1."""

from __future__ import annotations

import json
import logging
import os
import time
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from ...host import distributed, extras, files, stopping
from ...host.files import write_text
from .. import keys
from ..families.base import FlowModel
from ..pictures import artefacts, figures, grids, heatmaps
from ..policy import lora, saved
from ..rewards.base import Reward, RewardError, nothing_to_learn
from ..types import OFF, STOP, Advantages, Metrics, Report, RunSettings
from ..workflow import graph, lineage
from . import budget, checkpoint, evaluation, status, verdicts
from .best import BestAdapter
from .folder import BEST, CANVAS, CHECKPOINTS, EVALUATIONS, METRICS, WORKFLOW, RunError, writing
from .held import Held, hold, judge
from .trackers import Trackers

logger = logging.getLogger(__name__)

MOST_WITHOUT_SCORES = 3  # iterations in a row that a reward may leave without anything to learn from


class Run:
    """One run, of which this process trains a part or all, in a folder that it holds."""

    def __init__(self, held: Held, settings: RunSettings, workflow: Mapping):
        self.held, self.folder, self.settings, self.id = held, held.folder, settings, held.id
        self.writes = distributed.is_main()
        self._graphs = Graphs(held, workflow)
        self._lines = {METRICS: held.metrics, EVALUATIONS: held.evaluations}
        self._metrics: Metrics | None = None  # of the last iteration
        self._last: Advantages | None = None
        self._trained: tuple[weakref.ref[FlowModel], int] | None = None  # as of the last line on record
        self.evaluating = False
        self._saved: int | None = self.iteration
        self._bests = [self._best_adapter(0)]
        while files.present(self.folder / f"{BEST}-{len(self._bests) + 1}"):
            self._bests.append(self._best_adapter(len(self._bests)))
        self.meter = budget.Meter(self.folder if held.node is None else None)
        self._warned: set[str] = set()
        self._said_missing = False
        self.who: str | None = None  # trains what, for a human
        self._without_scores = 0  # iterations in a row in which no sample could be learned from
        self._trackers: Trackers | None = None
        self._shown = len(self.history)  # rows that the trackers have

    # --- what is on record ----------------------------------------------------------------------------------------------

    @property
    def history(self) -> list[dict]:
        """Rows of metrics.jsonl."""
        return self._lines[METRICS].rows

    @property
    def evaluations(self) -> list[dict]:
        """Rows of evaluation.jsonl."""
        return self._lines[EVALUATIONS].rows

    @property
    def changes(self) -> list[dict]:
        """Rows of changes.jsonl: which values of the graph were changed, and from which iteration on."""
        return self.held.changes.rows

    @property
    def best(self) -> Mapping | None:
        """Content of best/best.json."""
        return self._bests[0].kept

    @property
    def iteration(self) -> int:
        """Number of iterations on record."""
        return self.history[-1]["iteration"] if self.history else 0

    def owns(self, model: FlowModel) -> None:
        """The model stands where the last line on record does."""
        self._trained = weakref.ref(model), model.policy.version

    def model(self) -> FlowModel | None:
        """The one that it trains, if that is still there."""
        return self._trained[0]() if self._trained is not None else None

    def stands_at(self, model: FlowModel) -> bool:
        """Whether the model is as the last line on record left it."""
        return self._trained is not None and self._trained[0]() is model and self._trained[1] == model.policy.version

    def warnings(self) -> dict[str, str]:
        """The warnings about the run as it stands, by kind."""
        return verdicts.warnings(self.history, self.evaluations)

    def brake(self, settings: Mapping[str, object] | None = None) -> verdicts.Brake | None:
        """The brake that has ended the run here, and that its settings, or these, have not released."""
        if self.evaluations[-1:] and self.evaluations[-1]["iteration"] == self.iteration:
            return verdicts.brake_on_record(self.evaluations, settings or vars(self.settings))
        return None

    @property
    def reason(self) -> str | None:
        """Why a brake has ended the run here, for a human."""
        return self.told(brake) if (brake := self.brake()) else None

    def told(self, brake: verdicts.Brake) -> str:
        return f"stopped by a brake, {brake.input} = {brake.value}, after iteration {self.iteration}: {brake}"

    @property
    def adapter_iteration(self) -> int:
        """The iteration that the model is as of: the last one, or that to which a brake went back."""
        row: Mapping = self.evaluations[-1] if self.evaluations else {"iteration": None}
        kept = (row.get("brake") or {}).get("kept") if row["iteration"] == self.iteration else None
        return self.iteration if kept is None else kept

    def curves(self) -> np.ndarray:
        return figures.reward_curves(self.history, self.evaluations, [row["iteration"] for row in self.changes])

    def identity(self) -> dict[str, str]:
        """Whose an adapter is, as its file says. The id decides, as in `folder.wrote`: a name may come again, or change."""
        return {"otca_run": self.folder.name, "otca_run_id": self.id}

    def check_metric(self, rewards: Iterable[Reward]) -> None:
        """Raises RunError if a run with these rewards has no such best_metric, or nothing is evaluated."""
        try:
            verdicts.check_metric(vars(self.settings), (reward.name for reward in rewards if not reward.groups_only))
        except ValueError as error:
            raise RunError(str(error)) from error

    # --- beginning, and graphs that change ------------------------------------------------------------------------------

    @writing
    def begin(self, iteration: int = 0) -> None:
        """Writes down the workflow, and forgets what came after a checkpoint: a resumed run writes the same lines again.

        Iterations that the checkpoint has and metrics.jsonl lost are there by their number alone, so that curves show a gap.
        """
        rows = {row["iteration"]: row for row in self.history}
        lost = [number for number in range(1, iteration + 1) if number not in rows]
        if lost and self.writes:
            logger.warning(
                "%s has lost %d of the %d iterations until the checkpoint, the first of them %d: curves have a gap there",
                *(self.folder / METRICS, len(lost), iteration, lost[0]),
            )
        self._lines[METRICS].keep([rows.get(number, {"iteration": number}) for number in range(1, iteration + 1)])
        for kept in (self.evaluations, self.changes):
            kept[:] = [row for row in kept if row["iteration"] <= iteration]
        if iteration and self.held.graph:
            self._graphs.note_changes(self.held.graph, iteration + 1)
        if iteration and (others := checkpoint.others(self.folder / CHECKPOINTS, iteration)):
            self._graphs.note(others, iteration + 1)
            (logger.warning if self.writes else logger.debug)(
                "%s goes on otherwise than it was trained until iteration %d (%s): its figures may differ in their last "
                "digits from those that it would have had",
                *(self.folder, iteration),
                ", ".join(f"{other['input']} {other['before']} → {other['now']}" for other in others),
            )
        if iteration and self.settings.evaluate_every and not self._evaluated(0) and self.writes:
            logger.warning("%s has lost the evaluation before training, which is made again", self.folder / EVALUATIONS)
        self._trained, self._saved, self._graphs.done = None, iteration, iteration
        metrics = verdicts.kept_by(self.settings, (self.evaluations or [{}])[-1])
        for number, best in enumerate(self._bests):
            best.check_folder()  # before training: else the first good evaluation would end the run
            best.check_kept(metrics[number] if number < len(metrics) else "", self.evaluations)
        if self.writes:
            self._write_down()
            self._shown = len(self.history)
            self._open_trackers()  # before training: wandb may refuse

    def _write_down(self) -> None:
        self._graphs.write()
        for lines in (self._lines[EVALUATIONS], self.held.changes):
            lines.write()

    @writing
    def follow(self, prompt: Mapping, canvas: Mapping | None, report: Report) -> None:
        """On the canvas: the graph that made the report, which may have other values than that of the iteration before."""
        graphs = self._graphs
        before, canvas_before = graphs.workflow, graphs.canvas
        graphs.workflow, graphs.canvas = prompt, canvas
        graphs.done = self.iteration - (report.metrics is self._metrics)
        if not self.folder.is_dir():
            self.begin_again()
        elif (prompt, canvas) != (before, canvas_before):
            graphs.note_changes(before, self.iteration + 1)
            graphs.write()

    @writing
    def begin_again(self) -> None:
        """Makes a folder again that was removed: the model still has what it learned, and so has its record."""
        logger.warning("%s is gone, and is begun again with what is on record of its training", self.folder)
        self.close()
        self.held.make_again()
        self._write_down()
        self._lines[METRICS].write()
        self._bests, self._saved, self._shown = [self._best_adapter(0)], None, 0

    @writing
    def mark(self, state: str, total: int | None, error: str | None = None, **why: str | None) -> None:
        """Says in status.json how the run stands.

        `state`: running, idle, finished, stopped or failed.
        `total`: iterations in all.
        `why`: `node` and `reason`, as `Status` has them.
        """
        if self.writes:
            place = status.HEADLESS if self.held.node is None else status.CANVAS
            now = {"total": total, "place": place, "error": error, "id": self.id, "who": self.who, **why}
            self.held.status = status.following(self.held.status, state, os.getpid(), **now)
            status.write(self.folder, self.held.status)

    # --- iterations -----------------------------------------------------------------------------------------------------

    def record(
        self, model: FlowModel, report: Report, last: int, progress: evaluation.Progress = lambda calls: lambda: None
    ) -> None:
        """Logs one iteration; evaluates, plots and saves where an interval, or the last iteration, says so.

        The same report twice is one iteration: on the canvas only this node's settings were changed, or a stop or an error cut
        the first call off. Nothing is logged again then; what was cut off, an evaluation or a save, is done.

        `progress`: gives, for the number of an evaluation's model calls, what is called before each of them; that may raise to
            stop, which then leaves that evaluation out.
        """
        self.check_metric(report.advantages.scores.rewards)
        if report.metrics is not self._metrics:
            # First of all: the update has happened, and must be on record whatever stops or fails from here on.
            self._add_iteration(model, report)
        stopping.release()
        on_canvas, every = self.held.node is not None, self.settings.evaluate_every or self.settings.checkpoint_every
        if on_canvas and (self._save_due(last) or model.policy.is_adapted):
            # A canvas may end at any time, by a changed input, an emptied cache, a closed window: an adapter is saved at once.
            self.save_once(model)
        if self.settings.evaluate_every and not self._evaluated(0):
            with model.policy.reference():
                self.evaluate(model, report, 0, progress)
            if verdicts.brakes(self.settings):
                with model.policy.holding_reference():
                    self._keep_best(model, 0)
        self._show_lines()  # not sooner: steps go up
        if self._is_last(last) or self.meter.due(self.history, every, self.evaluations):
            self._evaluate_now(model, report, progress)
        # After the evaluation: else a run killed amid it would resume without.
        self.apply_brake(model)
        if not on_canvas and self._save_due(last):
            self.save_once(model)
        if self._without_scores >= MOST_WITHOUT_SCORES:
            why, fix = nothing_to_learn(report.advantages.scores) or ("", "")
            raise RewardError(
                f"{why} in the last {self._without_scores} iterations, so nothing was learned. Fix: {fix}; then resume by "
                "--resume, or by queueing again"
            )
        warnings = self.warnings()
        for kind in warnings.keys() - self._warned:
            logger.warning("iteration %d: %s", self.iteration, warnings[kind])
        self._warned = set(warnings)
        self.meter.restart()

    def spent(self) -> str | None:
        """Why the run should end here, if it has a budget, which evaluations may use up too."""
        return self.meter.spent(self.history, self.evaluations)

    def _is_last(self, last: int) -> bool:
        return self.iteration == last or self.spent() is not None

    def _save_due(self, last: int) -> bool:
        return self._is_last(last) or self.iteration % self.settings.checkpoint_every == 0

    def _add_iteration(self, model: FlowModel, report: Report) -> None:
        row = {"iteration": self.iteration + 1, **report.metrics, **model.forwards.take()}
        row |= self.meter.take(row["seconds/iteration"], model.device.type == "cpu")
        if report.advantages.scores.held_out_names:
            recent = [*self.history[-verdicts.WINDOW :], row]
            row[keys.HACKING] = float(verdicts.warning(recent, self.evaluations) is not None)
        self.append_line(METRICS, row)
        self._without_scores = self._without_scores + 1 if nothing_to_learn(report.advantages.scores) else 0
        self._metrics = report.metrics  # and not the report, whose trajectories must be free to go
        self.owns(model)
        # The scorers must be free to go, too.
        self._last = replace(report.advantages, scores=replace(report.advantages.scores, rewards=()))

    def _evaluate_now(self, model: FlowModel, report: Report, progress: evaluation.Progress) -> None:
        if not self.settings.evaluate_every:
            return self.plot()
        new = not self._evaluated(self.iteration)
        with model.policy.averaged():
            if new:
                self.evaluate(model, report, self.iteration, progress)
            self._keep_best(model, self.iteration)
        if new:
            self.plot()

    def _evaluated(self, iteration: int) -> bool:
        return any(row["iteration"] == iteration for row in self.evaluations)

    def evaluate(self, model: FlowModel, report: Report, iteration: int, progress: evaluation.Progress) -> None:
        """Evaluates the model as it stands, and writes down what that came to as an evaluation of that iteration."""
        began, prompts = time.monotonic(), evaluation.prompts(self.settings, self.evaluations, report)
        self.evaluating = iteration > 0  # the one before training can be made again
        row, images, captions = evaluation.evaluate(model, report, iteration, prompts, self.settings, progress)
        if self.settings.artefacts != OFF:
            row["artefacts"] = artefacts.figures(grids.stills(images), evaluation.grid_periods(model, images))
        noise = [row.get("noise") for row in (*self.evaluations[-1:], row)]
        if len(set(noise)) > 1:
            change = {"node": "Evaluation", "input": "noise by", "before": noise[0] or "seed", "now": noise[1]}
            self._graphs.note([change], iteration)
        row[budget.EVALUATED] = budget.slowest(time.monotonic() - began)
        if self.writes:  # before its line, after which a run that was killed makes nothing again
            self._show_evaluation(images, captions, row)
        self.append_line(EVALUATIONS, row)
        self.evaluating = False

    @writing
    def append_line(self, name: str, row: dict) -> None:
        self._lines[name].append(row)

    # --- what is shown --------------------------------------------------------------------------------------------------

    def _open_trackers(self) -> Trackers:
        """TensorBoard and wandb, as the settings have it now: on the canvas they may change."""
        project = self.settings.wandb_project
        if self._trackers is not None and self._trackers.project != project:
            self.close()
        if self._trackers is None:
            self._trackers = Trackers(self.folder, project, self._shown, graph.settings(self._graphs.workflow))
        return self._trackers

    @writing
    def _show_lines(self) -> None:
        """Gives the trackers the iterations that they do not have yet."""
        for row in self.history[self._shown :] if self.writes else ():
            values = {name: value for name, value in row.items() if name != "iteration"}
            self._open_trackers().write(row["iteration"], values)
            self._shown += 1

    @writing
    def _show_evaluation(self, images, captions: list[str], row: Mapping) -> None:
        figures = {**row["rewards"], **row.get("learned", {})}
        means = {keys.evaluation(name): values["mean"] for name, values in figures.items()}
        first = next((other for other in self.evaluations if other["iteration"] == 0), row)
        alike = verdicts.same_beginnings(first, row)
        evaluation.save_pictures(self.folder, images, captions, row["iteration"], alike)
        if artefact := verdicts.artefact(sorted([*self.evaluations, row], key=lambda row: row["iteration"])):
            evaluation.save_artefact(self.folder, images, captions, artefact)
        self._open_trackers().write(row["iteration"], means)

    @writing
    def plot(self) -> None:
        """Draws rewards.png and credit.png."""
        if not self.writes:
            return
        if missing := extras.wrong("Drawing rewards.png and credit.png", "plots", "matplotlib"):
            if not self._said_missing:
                logger.info("%s", missing)
            self._said_missing = True
            return
        grids.save(self.curves(), self.folder / "rewards.png")
        if self._last is not None:
            grids.save(heatmaps.credit_over_time(self.history, self._last), self.folder / "credit.png")

    @writing
    def close(self) -> None:
        if self._trackers is not None:
            self._trackers.close()
            self._trackers = None

    # --- what is saved --------------------------------------------------------------------------------------------------

    def save_once(self, model: FlowModel) -> None:
        """Saves, where this iteration is not saved yet."""
        if self._saved != self.iteration:
            self.save(model)

    @writing
    def save(self, model: FlowModel) -> None:
        """A checkpoint to resume from, and the adapter to use."""
        if self.writes:
            for name in (METRICS, EVALUATIONS):
                self._lines[name].restore()
                files.flush(self._lines[name].path)  # a checkpoint is of no use without the lines before it
        checkpoint.save(
            model, self.folder / CHECKPOINTS, self.iteration, self.settings.keep_checkpoints, self.identity()
        )
        self.save_weights(model)
        self._saved = self.iteration

    @writing
    def save_weights(self, model: FlowModel) -> None:
        """The adapter to use, or all weights where all were trained."""
        with model.policy.averaged():
            saved.save(model, self.folder, self._metadata())

    def _best_adapter(self, number: int) -> BestAdapter:
        return BestAdapter(self.folder, number, self.writes, logger.warning if self.writes else logger.debug)

    @writing
    def _keep_best(self, model: FlowModel, iteration: int) -> None:
        """Keeps the model as the last evaluation found it, if that is of this iteration, and the best one."""
        row = self.evaluations[-1]
        if row["iteration"] != iteration or "brake" in row:  # the model is another one by now
            return
        if self.settings.artefacts == STOP and verdicts.artefact(self.evaluations):
            return
        for number, metric in enumerate(verdicts.kept_by(self.settings, row)):
            if number == len(self._bests):
                self._bests.append(self._best_adapter(number))
            self._bests[number].keep(model, metric, self.evaluations, self._metadata(iteration))

    @writing
    def apply_brake(self, model: FlowModel) -> None:
        """Where the evaluation of this iteration asks for a brake: the model goes back to the best adapter, and the run ends.

        Each step may be made again, so that a run which was killed amid them comes to the same end. The last one is the line in
        evaluation.jsonl that says so.

        Raises:
            RunError: the best adapter cannot be read.
        """
        row: dict = self.evaluations[-1] if self.evaluations else {"iteration": None}
        due = verdicts.brake_due(self.evaluations, self.settings) if row["iteration"] == self.iteration else None
        if due is None:
            return
        best = next((best for best in self._bests if best.kept and best.kept["metric"] == due.metric), None)
        if best is not None and best.kept is not None:
            due = replace(due, kept=best.kept["iteration"])
            distributed.meet()  # the main process has written it by now
            self.save_once(model)  # what there is, if the best cannot be read
            model.policy.begin_from_here()
            try:
                saved.load(model, best.folder)
            except (ValueError, FileNotFoundError) as error:
                raise RunError(
                    f"{due.why}, and the best adapter cannot be read ({error}). Fix: put {best.folder} back and resume, or go on "
                    f"with {due.input} = {verdicts.RELEASED[due.input]} on Training Run"
                ) from error
            self.owns(model)
        row["brake"] = asdict(due)
        try:
            self.save(model)
        except BaseException:
            del row["brake"]
            raise
        if self.writes:
            self._lines[EVALUATIONS].write()
            logger.warning("%s", self.reason)

    def _metadata(self, iteration: int | None = None) -> dict[str, object]:
        identity = {
            "otca_iteration": str(self.adapter_iteration if iteration is None else iteration),
            **self.identity(),
        }
        return lora.workflow_metadata(self._graphs.workflow, self._graphs.canvas) | identity


def begin(model: FlowModel, folder: Path, workflow: Mapping) -> Run:
    """Begins a run of a graph that no training loop runs. Raises as `hold` does."""
    run = Run(hold(folder, resume=False, judge=judge), RunSettings(), workflow)
    run.begin()
    keep_open(run, model)
    return run


class Graphs:
    """workflow.json, canvas.json and changes.jsonl.

    Attributes:
        workflow: the graph of the last iteration, in API form.
        canvas: the same as ComfyUI's canvas has it; None where that is not known.
        done: iterations before the one that `workflow` is the graph of.
    """

    def __init__(self, held: Held, workflow: Mapping):
        self.held, self.workflow, self.canvas = held, workflow, held.canvas
        self.done = 0

    def write(self) -> None:
        """Writes down the graph as the run began with it."""
        # On the canvas the seeds have moved on with every prompt; the training loop adds the number of the iteration to them.
        begun = lineage.as_begun(self.workflow, self.done) if self.held.node is not None else self.workflow
        write_text(self.held.folder / WORKFLOW, json.dumps(graph.resumable(begun), indent=1))
        if self.canvas is not None:
            write_text(self.held.folder / CANVAS, json.dumps(self.canvas, indent=1))

    def note_changes(self, before: Mapping, iteration: int) -> None:
        """Values that differ from those of the graph before are an event of the run; `iteration` is the first that has them."""
        if changes := lineage.changes(before, self.workflow, self.held.node):
            self.note(changes, iteration)

    def note(self, changes: list[dict], iteration: int) -> None:
        """Writes changes down, in the form of `lineage.changes`; `iteration` is the first that has them."""
        lines = "; ".join(map(lineage.change_line, changes))
        logger.info("%s, from iteration %d on: %s", self.held.folder.name, iteration, lines)
        rows = self.held.changes.rows
        if rows and rows[-1]["iteration"] == iteration:
            changes = rows.pop()["changes"] + changes
        rows.append({"iteration": iteration, "changes": changes})
        if self.held.changes.writes and self.held.folder.is_dir():
            self.held.changes.write()


# --- the runs of this process -------------------------------------------------------------------------------------------

open_runs: dict[Path, Run] = {}
_trained: weakref.WeakKeyDictionary[FlowModel, Run] = weakref.WeakKeyDictionary()


def keep_open(run: Run, model: FlowModel) -> None:
    """From now on that run records what the model learns; a model itself does not know."""
    open_runs[files.real(run.folder)] = _trained[model] = run


def run_at(folder: Path) -> Run | None:
    """The run of that folder, if it is open in this process."""
    return open_runs.get(files.real(folder))


def run_of(model: FlowModel) -> Run | None:
    """The run that records what the model learns."""
    return _trained.get(model)


def close_run(run: Run) -> None:
    """The run ends in this process, and any other process may resume it."""
    open_runs.pop(files.real(run.folder), None)
    if (model := run.model()) is not None and _trained.get(model) is run:
        del _trained[model]
    run.close()
    run.held.close()
