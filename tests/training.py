"""A training as the command line begins it: prepared, then trained."""

from __future__ import annotations

from pathlib import Path

from comfyui_otca.trainer.checks.prepare import prepare, together
from comfyui_otca.trainer.run import loop
from comfyui_otca.trainer.run.loop import Say
from comfyui_otca.trainer.workflow import Workflow


def train(
    workflow: Workflow,
    folder: Path | None = None,
    *,
    resume: bool = False,
    take_over: bool = False,
    say: Say = lambda line: None,
) -> int:
    """Prepares a workflow for a folder, and trains it. Of several processes the first one prepares."""
    prepared = together(
        lambda: prepare(workflow, folder, resume=resume, take_over=take_over, say=say),
        lambda graph: (workflow.node_classes, workflow.display_names),
    )
    return loop.train(prepared, say=say)
