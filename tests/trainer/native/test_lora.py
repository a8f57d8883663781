"""Our own LoRA layers: the formula by hand, what a policy asks of them, and which layers of a network get one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from comfyui_otca.trainer.native import lora
from comfyui_otca.trainer.native.lora import NativeAdapters, Pair
from comfyui_otca.trainer.policy.adapters import TRAINED, Adapter

CPU = torch.device("cpu")


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.ModuleDict({"q": nn.Linear(3, 2), "out": nn.Linear(2, 3)}) for _ in range(11)])


@pytest.fixture
def adapters():
    torch.manual_seed(0)
    made = NativeAdapters(Network(), CPU)
    made.add(Adapter(2, 4.0, "q"))
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3,), (1, 3), (1, 1, 3)])
def test_the_formula_by_hand(shape, dtype):
    pair = Pair(nn.Parameter(torch.tensor([[1.0, 2.0, 0.0]])), nn.Parameter(torch.tensor([[3.0], [-1.0]])), scale=0.5)
    result, x = torch.ones(*shape[:-1], 2, dtype=dtype), torch.tensor([1.0, 2.0, 9.0], dtype=dtype).expand(shape)
    # A·x = 1 + 2·2 = 5; B·5 = (15, -5); half of it
    added = pair.added_to(result, x)
    assert torch.equal(added, torch.tensor([8.5, -1.5], dtype=dtype).expand(result.shape))
    assert (added is result) == (len(shape) == 3), "what layers of blocks return is written over, and nothing else"


def test_its_gradient_with_a_batch_is_that_of_the_formula():
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 5, 3), (4, 3), (6, 4), (2, 5, 6)
    x, a, b, result = (torch.randn(shape, generator=generator).double() for shape in shapes)
    gradients = []
    for added in (
        lambda x, a, b, result: Pair(a, b, 0.5).added_to(result.clone(), x),
        lambda x, a, b, result: result + 0.5 * torch.einsum("or,ri,bni->bno", b, a, x),
    ):
        leaves = [tensor.clone().requires_grad_() for tensor in (x, a, b, result)]
        gradients.append(torch.autograd.grad(added(*leaves).square().sum(), leaves))
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


def test_a_fresh_adapter_does_nothing_and_is_float32(adapters):
    assert list(adapters.acting) == [f"blocks.{number}.q" for number in range(11)]
    for pair in adapters.acting.values():
        assert pair.a.shape == (2, 3) and pair.b.shape == (2, 2) and pair.scale == 2.0
        assert pair.a.dtype == torch.float32 and pair.a.abs().max() > 0 and not pair.b.any()
        # Kaiming's uniform distribution with a = √5: at most 1/√(inputs)
        assert pair.a.abs().max() <= 3**-0.5
        assert pair.a.requires_grad and pair.b.requires_grad
    assert len({pair.a.sum().item() for pair in adapters.acting.values()}) == 11, "each layer's own numbers"


def test_the_same_seed_gives_the_same_numbers(adapters):
    torch.manual_seed(0)
    other = NativeAdapters(Network(), CPU)
    other.add(Adapter(2, 4.0, "q"))
    assert all(torch.equal(value, other.parameters()[name]) for name, value in adapters.parameters().items())


def test_off_and_on_again(adapters):
    before = adapters.acting
    with adapters.off():
        assert not adapters.acting and adapters.of("blocks.1") == []
        assert len(adapters.parameters()) == 22, "what is trained stays what it is"
    assert adapters.acting is before
    with pytest.raises(RuntimeError), adapters.off():
        raise RuntimeError
    assert adapters.acting is before


def test_two_adapters_of_which_one_acts(adapters):
    adapters.add(Adapter(1, 3.0, "out"), "guide")
    assert list(adapters.acting) == [f"blocks.{number}.out" for number in range(11)]
    assert adapters.pairs("guide")["blocks.0.out"].scale == 3.0 and adapters.pairs()["blocks.0.q"].scale == 2.0
    assert all(".q." in name for name in adapters.parameters()), "the guide is not trained"
    adapters.use(TRAINED)
    assert "blocks.0.q" in adapters.acting
    adapters.use("guide")
    adapters.remove(["guide"])
    assert "blocks.0.q" in adapters.acting
    with pytest.raises(KeyError):
        adapters.use("guide")
    adapters.remove([TRAINED])
    assert not adapters.acting and not adapters.parameters()


def test_of_a_block_are_its_own_and_not_those_of_a_longer_number(adapters):
    [a, b] = adapters.of("blocks.1")
    pair = adapters.acting["blocks.1.q"]
    assert a is pair.a and b is pair.b
    assert len(adapters.of("blocks")) == 22


def test_modules_are_all_linear_layers(adapters):
    assert list(adapters.shapes()) == [f"blocks.{number}.{name}" for number in range(11) for name in ("q", "out")]


def test_nothing_can_be_merged_into_what_comfyui_owns(adapters):
    with pytest.raises(ValueError, match="merge_adapter: ComfyUI owns these weights.*Fix: merge_adapter off"):
        adapters.merged()


def test_moved_parameters_are_the_same_objects(adapters):
    before = adapters.parameters()
    before["blocks.0.q.lora_A.weight"].grad = torch.ones(2, 3)
    adapters.move(CPU)
    assert all(parameter is before[name] for name, parameter in adapters.parameters().items())
    assert before["blocks.0.q.lora_A.weight"].grad is None


# -- which layers get one -----------------------------------------------------------------------------------------------------


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


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.img_in = nn.Linear(4, 8)
        self.time_embed = nn.ModuleList([nn.Linear(8, 8)])
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norms = nn.ModuleList([nn.LayerNorm(8), nn.LayerNorm(8)])
        self.final_layer = nn.Linear(8, 4)


USUAL = {"attn.to_q", "attn.to_out", "mlp.0", "mlp.2"}


def test_blocks_are_the_elements_of_lists_with_linear_layers():
    assert list(lora.blocks(Tower())) == ["time_embed.0", "blocks.0", "blocks.1"]


def test_lists_within_a_block_are_part_of_it():
    assert not any("mlp" in name for name in lora.blocks(Tower()))


def test_usual_are_attention_and_feed_forward_of_the_blocks():
    assert set(lora.usual(Tower())) == {f"blocks.{number}.{name}" for number in (0, 1) for name in USUAL}


def test_layers_outside_of_blocks_are_not_usual_though_their_names_end_alike():
    network = Tower()
    network.mlp = nn.ModuleDict({"0": nn.Linear(4, 4)})
    assert "mlp.0" not in lora.chosen(network, lora.usual(network))
    assert "mlp.0" in lora.chosen(network, ["mlp.0"])


def test_chosen_by_the_ends_of_names():
    network = Tower()
    assert lora.chosen(network, ["to_q"]) == ["blocks.0.attn.to_q", "blocks.1.attn.to_q"]
    assert lora.chosen(network, ["blocks.1.mlp.0", "img_in"]) == ["img_in", "blocks.1.mlp.0"]
    assert len(lora.chosen(network, lora.usual(network))) == 8


def test_a_part_of_a_name_is_not_its_end():
    with pytest.raises(ValueError, match="lora_targets 'q' fits no linear layer. Fix: .*attn.to_out, attn.to_q, mlp.0"):
        lora.chosen(Tower(), ["q"])


def test_modulation_is_left_out_and_attention_and_feed_forward_are_not():
    modulating = [
        *("modulation.lin", "img_mod.1", "adaLN_modulation.1", "norm1.linear"),
        *("time_embedding.0", "t_block.1", "router.gate", "x_embedder"),
    ]
    usual = [
        *("attn.to_q", "self_attn.o", "ffn.net.0.proj", "linear1"),
        *("img_mlp.0", "txt_attn.qkv", "feed_forward.w1"),
    ]
    assert [name for name in (*modulating, *usual) if lora.modulates(name)] == modulating
