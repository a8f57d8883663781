"""What a headless process was given on its command line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


class _Terminal:
    """What a headless process was told on its command line, and the stop flag."""

    stop_signal: int | None = None
    output: Path | None = None
    device: str | None = None
    reward_device: str | None = None  # where rewards have a GPU of their own
    download: bool = False  # hub ids may be fetched
    stop_waits: bool = False
    agree: Callable[[], None] | None = None  # of processes that can only stop together, in place of check_stop


terminal = _Terminal()


def quiet_libraries() -> None:
    """Leaves the terminal to our own progress: no bars from loading small files, no notes about unused weights."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
