"""`otca vbench`: shows VBench's results as a table."""

from __future__ import annotations

import argparse
from pathlib import Path


def add(commands) -> None:
    parser = commands.add_parser("vbench", help="a table of VBench's results", description=_run.__doc__)
    parser.add_argument(
        "results", nargs="+", metavar="[NAME=]RESULTS", help="a folder that VBench wrote, or one *_eval_results.json"
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="writes the same in full precision")
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    """Prints what VBench found of each model as a Markdown table, in percent: Total, Quality, Semantic and every dimension."""
    from ..study import vbench

    evaluations = []
    for text in arguments.results:
        name, equals, path = text.partition("=")
        evaluations.append(vbench.read(Path(path if equals else text).expanduser(), name if equals else ""))
    print(vbench.markdown(evaluations), end="")
    if arguments.csv is not None:
        arguments.csv.write_text(vbench.sheet(evaluations), encoding="utf-8")
    return 0
