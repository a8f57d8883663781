"""`otca`, as a shell runs it. The commands are in `commands/`; here is what all of them share: exit codes and error messages."""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import pkgutil
import sys
from collections.abc import Callable
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any


def main(arguments: list[str] | None = None) -> int:
    from .host import environment
    from .host.search import stay_offline

    stay_offline()
    # Before torch is imported. Threads that spin while they wait keep a core from whoever has work for it.
    environment.write_default("OMP_WAIT_POLICY", "PASSIVE")
    gc.set_threshold(100_000)  # importing torch and diffusers makes very many objects that stay
    arguments = sys.argv[1:] if arguments is None else arguments
    with contextlib.redirect_stdout(_output(sys.stdout)), contextlib.redirect_stderr(_output(sys.stderr)):
        return _run(arguments)


def _run(arguments: list[str]) -> int:
    from .commands.options import EXIT_BAD_INPUT
    from .host import environment
    from .host.errors import Expected
    from .host.text import shorten_logs

    options = parser().parse_args(arguments, argparse.Namespace(command_line=arguments))
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    shorten_logs("")
    try:
        return options.command(options)
    except (Expected, ValueError, OSError) as error:  # ValueError: of a library, about what it was given
        process, message = environment.read("RANK"), str(error)
        if isinstance(error, OSError) and "Fix:" not in message:  # the system's own words
            message += ". Fix: make that place readable and writable and free its disk, or name another one"
        print(f"otca{f' process {process}' if process else ''}: {message}", file=sys.stderr)
        # Returns EXIT_BAD_INPUT for an error in what the user gave, 1 for any other
        if isinstance(error, Expected):
            return EXIT_BAD_INPUT if error.status < 500 else 1
        return EXIT_BAD_INPUT if isinstance(error, ValueError | FileNotFoundError) else 1


class _Output:
    """A stream whose reader may go away, as `head` or a terminal does, or whose disk may be full: what is printed from then on is
    lost, and no work is. What its encoding lacks is escaped."""

    def __init__(self, stream: Any):
        self._stream = stream
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, work: Callable[[], object]) -> None:
        try:
            work()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _output(stream: Any) -> Any:
    """None where there is no stream, as under pythonw."""
    return stream if stream is None or isinstance(stream, _Output) else _Output(stream)


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
