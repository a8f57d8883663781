"""Where the stochastic window of an iteration starts: MixGRPO (2507.21802), whose window moves as training goes on."""

from __future__ import annotations

import math
from bisect import bisect_right
from itertools import accumulate

MODES = ("progressive", "progressive_decay", "random")
DECAY, DECAY_FROM = 0.1, 13  # k and the step from which intervals shrink, as MixGRPO's code has them for 25 steps


def window_start(
    iteration: int,
    steps: int,
    length: int,
    *,
    mode: str = "progressive",
    every: int = 25,
    stride: int = 1,
    seed: int = 0,
    train_last_step: bool = False,
) -> int:
    """The first step of the window, a function of the iteration alone, so that a resumed run goes on where it was.

    The window stays within the steps that can be trained, 0 … T'-1, so it never trains fewer than `length`: T' = T - 1 unless
    the last step is trained too. Its places are 0, s, 2s … and always the last one, T' - length, after which it wraps.

    Args:
        iteration: counted from 0.
        steps: T of the sampler.
        length: of the window.
        mode: "progressive": each place for `every` iterations. "progressive_decay": the place at step l only for
            ⌈every · exp(-k·max(0, l - 13))⌉ with k = 0.1, so that late steps get less. "random": any place, drawn anew for
            each iteration.
        stride: s, of both progressive modes.
        seed: of "random"; a draw depends on it and the iteration alone.

    Raises:
        ValueError: an unknown mode, or a window longer than the steps that can be trained.
    """
    if mode not in MODES:
        raise ValueError(f"mode must be one of {MODES}, not {mode!r}")
    last = steps - (not train_last_step) - length
    if last < 0:
        raise ValueError(
            f"length {length}: of {steps} steps {length + last} can be trained, so a longer window has no place. Fix: lower "
            "length, or raise steps"
        )
    if mode == "random":
        import numpy as np  # here, since the node table reads MODES and imports nothing heavy

        return int(np.random.default_rng([seed, iteration]).integers(last + 1))
    places = [*range(0, last, stride), last]
    rate = DECAY if mode == "progressive_decay" else 0.0
    stays = [math.ceil(every * math.exp(-rate * max(0, place - DECAY_FROM))) for place in places]
    return places[bisect_right(list(accumulate(stays)), iteration % sum(stays))]
