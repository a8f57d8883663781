"""A run's folder: metrics, curves, heatmaps, evaluations on fixed prompts and seeds, checkpoints and the adapter."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import os
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...host import claim, comfyui, distributed, files
from ...host.files import flush, write_text
from ...host.machine import alive
from .. import rollout
from ..flow import lora
from ..flow import saved as weights
from ..pictures import curves, grids, heatmaps
from ..rewards.base import RewardError, failing, score
from ..types import RunSettings
from ..workflow import graph, lineage
from . import best, checkpoint, hacking, layout
from .layout import (
    BEST,
    BEST_FIGURES,
    CANVAS,
    CHANGES,
    CHECKPOINTS,
    EVALUATIONS,
    FOLDERS,
    METRICS,
    SAMPLES,
    STATUS,
    WORKFLOW,
    WRITTEN,
)
from .trackers import Figures

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from ..flow.base import FlowModel
    from ..types import Advantages, Metrics, Report

logger = logging.getLogger(__name__)

MOST_WITHOUT_SCORES = 3  # iterations in a row that a reward may leave without anything to learn from
EVALUATION_SEED = 1_000_000  # far from the small numbers that people train with


class RunError(RuntimeError):
    """A run folder that cannot be used, with the fix."""


def report(update: Mapping[str, float], trajectories, advantages) -> Report:
    """Gathers one iteration's figures from the values that took part in it."""
    from ..types import Report

    scores = advantages.scores
    metrics: dict[str, float] = {}
    for prefix, names, values in (
        ("reward", scores.names, scores.values),
        ("held_out", scores.held_out_names, scores.held_out),
    ):
        for k, name in enumerate(names):
            column = values[:, k][values[:, k].isfinite()]
            metrics[f"{prefix}/{name}/mean"] = column.mean().item()
            metrics[f"{prefix}/{name}/std"] = column.std().item() if len(column) > 1 else 0.0
    metrics |= {**advantages.metrics, **update}
    metrics["seconds/rollout"] = trajectories.seconds
    metrics["seconds/reward"] = sum(scores.seconds.values()) if scores.waited is None else scores.waited
    metrics |= {f"seconds/reward/{name}": seconds for name, seconds in scores.seconds.items()}
    metrics["seconds/credit"] = advantages.credit.seconds + advantages.seconds
    phases = ("rollout", "reward", "credit", "update")
    metrics["seconds/iteration"] = sum(metrics[f"seconds/{phase}"] for phase in phases)
    metrics["samples_per_second"] = trajectories.share.total / metrics["seconds/iteration"]
    return Report(metrics, advantages, trajectories)


def _writing(method: Callable) -> Callable:
    """Has a method of Run say where and what to do, where the disk does not take what it writes."""

    @functools.wraps(method)
    def wrapped(self, *args, **kwargs):
        try:
            return method(self, *args, **kwargs)
        except files.NotOurs as error:
            raise RunError(str(error)) from error
        except OSError as error:
            raise RunError(
                f"{error.filename or self.folder} could not be written ({error.strerror or error}); the last checkpoint stays. "
                "Fix: free space there or make it writable, then go on by --resume, or on the canvas by queueing again"
            ) from error

    return wrapped


