"""What the guard makes of a derivative and two differences, by hand; and on a model of one matrix."""

from __future__ import annotations

import types

import pytest
import torch

from comfyui_otca.trainer.memo import Memos
from comfyui_otca.trainer.memory.case import TRIAL_CALLS
from comfyui_otca.trainer.native import guard
from comfyui_otca.trainer.native.guard import Comparison, WrongGradient
from comfyui_otca.trainer.types import NextRollout

FLOAT, COARSE = guard.THRESHOLDS[torch.float32], guard.THRESHOLD


@pytest.mark.parametrize(
    ("derivative", "difference", "disagreement", "threshold", "error", "decided", "right"),
    [
        (1.0, 1.0, 0.0, FLOAT, 0.0, True, True),
        (1.0, 0.998, 0.0, FLOAT, 0.002, True, True),
        (1.0, 0.98, 0.0, FLOAT, 0.02, True, False),
        (1.0, 0.97, 0.2, FLOAT, 0.03, True, True),  # what is not straight to the first order counts to the second
        (4.0, 3.54, 0.0, COARSE, 0.115, True, False),  # of four parts one is wrong by 46 %
        (1.0, -1.0, 0.0, COARSE, 2.0, True, False),
        (1.0, 9.0, 0.9, COARSE, 8 / 9, False, False),
        (0.0, 0.0, 0.0, FLOAT, 0.0, True, True),
        (0.0, 0.3, 0.0, FLOAT, 1.0, True, False),
    ],
)
def test_by_hand(derivative, difference, disagreement, threshold, error, decided, right):
    comparison = Comparison(derivative, difference, disagreement, threshold)
    assert comparison.error == pytest.approx(error)
    assert (comparison.is_decided, comparison.is_right) == (decided, right)


def test_four_parts_in_their_order_have_an_equal_share_of_the_derivative():
    layers = [(torch.zeros(2), torch.tensor([3.0, 4.0]) * 10.0**number) for number in range(10)]
    shares = [
        float((gradient * along).sum())
        for (_, gradient), (_, along) in zip(layers, guard.equalized(layers), strict=True)
    ]
    parts = [sum(shares[begin : begin + 3]) for begin in range(0, 10, 3)]
    assert parts == pytest.approx([1.0] * 4)


class Model:
    """v = x·(B₂·(1 + B₁)), of which the gradient by B₁ can be made wrong."""

    def __init__(self, factor=1.0, jitter=0.0, dtype=torch.float32):
        self.first = torch.nn.Parameter(torch.zeros(3))
        self.last = torch.nn.Parameter(torch.full((3,), 10.0))
        self.factor, self.dtype = factor, dtype
        self.device, self.calls = torch.device("cpu"), 0
        self.jitter, self.random = jitter, torch.Generator().manual_seed(0)
        parameters = {
            "first.lora_B.weight": self.first,
            "first.lora_A.weight": torch.zeros(1),
            "last.lora_B.weight": self.last,
        }
        adapters = types.SimpleNamespace(parameters=lambda: parameters)
        self.expert = types.SimpleNamespace(adapters=adapters, core=self, checkpointing=True, is_quantized=False)
        self.memo = Memos()
        self.memo.keep(NextRollout(unconditional_gradient=False))

    def condition(self, texts, settings):
        return None

    def guidance_at(self, sigma, settings):
        return 1.0

    def velocity(self, x, sigma, condition, guidance):
        self.calls += 1
        first = self.factor * self.first + (1 - self.factor) * self.first.detach()
        noise = self.jitter * torch.randn(x.shape, generator=self.random)
        return x * (self.last * (1 + 0.3 * first)) + noise


def trajectories():
    latents = torch.linspace(0.5, 2, 6).view(1, 2, 3)
    steps = {"settings": None, "sigmas": (1.0, 0.5, 0.0), "latents": latents, "trained": (0,)}
    return types.SimpleNamespace(**steps, groups=torch.zeros(1, dtype=torch.int64), prompts=("a",))


def check(model, paths):
    guard.check(model, model.expert, paths, 0)


def compare(model, paths):
    return guard.compare(model, model.expert, paths, 0)


def test_a_right_gradient_passes_and_nothing_has_moved(caplog):
    model = Model()
    with caplog.at_level("INFO"):
        check(model, trajectories())
    assert "the gradient agrees with finite differences within" in caplog.text
    assert torch.equal(model.first, torch.zeros(3)) and torch.equal(model.last, torch.full((3,), 10.0))
    assert model.calls == guard.CALLS <= TRIAL_CALLS


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
    right = compare(Model(), many())
    assert compare(Half(inner), many()).difference == pytest.approx(right.difference, rel=0.02)
    check(Half(inner), many())


def many():
    """Trajectories of so many numbers that the mean has small gradients."""
    latents = torch.linspace(0.5, 2, 240_000).view(1, 2, 40_000, 3)
    return types.SimpleNamespace(**{**vars(trajectories()), "latents": latents})


def test_a_part_that_is_wrong_is_found_beside_a_larger_one_that_is_right():
    model = Model(factor=1.5)
    comparison = compare(model, trajectories())
    # By the gradient both parts have 1; in truth the first, whose gradient is 1.5 times too long, has 2/3.
    assert comparison.derivative == pytest.approx(2) and comparison.difference == pytest.approx(5 / 3, rel=1e-3)
    message = "the gradient of Model is wrong by 17%.*Nothing was trained. Fix: .*checkpointing to off"
    with pytest.raises(WrongGradient, match=message):
        check(model, trajectories())
    assert torch.equal(model.first, torch.zeros(3))


def test_what_bfloat16_rounds_is_no_fault():
    check(Model(factor=1.05, dtype=torch.bfloat16), trajectories())
    with pytest.raises(WrongGradient):
        check(Model(factor=1.05), trajectories())
    with pytest.raises(WrongGradient):
        check(Model(factor=1.3, dtype=torch.bfloat16), trajectories())


def test_a_model_that_says_something_else_every_time_is_not_judged(caplog):
    with caplog.at_level("WARNING"):
        check(Model(factor=1.5, jitter=0.1), trajectories())
    assert "finite differences cannot decide whether its gradient is right" in caplog.text


def test_no_gradient_at_all_is_right_only_where_the_adapter_does_nothing():
    lost = Model(factor=0.0)
    lost.last.requires_grad_(False)
    lost.expert.adapters.parameters().pop("last.lora_B.weight")
    with pytest.raises(WrongGradient, match="wrong by 100%"):
        check(lost, trajectories())
    idle = Model(factor=0.0)
    idle.velocity = lambda x, *_: x * (1 + 0 * idle.first)
    idle.expert.adapters.parameters().pop("last.lora_B.weight")
    check(idle, trajectories())


def test_the_whole_gradient_is_compared_whatever_the_last_update_wished(monkeypatch):
    """Without the gradient of the negative half there is nothing that the derivative would equal."""
    model, seen = Model(), []
    velocity = model.velocity
    model.velocity = lambda *call: seen.append(model.memo[NextRollout]) or velocity(*call)
    compare(model, trajectories())
    assert set(seen) == {NextRollout()} and model.memo[NextRollout] == NextRollout(unconditional_gradient=False)


def test_what_was_tried_is_tried_after_a_resumption_too():
    memos, resumed = Memos(), Memos()
    memos[guard.Tried].forms.add("Flux cpu")
    resumed.restore(memos.saved())
    assert resumed[guard.Tried].forms == {"Flux cpu"} and Memos()[guard.Tried].saved() is None
