"""Where the seconds of one training iteration go: network calls, decoding, scoring, and all the rest.

    python bench/parts.py [FAMILY ...] [--rounds N]

Of OTCA's workflow with the tiny checkpoint of a family (bench/families.py), on one CPU thread, recomputed; medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import torch

from comfyui_otca.bench.families import changes
from comfyui_otca.bench.iteration import WORKFLOW, floor
from comfyui_otca.host.access import permissions
from comfyui_otca.host.terminal import quiet_libraries
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.trainer.run.loop import STEP_NODES, only, trained_model
from comfyui_otca.trainer.workflow.running import Workflow

FAMILIES = ["wan21", "wan22", "wan22-5b", "shapes-flux", "sd3"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=FAMILIES)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    quiet_libraries()
    torch.set_num_threads(1)
    print("| recomputed | iteration s | calls and their backward | decoding | scoring | all the rest | floor s |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        os.environ[permissions.FOLDERS] = folder  # else a workflow may not name it
        for family in options.families:
            found = [f"{seconds:.2f}" for seconds in _of(family, Path(folder), options.rounds)]
            print(f"| {family} | {' | '.join(found)} |", flush=True)


def _of(family: str, folder: Path, rounds: int) -> list[float]:
    """Medians of the table's columns, in seconds."""
    workflow = Workflow.load(WORKFLOW, NODE_CLASS_MAPPINGS)
    for change in [*changes(family, folder), "3.keep_graph=off"]:
        workflow.set(*change.split("=", 1))
    model, step = trained_model(workflow), only(workflow, *STEP_NODES)
    spent: dict[str, float] = defaultdict(float)
    model.velocity = _timed(model.velocity, "calls", spent)
    model.decode = _timed(model.decode, "decoding", spent)
    backward, rows = torch.Tensor.backward, []
    torch.Tensor.backward = _timed(backward, "calls", spent)
    try:
        for number in range(rounds + 1):  # the first warms up
            spent.clear()
            overrides = {(node, name): value + number for node, name, value in workflow.advancing()}
            started = time.perf_counter()
            report = workflow.run(overrides=overrides, targets=[step])[step][1]
            elapsed = time.perf_counter() - started
            parts = [spent["calls"], spent["decoding"], report.metrics["seconds/reward"]]
            rows.append([elapsed, *parts, elapsed - sum(parts), floor(model, report.trajectories)])
    finally:
        torch.Tensor.backward = backward
    return [statistics.median(column) for column in zip(*rows[1:], strict=True)]


def _timed(function, name: str, spent: dict[str, float]):
    def wrapped(*values, **named):
        started = time.perf_counter()
        try:
            return function(*values, **named)
        finally:
            spent[name] += time.perf_counter() - started

    return wrapped


if __name__ == "__main__":
    main()
