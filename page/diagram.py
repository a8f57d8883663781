"""A workflow as a picture: its nodes in columns, sources on the left, and the links between them."""

from __future__ import annotations

import statistics
import textwrap
from collections.abc import Mapping
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

from ..trainer.workflow import graph

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of the nodes' title bars on the canvas, somewhat lighter.
COLORS = {
    "model": "#31547a",
    "data": "#43606d",
    "sampling": "#2f6b68",
    "rewards": "#7a6428",
    "credit": "#674a82",
    "fusion": "#7d455f",
    "training": "#3f6e3f",
}
OTHER, LINK = "#5b5b5b", "#8a8a8a"
WIDTH, HEIGHT = 1.75, 0.62  # of a node, in inches
ACROSS, DOWN = 2.45, 0.86  # from one to the next

Slot = tuple[str, int]  # a node, or its links on their way through that column


def figure(workflow: Mapping[str, Mapping], node_classes: Mapping[str, type]) -> Figure:
    """Draws a graph in API form; the colours are the stages'."""
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch, PathPatch
    from matplotlib.path import Path

    links = _links(workflow)
    columns = _columns(links)
    rows = _rows(links, columns)
    width, height = len(rows) * ACROSS, max(len(column) for column in rows) * DOWN
    points = {
        slot: ((number + 0.5) * ACROSS, height - (height - len(column) * DOWN) / 2 - (row + 0.5) * DOWN)
        for number, column in enumerate(rows)
        for row, slot in enumerate(column)
    }
    drawn = Figure(figsize=(width, height))
    axis = drawn.add_axes((0, 0, 1, 1))
    axis.set(xlim=(0, width), ylim=(0, height))
    axis.set_axis_off()
    for target, sources in links.items():
        for source in sources:
            vertices, codes = _curve([points[slot] for slot in _way(source, target, columns)])
            axis.add_patch(
                PathPatch(Path(vertices, [getattr(Path, code) for code in codes]), fill=False, color=LINK, lw=1.3)
            )
    for node, entry in workflow.items():
        x, y = points[node, columns[node]]
        stage = getattr(node_classes.get(entry["class_type"]), "CATEGORY", "").rpartition("/")[2]
        corner = (x - WIDTH / 2, y - HEIGHT / 2)
        style = {"boxstyle": "round,pad=0,rounding_size=0.08", "facecolor": COLORS.get(stage, OTHER), "linewidth": 0}
        axis.add_patch(FancyBboxPatch(corner, WIDTH, HEIGHT, **style))
        lines = textwrap.wrap(graph.title(entry), 22, max_lines=2, placeholder=" …")
        axis.text(x, y + 0.07, "\n".join(lines), ha="center", va="center", fontsize=9, color="#fefefe")
        axis.text(x, y - HEIGHT / 2 + 0.06, f"{node} · {stage}", ha="center", fontsize=6, color="#e0e0e0")
    return drawn


def _links(workflow: Mapping[str, Mapping]) -> dict[str, list[str]]:
    """{node: the nodes that it reads from, each once}."""
    sources = {node: [v[0] for v in entry["inputs"].values() if graph.is_link(v)] for node, entry in workflow.items()}
    return {node: [source for source in dict.fromkeys(nodes) if source in workflow] for node, nodes in sources.items()}


def _columns(links: Mapping[str, list[str]]) -> dict[str, int]:
    """Each node stands as far right as its readers let it, as a reward beside the stack; unread ones follow their sources."""
    order = list(TopologicalSorter(links).static_order())
    depth: dict[str, int] = {}
    for node in order:
        depth[node] = max((depth[source] + 1 for source in links[node]), default=0)
    columns: dict[str, int] = {}
    for node in reversed(order):
        readers = [columns[other] for other, sources in links.items() if node in sources]
        columns[node] = min(readers) - 1 if readers else depth[node]
    return columns


def _way(source: str, target: str, columns: Mapping[str, int]) -> list[Slot]:
    """The slots of a link, from its source to its target."""
    return [*((source, column) for column in range(columns[source], columns[target])), (target, columns[target])]


def _rows(links: Mapping[str, list[str]], columns: Mapping[str, int]) -> list[list[Slot]]:
    """What stands in every column, from the top: nodes, and room for the links that pass. Sorted to cross as little as may be."""
    steps: dict[Slot, set[Slot]] = {(node, column): set() for node, column in columns.items()}
    for target, sources in links.items():
        for source in sources:
            way = _way(source, target, columns)
            for here, there in zip(way, way[1:], strict=False):
                steps.setdefault(here, set()).add(there)
                steps.setdefault(there, set()).add(here)
    rows: list[list[Slot]] = [[] for _ in range(max(columns.values(), default=0) + 1)]
    for node, column in steps:
        rows[column].append((node, column))
    for sweep in range(8):  # a slot moves to the mean of its neighbours on one side, then on the other
        for column in range(len(rows)) if sweep % 2 == 0 else reversed(range(len(rows))):
            beside = column - 1 if sweep % 2 == 0 else column + 1
            if 0 <= beside < len(rows):
                height = {slot: (row + 0.5) / len(rows[beside]) for row, slot in enumerate(rows[beside])}
                means = {}
                for row, slot in enumerate(rows[column]):
                    near = [height[other] for other in steps[slot] if other in height]
                    means[slot] = statistics.fmean(near) if near else (row + 0.5) / len(rows[column])
                rows[column].sort(key=means.__getitem__)
    return rows


def _curve(way: list[tuple[float, float]]) -> tuple[list[tuple[float, float]], list[str]]:
    """From a node's right side to another's left side, level where it leaves, passes and arrives."""
    half, vertices, codes = WIDTH / 2, [], []
    for number, ((x, y), (to_x, to_y)) in enumerate(zip(way, way[1:], strict=False)):
        start, end = x + half, to_x - half
        middle = (start + end) / 2
        vertices += [(start, y), (middle, y), (middle, to_y), (end, to_y)]
        codes += ["MOVETO" if number == 0 else "LINETO", "CURVE4", "CURVE4", "CURVE4"]
    return vertices, codes
