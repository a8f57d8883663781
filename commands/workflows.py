"""train, validate, nodes: a workflow, and what it can be built of."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from . import options

if TYPE_CHECKING:
    from ..trainer.workflow.problem import Problem


def add(commands) -> None:
    train = commands.add_parser("train", help="train an exported workflow", description=_train.__doc__)
    options.workflow_arguments(train)
    train.add_argument(
        "--iterations", type=int, metavar="N", help="length of the training, instead of the workflow's own"
    )
    train.add_argument(
        "--output", type=options.folder, metavar="DIR", help="the run's folder (default: runs/<run_name>)"
    )
    train.add_argument("--resume", action="store_true", help="go on from the folder's last checkpoint")
    train.add_argument(
        "--take-over",
        action="store_true",
        help="begin in a folder that a process of another machine has claimed: nothing trains there any more",
    )
    train.add_argument("--seed", type=int, help="sets every node's seed")
    train.add_argument("--device", help="cpu, cuda, cuda:1 … instead of what the nodes name")
    train.add_argument(
        "--gpus",
        type=options.positive,
        default=1,
        metavar="N",
        help="processes, each on a GPU of its own; with --device cpu all on the CPU",
    )
    train.add_argument(
        "--reward-gpus",
        type=options.positive,
        metavar="M",
        help="the M GPUs after those that train are for rewards whose device is auto",
    )
    train.add_argument(
        "--max-restarts", type=int, default=0, metavar="R", help="with --gpus: go on by itself after up to R failures"
    )
    train.set_defaults(command=_train)

    validate = commands.add_parser("validate", help="check a workflow", description=_validate.__doc__)
    options.workflow_arguments(validate)
    validate.set_defaults(command=_validate)

    nodes = commands.add_parser("nodes", help="list the nodes, with inputs and outputs", description=_nodes.__doc__)
    nodes.set_defaults(command=_nodes)


def _train(given: argparse.Namespace) -> int:
    """Trains an exported workflow. Ctrl-C or SIGTERM saves a checkpoint; --resume goes on from it bit-exactly."""
    from ..host import distributed
    from ..host.terminal import quiet_libraries, terminal
    from ..trainer.run import preflight
    from ..trainer.run.loop import RUN_NODE, check_folder, train
    from ..trainer.workflow.problem import errors

    workflow = options.load(given)
    if given.iterations is not None:
        workflow.set(f"{RUN_NODE}.iterations", given.iterations)
    options.set_seeds(workflow, given.seed)
    if given.output is None and given.workflow.is_dir():
        given.output = given.workflow
    terminal.output = given.output
    terminal.device = given.device
    problems = preflight.problems(workflow)
    if distributed.is_main():
        _show(problems)
    if errors(problems):
        return options.EXIT_BAD_INPUT
    if given.reward_gpus and given.device:
        raise ValueError(f"--reward-gpus and --device {given.device} say two things. Fix: leave one of them out")
    if given.gpus > 1 and "RANK" not in os.environ:
        from ..trainer.run.launch import launch

        if given.device != "cpu":
            distributed.check_gpus(given.gpus, given.reward_gpus or 0)
        check_folder(workflow, given.resume, given.take_over)  # here, where it is told once and no restart follows
        return launch(given.gpus, given.max_restarts, given.arguments)
    if given.reward_gpus:
        terminal.reward_device = distributed.reward_gpu(given.reward_gpus)
    quiet_libraries()
    distributed.begin(cpu=given.device == "cpu")
    say = functools.partial(print, flush=True)
    code = train(workflow, resume=given.resume, take_over=given.take_over, say=say)
    distributed.end()
    return code


def _validate(given: argparse.Namespace) -> int:
    """Checks a workflow without running it and prints every problem, and what it would read, post, download or run that is not
    its own; exit code 2 if there is an error.
    """
    from ..trainer.run import preflight

    workflow = options.load(given)
    failed = _show(preflight.problems(workflow))
    options.say_wants(workflow, sys.stderr if failed else sys.stdout)
    if failed:
        return options.EXIT_BAD_INPUT
    print(f"{given.workflow}: ready to train")
    return 0


def _nodes(given: argparse.Namespace) -> int:
    """Lists what the graph can be built of."""
    from ..nodes import NODE_CLASS_MAPPINGS

    for name, node in NODE_CLASS_MAPPINGS.items():
        print(f"{name}  ({node.TITLE}, {node.CATEGORY})\n    {node.DESCRIPTION}")
        for kind in ("required", "optional"):
            for socket, (type_, *details) in node.INPUT_TYPES().get(kind, {}).items():
                shown = type_ if isinstance(type_, str) else " | ".join(map(str, type_))
                default = details[0].get("default", "") if details else ""
                preset = f" = {default}" if default != "" else ""
                print(f"    <- {socket}: {shown}{preset}{' (optional)' if kind == 'optional' else ''}")
        for type_, socket in zip(node.RETURN_TYPES, getattr(node, "RETURN_NAMES", node.RETURN_TYPES), strict=True):
            print(f"    -> {socket}: {type_}")
        print()
    return 0


def _show(problems: Sequence[Problem]) -> bool:
    """Prints what is wrong; returns whether there is an error."""
    from ..trainer.workflow.problem import bounded

    for problem in bounded(problems):
        print(f"{problem.severity}: {problem}", file=sys.stderr)
    return any(problem.severity == "error" for problem in problems)
