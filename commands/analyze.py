"""`otca analyze`: measures whether credit follows the rewards."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import options


def add(commands) -> None:
    parser = commands.add_parser("analyze", help="measure whether credit follows the rewards", description=_run.__doc__)
    options.workflow_arguments(parser)
    options.count(parser, "--iterations", "rollouts", 4)
    parser.add_argument(
        "--adapter", type=Path, metavar="RUN|FILE", help="of the trained model (default: as the workflow loads it)"
    )
    options.count(parser, "--tweedie-steps", "model calls to predict a picture", 1)
    parser.add_argument("--seed", type=int, help="sets every node's seed")
    parser.add_argument("--device", help="cpu, cuda, cuda:1 … instead of what the nodes name")
    parser.add_argument("--output", type=options.folder, metavar="DIR", help="(default: analysis in the run, or here)")
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    """Samples by a workflow without training, scores the predicted picture at every step, and compares what each step gained
    with what the credit's proxies say. Prints the agreement as a table; figures and plots go into the folder.
    """
    from ..host.devices import choose
    from ..study.analyze import analyze

    choose(arguments.device)
    options.quiet_libraries()
    workflow = options.load(arguments)
    options.set_seeds(workflow, arguments.seed)
    folder = arguments.output or (arguments.workflow if arguments.workflow.is_dir() else Path(".")) / "analysis"

    def work() -> int:
        table = analyze(workflow, folder, arguments.iterations, arguments.adapter, arguments.tweedie_steps)
        print(table)
        print(folder)
        return 0

    return options.stoppable(work, "nothing was written")
