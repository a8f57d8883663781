"""Where in the picture the credit goes: a map over the latent, from features of the decoded pictures (VIPO, 2511.18719).

The paper's equations reached us at second hand: centred PCA of patch features, its leading components added up by their share of
the variance, smoothed and brought to mean 1. The sign of a component, which PCA leaves open, is our choice and told below.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from .rewards.base import RewardError
from .rewards.network import Network
from .rewards.published import from_folder, transformers_class

if TYPE_CHECKING:
    from torch import Tensor

    from .types import Trajectories

MARKER = "preprocessor_config.json"
AT_ONCE = 32  # pictures to one forward pass


class PatchFeatures(Network):
    """A vision transformer of transformers (DINOv2, CLIP …), asked for what it sees in every patch.

    Args:
        place: a folder with config.json, weights and preprocessor_config.json.

    Raises:
        RewardError: the folder holds another kind of model, or weights that cannot be read.
    """

    def __init__(self, place: Path, device: torch.device, dtype: torch.dtype):
        super().__init__(place, device, dtype)
        network = from_folder(transformers_class("AutoModel"), place, dtype)
        self.network = getattr(network, "vision_model", network)  # of a model of pictures and texts
        config = self.network.config
        if not hasattr(config, "patch_size"):
            raise RewardError(
                f"{place} holds a {type(network).__name__}, which has no patches. Fix: choose a vision transformer such as DINOv2"
            )
        given = json.loads((place / MARKER).read_text(encoding="utf-8"))
        self.patch, self.size = config.patch_size, _side(given, config.image_size) // config.patch_size
        self.mean, self.std = (torch.tensor(given[name]).view(1, 3, 1, 1) for name in ("image_mean", "image_std"))
        self.settle(device)

    def _networks(self) -> list[torch.nn.Module]:
        return [self.network]

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """[B, n, n, D] float32 on the CPU, n patches a side, of pictures [B, H, W, 3], which are squeezed into its square."""
        self.come_back()
        side = self.size * self.patch
        found = []
        for part in images.split(AT_ONCE):
            small = torch.nn.functional.interpolate(
                part.permute(0, 3, 1, 2).float(), (side, side), mode="bicubic", antialias=True
            )
            pixels = (small.clamp(0, 1) - self.mean) / self.std
            tokens = self.network(pixel_values=pixels.to(self.device, self.dtype)).last_hidden_state
            # Before the patches come a class token and, of some, registers.
            found.append(tokens[:, -(self.size**2) :].float().cpu().unflatten(1, (self.size, self.size)))
        return torch.cat(found)


def place_map(features: Tensor, shape: Sequence[int], components: int = 3, smoothing: float = 1.0, floor: float = 0.0):
    """Which latent positions hold what the picture is about, [B, *shape], of mean 1 for each sample.

    Of each sample by itself: the patches' features are centred, z_k is their projection on the k-th principal component, of unit
    variance, λ_k that component's share of the variance, and S = Σ_k λ_k·z_k. Each z_k is turned so that its skewness is
    positive: what stands out covers the smaller part of a picture. S is smoothed, moved to begin at 0, and resized to the latent.

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
    left, values, _ = torch.linalg.svd(flat - flat.mean(1, keepdim=True), full_matrices=False)
    count = min(components, values.shape[1])
    z = left[:, :, :count] * flat.shape[1] ** 0.5
    z = z * torch.where(z.pow(3).mean(1, keepdim=True) < 0, -1.0, 1.0)
    variance = values.square()
    share = variance[:, :count] / variance.sum(1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    found = (z * share[:, None]).sum(2).view(batch, 1, *grid)
    if smoothing:
        found = _smoothed(found, smoothing)
    resize = {"mode": "bilinear", "antialias": True} if len(shape) == 2 else {"mode": "area"}
    found = torch.nn.functional.interpolate(found, tuple(shape), **resize)[:, 0]
    found = found - found.amin(tuple(range(1, found.ndim)), keepdim=True)
    mean = found.flatten(1).mean(1).view(-1, *[1] * len(shape))
    # A picture without any structure has nothing but rounding errors to divide by.
    alike = (variance.sum(1) <= 1e-12 * flat.square().sum((1, 2))).view(mean.shape)
    found = torch.where(alike, 1.0, found / torch.where(alike, 1.0, mean))
    return (floor + (1 - floor) * found).float()


def credit_map(network: PatchFeatures, trajectories: Trajectories, **options) -> Tensor:
    """`place_map` of the trajectories' pictures or videos on their latent grid."""
    images = trajectories.images
    features = network(images.flatten(0, 1)) if images.ndim == 5 else network(images)
    if images.ndim == 5:
        features = features.unflatten(0, images.shape[:2])
    return place_map(features, trajectories.latents.shape[3:], **options)


def _smoothed(maps: Tensor, sigma: float) -> Tensor:
    """A Gaussian over the last two dimensions of [B, 1, (F,) n, n], with the border repeated."""
    reach = max(1, round(3 * sigma))
    weights = torch.exp(-torch.arange(-reach, reach + 1, dtype=maps.dtype).square() / (2 * sigma**2))
    kernel, flat = weights / weights.sum(), maps.flatten(0, -3)[:, None]
    for shape, margin in (((1, 1, -1, 1), (0, 0, reach, reach)), ((1, 1, 1, -1), (reach, reach, 0, 0))):
        flat = torch.nn.functional.conv2d(torch.nn.functional.pad(flat, margin, mode="replicate"), kernel.view(shape))
    return flat.view(maps.shape)


def _side(given: dict, image_size: int) -> int:
    """The side that pictures are prepared to, which older and newer preprocessor files say differently."""
    for name in ("crop_size", "size"):
        size = given.get(name)
        if isinstance(size, int):
            return size
        if isinstance(size, dict) and (side := size.get("height") or size.get("shortest_edge")):
            return side
    return image_size
