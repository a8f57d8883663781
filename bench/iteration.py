"""Seconds of one training iteration against its floor: the same transformer calls, bare.

    python bench/iteration.py [WORKFLOW] [--set NODE.INPUT=VALUE …] [--rounds N] [--threads N] [--sampled-steps K] [--row NAME]
    python bench/iteration.py --families [--rounds N] [--threads N]
    python bench/iteration.py --waits [WORKFLOW]

The floor is T forwards without gradient and T' forward + backward passes of all B samples at once, in the same process,
with nothing around them. Floor and iterations take turns, so that whatever else the machine does weighs on all alike;
medians are shown. Rows whose update computes something else, fewer steps or half of the gradient, are measured against
the same floor: below it is what they save. Seconds are those by the clock; with one thread on a CPU, those of the processor.
A workflow with ComfyUI's loaders wants `--comfyui PATH`, and the Python that starts it.

`--families` does this for a tiny checkpoint of every family, each in a process of its own. They are so small that what surrounds
the model calls weighs far more than it does on real ones: the ratio is an upper bound.

`--waits` counts, line by line, what an iteration makes a GPU wait for, on the pretend accelerator of tests/device: copies between
host and device that are not queued, and numbers that are read (`.item()`), at which the host stands still until the device has
done all that it was asked before. Counted is the second iteration of three, 2 prompts x 4 samples; the first one loads, the last
one saves. No time is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch

from comfyui_otca.bench.common import PHASES, WORKFLOW, give_back, table, wait
from comfyui_otca.commands.options import change, node_classes, quiet_libraries
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.device import pretend
from comfyui_otca.tests.tiny import models as tiny
from comfyui_otca.tests.training import train
from comfyui_otca.trainer.native.model import NativeModel
from comfyui_otca.trainer.run.loop import STEP_NODES, only, trained_model
from comfyui_otca.trainer.types import NextRollout
from comfyui_otca.trainer.workflow.running import Workflow


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workflow", nargs="?", type=Path, default=WORKFLOW)
    parser.add_argument("--set", action="append", default=[], metavar="NODE.INPUT=VALUE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--sampled-steps", type=int, default=3, metavar="K", help="of GRPO Step, in the row that has it"
    )
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's own)")
    parser.add_argument(
        "--families", action="store_true", help="a tiny checkpoint of every family, instead of a workflow"
    )
    parser.add_argument("--row", action="append", help="these rows alone")
    parser.add_argument("--comfyui", metavar="PATH")
    parser.set_defaults(custom_nodes=[], device="cpu")
    parser.add_argument("--waits", action="store_true", help="what a GPU would wait for, instead of seconds")
    options = parser.parse_args()
    if options.families:
        families(options.rounds, options.threads)
        return
    if options.waits:
        print_waits(options.workflow)
        return
    quiet_libraries()
    if options.threads:
        torch.set_num_threads(options.threads)
    graph = Workflow.load(options.workflow, NODE_CLASS_MAPPINGS).graph
    workflow = Workflow(graph, *node_classes(options, graph))
    change(workflow, options.set)
    model, step = trained_model(workflow), only(workflow, *STEP_NODES)
    sampler = only(workflow, "OTCA_SDESampler")
    inputs, prompts = workflow.graph[sampler]["inputs"], workflow.graph[only(workflow, "OTCA_PromptDataset")]["inputs"]
    samples = prompts["prompts_per_iteration"] * inputs["group_size"]
    modes = _modes(model, inputs["guidance"], options.sampled_steps, samples)
    modes = {name: modes[name] for name in options.row or modes}
    clock = time.process_time if torch.get_num_threads() == 1 and model.device.type == "cpu" else time.perf_counter
    seconds: dict[str, list[float]] = {"floor": []} | {mode: [] for mode in modes}
    phases: dict[str, dict[str, list[float]]] = {mode: {phase: [] for phase in PHASES} for mode in modes}
    memory: dict[str, float] = {}
    trajectories = None
    for number in range(options.rounds + 1):  # the first round warms up and measures memory, not time
        for turn, (mode, (sampling, changes)) in enumerate(modes.items()):
            overrides = {(node, name): value + len(modes) * number + turn for node, name, value in workflow.advancing()}
            overrides |= {(sampler, name): value for name, value in sampling.items()}
            overrides |= {(step, name): value for name, value in changes.items()}
            model.memo.keep(NextRollout(changes["unconditional_gradient"]))  # in a training the update before this one
            trajectories = None  # the previous iteration's must not weigh on this one's peak
            peak = None if number else Peak(model)
            with peak or contextlib.nullcontext():
                started = clock()
                report = workflow.run(overrides=overrides, targets=[step])[step][1]
                wait(model.device)
                elapsed = clock() - started
            trajectories = report.trajectories
            if peak is not None:
                memory[mode] = peak.megabytes
            else:
                seconds[mode].append(elapsed)
                for phase in PHASES:
                    phases[mode][phase].append(report.metrics[f"seconds/{phase}"])
            del report
            model.memo.keep(NextRollout())
        bare = floor(model, trajectories, clock=clock)
        if number:
            seconds["floor"].append(bare)
    _print(trajectories, seconds, phases, memory)


def _modes(model, guidance: float, count: int, samples: int) -> dict[str, tuple[dict, dict]]:
    """The rows that this model has: (inputs of the sampler, inputs of GRPO Step) by name."""
    off, on = ({"keep_graph": keep, "merge_adapter": False} for keep in ("off", "on"))
    whole = {"sampled_steps": 0, "unconditional_gradient": True, "batch_size": 0}
    modes = {"recomputed": (off, whole), "kept graph": (on, whole)}
    modes["batches over two steps"] = off, {**whole, "batch_size": 2 * samples}
    fewer = {**whole, "sampled_steps": count}
    modes[f"sampled_steps {count}"] = off, fewer
    modes[f"sampled_steps {count}, batches over several steps"] = off, {**fewer, "batch_size": samples}
    if model.policy.is_adapted:
        modes["LoRA merged for the rollout"] = {**off, "merge_adapter": True}, whole
    is_guided = model.calls_per_velocity(guidance) > 1 if isinstance(model, NativeModel) else model.guides(guidance)
    if is_guided:
        half = {**whole, "unconditional_gradient": False}
        modes["no unconditional gradient, recomputed"] = off, half
        modes["no unconditional gradient, kept graph"] = on, half
        modes[f"no unconditional gradient, sampled_steps {count}"] = off, {**half, "sampled_steps": count}
    return modes


def floor(model, trajectories, batch_size: int = 0, clock: Callable[[], float] = time.perf_counter) -> float:
    """T bare forwards and T' bare forward + backward passes of all samples, so many or all at once, in seconds."""
    settings = trajectories.settings
    condition = model.condition(trajectories.prompts, settings)
    groups, x = trajectories.groups, trajectories.latents[:, 1].to(model.device)
    parts = torch.arange(len(groups)).split(batch_size or len(groups))
    rows = [(x[part], condition.rows(groups[part])) for part in parts]
    gc.collect()
    wait(model.device)
    started = clock()
    with torch.no_grad():
        for sigma in trajectories.sigmas[:-1]:
            for part, own in rows:
                model.velocity(part, sigma, own, settings.guidance)
    for step in trajectories.trained:
        for part, own in rows:
            model.velocity(part, trajectories.sigmas[step], own, settings.guidance).sum().backward()
    wait(model.device)
    elapsed = clock() - started
    for parameter in model.policy.trainable_parameters():
        parameter.grad = None
    return elapsed


