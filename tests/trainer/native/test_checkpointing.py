"""Blocks that are computed again, against twins that write over nothing and are not."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from comfyui_otca.trainer.native import checkpointing as module
from comfyui_otca.trainer.native.checkpointing import Mutable, checkpointed


@pytest.fixture(autouse=True)
def management(monkeypatch):
    """The flag of ComfyUI's that is held where something is computed again."""
    flags = types.ModuleType("comfy.model_management")
    flags.in_training = False
    package = types.ModuleType("comfy")
    package.model_management = flags
    monkeypatch.setitem(sys.modules, "comfy", package)
    monkeypatch.setitem(sys.modules, "comfy.model_management", flags)
    monkeypatch.setitem(sys.modules, "comfy_kitchen", None)
    return flags


class Modulation:
    """An object that carries tensors into a block, as FLUX's do."""

    def __init__(self, shift, scale, name="a"):
        self.shift, self.scale, self.name = shift, scale, name


class Block(nn.Module):
    """Two streams with residuals that are added in place."""

    def __init__(self, seed: int, in_place: bool):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.a = nn.Parameter(torch.randn(4, 4, generator=generator) / 2)
        self.b = nn.Parameter(torch.randn(4, 4, generator=generator) / 2)
        self.in_place, self.calls = in_place, []

    def forward(self, x, y, modulation=None, *, mask=None, transformer_options=None):
        self.calls.append(dict(transformer_options or {}))
        step = (x @ self.a).tanh() * (1 if modulation is None else modulation.scale)
        if mask is not None:
            step = step * mask
        if self.in_place:
            x += step
            y.add_(x @ self.b)
            if modulation is not None:
                x += modulation.shift
            return x, y, None, "text"
        x = x + step
        y = y + x @ self.b
        return (x if modulation is None else x + modulation.shift), y, None, "text"


def network(in_place: bool, checkpointing: bool, **given):
    """The value and the gradients of two blocks in a row, and those of what came in."""
    blocks = [Block(seed, in_place) for seed in (1, 2)]
    generator = torch.Generator().manual_seed(3)
    x, y, shift, scale = (torch.randn(5, 4, generator=generator).requires_grad_() for _ in range(4))
    options = given.pop("options", None)
    modulation = Modulation(shift * 1.0, scale * 1.0) if given.pop("modulated", False) else None
    streams = x * 1.0, y * 1.0
    for number, block in enumerate(blocks):
        if options is not None:
            options["block"] = number  # as a network does, in one dictionary for all
            given["transformer_options"] = options
        args = (*streams, modulation)
        if checkpointing:
            *streams, nothing, text = checkpointed(block.forward, [block.a, block.b], args, given)
        else:
            *streams, nothing, text = block(*args, **given)
        assert nothing is None and text == "text"
    value = (streams[0] * streams[1]).sum() + streams[0].square().sum()
    sources = [p for block in blocks for p in block.parameters()] + [x, y]
    sources += [shift, scale] if modulation is not None else []
    return value, torch.autograd.grad(value, sources), blocks


@pytest.mark.parametrize("given", [{}, {"modulated": True}, {"mask": torch.tensor([1.0, 0, 1, 2])}])
def test_the_gradient_is_that_of_a_block_without_writes(given):
    value, found, _ = network(in_place=True, checkpointing=True, **dict(given))
    expected_value, expected, _ = network(in_place=False, checkpointing=False, **dict(given))
    torch.testing.assert_close(value, expected_value)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_the_inputs_stay_as_they_were():
    block = Block(1, in_place=True)
    x = torch.ones(5, 4, requires_grad=True)
    y = torch.ones(5, 4)
    checkpointed(block.forward, [block.a, block.b], (x, y), {})
    assert torch.equal(x, torch.ones(5, 4)) and torch.equal(y, torch.ones(5, 4))


@pytest.mark.parametrize("writes", [False, True])
def test_a_block_that_writes_over_nothing_works_on_no_copies(writes):
    x, places = torch.ones(5, 4, requires_grad=True), []
    run = lambda x: places.append(x.data_ptr()) or x.square()  # noqa: E731
    [gradient] = torch.autograd.grad(checkpointed(run, [], (x,), {}, writes).sum(), x)
    assert [place == x.data_ptr() for place in places] == [not writes] * 2 and torch.equal(gradient, 2 * x)


