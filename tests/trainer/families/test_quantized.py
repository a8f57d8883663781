"""Networks in 8 or 4 bits by bitsandbytes."""

from __future__ import annotations

import pytest
import torch

from comfyui_otca.host import extras
from comfyui_otca.tests.device import conftest as training
from comfyui_otca.trainer import grpo
from comfyui_otca.trainer.families import loading
from comfyui_otca.trainer.flow import FlowModelError, load_flow_model
from comfyui_otca.trainer.types import UpdateSettings


@pytest.fixture
def loaded(flux_folder, perturb):
    def load(**options):
        own = {"lora_rank": 2, "lora_alpha": 3.0, "dtype": "float32", "device": "cpu", **options}
        return perturb(load_flow_model(flux_folder, **own))

    return load


def trained(model):
    taken = training.sampled(model, "flux")
    return taken, grpo.update(model, taken, training.judged(taken), UpdateSettings(learning_rate=1e-3))


@pytest.mark.parametrize(
    "place",
    [
        "cpu",
        pytest.param(
            "cuda:0", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")]
        ),
    ],
)
@pytest.mark.parametrize("kind", ["8bit", "4bit"])
def test_velocity_and_gradient_are_those_of_the_exact_weights_up_to_rounding(kind, loaded, place):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    linear = {"8bit": bitsandbytes.nn.Linear8bitLt, "4bit": bitsandbytes.nn.Linear4bit}[kind]
    model = loaded(quantize=kind, device=place)
    layers = [module for module in model.transformer.modules() if isinstance(module, linear)]
    stored = {"8bit": torch.int8, "4bit": torch.uint8}[kind]
    assert len(layers) > 20 and {layer.weight.dtype for layer in layers} == {stored}
    (taken, figures), (exact, of_exact) = trained(model), trained(loaded(device=place))
    error = ((taken.latents - exact.latents).norm() / exact.latents.norm()).item()
    assert 0 < error < {"8bit": 0.02, "4bit": 0.2}[kind]
    assert figures["gradient_norm"] == pytest.approx(of_exact["gradient_norm"], rel={"8bit": 0.1, "4bit": 0.5}[kind])


def test_merging_is_refused(loaded):
    pytest.importorskip("bitsandbytes")
    policy = loaded(quantize="4bit").policy
    with pytest.raises(ValueError, match="merge_adapter: the weights are quantized"), policy.merged():
        pass


def test_without_the_package_it_is_refused_before_anything_is_loaded(loaded, monkeypatch):
    found = extras.installed
    monkeypatch.setattr(extras, "installed", lambda name: None if name == "bitsandbytes" else found(name))
    monkeypatch.setattr(loading, "load_pipeline", None)
    with pytest.raises(FlowModelError, match="quantize = 4bit needs bitsandbytes.* Fix: .*pip install "):
        loaded(quantize="4bit")


def test_a_bitsandbytes_that_does_nothing_on_the_device(loaded, monkeypatch):
    monkeypatch.setattr(loading, "check_options", lambda options: None)
    monkeypatch.setattr(loading, "layer_of", lambda kind, bias, weight, dtype: torch.nn.Linear(*weight.T.shape, bias))
    with pytest.raises(FlowModelError, match="quantize = 8bit: bitsandbytes does nothing on cpu. Fix: "):
        loaded(quantize="8bit")
