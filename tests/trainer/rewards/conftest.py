"""Tiny checkpoints in the published layouts, and pictures to judge by them."""

from __future__ import annotations

import pytest
import torch

from comfyui_otca.assets.make import tiny_rewards
from comfyui_otca.trainer.networks import preprocess

PROMPTS = ["a red circle", "a blue square on a green background", "zebra"]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A folder with every tiny checkpoint: clip, aesthetic.pth, pickscore, hps.pt, image_reward."""
    folder = tmp_path_factory.mktemp("rewards")
    tiny_rewards.clip(folder / "clip")
    tiny_rewards.aesthetic(folder / "aesthetic.pth")
    tiny_rewards.pickscore(folder / "pickscore")
    tiny_rewards.hps(folder / "hps.pt")
    tiny_rewards.image_reward(folder / "image_reward")
    return folder


@pytest.fixture(scope="session")
def images():
    """[3, 40, 56, 3]: neither square nor of any network's size, and of 8 bits, as saved pictures are."""
    noise = torch.randint(0, 256, (3, 10, 14, 3), generator=torch.Generator().manual_seed(0))
    return noise.repeat_interleave(4, 1).repeat_interleave(4, 2) / 255


@pytest.fixture(scope="session")
def pictures(images):
    return preprocess.pil(images)


@pytest.fixture
def prompts():
    return list(PROMPTS)


def truncated(place, folder):
    """A copy of that file in that folder, cut off in the middle."""
    cut = folder / place.name
    cut.write_bytes(place.read_bytes()[: place.stat().st_size // 2])
    return cut
