"""`otca`, as a shell runs it. The commands are in `commands/`; here is what all of them share: exit codes and error messages."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import pkgutil
import sys
from importlib.util import spec_from_file_location
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    from .commands.options import EXIT_BAD_INPUT
    from .host.text import shorten_logs

    gc.set_threshold(100_000)  # importing torch and diffusers makes very many objects that stay
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser().parse_args(arguments, argparse.Namespace(command_line=arguments))
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    shorten_logs("")
    try:
        return options.command(options)
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except _bad_input() as error:
        _complain(error)
        return EXIT_BAD_INPUT
    except _failures() as error:
        _complain(error)
        return 1


def parser() -> argparse.ArgumentParser:
    """The command line; also asked by others for what this version can do."""
    from . import __version__
    from .commands import MODULES
    from .commands.options import COMMANDS

    otca = argparse.ArgumentParser(prog="otca", description="Train flow-matching models by reinforcement learning.")
    otca.add_argument("--version", action="version", version=f"otca {__version__}")
    commands = otca.add_subparsers(required=True, metavar="COMMAND")
    for name in MODULES:
        pkgutil.resolve_name(f"{__package__}.commands.{name}")
    for add in COMMANDS:
        add(commands)
    return otca


def _complain(error: BaseException) -> None:
    from .host import environment

    process = environment.read("RANK")
    print(f"otca{f' process {process}' if process else ''}: {error}", file=sys.stderr)


def _bad_input() -> tuple[type[Exception], ...]:
    """Errors in what the user gave. ValueError covers workflows, models and prompts."""
    from .host.access.permissions import NotAllowed
    from .host.claim import Claimed
    from .trainer.run.folder import RunError

    return (ValueError, FileNotFoundError, NotAllowed, RunError, Claimed)


def _failures() -> tuple[type[Exception], ...]:
    from .host.distributed import PeerFailed
    from .trainer.rewards import RewardError
    from .trainer.workflow import NodeError

    return (NodeError, PeerFailed, RewardError, OSError)


def _main_of_clone():
    """`main` of this folder loaded as the package it is, whatever the folder is called: `python path/to/ComfyUI-OTCA`."""
    folder = Path(__file__).resolve().parent
    # Python puts a folder that it runs first in its path. There `import nodes` would find ours and not ComfyUI's module, and our
    # `host`, `page` or `study` would hide what a user's Python reward imports by such a name.
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != folder]

    class Clone:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name == "comfyui_otca":
                return spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])

    sys.meta_path.insert(0, Clone)
    from comfyui_otca.__main__ import main

    return main


if __name__ == "__main__":
    sys.exit((main if __package__ else _main_of_clone())())
