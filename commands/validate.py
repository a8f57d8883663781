"""`otca validate`: checks a workflow without running it."""

from __future__ import annotations

import argparse
import sys

from . import options


def add(commands) -> None:
    parser = commands.add_parser("validate", help="check a workflow", description=_run.__doc__)
    options.workflow_arguments(parser)
    parser.add_argument(
        "--gpus", type=options.positive, default=1, metavar="N", help="check it for otca train --gpus N (default: 1)"
    )
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    """Checks a workflow without running it and prints every problem, and what it would read, post, download or run that is not
    its own; exit code 2 if there is an error.
    """
    from ..trainer.checks import preflight

    workflow = options.load(arguments)
    failed = options.print_problems(preflight.problems(workflow, arguments.gpus))
    options.say_wants(workflow, sys.stderr if failed else sys.stdout)
    if failed:
        return options.EXIT_BAD_INPUT
    print(f"{arguments.workflow}: ready to train")
    return 0
