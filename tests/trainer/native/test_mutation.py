"""Autograd over in-place operations, against the same formula without any."""

from __future__ import annotations

import pytest
import torch

from comfyui_otca.trainer.native.checkpointing import Mutable

GENERATOR = torch.Generator().manual_seed(0)
X, W = torch.randn(3, 4, generator=GENERATOR), torch.randn(4, 4, generator=GENERATOR)


def in_place(x, w):
    """A residual added in place, behind a product that keeps what is written over."""
    h = x @ w
    y = h * h  # keeps h
    h += y.sin()  # keeps y, writes h
    y.mul_(2).clamp_(min=-1)  # writes y, which the sine needs
    h[:, 1:] *= y[:, 1:]
    return (h * x).sum()


def out_of_place(x, w):
    h = x @ w
    y = h * h
    h = h + y.sin()
    y = (2 * y).clamp(min=-1)
    h = torch.cat([h[:, :1], h[:, 1:] * y[:, 1:]], 1)
    return (h * x).sum()


def gradients(function, context=None):
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    if context is None:
        value = function(x, w)
    else:
        with context:
            value = function(x, w)
    return value, torch.autograd.grad(value, (x, w))


def test_plain_autograd_refuses_it():
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradients(in_place)


def test_the_gradient_is_that_of_the_formula():
    context = Mutable()
    value, found = gradients(in_place, context)
    expected_value, expected = gradients(out_of_place)
    torch.testing.assert_close(value, expected_value)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert context.copies == 3, "h for its square, y for its sine, and h again for its last factor"


def test_without_writes_nothing_is_copied():
    context = Mutable()
    _, found = gradients(out_of_place, context)
    assert context.copies == 0
    for one, other in zip(found, gradients(out_of_place)[1], strict=True):
        assert torch.equal(one, other)


def test_a_write_by_out_and_by_a_list_of_tensors():
    def function(x, w, clean):
        a, b = x * x, w * w
        value = a.exp().sum() + b.exp().sum()  # keeps both results of exp, and x and w
        results = a.exp(), b.exp()
        value = value + (results[0] ** 2).sum() + (results[1] ** 2).sum()  # keeps both
        if not clean:
            with torch.no_grad():
                torch._foreach_zero_(list(results))
                torch.zeros(3, 4, out=a)
        return value

    context = Mutable()
    _, found = gradients(lambda x, w: function(x, w, clean=False), context)
    _, expected = gradients(lambda x, w: function(x, w, clean=True))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    assert context.copies >= 2


def test_the_backward_pass_may_come_after_the_context():
    x = X.clone().requires_grad_()
    with Mutable():
        h = x * 1.0
        y = (h * h).sum()
        h.add_(1)
    h.detach().add_(5)  # nobody sees this any more: what was kept is a copy already
    [gradient] = torch.autograd.grad(y, x)
    assert torch.equal(gradient, 2 * X)


def test_it_tells_of_every_tensor_that_is_kept():
    kept = []

    def tell(tensor):
        kept.append(tensor.shape)
        return tensor

    gradients(lambda x, w: (x @ w).sum(), Mutable(tell))
    assert sorted(map(tuple, kept)) == [(3, 4), (4, 4)]
