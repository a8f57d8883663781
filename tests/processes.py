"""Runs a function in processes of its own, forked, so that none has to import torch: alone, or several that train together."""

from __future__ import annotations

import functools
import multiprocessing.connection
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

SECONDS = 120  # after which whoever still waits is hanging


def together(count: int, function: Callable, *arguments) -> list:
    """`function(*arguments)` in `count` forked processes; what each returned, or the exception that ended it, in their order.

    None stands for a process that was killed.
    """
    processes, receivers = start(count, _answer, function, arguments)
    try:
        return [_result(receiver, process) for receiver, process in zip(receivers, processes, strict=True)]
    finally:
        for process in processes:
            process.kill()
            process.join()


def start(count: int, function: Callable, *arguments) -> tuple[list, list]:
    """`function(*arguments)` begun in `count` forked processes that can meet: the processes, and what they send to.

    Their exit codes are 1 where it raised.
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
    return processes, [receiver for receiver, _ in pipes]


def apart(function: Callable[[], int], output: Path) -> multiprocessing.context.ForkProcess:
    """`function()` begun in a process whose exit code is what it returns, and whose output goes to a file."""
    process = multiprocessing.get_context("fork").Process(target=_apart, args=(function, output))
    process.start()
    return process


# In a forked process: the first thread that uses torch after a fork replaces its pool. Where several do so at once, as when
# transformers loads a model, torch fails with "Invalid thread pool!".
_own_threads = functools.partial(torch.set_num_threads, 1)


def _apart(function: Callable[[], int], output: Path) -> None:
    _own_threads()
    code = 1
    with open(output, "w", encoding="utf-8", buffering=1) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        sys.stdout = sys.stderr = file
        try:
            code = function()
        except BaseException:
            traceback.print_exc()
    os._exit(code)


def _result(receiver, process):
    if not multiprocessing.connection.wait([receiver, process.sentinel], SECONDS):
        raise AssertionError(f"a process neither returned nor failed within {SECONDS} s")
    return receiver.recv() if receiver.poll() else None


def _work(rank: int, count: int, port: int, sender, function: Callable, arguments: tuple) -> None:
    from accelerate import PartialState

    from comfyui_otca.host import distributed

    _own_threads()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= {
        "LOCAL_WORLD_SIZE": str(count),
        "OMP_NUM_THREADS": "1",
    }  # as torchrun has it: no fight over the cores
    distributed.world.cache_clear()
    PartialState._reset_state()
    try:
        distributed.begin(cpu=True)
        function(*arguments, *([sender] if function is _answer else []))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # the parent's own clean-up is not this process's


def _answer(function: Callable, arguments: tuple, sender) -> None:
    try:
        sender.send(function(*arguments))
    except BaseException as error:
        traceback.print_exc()
        sender.send(RuntimeError(f"{type(error).__name__}: {error}"))
    time.sleep(SECONDS)  # tensors are handed over by a process that is still there; the parent ends it
