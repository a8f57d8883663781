"""Overlap of scoring and sampling: a thread scores what has been sampled while the next samples are made."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from ...host import stopping
from .base import Columns, Reward, score_part

STOP_INTERVAL = 0.1  # seconds between two looks whether to stop


class Overlap:
    """The rewards that a sampler and Reward Stack below it share from one iteration to the next.

    The sampler runs before the stack, so it knows the rewards from the stack's last run; in the first iteration it asks none.
    It holds weak references: a reward whose node has changed is gone, with its network.
    """

    def __init__(self):
        self._rewards: list[weakref.ref[Reward]] = []
        self._scored: Scored | None = None
        self._stream: torch.cuda.Stream | None = None

    def expect(self, rewards: Sequence[Reward]) -> None:
        """From now on these rewards score during sampling, in this order."""
        self._rewards = list(map(weakref.ref, rewards))

    def release(self, rewards: Sequence[Reward]) -> None:
        """These rewards no longer do; those of another stack may."""
        if _alive(self._rewards) == list(rewards):
            self._rewards = []

    def take(self, images: Tensor, rewards: Sequence[Reward]) -> Scored | None:
        """The scores that these rewards gave these very pictures, handed out once; None if they were not asked."""
        scored = self._scored
        if scored is None or not scored.answers(images, rewards):
            return None
        self._scored = None
        return scored

    @contextlib.contextmanager
    def scoring(self, device: torch.device) -> Iterator[Scored | None]:
        """Takes pictures to score while others are sampled on that device; all are scored when it ends. Yields None
        where there is nothing to score.

        A reward that fails raises nothing here, but where its scores are taken.

        Raises:
            stopping.interrupts(): the user asked to stop. The thread has ended by then.
        """
        rewards = _alive(self._rewards)
        self._scored = None
        if not rewards:
            yield None
            return
        scored = Scored(self._rewards, self._beside(device))
        try:
            yield scored
            scored.finish()
        finally:
            scored.close()
            for reward in rewards:
                reward.rest()
        self._scored = scored

    def _beside(self, device: torch.device) -> Callable[[], AbstractContextManager]:
        """Where the thread works: on a stream beside the sampler's, so that neither waits for the other on the device.

        Always the same stream: memory that was freed on one is not used again on another.
        """
        if device.type != "cuda":
            return contextlib.nullcontext
        if self._stream is None or self._stream.device != device:
            self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))
        # A new thread would begin on the first device, whichever is this process's.
        return functools.partial(_on, self._stream, torch.cuda.current_device())


class Scored:
    """One rollout's scores, in parts as they were sampled.

    `images` are those of the whole rollout, once they are complete, and `waited` the seconds from the last of them to their
    scores.
    """

    images: weakref.ref[Tensor] | None = None
    waited = 0.0

    def __init__(self, rewards: list[weakref.ref[Reward]], beside: Callable[[], AbstractContextManager]):
        self._rewards, self._beside = rewards, beside
        self._parts: list[Future[Columns]] = []
        self._count = 0
        self._abandoned = threading.Event()
        self._pool = ThreadPoolExecutor(1, "otca-rewards", initializer=self._begin)

    def add(self, images: Tensor, prompts: Sequence[str]) -> None:
        """The next b pictures or videos, and their prompts."""
        self._parts.append(self._pool.submit(self.score_ready, images, prompts, self._count))
        self._count += len(images)

    def answers(self, images: Tensor, rewards: Sequence[Reward]) -> bool:
        return self.images is not None and self.images() is images and _alive(self._rewards) == list(rewards)

    def parts(self) -> list[Columns]:
        """
        Raises:
            RewardError: of the first reward that failed.
        """
        return [part.result() for part in self._parts]

    def finish(self) -> None:
        started = time.perf_counter()
        while wait(self._parts, timeout=STOP_INTERVAL).not_done:
            stopping.check_stop()
        self.waited = time.perf_counter() - started

    def close(self) -> None:
        self._abandoned.set()
        self._pool.shutdown(cancel_futures=True)

    def _begin(self) -> None:
        stopping.helper.abandoned = self._abandoned

    def score_ready(self, images: Tensor, prompts: Sequence[str], first: int) -> Columns:
        stopping.check_stop()
        try:
            with self._beside():
                rewards = _alive(self._rewards)
                assert rewards is not None, "`scoring` holds them"
                return score_part(rewards, images, prompts, first)
        except BaseException:
            self._abandoned.set()  # the iteration fails, whatever the other rewards do
            raise


def _alive(rewards: Sequence[weakref.ref[Reward]]) -> list[Reward] | None:
    """The rewards; None if one of them no longer exists."""
    alive = [reward for reference in rewards if (reward := reference()) is not None]
    return alive if len(alive) == len(rewards) else None


@contextlib.contextmanager
def _on(stream: torch.cuda.Stream, device: int) -> Iterator[None]:
    with torch.cuda.stream(stream), torch.cuda.device(device):
        yield
