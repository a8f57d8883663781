"""What a headless process was given on its command line, and a quiet terminal for it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass
class CommandLine:
    """The options that reach deep into a training. On the canvas all of them stay as they are here."""

    output: Path | None = None  # the run's folder
    device: str | None = None
    reward_device: str | None = None  # where rewards have GPUs of their own
    download: bool = False  # whether models may be downloaded from the hub


terminal = CommandLine()


def quiet_libraries() -> None:
    """Leaves the terminal to our own progress: no bars while small files are loaded, no notes about unused weights."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
