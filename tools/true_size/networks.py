"""The networks of ComfyUI's classes in their published sizes, and the files that the templates load them from.

ComfyUI has to be importable (`headless_comfyui.load`) before anything is built.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch.nn import Module

FLUX = dict(image_model="flux", in_channels=16, out_channels=16, mlp_ratio=4.0, axes_dim=[16, 56, 56], theta=10000)
FLUX |= dict(patch_size=2, qkv_bias=True, guidance_embed=True, txt_ids_dims=[])
KLEIN = dict(image_model="flux2", in_channels=128, out_channels=128, vec_in_dim=None, mlp_ratio=3.0, axes_dim=[32] * 4)
KLEIN |= dict(theta=2000, patch_size=1, qkv_bias=False, guidance_embed=False, global_modulation=True, mlp_silu_act=True)
KLEIN |= dict(ops_bias=False, txt_ids_dims=[3])
LUMINA = dict(patch_size=2, in_channels=16, qk_norm=True, axes_dims=[32, 48, 48], axes_lens=[1536, 512, 512])
LUMINA |= dict(rope_theta=256.0, ffn_dim_multiplier=8 / 3, z_image_modulation=True, time_scale=1000.0)
WAN = dict(model_type="t2v", patch_size=(1, 2, 2))


def flux(width: int, heads: int, double: int, single: int, **more) -> Module:
    from comfy.ldm.flux.model import Flux

    return Flux(hidden_size=width, num_heads=heads, depth=double, depth_single_blocks=single, **more)


def published(blocks: int | None = None, **how) -> dict[str, Callable[[], Module]]:
    """The diffusion models as they are published, or with that many blocks, 2 and more, of the same width.

    `how` are the arguments that all of ComfyUI's networks take: device, dtype, operations.
    """
    from comfy.ldm.krea2.model import SingleStreamDiT
    from comfy.ldm.lumina.model import NextDiT
    from comfy.ldm.qwen_image.model import QwenImageTransformer2DModel
    from comfy.ldm.wan.model import WanModel

    def two_kinds(double: int, single: int) -> tuple[int, int]:
        if blocks is None:
            return double, single
        few = max(1, round(blocks * double / (double + single)))
        return few, blocks - few

    part = partial(flux, 3072, 24, *two_kinds(19, 38), vec_in_dim=768, context_in_dim=4096, **FLUX, **how)
    klein = partial(flux, **KLEIN, **how)
    lumina = dict(dim=3840, cap_feat_dim=2560, n_heads=30, n_kv_heads=30, pad_tokens_multiple=32, **LUMINA)
    wan = partial(WanModel, **WAN, **how)
    return {
        "FLUX.1": part,
        "FLUX.2 klein 4B": partial(klein, 3072, 24, *two_kinds(5, 20), context_in_dim=7680),
        "FLUX.2 klein 9B": partial(klein, 4096, 32, *two_kinds(8, 24), context_in_dim=12288),
        "Qwen-Image": partial(QwenImageTransformer2DModel, num_layers=blocks or 60, **how),
        "Krea 2": partial(SingleStreamDiT, layers=blocks or 28, **how),
        "Z-Image": partial(NextDiT, n_layers=blocks or 30, **lumina, **how),
        "Wan 2.2 5B": partial(
            wan, in_dim=48, out_dim=48, dim=3072, ffn_dim=14336, num_heads=24, num_layers=blocks or 30
        ),
        "Wan 2.2 14B": partial(
            wan, in_dim=16, out_dim=16, dim=5120, ffn_dim=13824, num_heads=40, num_layers=blocks or 40
        ),
    }


def encoders(**how) -> dict[str, Callable[[], Module]]:
    """The text encoders as they are published; `how` as in `published`."""
    from comfy import clip_model, sd1_clip
    from comfy.text_encoders import llama, qwen3vl, t5

    def by_file(kind: Callable[..., Module], module: object, name: str) -> Module:
        folder = Path(str(vars(module)["__file__"])).parent
        return kind(json.loads((folder / name).read_text(encoding="utf-8")), **how)

    return {
        "CLIP-L": partial(by_file, clip_model.CLIPTextModel, sd1_clip, "sd1_clip_config.json"),
        "T5-XXL": partial(by_file, t5.T5, t5, "t5_config_xxl.json"),
        "UMT5-XXL": partial(by_file, t5.T5, t5, "umt5_config_xxl.json"),
        "Qwen3 4B": partial(llama.Qwen3_4B, {}, **how),
        "Qwen2.5-VL 7B": partial(llama.Qwen25_7BVLI, {}, **how),
        "Qwen3-VL 4B": lambda: qwen3vl._make_qwen3vl_model("qwen3vl_4b")({}, **how),
    }


def autoencoders() -> dict[str, Callable[[], Module]]:
    """The autoencoders as they are published, on the device that is torch's default."""
    from comfy.ldm.models.autoencoder import AutoencoderKL
    from comfy.ldm.wan import vae as wan21
    from comfy.ldm.wan import vae2_2 as wan22

    sizes = dict(double_z=True, resolution=256, in_channels=3, out_ch=3, ch=128, ch_mult=[1, 2, 4, 4], num_res_blocks=2)
    sizes |= dict(attn_resolutions=[], dropout=0.0)
    wan = dict(dim_mult=[1, 2, 4, 4], num_res_blocks=2, attn_scales=[], dropout=0.0)
    wan |= dict(temperal_downsample=[False, True, True])
    return {
        "FLUX.1": lambda: AutoencoderKL(ddconfig=sizes | {"z_channels": 16}, embed_dim=16),
        "FLUX.2": lambda: AutoencoderKL(ddconfig=sizes | {"z_channels": 32, "batch_norm_latent": True}, embed_dim=32),
        "Wan 2.1": lambda: wan21.WanVAE(dim=96, z_dim=16, **wan),
        "Wan 2.2": lambda: wan22.WanVAE(dim=160, z_dim=48, **wan),
    }