class Run:
    """One run's folder. Every line of metrics.jsonl is one iteration, counted from 1.

    `workflow` is the graph in API form, `canvas` the same as ComfyUI's canvas has it, where it is known.
    """

    def __init__(self, folder: Path, settings: RunSettings, workflow: Mapping):
        self.folder, self.settings, self.workflow = folder, settings, workflow
        self.writes = distributed.is_main()
        say = logger.warning if self.writes else logger.debug  # once, and not by every process
        self.canvas = layout.read_own(folder, CANVAS, say)
        if self.writes:
            _check_writable(folder)
        self.history = layout.read_lines(folder / METRICS, say=say)
        self.evaluations = layout.read_lines(folder / EVALUATIONS, say=say)
        self._metrics: Metrics | None = None
        self._done = 0  # iterations before the one that `workflow` is the graph of
        self._last: Advantages | None = None
        self._trained: tuple[weakref.ref[FlowModel], int] | None = None  # as of the last line on record
        self._saved: int | None = self.iteration
        # Of the adapter that is kept in best/.
        self.best: Mapping | None = layout.read_own(folder, f"{BEST}/{BEST_FIGURES}", say)
        self._left: dict[str, tuple[int, int]] = {}  # {name: which file and how long it was when we last wrote it}
        self._warned = False
        self._without_scores = 0  # iterations in a row in which no sample had all its scores, since a reward failed
        self._figures: Figures | None = None
        self._shown = len(self.history)  # rows that have gone to `_figures`
        self.id = _known_id(folder) or uuid.uuid4().hex
        self.claim: claim.Claim | None = None  # of the process that writes
        self.node: str | None = None  # on the canvas, where a graph may have several: the id of its Training Run
        self.asked: tuple[Path, str] | None = None  # on the canvas: the folder and the structure that a graph asked for
        self.changes = layout.read_changes(folder, say)

    @classmethod
    def of_canvas(cls, folder: Path, asked: tuple[Path, str], prompt: Mapping, node: str) -> Run:
        """The run that a prompt asks for, with the settings of its Training Run, which is `node`, as far as they are no links.

        Raises:
            Claimed: another process trains in that folder.
        """
        own = claim.take(folder, say=logger.warning, place="canvas")
        try:
            files.put_back(folder / BEST)
            names, given = RunSettings.__dataclass_fields__, lineage.constants(prompt[node])
            run = cls(folder, RunSettings(**{name: value for name, value in given.items() if name in names}), prompt)
        except BaseException:  # the folder is nobody's, if it cannot be this run's
            own.release()
            raise
        run.asked, run.claim, run.node = asked, own, node
        return run

    def check_claim(self) -> None:
        """Raises RunError where the folder is another's by now, as after it was removed and a training begun in its place."""
        if self.claim is None or not self.folder.is_dir() or self.claim.stands():
            return
        raise RunError(
            f"{self.folder} is not this run's any more: it was removed or taken over, and what is there now is another's. "
            "Nothing was written. Fix: on the canvas press New run; headlessly choose another --output"
        )

    def owns(self, model: FlowModel) -> None:
        """The model stands where the last line on record does."""
        self._trained = weakref.ref(model), model.version

    @property
    def iteration(self) -> int:
        """Number of iterations on record."""
        return self.history[-1]["iteration"] if self.history else 0

    @_writing
    def begin(self, iteration: int = 0) -> None:
        """Writes down the workflow, and forgets what came after a checkpoint: a resumed run writes the same lines again.

        Iterations that the checkpoint has and metrics.jsonl lost are there by their number alone, so that curves show a gap.
        """
        known = {row["iteration"]: row for row in self.history}
        lost = [number for number in range(1, iteration + 1) if number not in known]
        if lost and self.writes:
            told = "%s has lost %d of the %d iterations until the checkpoint, the first of them %d: curves have a gap there"
            logger.warning(told, self.folder / METRICS, len(lost), iteration, lost[0])
        self.history = [known.get(number, {"iteration": number}) for number in range(1, iteration + 1)]
        self.evaluations = [row for row in self.evaluations if row["iteration"] <= iteration]
        self.changes = [row for row in self.changes if row["iteration"] <= iteration]
        if iteration and (before := layout.read_own(self.folder, WORKFLOW)):
            self._note_changes(before, self.workflow)
        if iteration and not self._evaluated(0) and self.writes:
            logger.warning("%s has lost the evaluation before training, which is made again", self.folder / EVALUATIONS)
        self._trained, self._saved, self._done = None, iteration, iteration
        if self.writes:
            self._own_best()  # before training: else the first good evaluation would end the run
        self._check_best()
        if self.writes:
            self._write_down()
            self._shown = len(self.history)
            self.figures()  # before training: wandb may refuse

    def _write_down(self) -> None:
        self._write_graph()
        for name, rows in ((METRICS, self.history), (EVALUATIONS, self.evaluations), (CHANGES, self.changes)):
            self._write_lines(name, rows)

    def _write_graph(self) -> None:
        """The graph as the run began with it."""
        # On the canvas the seeds have moved on with every prompt; the training loop adds the number of the iteration to them.
        begun = lineage.as_begun(self.workflow, self._done) if comfyui.in_comfyui() else self.workflow
        write_text(self.folder / WORKFLOW, json.dumps(graph.resumable(begun), indent=1))
        if self.canvas is not None:
            write_text(self.folder / CANVAS, json.dumps(self.canvas, indent=1))

    @_writing
    def follow(self, prompt: Mapping, canvas: Mapping | None, report: Report) -> None:
        """On the canvas: the graph that made the report, which may have other values than that of the iteration before."""
        before, seen = self.workflow, self.canvas
        self.workflow, self.canvas = prompt, canvas
        self._done = self.iteration - (report.metrics is self._metrics)
        if not self.folder.is_dir():
            self.begin_anew()
        elif (prompt, canvas) != (before, seen):
            self._note_changes(before, prompt)
            self._write_graph()

    def _note_changes(self, before: Mapping, now: Mapping) -> None:
        """Values that were changed are an event of the run: the next iteration is the first that has them."""
        found = lineage.changes(before, now, self.node)
        if not found:
            return
        row = {"iteration": self.iteration + 1, "changes": found}
        logger.info(
            "%s, from iteration %d on: %s",
            self.folder.name,
            row["iteration"],
            "; ".join(map(lineage.change_line, found)),
        )
        if self.changes and self.changes[-1]["iteration"] == row["iteration"]:
            row["changes"] = self.changes.pop()["changes"] + found
        self.changes.append(row)
        if self.writes and self.folder.is_dir():
            self._write_lines(CHANGES, self.changes)

    @_writing
    def begin_anew(self) -> None:
        """In place of a folder that somebody has removed: the model still has what it learned, and so has its record."""
        logger.warning("%s is gone, and is begun anew with what is on record of its training", self.folder)
        self.close()
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.claim is not None:
            self.claim = claim.take(self.folder, say=logger.warning, place="canvas")
        self._write_down()
        self.best, self._saved, self._shown = None, None, 0

    def figures(self) -> Figures:
        """TensorBoard and wandb, as the settings have it now: on the canvas they may change."""
        project = self.settings.wandb_project
        if self._figures is not None and self._figures.project != project:
            self.close()
        if self._figures is None:
            self._figures = Figures(self.folder, project, self._shown, graph.settings(self.workflow))
        return self._figures

    @_writing
    def mark(self, status: str, total: int | None, error: str | None = None, reason: str | None = None) -> None:
        """Says in status.json how the run stands: running, finished, stopped or failed; by which process, and of how many.

        A reader finds out by the process whether "running" is still true. `reason` is why it ended before its last iteration,
        or should.
        """
        if not self.writes:
            return
        import psutil

        process = psutil.Process()
        content = {"status": status, "place": "canvas" if comfyui.in_comfyui() else "headless", "total": total}
        content |= {"pid": process.pid, "process_started": process.create_time(), "error": error}
        content["reason"] = reason
        content["started"] = (layout.read_own(self.folder, STATUS) or {}).get("started") or time.time()
        content["id"] = self.id
        write_text(self.folder / STATUS, json.dumps(content, indent=1))

    def record(self, model: FlowModel, report: Report, last: int, on_step: Callable[[], None] = lambda: None) -> None:
        """Logs one iteration; evaluates, plots and saves where an interval, or the last iteration, says so.

        A report that comes again is no new iteration: on the canvas only this node's own settings were changed, or a stop or
        an error kept it from ending.

        Args:
            on_step: called before every model call of an evaluation; may raise to stop, which then leaves that one out.
        """
        self.check_metric((*report.advantages.scores.names, *report.advantages.scores.held_out_names))
        if report.metrics is not self._metrics:
            # First of all: the update has happened, and must be on record whatever stops or fails from here on.
            row = {"iteration": self.iteration + 1, **report.metrics, **model.take_forwards()}
            if report.advantages.scores.held_out_names:
                recent = [*self.history[-hacking.WINDOW :], row]
                row["warning/reward_hacking"] = float(hacking.warning(recent, self.evaluations) is not None)
            self._append(METRICS, self.history, row)
            failed = failing(report.advantages.scores)
            if failed is not None:  # else all were left out on purpose, which says nothing
                self._without_scores = self._without_scores + 1 if failed else 0
            self._metrics = report.metrics  # and not the report, whose trajectories must be free to go
            self._trained = weakref.ref(model), model.version
            scores = replace(report.advantages.scores, rewards=())  # the scorers must be free to go
            self._last = replace(report.advantages, scores=scores)
        # What an earlier call was kept from doing is made up for.
        final = self.iteration == last
        on_canvas = comfyui.in_comfyui()
        save_due = final or self.iteration % self.settings.checkpoint_every == 0
        if on_canvas and (save_due or model.is_adapted):
            # A canvas may end at any time, by a changed input, an emptied cache, a closed window: an adapter is saved at once.
            self.save_once(model)
        if not self._evaluated(0):
            with model.reference():
                self.evaluate(model, report, 0, on_step)
        self._show_lines()  # not sooner: steps go up
        if final or self.iteration % self.settings.evaluate_every == 0:
            new = not self._evaluated(self.iteration)
            with model.averaged():
                if new:
                    self.evaluate(model, report, self.iteration, on_step)
                self._keep_best(model)
            if new:
                self.plot()
                if on_canvas and (told := self.early_stop()):
                    logger.warning("iteration %d: %s", self.iteration, told)
        # After the evaluation: else a run killed amid it would resume without.
        if not on_canvas and (save_due or self.early_stop()):
            self.save_once(model)
        if self._without_scores >= MOST_WITHOUT_SCORES:
            raise self._nothing_learned(failing(report.advantages.scores) or ())
        told = self.warning()
        if told and not self._warned:
            logger.warning("iteration %d: %s", self.iteration, told)
        self._warned = told is not None

    def _nothing_learned(self, rewards: Iterable[str]) -> RewardError:
        names = " and ".join(map(repr, rewards))
        return RewardError(
            f"reward {names} gave no score for any sample in the last {self._without_scores} iterations, so nothing was learned. "
            "Fix: mend it, or let it say None for what it does not apply to; then go on by --resume, or by queueing again"
        )

    def warning(self) -> str | None:
        """What a human should know of the run as it stands."""
        return hacking.warning(self.history, self.evaluations)

    def early_stop(self) -> str | None:
        """Why the run should end here, if its settings say so."""
        return best.early_stop(self.evaluations, self.settings.stop_after_decline)

    def check_metric(self, rewards: Iterable[str]) -> None:
        """Raises RunError where best_metric is none of a run with these rewards."""
        try:
            if self.settings.best_metric:
                best.check(self.settings.best_metric, rewards)
        except ValueError as error:
            raise RunError(str(error)) from error

    def _own_best(self) -> None:
        """Raises NotOurs where best/ is something else; one that lost its marker when it was copied gets it back."""
        folder = self.folder / BEST
        if not files.present(folder) or files.is_own(folder):
            return
        if folder.is_symlink() or self.best is None:
            raise files.NotOurs(f"{folder} was not made by a training. Fix: move it elsewhere, and resume")
        files.mark_own(folder)

    def _check_best(self) -> None:
        """Lets go of a best adapter that is not of this run as it is now: of later iterations, or by another metric."""
        if self.best is None:
            return
        wanted = self.settings.best_metric or self.best["metric"]
        if self.best["metric"] == wanted and best.on_record(self.evaluations, self.best):
            return
        if self.writes:
            other = f"best_metric is {wanted} now"
            reason = other if self.best["metric"] != wanted else f"{EVALUATIONS} has no such evaluation"
            told = "%s is deleted, with the best by %s, %.4g at iteration %d: %s"
            figures = (self.best[name] for name in ("metric", "value", "iteration"))
            logger.warning(told, self.folder / BEST, *figures, reason)
            files.remove_own(self.folder / BEST)
        self.best = None

    @_writing
    def _keep_best(self, model: FlowModel) -> None:
        """Saves the adapter as it was just evaluated, if the one that is kept is not as good."""
        if not self.settings.best_metric:
            return
        figures = best.figures(self.evaluations, self.settings.best_metric)
        if figures is None:
            logger.warning("%s could not be told, so this one is not kept as the best", self.settings.best_metric)
            return
        if not best.better(self.evaluations, figures, self.best):
            return
        # A sharded model is put together by all processes, and written by one.
        with (
            files.new_folder(self.folder / BEST) if self.writes else contextlib.nullcontext(self.folder / BEST) as aside
        ):
            weights.save(model, aside, self._metadata())
            if self.writes:
                (aside / BEST_FIGURES).write_text(json.dumps(figures, indent=1), encoding="utf-8")
        self.best = figures

    def _metadata(self) -> dict[str, object]:
        own = {"otca_iteration": str(self.iteration), **self.identity()}
        return lora.workflow_metadata(self.workflow, self.canvas) | own

    def identity(self) -> dict[str, str]:
        """Whose an adapter is, as its file says: the name may come again, in another folder or after this one was removed."""
        return {"otca_run": self.folder.name, "otca_run_id": self.id}

    def model(self) -> FlowModel | None:
        """The one that it trains, if that is still there."""
        return self._trained[0]() if self._trained is not None else None

    def stands_at(self, model: FlowModel) -> bool:
        """Whether the model is as the last line on record left it."""
        return self._trained is not None and self._trained[0]() is model and self._trained[1] == model.version

    def _evaluated(self, iteration: int) -> bool:
        return any(row["iteration"] == iteration for row in self.evaluations)

    def save_once(self, model: FlowModel) -> None:
        if self._saved != self.iteration:
            self.save(model)

    def evaluate(self, model: FlowModel, report: Report, iteration: int, on_step: Callable[[], None]) -> None:
        """Samples the fixed prompts and seeds with the deterministic sampler and scores them by every reward."""
        texts = [line.strip() for line in self.settings.evaluation_prompts.splitlines() if line.strip()]
        # With none given those of the first evaluation stay, so that the points of one curve are comparable.
        earlier = self.evaluations[0].get("prompts", []) if self.evaluations else []
        texts = texts or earlier or list(report.trajectories.prompts)
        seeds = [EVALUATION_SEED + number for number in range(self.settings.evaluation_seeds)]
        pairs = [(text, seed) for seed in seeds for text in texts]
        rows = distributed.rows(len(pairs))
        own = [pairs[row] for row in rows]
        most = -(-len(pairs) // distributed.world())
        own += pairs[:1] * (most - len(own))  # who has fewer keeps pace with the others
        settings = report.trajectories.settings
        settings = replace(settings, steps=self.settings.evaluation_steps or settings.steps)
        with model.uncounted():
            images = rollout.generate(model, [text for text, _ in own], settings, [seed for _, seed in own], on_step)
        rewards = report.advantages.scores.rewards
        values = distributed.whole(score(rewards, images, [text for text, _ in own])[: len(rows)])
        images, captions = distributed.whole(images[: len(rows)]), [text for text, _ in pairs]
        row = {"iteration": iteration, "prompts": texts, "rewards": {}}
        for k, reward in enumerate(rewards):
            column = values[:, k][values[:, k].isfinite()]
            spread = column.std().item() if len(column) > 1 else 0.0
            row["rewards"][reward.name] = {
                "mean": column.mean().item(),
                "std": spread,
                "standard_error": spread / max(1, len(column)) ** 0.5,
                "held_out": reward.held_out,
                "values": values[:, k].tolist(),
            }
        self._append(EVALUATIONS, self.evaluations, row)
        if self.writes:
            self._show_evaluation(images, captions, row)

    @_writing
    def _show_lines(self) -> None:
        """Figures of the iterations that have not been shown yet."""
        if self.writes:
            for row in self.history[self._shown :]:
                self.figures().write(
                    row["iteration"], {name: value for name, value in row.items() if name != "iteration"}
                )
                self._shown += 1

    @_writing
    def _show_evaluation(self, images: Tensor, captions: list[str], row: Mapping) -> None:
        """Pictures and figures."""
        iteration, stills = row["iteration"], grids.stills(images)
        self._before_after(stills, captions, iteration)
        means = {f"evaluation/{name}": figures["mean"] for name, figures in row["rewards"].items()}
        self.figures().write(iteration, means)
        place = self.folder / SAMPLES / f"{iteration:06d}"
        grids.save(grids.sample_grid(stills[:32], captions[:32]), place.with_suffix(".png"))
        if images.ndim == 5:
            grids.save_video(images[:32], captions[:32], place.with_suffix(".mp4"))

    def curves(self) -> np.ndarray:
        return curves.reward_curves(self.history, self.evaluations, [row["iteration"] for row in self.changes])

    @_writing
    def plot(self) -> None:
        """Draws rewards.png and credit.png anew."""
        if not self.writes:
            return
        grids.save(self.curves(), self.folder / "rewards.png")
        if self._last is not None:
            grids.save(heatmaps.credit_over_time(self.history, self._last), self.folder / "credit.png")

    @_writing
    def save(self, model: FlowModel) -> None:
        """A checkpoint to resume from, and the adapter to use."""
        if self.writes:
            for name, rows in ((METRICS, self.history), (EVALUATIONS, self.evaluations)):
                flush(self._whole(name, rows))  # a checkpoint is of no use without the lines before it
        keep, own = self.settings.keep_checkpoints, self.identity()
        checkpoint.save(model, self.folder / CHECKPOINTS, self.iteration, keep, own)
        self.save_weights(model)
        self._saved = self.iteration

    @_writing
    def save_weights(self, model: FlowModel) -> None:
        """The adapter to use, or all weights where all were trained."""
        with model.averaged():
            weights.save(model, self.folder, self._metadata())

    @_writing
    def close(self) -> None:
        if self._figures is not None:
            self._figures.close()
            self._figures = None

    @_writing
    def _append(self, name: str, rows: list[dict], row: dict) -> None:
        """Adds a row to those in memory and on disk: to both, or where that fails to neither."""
        if rows and row["iteration"] <= rows[-1]["iteration"]:  # the evaluation before training, where that was lost
            later = [*rows, row]
            later.sort(key=lambda other: other["iteration"])
            if self.writes:
                self._write_lines(name, later)
            rows[:] = later
            return
        if self.writes:
            line = json_line(row).encode()
            # Without a buffer, which would write the rest of a line when the file is closed.
            place = files.open_plain(self._whole(name, rows), os.O_WRONLY | os.O_APPEND)
            with open(place, "ab", buffering=0) as file:
                end = file.seek(0, os.SEEK_END)
                try:
                    while line:
                        line = line[file.write(line) :]
                except OSError:
                    file.truncate(end)
                    raise
                self._left[name] = _which(os.fstat(place))
        rows.append(row)

    def _whole(self, name: str, rows: list[dict]) -> Path:
        """The file of these rows, written anew where somebody has removed it or changed it."""
        path = self.folder / name
        try:
            found = _which(os.lstat(path))
        except FileNotFoundError:
            found = None
        if found is None or found != self._left.get(name):
            what = "gone" if found is None else "not as this run left it: somebody has cut, prolonged or exchanged it"
            logger.warning("%s is %s, and is written anew from memory", path, what)
            self._write_lines(name, rows)
        return path

    def _write_lines(self, name: str, rows: Iterable[Mapping]) -> None:
        write_text(self.folder / name, "".join(map(json_line, rows)))
        self._left[name] = _which(os.lstat(self.folder / name))

    def _before_after(self, images: Tensor, captions: list[str], iteration: int) -> None:
        first = self.folder / SAMPLES / "before.safetensors"
        if iteration == 0:
            first.parent.mkdir(exist_ok=True)
            lora.write_tensors(first, {"images": (images * 255).round().byte()})
        elif files.present(first) and (before := _pictures(first, images)) is not None:
            grids.save(grids.before_after(before.float() / 255, images, captions), self.folder / "samples.png")


def _which(state: os.stat_result) -> tuple[int, int]:
    return state.st_ino, state.st_size


def _pictures(path: Path, like: Tensor) -> Tensor | None:
    """Those of before training; None where they are of another number or size, or the file is damaged, which is said."""
    try:
        os.close(files.open_plain(path))  # and no pipe, which would be waited for
        before = lora.read_tensors(path).get("images")
        if before is None or before.ndim != like.ndim or before.is_floating_point():
            raise ValueError(f"{path} holds no pictures")
    except (ValueError, OSError) as error:
        logger.warning("%s: samples.png, which shows before and after, stays as it is", error)
        return None
    return before if before.shape == like.shape else None


def _known_id(folder: Path) -> str | None:
    """Of the run in that folder, as its status or else its last checkpoint says: whoever starts a trainer writes a status too."""
    if own := (layout.read_own(folder, STATUS, logger.debug) or {}).get("id"):
        return own
    return next(filter(None, map(checkpoint.run_id, reversed(checkpoint.complete(folder / CHECKPOINTS)))), None)


def _check_writable(folder: Path) -> None:
    for name in FOLDERS:  # as in a run that came in an archive
        if os.path.islink(folder / name):
            raise RunError(
                f"{folder / name} is a link, and what is written there would lie elsewhere. Fix: put a folder in its place"
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / ".writable", "")
        (folder / ".writable").unlink()
    except OSError as error:
        raise RunError(
            f"the run folder {folder} cannot be written ({error}). Fix: choose another --output or free the disk"
        ) from error


_open: dict[Path, Run] = {}


def open_run(folder: Path, settings: RunSettings, workflow: Mapping, *, resume: bool = False) -> Run:
    """The run of that folder in this process, opened at the first call; later calls may change its intervals.

    Headlessly: the folder is the one that the user named, and never another. `resume`: the training loop begins it.

    Raises:
        RunError: the folder holds another run.
    """
    asked = folder.resolve()
    if asked not in _open:
        if not resume and taken(folder):
            raise RunError(f"{folder} already holds a run. Fix: resume it, or choose another folder")
        keep_open(Run(folder, settings, workflow))
        if not resume:
            _open[asked].begin()
    _open[asked].settings = settings
    return _open[asked]


def keep_open(run: Run) -> None:
    _open[run.folder.resolve()] = run


def run_at(folder: Path) -> Run | None:
    """The run of that folder, if it is open in this process."""
    return _open.get(folder.resolve())


def close_run(run: Run) -> None:
    """Whoever wants to may go on with it."""
    _open.pop(run.folder.resolve(), None)
    run.close()
    if run.claim is not None:
        run.claim.release()


def taken(folder: Path) -> bool:
    """Whether a run is on record there, somebody else's files are, or another process is about to begin one."""
    return on_record(folder) or bool(in_the_way(folder)) or queued(folder) or held(folder)


def on_record(folder: Path) -> bool:
    """Whether a run has iterations there."""
    try:
        metrics = os.lstat(folder / METRICS).st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        metrics = False
    return metrics or bool(checkpoint.complete(folder / CHECKPOINTS))


def in_the_way(folder: Path) -> list[str]:
    """What a new run would write over; nothing where one of ours was begun or prepared, which its status.json says."""
    found = [name for name in WRITTEN if files.present(folder / name)]
    return found if found and layout.read_own(folder, STATUS, logger.debug) is None else []


def queued(folder: Path) -> bool:
    """Whether the folder waits in the queue of a ComfyUI that is there, for a training to begin in it."""
    status = layout.read_own(folder, STATUS, logger.debug) or {}
    return status.get("status") == "queued" and alive(status.get("pid"), status.get("process_started"))


def held(folder: Path) -> bool:
    """Whether another process trains there, or may."""
    try:
        claim.check(folder)
    except claim.Claimed:
        return True
    return False


def json_line(row: Mapping) -> str:
    """One line of strict JSON, which has no NaN: what could not be measured is null."""
    return json.dumps(_without_nan(row), allow_nan=False) + "\n"


def _without_nan(value):
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
