"""The walk over blocks that are out. What it comes to on a device: tests/device/test_streaming.py."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from comfyui_otca.host import devices
from comfyui_otca.trainer.families.streaming import Stream, out

META = torch.device("meta")


class Block(nn.Module):
    """Doubles, and has a weight that is not asked."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x):
        return (2 * x).exp().log()  # which keeps something for its gradient


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block.__call__, x, use_reentrant=False)
        return x


def test_those_that_are_out_are_spread():
    assert out(8, 8) == list(range(8)) and out(8, 0) == []
    assert out(8, 4) == [1, 3, 5, 7] and out(8, 3) == [2, 5, 7] and out(3, 1) == [2]


def test_the_next_block_comes_while_one_computes_and_a_turn_brings_no_block_again(monkeypatch):
    network, copies, where = Network(), [], [META]
    monkeypatch.setattr(devices, "fetch", lambda target, source: copies.append(source.data_ptr()) or (lambda: None))
    stream = Stream([network], 4, torch.device("cpu"), lambda: where[0])
    numbers = {block.weight.data_ptr(): number for number, block in enumerate(network.blocks)}
    assert len(numbers) == 4

    def taken():
        walk = [numbers[address] for address in copies]
        copies.clear()
        return walk

    x = torch.ones(1, requires_grad=True)
    result = network(x)
    assert taken() == [0, 1, 2, 3, 0]  # the last one stays, and the first one comes for another call
    result.backward()
    assert x.grad == 16 and taken() == [2, 1, 0, 3]
    with torch.no_grad():
        assert network(x) == 16 and taken() == [1, 2, 3, 0]
    where[0] = torch.device("cpu")  # away, where the weights are
    assert network(x) == 16 and taken() == []
    stream.end()
    where[0] = META
    assert network(x) == 16 and taken() == []
