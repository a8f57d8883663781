"""`otca taste`: a taste, learned from choices."""

from __future__ import annotations

import argparse
from pathlib import Path

from . import options


def add(commands) -> None:
    parser = commands.add_parser("taste", help="learn a reward from your choices", description="Learns from choices.")
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    fit = actions.add_parser("fit", help="fit the head of Reward: My Taste", description=_fit.__doc__)
    fit.add_argument(
        "votes", nargs="*", type=Path, metavar="VOTES", help="folders of votes, votes.jsonl, or pair files (.jsonl)"
    )
    fit.add_argument("--liked", type=Path, metavar="DIR", help="pictures, each better than …")
    fit.add_argument("--disliked", type=Path, metavar="DIR", help="… each of these")
    fit.add_argument(
        "--encoder", default="shapes-clip", metavar="NAME", help="CLIP, SigLIP 2, DINOv2 … (default shapes-clip)"
    )
    fit.add_argument(
        "--output", type=Path, default=Path("taste.safetensors"), metavar="FILE", help="(default taste.safetensors)"
    )
    fit.add_argument("--batch-size", type=options.positive, default=8, metavar="N", help="pictures at once (default 8)")
    fit.add_argument("--device", help="cpu, cuda, cuda:1 …")
    options.permission_arguments(fit)
    fit.set_defaults(command=_fit)


def _fit(arguments: argparse.Namespace) -> int:
    """Fits a linear head on a frozen image encoder to choices, and prints how well it predicts choices that were left out."""
    from ..study import taste

    options.allow(arguments)
    options.user_names(arguments.encoder)
    options.quiet_libraries()
    if (arguments.liked is None) != (arguments.disliked is None):
        raise ValueError("--liked and --disliked belong together. Fix: give both folders")
    if not arguments.votes and arguments.liked is None:
        raise ValueError("there is nothing to learn from. Fix: name VOTES, or --liked DIR --disliked DIR")
    if arguments.output.suffix != ".safetensors":
        raise ValueError(f"--output {arguments.output} is no .safetensors file. Fix: --output taste.safetensors")
    comparisons = [comparison for source in arguments.votes for comparison in taste.read_source(source)]
    if arguments.liked is not None:
        comparisons.append(taste.of_folders(arguments.liked, arguments.disliked))
    fitted = taste.fit_taste(comparisons, arguments.encoder, arguments.device or "auto", arguments.batch_size)
    fitted.save(arguments.output)
    print(taste.report(fitted))
    print(arguments.output)
    return 0
