"""Wan 2.1 and 2.2: video latents [C, F, h, w]; UMT5 gives the sequence; guidance is classifier-free.

Wan 2.2-A14B has two networks of one shape: `transformer` denoises down to the boundary noise level, `transformer_2` below it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ...host import devices
from .base import noise_levels
from .condition import NEGATIVE, Condition
from .pipeline import PipelineModel

if TYPE_CHECKING:
    from torch import Tensor

    from ..types import SamplerSettings

# diffusers' names on the left, Wan's own, which ComfyUI's LoraLoader knows, on the right.
_WAN_NAMES = {
    r"\.attn1\.": ".self_attn.",
    r"\.attn2\.": ".cross_attn.",
    r"\.to_([qkv])\.": r".\1.",
    r"\.to_out\.0\.": ".o.",
    r"\.ffn\.net\.0\.proj\.": ".ffn.0.",
    r"\.ffn\.net\.2\.": ".ffn.2.",
}


class Wan(PipelineModel):
    """`diffusers.WanPipeline`."""

    PIPELINE = "WanPipeline"
    COMPONENTS = ("transformer", "transformer_2", "vae", "text_encoder")
    EXPERTS = {"transformer": "high_noise", "transformer_2": "low_noise"}
    LORA_TARGETS = ("to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2")
    TOKENIZER, MOST_TOKENS = "tokenizer", 512
    CLASSIFIER_FREE = True
    LORA_PREFIX = "diffusion_model."

    def embed(self, texts: Sequence[str], device: torch.device) -> Condition:
        tokens, _ = self.pipeline.encode_prompt(
            list(texts),
            do_classifier_free_guidance=False,
            max_sequence_length=self.max_sequence_length,
            device=device,
        )
        return Condition({"tokens": tokens})

    def expert(self, sigma: float) -> torch.nn.Module:
        """The network for that noise level."""
        return self.pipeline.transformer_2 if self._is_low_noise(sigma) else self.pipeline.transformer

    def _is_low_noise(self, sigma: float) -> bool:
        boundary = self.pipeline.config["boundary_ratio"]
        return boundary is not None and sigma < boundary

    def guidance_at(self, sigma: float, settings: SamplerSettings) -> float:
        return settings.guidance_2 if settings.guidance_2 and self._is_low_noise(sigma) else settings.guidance

    def same_network(self, sigma: float, other: float) -> bool:
        return self._is_low_noise(sigma) == self._is_low_noise(other)

    def velocity(self, x: Tensor, sigma: float | Tensor, condition: Condition, guidance: float) -> Tensor:
        network, dtype = self.expert(float(torch.as_tensor(sigma).flatten()[0])), self.dtype
        timestep = self._timestep(x, sigma)

        def predict(tokens: Tensor) -> Tensor:
            with self.autocast():
                return network(
                    hidden_states=x.to(dtype),
                    timestep=timestep,
                    encoder_hidden_states=tokens.to(dtype),
                    return_dict=False,
                )[0].float()

        velocity = predict(condition.tensors["tokens"])
        if NEGATIVE + "tokens" in condition.tensors:
            with self.negative_half():
                negative = predict(condition.tensors[NEGATIVE + "tokens"])
            velocity = negative + guidance * (velocity - negative)
        return velocity

    def _timestep(self, x: Tensor, sigma: float | Tensor) -> Tensor:
        steps = self.pipeline.scheduler.config.num_train_timesteps
        values = devices.upload((noise_levels(sigma, x) * steps).float(), x.device)
        if not self.pipeline.config["expand_timesteps"]:
            return values
        _, _, frames, height, width = x.shape  # the 5 B model of 2.2 takes one timestep for every token
        _, patch_height, patch_width = self.transformer.config.patch_size
        return values[:, None].expand(-1, frames * (height // patch_height) * (width // patch_width))

    def decode_latents(self, latents: Tensor) -> Tensor:
        vae, (mean, std) = self.pipeline.vae, self._latent_statistics(latents.device)
        video = vae.decode((latents * std + mean).to(vae.dtype), return_dict=False)[0]
        return video.float().permute(0, 2, 3, 4, 1) / 2 + 0.5

    def encode_images(self, images: Tensor) -> Tensor:
        vae, (mean, std) = self.pipeline.vae, self._latent_statistics(images.device)
        video = images if images.ndim == 5 else images.unsqueeze(1)  # a picture is a video of one frame
        (posterior,) = vae.encode((video * 2 - 1).permute(0, 4, 1, 2, 3).to(vae.dtype), return_dict=False)
        return (posterior.mode().float() - mean) / std

    def _latent_statistics(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The mean and the std of each of the autoencoder's channels, [1, C, 1, 1, 1]."""
        config = self.pipeline.vae.config
        mean, std = (
            torch.tensor(of, device=device).view(1, -1, 1, 1, 1) for of in (config.latents_mean, config.latents_std)
        )
        return mean, std

    @classmethod
    def lora_key(cls, name: str) -> str:
        for pattern, replacement in _WAN_NAMES.items():
            name = re.sub(pattern, replacement, name)
        return cls.LORA_PREFIX + name
