"""`otca serve`: shows a run to the page of another machine."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from . import options


def add(commands) -> None:
    parser = commands.add_parser("serve", help="show a run to the sidebar of another machine", description=_run.__doc__)
    parser.add_argument("run", type=options.folder, help="a run's folder")
    parser.add_argument(
        "--host", default="127.0.0.1", help="0.0.0.0 to be reached without a tunnel (default 127.0.0.1)"
    )
    parser.add_argument("--port", type=options.positive, default=8191, metavar="N", help="default 8191")
    parser.set_defaults(command=_run)


def _run(arguments: argparse.Namespace) -> int:
    """Shows a run to the OTCA sidebar on another machine (Watch…): curves, samples, log and adapter, and a Stop. Nothing else can
    be changed, and checkpoints are not sent. Whoever asks needs the token: that of the environment variable OTCA_SERVE_TOKEN, or
    one that it makes and prints. It listens on this machine alone, for a tunnel such as ssh -L 8191:127.0.0.1:8191 USER@HERE."""
    import secrets

    from aiohttp import web

    from ..page.remote.server import TOKEN_VARIABLE, application

    folder = Path(arguments.run)
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder. Fix: give the folder of a run, as --output of otca train named it")
    token = os.environ.get(TOKEN_VARIABLE) or secrets.token_urlsafe(24)
    app = application(folder, token)

    def ready(_) -> None:
        print(f"showing {folder.resolve()}")
        print(f"address  http://{arguments.host}:{arguments.port}")
        print(f"token    {token}", flush=True)

    web.run_app(app, host=arguments.host, port=arguments.port, print=ready, access_log=None)
    return 0
