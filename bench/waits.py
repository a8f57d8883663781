"""What one iteration of the quickstart makes a GPU wait for, line by line, counted on the pretend accelerator of tests/device.

    python bench/waits.py [--workflow FILE] [--json]

A wait is a copy between host and device that is not queued, or a number that is read (`.item()`): the host stands still until the
device has done all that it was asked before. Counted is the second iteration of three, between the lines that the trainer prints:
the first one loads, the last one saves. No GPU takes part, and no time is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from pathlib import Path

from comfyui_otca.commands.options import quiet_libraries
from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
from comfyui_otca.tests.device import pretend
from comfyui_otca.tests.training import train
from comfyui_otca.trainer.workflow.running import Workflow

QUICKSTART = Path(__file__).resolve().parent.parent / "workflows" / "api" / "quickstart.json"
SMALL = {
    "OTCA_TrainingRun.iterations": 3,  # the last one saves, too
    "OTCA_TrainingRun.evaluate_every": 0,
    "OTCA_TrainingRun.checkpoint_every": 9,
    "OTCA_PromptDataset.shuffle": False,
    "OTCA_PromptDataset.prompts_per_iteration": 2,
    "OTCA_SDESampler.group_size": 4,
}


def waits_of(path: Path, changes: dict) -> pretend.Waits:
    """Those of the second iteration of that workflow, which trains where `auto` is the pretend accelerator."""
    workflow = Workflow.load(path, NODE_CLASS_MAPPINGS)
    for address, value in changes.items():
        workflow.set(address, value)
    seen: list[pretend.Waits] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as watching, pretend.active():

        def say(line: str) -> None:
            if line.startswith("iteration 1"):
                seen.append(watching.enter_context(pretend.watched()))
            elif line.startswith("iteration 2"):
                watching.close()

        train(workflow, Path(folder) / "run", say=say)
    [found] = seen
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workflow", type=Path, default=QUICKSTART)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    quiet_libraries()
    pretend.register()
    found = waits_of(options.workflow, SMALL)
    if options.json:
        print(json.dumps(found.waits, indent=1))
        return
    print("| waits | where, and what |\n|---|---|")
    for line, count in sorted(found.waits.items()):
        print(f"| {count} | {line} |")
    print(f"| **{sum(found.waits.values())}** | in all |")


if __name__ == "__main__":
    main()
