"""FLUX.1: latents are packed 2x2 into tokens; T5 gives the sequence, CLIP the pooled vector; guidance is an embedding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from .base import Condition, FlowModel
from .loading import load_pipeline, resolve_device, resolve_dtype

if TYPE_CHECKING:
    from torch import Tensor

    from ..types import SamplerSettings


class Flux(FlowModel):
    """`diffusers.FluxPipeline`, dev and schnell alike."""

    COMPONENTS = ("transformer", "vae", "text_encoder", "text_encoder_2")
    LORA_TARGETS = (
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
        "proj_mlp",
        "proj_out",
    )

    @classmethod
    def load(cls, path: Path, *, dtype: str, device: str, max_sequence_length: int) -> Flux:
        from diffusers import FluxPipeline

        device = resolve_device(device)
        pipeline = load_pipeline(FluxPipeline, path, cls.COMPONENTS, resolve_dtype(dtype, device))
        limit = max_sequence_length or min(512, pipeline.tokenizer_2.model_max_length)
        model = cls(pipeline, path, limit)
        model.settle(device)
        return model

    def latent_shape(self, height: int, width: int) -> tuple[int, ...]:
        unit = 2 * self.pipeline.vae_scale_factor
        if height % unit or width % unit:
            raise ValueError(
                f"width {width} and height {height} must be multiples of {unit} for this model. Fix: round them"
            )
        scale = self.pipeline.vae_scale_factor
        return self.transformer.config.in_channels // 4, height // scale, width // scale

    def embed(self, texts: Sequence[str]) -> Condition:
        tokens, pooled, _ = self.pipeline.encode_prompt(list(texts), max_sequence_length=self.max_sequence_length)
        return Condition({"tokens": tokens, "pooled": pooled})

    def velocity(self, x: Tensor, sigma: float, condition: Condition, guidance: float) -> Tensor:
        batch, channels, height, width = x.shape
        dtype, pipeline = self.transformer.dtype, self.pipeline
        tokens = condition.tensors["tokens"].to(dtype)
        with self.autocast():
            packed = self.transformer(
                hidden_states=pipeline._pack_latents(x.to(dtype), batch, channels, height, width),
                timestep=torch.full((batch,), sigma, device=x.device, dtype=dtype),
                guidance=self._guidance(batch, guidance),
                pooled_projections=condition.tensors["pooled"].to(dtype),
                encoder_hidden_states=tokens,
                txt_ids=tokens.new_zeros(tokens.shape[1], 3),
                img_ids=pipeline._prepare_latent_image_ids(batch, height // 2, width // 2, x.device, dtype),
                return_dict=False,
            )[0]
        scale = pipeline.vae_scale_factor
        return pipeline._unpack_latents(packed, height * scale, width * scale, scale).float()

    def shift(self, settings: SamplerSettings) -> float:
        from diffusers.pipelines.flux.pipeline_flux import calculate_shift

        config = self.pipeline.scheduler.config
        if not config.use_dynamic_shifting:
            return config.shift
        _, height, width = self.latent_shape(settings.height, settings.width)
        lengths = (config.base_image_seq_len, config.max_image_seq_len, config.base_shift, config.max_shift)
        return math.exp(calculate_shift(height * width // 4, *lengths))

    def decode_latents(self, latents: Tensor) -> Tensor:
        vae = self.pipeline.vae
        latents = latents / vae.config.scaling_factor + vae.config.shift_factor
        return vae.decode(latents.to(vae.dtype), return_dict=False)[0].float().permute(0, 2, 3, 1) / 2 + 0.5

    def _guidance(self, batch: int, guidance: float) -> Tensor | None:
        if not self.transformer.config.guidance_embeds:
            return None
        return torch.full((batch,), guidance, device=self.device, dtype=torch.float32)
