"""What trains ComfyUI's own models, as far as it runs without ComfyUI, on the pretend accelerator."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from comfyui_otca.tests.trainer.native import test_frozen
from comfyui_otca.tests.trainer.native.test_lora import Network
from comfyui_otca.trainer.native import frozen
from comfyui_otca.trainer.native.checkpointing import Mutable, checkpointed
from comfyui_otca.trainer.native.lora import NativeAdapters
from comfyui_otca.trainer.policy.adapters import Adapter

pytestmark = [pytest.mark.anywhere, pytest.mark.usefixtures("accelerator", "comfy")]
DEVICE = "pretend:0"
comfy = test_frozen.comfy


def test_adapters_begin_alike_and_move_as_the_same_parameters():
    made = []
    for device in map(torch.device, ("cpu", DEVICE)):
        torch.manual_seed(0)
        made.append(NativeAdapters(Network().to(device), device))
        made[-1].add(Adapter(2, 4.0, "q"))
    expected, adapters = (one.parameters() for one in made)
    assert {parameter.device for parameter in adapters.values()} == {torch.device(DEVICE)}
    assert all(torch.equal(adapters[name].detach().cpu(), value.detach()) for name, value in expected.items())
    held = list(adapters.values())
    for device in map(torch.device, ("cpu", DEVICE)):
        made[1].move(device)
        assert all(one is other for one, other in zip(held, made[1].parameters().values(), strict=True))
        assert {parameter.device for parameter in held} == {device}
    pair = next(iter(made[1].acting.values()))
    pair.added_to(torch.zeros(1, 1, len(pair.b), device=DEVICE), torch.ones(1, 1, 3, device=DEVICE)).sum().backward()
    assert pair.b.grad.device == torch.device(DEVICE)


def test_a_frozen_layer_has_its_gradient():
    layer = nn.Linear(3, 5).requires_grad_(False).to(DEVICE)
    x, weights = torch.randn(2, 3, device=DEVICE, requires_grad=True), torch.randn(2, 5, device=DEVICE)
    found = frozen.linear(frozen.Layer(layer, layer.forward, lambda: None, True), x)
    gradient = torch.autograd.grad((found * weights).sum(), x)[0]
    torch.testing.assert_close(gradient.cpu(), weights.cpu() @ layer.weight.cpu())


def test_what_is_written_over_is_kept():
    """A block that adds in place, against the same that does not."""
    start = torch.randn(4, 3)
    gradients = []
    for in_place in (False, True):
        x = start.to(DEVICE).requires_grad_()
        with Mutable():
            y = x * 2
            z = y.sin()
            y = y.add_(1) if in_place else y + 1
            (z * y).sum().backward()
        gradients.append(x.grad.cpu())
    torch.testing.assert_close(*gradients)


def test_a_block_is_computed_again_from_its_inputs():
    weight, start = torch.randn(3, 3), torch.randn(4, 3)
    gradients = []
    for device, again in (("cpu", False), (DEVICE, True)):
        own, x = nn.Parameter(weight.to(device)), start.to(device).requires_grad_()

        def block(x, own=own):
            return x + (x @ own).tanh()

        y = checkpointed(block, [own], (x,), {}) if again else block(x)
        gradients.append([gradient.cpu() for gradient in torch.autograd.grad(y.square().sum(), [x, own])])
    torch.testing.assert_close(*gradients)
