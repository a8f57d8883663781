"""The numbered notes of a tour: above and below the nodes that they are about, in the order of one iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .layout import LOWEST, RUN, SAVE, STACK, TITLE, Box, stage

HEIGHT = 230  # of a note
ABOVE = -(HEIGHT + 40)
BELOW = LOWEST + 40 + TITLE


def around(kinds: Mapping[int, str], places: Mapping[int, Box], notes: Sequence[int]) -> dict[int, Box]:
    """Places of the eight notes of an iteration, over and under a layout."""
    at = {kind: places[id] for id, kind in kinds.items()}
    of = {stage(kind): places[id] for id, kind in kinds.items() if kind not in (STACK, RUN, SAVE)}
    model, sampling, stack, fusion, run = (of["model"], of["sampling"], at[STACK], of["fusion"], at[RUN])
    spots = [
        (model.x, model.width, ABOVE),
        (sampling.x, sampling.width, ABOVE),
        (stack.x, stack.width, ABOVE),
        (stack.x, stack.width, BELOW),
        (fusion.x, run.width / 2 - 10, ABOVE),
        (fusion.x + run.width / 2 + 10, run.width / 2 - 10, ABOVE),
        (run.x, run.width, BELOW),
        (model.x, sampling.x + sampling.width - model.x, BELOW),
    ]
    assert len(spots) == len(notes)
    return {id: Box(x, y, width, HEIGHT - TITLE) for id, (x, width, y) in zip(notes, spots, strict=True)}
