"""What is wrapped around the layers of a network, and what is left of it when it is taken off."""

from __future__ import annotations

import contextlib
import functools
import types

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from comfyui_otca.trainer.native import checkpointing
from comfyui_otca.trainer.native.expert import Expert, page
from comfyui_otca.trainer.native.foreign import rewrap, unlock
from comfyui_otca.trainer.native.lora import NativeAdapters
from comfyui_otca.trainer.policy.adapters import Adapter


def wrapped_network():
    """An Expert around two layers, without ComfyUI's patcher."""
    made = Expert.__new__(Expert)
    made.network = nn.Sequential(nn.ModuleList([nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))]))
    made.blocks = {"0.0": made.network[0][0]}
    made.adapters = NativeAdapters(made.network, torch.device("cpu"))
    made.checkpointing, made._replaced, made._held, made.prepare = False, [], [], lambda: None
    made.compiler = None
    made.kept_blocks, made._blocks_begun, made.count = 0, 0, lambda samples: None
    return made


def test_the_adapter_acts_while_it_is_on_and_nothing_is_left_of_it_afterwards():
    made, x = wrapped_network(), torch.ones(1, 3)
    block = made.blocks["0.0"]
    before = block(x)
    made.adapters.add(Adapter(1, 1.0))
    for parameter in made.adapters.parameters().values():
        parameter.data.fill_(0.5)
    made.put_in(None)
    with_adapter = block(x)
    first = block[0](x)
    assert torch.allclose(first, nn.functional.linear(x, block[0].weight, block[0].bias) + 0.5 * 0.5 * 3)
    made.take_out(None)
    assert not torch.allclose(with_adapter, before) and torch.equal(block(x), before)
    assert not [module for module in made.network.modules() if "forward" in vars(module)]


@pytest.mark.parametrize(("checkpointing", "kept", "times"), [(False, 0, 0), (True, 1, 0), (True, 0, 1)])
def test_a_block_is_compiled_only_where_no_graph_of_it_is_kept(checkpointing, kept, times):
    """A program's graph holds the weights, which may be elsewhere by the time of the backward pass."""
    made, x, seen = wrapped_network(), torch.ones(1, 3, requires_grad=True), []
    made.compiler = lambda block, forward, *args: seen.append(block) or forward(*args)
    made.checkpointing, made.kept_blocks = checkpointing, kept
    made.put_in(None)
    made.blocks["0.0"](x).sum()
    assert len(seen) == times
    with torch.no_grad():
        made.blocks["0.0"](x)
    assert len(seen) == times + 1


def test_a_wrapper_of_another_node_that_is_taken_off_first_does_not_come_back():
    """ComfyUI takes injections off in the order in which it put them on: the inner one first."""
    made = wrapped_network()
    layer = made.blocks["0.0"][0]
    own = layer.forward
    layer.forward = lambda x: own(x) + 1
    made.put_in(None)
    layer.forward = own  # as such a node does it
    made.take_out(None)
    assert layer.forward is own


def test_a_wrapper_of_another_node_stays_where_only_ours_is_taken_off():
    made = wrapped_network()
    layer = made.blocks["0.0"][0]
    own = layer.forward
    theirs = layer.forward = lambda x: own(x) + 1
    made.put_in(None)
    x = torch.ones(1, 3, requires_grad=True)
    assert torch.allclose(layer(x), own(x) + 1)
    made.take_out(None)
    assert layer.forward is theirs


def test_weights_of_inference_mode_become_ordinary_ones_of_the_same_memory():
    with torch.inference_mode():
        module = nn.Linear(2, 2)
        module.register_buffer("scale", torch.ones(1))
        module.latent_format = types.SimpleNamespace(mean=torch.ones(1), name="of latents")
    module.weight.noted = "as ComfyUI notes the dtype of the file"
    place = module.weight.data_ptr(), module.scale.data_ptr()
    rewrap(module)
    assert not any(tensor.is_inference() for tensor in (module.weight, module.scale, module.latent_format.mean))
    assert (module.weight.data_ptr(), module.scale.data_ptr()) == place
    assert module.weight.noted == "as ComfyUI notes the dtype of the file"


