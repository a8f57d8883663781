"""Seconds of one training iteration whose rewards score after sampling, and while it samples.

    python bench/overlap.py [WORKFLOW] [--set NODE.INPUT=VALUE …] [--share S …] [--rounds N] [--threads N]

One reward more is connected, which waits as for a server, S times as long as the whole rollout takes. Both ways are the same
workflow with `overlap` of the Reward Stack off and on, and take turns, so that whatever else the machine does weighs on both
alike; medians, and their ratio within this run, are shown.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

from comfyui_otca.host.terminal import quiet_libraries
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.trainer.rewards.base import Reward
from comfyui_otca.trainer.run.loop import only
from comfyui_otca.trainer.types import STACK_NODE, STEP_NODES
from comfyui_otca.trainer.workflow.running import Workflow

WORKFLOW = Path(__file__).resolve().parent.parent / "workflows" / "api" / "otca.json"
SLOW = "OTCA_BenchSlow"
PHASES = ("rollout", "reward", "credit", "update")


class Server(Reward):
    """Waits so many seconds for every picture."""

    seconds = 0.0

    def score(self, images, prompts):
        time.sleep(self.seconds * len(images))
        return images.mean((1, 2, 3))


class Slow:
    RETURN_TYPES, FUNCTION, CATEGORY = ("OTCA_REWARD",), "build", "bench"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    def build(self):
        return (Server("server"),)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workflow", nargs="?", type=Path, default=WORKFLOW)
    parser.add_argument("--set", action="append", default=[], metavar="NODE.INPUT=VALUE")
    parser.add_argument("--share", type=float, nargs="+", default=[0.0, 0.5, 1.0], metavar="S")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's own)")
    options = parser.parse_args()
    quiet_libraries()
    if options.threads:
        torch.set_num_threads(options.threads)
    ways = {"after": _workflow(options, False), "while sampling": _workflow(options, True)}
    for number in range(3):  # the stack asks for scores at its first run, and gets them from the second one on
        reports = {way: _run(workflow, number) for way, workflow in ways.items()}
    count = len(reports["after"].trajectories.groups)
    rollout = reports["after"].metrics["seconds/rollout"]
    batch = reports["after"].trajectories.settings.batch_size
    print(f"B = {count} samples, {batch} at a time, {torch.get_num_threads()} CPU threads, ", end="")
    print(f"{options.rounds} rounds, medians\n")
    print("| server s | rewards score | " + " | ".join(f"{phase} s" for phase in PHASES) + " | iteration s | ÷ after |")
    print("|---|---|" + "---|" * (len(PHASES) + 2))
    for share in options.share:
        Server.seconds = share * rollout / count
        metrics_of = {way: [] for way in ways}
        for number in range(3, 3 + options.rounds):
            for way, workflow in ways.items():
                started = time.perf_counter()
                metrics = _run(workflow, number).metrics
                metrics_of[way].append({**metrics, "whole": time.perf_counter() - started})
        for way, rows in metrics_of.items():
            server = statistics.median(row["seconds/reward/server"] for row in rows)
            phases = " | ".join(f"{statistics.median(row[f'seconds/{phase}'] for row in rows):.3f}" for phase in PHASES)
            whole = statistics.median(row["whole"] for row in rows)
            pairs = zip(rows, metrics_of["after"], strict=True)
            ratio = statistics.median(row["whole"] / after["whole"] for row, after in pairs)
            print(f"| {server:.3f} | {way} | {phases} | {whole:.3f} | {ratio:.2f} |")


def _workflow(options: argparse.Namespace, overlap: bool) -> Workflow:
    workflow = Workflow.load(options.workflow, {**NODE_CLASS_MAPPINGS, SLOW: Slow})
    graph = workflow.graph
    stack = graph[only(workflow, STACK_NODE)]["inputs"]
    graph["slow"] = {"class_type": SLOW, "inputs": {}}
    stack |= {"reward_8": ["slow", 0], "overlap": overlap}
    workflow = Workflow(graph, workflow.node_classes)
    for change in options.set:
        workflow.set(*change.split("=", 1))
    return workflow


def _run(workflow: Workflow, number: int):
    overrides = {(node, name): value + number for node, name, value in workflow.advancing()}
    step = only(workflow, *STEP_NODES)
    return workflow.run(overrides=overrides, targets=[step])[step][1]


if __name__ == "__main__":
    main()
