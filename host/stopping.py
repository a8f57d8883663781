"""How a training is asked to stop, and where it looks."""

from __future__ import annotations

import contextlib
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from . import comfyui
from .files import _mode
from .terminal import terminal


class Stopped(KeyboardInterrupt):
    """The user asked to stop. No Exception, so that nothing that handles errors swallows it."""


class _Helper(threading.local):
    """Of a thread that works for the one which runs the graph: `abandoned` is set when nobody waits for it any more."""

    abandoned: threading.Event | None = None


helper = _Helper()


def check_stop() -> None:
    """Raises if the user asked to stop; called at every micro-step."""
    if helper.abandoned is not None:
        # The thread that waits for this one looks for the rest: ComfyUI tells of an interrupt only once.
        if helper.abandoned.is_set():
            raise Stopped("the thread that began this one")
        return
    if comfyui.in_comfyui():
        import comfy.model_management

        comfy.model_management.throw_exception_if_processing_interrupted()
    if terminal.stop_waits:
        return
    if terminal.stop_signal is not None:
        raise Stopped(f"signal {terminal.stop_signal}")
    if terminal.output is not None and asks_to_stop(terminal.output):
        raise Stopped(f"the file {terminal.output / STOP}")


def interrupts() -> tuple[type[BaseException], ...]:
    """What `check_stop` raises: an Exception in old ComfyUI, which whoever catches those must let pass."""
    if comfyui.in_comfyui():
        import comfy.model_management

        return (Stopped, comfy.model_management.InterruptProcessingException)
    return (Stopped,)


@contextlib.contextmanager
def stop_signals() -> Iterator[None]:
    """The first Ctrl-C or SIGTERM asks to stop at the next micro-step; the second one has its usual effect."""

    def ask(number: int, frame: object) -> None:
        terminal.stop_signal = number
        signal.signal(number, previous[number])

    terminal.stop_signal = None
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in previous:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def finishing() -> Iterator[None]:
    """Within, a headless stop waits: for what a resumed run would not make up for."""
    terminal.stop_waits = True
    try:
        yield
    finally:
        terminal.stop_waits = False


def progress(total: int) -> Callable[[], None]:
    """A callback for each micro-step of a node: moves ComfyUI's bar and checks whether to stop."""
    check = terminal.agree or check_stop
    bar = None
    if comfyui.in_comfyui():
        import comfy.utils

        bar = comfy.utils.ProgressBar(total)

    def step() -> None:
        check()
        if bar is not None:
            bar.update(1)

    return step


STOP = "stop"  # whoever makes this file asks the run to stop


def asks_to_stop(folder: Path) -> bool:
    """Whether somebody has made the file `stop` there. A folder, a link or a pipe of that name is none of ours."""
    return stat.S_ISREG(_mode(folder / STOP))