def test_options_are_the_same_the_second_time():
    options = {"kept": "by nodes"}
    _, _, blocks = network(in_place=True, checkpointing=True, options=options)
    for number, block in enumerate(blocks):
        assert block.calls == [{"kept": "by nodes", "block": number}] * 2
    assert options == {"kept": "by nodes", "block": 1}


def test_an_object_with_tensors_comes_out_as_itself():
    def run(x):
        return {"made": Modulation(x * 2, x + 1, name="mine"), "same": x}

    x = torch.ones(3, requires_grad=True)
    found = checkpointed(run, [], (x,), {})
    assert type(found["made"]) is Modulation and found["made"].name == "mine"
    [gradient] = torch.autograd.grad((found["made"].shift * found["made"].scale).sum(), x)
    assert torch.equal(gradient, torch.full((3,), 6.0)), "d/dx 2x(x+1) = 4x + 2"


def test_numbers_that_are_not_floating_come_out_without_a_gradient():
    x = torch.ones(3, requires_grad=True)
    doubled, order = checkpointed(lambda x: (2 * x, x.argsort()), [], (x,), {})
    assert order.dtype == torch.int64 and not order.requires_grad
    assert torch.equal(torch.autograd.grad(doubled.sum(), x)[0], torch.full((3,), 2.0))


def test_only_its_inputs_are_kept_and_it_is_run_twice():
    block, kept = Block(1, in_place=True), []
    x, y = torch.ones(5, 4, requires_grad=True), torch.ones(5, 4)
    with torch.autograd.graph.saved_tensors_hooks(lambda it: kept.append(it.shape) or it, lambda tensor: tensor):
        out, _, _, _ = checkpointed(block.forward, [block.a, block.b], (x, y), {})
    assert len(kept) == 4 and len(block.calls) == 1, "two parameters, two inputs"
    out.sum().backward()
    assert len(block.calls) == 2


def test_what_a_block_was_given_is_let_go_of_before_the_block_ahead_of_it_is_computed_again():
    first, second, given, expired = Block(1, in_place=True), Block(2, in_place=True), [], []
    run = lambda *args: expired.extend(reference.expired() for reference in given) or first(*args)  # noqa: E731
    x, y, _, _ = checkpointed(run, [first.a, first.b], (torch.ones(5, 4, requires_grad=True), torch.ones(5, 4)), {})
    given.append(StorageWeakRef(x.untyped_storage()))
    out, _, _, _ = checkpointed(second.forward, [second.a, second.b], (x, y), {})
    del x, y
    out.sum().backward()
    assert expired == [True]


def test_without_a_gradient_it_is_a_plain_call():
    block = Block(1, in_place=True)
    x, y = torch.ones(5, 4), torch.ones(5, 4)
    with torch.no_grad():
        out = checkpointed(block.forward, [block.a, block.b], (x, y), {})
    assert out[0] is x, "nothing was copied"


def test_comfyui_knows_that_there_is_training_while_it_is_computed_again(management):
    seen, x = [], torch.ones(3, requires_grad=True)
    checkpointed(lambda x: seen.append(management.in_training) or x * x, [], (x,), {}).sum().backward()
    assert seen == [False, True] and management.in_training is False
    assert module.OPTIONS == "transformer_options"


# -- without it: operations in place, against the same formula without any ----------------------------------------------------


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


@pytest.mark.parametrize(("function", "copies"), [(in_place, 3), (out_of_place, 0)])
def test_the_gradient_is_that_of_the_formula(function, copies):
    context = Mutable()
    found, expected = gradients(function, context), gradients(out_of_place)
    torch.testing.assert_close(found, expected)
    assert context.copies == copies, "in place: h for its square, y for its sine, and h again for its last factor"


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
    assert all(map(torch.equal, found, expected))
    assert context.copies >= 2


class Packed(torch.Tensor):
    def __init__(self, tensor, kind):
        """As ComfyUI-GGUF's class of weights: it cannot be made without its kind."""


def test_what_leaves_a_class_of_weights_does_not_come_back_as_one_of_it():
    with Mutable():
        assert type(torch.Tensor(X.as_subclass(Packed))) is torch.Tensor


def test_the_backward_pass_may_come_after_the_context():
    x = X.clone().requires_grad_()
    with Mutable():
        h = x * 1.0
        y = (h * h).sum()
        h.add_(1)
    h.detach().add_(5)  # nobody sees this any more: what was kept is a copy already
    [gradient] = torch.autograd.grad(y, x)
    assert torch.equal(gradient, 2 * X)
