"""How latents become pixels: by an autoencoder with one scale and one shift, or with a mean and a spread for each channel."""

from __future__ import annotations

import torch
from torch import Tensor

from ...host import devices
from .pipeline import PipelineModel
from .sizes import PATCH

# What an adapter trains in a block of two streams, picture and text.
DOUBLE_BLOCK = (
    *("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"),
    *("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out"),
    *("ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2"),
)


def packed(x: Tensor) -> Tensor:
    """[B, C, h, w] as tokens [B, h·w/4, 4·C], one for every 2 x 2 positions."""
    patches = x.unflatten(-2, (-1, PATCH)).unflatten(-1, (-1, PATCH))  # [B, C, h/2, 2, w/2, 2]
    return patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def unpacked(tokens: Tensor, height: int, width: int) -> Tensor:
    """The inverse of `packed`."""
    patches = tokens.unflatten(1, (height // PATCH, width // PATCH)).unflatten(-1, (-1, PATCH, PATCH))
    return patches.permute(0, 3, 1, 4, 2, 5).flatten(-2).flatten(2, 3)


class ImageModel(PipelineModel):
    """Latents [C, h, w] from an autoencoder of pictures, one token for every 2 x 2 of them."""

    def decode_latents(self, latents: Tensor) -> Tensor:
        vae = self.pipeline.vae
        latents = latents / vae.config.scaling_factor + vae.config.shift_factor
        return vae.decode(latents.to(vae.dtype), return_dict=False)[0].float().permute(0, 2, 3, 1) / 2 + 0.5

    def encode_images(self, images: Tensor) -> Tensor:
        vae = self.pipeline.vae
        (posterior,) = vae.encode((images * 2 - 1).permute(0, 3, 1, 2).to(vae.dtype), return_dict=False)
        return (posterior.mode().float() - vae.config.shift_factor) * vae.config.scaling_factor


class NormalizedModel(PipelineModel):
    """Latents [C, F, h, w] from an autoencoder of videos, as Wan, Qwen-Image and Krea 2 share it; or [C, h, w] of a family that
    makes pictures, which are videos of one frame to the autoencoder."""

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
