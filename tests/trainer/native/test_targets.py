"""Which layers of a network get the adapter."""

from __future__ import annotations

import pytest
from torch import nn

from comfyui_otca.trainer.native import lora as targets


class Quantized(nn.Module):
    """A linear layer as ComfyUI's quantized ones are: no nn.Linear, but it knows its sizes and fetches its weight."""

    comfy_cast_weights = True

    def __init__(self):
        super().__init__()
        self.in_features, self.out_features = 8, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.ModuleDict({"to_q": nn.Linear(8, 8), "norm_q": nn.LayerNorm(8), "to_out": Quantized()})
        self.mlp = nn.ModuleList([nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)])
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(8, 48))
        self.img_mod = nn.ModuleDict({"lin": nn.Linear(8, 48)})
        self.norm_context = nn.Linear(8, 16)
        self.t_embedder = nn.Linear(8, 8)
        self.gate = nn.Linear(8, 4)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.img_in = nn.Linear(4, 8)
        self.time_embed = nn.ModuleList([nn.Linear(8, 8)])
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norms = nn.ModuleList([nn.LayerNorm(8), nn.LayerNorm(8)])
        self.final_layer = nn.Linear(8, 4)


USUAL = {"attn.to_q", "attn.to_out", "mlp.0", "mlp.2"}


def test_blocks_are_the_elements_of_lists_with_linear_layers():
    assert list(targets.blocks(Network())) == ["time_embed.0", "blocks.0", "blocks.1"]


def test_lists_within_a_block_are_part_of_it():
    assert not any("mlp" in name for name in targets.blocks(Network()))


def test_all_linear_layers_have_names():
    names = targets.linears(Network())
    assert len(names) == 3 + 2 * 9 and "blocks.1.attn.to_out" in names and "norms.0" not in names


def test_usual_are_attention_and_feed_forward_of_the_blocks():
    assert set(targets.usual(Network())) == {f"blocks.{number}.{name}" for number in (0, 1) for name in USUAL}


def test_layers_outside_of_blocks_are_not_usual_though_their_names_end_alike():
    network = Network()
    network.mlp = nn.ModuleDict({"0": nn.Linear(4, 4)})
    assert "mlp.0" not in targets.chosen(network, targets.usual(network))
    assert "mlp.0" in targets.chosen(network, ["mlp.0"])


def test_chosen_by_the_ends_of_names():
    network = Network()
    assert targets.chosen(network, ["to_q"]) == ["blocks.0.attn.to_q", "blocks.1.attn.to_q"]
    assert targets.chosen(network, ["blocks.1.mlp.0", "img_in"]) == ["img_in", "blocks.1.mlp.0"]
    assert len(targets.chosen(network, targets.usual(network))) == 8


def test_a_part_of_a_name_is_not_its_end():
    with pytest.raises(ValueError, match="lora_targets 'q' fits no linear layer. Fix: .*attn.to_out, attn.to_q, mlp.0"):
        targets.chosen(Network(), ["q"])


@pytest.mark.parametrize(
    "name",
    [
        *("modulation.lin", "img_mod.1", "adaLN_modulation.1", "norm1.linear"),
        *("time_embedding.0", "t_block.1", "router.gate", "x_embedder"),
    ],
)
def test_modulation_is_left_out(name):
    assert targets._MODULATION.search(name)


@pytest.mark.parametrize(
    "name", ["attn.to_q", "self_attn.o", "ffn.net.0.proj", "linear1", "img_mlp.0", "txt_attn.qkv", "feed_forward.w1"]
)
def test_attention_and_feed_forward_are_none(name):
    assert not targets._MODULATION.search(name)


def test_an_empty_network_has_no_block():
    assert targets.blocks(nn.Sequential(nn.Linear(2, 2))) == {}
