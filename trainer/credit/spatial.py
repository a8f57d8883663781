"""Where in the picture the credit goes: a map over the latent, from features of the decoded pictures (VIPO, 2511.18719).

The paper's equations reached us at second hand: centred PCA of patch features, its leading components added up by their share of
the variance, smoothed and brought to mean 1. The sign of a component, which PCA leaves open, is our choice, see `spatial_map`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ..networks.features import PatchFeatures
    from ..types import Trajectories

_TINY = torch.finfo(torch.float64).tiny


def spatial_map(
    features: Tensor, shape: Sequence[int], components: int = 3, smoothing: float = 1.0, floor: float = 0.0
):
    """Which latent positions hold what the picture is about, [B, *shape], of mean 1 for each sample.

    For each sample alone, the patches' features are centred, z_k is their projection on the k-th principal component, of unit
    variance, λ_k that component's share of the variance, and S = Σ_k λ_k·z_k. Each z_k is turned so that its skewness is
    positive: what stands out covers the smaller part of a picture. S is smoothed, resized to the latent, and moved to begin at 0.

    Args:
        features: [B, n, n, D], or [B, F, n, n, D] of F frames, which have their components in common.
        shape: the latent's (h, w), or (F', h, w).
        components: K, how many of them.
        smoothing: standard deviation of the Gaussian, in patches; 0: none.
        floor: in [0, 1], what every position keeps: floor + (1 - floor)·map.

    Returns:
        The map; 1 everywhere where all patches are alike.
    """
    batch, grid = len(features), features.shape[1:-1]
    flat = features.double().flatten(1, -2)
    z, variance = _components(flat - flat.mean(1, keepdim=True), components)
    z = z * torch.where(z.pow(3).mean(1, keepdim=True) < 0, -1.0, 1.0)
    share = variance[:, :components] / variance.sum(1, keepdim=True).clamp(min=_TINY)
    salience = (z * share[:, None]).sum(2).view(batch, 1, *grid)
    if smoothing:
        salience = _smoothed(salience, smoothing)
    mode = "bilinear" if len(shape) == 2 else "area"
    salience = torch.nn.functional.interpolate(salience, tuple(shape), mode=mode, antialias=len(shape) == 2)[:, 0]
    salience = salience - salience.amin(tuple(range(1, salience.ndim)), keepdim=True)
    mean = salience.flatten(1).mean(1).view(-1, *[1] * len(shape))
    # A picture without any structure has nothing but rounding errors to divide by.
    alike = (variance.sum(1) <= 1e-12 * flat.square().sum((1, 2))).view(mean.shape)
    salience = torch.where(alike, 1.0, salience / torch.where(alike, 1.0, mean))
    return (floor + (1 - floor) * salience).float()


def credit_map(network: PatchFeatures, trajectories: Trajectories, **options) -> Tensor:
    """`spatial_map` of the trajectories' pictures or videos on their latent grid."""
    images = trajectories.images
    features = network.patches(images.flatten(0, -4)).unflatten(0, images.shape[:-3])
    return spatial_map(features, trajectories.latents.shape[3:], **options)


def _components(centred: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The leading principal components of [B, N, D], [B, N, ≤ count] of unit variance, and the variances of all.

    By the eigenvectors of the smaller Gram matrix, in a fraction of the time that a singular value decomposition takes.
    """
    rows, columns = centred.shape[1:]
    few = rows <= columns
    variance, directions = torch.linalg.eigh(centred @ centred.mT if few else centred.mT @ centred)
    directions = directions.flip(2)[:, :, :count]
    z = directions if few else centred @ directions
    z = z / z.norm(dim=1, keepdim=True).clamp(min=_TINY) * rows**0.5
    return z, variance.flip(1).clamp(min=0)


def _smoothed(maps: Tensor, sigma: float) -> Tensor:
    """A Gaussian over the last two dimensions of [B, 1, (F,) n, n], with the border repeated."""
    reach = max(1, round(3 * sigma))
    weights = torch.exp(-torch.arange(-reach, reach + 1, dtype=maps.dtype).square() / (2 * sigma**2))
    kernel, flat = weights / weights.sum(), maps.flatten(0, -3)[:, None]
    for shape, margin in (((1, 1, -1, 1), (0, 0, reach, reach)), ((1, 1, 1, -1), (reach, reach, 0, 0))):
        flat = torch.nn.functional.conv2d(torch.nn.functional.pad(flat, margin, mode="replicate"), kernel.view(shape))
    return flat.view(maps.shape)
