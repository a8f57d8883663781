"""Runs a function in several processes that train together, on the CPU."""

from __future__ import annotations

import multiprocessing.connection
import os
import socket
import time
import traceback
from collections.abc import Callable

SECONDS = 120  # after which whoever still waits is hanging


def together(count: int, function: Callable, *arguments) -> list:
    """`function(*arguments)` in `count` forked processes; what each returned, or the exception that ended it, in their order.

    None stands for a process that was killed.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(count)]
    processes = [
        context.Process(target=_work, args=(rank, count, port, pipes[rank][1], function, arguments))
        for rank in range(count)
    ]
    for process in processes:
        process.start()
    try:
        return [_result(receiver, process) for (receiver, _), process in zip(pipes, processes, strict=True)]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _result(receiver, process):
    if not multiprocessing.connection.wait([receiver, process.sentinel], SECONDS):
        raise AssertionError(f"a process neither returned nor failed within {SECONDS} s")
    return receiver.recv() if receiver.poll() else None


def _work(rank: int, count: int, port: int, sender, function: Callable, arguments: tuple) -> None:
    from accelerate import PartialState

    from comfyui_otca.trainer import distributed

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    distributed.world.cache_clear()
    PartialState._reset_state()
    distributed.begin(cpu=True)
    try:
        sender.send(function(*arguments))
    except BaseException as error:
        traceback.print_exc()
        sender.send(RuntimeError(f"{type(error).__name__}: {error}"))
    time.sleep(SECONDS)  # tensors are handed over by a process that is still there; the parent ends it
