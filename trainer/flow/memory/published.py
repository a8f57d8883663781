"""Configurations of published models of diffusers, by what their folders are called on huggingface.co.

What the classes of diffusers take without being told is not repeated; their defaults are FLUX.1's and Wan's. The counts of
parameters that follow are held to the published ones by a test. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Part = tuple[str, str, Mapping[str, Any]]  # library, class, configuration


@dataclass(frozen=True)
class Published:
    """Fields are as in `Blueprint`."""

    pipeline: str
    parts: Mapping[str, Part]
    scheduler: tuple[str, Mapping[str, Any]] = ("FlowMatchEulerDiscreteScheduler", {})
    settings: Mapping[str, Any] = field(default_factory=dict)
    tokens: Mapping[str, int] = field(default_factory=dict)


T5 = {"d_model": 4096, "d_ff": 10240, "num_layers": 24, "num_heads": 64, "d_kv": 64, "feed_forward_proj": "gated-gelu"}
T5_XXL: Part = ("transformers", "T5EncoderModel", {**T5, "vocab_size": 32128})
UMT5_XXL: Part = ("transformers", "UMT5EncoderModel", {**T5, "vocab_size": 256384})
CLIP_SMALL = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
CLIP_LARGE = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 20}
CLIP_L: Part = ("transformers", "CLIPTextModel", {**CLIP_SMALL, "projection_dim": 768})
CLIP_L_PROJECTED: Part = ("transformers", "CLIPTextModelWithProjection", {**CLIP_SMALL, "projection_dim": 768})
CLIP_G_PROJECTED: Part = ("transformers", "CLIPTextModelWithProjection", {**CLIP_LARGE, "projection_dim": 1280})


def _autoencoder(**more) -> Part:
    config = {"block_out_channels": [128, 256, 512, 512], "layers_per_block": 2, "latent_channels": 16}
    config |= {"down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4}
    config |= {"use_quant_conv": False, "use_post_quant_conv": False, "sample_size": 1024}
    return "diffusers", "AutoencoderKL", config | more


FLUX_DEV = Published(
    pipeline="FluxPipeline",
    parts={
        "transformer": ("diffusers", "FluxTransformer2DModel", {"guidance_embeds": True}),
        "vae": _autoencoder(scaling_factor=0.3611, shift_factor=0.1159),
        "text_encoder": CLIP_L,
        "text_encoder_2": T5_XXL,
    },
    tokens={"tokenizer": 77, "tokenizer_2": 512},
)
SD35_MEDIUM = Published(
    pipeline="StableDiffusion3Pipeline",
    parts={
        "transformer": (
            "diffusers",
            "SD3Transformer2DModel",
            {
                "sample_size": 128,
                "num_layers": 24,
                "num_attention_heads": 24,
                "attention_head_dim": 64,
                "caption_projection_dim": 1536,
                "joint_attention_dim": 4096,
                "pooled_projection_dim": 2048,
                "out_channels": 16,
                "pos_embed_max_size": 384,
                "dual_attention_layers": list(range(13)),
                "qk_norm": "rms_norm",
            },
        ),
        "vae": _autoencoder(scaling_factor=1.5305, shift_factor=0.0609),
        "text_encoder": CLIP_L_PROJECTED,
        "text_encoder_2": CLIP_G_PROJECTED,
        "text_encoder_3": T5_XXL,
    },
    tokens={"tokenizer": 77, "tokenizer_2": 77, "tokenizer_3": 512},
)
WAN22_14B = Published(
    pipeline="WanPipeline",
    parts={
        "transformer": ("diffusers", "WanTransformer3DModel", {}),
        "transformer_2": ("diffusers", "WanTransformer3DModel", {}),
        "vae": ("diffusers", "AutoencoderKLWan", {}),
        "text_encoder": UMT5_XXL,
    },
    settings={"boundary_ratio": 0.875, "expand_timesteps": False},
    tokens={"tokenizer": 512},
)

PUBLISHED = {
    "black-forest-labs/FLUX.1-dev": FLUX_DEV,
    "stabilityai/stable-diffusion-3.5-medium": SD35_MEDIUM,
    "Wan-AI/Wan2.2-T2V-A14B-Diffusers": WAN22_14B,
}
