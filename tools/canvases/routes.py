"""Ways for links around nodes.

ComfyUI draws a link as a curve from an output to an input, behind whatever stands between. Where that would be a node, the link
gets reroute points along the free lanes, so that the eye can follow it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence

Point = tuple[float, float]
Rect = tuple[float, float, float, float]  # left, top, right, bottom

STEP = 10  # the grid on which ways are looked for
CLEAR = 6  # how far a way stays from a node
SHORT = 150  # a curve up or down by no more than that needs no point to stay between two columns
STUB = 24  # how far a link goes straight out of a socket, and into one
BEHIND = 16  # so far a curve may dip behind the edge of a node: the eye still follows it
# What a corner costs, in steps; a step where another link runs already; and one above all nodes, where the page has its bars.
TURN, SHARED, ABOVE = 10, 6, 1
TOGETHER = 0.5  # what a step is cheaper where a link of the same output runs
NEAR = 30  # a corner takes the place of an earlier one of the same output that is no further away: the links fork there
WIDEST = 80  # how far the canvas pulls a curve out of a reroute point, at most
MARGIN = 120  # how far outside of all nodes a way may go


def curve(start: Point, end: Point, leaving: Point | None = None, coming: Point | None = None, count=40) -> list[Point]:
    """Points of the curve that the canvas draws. Without directions it leaves to the right, and comes from the left."""
    reach = 0.25 * math.dist(start, end)
    near = (start[0] + reach, start[1]) if leaving is None else (start[0] + leaving[0], start[1] + leaving[1])
    far = (end[0] - reach, end[1]) if coming is None else (end[0] - coming[0], end[1] - coming[1])
    points = []
    for index in range(count + 1):
        t = index / count
        parts = ((1 - t) ** 3, 3 * (1 - t) ** 2 * t, 3 * (1 - t) * t**2, t**3)
        x, y = (
            sum(part * point[axis] for part, point in zip(parts, (start, near, far, end), strict=True))
            for axis in (0, 1)
        )
        points.append((x, y))
    return points


def drawn(start: Point, points: Sequence[Point], end: Point) -> list[Point]:
    """Points of a link with reroute points: at each of them, it runs between the directions of its two sides."""
    stops = [start, *points, end]
    found, leaving = [], None
    for before, here, after in zip(stops, stops[1:], stops[2:], strict=False):
        into = math.atan2(here[1] - before[1], here[0] - before[0])
        turn = (into - math.atan2(after[1] - here[1], after[0] - here[0])) / 2
        angle = into - (turn + math.pi if abs(turn) > math.pi / 2 else turn)
        reach = min(WIDEST, 0.25 * math.dist(before, here))
        coming = (reach * math.cos(angle), reach * math.sin(angle))
        found += curve(before, here, leaving, coming)
        reach = min(WIDEST, 0.25 * math.dist(here, after))
        leaving = (reach * math.cos(angle), reach * math.sin(angle))
    return found + curve(stops[-2], end, leaving)


def hits(points: Iterable[Point], rects: Sequence[Rect], slack: float = 0) -> bool:
    """Whether a point lies inside of a rectangle by more than `slack`."""
    return any(
        left + slack < x < right - slack and top + slack < y < bottom - slack
        for x, y in points
        for left, top, right, bottom in rects
    )


class Lanes:
    """The free places between nodes, and which of them links have taken."""

    def __init__(self, rects: Sequence[Rect]):
        self.rects = list(rects)
        self.left = min(rect[0] for rect in rects) - MARGIN
        self.top = min(rect[1] for rect in rects) - MARGIN
        self.columns = int((max(rect[2] for rect in rects) + MARGIN - self.left) / STEP) + 1
        self.rows = int((max(rect[3] for rect in rects) + MARGIN - self.top) / STEP) + 1
        self.blocked = {
            cell
            for left, top, right, bottom in rects
            for cell in self._cells(left - CLEAR, top - CLEAR, right + CLEAR, bottom + CLEAR)
        }
        self.highest = round((min(rect[1] for rect in rects) - self.top) / STEP)
        self.taken: dict[tuple[int, int], object] = {}
        self.corners: dict[object, list[Point]] = {}

    def way(self, start: Point, end: Point, owner: object) -> list[Point]:
        """Where a link from `start` to `end` needs reroute points; none where its curve is free.

        Links of one `owner` (an output) may share a lane. Raises ValueError where no way is found.
        """
        direct = curve(start, end)
        if not hits(direct, self.rects, slack=BEHIND):
            self._take(map(self._cell, direct), owner)
            return []
        first, last = self._cell((start[0] + STUB, start[1])), self._cell((end[0] - STUB, end[1]))
        cells = self._search(first, last, owner)
        self._take(cells, owner)
        straight = [(first[0] - 1, first[1]), *cells, (last[0] + 1, last[1])]  # out to the right, and in from the left
        corners = [
            cell
            for before, cell, after in zip(straight[:-2], cells, straight[2:], strict=True)
            if _direction(before, cell) != _direction(cell, after)
        ]
        points = [self._point(cell) for cell in corners]
        # A corner beside a socket says only where the link leaves or comes. A short curve does that by itself.
        first = 1 if len(points) > 2 and abs(points[1][1] - start[1]) < SHORT else 0
        last = len(points) - (1 if len(points) - first > 1 and abs(points[-2][1] - end[1]) < SHORT else 0)
        fewer = points[first:last]
        points = points if hits(drawn(start, fewer, end), self.rects, slack=BEHIND) else fewer
        return self._joined(start, points, end, owner)

    def _joined(self, start: Point, points: list[Point], end: Point, owner: object) -> list[Point]:
        """The same way by corners that links of the same output have already, where these are near."""
        known = self.corners.setdefault(owner, [])
        for index, point in enumerate(points):
            nearest = min(known, key=lambda corner: math.dist(corner, point), default=point)
            joined = [*points[:index], nearest, *points[index + 1 :]]
            if math.dist(nearest, point) <= NEAR and not hits(drawn(start, joined, end), self.rects, slack=BEHIND):
                points = joined
        known += points
        return points

    def _take(self, cells: Iterable[tuple[int, int]], owner: object) -> None:
        for cell in cells:
            self.taken.setdefault(cell, owner)

    def _search(self, first: tuple[int, int], last: tuple[int, int], owner: object) -> list[tuple[int, int]]:
        free = {first, last}
        queue: list[tuple[float, tuple[int, int], tuple[int, int]]] = [(0, first, (1, 0))]
        known: dict[tuple, tuple[float, tuple | None]] = {(first, (1, 0)): (0, None)}
        while queue:
            _, cell, heading = heapq.heappop(queue)
            cost, _ = known[cell, heading]
            if cell == last:
                return self._traced((cell, heading), known)
            for turn in ((1, 0), (-1, 0), (0, 1), (0, -1)):
                if turn == (-heading[0], -heading[1]):
                    continue
                there = (cell[0] + turn[0], cell[1] + turn[1])
                if not (0 <= there[0] < self.columns and 0 <= there[1] < self.rows):
                    continue
                if there in self.blocked and there not in free:
                    continue
                more = 1 + TURN * (turn != heading)
                if there in self.taken:
                    more += SHARED if self.taken[there] != owner else -TOGETHER
                more += ABOVE * (there[1] < self.highest)
                more += TURN * (there == last and turn != (1, 0))
                if cost + more < known.get((there, turn), (float("inf"), None))[0]:
                    known[there, turn] = (cost + more, (cell, heading))
                    ahead = (1 - TOGETHER) * (abs(there[0] - last[0]) + abs(there[1] - last[1]))
                    heapq.heappush(queue, (cost + more + ahead, there, turn))
        raise ValueError("no way between the nodes for a link: leave more room between the columns")

    @staticmethod
    def _traced(state: tuple, known: dict) -> list[tuple[int, int]]:
        cells = []
        while state is not None:
            cells.append(state[0])
            state = known[state][1]
        return cells[::-1]

    def _cell(self, point: Point) -> tuple[int, int]:
        return round((point[0] - self.left) / STEP), round((point[1] - self.top) / STEP)

    def _point(self, cell: tuple[int, int]) -> Point:
        return self.left + cell[0] * STEP, self.top + cell[1] * STEP

    def _cells(self, left: float, top: float, right: float, bottom: float) -> Iterable[tuple[int, int]]:
        (first, high), (last, low) = self._cell((left, top)), self._cell((right, bottom))
        return ((x, y) for x in range(first, last + 1) for y in range(high, low + 1))


def _direction(start: tuple[int, int], end: tuple[int, int]) -> tuple[int, int]:
    return end[0] - start[0], end[1] - start[1]
