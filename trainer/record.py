"""A run's folder: metrics, curves, heatmaps, evaluations on fixed prompts and seeds, checkpoints and the adapter."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from . import best, checkpoint, claim, distributed, files, graph, hacking, host, lora, plots, rollout, weights
from .figures import Figures
from .layout import (
    BEST,
    BEST_FIGURES,
    CANVAS,
    CHECKPOINTS,
    EVALUATIONS,
    METRICS,
    SAMPLES,
    STATUS,
    WORKFLOW,
    flush,
    write_text,
)
from .rewards.base import score

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from .flow.base import FlowModel
    from .types import Advantages, Metrics, Report

logger = logging.getLogger(__name__)

EVALUATION_SEED = 1_000_000  # far from the small numbers that people train with


class RunError(RuntimeError):
    """A run folder that cannot be used, with the fix."""


@dataclass(frozen=True)
class RunSettings:
    """Intervals in iterations; evaluation prompts one a line, empty for those of the first iteration."""

    checkpoint_every: int
    evaluate_every: int
    evaluation_prompts: str = ""
    evaluation_seeds: int = 1
    evaluation_steps: int = 0  # 0: as many as the sampler trains with
    keep_checkpoints: int = checkpoint.KEEP
    best_metric: str = ""  # of evaluations; empty: none is kept as the best
    stop_after_decline: int = 0  # evaluations in a row; 0: never
    wandb_project: str = ""  # empty: none


def report(update: Mapping[str, float], trajectories, advantages) -> Report:
    """Gathers one iteration's figures from the values that took part in it."""
    from .types import Report

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
        self.canvas = files.read_own(folder, CANVAS, say)
        if self.writes:
            _check_writable(folder)
        self.history = files.read_lines(folder / METRICS, say=say)
        self.evaluations = files.read_lines(folder / EVALUATIONS, say=say)
        self._metrics: Metrics | None = None
        self._last: Advantages | None = None
        self._trained: tuple[weakref.ref[FlowModel], int] | None = None  # as of the last line on record
        self._saved: int | None = self.iteration
        # Of the adapter that is kept in best/.
        self.best: Mapping | None = files.read_own(folder, f"{BEST}/{BEST_FIGURES}", say)
        self._left: dict[str, tuple[int, int]] = {}  # {name: which file and how long it was when we last wrote it}
        self._warned = False
        self._figures: Figures | None = None
        self._shown = len(self.history)  # rows that have gone to `_figures`

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
        if iteration and not self._evaluated(0) and self.writes:
            logger.warning("%s has lost the evaluation before training, which is made again", self.folder / EVALUATIONS)
        self._trained, self._saved = None, iteration
        if self.writes:
            self._own_best()  # before training: else the first good evaluation would end the run
        self._check_best()
        if self.writes:
            self._write_down()
            self._shown = len(self.history)
            self.figures()  # before training: wandb may refuse

    def _write_down(self) -> None:
        write_text(self.folder / WORKFLOW, json.dumps(graph.resumable(self.workflow), indent=1))
        for name, rows in ((METRICS, self.history), (EVALUATIONS, self.evaluations)):
            self._write_lines(name, rows)

    @_writing
    def begin_anew(self) -> None:
        """In place of a folder that somebody has removed: the model still has what it learned, and so has its record."""
        logger.warning("%s is gone, and is begun anew with what is on record of its training", self.folder)
        self.close()
        self.folder.mkdir(parents=True)
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
    def mark(self, status: str, total: int, error: str | None = None, reason: str | None = None) -> None:
        """Says in status.json how the run stands: running, finished, stopped or failed; by which process, and of how many.

        A reader finds out by the process whether "running" is still true. `reason` is why it ended before its last iteration,
        or should.
        """
        if not self.writes:
            return
        import psutil

        process = psutil.Process()
        content = {"status": status, "place": "canvas" if host.in_comfyui() else "headless", "total": total}
        content |= {"pid": process.pid, "process_started": process.create_time(), "error": error}
        content["reason"] = reason
        content["started"] = (files.read_own(self.folder, STATUS) or {}).get("started") or time.time()
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
            self._metrics = report.metrics  # and not the report, whose trajectories must be free to go
            self._trained = weakref.ref(model), model.version
            scores = replace(report.advantages.scores, rewards=())  # the scorers must be free to go
            self._last = replace(report.advantages, scores=scores)
        # What an earlier call was kept from doing is made up for.
        final = self.iteration == last
        on_canvas = host.in_comfyui()
        save_due = final or self.iteration % self.settings.checkpoint_every == 0
        if on_canvas and (save_due or model.is_adapted):
            # A canvas may end at any time, by a changed input, an emptied cache, a closed window: an adapter is saved at once.
            self._save_once(model)
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
            self._save_once(model)
        told = self.warning()
        if told and not self._warned:
            logger.warning("iteration %d: %s", self.iteration, told)
        self._warned = told is not None

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
        return lora.workflow_metadata(self.workflow, self.canvas) | {"otca_iteration": str(self.iteration)}

    def belongs_to(self, model: FlowModel | None) -> bool:
        """Whether `model` is the one whose training is on record here, or nothing is yet, and no other process went on.

        Headlessly none can: the folder is claimed.
        """
        process = os.getpid()
        if host.in_comfyui():
            process = (files.read_own(self.folder, STATUS) or {}).get("pid", process)
        return process == os.getpid() and (self._trained is None or self._trained[0]() is model)

    def stands_at(self, model: FlowModel) -> bool:
        """Whether the model is as the last line on record left it."""
        return self._trained is not None and self._trained[0]() is model and self._trained[1] == model.version

    def _evaluated(self, iteration: int) -> bool:
        return any(row["iteration"] == iteration for row in self.evaluations)

    def _save_once(self, model: FlowModel) -> None:
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
        iteration, stills = row["iteration"], plots.stills(images)
        self._before_after(stills, captions, iteration)
        means = {f"evaluation/{name}": figures["mean"] for name, figures in row["rewards"].items()}
        self.figures().write(iteration, means)
        place = self.folder / SAMPLES / f"{iteration:06d}"
        plots.save(plots.sample_grid(stills[:32], captions[:32]), place.with_suffix(".png"))
        if images.ndim == 5:
            plots.save_video(images[:32], captions[:32], place.with_suffix(".mp4"))

    def curves(self) -> np.ndarray:
        return plots.reward_curves(self.history, self.evaluations)

    @_writing
    def plot(self) -> None:
        """Draws rewards.png and credit.png anew."""
        if not self.writes:
            return
        plots.save(self.curves(), self.folder / "rewards.png")
        if self._last is not None:
            plots.save(plots.credit_over_time(self.history, self._last), self.folder / "credit.png")

    @_writing
    def save(self, model: FlowModel) -> None:
        """A checkpoint to resume from, and the adapter to use."""
        if self.writes:
            for name, rows in ((METRICS, self.history), (EVALUATIONS, self.evaluations)):
                flush(self._whole(name, rows))  # a checkpoint is of no use without the lines before it
        checkpoint.save(model, self.folder / CHECKPOINTS, self.iteration, self.settings.keep_checkpoints)
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
            plots.save(plots.before_after(before.float() / 255, images, captions), self.folder / "samples.png")


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


