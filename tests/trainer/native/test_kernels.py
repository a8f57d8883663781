"""Kernels of comfy_kitchen while a gradient is computed: made-up ones, each with a plain form beside it."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from comfyui_otca.trainer.families.options import FlowModelError
from comfyui_otca.trainer.native import kernels

x = torch.tensor([[1.0, 2.0], [3.0, -1.0]])


def scaled(x, scale=2.0, out=None):
    """Plain torch: 2·x; its gradient is 2."""
    return x * scale


def silent(x, scale=2.0, out=None):
    return (x.detach() * scale).requires_grad_(False)


def raising(x, scale=2.0, out=None):
    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * scale

        @staticmethod
        def backward(ctx, gradient):
            raise NotImplementedError("no formula")

    return Kernel.apply(x)


def wrong(x, scale=2.0, out=None):
    """A gradient of 1 for 2·x."""
    return x + (x * (scale - 1)).detach()


def over(x, scale=2.0, out=None):
    with torch.no_grad():  # a kernel that writes over its input, behind the back of autograd
        x *= scale
    return x


@pytest.fixture
def kitchen(monkeypatch):
    """kitchen(fused, plain): comfy_kitchen with one function of that kind, as `made_up`."""

    def make(fused, plain=None):
        package, backends, eager = (types.ModuleType(name) for name in ("comfy_kitchen", "backends", "eager"))
        package.backends, backends.eager, package.made_up = backends, eager, fused
        if plain is not None:
            eager.made_up = plain
        monkeypatch.setitem(sys.modules, "comfy_kitchen", package)
        monkeypatch.setitem(sys.modules, "comfy_kitchen.backends", backends)
        monkeypatch.setitem(sys.modules, "comfy_kitchen.backends.eager", eager)
        return package

    return make


def gradient(package, **options):
    leaf = x.clone().requires_grad_()
    with kernels.with_gradients():
        made = package.made_up(leaf * 1, **options)
    return made, torch.autograd.grad(made.sum(), leaf)[0]


@pytest.mark.parametrize("fused", [silent, raising, wrong, over, scaled])
def test_whatever_the_kernel_does_the_gradient_is_right(kitchen, fused):
    package = kitchen(fused, lambda x, scale=2.0: x * scale if fused is not over else x.mul_(scale))
    for _ in range(2):  # tried at first, known then
        made, slope = gradient(package)
        assert torch.equal(made, 2 * x) and torch.equal(slope, torch.full((2, 2), 2.0))
    assert package.made_up is fused, "outside it is as before"


def test_a_right_kernel_stays_and_one_without_is_no_loss_where_no_gradient_goes(kitchen):
    calls = []

    def fused(x):
        calls.append(x.shape)
        return x * 2

    gradient(kitchen(fused, lambda x: x * 2))
    assert calls == [(2, 2), (2, 2)], "tried, then used"
    package = kitchen(lambda x: x.detach() * 2, lambda x: x.detach() * 2)
    with kernels.with_gradients():
        assert torch.equal(package.made_up(x), 2 * x)


def test_where_neither_has_one_it_is_named(kitchen):
    package = kitchen(silent, silent)
    with pytest.raises(FlowModelError, match="silent of comfy_kitchen has no gradient by x, in plain torch either"):
        gradient(package)


def test_what_rounds_has_no_gradient_in_plain_torch_either(kitchen):
    """As the product of whole numbers: its plain form has one, of zeros."""
    with pytest.raises(FlowModelError, match="has no gradient by x"):
        gradient(kitchen(silent, lambda x: (x * 2).round()))


def test_what_the_plain_form_does_not_have_is_not_left_out_in_silence(kitchen):
    package = kitchen(lambda x, scale=2.0, packed=False, out=None: x.detach() * scale, lambda x, scale: x * scale)
    place = torch.empty(2, 2)
    made, slope = gradient(package, packed=False, out=place)
    assert made is place and torch.equal(place, 2 * x) and torch.equal(slope, torch.full((2, 2), 2.0))
    with pytest.raises(FlowModelError, match="its plain form has no input 'packed'"):
        gradient(package, packed=True)


def test_vectors_that_are_not_trained_are_copied(kitchen):
    """A network may hand over a scale from a cast buffer that the next layer writes over."""
    scale = torch.tensor([2.0, 3.0])
    package, leaf = kitchen(scaled, scaled), x.clone().requires_grad_()
    with kernels.with_gradients():
        made = package.made_up(leaf, scale)
    scale.zero_()
    assert torch.equal(torch.autograd.grad(made.sum(), leaf)[0], torch.tensor([[2.0, 3.0], [2.0, 3.0]]))


def test_a_trial_is_not_seen_by_who_looks_at_what_is_kept(kitchen):
    """Checkpointing counts what is kept, and a trial happens once."""
    package, kept = kitchen(silent, scaled), []
    leaf = x.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t), kernels.with_gradients():
        package.made_up(leaf * 1)
        first = len(kept)
        package.made_up(leaf * 1)
    assert len(kept) == 2 * first
    with torch.inference_mode(), kernels.with_gradients():
        assert torch.equal(package.made_up(x), 2 * x)
