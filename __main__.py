"""`otca`, as a shell runs it. The commands are in `commands/`; here is what all of them share: exit codes and error messages."""

from __future__ import annotations

import argparse
import gc
import importlib.util
import logging
import os
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    from .commands.options import EXIT_BAD_INPUT

    gc.set_threshold(100_000)  # importing torch and diffusers makes very many objects that stay
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser().parse_args(arguments, argparse.Namespace(command_line=arguments))
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
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
        importlib.import_module(f".commands.{name}", __package__)
    for add in COMMANDS:
        add(commands)
    return otca


def _complain(error: BaseException) -> None:
    process = os.environ.get("RANK")
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
    spec = importlib.util.spec_from_file_location(
        "comfyui_otca", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None  # as of every path that ends in .py
    package = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    return importlib.import_module("comfyui_otca.__main__").main


if __name__ == "__main__":
    sys.exit((main if __package__ else _main_of_clone())())
