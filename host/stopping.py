"""How a training is asked to stop: ComfyUI's button, a signal, or a file in the run's folder.

`check_stop` looks for all of them, and `progress` makes a node call it at every micro-step.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from . import comfyui, environment
from .files import is_plain_file

STOP = "stop"  # a run stops when this file is made in its folder


class Stopped(KeyboardInterrupt):
    """The user asked to stop. Not an Exception, so that nothing that handles errors swallows it."""


@dataclass
class Request:
    """The state of a stop in this process, apart from ComfyUI's button and the stop file.

    Attributes:
        signal: the number of the signal that asked for it.
        folder: of the run, in which the stop file may appear.
        postponed: whether a headless stop waits, see `finishing`.
        holds: whether every stop waits, see `hold`.
        recorded: whether a node will put the update at hand on record, see `whole`.
        ask: what a micro-step calls instead of `check_stop`, see `stop_only_together`.
    """

    signal: int | None = None
    folder: Path | None = None
    postponed: bool = False
    holds: bool = False
    recorded: bool = False
    ask: Callable[[], None] | None = None
    bar: bool = True  # whether progress is shown, see `one_bar`


request = Request()


class Helper(threading.local):
    """State of a thread that works for the one which runs the graph: `abandoned` is set when that one no longer waits."""

    abandoned: threading.Event | None = None


helper = Helper()


def check_stop() -> None:
    """Raises Stopped, or ComfyUI's own interrupt, if the user asked to stop; called at every micro-step."""
    if helper.abandoned is not None:
        # The thread that waits for this one looks for the rest: ComfyUI reports an interrupt only once.
        if helper.abandoned.is_set():
            raise Stopped("the thread that began this one")
        return
    if comfyui.in_comfyui():
        import comfy.model_management

        comfy.model_management.throw_exception_if_processing_interrupted()
    if request.postponed or request.holds:
        return
    if request.signal is not None:
        raise Stopped(f"signal {request.signal}")
    if request.folder is not None and asks_to_stop(request.folder):
        raise Stopped(f"the file {request.folder / STOP}")


def asks_to_stop(folder: Path) -> bool:
    """Whether the user has made the file `stop` there. A folder, a link or a pipe of that name does not count."""
    return is_plain_file(folder / STOP)


def is_old(folder: Path) -> bool:
    """Whether the stop file there was meant for an earlier process.

    A stop counts if it came while this process was loading, or while torchrun was about to start this process, or start it again.
    """
    import psutil

    begun = psutil.Process(os.getppid() if environment.has("TORCHELASTIC_RUN_ID") else os.getpid()).create_time()
    return asks_to_stop(folder) and os.lstat(folder / STOP).st_mtime < begun


def interrupts() -> tuple[type[BaseException], ...]:
    """The exception that `check_stop` raises. In old ComfyUI it is an Exception, which a handler of errors must let pass."""
    if comfyui.in_comfyui():
        import comfy.model_management

        return (Stopped, comfy.model_management.InterruptProcessingException)
    return (Stopped,)


def progress(total: int) -> Callable[[], None]:
    """A callback for each of a node's `total` micro-steps: moves ComfyUI's bar and checks whether to stop."""
    check = request.ask or check_stop
    bar = None
    if comfyui.in_comfyui() and request.bar:
        import comfy.utils

        bar = comfy.utils.ProgressBar(total)

    def step() -> None:
        check()
        if bar is not None:
            bar.update(1)

    return step


@contextlib.contextmanager
def one_bar() -> Iterator[None]:
    """Within it `progress` only checks whether to stop: a node whose bar is shown already counts what is larger."""
    before, request.bar = request.bar, False
    try:
        yield
    finally:
        request.bar = before


def stop_only_together(ask: Callable[[], None]) -> None:
    """From now on every micro-step calls `ask` instead of `check_stop`.

    For processes that hold one model together: if one stopped alone, the others would wait for it in a forward pass.
    """
    request.ask = ask


@contextlib.contextmanager
def stop_signals(folder: Path | None = None) -> Iterator[None]:
    """The first Ctrl-C, SIGTERM or SIGHUP (a terminal that goes away) asks to stop at the next micro-step, and so does a stop
    file in that folder; a second signal has its usual effect. What is ignored stays so, as SIGHUP under nohup."""

    def ask(number: int, frame: object) -> None:
        request.signal = number
        signal.signal(number, previous[number])

    request.signal, request.folder = None, folder
    numbers = [int(getattr(signal, name)) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    handlers = {number: signal.getsignal(number) for number in numbers}
    previous = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}
    for number in previous:
        signal.signal(number, ask)
    try:
        yield
    finally:
        request.folder = None
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def finishing() -> Iterator[None]:
    """Within it a headless stop is postponed: for work that a resumed run would not make up for."""
    request.postponed = True
    try:
        yield
    finally:
        request.postponed = False


def hold() -> None:
    """From now on no stop comes through until `release`: weights have moved, and no record knows of it yet.

    Since 0.33 ComfyUI asks for its button at every layer. It is told of none meanwhile, and of the same one afterwards. A prompt
    that ends before it comes to the record, as by an error, ends this too.
    """
    if request.holds:
        return
    request.holds = True
    if comfyui.comfy_loaded():
        from comfy import model_management

        ask, prompt = model_management.throw_exception_if_processing_interrupted, comfyui.running_id()

        def ask_later() -> None:
            if request.holds and comfyui.running_id() == prompt:
                return
            release()
            if model_management.throw_exception_if_processing_interrupted is ask_later:
                model_management.throw_exception_if_processing_interrupted = ask
            ask()

        model_management.throw_exception_if_processing_interrupted = ask_later


def release() -> None:
    """The next that asks for a stop is told of it again, also of one that came meanwhile."""
    request.holds = request.recorded = False


@contextlib.contextmanager
def whole() -> Iterator[None]:
    """Around an update: once it has moved weights and called `hold`, no stop comes through to its end; nor to its record, where
    a node will make one, which then calls `release`."""
    try:
        yield
    except BaseException:
        release()
        raise
    if not (request.holds and request.recorded):
        release()
