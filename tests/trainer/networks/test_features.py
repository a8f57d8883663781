"""What image encoders see, against the networks called by hand."""

from __future__ import annotations

import json

import pytest
import torch

from comfyui_otca.trainer.networks import features
from comfyui_otca.trainer.networks.features import PatchFeatures
from comfyui_otca.trainer.networks.published import pillow_processor
from comfyui_otca.trainer.rewards.base import RewardError

pytestmark = pytest.mark.anywhere

CPU = torch.device("cpu")


MEAN, STD = (torch.tensor(figures).view(1, 3, 1, 1) for figures in ([0.4, 0.5, 0.6], [0.2, 0.3, 0.25]))


@pytest.fixture(scope="module")
def dinov2(tmp_path_factory):
    from transformers import Dinov2Config, Dinov2Model

    folder = tmp_path_factory.mktemp("dinov2")
    config = Dinov2Config(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=42, patch_size=14)
    Dinov2Model(config).save_pretrained(folder)
    prepared = {"image_mean": MEAN.flatten().tolist(), "image_std": STD.flatten().tolist()}
    size = {"height": 56, "width": 56}
    pillow_processor("BitImageProcessor")(size={"shortest_edge": 56}, crop_size=size, **prepared).save_pretrained(
        folder
    )
    return folder


@pytest.mark.host  # compares with a network on the CPU
def test_what_dinov2_sees(dinov2):
    """The network called by hand on pictures of its own size, so that nothing but normalising is left to do."""
    from transformers import AutoModel

    network = AutoModel.from_pretrained(dinov2).eval()
    images = torch.randint(0, 256, (2, 56, 56, 3), generator=torch.Generator().manual_seed(0)) / 255
    with torch.no_grad():
        expected = network(pixel_values=(images.permute(0, 3, 1, 2) - MEAN) / STD)
        pooled = features.load(str(dinov2)).pictures(images)
    torch.testing.assert_close(pooled, expected.pooler_output, atol=1e-4, rtol=1e-4)
    patches = PatchFeatures(dinov2, CPU, torch.float32).patches(images)
    torch.testing.assert_close(patches, expected.last_hidden_state[:, 1:].reshape(2, 4, 4, 16), rtol=0, atol=1e-4)


def test_what_dinov2_sees_has_a_gradient(dinov2):
    network = features.load(str(dinov2))
    images = torch.rand(2, 91, 64, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    seen = network.pictures_with_gradient(images)
    torch.testing.assert_close(seen.detach(), network.pictures(images.detach()), atol=1e-4, rtol=1e-4)
    seen[0].sum().backward()
    assert images.grad[0].norm() > 0 and images.grad[1].norm() == 0


LAYERS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
SQUARE = LAYERS | {"image_size": 32, "patch_size": 8}
STAGES = {
    "embedding_size": 8,
    "embed_dim": 8,
    "hidden_sizes": [8, 16],
    "depths": [1, 1],
    "num_heads": [2, 2],
    "num_stages": 2,
}
# class of transformers: (sizes, whether it gives a point of a picture, whether it gives patches)
KINDS = {
    "Dinov2Model": (SQUARE, True, True),
    "Dinov2WithRegistersModel": (SQUARE, True, True),
    "SiglipVisionModel": (SQUARE, True, True),
    "ViTModel": (SQUARE, True, True),
    "BeitModel": (SQUARE, True, True),
    "Aimv2VisionModel": (SQUARE, True, True),
    "IJepaModel": (SQUARE, False, True),
    "ViTMAEModel": (SQUARE, False, False),
    "Siglip2VisionModel": (LAYERS | {"patch_size": 8, "num_patches": 16}, False, False),
    "SwinModel": (STAGES | {"image_size": 32, "patch_size": 4, "window_size": 4}, True, False),
    "ConvNextModel": (STAGES, True, False),
    "ResNetModel": (STAGES, True, False),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_class_gives_what_is_asked_or_is_refused_by_its_name(kind, tmp_path):
    """Seen before: a traceback at the first sample. The table in docs/rewards.md is this one."""
    import transformers

    sizes, points, patches = KINDS[kind]
    made = getattr(transformers, kind)
    made(made.config_class(**sizes)).save_pretrained(tmp_path)
    size = {"height": 32, "width": 32}
    prepared = {
        "image_processor_type": "ViTImageProcessor",
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "size": size,
    }
    (tmp_path / features.MARKER).write_text(json.dumps(prepared))
    pictures = torch.rand(2, 40, 32, 3, generator=torch.Generator().manual_seed(0))

    def refused(ask, what):
        with pytest.raises(RewardError, match=rf"{kind}, which gives no {what}.* Fix: choose DINOv2"):
            ask()

    def load():
        return features.Encoder(tmp_path, CPU, torch.float32)

    def load_patches():
        return PatchFeatures(tmp_path, CPU, torch.float32)

    if points:
        assert load().pictures(pictures).shape[0] == 2
    else:
        refused(load, "point of a picture")
    if patches:
        assert load_patches().patches(pictures).shape[:3] == (2, 4, 4)
    else:
        refused(load_patches, "patches")
