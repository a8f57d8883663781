"""`python -m comfyui_otca.assets.make.configurations`: folders that describe published models whose weights are single files.

They hold what a diffusers folder says of a model's architecture, in numbers that its makers published, and nothing of theirs: no
weights, and no tokenizer, which is that of the user's ComfyUI (`trainer/flow/tokenizers.py`). All else is diffusers' default.
"""

from __future__ import annotations

import json
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "configurations"

VAE = {
    "_class_name": "AutoencoderKL",
    "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "in_channels": 3,
    "out_channels": 3,
    "latent_channels": 16,
    "layers_per_block": 2,
    "sample_size": 1024,
    "use_quant_conv": False,
    "use_post_quant_conv": False,
}
FLUX = {
    "_class_name": "FluxTransformer2DModel",
    "in_channels": 64,
    "num_layers": 19,
    "num_single_layers": 38,
    "attention_head_dim": 128,
    "num_attention_heads": 24,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 768,
    "patch_size": 1,
}
SD3 = {
    "_class_name": "SD3Transformer2DModel",
    "in_channels": 16,
    "out_channels": 16,
    "attention_head_dim": 64,
    "joint_attention_dim": 4096,
    "pooled_projection_dim": 2048,
    "patch_size": 2,
    "qk_norm": "rms_norm",
    "sample_size": 128,
}
CLIP_L = {
    "model_type": "clip_text_model",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 77,
    "projection_dim": 768,
    "hidden_act": "quick_gelu",
    "vocab_size": 49408,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
CLIP_G = CLIP_L | {
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_hidden_layers": 32,
    "num_attention_heads": 20,
    "projection_dim": 1280,
    "hidden_act": "gelu",
}
T5 = {
    "model_type": "t5",
    "d_model": 4096,
    "d_ff": 10240,
    "d_kv": 64,
    "num_layers": 24,
    "num_heads": 64,
    "feed_forward_proj": "gated-gelu",
    "vocab_size": 32128,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "layer_norm_epsilon": 1e-6,
}
DYNAMIC = {
    "use_dynamic_shifting": True,
    "base_image_seq_len": 256,
    "max_image_seq_len": 4096,
    "base_shift": 0.5,
    "max_shift": 1.15,
}


def flux(guidance: bool) -> dict[str, dict]:
    return {
        "scheduler": _scheduler(3.0 if guidance else 1.0, DYNAMIC if guidance else {}),
        "transformer": FLUX | {"guidance_embeds": guidance},
        "vae": VAE | {"scaling_factor": 0.3611, "shift_factor": 0.1159},
        "text_encoder": {"architectures": ["CLIPTextModel"], **CLIP_L},
        "text_encoder_2": {"architectures": ["T5EncoderModel"], **T5},
        "tokenizer": {"kind": "clip_l"},
        "tokenizer_2": {"kind": "t5"},
    }


def sd35(layers: int, positions: int, dual: int) -> dict[str, dict]:
    size = {"num_layers": layers, "num_attention_heads": layers, "caption_projection_dim": 64 * layers}
    return {
        "scheduler": _scheduler(3.0, {}),
        "transformer": SD3 | size | {"pos_embed_max_size": positions, "dual_attention_layers": list(range(dual))},
        "vae": VAE | {"scaling_factor": 1.5305, "shift_factor": 0.0609},
        "text_encoder": {"architectures": ["CLIPTextModelWithProjection"], **CLIP_L},
        "text_encoder_2": {"architectures": ["CLIPTextModelWithProjection"], **CLIP_G},
        "text_encoder_3": {"architectures": ["T5EncoderModel"], **T5},
        "tokenizer": {"kind": "clip_l"},
        "tokenizer_2": {"kind": "clip_g"},
        "tokenizer_3": {"kind": "t5"},
    }


def _scheduler(shift: float, more: dict) -> dict:
    return {"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": shift, **more}


TOKENIZERS = {"clip_l": "CLIPTokenizer", "clip_g": "CLIPTokenizer", "t5": "T5TokenizerFast"}
FILES = {"scheduler": "scheduler_config.json", "tokenizer": "comfyui.json"}  # what is not called config.json
MODELS = {
    "FLUX.1-dev": ("FluxPipeline", flux(guidance=True)),
    "FLUX.1-schnell": ("FluxPipeline", flux(guidance=False)),
    "SD3.5-large": ("StableDiffusion3Pipeline", sd35(38, 192, 0)),
    "SD3.5-medium": ("StableDiffusion3Pipeline", sd35(24, 384, 13)),
}


def contents(name: str) -> dict[str, dict]:
    """A model's files, by their paths in its folder."""
    pipeline, parts = MODELS[name]
    files: dict[str, dict] = {}
    index: dict[str, str | list[str]] = {"_class_name": pipeline}
    for component, content in parts.items():
        files[f"{component}/{FILES.get(component.split('_')[0], 'config.json')}"] = content
        if "architectures" in content or "kind" in content:
            source = ["transformers", content.get("architectures", [""])[0] or TOKENIZERS[content["kind"]]]
        else:
            source = ["diffusers", content["_class_name"]]
        index[component] = source
    return {"model_index.json": index, **files}


def main() -> None:
    for name in MODELS:
        for path, content in contents(name).items():
            file = FOLDER / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
            print(file)


if __name__ == "__main__":
    main()
