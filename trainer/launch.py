"""`otca train --gpus N`: starts N processes of the same command by torchrun."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def launch(processes: int, max_restarts: int, arguments: Sequence[str]) -> int:
    """Runs `otca` with these arguments in so many processes on this machine, and waits for them.

    Args:
        max_restarts: how often all are started again, from the last checkpoint, after one has died.

    Returns:
        0, 1 after a failure, or 128 + the signal that stopped them.
    """
    installed = importlib.util.find_spec("comfyui_otca") is not None
    ours = ["-m", "comfyui_otca"] if installed else [str(Path(__file__).resolve().parents[1])]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [*torchrun, f"--max-restarts={max_restarts}", *ours, *arguments]
    child = subprocess.Popen(command)
    asked: list[int] = []

    def forward(number: int, frame: object) -> None:
        if not asked:  # a terminal's Ctrl-C reaches all of them by itself
            asked.append(number)
            child.send_signal(signal.SIGTERM)

    previous = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = child.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    return 128 + asked[0] if asked else int(code != 0)
