"""Stable Diffusion 3 and 3.5: two CLIPs and an optional T5 give the sequence; guidance is classifier-free."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...host import devices
from ..types import NextRollout
from .base import noise_levels
from .condition import Condition
from .latents import DOUBLE_BLOCK, ImageModel


class StableDiffusion3(ImageModel):
    """`diffusers.StableDiffusion3Pipeline`, with or without its T5."""

    PIPELINE = "StableDiffusion3Pipeline"
    COMPONENTS = ("transformer", "vae", "text_encoder", "text_encoder_2", "text_encoder_3")
    # The second attention is that of SD3.5-medium's first blocks.
    LORA_TARGETS = (*DOUBLE_BLOCK, "attn2.to_q", "attn2.to_k", "attn2.to_v", "attn2.to_out.0")

    def embed(self, texts: Sequence[str], device: torch.device) -> Condition:
        tokens, _, pooled, _ = self.pipeline.encode_prompt(
            list(texts),
            None,
            None,
            device=device,
            do_classifier_free_guidance=False,
            max_sequence_length=self.max_sequence_length,
        )
        return Condition({"tokens": tokens, "pooled": pooled})

    def velocity(self, x: Tensor, sigma: float | Tensor, condition: Condition, guidance: float) -> Tensor:
        levels, negative = noise_levels(sigma, x), condition.negative()
        if negative is None or (torch.is_grad_enabled() and not self.memo[NextRollout].unconditional_gradient):
            return super().velocity(x, sigma, condition, guidance)
        # Both halves in one call, the negative one first, as the pipeline does it.
        both = {name: torch.cat([tensor, condition.tensors[name]]) for name, tensor in negative.tensors.items()}
        away, towards = self.predict(x.repeat(2, 1, 1, 1), levels.repeat(2), Condition(both), guidance).chunk(2)
        return self.guided(towards, away, guidance)

    def predict(self, x: Tensor, levels: Tensor, condition: Condition, guidance: float) -> Tensor:
        tokens, pooled = condition.tensors["tokens"], condition.tensors["pooled"]
        with self.autocast():
            return self.transformer(
                hidden_states=x.to(self.dtype),
                timestep=devices.upload(
                    (levels * self.pipeline.scheduler.config.num_train_timesteps).float(), x.device
                ),
                encoder_hidden_states=tokens.to(self.dtype),
                pooled_projections=pooled.to(self.dtype),
                return_dict=False,
            )[0].float()
