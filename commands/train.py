"""`otca train`: trains an exported workflow."""

from __future__ import annotations

import argparse
import functools
import os

from . import options


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
    from ..host import distributed
    from ..host.terminal import quiet_libraries, terminal
    from ..trainer.checks import preflight
    from ..trainer.run.loop import RUN_NODE, check_folder, train
    from ..trainer.workflow.problem import errors

    workflow = options.load(arguments)
    if arguments.iterations is not None:
        workflow.set(f"{RUN_NODE}.iterations", arguments.iterations)
    options.set_seeds(workflow, arguments.seed)
    if arguments.output is None and arguments.workflow.is_dir():
        arguments.output = arguments.workflow
    terminal.output = arguments.output
    terminal.device = arguments.device
    launched = "RANK" in os.environ  # this is one of the processes that a launcher started
    problems = preflight.problems(workflow, distributed.world() if launched else arguments.gpus)
    if distributed.is_main():
        options.print_problems(problems)
    if errors(problems):
        return options.EXIT_BAD_INPUT
    if arguments.reward_gpus and arguments.device:
        raise ValueError(f"--reward-gpus and --device {arguments.device} say two things. Fix: leave one of them out")
    if arguments.gpus > 1 and not launched:
        from ..trainer.run.launch import launch

        if arguments.device != "cpu":
            distributed.check_gpus(arguments.gpus, arguments.reward_gpus or 0)
        check_folder(
            workflow, arguments.resume, arguments.take_over
        )  # here, so that it is said once and no restart follows
        return launch(arguments.gpus, arguments.max_restarts, arguments.command_line)
    if arguments.reward_gpus:
        terminal.reward_device = distributed.reward_gpu(arguments.reward_gpus)
    quiet_libraries()
    distributed.begin(cpu=arguments.device == "cpu")
    say = functools.partial(print, flush=True)
    code = train(workflow, resume=arguments.resume, take_over=arguments.take_over, say=say)
    distributed.end()
    return code
