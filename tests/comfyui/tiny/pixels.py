"""An autoencoder of one matrix, held by a real comfy.sd.VAE."""

from __future__ import annotations

import comfy.model_patcher
import comfy.sd
import torch


class TinyVAE(comfy.sd.VAE):
    """Every pixel is a fixed linear map of its latent."""

    def __init__(self, channels: int, dimensions: int, down: int, down_time: int, seed: int):
        # ComfyUI's smallest VAE, which has no network, sets everything up; then its network is replaced.
        super().__init__(sd={"pixel_space_vae": torch.tensor(1.0)}, dtype=torch.float32)
        self.first_stage_model = Linear(channels, down, down_time, seed).eval()
        self.patcher = comfy.model_patcher.ModelPatcher(
            self.first_stage_model, load_device=self.device, offload_device=self.patcher.offload_device
        )
        self.latent_channels, self.latent_dim = channels, dimensions
        self.downscale_ratio = self.upscale_ratio = down
        if dimensions == 3:
            self.upscale_ratio = (lambda frames: max(0, frames * down_time - down_time + 1), down, down)
            self.upscale_index_formula = (down_time, down, down)
            self.downscale_ratio = (lambda frames: max(0, (frames + down_time - 1) // down_time), down, down)
            self.downscale_index_formula = (down_time, down, down)


class Linear(torch.nn.Module):
    def __init__(self, channels: int, down: int, down_time: int, seed: int):
        super().__init__()
        self.down, self.down_time = down, down_time
        random = torch.Generator().manual_seed(seed)
        weight = torch.randn(3, channels, generator=random) * 0.3 / channels**0.5
        self.weight = torch.nn.Parameter(weight, requires_grad=False)

    def decode(self, latents: torch.Tensor, **options) -> torch.Tensor:
        pixels = torch.einsum("dc,bc...->bd...", self.weight.to(latents), latents)
        pixels = pixels.repeat_interleave(self.down, -1).repeat_interleave(self.down, -2)
        if pixels.ndim == 5:  # the first latent is one frame, every other down_time frames
            later = pixels[:, :, 1:].repeat_interleave(self.down_time, 2)
            pixels = torch.cat([pixels[:, :, :1], later], 2)
        return pixels

    def encode(self, pixels: torch.Tensor, **options) -> torch.Tensor:
        """The shortest latent that decodes to the mean of its pixels."""
        frames = pixels if pixels.ndim == 5 else pixels.unsqueeze(2)
        blocks = frames.unflatten(-1, (-1, self.down)).mean(-1).unflatten(-2, (-1, self.down)).mean(-2)
        later = blocks[:, :, 1:].unflatten(2, (-1, self.down_time)).mean(3) if blocks.shape[2] > 1 else blocks[:, :, 1:]
        latents = torch.einsum(
            "cd,bd...->bc...", torch.linalg.pinv(self.weight).to(pixels), torch.cat([blocks[:, :, :1], later], 2)
        )
        return latents if pixels.ndim == 5 else latents.squeeze(2)