BFLOAT16, FLOAT16, FLOAT32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
NETWORKS, ENCODERS, AUTOENCODERS = "diffusion_models", "text_encoders", "vae"  # ComfyUI's folders
SCALED = "scaled_fp8"  # a form of ComfyUI: FP8 with a scale for each matrix


@dataclass(frozen=True)
class Weights:
    """The weights that a file of a template holds.

    Attributes:
        name: a key of `published`, `encoders` or `autoencoders`, by the folder.
        dtype: of the numbers; with a form, of what is not quantized.
        form: "" or SCALED.
    """

    folder: str
    name: str
    dtype: torch.dtype
    form: str = ""


FILES = {
    "flux-2-klein-4b.safetensors": Weights(NETWORKS, "FLUX.2 klein 4B", BFLOAT16),
    "z_image_turbo_bf16.safetensors": Weights(NETWORKS, "Z-Image", BFLOAT16),
    "wan2.2_ti2v_5B_fp16.safetensors": Weights(NETWORKS, "Wan 2.2 5B", FLOAT16),
    "flux1-dev.safetensors": Weights(NETWORKS, "FLUX.1", BFLOAT16),
    "qwen_image_fp8_e4m3fn.safetensors": Weights(NETWORKS, "Qwen-Image", FP8),
    "krea2_raw_fp8_scaled.safetensors": Weights(NETWORKS, "Krea 2", BFLOAT16, SCALED),
    "wan2.2_t2v_high_noise_14B_fp8_scaled.safetensors": Weights(NETWORKS, "Wan 2.2 14B", FLOAT16, SCALED),
    "wan2.2_t2v_low_noise_14B_fp8_scaled.safetensors": Weights(NETWORKS, "Wan 2.2 14B", FLOAT16, SCALED),
    "qwen_3_4b.safetensors": Weights(ENCODERS, "Qwen3 4B", BFLOAT16),
    "umt5_xxl_fp8_e4m3fn_scaled.safetensors": Weights(ENCODERS, "UMT5-XXL", FLOAT16, SCALED),
    "clip_l.safetensors": Weights(ENCODERS, "CLIP-L", FLOAT16),
    "t5xxl_fp16.safetensors": Weights(ENCODERS, "T5-XXL", FLOAT16),
    "qwen_2.5_vl_7b_fp8_scaled.safetensors": Weights(ENCODERS, "Qwen2.5-VL 7B", BFLOAT16, SCALED),
    "qwen3vl_4b_fp8_scaled.safetensors": Weights(ENCODERS, "Qwen3-VL 4B", BFLOAT16, SCALED),
    "flux2-vae.safetensors": Weights(AUTOENCODERS, "FLUX.2", FLOAT32),
    "ae.safetensors": Weights(AUTOENCODERS, "FLUX.1", FLOAT32),
    "wan2.2_vae.safetensors": Weights(AUTOENCODERS, "Wan 2.2", FLOAT16),
    "wan_2.1_vae.safetensors": Weights(AUTOENCODERS, "Wan 2.1", BFLOAT16),
    "qwen_image_vae.safetensors": Weights(AUTOENCODERS, "Wan 2.1", BFLOAT16),
}


def empty(weights: Weights, blocks: int | None = None) -> Module:
    """The network of a file on the meta device; of a diffusion model with that many blocks."""
    import comfy.ops

    how = {"device": "meta", "dtype": None, "operations": comfy.ops.disable_weight_init}
    kinds = {
        NETWORKS: partial(published, blocks, **how),
        ENCODERS: partial(encoders, **how),
        AUTOENCODERS: autoencoders,
    }
    with torch.device("meta"):
        return kinds[weights.folder]()[weights.name]()


LAYER = re.compile(
    r"(?:double_blocks|single_blocks|transformer_blocks|blocks?|layers|noise_refiner|context_refiner)\.\d+\.(.+)"
)
MODULATION = ("mod", "adaLN")


def of_blocks(network: Module) -> dict[str, torch.nn.Linear]:
    """The Linear layers of a network's blocks but the modulation, by name: those that adapters are on, and that published files
    hold in few bits."""
    named = {name: layer for name, layer in network.named_modules() if isinstance(layer, torch.nn.Linear)}
    inside = {name: match[1] for name in named if (match := LAYER.search(name))}
    return {name: named[name] for name, rest in inside.items() if not any(word in rest for word in MODULATION)}
