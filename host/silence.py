"""Says what a command is at where nothing else is printed: a long load, a slow reward, a machine that has yet to join."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

FIRST = 10.0  # seconds without a line before it is said; each time after twice as long


class Silence:
    """A process's lines for a human, and what it is at between them."""

    def __init__(self, say: Callable[[str], object], at: str):
        self._say, self._at, self._since = say, at, time.monotonic()
        self.news, self.over = threading.Event(), False

    def say(self, line: str) -> None:
        """Prints a line."""
        self._say(line)
        self.news.set()

    def now(self, at: str) -> None:
        """Notes what begins."""
        self._at, self._since = at, time.monotonic()
        self.news.set()

    def watch(self) -> None:
        pause = FIRST
        while not self.over:
            if self.news.wait(pause):
                self.news.clear()
                pause = FIRST
            else:
                self._say(f"{self._at} … {time.monotonic() - self._since:.0f} s")
                pause *= 2


@contextlib.contextmanager
def broken(say: Callable[[str], object], at: str) -> Iterator[Silence]:
    """Within it no silence is long: `say` is told what is awaited, at first `at`."""
    silence = Silence(say, at)
    thread = threading.Thread(target=silence.watch, name="silence", daemon=True)
    thread.start()
    try:
        yield silence
    finally:
        silence.over = True
        silence.news.set()
        thread.join()
