"""`otca vote`: a web page that asks which pictures are the best, for trainings elsewhere."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from . import options

TOKEN = "OTCA_REWARD_TOKEN"


def add(commands) -> None:
    parser = commands.add_parser("vote", help="ask people, on a page in the browser", description=_run.__doc__)
    parser.add_argument(
        "--folder",
        type=options.folder,
        default=Path("votes"),
        metavar="FOLDER",
        help="where votes.jsonl and the pictures are kept (default ./votes)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 to be reached from other machines, with a token")
    parser.add_argument("--port", type=options.positive, default=8190, metavar="N", help="default 8190")
    parser.add_argument(
        "--fps", type=float, default=16.0, help="frames per second of the videos that are kept (default 16)"
    )
    parser.add_argument(
        "--learn",
        default="",
        metavar="ENCODER",
        help="learn from the votes by that image encoder (a folder, or the name of one), and ask only about the rest",
    )
    parser.add_argument(
        "--pairs",
        action="store_true",
        help="ask nobody: write what was voted as pairs.jsonl beside the pictures, for Preference Pairs",
    )
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    """Serves a page where people vote on pictures, and a reward that Reward: Vote or Reward: HTTP can ask. Where other machines
    reach it, it wants a token: that of the environment variable OTCA_REWARD_TOKEN, or one that it makes and prints."""
    if arguments.pairs:
        return _write_pairs(arguments.folder)
    import secrets

    from aiohttp import web

    from ..host.access.addresses import is_loopback
    from ..page.votes import application
    from ..trainer.rewards.vote import votes
    from ..trainer.rewards.vote.asking import VoteFolder

    options.user_names(arguments.learn or None)
    folder = VoteFolder(arguments.folder, arguments.fps, arguments.learn)
    # A damaged file, or an encoder that is not there, is said now, and not when the first picture comes.
    before, _ = votes.standing(votes.read(folder.file)), folder.apprentice
    token = "" if is_loopback(arguments.host) else os.environ.get(TOKEN) or secrets.token_urlsafe(24)
    shown = f"http://{arguments.host}:{arguments.port}"
    app = application(folder, token)

    def ready(_) -> None:
        print(f"{len(before)} votes in {folder.file}")
        print(f"vote on      {shown}/{f'?token={token}' if token else ''}")
        print(f"url for rewards  {shown}/score{f', with {TOKEN}={token}' if token else ''}", flush=True)

    web.run_app(app, host=arguments.host, port=arguments.port, print=ready, handler_cancellation=True, access_log=None)
    return 0


def _write_pairs(folder: Path) -> int:
    from ..study import voted

    file, count = voted.write(folder)
    print(f"{count} pairs in {file}")
    return 0
