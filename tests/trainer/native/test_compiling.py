"""Blocks as torch.compile makes them, without ComfyUI: gradients, graphs, and what is left as it is."""

from __future__ import annotations

import logging
import shutil
import sys
import types

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from comfyui_otca.trainer.native import compiling
from comfyui_otca.trainer.native.checkpointing import Mutable, checkpointed


class Block(nn.Module):
    """Writes over what it is given, over what autograd keeps of it, and over a part of that."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, y, transformer_options):
        y += self.first(x).tanh()
        kept = y.sigmoid() + 1
        x.addcmul_(kept, self.second(y * y))
        kept *= 3
        x[:, :2] *= kept[:, :2]
        return x, y[:, 1:]


class Within(Block):
    def forward(self, pair, y, transformer_options):
        pair[0].add_(y)
        return pair[0] * self.first(y), y


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    package, flags = types.ModuleType("comfy"), types.ModuleType("comfy.model_management")
    package.model_management, flags.in_training = flags, False
    for name, module in (("comfy", package), ("comfy.model_management", flags), ("comfy_kitchen", None)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(compiling, "BACKEND", "aot_eager")
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def expert_of(*blocks, functions=()):
    place = types.SimpleNamespace(load_device=torch.device("cpu"))
    named = {str(number): block for number, block in enumerate(blocks)}
    return types.SimpleNamespace(functions=functions, dtype=torch.float32, patcher=place, blocks=named)


def blocks_of(kind, count):
    torch.manual_seed(0)
    return [kind() for _ in range(count)]


def trained(blocks, how, checkpointing=False, twice=False):
    """What blocks one after the other make of two inputs, and the gradient of every weight and input."""
    x, y = (torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(n)).requires_grad_() for n in (1, 2))
    parameters = [p for block in blocks for p in block.parameters()]
    with Mutable():
        a, b = x * x, y * 1
        for number, block in enumerate(blocks):
            before = a
            run = how(block)
            options = {"transformer_options": {"block_index": number, "total": len(blocks)}}
            if checkpointing:
                a, b = checkpointed(run, list(block.parameters()), (a, b), options)
            else:
                a, b = run(a.clone(), b.clone(), **options)
            a += before.mean()  # as a network does with what its blocks return
            b = torch.cat([b, b[:, :1]], 1)
    value = (a.square() + b.cos()).sum()
    if twice:  # as the comparison with finite differences does
        torch.autograd.grad(value, [x, y, *parameters], retain_graph=True)
    return [value, *torch.autograd.grad(value, [x, y, *parameters])]


def compiled(expert):
    compiler = compiling.Compiler(expert)
    return lambda block: lambda *args, **kwargs: compiler(block, block.forward, *args, **kwargs)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_what_is_written_over_within_a_program_has_the_gradient_of_the_plain_block(checkpointing, caplog):
    blocks = blocks_of(Block, 3)
    how = compiled(expert_of(*blocks))
    ours = trained(blocks, how, checkpointing)
    assert counters["stats"]["unique_graphs"] >= 1 and not counters["graph_break"] and "compile:" not in caplog.text
    for one, other in zip(ours, trained(blocks, lambda block: block.forward), strict=True):
        assert (one - other).norm() <= 1e-5 * other.norm()


def test_what_a_block_is_given_stays_as_it_is():
    [block] = blocks_of(Block, 1)
    x, y = torch.ones(3, 5, 4), torch.ones(3, 5, 4)
    with torch.no_grad():
        compiled(expert_of(block))(block)(x, y, transformer_options={})
    assert x.eq(1).all() and y.eq(1).all() and counters["stats"]["unique_graphs"] == 1


def test_there_are_no_more_graphs_for_more_blocks():
    counts = []
    for count in (2, 4):
        torch._dynamo.reset()
        counters.clear()
        blocks = blocks_of(Block, count)
        trained(blocks, compiled(expert_of(*blocks)))
        counts.append(counters["stats"]["unique_graphs"])
    assert counts[0] == counts[1] > 0


def test_torchs_own_backend(monkeypatch, caplog):
    if not shutil.which("g++"):
        pytest.skip("torch's backend needs a compiler, and there is no g++")
    monkeypatch.setattr(compiling, "BACKEND", "inductor")
    monkeypatch.setattr(
        torch._inductor.config, "force_disable_caches", True
    )  # they would bring a backward pass of before
    blocks = blocks_of(Block, 2)
    trained(blocks, compiled(expert_of(*blocks)))
    ours = trained(blocks, compiled(expert_of(*blocks)), twice=True)
    assert counters["stats"]["unique_graphs"] >= 1 and "compile:" not in caplog.text
    for one, other in zip(ours, trained(blocks, lambda block: block.forward), strict=True):
        assert (one - other).norm() <= 1e-5 * other.norm()


@pytest.mark.parametrize("reason", ["functions", "type", "place"])
def test_what_is_not_compiled_is_said_once_and_runs(reason, caplog):
    blocks = blocks_of(Block, 3)
    if reason == "type":
        blocks[1].first.double()
        blocks[1].first.forward = lambda x: nn.functional.linear(x, *(p.float() for p in blocks[1].first.parameters()))
    if reason == "place":
        blocks[1].second.weight_function = [lambda weight: weight]
    expert = expert_of(*blocks, functions=["another node's"] if reason == "functions" else [])
    how = compiled(expert)
    with caplog.at_level(logging.WARNING):
        trained(blocks, how)
        ours = trained(blocks, how)
    left = 3 if reason == "functions" else 1
    [line] = [record.getMessage() for record in caplog.records if "compile:" in record.getMessage()]
    assert line.startswith(f"compile: {left} of 3 blocks stay as they are") and "Fix: " in line
    assert (counters["stats"]["unique_graphs"] > 0) == (reason != "functions")
    for one, other in zip(ours, trained(blocks, lambda block: block.forward), strict=True):
        assert (one - other).norm() <= 1e-5 * other.norm()


def test_what_torch_refuses_runs_and_is_said(caplog):
    """A tensor within a list is written over: the compiler would do so where autograd does not see it."""
    blocks = blocks_of(Within, 2)
    how = compiled(expert_of(*blocks))
    x, y = torch.ones(2, 4), torch.ones(2, 4)
    with caplog.at_level(logging.WARNING), torch.no_grad():
        out, _ = how(blocks[0])([x], y, transformer_options={})
        how(blocks[1])([x], y, transformer_options={})
    assert torch.equal(out, 2 * blocks[0].first(y)) and x.eq(3).all(), "each block wrote over it once"
    assert "2 of 2 blocks" in caplog.text and "it writes over tensors within what it is given" in caplog.text


def test_an_error_of_a_call_is_the_blocks_own():
    [block] = blocks_of(Block, 1)
    how = compiling.Compiler(expert_of(block))
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied|size of tensor"):
        how(block, block.forward, torch.ones(2, 3), torch.ones(2, 3), transformer_options={})
    assert how.refused == {}, "the block can be compiled"
