"""Where the credit goes: the map by hand, by numpy and of the trajectories' pictures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from comfyui_otca.host import paths
from comfyui_otca.trainer.credit.spatial import credit_map, spatial_map
from comfyui_otca.trainer.networks.features import PatchFeatures


def test_one_patch_that_stands_out_by_hand():
    """Of four patches one is different: its component is 3a, -a, -a, -a, so that after moving to 0 it has all the credit."""
    features = torch.zeros(1, 2, 2, 5)
    features[0, 0, 1] = torch.tensor([1.0, 2.0, 0.0, 0.0, 3.0])
    found = spatial_map(features, (2, 2), smoothing=0)
    torch.testing.assert_close(found, torch.tensor([[[0.0, 4.0], [0.0, 0.0]]]), rtol=0, atol=1e-6)
    halved = spatial_map(features, (2, 2), smoothing=0, floor=0.5)
    torch.testing.assert_close(halved, torch.tensor([[[0.5, 2.5], [0.5, 0.5]]]), rtol=0, atol=1e-6)
    # The sign of the features is no matter: what stands out covers the smaller part.
    torch.testing.assert_close(spatial_map(-features, (2, 2), smoothing=0), found, rtol=0, atol=1e-6)


def by_numpy(features, components):
    """One sample's S, from the eigenvectors of the covariance."""
    flat = features.reshape(-1, features.shape[-1]).double().numpy()
    centred = flat - flat.mean(0)
    variance, directions = np.linalg.eigh(centred.T @ centred)
    order = np.argsort(-variance)
    total = np.zeros(len(flat))
    for k in order[:components]:
        z = centred @ directions[:, k]
        z = z / np.sqrt((z**2).mean())
        total += variance[k] / variance.sum() * z * (-1 if (z**3).mean() < 0 else 1)
    return total


@pytest.mark.parametrize("components", [1, 3, 6])
def test_components_are_added_by_their_share(components):
    features = torch.randn((2, 4, 4, 6), generator=torch.Generator().manual_seed(3))
    found = spatial_map(features, (4, 4), components=components, smoothing=0)
    for sample in range(2):
        expected = by_numpy(features[sample], components)
        expected = expected - expected.min()
        np.testing.assert_allclose(found[sample].flatten().numpy(), expected / expected.mean(), atol=1e-4)


def test_every_sample_is_by_itself_and_of_mean_one():
    features = torch.randn((3, 5, 5, 8), generator=torch.Generator().manual_seed(1))
    features = torch.cat([features, features[:1, :1, :1].expand(1, 5, 5, 8)])  # the last is a picture of nothing
    found = spatial_map(features, (10, 12))
    assert found.shape == (4, 10, 12) and found.dtype == torch.float32
    torch.testing.assert_close(found.mean((1, 2)), torch.ones(4))
    assert found.min() >= 0 and found[1].std() > 0.1 and (found[3] == 1).all()
    torch.testing.assert_close(spatial_map(features[1:2], (10, 12))[0], found[1])
    assert spatial_map(features[:3], (10, 12), smoothing=3.0).std() < found[:3].std()


def test_frames_of_a_video_have_their_components_in_common():
    features = torch.zeros(1, 4, 3, 3, 2)
    features[0, 2:, 1, 1] = 1.0  # something appears in the second half
    found = spatial_map(features, (2, 3, 3), smoothing=0)
    assert found.shape == (1, 2, 3, 3)
    assert found[0, 1, 1, 1] == pytest.approx(18.0, abs=1e-4), "all credit in one of 2 · 3 · 3 positions"


def test_a_tower_of_clip_and_the_trajectories_pictures(sample, still_model):
    network = PatchFeatures(paths.ASSETS / "shapes-clip", torch.device("cpu"), torch.float32)
    assert type(network.model).__name__.startswith("CLIPVision")
    taken = sample(still_model)
    found = credit_map(network, taken, floor=0.25)
    assert found.shape == taken.latents[:, 0, 0].shape and found.min() >= 0.25
    videos = replace(taken, images=taken.images[:, None].repeat(1, 3, 1, 1, 1), latents=taken.latents[..., None, :, :])
    assert credit_map(network, videos).shape == (len(found), 1, *found.shape[1:])
