"""`otca report`, `otca serve` and `otca vote`: pages to look at a run, here or from another machine, and to ask people; what
ComfyUI's own page may do, `otca allow`, and where the pack reads and writes, `otca where`."""

from __future__ import annotations

import argparse
import json
import logging
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from ..host import environment
from . import options
from .options import arg, command, count, flag

if TYPE_CHECKING:
    from aiohttp import web


@command(
    "report",
    "make a page of a run, to look at or pass on",
    arg("run", "a run's folder", type=Path),
    arg("--output", "default: report.html in the run", type=Path, metavar="FILE.html"),
)
def report(arguments: argparse.Namespace) -> int:
    """Writes one HTML page with a run's curves, evaluations, pictures, credit, times, settings and workflow in it."""
    from ..nodes import NODE_CLASS_MAPPINGS
    from ..page.run_page import write

    print(write(arguments.run, arguments.output, NODE_CLASS_MAPPINGS))
    return 0


@command(
    "serve",
    "show a run to the sidebar of another machine",
    arg("run", "a run's folder", type=options.folder),
    arg("--host", "0.0.0.0 to be reached without a tunnel", default="127.0.0.1"),
    count("--port", "that it listens at", 8191),
)
def serve(arguments: argparse.Namespace) -> int:
    """Shows a run to the OTCA sidebar on another machine (Watch…): curves, samples, log and adapter, and a Stop. Nothing else can
    be changed, and checkpoints are not sent. A request needs the token: that of the environment variable OTCA_SERVE_TOKEN, or
    one that it makes and prints. It listens on this machine alone, for a tunnel such as ssh -L 8191:127.0.0.1:8191 USER@HERE."""
    from ..page.remote.server import TOKEN_VARIABLE, application

    folder = Path(arguments.run)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder. Fix: give the folder of a run, as --output of otca train named it")
    token = environment.read(TOKEN_VARIABLE) or secrets.token_urlsafe(24)
    address = f"address  http://{arguments.host}:{arguments.port}"
    return _listen(arguments, application(folder, token), f"showing {folder.resolve()}", address, f"token    {token}")


@command(
    "allow trainings",
    "let ComfyUI's page start and stop trainings",
    arg(
        "--user-folder",
        "ComfyUI's user folder (default: that of the ComfyUI whose custom node this is)",
        type=options.existing_folder,
        metavar="FOLDER",
    ),
    flag("--take-back", "no longer"),
)
def allow_trainings(arguments: argparse.Namespace) -> int:
    """Allows ComfyUI's page to start, resume and stop trainings as processes of this machine, and to delete runs, by an empty
    file in ComfyUI's user folder. No node and no request can make that file. It counts from ComfyUI's next start on."""
    from ..host import comfyui
    from ..host.access.permissions import TRAININGS_FILE

    lies_in = comfyui.folder()
    folder = arguments.user_folder or (lies_in / "user" if lies_in else None)
    if folder is None:
        raise ValueError(
            "this pack lies in no ComfyUI's custom_nodes. Fix: --user-folder FOLDER, ComfyUI's user folder"
        )
    file = folder / TRAININGS_FILE
    if arguments.take_back:
        file.unlink(missing_ok=True)
    else:
        file.touch()
    print(f"{file} is {'gone' if arguments.take_back else 'there'}. Restart ComfyUI")
    return 0


@command(
    "where",
    "list all places that the pack reads or writes",
    arg(
        "--comfyui",
        "ComfyUI's folder (default: that of the ComfyUI whose custom node this is)",
        type=options.existing_folder,
        metavar="PATH",
    ),
    flag("--json", "as JSON"),
)
def where(arguments: argparse.Namespace) -> int:
    """Lists every place outside the pack's own folder that it reads or writes: its path, what is there, what it is for, and what
    is lost with it. Nothing is changed. A ComfyUI that is started with other folders: set COMFYUI_ARGUMENTS to its options."""
    from ..host import comfyui, extras, headless_comfyui, places, search  # noqa: F401 each declares places
    from ..page.remote import kept_tokens  # noqa: F401
    from ..trainer.pictures import figures  # noqa: F401

    root = arguments.comfyui or comfyui.folder()
    listed = places.listed(headless_comfyui.folders_of(root) if root else None)
    if arguments.json:
        print(json.dumps(listed, indent=1))
        return 0
    for group, chosen in (
        ("the pack's own", lambda place: place["ours"] and place["written"]),
        ("others' too, where it writes", lambda place: not place["ours"] and place["written"]),
        ("only read", lambda place: not place["written"]),
    ):
        print(f"{group}:")
        for place in filter(chosen, listed):
            size = f"{place['files']} files, {place['bytes'] / 1e6:,.1f} MB" if place["exists"] else "nothing there"
            lost = f". Lost with it: {place['loses']}" if place["loses"] else ""
            print(f"  {place['path']}  ({size})\n    {place['name']}: {place['use']}{lost}")
    print("Commands in a terminal also write where --output, --csv and --folder say.")
    return 0