def _check_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / ".writable", "")
        (folder / ".writable").unlink()
    except OSError as error:
        raise RunError(
            f"the run folder {folder} cannot be written ({error}). Fix: choose another --output or free the disk"
        ) from error


_open: dict[Path, Run] = {}


def open_run(
    folder: Path, settings: RunSettings, workflow: Mapping, model: FlowModel | None = None, *, resume: bool = False
) -> Run:
    """The run of that folder in this process, opened at the first call; later calls may change its intervals.

    Headlessly it is that folder and no other. On the canvas a folder that holds a run of another process, or of another `model`
    of this one, is left alone: a fresh adapter must not go on under its name, so `<name>-2`, `<name>-3` … is taken. Except with
    `resume`, and where the model was restored from that very run.

    Raises:
        RunError: headlessly, the folder holds another run.
    """
    asked = folder.resolve()
    if asked not in _open or not _open[asked].belongs_to(model):
        restored = model.resumed_from if model is not None else None
        if not resume and not host.in_comfyui():
            if asked in _open or taken(folder):
                raise RunError(f"{folder} already holds a run. Fix: resume it, or choose another folder")
        elif not resume and (restored is None or restored[0] != asked or held(asked)):
            number = 1
            while taken(folder):
                number += 1
                folder = asked.with_name(f"{asked.name}-{number}")
        if asked in _open:
            _open[asked].close()
        _open[asked] = Run(folder, settings, workflow)
        if not resume:
            _open[asked].begin(restored[1] if restored and restored[0] == folder.resolve() else 0)
    elif host.in_comfyui() and not _open[asked].folder.is_dir():
        _open[asked].begin_anew()
    _open[asked].settings = settings
    return _open[asked]


def taken(folder: Path) -> bool:
    """Whether a run is on record there, or another process is about to begin one."""
    return (folder / METRICS).is_file() and (folder / METRICS).stat().st_size > 0 or held(folder)


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
