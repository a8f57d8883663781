"""Layers that keep nothing of their weights: the gradient of their input, and where weights are at hand."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch import nn

from comfyui_otca.trainer.native import frozen


@pytest.fixture(autouse=True)
def comfy(monkeypatch):
    package, ops, management = map(types.ModuleType, ("comfy", "comfy.ops", "comfy.model_management"))
    package.ops, package.model_management, management.in_training = ops, management, False
    for name, module in (("comfy", package), ("comfy.ops", ops), ("comfy.model_management", management)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "comfy_kitchen", None)
    return package


def called(module, forward, prepare=lambda: None, is_plain=True):
    return frozen.Layer(module, forward, prepare, is_plain)


def kept_by(function, *inputs):
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda it: kept.append(tuple(it.shape)) or it, lambda tensor: tensor):
        return function(*inputs), kept


def test_a_linear_layer_keeps_nothing_and_has_its_gradient():
    layer = nn.Linear(3, 5).requires_grad_(False)
    x = torch.randn(2, 4, 3, requires_grad=True)
    found, kept = kept_by(lambda x: frozen.linear(called(layer, layer.forward), x), x)
    assert kept == []
    weights = torch.randn(2, 4, 5)
    torch.testing.assert_close(torch.autograd.grad((found * weights).sum(), x)[0], weights @ layer.weight)


def test_it_takes_the_weight_that_is_there_in_the_backward_pass():
    """And so not what its memory holds by then, where that is a buffer."""
    layer = nn.Linear(3, 5).requires_grad_(False)
    x = torch.randn(2, 3, requires_grad=True)
    found = frozen.linear(called(layer, layer.forward), x)
    layer.weight = nn.Parameter(2 * layer.weight, requires_grad=False)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), x)[0], layer.weight.sum(0).expand(2, 3))


def test_the_scale_of_some_quantizations_is_part_of_it():
    layer = nn.Linear(3, 5).requires_grad_(False)
    layer.pre_quant_scale = torch.tensor([1.0, 2.0, 3.0])
    x = torch.randn(2, 3, requires_grad=True)
    found = frozen.linear(called(layer, lambda x: nn.functional.linear(x * layer.pre_quant_scale, layer.weight)), x)
    expected = (layer.weight * layer.pre_quant_scale).sum(0).expand(2, 3)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), x)[0], expected)


def test_a_norm_whose_weight_is_elsewhere_is_computed_again(comfy):
    layer = nn.LayerNorm(3, dtype=torch.float64).requires_grad_(False)
    with torch.no_grad():
        layer.weight.uniform_(1, 2)
    runs = []

    def forward(x):
        runs.append(comfy.model_management.in_training)
        return nn.functional.layer_norm(x, (3,), layer.weight.float(), layer.bias.float())

    x = torch.randn(2, 3, requires_grad=True)
    found, kept = kept_by(lambda x: frozen.other(called(layer, forward), x), x)
    assert kept == [(2, 3)], "its input alone"
    twin = x.detach().requires_grad_()
    [expected] = torch.autograd.grad(layer(twin.double()).square().sum(), twin)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), x)[0], expected)
    assert runs == [False, True]


@pytest.mark.parametrize(
    ("change", "resident"),
    [
        (lambda layer: None, True),
        (lambda layer: layer.to(torch.float8_e4m3fn), False),
        (lambda layer: layer.to("meta"), False),
        (lambda layer: setattr(layer, "weight_function", [abs]), False),
        (lambda layer: setattr(layer, "bias_function", [abs]), False),
        (lambda layer: setattr(layer, "_v", object()), False),
    ],
)
def test_where_weights_are_at_hand(change, resident):
    layer = nn.LayerNorm(3).requires_grad_(False)
    layer.weight_function, layer.bias_function = [], []
    change(layer)
    assert frozen.is_resident(layer, torch.zeros(3)) is resident


def test_without_a_gradient_it_is_a_plain_call():
    layer = nn.Linear(3, 5)
    x = torch.randn(2, 3)
    assert torch.equal(frozen.linear(called(layer, layer.forward), x), layer(x))
    ids = torch.tensor([1])
    assert frozen.other(called(layer, lambda value: value), ids) is ids


def test_in_training_is_given_back(comfy):
    with pytest.raises(RuntimeError), frozen.training():
        assert comfy.model_management.in_training
        raise RuntimeError
    assert comfy.model_management.in_training is False


# -- what another node does meanwhile ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_plain", [True, False], ids=["its own forward", "another node's"])
def test_weights_are_put_in_place_before_the_backward_pass_fetches_them(is_plain):
    """As where a KSampler with a LoRA has used the network since, or a second network has pushed it off the device."""
    layer, x = nn.Linear(3, 2), torch.ones(1, 3, requires_grad=True)
    right = layer.weight.detach().clone()
    prepare = lambda: layer.weight.data.copy_(right)  # noqa: E731
    found = frozen.linear(called(layer, layer.forward, prepare, is_plain), x)
    layer.weight.data.mul_(5)
    found.sum().backward()
    assert torch.allclose(x.grad, right.sum(0, keepdim=True))


def test_what_another_node_adds_to_a_layer_has_its_part_of_the_gradient():
    layer, more, x = nn.Linear(3, 2), torch.randn(2, 3), torch.ones(1, 3, requires_grad=True)
    frozen.linear(called(layer, lambda x: layer(x) + x @ more.T, is_plain=False), x).sum().backward()
    assert torch.allclose(x.grad, (layer.weight + more).sum(0, keepdim=True))


def test_the_scale_of_scaled_fp8_is_part_of_it():
    """ComfyUI 0.3.64 hands out the weight of such a file without it."""
    layer, x = nn.Linear(3, 2, bias=False), torch.ones(1, 3, requires_grad=True)
    layer.scale_weight = torch.tensor(0.25)
    frozen.linear(called(layer, lambda x: nn.functional.linear(x, layer.weight * 0.25)), x).sum().backward()
    assert torch.allclose(x.grad, 0.25 * layer.weight.sum(0, keepdim=True))
