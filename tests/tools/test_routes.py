"""Links go around nodes; those of one output go together for as long as they can."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comfyui_otca.tools.canvases.routes import BEHIND, WIDEST, Lanes, curve, drawn, hits

WIDE, HIGH, ACROSS, DOWN = 240, 160, 360, 260  # a node, and from one to the next


def nodes(columns, rows):
    return [
        (ACROSS * column, DOWN * row, ACROSS * column + WIDE, DOWN * row + HIGH)
        for column in range(columns)
        for row in range(rows)
    ]


def output(rect, at=40):
    return rect[2], rect[1] + at


def into(rect, at=40):
    return rect[0], rect[1] + at


def length(points):
    return sum(math.dist(one, other) for one, other in zip(points, points[1:], strict=False))


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_no_link_runs_far_behind_a_node(data):
    """Where two lanes meet, the canvas pulls the curve a little over the corner: half of WIDEST at most."""
    rects = nodes(data.draw(st.integers(2, 4)), data.draw(st.integers(1, 3)))
    lanes = Lanes(rects)
    for _ in range(data.draw(st.integers(1, 5))):
        source, target = data.draw(st.permutations(range(len(rects))))[:2]
        start, end = output(rects[source], data.draw(st.integers(10, 150))), into(rects[target])
        points = lanes.way(start, end, owner=source)
        assert not hits(drawn(start, points, end), rects, slack=WIDEST / 2)


def test_a_curve_that_is_free_needs_no_point():
    left, right = nodes(2, 1)
    assert Lanes([left, right]).way(output(left), into(right), owner="left") == []


def test_a_link_past_a_node_goes_over_or_under_it():
    rects = nodes(3, 1)
    start, end = output(rects[0]), into(rects[2])
    assert hits(curve(start, end), rects, slack=BEHIND)
    points = Lanes(rects).way(start, end, owner="first")
    above, below = (y < rects[1][1] for _, y in points), (y > rects[1][3] for _, y in points)
    assert all(above) or all(below)
    assert length([start, *points, end]) < 1.5 * math.dist(start, end)


def test_links_of_one_output_fork_at_a_common_corner():
    """To two inputs of one node, 10 apart: the second does not turn 10 below the first, but where the first does."""
    rects = nodes(3, 2)
    lanes = Lanes(rects)
    first, second = (lanes.way(output(rects[0]), into(rects[4], at), owner="first") for at in (20, 30))
    assert first == second == [(340, 180), (700, 180), (700, 20)]


def test_links_of_two_outputs_share_no_corner():
    rects = nodes(3, 1)
    lanes = Lanes(rects)
    first = lanes.way(output(rects[0], 40), into(rects[2], 40), owner="one")
    second = lanes.way(output(rects[0], 60), into(rects[2], 60), owner="other")
    assert first and second and not set(first) & set(second)


def test_a_socket_that_is_walled_in_is_an_error():
    rects = [
        *nodes(2, 1),
        (-400, -300, 700, -30),
        (-400, 190, 700, 400),
        (700, -300, 900, 400),
        (-600, -300, -400, 400),
    ]
    with pytest.raises(ValueError, match="leave more room"):
        Lanes([*rects, (1300, 0, 1500, 160)]).way(output(rects[1]), (1300, 40), owner="shut in")
