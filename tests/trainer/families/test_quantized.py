"""Networks in 8 or 4 bits by bitsandbytes, from folders and from single files."""

from __future__ import annotations

import pytest
import torch

from comfyui_otca.trainer.families import loading, quantized
from comfyui_otca.trainer.flow import FlowModelError, load_flow_model

from ..policy.test_stored import loaded, trained
from . import kept


@pytest.fixture(scope="module")
def sources(flux_folder, tmp_path_factory):
    """(folder, single file) of the same numbers: the folder's own, a file in full, one in 8 bits."""
    file, wide = kept.fp8(flux_folder, tmp_path_factory.mktemp("fp8"), factor=".scale_weight")
    return {"folder": (wide, None), "file": (wide, wide / kept.WEIGHTS), "fp8 file": (wide, file)}


@pytest.mark.parametrize("kind", ["8bit", "4bit"])
def test_one_network_whatever_it_was_loaded_from(kind, sources):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    linear = {"8bit": bitsandbytes.nn.Linear8bitLt, "4bit": bitsandbytes.nn.Linear4bit}[kind]
    full, *rest = (loaded(*source, quantize=kind) for source in sources.values())
    layers = [module for module in full.transformer.modules() if isinstance(module, linear)]
    assert len(layers) > 20 and {layer.weight.dtype for layer in layers} == {
        {"8bit": torch.int8, "4bit": torch.uint8}[kind]
    }
    taken, figures = trained(full)
    for model in rest:
        found, of_file = trained(model)
        assert torch.equal(found.latents, taken.latents)
        assert of_file["gradient_norm"] == figures["gradient_norm"] > 0
    exact, of_exact = trained(loaded(sources["folder"][0]))
    error = ((taken.latents - exact.latents).norm() / exact.latents.norm()).item()
    assert 0 < error < {"8bit": 0.02, "4bit": 0.2}[kind]
    assert figures["gradient_norm"] == pytest.approx(of_exact["gradient_norm"], rel={"8bit": 0.1, "4bit": 0.5}[kind])


def test_merging_is_refused(sources):
    pytest.importorskip("bitsandbytes")
    model = loaded(*sources["file"], quantize="4bit")
    with pytest.raises(ValueError, match="merge_adapter: the weights are quantized"), model.policy.merged():
        pass


def test_without_the_package_it_is_refused_before_anything_is_loaded(sources, monkeypatch):
    monkeypatch.setattr("diffusers.utils.is_bitsandbytes_available", lambda: False)
    monkeypatch.setattr(loading, "load_pipeline", None)
    folder, file = sources["file"]
    for files in ({}, {"transformer": file}):
        with pytest.raises(FlowModelError, match="quantize = 4bit needs the package bitsandbytes. Fix: pip install "):
            load_flow_model(folder, device="cpu", quantize="4bit", files=files)


def test_a_bitsandbytes_that_does_nothing_on_the_device(sources, monkeypatch):
    monkeypatch.setattr(quantized, "check", lambda kind: None)
    monkeypatch.setattr(quantized, "_layer", lambda kind, bias, weight, dtype: torch.nn.Linear(*weight.T.shape, bias))
    with pytest.raises(FlowModelError, match="quantize = 8bit: bitsandbytes does nothing on cpu. Fix: "):
        loaded(*sources["folder"], quantize="8bit")
