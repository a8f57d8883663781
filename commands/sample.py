"""`otca sample`: makes pictures with a run or a model."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import options


def add(commands) -> None:
    parser = commands.add_parser("sample", help="make pictures with a run or a model", description=_run.__doc__)
    parser.add_argument("source", metavar="RUN|MODEL", help="a run's folder, or a model's folder or name")
    parser.add_argument("--prompt", action="append", required=True, help="may be given more than once")
    options.count(parser, "--seeds", "pictures to a prompt", 4)
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--output", type=Path, metavar="PNG", help="default: samples-<n>.png in the run, or here")
    parser.add_argument(
        "--pair",
        type=options.folder,
        metavar="FOLDER",
        help="of a run: before.png and after.png of one prompt and seed, in a new folder, instead of a grid",
    )
    parser.add_argument(
        "--guide",
        action="append",
        default=[],
        metavar="RUN=γ",
        help="implicit reward guidance: so much of that run's or LoRA's change of the velocity; RUN=0:1.5,8:0.5 from these "
        "steps on. May be given more than once",
    )
    options.sampling_arguments(parser)
    options.comfyui_arguments(parser)
    options.permission_arguments(parser)
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    """Makes a grid of pictures by the deterministic sampler; for a run, without its adapter above and with it below.

    With --guide: without guides above, with all of them below. A run's own adapter then counts only if it is one of them.
    """
    from ..host.devices import choose
    from ..inference import guidance
    from ..inference.loading import sample_to_file

    options.allow(arguments)
    guides = [guidance.parse(text) for text in arguments.guide]
    options.user_names(arguments.source, *(guide.source for guide in guides))
    choose(arguments.device)
    options.quiet_libraries()
    if arguments.pair:
        return _pair(arguments)
    path = sample_to_file(
        arguments.source,
        arguments.prompt,
        seeds=range(arguments.seed, arguments.seed + arguments.seeds),
        steps=arguments.steps,
        size=arguments.size,
        frames=arguments.frames,
        batch_size=arguments.batch_size,
        output=arguments.output,
        node_classes=options.classes_of_run(arguments, arguments.source),
        guides=guides,
    )
    print(path)
    return 0


def _pair(arguments: argparse.Namespace) -> int:
    from ..inference.loading import pair_to_folder

    others = ("output", "guide", "steps", "size", "frames")
    if len(arguments.prompt) > 1 or (given := [f"--{name}" for name in others if getattr(arguments, name)]):
        extra = "a second --prompt" if len(arguments.prompt) > 1 else given[0]
        raise ValueError(f"--pair and {extra} say two things. Fix: leave one of them out")
    classes = options.classes_of_run(arguments, arguments.source)
    folder = Path(arguments.source).expanduser()
    pair_to_folder(folder, arguments.prompt[0], arguments.seed, arguments.pair, classes, _say)
    print(arguments.pair)
    return 0


def _say(line: str) -> None:
    print(line, flush=True)
