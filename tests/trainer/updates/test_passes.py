"""How the points of a pass are put together to calls of the network: by hand, and whatever is drawn."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from hypothesis import given
from hypothesis import strategies as st

from comfyui_otca.trainer.updates.passes import Part, Passes, pack

WANTED = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 1, 1], [1, 1, 1]], dtype=torch.bool)  # [B, T']
GROUPS = torch.tensor([0, 0, 1, 1])


def listed(parts):
    return [list(zip(part.steps.tolist(), part.rows.tolist(), strict=True)) for part in parts]


def test_a_part_goes_on_with_the_next_step():
    first, second, third = listed(pack(WANTED, [0, 0, 0], 4))
    assert first == [(0, 0), (0, 1), (0, 3), (1, 0)]
    assert second == [(1, 2), (1, 3), (2, 1), (2, 2)]
    assert third == [(2, 3)]


def test_another_network_begins_another_part():
    assert [len(part) for part in listed(pack(WANTED, [0, 1, 1], 4))] == [3, 4, 2]


def test_a_group_stays_whole_and_may_be_larger_than_a_part():
    assert listed(pack(WANTED, [0, 0, 0], 2, GROUPS)) == [
        [(0, 0), (0, 1)],
        [(0, 3), (1, 0)],
        [(1, 2), (1, 3)],
        [(2, 1)],
        [(2, 2), (2, 3)],
    ]
    assert [len(part) for part in listed(pack(WANTED, [0, 0, 0], 1, GROUPS))] == [2, 1, 1, 2, 1, 2]


def test_a_part_is_told_step_by_step():
    part = Part(torch.tensor([3, 0, 2]), torch.tensor([0, 1, 1]))
    assert [(step, rows.tolist()) for step, rows in part.by_step] == [(0, [3]), (1, [0, 2])]


@st.composite
def drawn(draw):
    """[B, T'] bool, groups [B] or None, and the number of each step's network."""
    groups = sorted(draw(st.lists(st.integers(0, 3), min_size=1, max_size=9)))
    steps, boundary = draw(st.integers(1, 5)), draw(st.integers(0, 5))
    wanted = draw(st.lists(st.lists(st.booleans(), min_size=steps, max_size=steps), min_size=len(groups), max_size=9))
    networks = [int(step >= boundary) for step in range(steps)]
    return torch.tensor(wanted[: len(groups)]), torch.tensor(groups) if draw(st.booleans()) else None, networks


@given(drawn(), st.integers(1, 7))
def test_every_point_is_in_one_part_as_full_as_it_may_be(case, size):
    wanted, groups, networks = case
    parts = pack(wanted, networks, size, groups)
    assert [point for part in listed(parts) for point in part] == [
        tuple(point) for point in wanted.T.nonzero().tolist()
    ]
    for part in parts:
        assert len({networks[step] for step in part.steps.tolist()}) == 1
        assert len(part.rows) <= size or len(set(groups[part.rows].tolist())) == 1
    for part, after in zip(parts, parts[1:], strict=False):
        step, first = after.by_step[0]
        begin = 1 if groups is None else (groups[first] == groups[first[0]]).sum()
        assert len(part.rows) + begin > size or networks[part.steps[-1]] != networks[step]


# --- the KL term ------------------------------------------------------------------------------------------------------

UNTRAINED = torch.tensor([[3.0, 4.0], [3.0, 4.0], [3.0, 4.0], [0.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
TRAINED = torch.tensor([[6.0, 8.0], [-4.0, 3.0], [0.6, 0.8], [3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)


def divergence(velocity, form, counts=1.0):
    return Passes.divergence(SimpleNamespace(kl=form), velocity, UNTRAINED, torch.full((5,), counts).double())


def test_the_pull_on_the_norm_by_hand():
    """Norms 10, 5, 1, 5, 0 over 5, 5, 5, 0, 0: twice as long; turned; shorter; from nothing; nothing. Two entries a sample."""
    assert divergence(TRAINED, "norm").tolist() == [12.5, 0, 0, 12.5, 0]
    assert divergence(TRAINED, "velocity").tolist() == [12.5, 25, 8, 12.5, 0]
    assert divergence(TRAINED, "norm", 0.5).tolist() == [6.25, 0, 0, 6.25, 0]


def test_the_pull_on_the_norm_has_the_gradient_of_differences():
    """Along v, and only where it is longer; at the untrained velocity itself, and at nothing, exactly none."""
    moved = (TRAINED + 0.01).requires_grad_()
    assert torch.autograd.gradcheck(lambda v: divergence(v, "norm"), moved)
    for still in (UNTRAINED, 0.5 * UNTRAINED):
        v = still.clone().requires_grad_()
        [slope] = torch.autograd.grad(divergence(v, "norm").sum(), v)
        assert torch.equal(slope, torch.zeros_like(slope))
    longer = (2 * UNTRAINED).requires_grad_()
    [slope] = torch.autograd.grad(divergence(longer, "norm").sum(), longer)
    assert slope[0].tolist() == [3, 4]  # 2·(10 - 5)·v/‖v‖/2
