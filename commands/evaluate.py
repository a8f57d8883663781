"""`otca eval`: compares a model with what it was trained to."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import options


def add(commands) -> None:
    parser = commands.add_parser("eval", help="compare a model with what it was trained to", description=_run.__doc__)
    parser.add_argument("source", metavar="RUN|MODEL", help="a run's folder, or a model's folder or name")
    parser.add_argument(
        "--lora",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="an adapter, or a run's folder, to compare with. May be given more than once",
    )
    parser.add_argument(
        "--guide",
        action="append",
        default=[],
        metavar="[NAME=]RUN=γ",
        help="implicit reward guidance, as of otca sample. Guides of one NAME are composed. May be given more than once",
    )
    parser.add_argument("--prompts", required=True, metavar="FILE", help="one prompt a line, or .jsonl")
    options.reward_argument(parser)
    options.count(parser, "--seeds", "pictures to a prompt", 4)
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--guidance", type=float, help="(default: the run's own, or 3.5)")
    options.sampling_arguments(parser)
    parser.add_argument(
        "--output",
        type=options.folder,
        metavar="DIR",
        help="continues what is there (default: evaluation in the run, or here)",
    )
    options.comfyui_arguments(parser)
    options.permission_arguments(parser)
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    """Samples prompts by a model, by what a run made of it and with adapters, on the same seeds; scores and compares them.

    Ctrl-C keeps what is done, and the same command continues from there.
    """
    from ..host.devices import choose
    from ..inference.loading import is_run
    from ..study import evaluate, scoring
    from ..trainer.prompts import read_prompts

    options.allow(arguments)
    options.allow_rewards(arguments.reward)
    others = [*map(evaluate.parse_lora, arguments.lora), *evaluate.parse_guides(arguments.guide)]
    options.user_names(
        arguments.source, arguments.prompts, *(guide.source for other in others for guide in other.guides)
    )
    choose(arguments.device)
    options.quiet_libraries()
    folder = arguments.output or (Path(arguments.source) if is_run(arguments.source) else Path(".")) / "evaluation"

    def work() -> int:
        table = evaluate.evaluate(
            arguments.source,
            others,
            read_prompts("", arguments.prompts),
            range(arguments.seed, arguments.seed + arguments.seeds),
            {text: scoring.parse_reward(text) for text in arguments.reward},
            folder,
            options.classes_of_run(arguments, arguments.source),
            size=arguments.size,
            batch_size=arguments.batch_size,
            steps=arguments.steps,
            frames=arguments.frames,
            guidance=arguments.guidance,
        )
        print(table)
        print(folder)
        return 0

    return options.stoppable(work, options.CONTINUES.format(folder))
