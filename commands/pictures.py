"""sample, export, report: what was trained, as pictures, as a whole model, as a page."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import options


def add(commands) -> None:
    sample = commands.add_parser("sample", help="make pictures with a run or a model", description=_sample.__doc__)
    sample.add_argument("source", metavar="RUN|MODEL", help="a run's folder, or a model's folder or name")
    sample.add_argument("--prompt", action="append", required=True, help="may be given more than once")
    sample.add_argument(
        "--seeds", type=options.positive, default=4, metavar="N", help="pictures to a prompt (default 4)"
    )
    sample.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    sample.add_argument("--output", type=Path, metavar="PNG", help="default: samples-<n>.png in the run, or here")
    sample.add_argument(
        "--guide",
        action="append",
        default=[],
        metavar="RUN=γ",
        help="implicit reward guidance: so much of that run's or LoRA's change of the velocity; RUN=0:1.5,8:0.5 from these "
        "steps on. May be given more than once",
    )
    options.sampling_arguments(sample)
    options.permission_arguments(sample)
    sample.set_defaults(command=_sample)

    export = commands.add_parser(
        "export", help="merge what a run trained into a whole model", description=_export.__doc__
    )
    export.add_argument("run", help="a run's folder")
    export.add_argument("--output", type=Path, required=True, help="folder of the new model, in diffusers' layout")
    export.add_argument("--device", help="auto, cpu, cuda …")
    options.permission_arguments(export)
    export.set_defaults(command=_export)

    report = commands.add_parser(
        "report", help="make a page of a run, to look at or pass on", description=_report.__doc__
    )
    report.add_argument("run", type=Path, help="a run's folder")
    report.add_argument("--output", type=Path, metavar="FILE.html", help="default: report.html in the run")
    report.set_defaults(command=_report)


def _sample(given: argparse.Namespace) -> int:
    """Makes a grid of pictures by the deterministic sampler; for a run, without its adapter above and with it below.

    With --guide: without guides above, with all of them below. A run's own adapter then counts only if it is one of them.
    """
    from ..host.terminal import quiet_libraries, terminal
    from ..nodes import NODE_CLASS_MAPPINGS
    from ..trainer.inference import guidance
    from ..trainer.inference.loading import sample_to_file

    options.allow(given)
    guides = [guidance.parse(text) for text in given.guide]
    options.user_names(given.source, *(guide.source for guide in guides))
    terminal.device = given.device
    quiet_libraries()
    path = sample_to_file(
        given.source,
        given.prompt,
        seeds=range(given.seed, given.seed + given.seeds),
        steps=given.steps,
        size=given.size,
        frames=given.frames,
        batch_size=given.batch_size,
        output=given.output,
        node_classes=NODE_CLASS_MAPPINGS,
        guides=guides,
    )
    print(path)
    return 0


def _export(given: argparse.Namespace) -> int:
    """Writes a run's model as a whole, with what was trained merged into its weights."""
    from ..host.terminal import quiet_libraries, terminal
    from ..nodes import NODE_CLASS_MAPPINGS
    from ..trainer.flow.saved import export
    from ..trainer.inference.loading import load_run

    options.allow(given)
    terminal.device = given.device
    quiet_libraries()
    if given.output.exists() and any(given.output.iterdir()):
        raise ValueError(f"--output {given.output} is not empty. Fix: choose another folder")
    model, _ = load_run(Path(given.run), NODE_CLASS_MAPPINGS, whole=True)
    export(model, given.output)
    print(given.output)
    return 0


def _report(given: argparse.Namespace) -> int:
    """Writes one HTML page with a run's curves, evaluations, pictures, credit, times, settings and workflow in it."""
    from ..nodes import NODE_CLASS_MAPPINGS
    from ..study.run_page import write

    print(write(given.run, given.output, NODE_CLASS_MAPPINGS))
    return 0
