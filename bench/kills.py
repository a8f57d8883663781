"""Kills random processes of a training at random moments, and checks that nothing is lost.

    python bench/kills.py [--kills 200] [--processes 2] [--iterations 12]

Trains a small workflow in several processes, sends SIGKILL to one of them after a random time (while it loads, samples, scores,
updates, evaluates or writes a checkpoint), waits for the others to end and resumes; who has not ended by itself after a few
seconds gets SIGTERM, as torchrun's agent sends it at once (one that still waits for the others to join misses nobody). When a
training is finished, its metrics and its adapter are compared, bit for bit, with those of a training that nobody disturbed, and
the next one begins. Prints a table: what the killed process was doing, how long the others took to end, what was lost.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing.connection
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import torch
from safetensors.torch import load_file

from comfyui_otca.host.terminal import terminal
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.processes import start
from comfyui_otca.trainer.run import opening
from comfyui_otca.trainer.run.loop import train
from comfyui_otca.trainer.workflow.running import Workflow

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = {
    "1.lora_rank": 4,
    "2.prompts_per_iteration": 2,
    "3.group_size": 4,
    "3.steps": 4,
    "11.learning_rate": 1e-3,
    "11.ema_decay": 0.5,
    "12.checkpoint_every": 1,
    "12.evaluate_every": 3,
    "12.evaluation_prompts": "a red circle on a blue background\na green square on a white background",
    "12.evaluation_seeds": 1,
}
GRACE, PATIENCE = 5, 60  # seconds: until the others get SIGTERM, and until they count as hanging


def work(folder: Path, iterations: int) -> int:
    terminal.output, terminal.device = folder, "cpu"
    opening._open.clear()
    graph = json.loads((ROOT / "workflows" / "api" / "otca.json").read_text(encoding="utf-8"))
    workflow = Workflow(graph, NODE_CLASS_MAPPINGS)
    for name, value in {**SETTINGS, "12.iterations": iterations}.items():
        workflow.set(name, value)
    return train(workflow, resume=(folder / "workflow.json").is_file(), say=lambda line: None)


def attempt(folder: Path, options: argparse.Namespace, after: float | None, victim: int) -> tuple[bool, str, float]:
    """Trains until the end or the kill. Returns whether it was finished, what the victim was at, and how long the others took."""
    processes, _ = start(options.processes, work, folder, options.iterations)
    sentinels = [process.sentinel for process in processes]
    if multiprocessing.connection.wait([sentinels[victim]], after):
        multiprocessing.connection.wait(sentinels, PATIENCE)
        for process in processes:
            process.join()
        assert all(process.exitcode == 0 for process in processes), "a process failed that nobody killed"
        return True, "", 0.0
    doing = stage(folder)
    os.kill(processes[victim].pid, signal.SIGKILL)
    killed = time.monotonic()
    for process in processes:
        process.join(max(0.0, killed + GRACE - time.monotonic()))
    for process in processes:
        process.terminate()
        process.join(PATIENCE)
        if process.is_alive():
            sys.exit(f"process {process.pid} was still there {PATIENCE} s after another was killed")
    return False, doing, time.monotonic() - killed


def stage(folder: Path) -> str:
    """What a run is at, by its folder."""
    if not (folder / "metrics.jsonl").is_file():
        return "loading"
    if list((folder / "checkpoints").glob(".[0-9]*")):
        return "writing a checkpoint"
    saved = sorted((folder / "checkpoints").glob("[0-9]*"))
    lines = len((folder / "metrics.jsonl").read_bytes().splitlines())
    return "evaluating or saving" if lines > (int(saved[-1].name) if saved else 0) else "loading, sampling or updating"


def figures(folder: Path) -> list[dict]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("seconds", "samples_per"))} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    chance = random.Random(options.seed)
    base = Path(tempfile.mkdtemp(prefix="otca-kills-"))
    began = time.monotonic()
    assert attempt(base / "undisturbed", options, None, 0)[0]
    whole = time.monotonic() - began
    expected, adapter = figures(base / "undisturbed"), load_file(base / "undisturbed" / "lora.safetensors")
    found: dict[str, list[float]] = defaultdict(list)
    kills = trainings = 0
    while kills < options.kills:
        folder = base / f"training-{trainings}"
        done = False
        while not done:
            after = chance.uniform(0, whole / 2) if kills < options.kills else None
            done, doing, seconds = attempt(folder, options, after, chance.randrange(options.processes))
            if not done:
                kills += 1
                found[doing].append(seconds)
                print(f"kill {kills}: {doing}, the others ended after {seconds:.1f} s", file=sys.stderr, flush=True)
        trainings += 1
        assert figures(folder) == expected, f"{folder}: other figures than those of the undisturbed training"
        saved = load_file(folder / "lora.safetensors")
        assert all(torch.equal(saved[name], value) for name, value in adapter.items()), f"{folder}: another adapter"
        shutil.rmtree(folder)
    print("| killed while | kills | the others ended after: median, most | lost |\n|---|---|---|---|")
    for doing, seconds in sorted(found.items()):
        print(f"| {doing} | {len(seconds)} | {statistics.median(seconds):.1f} s, {max(seconds):.1f} s | nothing |")
    print(
        f"\n{kills} kills in {trainings} trainings of {options.iterations} iterations by {options.processes} processes, each "
        "equal to the undisturbed one bit for bit"
    )


if __name__ == "__main__":
    main()
