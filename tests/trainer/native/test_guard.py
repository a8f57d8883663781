"""What the guard makes of a derivative and two differences, by hand; and on a model of one matrix."""

from __future__ import annotations

import math
import types
from contextlib import nullcontext

import pytest
import torch

from comfyui_otca.trainer.memo import Memos
from comfyui_otca.trainer.native import guard
from comfyui_otca.trainer.native.guard import Comparison, WrongGradient
from comfyui_otca.trainer.types import NextRollout

FLOAT, COARSE = guard.THRESHOLDS[torch.float32], guard.THRESHOLD


def test_the_thresholds():
    assert (FLOAT, COARSE) == (1e-2, 0.15)


@pytest.mark.parametrize(
    ("derivative", "differences", "threshold", "error", "disagreement", "decided", "right"),
    [
        (1.0, (1.0, 1.0), FLOAT, 0.0, 0.0, True, True),
        (1.0, (0.995, 0.99), FLOAT, 0.005, 0.005 / 0.995, True, True),
        (1.0, (0.98, 0.98), FLOAT, 0.02, 0.0, True, False),
        (1.0, (0.97, 0.94), FLOAT, 0.03, 0.03 / 0.97, True, True),  # the two steps disagree as much
        (1.0, (0.76, 0.76), COARSE, 0.24, 0.0, True, False),
        (1.0, (0.9, 0.8), COARSE, 0.1, 1 / 9, True, True),
        (1.0, (-1.0, -1.0), COARSE, 2.0, 0.0, True, False),
        (1.0, (9.0, 9.0), COARSE, 8 / 9, 0.0, True, False),
        (1.0, (2.0, 0.5), COARSE, 0.5, 0.75, False, True),
        (0.0, (0.0, 0.0), FLOAT, 0.0, 0.0, True, True),
        (0.0, (0.3, 0.3), FLOAT, 1.0, 0.0, True, False),
    ],
)
def test_by_hand(derivative, differences, threshold, error, disagreement, decided, right):
    found = Comparison(derivative, differences, threshold)
    assert found.error == pytest.approx(error) and found.disagreement == pytest.approx(disagreement)
    assert (found.is_decided, found.is_right) == (decided, right)


def test_differences_that_could_not_be_taken_decide_nothing():
    assert not Comparison(1.0, (math.nan, math.nan), FLOAT).is_decided


def test_the_worst_is_the_furthest_beyond_its_limit_of_those_that_are_decided():
    right, wrong = Comparison(1.0, (1.0, 1.0), COARSE), Comparison(1.0, (0.5, 0.5), COARSE)
    undecided = Comparison(1.0, (9.0, 0.1), COARSE)
    assert guard.worst([right, wrong, undecided]) is wrong
    assert guard.worst([undecided, right]) is right
    assert guard.worst([undecided]) is undecided


def test_layers_are_compared_in_four_parts_in_their_order():
    assert [list(part) for part in guard._parts(list("abcdefghij"))] == [list("abc"), list("def"), list("ghi"), ["j"]]
    assert [list(part) for part in guard._parts(list("ab"))] == [["a"], ["b"]]


class Model:
    """v = x·(B₂·(1 + B₁)), of which the gradient by B₁ can be made wrong."""

    def __init__(self, factor=1.0, jitter=0.0, dtype=torch.float32):
        self.first = torch.nn.Parameter(torch.zeros(3))
        self.last = torch.nn.Parameter(torch.full((3,), 10.0))
        self.factor, self.dtype, self.is_quantized = factor, dtype, False
        self.device, self.calls = torch.device("cpu"), 0
        self.jitter, self.random = jitter, torch.Generator().manual_seed(0)
        parameters = {
            "first.lora_B.weight": self.first,
            "first.lora_A.weight": torch.zeros(1),
            "last.lora_B.weight": self.last,
        }
        adapters = types.SimpleNamespace(parameters=lambda: parameters)
        self.wrapped = {"model": types.SimpleNamespace(adapters=adapters, core=self)}
        self.forwards = types.SimpleNamespace(uncounted=nullcontext)
        self.checkpointing, self.memo = True, Memos()
        self.memo.keep(NextRollout(unconditional_gradient=False))

    def condition(self, texts, settings):
        return None

    def guidance_at(self, sigma, settings):
        return 1.0

    def _expert_at(self, sigma):
        return "model"

    def velocity(self, x, sigma, condition, guidance):
        self.calls += 1
        first = self.factor * self.first + (1 - self.factor) * self.first.detach()
        noise = self.jitter * torch.randn(x.shape, generator=self.random)
        return x * (self.last * (1 + 0.3 * first)) + noise


