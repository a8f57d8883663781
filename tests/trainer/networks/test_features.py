"""What image encoders see, against the networks called by hand."""

from __future__ import annotations

import json

import pytest
import torch

from comfyui_otca.trainer.networks import features
from comfyui_otca.trainer.networks.features import PatchFeatures
from comfyui_otca.trainer.rewards.base import RewardError

pytestmark = pytest.mark.anywhere

CPU = torch.device("cpu")


@pytest.mark.host  # compares with a network on the CPU
def test_dinov2_by_its_pooled_output(tmp_path):
    from transformers import BitImageProcessorPil, Dinov2Config, Dinov2Model

    config = Dinov2Config(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=28, patch_size=14)
    network = Dinov2Model(config).eval()
    network.save_pretrained(tmp_path)
    size = {"height": 28, "width": 28}
    BitImageProcessorPil(size={"shortest_edge": 28}, crop_size=size).save_pretrained(tmp_path)
    images = torch.rand((3, 28, 28, 3), generator=torch.Generator().manual_seed(1))
    # Of the right size already: nothing but normalising is left to do.
    settings = BitImageProcessorPil.from_pretrained(tmp_path)
    mean, std = torch.tensor(settings.image_mean), torch.tensor(settings.image_std)
    pixels = (((images * 255).round() / 255 - mean) / std).permute(0, 3, 1, 2)
    with torch.no_grad():
        expected = network(pixels).pooler_output
        torch.testing.assert_close(features.load(str(tmp_path)).pictures(images), expected, atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def dinov2(tmp_path_factory):
    from transformers import Dinov2Config, Dinov2Model

    folder = tmp_path_factory.mktemp("dinov2")
    config = Dinov2Config(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=42, patch_size=14)
    Dinov2Model(config).save_pretrained(folder)
    prepared = {"crop_size": {"height": 56, "width": 56}, "image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.25]}
    (folder / "preprocessor_config.json").write_text(json.dumps(prepared))
    return folder


def test_features_of_dinov2(dinov2):
    """Against the network called by hand on pictures of its own size, so that nothing is resized."""
    from transformers import AutoModel

    images = torch.rand((2, 56, 56, 3), generator=torch.Generator().manual_seed(0))
    found = PatchFeatures(dinov2, CPU, torch.float32).patches(images)
    pixels = (images.permute(0, 3, 1, 2) - torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)) / torch.tensor(
        [0.2, 0.3, 0.25]
    ).view(3, 1, 1)
    with torch.no_grad():
        tokens = AutoModel.from_pretrained(dinov2).eval()(pixel_values=pixels).last_hidden_state
    torch.testing.assert_close(found, tokens[:, 1:].reshape(2, 4, 4, 16), rtol=0, atol=1e-4)


def test_a_model_without_patches(tmp_path):
    from transformers import ResNetConfig, ResNetModel

    config = ResNetConfig(embedding_size=4, hidden_sizes=[4, 4], depths=[1, 1])
    ResNetModel(config).save_pretrained(tmp_path)
    (tmp_path / features.MARKER).write_text("{}")
    with pytest.raises(RewardError, match=r"ResNetModel, which has no patches. Fix: choose a vision transformer"):
        PatchFeatures(tmp_path, CPU, torch.float32)
