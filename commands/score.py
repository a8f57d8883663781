"""`otca score`: scores pictures and videos that are there."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import options


def add(commands) -> None:
    parser = commands.add_parser("score", help="score pictures and videos that are there", description=_run.__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="pictures, videos, folders or patterns of them")
    options.reward_argument(parser)
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="one prompt a line, or .jsonl (default: <name>.txt or metadata.jsonl beside the files)",
    )
    parser.add_argument("--prompt", help="the same prompt for all files")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="writes every single score")
    options.count(parser, "--batch-size", "files at once", 8)
    parser.add_argument("--device", help="cpu, cuda, cuda:1 …")
    options.permission_arguments(parser)
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    """Scores files by rewards; prints each reward's mean with its 95 % bootstrap interval as a Markdown table."""
    from ..host.devices import choose
    from ..study import scoring

    options.allow(arguments)
    options.allow_rewards(arguments.reward)
    choose(arguments.device)
    options.quiet_libraries()
    options.user_names(arguments.prompts)
    files = scoring.find_files(arguments.files)
    if arguments.prompt is not None:
        prompts = [arguments.prompt] * len(files)
    else:
        prompts = scoring.prompts_of(files, arguments.prompts)
    rewards = [scoring.parse_reward(text) for text in arguments.reward]
    scores = scoring.score_files(rewards, files, prompts, arguments.batch_size)
    names = [reward.name for reward in rewards]
    print(scoring.table(names, scores))
    if arguments.csv is not None:
        scoring.write_csv(arguments.csv, files, prompts, names, scores)
    return 0
