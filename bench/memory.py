"""Memory over a long training: does it grow?

    python bench/memory.py [--iterations N] [--every N] [--output DIR]

Trains a very small workflow through the real loop, with a checkpoint and an evaluation now and then, and reads the resident
set after every `--every` iterations, with garbage collected and freed pages given back to the system, so that what is left is
held. The slope is that of a straight line through the second half: the first one fills caches. What the run keeps of its own
lines in memory is measured apart, since that has to grow.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import statistics
import tempfile
import time
import tracemalloc
from pathlib import Path

import psutil
import torch

from comfyui_otca.commands.options import quiet_libraries
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.training import train
from comfyui_otca.trainer.run import opening
from comfyui_otca.trainer.workflow.running import Workflow

WORKFLOW = Path(__file__).resolve().parent.parent / "workflows" / "api" / "otca.json"
SMALL = {
    "OTCA_LoadFlowModel.lora_rank": 2,
    "OTCA_PromptDataset.prompts_per_iteration": 1,
    "OTCA_SDESampler.group_size": 2,
    "OTCA_SDESampler.steps": 2,
    "OTCA_GRPOStep.ema_decay": 0.9,
    "OTCA_TrainingRun.checkpoint_every": 100,
    "OTCA_TrainingRun.evaluate_every": 200,
    "OTCA_TrainingRun.evaluation_prompts": "a red circle on a blue background\na green square on a white background",
    "OTCA_TrainingRun.evaluation_seeds": 1,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--every", type=int, default=100, metavar="N", help="iterations between two readings")
    parser.add_argument("--output", type=Path, help="keep the run's folder there (default: a temporary one)")
    options = parser.parse_args()
    quiet_libraries()
    torch.set_num_threads(1)
    workflow = Workflow.load(WORKFLOW, NODE_CLASS_MAPPINGS)
    for address, value in {**SMALL, "OTCA_TrainingRun.iterations": options.iterations}.items():
        workflow.set(address, value)
    readings: list[tuple[int, float]] = []

    def say(line: str) -> None:
        head, _, rest = line.partition("/")
        if head.startswith("iteration ") and (iteration := int(head.split()[1])) % options.every == 0:
            readings.append((iteration, _megabytes()))
            print(f"iteration {iteration}: {readings[-1][1]:.1f} MB", flush=True)

    with tempfile.TemporaryDirectory() as temporary:
        started = time.monotonic()
        train(workflow, options.output or Path(temporary) / "run", say=say)
        seconds = time.monotonic() - started
        later = [(x, y) for x, y in readings if x > options.iterations / 2]
        slope = statistics.linear_regression(*zip(*later, strict=True)).slope * 1000
        print(
            f"\n{options.iterations} iterations in {seconds:.0f} s; from {readings[0][1]:.1f} to {readings[-1][1]:.1f} MB"
        )
        print(f"slope of the second half: {slope:+.2f} MB per 1000 iterations")
        print(f"of which lines of metrics.jsonl held in memory: {_history_megabytes():.2f} MB per 1000")


def _megabytes() -> float:
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # glibc keeps what was freed before
        libc.malloc_trim(0)
    return psutil.Process().memory_info().rss / 1e6


def _history_megabytes() -> float:
    """What a thousand lines, made as the run makes them, weigh."""
    [run] = opening._open.values()
    rows = run.history[-1000:]
    tracemalloc.start()
    copies = [{"".join(key): value + 0.0 for key, value in row.items()} for row in rows]
    size = tracemalloc.get_traced_memory()[0] / 1e6
    tracemalloc.stop()
    return size / len(copies) * 1000


if __name__ == "__main__":
    main()
