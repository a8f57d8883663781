"""`otca train`: trains an exported workflow."""

from __future__ import annotations

import argparse
import functools
import os
from typing import TYPE_CHECKING

from . import options

if TYPE_CHECKING:
    from ..trainer.run.loop import Prepared


def add(commands) -> None:
    parser = commands.add_parser("train", help="train an exported workflow", description=_run.__doc__)
    options.workflow_arguments(parser)
    parser.add_argument(
        "--iterations", type=int, metavar="N", help="length of the training, instead of the workflow's own"
    )
    parser.add_argument(
        "--output", type=options.folder, metavar="DIR", help="the run's folder (default: runs/<run_name>)"
    )
    parser.add_argument("--resume", action="store_true", help="continue from the folder's last checkpoint")
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="begin in a folder that a process of another machine has claimed, because nothing trains there any more",
    )
    parser.add_argument("--seed", type=int, help="sets every node's seed")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 … instead of what the nodes name")
    parser.add_argument(
        "--gpus",
        type=options.positive,
        default=1,
        metavar="N",
        help="processes, each on a GPU of its own; with --device cpu all on the CPU",
    )
    parser.add_argument(
        "--reward-gpus",
        type=options.positive,
        metavar="M",
        help="the M GPUs after those that train are for rewards whose device is auto",
    )
    parser.add_argument(
        "--max-restarts", type=int, default=0, metavar="R", help="with --gpus: resume by itself after up to R failures"
    )
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    """Trains an exported workflow. Ctrl-C or SIGTERM saves a checkpoint; --resume continues from it bit for bit."""
    from ..host import devices, distributed
    from ..trainer.checks.prepare import hand_over, together
    from ..trainer.run.loop import train
    from ..trainer.workflow.problem import WorkflowError

    if arguments.reward_gpus and arguments.device:
        raise ValueError(f"--reward-gpus and --device {arguments.device} say two things. Fix: leave one of them out")
    options.allow(arguments)
    launches = arguments.gpus > 1 and "RANK" not in os.environ  # other processes, which then train
    devices.choose(arguments.device)
    if launches and arguments.device != "cpu":
        distributed.check_gpus(arguments.gpus, arguments.reward_gpus or 0)
    elif not launches:
        rewards = distributed.reward_gpu(arguments.reward_gpus) if arguments.reward_gpus else None
        devices.choose(arguments.device, rewards)
        distributed.begin(cpu=arguments.device == "cpu")
    options.quiet_libraries()
    processes = arguments.gpus if launches else distributed.world()
    try:
        prepared = together(lambda: _prepared(arguments, processes), functools.partial(options.node_classes, arguments))
    except WorkflowError as refused:
        options.print_problems(refused.problems)
        return options.EXIT_BAD_INPUT
    if not launches:
        code = train(prepared, say=_say)
        distributed.end()
        return code
    from ..trainer.run.launch import launch

    assert prepared.claim is not None, "this process has prepared the training"
    with prepared.claim, hand_over(prepared):
        return launch(arguments.gpus, arguments.max_restarts, arguments.command_line)


def _prepared(arguments: argparse.Namespace, processes: int) -> Prepared:
    from ..trainer.checks.prepare import prepare
    from ..trainer.types import RUN_NODE

    workflow = options.load(arguments)
    if arguments.iterations is not None:
        workflow.set(f"{RUN_NODE}.iterations", arguments.iterations)
    options.set_seeds(workflow, arguments.seed)
    folder = arguments.output or (arguments.workflow if arguments.workflow.is_dir() else None)
    prepared = prepare(
        workflow, folder, resume=arguments.resume, take_over=arguments.take_over, processes=processes, say=_say
    )
    options.print_problems(prepared.problems)
    return prepared


def _say(line: str) -> None:
    print(line, flush=True)
