"""What Wan, Qwen-Images and Krea 2 share: an autoencoder of videos, with a mean and a spread for each channel of its latents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...host import devices
from .pipeline import PipelineModel

if TYPE_CHECKING:
    from torch import Tensor


class NormalizedModel(PipelineModel):
    """Latents [C, F, h, w], or [C, h, w] of a family that makes pictures: to the autoencoder, videos of one frame."""

    def decode_latents(self, latents: Tensor) -> Tensor:
        vae, (mean, std) = self.pipeline.vae, self._latent_statistics(latents.device)
        videos = latents if latents.ndim == 5 else latents.unsqueeze(2)
        pixels = vae.decode((videos * std + mean).to(vae.dtype), return_dict=False)[0]
        frames = pixels.float().permute(0, 2, 3, 4, 1) / 2 + 0.5
        return frames if latents.ndim == 5 else frames[:, 0]

    def encode_images(self, images: Tensor) -> Tensor:
        vae, (mean, std) = self.pipeline.vae, self._latent_statistics(images.device)
        videos = images if images.ndim == 5 else images.unsqueeze(1)
        (posterior,) = vae.encode((videos * 2 - 1).permute(0, 4, 1, 2, 3).to(vae.dtype), return_dict=False)
        latents = (posterior.mode().float() - mean) / std
        return latents[:, :, 0] if self.latent_grid.time is None else latents

    def _latent_statistics(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The mean and the std of each of the autoencoder's channels, [1, C, 1, 1, 1]."""
        config = self.pipeline.vae.config
        mean, std = (
            devices.upload(torch.tensor(of).view(1, -1, 1, 1, 1), device)
            for of in (config.latents_mean, config.latents_std)
        )
        return mean, std
