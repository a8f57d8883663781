"""Wan 2.1 and 2.2: video latents [C, F, h, w]; UMT5 gives the sequence; guidance is classifier-free.

Wan 2.2-A14B has two networks of one shape: `transformer` denoises down to the boundary noise level, `transformer_2` below it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ...host import devices
from .condition import Condition
from .normalized import NormalizedModel

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


class Wan(NormalizedModel):
    """`diffusers.WanPipeline`."""

    PIPELINE = "WanPipeline"
    COMPONENTS = ("transformer", "transformer_2", "vae", "text_encoder")
    EXPERTS = {"transformer": "high_noise", "transformer_2": "low_noise"}
    LORA_TARGETS = ("to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2")
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

    def predict(self, x: Tensor, levels: Tensor, condition: Condition, guidance: float) -> Tensor:
        with self.autocast():
            return self.expert(float(levels[0]))(
                hidden_states=x.to(self.dtype),
                timestep=self._timestep(x, levels),
                encoder_hidden_states=condition.tensors["tokens"].to(self.dtype),
                return_dict=False,
            )[0].float()

    def _timestep(self, x: Tensor, levels: Tensor) -> Tensor:
        steps = self.pipeline.scheduler.config.num_train_timesteps
        values = devices.upload((levels * steps).float(), x.device)
        if not self.pipeline.config["expand_timesteps"]:
            return values
        _, _, frames, height, width = x.shape  # the 5 B model of 2.2 takes one timestep for every token
        _, patch_height, patch_width = self.transformer.config.patch_size
        return values[:, None].expand(-1, frames * (height // patch_height) * (width // patch_width))

    @classmethod
    def lora_key(cls, name: str) -> str:
        for pattern, replacement in _WAN_NAMES.items():
            name = re.sub(pattern, replacement, name)
        return cls.LORA_PREFIX + name
