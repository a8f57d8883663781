"""`otca train --gpus N`: starts N processes of the same command by torchrun."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

STOPPED = (128 + signal.SIGTERM, -signal.SIGTERM)  # whom torchrun asked to end because of another one's failure
FOLDER = str(Path(__file__).resolve().parents[2])  # a plain clone is not installed, or is not the one that is


def launch(processes: int, max_restarts: int, arguments: Sequence[str]) -> int:
    """Runs `otca` with these arguments in so many processes on this machine, and waits for them.

    Args:
        max_restarts: how often all are started again, from the last checkpoint, after one has died.

    Returns:
        0, the exit code of the first that failed (1 for one that was killed), or 128 + the signal that stopped them.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    from ...host.distributed import PATIENCE

    # An evaluation ends before a stop is heeded; torchrun would kill after half a minute
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(int(PATIENCE.total_seconds())))
    # A store that outlives a failed attempt hands its addresses to the next one, which then waits for the dead:
    # https://github.com/pytorch/pytorch/issues/135712
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # nohup: torchrun would undo it
        os.environ.setdefault("PET_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGQUIT")
    options = ["--standalone", f"--nproc-per-node={processes}", f"--max-restarts={max_restarts}"]
    try:
        torchrun([*options, FOLDER, *arguments])
    except SignalException as stopped:
        return 128 + stopped.sigval
    except ChildFailedError as failed:
        codes = {rank: failure.exitcode for rank, failure in sorted(failed.failures.items())}
        codes = {rank: code for rank, code in codes.items() if code not in STOPPED} or codes
        ends = ", ".join(f"process {rank} {_ended(code)}" for rank, code in codes.items())
        print(f"otca: on {socket.gethostname()}, {ends}. --resume continues from the last checkpoint", file=sys.stderr)
        return max(1, next(iter(codes.values())))
    return 0


def _ended(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
