"""Stable Diffusion 3 and 3.5: two CLIPs and an optional T5 give the sequence; guidance is classifier-free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from .base import NEGATIVE, Condition
from .image import DOUBLE_BLOCK, ImageModel

if TYPE_CHECKING:
    from torch import Tensor


class StableDiffusion3(ImageModel):
    """`diffusers.StableDiffusion3Pipeline`, with or without its T5."""

    PIPELINE = "StableDiffusion3Pipeline"
    COMPONENTS = ("transformer", "vae", "text_encoder", "text_encoder_2", "text_encoder_3")
    # The second attention is that of SD3.5-medium's first blocks.
    LORA_TARGETS = (*DOUBLE_BLOCK, "attn2.to_q", "attn2.to_k", "attn2.to_v", "attn2.to_out.0")
    TOKENIZER, MOST_TOKENS = "tokenizer_3", 256
    CLASSIFIER_FREE = True

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

    def velocity(self, x: Tensor, sigma: float, condition: Condition, guidance: float) -> Tensor:
        tokens, pooled = condition.tensors["tokens"], condition.tensors["pooled"]
        guided = NEGATIVE + "tokens" in condition.tensors
        if guided:  # both halves in one call, the negative one first, as the pipeline does it
            x = torch.cat([x, x])
            tokens = torch.cat([condition.tensors[NEGATIVE + "tokens"], tokens])
            pooled = torch.cat([condition.tensors[NEGATIVE + "pooled"], pooled])
        dtype = self.dtype
        timesteps = self.pipeline.scheduler.config.num_train_timesteps
        with self.autocast():
            velocity = self.transformer(
                hidden_states=x.to(dtype),
                timestep=torch.full((len(x),), sigma * timesteps, device=x.device),
                encoder_hidden_states=tokens.to(dtype),
                pooled_projections=pooled.to(dtype),
                return_dict=False,
            )[0].float()
        if guided:
            negative, positive = velocity.chunk(2)
            velocity = negative + guidance * (positive - negative)
        return velocity
