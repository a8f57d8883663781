"""Z-Image and Z-Image-Turbo: Qwen3 gives sequences of different length, in lists; the network predicts -v, and its time rises."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...host import devices
from .condition import Condition
from .latents import ImageModel


class ZImage(ImageModel):
    """`diffusers.ZImagePipeline`."""

    PIPELINE = "ZImagePipeline"
    COMPONENTS = ("transformer", "vae", "text_encoder")
    LORA_TARGETS = (
        *("attention.to_q", "attention.to_k", "attention.to_v", "attention.to_out.0"),
        *("feed_forward.w1", "feed_forward.w2", "feed_forward.w3"),
    )
    LATENTS = "x"

    def embed(self, texts: Sequence[str], device: torch.device) -> Condition:
        rows, _ = self.pipeline.encode_prompt(
            list(texts), device, do_classifier_free_guidance=False, max_sequence_length=self.max_sequence_length
        )
        return Condition.of_rows("tokens", rows)

    def predict(self, x: Tensor, levels: Tensor, condition: Condition, guidance: float) -> Tensor:
        timesteps = (levels * 1000).float()  # rounded as the pipeline rounds them: the network multiplies by 1000 again
        with self.autocast():
            velocities = self.transformer(
                x=list(x.to(self.dtype).unsqueeze(2)),  # pictures of one frame
                t=devices.upload((1000 - timesteps) / 1000, x.device),
                cap_feats=[row.to(self.dtype) for row in condition.ragged("tokens")],
                return_dict=False,
            )[0]
        return -torch.stack(velocities).squeeze(2).float()
