"""Files of true size, written small: what a stock reader finds in them."""

from __future__ import annotations

import torch
from safetensors.torch import load_file
from torch import nn

from comfyui_otca.tools.true_size.__main__ import named
from comfyui_otca.tools.true_size.networks import FP8, SCALED, Weights
from comfyui_otca.tools.true_size.writing import entries, write


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        block = {"q": nn.Linear(8, 6), "mod": nn.Linear(8, 4), "norm": nn.LayerNorm(8)}
        self.layers = nn.ModuleList([nn.ModuleDict(block), nn.ModuleDict({"q": nn.Linear(8, 6)})])
        self.model, self.bn = nn.Linear(8, 8), nn.BatchNorm1d(4)


def made(path, form: str = "", **options):
    write(path, list(entries(Network(), Weights("diffusion_models", "", torch.bfloat16, form), **options)))
    return load_file(path)


def test_names_shapes_and_dtypes_are_the_networks_and_the_same_seed_gives_the_same_file(tmp_path):
    state = made(tmp_path / "a.safetensors")
    own = Network().state_dict()
    assert {name: tensor.shape for name, tensor in state.items()} == {name: value.shape for name, value in own.items()}
    assert {tensor.dtype for tensor in state.values()} == {torch.bfloat16, torch.int64}
    few = made(tmp_path / "b.safetensors", layers=1)
    changed = {name for name, tensor in few.items() if not torch.equal(tensor, state[name])}
    assert changed == {"layers.1.q.weight", "layers.1.q.bias"} and not any(few[name].any() for name in changed)
    assert torch.equal(state["bn.running_var"], torch.ones(4).bfloat16())


def test_scaled_fp8_holds_the_matrices_of_blocks_but_the_modulation(tmp_path):
    plain, state = made(tmp_path / "a.safetensors"), made(tmp_path / "b.safetensors", SCALED)
    assert {name for name in state if state[name].dtype == FP8} == {"layers.0.q.weight", "layers.1.q.weight", SCALED}
    again = state["layers.1.q.weight"].float() * state["layers.1.q.scale_weight"]
    torch.testing.assert_close(again, plain["layers.1.q.weight"].float(), rtol=1 / 16, atol=2e-3)


def test_every_template_of_a_real_model_has_all_of_its_files():
    names = ("flux2_klein", "z_image", "wan22_5b", "flux1", "qwen_image", "krea2", "wan22_14b")
    assert [len(named(name)) for name in names] == [4, 4, 4, 5, 4, 4, 5], "networks, encoders, VAE and HPSv2.1"
