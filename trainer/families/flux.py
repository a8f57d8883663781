"""FLUX.1: latents are packed 2x2 into tokens; T5 gives the sequence, CLIP the pooled vector; guidance is an embedding.
Kontext is FLUX.1 that also sees a picture.

FLUX.2: latents of 2x2 patches, normalised by the autoencoder's own statistics; some layers of a language model give the text.
klein's guidance is classifier-free, dev's is an embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...host import devices
from .condition import Condition
from .edits import EditModel, with_sources
from .latents import DOUBLE_BLOCK, ImageModel
from .pipeline import PipelineModel
from .sizes import kontext_size

if TYPE_CHECKING:
    from ..types import SamplerSettings


def _guidance(model: PipelineModel, batch: int, guidance: float) -> Tensor | None:
    """[B] as a distilled network takes it; None for one that takes none."""
    if not model.transformer.config.guidance_embeds:
        return None
    return torch.full((batch,), guidance, device=model.device, dtype=torch.float32)


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
        inputs = with_sources(pipeline._pack_latents(x.to(dtype), batch, channels, height, width), condition)
        for rows, columns in condition.sizes[0] if condition.sizes else ():
            behind = pipeline._prepare_latent_image_ids(batch, rows, columns, torch.device("cpu"), dtype)
            behind[:, 0] = 1  # where the sample's own tokens have 0
            places = torch.cat([places, behind])
        with self.autocast():
            packed = self.transformer(
                hidden_states=inputs,
                timestep=self.times(levels),
                guidance=_guidance(self, batch, guidance),
                pooled_projections=condition.tensors["pooled"].to(dtype),
                encoder_hidden_states=tokens,
                txt_ids=tokens.new_zeros(tokens.shape[1], 3),
                img_ids=devices.upload(places, x.device),
                return_dict=False,
            )[0]
        scale, packed = pipeline.vae_scale_factor, packed[:, : height * width // 4]
        return pipeline._unpack_latents(packed, height * scale, width * scale, scale).float()


class FluxKontext(EditModel, Flux):
    """`diffusers.FluxKontextPipeline`: a prompt's picture has tokens of its own, behind those of the sample."""

    PIPELINE = "FluxKontextPipeline"

    def source_size(self, width: int, height: int, settings: SamplerSettings) -> tuple[int, int]:
        return kontext_size(width, height, settings.width * settings.height, self.latent_grid.unit)

    def call(self, x: Tensor, levels: Tensor, condition: Condition, guidance: float) -> Tensor:
        return Flux.predict(self, x, levels, condition, guidance)


class Flux2(PipelineModel):
    """`diffusers.Flux2Pipeline`: dev, whose text encoder is Mistral 3."""

    PIPELINE = "Flux2Pipeline"
    COMPONENTS = ("transformer", "vae", "text_encoder")
    LORA_TARGETS = (
        *("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"),
        *("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out"),
        *("ff.linear_in", "ff.linear_out", "ff_context.linear_in", "ff_context.linear_out"),
        *("attn.to_qkv_mlp_proj", "attn.to_out"),  # of blocks with one stream
    )

    def embed(self, texts: Sequence[str], device: torch.device) -> Condition:
        tokens, _ = self.pipeline.encode_prompt(
            list(texts), device=device, max_sequence_length=self.max_sequence_length
        )
        return Condition({"tokens": tokens})

    def predict(self, x: Tensor, levels: Tensor, condition: Condition, guidance: float) -> Tensor:
        tokens, pipeline = condition.tensors["tokens"].to(self.dtype), self.pipeline
        with self.autocast():
            packed = self.transformer(
                hidden_states=pipeline._pack_latents(x.to(self.dtype)),
                timestep=self.times(levels),
                guidance=_guidance(self, len(x), guidance),
                encoder_hidden_states=tokens,
                # Made in main memory by the pipeline, and the same for each sample.
                txt_ids=devices.upload(pipeline._prepare_text_ids(tokens[:1]), x.device),
                img_ids=devices.upload(pipeline._prepare_latent_ids(x[:1]), x.device),
                return_dict=False,
            )[0]
        return packed.mT.unflatten(-1, x.shape[-2:]).float()

    def decode_latents(self, latents: Tensor) -> Tensor:
        vae, (mean, std) = self.pipeline.vae, self._latent_statistics()
        latents = self.pipeline._unpatchify_latents(latents * std + mean)
        return vae.decode(latents.to(vae.dtype), return_dict=False)[0].float().permute(0, 2, 3, 1) / 2 + 0.5

    def encode_images(self, images: Tensor) -> Tensor:
        vae, (mean, std) = self.pipeline.vae, self._latent_statistics()
        (posterior,) = vae.encode((images * 2 - 1).permute(0, 3, 1, 2).to(vae.dtype), return_dict=False)
        return (self.pipeline._patchify_latents(posterior.mode().float()) - mean) / std

    def _latent_statistics(self) -> tuple[Tensor, Tensor]:
        """The mean and the std of each channel of a patch, [1, 4·C, 1, 1], which the autoencoder keeps in a BatchNorm."""
        norm = self.pipeline.vae.bn
        variance = norm.running_var.float() + self.pipeline.vae.config.batch_norm_eps
        return norm.running_mean.float().view(1, -1, 1, 1), variance.sqrt().view(1, -1, 1, 1)


class Flux2Klein(Flux2):
    """`diffusers.Flux2KleinPipeline`: klein and klein-base, whose text encoder is Qwen3."""

    PIPELINE = "Flux2KleinPipeline"