def _print(trajectories, seconds, phases, memory) -> None:
    bare = statistics.median(seconds["floor"])
    steps, trained = trajectories.settings.steps, len(trajectories.trained)
    print(f"B = {len(trajectories.groups)} samples, T = {steps} steps, T' = {trained} trained, ", end="")
    print(f"{torch.get_num_threads()} CPU threads, {len(seconds['floor'])} rounds, medians\n")
    rows = []
    for mode in phases:
        ratio = statistics.median(a / b for a, b in zip(seconds[mode], seconds["floor"], strict=True))
        parts = [f"{statistics.median(phases[mode][phase]):.3f}" for phase in PHASES]
        rows.append([mode, *parts, f"{statistics.median(seconds[mode]):.3f}", f"{ratio:.2f}", f"{memory[mode]:.0f}"])
    rows.append(
        [f"floor ({steps} forwards, {trained} forward + backward)", *[""] * len(PHASES), f"{bare:.3f}", "1.00", ""]
    )
    print(table(["", *(f"{phase} s" for phase in PHASES), "iteration s", "÷ floor", "peak MB"], rows))


def families(rounds: int, threads: int | None) -> None:
    """Runs this program for each family's tiny checkpoint, made in a temporary folder, in place of shapes-flux."""
    common = ["--rounds", str(rounds), *(["--threads", str(threads)] if threads else [])]
    with tempfile.TemporaryDirectory() as folder:
        allowed = {**os.environ, "OTCA_ALLOW_FOLDERS": folder}  # else a workflow may not name it
        for family, sizes in {"shapes-flux": {}, **tiny.SIZES}.items():
            print(f"\n## {family}\n", flush=True)
            inputs = {**sizes, "height": 32, "guidance": 4.5} if sizes else {}
            changes = [f"3.{name}={value}" for name, value in inputs.items()]
            changes += [f"1.path={tiny.make(family, Path(folder) / family)}"] if sizes else []
            command = [sys.executable, __file__, *common, *(part for change in changes for part in ("--set", change))]
            subprocess.run(command, check=True, stderr=subprocess.DEVNULL, env=allowed)


