"""Parts of one pass over the trajectories: as many points as one call of the network can hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...host import distributed


def policy_gradient_parts(
    pulls: Tensor,
    anybody_pulls: Sequence[bool] | None,
    size: int,
    kept: bool,
    measured: bool,
    same_network: Callable[[int, int], bool],
) -> Iterator[list[tuple[int, Tensor]]]:
    """Lists of (position of a trained step, rows): all of one step, or as many as `size` allows, of several steps, but where
    steps are measured.

    Where Ã = 0 the gradient is exactly zero, and nothing is computed, unless a KL term pulls there too, or other processes
    that hold parts of this model have to be kept pace with.
    """
    part, room = [], size
    for position in range(pulls.shape[1]):
        rows = pulls[:, position].nonzero()[:, 0]  # [N]
        if anybody_pulls is not None and anybody_pulls[position]:
            rows = torch.arange(len(pulls))
        if kept or not size:
            if len(rows):
                yield [(position, rows)]
            continue
        if part and (measured or not same_network(part[-1][0], position)):
            yield part
            part, room = [], size
        while len(rows):
            part.append((position, rows[:room]))
            room, rows = room - len(part[-1][1]), rows[room:]
            if not room:
                yield part
                part, room = [], size
    if part:
        yield part


@dataclass(frozen=True)
class Part:
    """The samples of one call of the network: N numbers of samples, and of the level of each. `idle`: to keep pace only."""

    positions: tuple[int, ...]
    rows: tuple[int, ...]
    idle: bool = False


def matching_parts(
    drawn: Tensor,
    groups: Tensor,
    whole_groups: bool,
    size: int,
    same_network: Callable[[int, int], bool],
    keeps_pace: bool = False,
) -> list[Part]:
    """All pairs by falling noise, as many to a part as fit; of a sharded model equally many in every process and network."""
    levels = drawn.shape[1]
    units = _units(whole_groups, drawn, groups)
    first = [position for position in range(levels) if position == 0 or not same_network(position - 1, position)]
    parts = []
    for begin, end in zip(first, [*first[1:], levels], strict=True):
        own = list(_filled([unit for unit in units if begin <= unit[0] < end], size))
        if keeps_pace:
            most = int(distributed.each(torch.tensor(len(own))).max())
            own += [Part((begin,), (0,), idle=True)] * (most - len(own))
        parts += own
    return parts


def _units(whole_groups: bool, drawn: Tensor, groups: Tensor) -> list[tuple[int, Tensor]]:
    """(position of a level, rows) of what has to be in one pass, by falling noise: single samples, or of dgpo and dpo groups."""
    units = []
    for position, column in enumerate(drawn.T):
        rows = column.nonzero()[:, 0]
        parts = [rows[groups[rows] == group] for group in groups[rows].unique()] if whole_groups else rows.split(1)
        units += [(position, part) for part in parts]
    return units


def _filled(units: Sequence[tuple[int, Tensor]], size: int) -> Iterator[Part]:
    """Units put together in parts of at most `size` pairs; one that is larger is one of its own."""
    positions: list[int] = []
    rows: list[int] = []
    for position, members in units:
        if rows and len(rows) + len(members) > size:
            yield Part(tuple(positions), tuple(rows))
            positions, rows = [], []
        positions += [position] * len(members)
        rows += members.tolist()
    if rows:
        yield Part(tuple(positions), tuple(rows))


def chunks(rows: Tensor, groups: Tensor, size: int, whole_groups: bool) -> Iterator[Tensor]:
    """Yields as many rows as `size` allows at a time; whole groups where a reward compares their samples."""
    if not len(rows):
        return
    if not whole_groups:
        yield from rows.split(size)
        return
    chunk: list[Tensor] = []
    for group in groups[rows].unique():
        members = rows[groups[rows] == group]
        if chunk and sum(map(len, chunk)) + len(members) > size:
            yield torch.cat(chunk)
            chunk = []
        chunk.append(members)
    if chunk:
        yield torch.cat(chunk)


@dataclass(frozen=True)
class Points:
    """The points of one call of the network.

    Attributes:
        rows: numbers of samples.
        steps: for each the number of a step, in an update's own count; of a leap those of the two that it joins.
        idle: of no sample, to keep pace with other processes only.
    """

    rows: Tensor  # [N]
    steps: Tensor  # [N] or [N, 2·K]
    idle: bool = False


def pack(units: Iterable[Points], size: int) -> Iterator[Points]:
    """Puts units together, in their order, to parts of at most `size` rows; a larger unit is a part of its own."""
    chosen: list[Points] = []
    for unit in units:
        if chosen and sum(len(part.rows) for part in chosen) + len(unit.rows) > size:
            yield _joined(chosen)
            chosen = []
        chosen.append(unit)
    if chosen:
        yield _joined(chosen)


def _joined(parts: Sequence[Points]) -> Points:
    return Points(torch.cat([part.rows for part in parts]), torch.cat([part.steps for part in parts]))


def split(rows: Tensor, groups: Tensor | None = None) -> Iterator[Tensor]:
    """The rows that have to be in one call: each of [N] by itself, or with `groups` [B] those of a group."""
    if groups is None:
        return iter(rows.split(1) if len(rows) else ())
    return (rows[groups[rows] == group] for group in groups[rows].unique())


def parts(
    wanted: Tensor, calls: Sequence[int], size: int, groups: Tensor | None = None, keeps_pace: bool = False
) -> list[Points]:
    """Parts of all points, step by step, as many to a part as fit.

    Args:
        wanted: [B, T'] bool, the points.
        calls: for each step a number; only steps of the same one can be in one call.
        size: the most rows of a part.
        groups: [B], where a group's points of a step have to be in one call.
        keeps_pace: add idle parts, until each process has equally many of each number.
    """
    packed = []
    for call in dict.fromkeys(calls):
        steps = [step for step, number in enumerate(calls) if number == call]
        units = (
            Points(rows, torch.full_like(rows, step))
            for step in steps
            for rows in split(wanted[:, step].nonzero()[:, 0], groups)
        )
        own = list(pack(units, size))
        if keeps_pace:
            most = int(distributed.each(torch.tensor(len(own))).max())
            own += [Points(torch.zeros(1, dtype=torch.int64), torch.tensor([steps[0]]), idle=True)] * (most - len(own))
        packed += own
    return packed
