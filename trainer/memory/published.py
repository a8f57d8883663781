"""Configurations of published models of diffusers, by what their folders are called on huggingface.co.

They are numbers that the makers published. What the classes of diffusers and transformers take without being told is not
repeated: diffusers' defaults are those of FLUX.1, FLUX.2 dev, Wan 14 B, Z-Image, Qwen-Image and Krea 2, transformers' that of
Mistral 3. Wan 2.2's other two are in diffusers' script that converts them (convert_wan_to_diffusers.py). A test holds the counts
of parameters that follow to the published ones. What memory does not depend on is left out or made up: schedulers, and what
latents are scaled by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .blueprint import Blueprint, Part

T5 = {"d_model": 4096, "d_ff": 10240, "num_layers": 24, "num_heads": 64, "feed_forward_proj": "gated-gelu"}
T5_XXL: Part = ("transformers", "T5EncoderModel", T5)
UMT5_XXL: Part = ("transformers", "UMT5EncoderModel", {**T5, "vocab_size": 256384})
CLIP_SMALL = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
    "projection_dim": 768,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
CLIP_LARGE = CLIP_SMALL | {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "projection_dim": 1280,
    "hidden_act": "gelu",
}
FLUX_VAE: Part = (
    "diffusers",
    "AutoencoderKL",
    {
        "block_out_channels": [128, 256, 512, 512],
        "layers_per_block": 2,
        "latent_channels": 16,
        "down_block_types": ["DownEncoderBlock2D"] * 4,
        "up_block_types": ["UpDecoderBlock2D"] * 4,
        "use_quant_conv": False,
        "use_post_quant_conv": False,
        "sample_size": 1024,
        "scaling_factor": 0.3611,
        "shift_factor": 0.1159,
    },
)


def _flux(guidance: bool) -> Blueprint:
    """FLUX.1 dev takes guidance as a number; schnell takes none."""
    return Blueprint(
        pipeline="FluxPipeline",
        parts={
            "transformer": ("diffusers", "FluxTransformer2DModel", {"guidance_embeds": guidance}),
            "vae": FLUX_VAE,
            "text_encoder": ("transformers", "CLIPTextModel", CLIP_SMALL),
            "text_encoder_2": T5_XXL,
        },
        tokens={"tokenizer": 77, "tokenizer_2": 512},
    )


def _sd35(layers: int, positions: int, dual: int) -> Blueprint:
    network = {
        "num_layers": layers,
        "num_attention_heads": layers,
        "caption_projection_dim": 64 * layers,
        "pos_embed_max_size": positions,
        "dual_attention_layers": list(range(dual)),
        "qk_norm": "rms_norm",
    }
    return Blueprint(
        pipeline="StableDiffusion3Pipeline",
        parts={
            "transformer": ("diffusers", "SD3Transformer2DModel", network),
            "vae": FLUX_VAE,
            "text_encoder": ("transformers", "CLIPTextModelWithProjection", CLIP_SMALL),
            "text_encoder_2": ("transformers", "CLIPTextModelWithProjection", CLIP_LARGE),
            "text_encoder_3": T5_XXL,
        },
        tokens={"tokenizer": 77, "tokenizer_2": 77, "tokenizer_3": 512},
    )


WAN22_14B = Blueprint(
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
# Its network sees a picture's 16 channels and 4 of a mask beside the 16 of the video.
WAN22_14B_I2V = replace(
    WAN22_14B,
    pipeline="WanImageToVideoPipeline",
    parts={
        **WAN22_14B.parts,
        **dict.fromkeys(("transformer", "transformer_2"), ("diffusers", "WanTransformer3DModel", {"in_channels": 36})),
    },
    settings={"boundary_ratio": 0.9, "expand_timesteps": False},
)
WAN22_5B = replace(
    WAN22_14B,
    parts={
        "transformer": (
            "diffusers",
            "WanTransformer3DModel",
            {"ffn_dim": 14336, "in_channels": 48, "out_channels": 48, "num_attention_heads": 24, "num_layers": 30},
        ),
        "vae": (
            "diffusers",
            "AutoencoderKLWan",
            {
                "base_dim": 160,
                "decoder_base_dim": 256,
                "z_dim": 48,
                "in_channels": 12,
                "out_channels": 12,
                "is_residual": True,
                "patch_size": 2,
                "scale_factor_spatial": 16,
                # what latents are scaled by, which memory does not depend on
                "latents_mean": [0.0] * 48,
                "latents_std": [1.0] * 48,
            },
        ),
        "text_encoder": UMT5_XXL,
    },
    settings={"boundary_ratio": None, "expand_timesteps": True},
)

# Language models: as ComfyUI 0.33 has them (text_encoders/llama.py, qwen_vl.py, qwen3vl.py in its folder comfy).
QWEN = {"num_key_value_heads": 8, "head_dim": 128, "num_hidden_layers": 36, "num_attention_heads": 32}
QWEN |= {"vocab_size": 151936, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0}
QWEN3_4B = {**QWEN, "hidden_size": 2560, "intermediate_size": 9728, "tie_word_embeddings": True}
QWEN3_8B = {**QWEN, "hidden_size": 4096, "intermediate_size": 12288, "tie_word_embeddings": False}
QWEN3_VL_4B = {
    "text_config": {**QWEN3_4B, "rope_scaling": {"rope_type": "default", "mrope_section": [24, 20, 20]}},
    "vision_config": {
        "depth": 24,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_heads": 16,
        "out_hidden_size": 2560,
        "deepstack_visual_indexes": [5, 11, 17],
    },
}
QWEN25_VL_7B = {
    "text_config": {
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    },
    "vision_config": {"hidden_size": 1280, "out_hidden_size": 3584},
}


def _of(
    pipeline: str, transformer: str, vae: str | Part, encoder: str, text: Mapping[str, Any], **more: Any
) -> Blueprint:
    """One network, one autoencoder and one text encoder, by the names of their classes."""
    parts = {
        "transformer": ("diffusers", transformer, more.pop("network", {})),
        "vae": ("diffusers", vae, {}) if isinstance(vae, str) else vae,
        "text_encoder": ("transformers", encoder, text),
    }
    return Blueprint(pipeline, parts, **more)


def _klein(heads: int, double: int, single: int, encoder: Mapping[str, Any], distilled: bool) -> Blueprint:
    """Klein4BParams and Klein9BParams of github.com/black-forest-labs/flux2; three layers of Qwen3 give the text."""
    network = {"num_attention_heads": heads, "num_layers": double, "num_single_layers": single}
    network |= {"joint_attention_dim": 3 * encoder["hidden_size"], "guidance_embeds": False}
    names = "Flux2KleinPipeline", "Flux2Transformer2DModel", "AutoencoderKLFlux2", "Qwen3ForCausalLM"
    return _of(*names, encoder, network=network, settings={"is_distilled": distilled})


QWEN_VAE = "AutoencoderKLQwenImage"
Z_IMAGE = _of("ZImagePipeline", "ZImageTransformer2DModel", FLUX_VAE, "Qwen3Model", QWEN3_4B)
KREA2 = _of("Krea2Pipeline", "Krea2Transformer2DModel", QWEN_VAE, "Qwen3VLModel", QWEN3_VL_4B)
QWEN_IMAGE = _of(
    *("QwenImagePipeline", "QwenImageTransformer2DModel", QWEN_VAE, "Qwen2_5_VLForConditionalGeneration"), QWEN25_VL_7B
)
FLUX2_DEV = _of(
    *("Flux2Pipeline", "Flux2Transformer2DModel", "AutoencoderKLFlux2", "Mistral3ForConditionalGeneration"),
    {"tie_word_embeddings": False},
)

_MODELS = {
    "black-forest-labs/FLUX.1-dev": _flux(guidance=True),
    "black-forest-labs/FLUX.1-schnell": _flux(guidance=False),
    "black-forest-labs/FLUX.2-dev": FLUX2_DEV,
    "black-forest-labs/FLUX.2-klein-base-4B": _klein(24, 5, 20, QWEN3_4B, distilled=False),
    "black-forest-labs/FLUX.2-klein-base-9B": _klein(32, 8, 24, QWEN3_8B, distilled=False),
    "black-forest-labs/FLUX.2-klein-4B": _klein(24, 5, 20, QWEN3_4B, distilled=True),
    "black-forest-labs/FLUX.2-klein-9B": _klein(32, 8, 24, QWEN3_8B, distilled=True),
    "stabilityai/stable-diffusion-3.5-large": _sd35(38, 192, 0),
    "stabilityai/stable-diffusion-3.5-medium": _sd35(24, 384, 13),
    "Wan-AI/Wan2.2-T2V-A14B-Diffusers": WAN22_14B,
    "Wan-AI/Wan2.2-I2V-A14B-Diffusers": WAN22_14B_I2V,
    "Wan-AI/Wan2.2-TI2V-5B-Diffusers": WAN22_5B,
    "Tongyi-MAI/Z-Image": Z_IMAGE,
    "Tongyi-MAI/Z-Image-Turbo": Z_IMAGE,
    "Qwen/Qwen-Image": QWEN_IMAGE,
    "Qwen/Qwen-Image-2512": QWEN_IMAGE,
    "krea/Krea-2-Raw": KREA2,
    "krea/Krea-2-Turbo": replace(KREA2, settings={"is_distilled": True}),
}
PUBLISHED = {name: replace(model, name=name) for name, model in _MODELS.items()}