FEW = {
    "OTCA_TrainingRun.iterations": 3,
    "OTCA_TrainingRun.evaluate_every": 0,
    "OTCA_TrainingRun.checkpoint_every": 9,
    "OTCA_PromptDataset.shuffle": False,
    "OTCA_PromptDataset.prompts_per_iteration": 2,
    "OTCA_SDESampler.group_size": 4,
}


def print_waits(path: Path) -> None:
    quiet_libraries()
    pretend.register()
    workflow = Workflow.load(path, NODE_CLASS_MAPPINGS)
    for address, value in FEW.items():
        workflow.set(address, value)
    waits: list[pretend.Waits] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as watching, pretend.active():

        def say(line: str) -> None:
            if line.startswith("iteration 1"):
                waits.append(watching.enter_context(pretend.watched()))
            elif line.startswith("iteration 2"):
                watching.close()

        train(workflow, Path(folder) / "run", say=say)
    [total] = waits
    rows = [(count, line) for line, count in sorted(total.waits.items())]
    print(table(("waits", "where, and what"), [*rows, (f"**{sum(total.waits.values())}**", "in all")]))


class Peak:
    """The most megabytes taken while it is active: of the accelerator, or of the process, sampled every 2 ms."""

    def __init__(self, model):
        self.device = model.device
        self.megabytes = 0.0

    def __enter__(self) -> Peak:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            give_back()
            self.active = True
            self.thread = threading.Thread(target=self._watch)
            self.thread.start()
        return self

    def __exit__(self, *_) -> None:
        if self.device.type == "cuda":
            self.megabytes = torch.cuda.max_memory_allocated(self.device) / 1e6
        else:
            self.active = False
            self.thread.join()

    def _watch(self) -> None:
        process = psutil.Process()
        while self.active:
            self.megabytes = max(self.megabytes, process.memory_info().rss / 1e6)
            time.sleep(0.002)


if __name__ == "__main__":
    main()
