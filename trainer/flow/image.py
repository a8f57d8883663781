"""What FLUX and SD3 share: latents of 2x2 patches from an autoencoder with one scale and one shift."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from .base import FlowModel

if TYPE_CHECKING:
    from torch import Tensor

    from ..types import SamplerSettings


# What an adapter trains in a block of two streams, picture and text.
DOUBLE_BLOCK = (
    "attn.to_q",
    "attn.to_k",
    "attn.to_v",
    "attn.to_out.0",
    "attn.add_q_proj",
    "attn.add_k_proj",
    "attn.add_v_proj",
    "attn.to_add_out",
    "ff.net.0.proj",
    "ff.net.2",
    "ff_context.net.0.proj",
    "ff_context.net.2",
)


class ImageModel(FlowModel):
    """Latents [C, h, w], one token for every PATCH x PATCH of them."""

    PATCH = 2

    @property
    def channels(self) -> int:
        return self.pipeline.vae.config.latent_channels

    def latent_shape(self, height: int, width: int, frames: int = 1) -> tuple[int, ...]:
        if frames != 1:
            raise ValueError(f"frames {frames}: this model makes pictures. Fix: set frames to 1, or load a video model")
        scale = self.pipeline.vae_scale_factor
        unit = self.PATCH * scale
        if height % unit or width % unit:
            raise ValueError(
                f"width {width} and height {height} must be multiples of {unit} for this model. Fix: round them"
            )
        return self.channels, height // scale, width // scale

    def shift(self, settings: SamplerSettings) -> float:
        from diffusers.pipelines.flux.pipeline_flux import calculate_shift

        config = self.pipeline.scheduler.config
        if not config.get("use_dynamic_shifting"):
            return config.shift
        _, height, width = self.latent_shape(settings.height, settings.width)
        lengths = (config.base_image_seq_len, config.max_image_seq_len, config.base_shift, config.max_shift)
        return math.exp(calculate_shift(height * width // self.PATCH**2, *lengths))

    def decode_latents(self, latents: Tensor) -> Tensor:
        vae = self.pipeline.vae
        latents = latents / vae.config.scaling_factor + vae.config.shift_factor
        return vae.decode(latents.to(vae.dtype), return_dict=False)[0].float().permute(0, 2, 3, 1) / 2 + 0.5
