"""`otca export`: merges what a run trained into a whole model."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import options


def add(commands) -> None:
    parser = commands.add_parser("export", help="merge what a run trained into a whole model", description=_run.__doc__)
    parser.add_argument("run", help="a run's folder")
    parser.add_argument("--output", type=Path, required=True, help="folder of the new model, in diffusers' layout")
    parser.add_argument("--device", help="auto, cpu, cuda …")
    options.comfyui_arguments(parser)
    options.permission_arguments(parser)
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    """Writes a run's model as a whole, with what was trained merged into its weights."""
    from ..host.devices import choose
    from ..inference.loading import load_run

    options.allow(arguments)
    choose(arguments.device)
    options.quiet_libraries()
    if arguments.output.exists() and any(arguments.output.iterdir()):
        raise ValueError(f"--output {arguments.output} is not empty. Fix: choose another folder")
    model, _ = load_run(Path(arguments.run), options.classes_of_run(arguments, arguments.run), whole=True)
    model.export(arguments.output)
    print(arguments.output)
    return 0
