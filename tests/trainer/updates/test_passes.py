"""How the points of a pass are put together to calls of the network: by hand, and against the three packers of before."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from comfyui_otca.trainer.updates import passes


@st.composite
def drawn(draw):
    """[B, T'] bool with groups [B], and how many networks there are."""
    groups = torch.tensor(sorted(draw(st.lists(st.integers(0, 3), min_size=1, max_size=9))))
    steps = draw(st.integers(1, 5))
    wanted = torch.tensor(draw(st.lists(st.booleans(), min_size=len(groups) * steps, max_size=len(groups) * steps)))
    boundary = draw(st.integers(0, steps))
    return wanted.view(len(groups), steps), groups, [int(step >= boundary) for step in range(steps)]


def listed(parts):
    return [(part.steps.tolist(), part.rows.tolist(), part.idle) for part in parts]


@given(drawn(), st.integers(0, 7), st.booleans(), st.booleans())
def test_policy_gradient_parts_stay(case, size, kept, measured):
    wanted, _, networks = case
    before = passes.policy_gradient_parts(
        wanted, None, size, kept, measured, lambda one, two: networks[one] == networks[two]
    )
    calls = range(wanted.shape[1]) if kept or measured or not size else networks
    limit = len(wanted) if kept or not size else size
    flat = [
        ([step for step, rows in part for _ in rows], [row for _, rows in part for row in rows.tolist()], False)
        for part in before
    ]
    assert listed(passes.parts(wanted, calls, limit)) == flat


@given(drawn(), st.integers(1, 7), st.booleans())
def test_matching_parts_stay(case, size, whole):
    wanted, groups, networks = case
    before = passes.matching_parts(wanted, groups, whole, size, lambda one, two: networks[one] == networks[two])
    after = passes.parts(wanted, networks, size, groups if whole else None)
    assert listed(after) == [(list(part.positions), list(part.rows), part.idle) for part in before]


@given(drawn(), st.integers(1, 7), st.booleans())
def test_chunks_stay(case, size, whole):
    wanted, groups, _ = case
    rows = wanted[:, 0].nonzero()[:, 0]
    before = passes.chunks(rows, groups, size, whole)
    units = (passes.Points(some, some) for some in passes.split(rows, groups if whole else None))
    assert [part.rows.tolist() for part in passes.pack(units, size)] == [some.tolist() for some in before]
