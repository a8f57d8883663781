"""FLUX.1: latents are packed 2x2 into tokens; T5 gives the sequence, CLIP the pooled vector; guidance is an embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ...host import devices
from .condition import Condition
from .latents import DOUBLE_BLOCK, ImageModel

if TYPE_CHECKING:
    from torch import Tensor


class Flux(ImageModel):
    """`diffusers.FluxPipeline`, dev and schnell alike."""

    PIPELINE = "FluxPipeline"
    COMPONENTS = ("transformer", "vae", "text_encoder", "text_encoder_2")
    LORA_TARGETS = (*DOUBLE_BLOCK, "proj_mlp", "proj_out")

    def embed(self, texts: Sequence[str], device: torch.device) -> Condition:
        tokens, pooled, _ = self.pipeline.encode_prompt(
            list(texts), None, device=device, max_sequence_length=self.max_sequence_length
        )
        return Condition({"tokens": tokens, "pooled": pooled})

    def predict(self, x: Tensor, levels: Tensor, condition: Condition, guidance: float) -> Tensor:
        batch, channels, height, width = x.shape
        dtype, pipeline = self.dtype, self.pipeline
        tokens = condition.tensors["tokens"].to(dtype)
        # Made in main memory, which diffusers would copy to the device itself, waiting for it.
        places = pipeline._prepare_latent_image_ids(batch, height // 2, width // 2, torch.device("cpu"), dtype)
        with self.autocast():
            packed = self.transformer(
                hidden_states=pipeline._pack_latents(x.to(dtype), batch, channels, height, width),
                timestep=devices.upload(levels.to(dtype), x.device),
                guidance=self._guidance(batch, guidance),
                pooled_projections=condition.tensors["pooled"].to(dtype),
                encoder_hidden_states=tokens,
                txt_ids=tokens.new_zeros(tokens.shape[1], 3),
                img_ids=devices.upload(places, x.device),
                return_dict=False,
            )[0]
        scale = pipeline.vae_scale_factor
        return pipeline._unpack_latents(packed, height * scale, width * scale, scale).float()

    def _guidance(self, batch: int, guidance: float) -> Tensor | None:
        if not self.transformer.config.guidance_embeds:
            return None
        return torch.full((batch,), guidance, device=self.device, dtype=torch.float32)
