"""`otca report`: writes the page of a run."""

from __future__ import annotations

import argparse
from pathlib import Path


def add(commands) -> None:
    parser = commands.add_parser("report", help="make a page of a run, to look at or pass on", description=_run.__doc__)
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("--output", type=Path, metavar="FILE.html", help="default: report.html in the run")
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    """Writes one HTML page with a run's curves, evaluations, pictures, credit, times, settings and workflow in it."""
    from ..nodes import NODE_CLASS_MAPPINGS
    from ..page.run_page import write

    print(write(arguments.run, arguments.output, NODE_CLASS_MAPPINGS))
    return 0
