"""Weights that stay as their file stores them, on the device: the update of the CPU's numbers, in the memory of the file."""

from __future__ import annotations

import pytest
import torch

from comfyui_otca.tests.trainer.families import kept
from comfyui_otca.tests.trainer.policy.test_stored import gradients, loaded, stores, trained

pytestmark = pytest.mark.anywhere


@pytest.fixture(scope="module")
def pair(flux_folder, tmp_path_factory):
    def of(form):
        target = tmp_path_factory.mktemp("kept")
        if form == "fp8":
            return kept.fp8(flux_folder, target, factor=".scale_weight")
        pytest.importorskip("gguf")
        return kept.gguf(flux_folder, target, form)

    return of


@pytest.mark.parametrize("form", ["fp8", "Q8_0", "Q4_0"])
def test_an_update_is_that_of_widened_weights(form, pair, device):
    file, wide = pair(form)
    narrow, full = loaded(wide, file, device=device), loaded(wide, device=device)
    assert stores(narrow.transformer)
    places = {tensor.device for tensor in (*narrow.transformer.parameters(), *narrow.transformer.buffers())}
    assert places == {narrow.device} and narrow.device == full.device
    (_, figures), (_, expected) = trained(narrow), trained(full)
    assert figures["gradient_norm"] == pytest.approx(expected["gradient_norm"], rel=1e-4)
    for found, one in zip(gradients(narrow), gradients(full), strict=True):
        torch.testing.assert_close(found.cpu(), one.cpu(), rtol=1e-3, atol=1e-5)


def test_what_left_the_device_comes_back_as_it_was_stored(pair, device):
    file, wide = pair("fp8")
    model = loaded(wide, file, device=device)
    before = {name: tensor.cpu().clone() for name, tensor in model.transformer.state_dict().items()}
    if model.leave():
        model.come_back()
    after = model.transformer.state_dict()
    assert all(after[name].dtype == one.dtype and torch.equal(after[name].cpu(), one) for name, one in before.items())
    assert trained(model)[1]["gradient_norm"] > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
@pytest.mark.parametrize("kind", ["8bit", "4bit"])
def test_bitsandbytes_on_the_gpu(kind, pair):
    pytest.importorskip("bitsandbytes")
    file, wide = pair("fp8")
    narrow, full = loaded(wide, file, device="cuda:0", quantize=kind), loaded(wide, device="cuda:0", quantize=kind)
    (taken, figures), (expected, of_full) = trained(narrow), trained(full)
    torch.testing.assert_close(taken.latents, expected.latents, rtol=1e-3, atol=1e-3)
    assert figures["gradient_norm"] == pytest.approx(of_full["gradient_norm"], rel=1e-2)