def test_readiness_is_that_of_this_clone():
    made = wrapped_network()
    made.patcher = types.SimpleNamespace(model=types.SimpleNamespace(current_patcher=None))
    made.is_stale = False
    assert not made.is_ready
    made.put_in(None)
    made.core.current_patcher = made.patcher
    assert made.is_ready
    made.core.current_patcher = "another clone"
    assert not made.is_ready


def test_what_other_nodes_functions_hold_becomes_ordinary_for_all_who_hold_it():
    with torch.inference_mode():
        enclosed, kept, skipped = torch.ones(2), torch.ones(2), nn.Linear(2, 2)
    holder, network = types.SimpleNamespace(weights=(None, kept)), nn.Linear(2, 2)

    def function(x):
        return network(x * enclosed * holder.weights[1]) + skipped(x)

    assert unlock([types.SimpleNamespace(hook=functools.partial(function))], skipped) == [network]
    assert not enclosed.is_inference() and holder.weights[1] is kept and not kept.is_inference()
    assert skipped.weight.is_inference() and not network.weight.requires_grad
    x = torch.ones(2, requires_grad=True)
    (x * enclosed * kept).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]


def test_an_encoders_weights_become_pages_of_the_file_that_holds_the_same_numbers(tmp_path):
    """Of the file's own memory, unless number, type or shape is another."""
    encoder = nn.ModuleDict({"qwen": nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))}).to(torch.bfloat16)
    file = {f"1.{name}": tensor.clone() for name, tensor in encoder["qwen"][1].state_dict().items()}
    file |= {"0.weight": encoder["qwen"][0].weight.detach() + 1, "0.bias": encoder["qwen"][0].bias.detach().float()}
    save_file(file, tmp_path / "encoder.safetensors")
    before = {name: (p.data_ptr(), p.detach().clone()) for name, p in encoder.named_parameters()}
    page(encoder, [tmp_path / "encoder.safetensors"])
    moved = {name for name, p in encoder.named_parameters() if p.data_ptr() != before[name][0]}
    assert moved == {"qwen.1.weight", "qwen.1.bias"}
    assert all(torch.equal(p, before[name][1]) for name, p in encoder.named_parameters())


def test_every_call_of_the_network_is_counted():
    made, calls = wrapped_network(), []
    made.count = calls.append
    made.network.forward = lambda x: x
    made.put_in(None)
    made.network(torch.zeros(3, 4))
    made.take_out(None)
    made.network(torch.zeros(2, 4))
    assert calls == [3], "and no more, once ComfyUI has it back"


@pytest.mark.parametrize(("kept", "again"), [(0, [3, 2, 1]), (1, [2, 1]), (2, [1]), (3, [])])
def test_blocks_but_for_the_last_ones_are_computed_again(monkeypatch, kept, again):
    class Block(nn.Module):
        def forward(self, x, number):
            calls.append(number)
            return (number * x).tanh()

    monkeypatch.setattr(checkpointing, "training", contextlib.nullcontext)
    made, calls = wrapped_network(), []
    blocks = made.network = nn.ModuleList([Block() for _ in range(3)])
    blocks.forward = lambda x: blocks[2](blocks[1](blocks[0](x, 1), 2), 3)
    made.blocks, made.kept_blocks, made.checkpointing = dict(blocks.named_children()), kept, True
    x = torch.randn(2, 3, requires_grad=True)
    (expected,) = torch.autograd.grad(blocks(x).sum(), x)
    made.put_in(None)
    for _ in range(2):  # the second call counts its own blocks
        calls.clear()
        (slope,) = torch.autograd.grad(blocks(x).sum(), x)
        assert calls == [1, 2, 3, *again] and torch.allclose(slope, expected)