def trajectories():
    latents = torch.linspace(0.5, 2, 6).view(1, 2, 3)
    steps = {"settings": None, "sigmas": (1.0, 0.5, 0.0), "latents": latents, "trained": (0,)}
    return types.SimpleNamespace(**steps, groups=torch.zeros(1, dtype=torch.int64), prompts=("a",))


def test_a_right_gradient_passes_and_nothing_has_moved(caplog):
    model = Model()
    with caplog.at_level("INFO"):
        guard.check(model, trajectories())
    assert "its gradient is right within" in caplog.text
    assert torch.equal(model.first, torch.zeros(3)) and torch.equal(model.last, torch.full((3,), 10.0))
    assert model.calls <= 40


class Half(Model):
    """The same in float16, where its gradient is as much smaller as `inner` is larger."""

    def __init__(self, inner: float):
        super().__init__(dtype=torch.float16)
        self.inner = inner

    def velocity(self, x, sigma, condition, guidance):
        self.calls += 1
        matrix = (self.last * (1 + 0.3 * self.first)).half() * self.inner
        return (x.half() * matrix).float() / self.inner


@pytest.mark.parametrize("inner", [2.0**11, 2.0**-18])
def test_float16_is_checked_with_a_scale_of_the_loss(inner):
    """2^11: without a scale the gradient, below 6e-8, would be 0. 2^-18: a scale of 2^16 is too large, and is halved."""
    right = guard.compare(Model(), many(), "model", 0)
    found = guard.compare(Half(inner), many(), "model", 0)
    assert [each.derivative for each in found] == pytest.approx([each.derivative for each in right], rel=0.02)
    guard.check(Half(inner), many())


def many():
    """Trajectories of so many numbers that the mean has small gradients."""
    latents = torch.linspace(0.5, 2, 240_000).view(1, 2, 40_000, 3)
    return types.SimpleNamespace(**{**vars(trajectories()), "latents": latents})


def test_a_part_that_is_wrong_is_found_beside_a_larger_one_that_is_right():
    model = Model(factor=1.5)
    comparisons = guard.compare(model, trajectories(), "model", 0)
    assert [each.is_right for each in comparisons] == [False, True]
    assert comparisons[0].error == pytest.approx(1 / 3, rel=1e-3)
    message = "the gradient of Model is wrong by 33%.*Nothing was trained. Fix: .*checkpointing to off"
    with pytest.raises(WrongGradient, match=message):
        guard.check(model, trajectories())
    assert torch.equal(model.first, torch.zeros(3))


def test_what_bfloat16_rounds_is_no_fault():
    guard.check(Model(factor=1.1, dtype=torch.bfloat16), trajectories())
    with pytest.raises(WrongGradient):
        guard.check(Model(factor=1.1), trajectories())
    with pytest.raises(WrongGradient):
        guard.check(Model(factor=1.3, dtype=torch.bfloat16), trajectories())


def test_a_model_that_says_something_else_every_time_is_not_judged(caplog):
    with caplog.at_level("WARNING"):
        guard.check(Model(factor=1.5, jitter=0.1), trajectories())
    assert "finite differences cannot decide whether its gradient is right" in caplog.text


def test_no_gradient_at_all_is_right_only_where_the_adapter_does_nothing():
    lost = Model(factor=0.0)
    lost.last.requires_grad_(False)
    lost.wrapped["model"].adapters.parameters().pop("last.lora_B.weight")
    with pytest.raises(WrongGradient, match="wrong by 100%"):
        guard.check(lost, trajectories())
    idle = Model(factor=0.0)
    idle.velocity = lambda x, *_: x * (1 + 0 * idle.first)
    idle.wrapped["model"].adapters.parameters().pop("last.lora_B.weight")
    guard.check(idle, trajectories())


def test_the_whole_gradient_is_compared_whatever_the_last_update_wished(monkeypatch):
    """Without the gradient of the negative half there is nothing that the derivative would equal."""
    model, seen = Model(), []
    velocity = model.velocity
    model.velocity = lambda *call: seen.append(model.memo[NextRollout]) or velocity(*call)
    guard.compare(model, trajectories(), "model", 0)
    assert set(seen) == {NextRollout()} and model.memo[NextRollout] == NextRollout(unconditional_gradient=False)
