"""Questions that a training puts to people: it waits here, and a page answers.

The code that asks knows what an answer means, and keeps it; here are only the open questions, for any page that shows them.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import comfyui, stopping
from .errors import Expected

EVENT = "otca.questions"  # sent to ComfyUI's pages when questions are opened or closed
STOP_INTERVAL = 0.1  # seconds between two looks whether to stop
REMEMBERED = 30  # answers that the usual time to answer is taken from
LONGEST_PAUSE = 300.0  # seconds; who takes longer was away


@dataclass
class Question:
    """One question, and its answer as soon as there is one.

    Attributes:
        id: the same whenever the same is asked again.
        text: what it is about.
        pictures: the files to choose among.
        keep: is given each answer, or None to take it back. It returns once the answer is safe, and raises ValueError for one
            that makes no sense.
        about: what else a page may show.
        source: the file of a picture that all of them were made of.
    """

    id: str
    text: str
    pictures: Sequence[Path]
    keep: Callable[[Any], None]
    about: dict[str, Any] = field(default_factory=dict)
    answer: Any = None
    source: Path | None = None


class NotOpen(Expected, LookupError, status=404):
    """The question is answered already, or was never asked."""


class Desk:
    """The open questions of this process. Any thread may use it.

    Attributes:
        attended: whether a page shows the questions; ComfyUI's does.
    """

    def __init__(self):
        self.attended = False
        self._changed = threading.Condition()
        self._rounds: tuple[Sequence[Question], ...] = ()
        self._pauses: deque[float] = deque(maxlen=REMEMBERED)
        self._last = 0.0

    def someone_answers(self) -> bool:
        return self.attended or comfyui.in_comfyui()

    def ask(self, questions: Sequence[Question]) -> None:
        """Opens the questions and returns when all are answered. Until then every answer can be taken back.

        Raises:
            Stopped, or ComfyUI's own interrupt: the user asked to stop; what was answered is kept.
        """
        with self._open(questions), self._changed:
            while any(question.answer is None for question in questions):
                self._changed.wait(STOP_INTERVAL)
                stopping.check_stop()

    def answer(self, question_id: str, answer: Any) -> None:
        """Answers an open question, or takes its answer back by None.

        Raises:
            NotOpen: no open question has that id.
            ValueError: the answer makes no sense.
        """
        with self._changed:
            matches = [question for question in self.questions() if question.id == question_id]
            if not matches:
                raise NotOpen(f"question {question_id!r} is not open any more. Fix: look at what is asked now")
            matches[0].keep(answer)
            # Several, if a request was repeated before the server knew that the first one was given up.
            for question in matches:
                question.answer = answer
            if answer is not None:
                now = time.monotonic()
                self._pauses.append(min(now - self._last, LONGEST_PAUSE))
                self._last = now
            self._changed.notify_all()

    def questions(self) -> list[Question]:
        """The questions of all open rounds, the oldest first; answered ones too, since their answers can be changed. It does not
        wait for an answer that is being kept, as a disk may be slow."""
        return [question for questions in self._rounds for question in questions]

    def seconds_each(self) -> float | None:
        """The usual time to an answer; None before there was any."""
        return statistics.median(self._pauses) if self._pauses else None

    @contextlib.contextmanager
    def _open(self, questions: Sequence[Question]) -> Iterator[None]:
        with self._changed:
            self._rounds = (*self._rounds, questions)
            self._last = time.monotonic()
        _tell_pages()
        try:
            yield
        finally:
            with self._changed:
                # By identity: another round may ask the same.
                self._rounds = tuple(others for others in self._rounds if others is not questions)
            _tell_pages()


def _tell_pages() -> None:
    if comfyui.in_comfyui():
        comfyui.tell(EVENT, {})


desk = Desk()
