"""Krea 2 Raw and Turbo: several layers of Qwen3-VL give each token of the text; latents are Qwen-Image's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...host import devices
from .condition import Condition
from .latents import NormalizedModel, packed, unpacked


class Krea2(NormalizedModel):
    """`diffusers.Krea2Pipeline`."""

    PIPELINE = "Krea2Pipeline"
    COMPONENTS = ("transformer", "vae", "text_encoder")
    LORA_TARGETS = (
        *("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_gate", "attn.to_out.0"),
        *("ff.gate", "ff.up", "ff.down"),
    )

    def embed(self, texts: Sequence[str], device: torch.device) -> Condition:
        tokens, mask = self.pipeline.encode_prompt(list(texts), device, max_sequence_length=self.max_sequence_length)
        # Padding stands within the text there. It is masked everywhere, and all of the text has one position.
        return Condition.of_rows("tokens", [row[of] for row, of in zip(tokens, mask, strict=True)])

    def predict(self, x: Tensor, levels: Tensor, condition: Condition, guidance: float) -> Tensor:
        height, width = x.shape[-2:]
        tokens = condition.tensors["tokens"].to(self.dtype)
        # Made in main memory, which the device does not wait for.
        places = self.pipeline.prepare_position_ids(tokens.shape[1], height // 2, width // 2, "cpu")
        with self.autocast():
            patches = self.transformer(
                hidden_states=packed(x.to(self.dtype)),
                encoder_hidden_states=tokens,
                timestep=devices.upload(((levels * 1000).float() / 1000).to(self.dtype), x.device),
                position_ids=devices.upload(places, x.device),
                encoder_attention_mask=condition.mask("tokens"),
                return_dict=False,
            )[0]
        return unpacked(patches, height, width).float()
