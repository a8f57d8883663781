"""`otca prove`: the whole path of a training on this machine, and what came of it."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..host import environment
from . import options
from .options import OF_ALL_NODES, WORKFLOW, arg, command, count


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
        return proof.make(
            workflow, folder, arguments.hours, arguments.pictures, options.comfyui_folder(arguments), options.say
        )
    except WorkflowError as refused:
        options.print_problems(refused.problems)
        return options.EXIT_BAD_INPUT