VOTE_TOKEN = "OTCA_REWARD_TOKEN"


@command(
    "vote",
    "ask people, on a page in the browser",
    arg(
        "--folder",
        "where the votes and the pictures are kept",
        type=options.folder,
        default=Path("votes"),
        metavar="FOLDER",
    ),
    arg("--host", "0.0.0.0 to be reached from other machines, with a token", default="127.0.0.1"),
    count("--port", "that it listens at", 8190),
    arg("--fps", "frames per second of the videos that are kept", type=float, default=16.0),
    arg(
        "--learn",
        "learn from the votes by that image encoder (a folder, or the name of one), and ask only about the rest",
        default="",
        metavar="ENCODER",
    ),
    flag("--pairs", "ask no one: write what was voted as pairs.jsonl beside the pictures, for My Pictures"),
)
def vote(arguments: argparse.Namespace) -> int:
    """Serves a page where people vote on pictures, and a reward that Reward: Vote or Reward: HTTP can ask. Where other machines
    reach it, it wants a token: that of the environment variable OTCA_REWARD_TOKEN, or one that it makes and prints."""
    if arguments.pairs:
        return _write_pairs(arguments.folder)
    from ..host.access.addresses import is_loopback
    from ..page.votes import application
    from ..trainer.opinions import votes
    from ..trainer.opinions.asking import VoteFolder

    options.user_names(arguments.learn or None)
    folder = VoteFolder(arguments.folder, arguments.fps, arguments.learn)
    # A damaged file, or an encoder that is not there, is said now, and not when the first picture comes.
    before, _ = votes.standing(votes.read(folder.store)), folder.learner
    token = "" if is_loopback(arguments.host) else environment.read(VOTE_TOKEN) or secrets.token_urlsafe(24)
    shown = f"http://{arguments.host}:{arguments.port}"
    return _listen(
        arguments,
        application(folder, token),
        f"{len(before)} votes in {folder.store.file}",
        f"vote on      {shown}/{f'?token={token}' if token else ''}",
        f"url for rewards  {shown}/score{f', with {VOTE_TOKEN}={token}' if token else ''}",
        handler_cancellation=True,
    )


def _listen(arguments: argparse.Namespace, app: web.Application, *lines: str, **how) -> int:
    """Serves until the user ends it; says the lines once it listens."""
    from aiohttp import web

    from ..page.requests import in_one_line

    logging.getLogger("aiohttp.server").addFilter(in_one_line)

    def ready(_) -> None:
        print(*lines, sep="\n", flush=True)

    web.run_app(app, host=arguments.host, port=arguments.port, print=ready, access_log=None, **how)
    return 0


def _write_pairs(folder: Path) -> int:
    """Writes a pair for each two pictures of a vote if one of them was better. It writes the whole file anew, without videos."""
    from ..host.files import write_text
    from ..trainer.opinions import votes
    from ..trainer.opinions.reading import CHOSEN, FILE, REJECTED

    lines = [
        json.dumps({"prompt": vote.prompt, CHOSEN: vote.pictures[better], REJECTED: vote.pictures[worse]})
        for vote in votes.standing(votes.read(votes.of_folder(folder)))
        for better, worse in vote.pairs
        if vote.pictures[better].endswith(".png")
    ]
    if not lines:
        raise ValueError(
            f"{folder / votes.FILE} has no vote by which one picture is better than another. Fix: vote first, or give the "
            "folder of votes as --folder"
        )
    write_text(folder / FILE, "\n".join(lines) + "\n")
    print(f"{len(lines)} pairs in {folder / FILE}")
    return 0
