"""Qwen-Image: Qwen2.5-VL gives sequences of different length; guidance keeps each token's norm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...host import devices
from .condition import Condition
from .latents import NormalizedModel, packed, unpacked

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class QwenImage(NormalizedModel):
    """`diffusers.QwenImagePipeline`."""

    PIPELINE = "QwenImagePipeline"
    COMPONENTS = ("transformer", "vae", "text_encoder")
    LORA_TARGETS = (
        *("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"),
        *("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out"),
        *("img_mlp.net.0.proj", "img_mlp.net.2", "txt_mlp.net.0.proj", "txt_mlp.net.2"),
    )

    def embed(self, texts: Sequence[str], device: torch.device) -> Condition:
        tokens, mask = self.pipeline.encode_prompt(list(texts), device, max_sequence_length=self.max_sequence_length)
        return Condition.masked("tokens", tokens, mask)

    def predict(self, x: Tensor, levels: Tensor, condition: Condition, guidance: float) -> Tensor:
        height, width = x.shape[-2:]
        with self.autocast():
            tokens = self.transformer(
                hidden_states=packed(x.to(self.dtype)),
                timestep=devices.upload((levels * 1000).float() / 1000, x.device),  # rounded as the pipeline rounds it
                encoder_hidden_states=condition.tensors["tokens"].to(self.dtype),
                encoder_hidden_states_mask=condition.mask("tokens"),
                img_shapes=[[(1, height // 2, width // 2)]] * len(x),
                return_dict=False,
            )[0]
        return unpacked(tokens, height, width).float()
