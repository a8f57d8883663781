"""All processes that the pack starts, which are `otca` again: this Python, the pack's folder and a list of arguments, never a
shell. `start` begins one that goes on by itself; `launch`, of `otca train --gpus N`, N of the same command by torchrun.
"""

from __future__ import annotations

import functools
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from . import environment, silence

STOPPED = (128 + signal.SIGTERM, -signal.SIGTERM)  # whom torchrun asked to end because of another one's failure
FOLDER = str(Path(__file__).resolve().parents[1])  # a plain clone is not installed, or is not the one that is
WINDOWS_FLAGS = ("CREATE_NEW_PROCESS_GROUP", "CREATE_NO_WINDOW")
PIPE = subprocess.PIPE
# What says of a machine that it is one of several, each with what counts without it.
OF_MACHINES = {"NNODES": "1", "NODE_RANK": "", "MAIN_PORT": "29500", "MAIN_ADDRESS": ""}
ENDED: list[BaseException] = []  # what torchrun ended with, kept to the end of this process

Process = subprocess.Popen


def start(arguments: Sequence[str], variables: Mapping[str, str], output: IO | int) -> Process:
    """Starts `otca` with these arguments as a process of its own, which gets nothing to read.

    `variables`: what its environment has beside this process's, or instead of it.
    `output`: the file, or PIPE, that gets what it prints, errors too.

    Raises:
        OSError: no process could be started.
    """
    return subprocess.Popen(
        [sys.executable, FOLDER, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment.of_child(variables),
        # Ctrl-C in our terminal, and its end, must not reach the process: we ask it to stop once
        start_new_session=True,
        # and on Windows neither must the end of that terminal's window
        creationflags=sum(getattr(subprocess, flag, 0) for flag in WINDOWS_FLAGS),
    )


def machines() -> int:
    """How many machines train together, as the environment of each of them says, with its number and the first one's address.

    Raises:
        ValueError: it says that there are several, and not all that these need.
    """
    count, number, port, address = map(environment.read, OF_MACHINES, OF_MACHINES.values())
    right = all(value.isdecimal() for value in (count, number, port)) and int(number) < int(count) and address
    if count != "1" and not right:
        raise ValueError(
            f"NNODES={count}, NODE_RANK={number}, MAIN_ADDRESS={address} and MAIN_PORT={port} do not describe several machines. "
            "Fix: on each machine set NNODES to how many there are, NODE_RANK to its own number from 0, and MAIN_ADDRESS and "
            "MAIN_PORT to the address and a free port of machine 0; or remove NNODES, to train on this machine alone"
        )
    return int(count)


def launch(processes: int, max_restarts: int, arguments: Sequence[str]) -> int:
    """Runs `otca` with these arguments in so many processes on this machine, one of `machines()`, and waits for them.

    `max_restarts`: how often all are started again, from the last checkpoint, after one has died.

    Returns:
        0, the exit code of the first that failed (1 for one that was killed), or 128 + the signal that stopped them.
    """
    import psutil
    from torch.distributed import DistError
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    from .distributed import PATIENCE

    # An evaluation ends before a stop is heeded; torchrun would kill after half a minute
    environment.write_default("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(int(PATIENCE.total_seconds())))
    # A store that outlives a failed attempt hands its addresses to the next one, which then waits for the dead:
    # https://github.com/pytorch/pytorch/issues/135712
    environment.write("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    hangup = getattr(signal, "SIGHUP", None)  # which Windows lacks
    if hangup and signal.getsignal(hangup) == signal.SIG_IGN:  # nohup: torchrun would undo it
        environment.write_default("PET_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGQUIT")
    count, number, port, address = map(environment.read, OF_MACHINES, OF_MACHINES.values())
    several = f"--nnodes={count} --node-rank={number} --master-port={port} --master-addr={address}"
    options = several.split() if machines() > 1 else ["--standalone"]
    say = functools.partial(print, file=sys.stderr, flush=True)
    try:
        waits = f"{socket.gethostname()}, machine {number} of {machines()}, waits for the others"
        with silence.broken(lambda line: None if psutil.Process().children() else say(line), waits):
            torchrun([*options, f"--nproc-per-node={processes}", f"--max-restarts={max_restarts}", FOLDER, *arguments])
    except DistError as error:
        fix = "start all machines, each with its own NODE_RANK and all with one MAIN_ADDRESS and MAIN_PORT, which they must reach"
        say(f"otca: {socket.gethostname()}, machine {number} of {machines()}, lost the others ({error}). Fix: {fix}")
        return 1
    except SignalException as stopped:
        # Its frames hold torchrun's rendezvous. If that went now, the last that holds it could be the thread of its own
        # timer, which would wait for its own end: a RuntimeError that nobody asked for
        ENDED.append(stopped)
        return 128 + stopped.sigval
    except ChildFailedError as failed:
        codes = {rank: failure.exitcode for rank, failure in sorted(failed.failures.items())}
        codes = {rank: code for rank, code in codes.items() if code not in STOPPED} or codes
        ends = ", ".join(
            f"process {rank} {f'was killed by {signal.Signals(-code).name}' if code < 0 else f'ended with exit code {code}'}"
            for rank, code in codes.items()
        )
        say(f"otca: on {socket.gethostname()}, {ends}. --resume continues from the last checkpoint")
        return max(1, next(iter(codes.values())))
    return 0
