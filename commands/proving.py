"""`otca prove` and `otca card`: what a training came to, for others."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..host import environment
from . import options
from .options import COMFYUI, OF_ALL_NODES, PERMISSIONS, WORKFLOW, arg, command, count


@command(
    "prove",
    "find out in an hour whether a model learns on this machine",
    *WORKFLOW,
    arg("--hours", "in all, evaluations included", type=float, default=1.0),
    count("--pictures", "of an evaluation, each from a noise of its own", 64),
    arg("--output", "continues what is there (default: proofs/<workflow>)", type=options.folder, metavar="DIR"),
    *OF_ALL_NODES,
)
def prove(arguments: argparse.Namespace) -> int:
    """Loads a workflow's model, estimates its memory, evaluates, trains as long as there is time, evaluates again on the same
    noises, and writes one page with the verdict into a folder that can be attached to an issue: no models, keys or paths.

    Ctrl-C keeps what is done, and the same command continues from there.
    """
    from ..host import devices, distributed
    from ..page import proof
    from ..trainer.workflow.problem import WorkflowError

    if environment.has("RANK"):
        raise ValueError("otca prove is one process. Fix: start it without torchrun or accelerate launch")
    options.allow(arguments)
    devices.choose(arguments.device)
    distributed.begin(cpu=arguments.device == "cpu")
    options.quiet_libraries()
    workflow = options.load(arguments)
    options.set_seeds(workflow, arguments.seed)
    folder = arguments.output or Path("proofs") / arguments.workflow.stem
    try:
        return proof.make(workflow, folder, arguments.hours, arguments.pictures, options.say)
    except WorkflowError as refused:
        options.print_problems(refused.problems)
        return options.EXIT_BAD_INPUT


@command(
    "card",
    "write a model card of a run, with its LoRA, to upload yourself",
    arg("workflow", "a run's folder", type=options.folder, metavar="RUN"),
    arg("--output", "an empty folder (default: card in the run)", type=options.folder, metavar="DIR"),
    COMFYUI,
    PERMISSIONS,
)
def card(arguments: argparse.Namespace) -> int:
    """Writes README.md with the base model, recipe, figures with errors and pictures before and after; beside it the LoRA, which
    ComfyUI and diffusers load, and the workflow. The licence is left to you. Nothing is uploaded."""
    from ..page import card
    from ..trainer.workflow.problem import WorkflowError

    arguments.set = []
    run = arguments.workflow
    card.adapters(run)
    try:
        print(*card.make(options.load(arguments), run, arguments.output or run / "card"), sep="\n")
    except WorkflowError as refused:
        options.print_problems(refused.problems)
        return options.EXIT_BAD_INPUT
    return 0
