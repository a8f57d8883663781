"""Families that make pictures, in tiny sizes, in the words of ComfyUI's own detection."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from unittest import mock

import torch

from .parts import Family, Text

FLUX = {
    "image_model": "flux",
    "in_channels": 16,
    "out_channels": 16,
    "vec_in_dim": 24,
    "context_in_dim": 32,
    "hidden_size": 64,
    "mlp_ratio": 2.0,
    "num_heads": 2,
    "depth": 2,
    "depth_single_blocks": 2,
    "axes_dim": [8, 12, 12],
    "theta": 10000,
    "patch_size": 2,
    "qkv_bias": True,
    "guidance_embed": True,
    "txt_ids_dims": [],
}
LONG_CAT = FLUX | {"guidance_embed": False, "vec_in_dim": None, "txt_ids_dims": [1, 2]}
OVIS = LONG_CAT | {"yak_mlp": True, "txt_norm": True}

FLUX2 = FLUX | {
    "image_model": "flux2",
    "in_channels": 128,
    "out_channels": 128,
    "vec_in_dim": None,
    "axes_dim": [8, 8, 8, 8],
    "theta": 2000,
    "patch_size": 1,
    "qkv_bias": False,
    "global_modulation": True,
    "mlp_silu_act": True,
    "ops_bias": False,
    "default_ref_method": "index",
    "ref_index_scale": 10.0,
    "txt_ids_dims": [3],
}

CHROMA = {key: value for key, value in FLUX.items() if key != "guidance_embed"} | {
    "image_model": "chroma",
    "in_channels": 64,
    "out_channels": 64,
    "vec_in_dim": None,
    "in_dim": 64,
    "out_dim": 64,
    "hidden_dim": 48,
    "n_layers": 2,
}
CHROMA_RADIANCE = CHROMA | {
    "image_model": "chroma_radiance",
    "in_channels": 3,
    "out_channels": 3,
    "patch_size": 16,
    "nerf_hidden_size": 16,
    "nerf_mlp_ratio": 2,
    "nerf_depth": 2,
    "nerf_max_freqs": 4,
    "nerf_tile_size": 512,
    "nerf_final_head_type": "conv",
    "nerf_embedder_dtype": torch.float32,
    "use_x0": False,
    "use_sequential_txt_ids": False,
}

SD3 = {
    "in_channels": 16,
    "patch_size": 2,
    "input_size": None,
    "depth": 2,
    "num_patches": 64,
    "pos_embed_max_size": 8,
    "pos_embed_scaling_factor": None,
    "adm_in_channels": 24,
    "context_embedder_config": {"target": "torch.nn.Linear", "params": {"in_features": 32, "out_features": 128}},
    "qk_norm": "rms",
    "x_block_self_attn_layers": [0],
}

LUMINA = {
    "image_model": "lumina2",
    "patch_size": 2,
    "in_channels": 16,
    "dim": 64,
    "cap_feat_dim": 32,
    "n_layers": 2,
    "n_refiner_layers": 1,
    "qk_norm": True,
    "n_heads": 2,
    "n_kv_heads": 1,
    "axes_dims": [8, 12, 12],
    "axes_lens": [300, 512, 512],
    "rope_theta": 10000.0,
    "ffn_dim_multiplier": 2.0,
    "multiple_of": 32,
}
Z_IMAGE = LUMINA | {
    "dim": 256,  # its modulation takes 256 numbers of the noise level, and no fewer of the width
    "n_heads": 8,
    "n_kv_heads": 8,
    "ffn_dim_multiplier": 0.5,
    "rope_theta": 256.0,
    "z_image_modulation": True,
    "time_scale": 1000.0,
    "pad_tokens_multiple": 32,
}
Z_PIXELS = Z_IMAGE | {
    "image_model": "zimage_pixel",
    "patch_size": 16,
    "in_channels": 3,
    "decoder_hidden_size": 32,
    "decoder_num_res_blocks": 1,
    "decoder_max_freqs": 4,
    "decoder_in_channels": 768,
}

QWEN = {
    "image_model": "qwen_image",
    "in_channels": 64,
    "num_layers": 2,
    "attention_head_dim": 32,
    "num_attention_heads": 2,
    "joint_attention_dim": 32,
    "axes_dims_rope": (8, 12, 12),
}

# The gate and the values of its MLP are one matrix, all blocks share one modulation, and the text attends causally.
QWEN21 = {
    name: QWEN[name]
    for name in ("in_channels", "num_layers", "attention_head_dim", "num_attention_heads", "axes_dims_rope")
}
QWEN21 |= {"image_model": "qwen_image21", "out_channels": 64, "context_in_dim": 32}

SDXL = {
    "image_size": 32,
    "in_channels": 4,
    "out_channels": 4,
    "model_channels": 32,
    "num_res_blocks": [1, 1],
    "channel_mult": [1, 2],
    "transformer_depth": [0, 1],
    "transformer_depth_middle": 1,
    "transformer_depth_output": [0, 0, 1, 1],
    "use_linear_in_transformer": True,
    "context_dim": 32,
    "adm_in_channels": 24 + 6 * 256,
    "num_classes": "sequential",
    "num_head_channels": 16,
    "num_heads": -1,
    "use_spatial_transformer": True,
    "legacy": False,
    "use_temporal_attention": False,
}

HUNYUAN = {name: value for name, value in FLUX.items() if name != "txt_ids_dims"} | {
    "image_model": "hunyuan_video",
    "patch_size": [1, 2, 2],
    "meanflow": False,
    "theta": 256,
    "byt5": False,
    "use_cond_type_embedding": False,
    "vision_in_dim": None,
    "meanflow_sum": False,
}
HUNYUAN_IMAGE = HUNYUAN | {
    "in_channels": 64,
    "out_channels": 64,
    "patch_size": [1, 1],
    "vec_in_dim": None,
    "axes_dim": [16, 16],
    "guidance_embed": False,
}

AURA = {
    "cond_seq_dim": 32,
    "dim": 64,
    "n_layers": 2,
    "n_double_layers": 1,
    "n_heads": 2,
    "global_conddim": 64,
    "max_seq": 64,
}
IDEOGRAM = {
    "image_model": "ideogram4",
    "in_channels": 128,
    "num_layers": 2,
    "num_attention_heads": 2,
    "attention_head_dim": 32,
    "intermediate_size": 128,
    "adaln_dim": 32,
    "llm_features_dim": 32,
    "mrope_section": [8, 4, 4],
}
OMNIGEN2 = {
    "image_model": "omnigen2",
    "axes_dim_rope": [8, 12, 12],
    "axes_lens": [1024, 1664, 1664],
    "hidden_size": 64,
    "in_channels": 16,
    "multiple_of": 32,
    "num_attention_heads": 2,
    "num_kv_heads": 1,
    "num_layers": 2,
    "num_refiner_layers": 1,
    "patch_size": 2,
    "timestep_scale": 1000.0,
}
HIDREAM = {
    "image_model": "hidream",
    "attention_head_dim": 32,
    "axes_dims_rope": [8, 12, 12],
    "caption_channels": [32, 32],
    "max_resolution": [16, 16],
    "in_channels": 16,
    "llama_layers": [0, 1],
    "num_attention_heads": 2,
    "num_routed_experts": 4,
    "num_activated_experts": 2,
    "num_layers": 1,
    "num_single_layers": 1,
    "out_channels": 16,
    "patch_size": 2,
    "text_emb_dim": 24,
}
LENS = {
    "image_model": "lens",
    "in_channels": 128,
    "out_channels": 32,
    "num_layers": 2,
    "num_attention_heads": 2,
    "attention_head_dim": 32,
    "axes_dims_rope": (8, 12, 12),
    "enc_hidden_dim": 16,
    "multi_layer_encoder_feature": True,
    "selected_layer_index": (0, 1),
}
KANDINSKY = {
    "image_model": "kandinsky5",
    "model_dim": 64,
    "axes_dims": (8, 12, 12),
    "time_dim": 32,
    "ff_dim": 128,
    "in_text_dim": 32,
    "in_text_dim2": 24,
    "num_text_blocks": 1,
    "num_visual_blocks": 2,
}
PIXEL_DIT = {
    "image_model": "pixeldit_t2i",
    "hidden_size": 64,
    "num_groups": 2,
    "pixel_hidden_size": 8,
    "pixel_attn_hidden_size": 32,
    "pixel_num_groups": 2,
    "patch_depth": 2,
    "pixel_depth": 1,
    "txt_embed_dim": 32,
    "txt_max_length": 16,
}
ANIMA = {
    "image_model": "anima",
    "max_img_h": 240,
    "max_img_w": 240,
    "max_frames": 128,
    "in_channels": 16,
    "out_channels": 16,
    "patch_spatial": 2,
    "patch_temporal": 1,
    "model_channels": 64,
    "concat_padding_mask": True,
    "crossattn_emb_channels": 32,
    "pos_emb_cls": "rope3d",
    "pos_emb_learnable": True,
    "pos_emb_interpolation": "crop",
    "min_fps": 1,
    "max_fps": 30,
    "use_adaln_lora": True,
    "adaln_lora_dim": 16,
    "num_blocks": 2,
    "num_heads": 2,
    "extra_per_block_abs_pos_emb": False,
    "rope_h_extrapolation_ratio": 4.0,
    "rope_w_extrapolation_ratio": 4.0,
    "rope_t_extrapolation_ratio": 1.0,
    "extra_h_extrapolation_ratio": 1.0,
    "extra_w_extrapolation_ratio": 1.0,
    "extra_t_extrapolation_ratio": 1.0,
    "rope_enable_fps_modulation": False,
}
JOY = {
    "image_model": "joyimage",
    "in_channels": 16,
    "hidden_size": 64,
    "patch_size": [1, 2, 2],
    "num_layers": 2,
    "num_attention_heads": 2,
    "text_dim": 32,
    "rope_dim_list": [8, 12, 12],
}
KREA = {
    "image_model": "krea2",
    "features": 64,
    "tdim": 32,
    "channels": 16,
    "patch": 2,
    "layers": 2,
    "heads": 2,
    "kvheads": 1,
    "multiplier": 2,
    "txtlayers": 2,
    "txtdim": 32,
    "txtheads": 2,
    "txtkvheads": 2,
}
ERNIE = {
    "image_model": "ernie",
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_layers": 2,
    "ffn_hidden_size": 128,
    "text_in_dim": 32,
    "rope_axes_dim": (8, 12, 12),
}


def reference(shape, random) -> dict:
    """An edit model's picture to work on."""
    return {"reference_latents": [random(1, *shape)]}


def told_reference(shape, random) -> dict:
    """Krea 2 leaves the picture out unless the cond says how to take it in."""
    return reference(shape, random) | {"reference_latents_method": "index"}


def llama(embeddings, ids) -> dict:
    """HiDream reads two layers of a second text encoder."""
    return {"conditioning_llama3": torch.stack([embeddings, embeddings.flip(-1)], 1)}


def t5_tokens(embeddings, ids) -> dict:
    """Anima embeds the tokens of a second tokenizer itself."""
    return {"t5xxl_ids": ids.int(), "t5xxl_weights": torch.ones(len(ids))}


@contextmanager
def small_adapter():
    """Anima's text adapter has no sizes in its config: 1024 wide, six layers."""
    import comfy.ldm.anima.model as anima

    small = partial(anima.LLMAdapter, source_dim=32, target_dim=32, model_dim=32, num_layers=1, num_heads=2)
    with mock.patch.object(anima, "LLMAdapter", small):
        yield


def degraded(shape, random) -> dict:
    """PiD sharpens a latent of a quarter of the size."""
    return {"lq_latent": random(1, 16, shape[-2] // 32, shape[-1] // 32), "degrade_sigma": torch.tensor([0.1])}


def places(network, random) -> None:
    """SD3's checkpoint holds its position embedding."""
    network.pos_embed.copy_(random(*network.pos_embed.shape) * 0.5)


T5_AND_CLIP = Text(32, pooled=24, least=12)
NEW_FLUX = ("txt_ids_dims",)
NEW_CHROMA = ("txt_ids_dims", "vec_in_dim")
NEW_HUNYUAN = ("use_cond_type_embedding", "vision_in_dim", "meanflow_sum")

FAMILIES: dict[str, Family] = {
    "Flux": Family(FLUX, T5_AND_CLIP, later=NEW_FLUX),
    "FluxKontext": Family(FLUX, T5_AND_CLIP, of="Flux", conditions=reference, later=NEW_FLUX),
    "FluxInpaint": Family(FLUX | {"in_channels": 96}, T5_AND_CLIP, later=NEW_FLUX),
    "FluxSchnell": Family(FLUX | {"guidance_embed": False}, T5_AND_CLIP, later=NEW_FLUX),
    "LongCatImage": Family(LONG_CAT, Text(32, sees=True)),
    "Flux2": Family(FLUX2, Text(32), down=16),
    "Flux2Edit": Family(FLUX2, Text(32), down=16, of="Flux2", conditions=reference),
    "SD3": Family(SD3, Text(32, pooled=24, least=12), buffers=places),
    "SDXLFlow": Family(SDXL, Text(32, pooled=24), of="SDXL", is_made_flow=True),
    "QwenImage": Family(QWEN, Text(32, sees=True)),
    "QwenImageEdit": Family(QWEN, Text(32), of="QwenImage", conditions=reference),
    "QwenImage21": Family(QWEN21, Text(32), down=16),
    "QwenImage21Edit": Family(QWEN21, Text(32), down=16, of="QwenImage21", conditions=reference),
    "ZImage": Family(Z_IMAGE, Text(32, mask=True)),
    "ZImagePixelSpace": Family(Z_PIXELS, Text(32, mask=True), down=1),
    "Lumina2": Family(LUMINA, Text(32, mask=True), later=("rope_theta",)),
    "Chroma": Family(CHROMA, Text(32), later=NEW_CHROMA),
    "ChromaRadiance": Family(
        CHROMA_RADIANCE, Text(32), down=1, later=(*NEW_CHROMA, "use_x0", "use_sequential_txt_ids")
    ),
    "AuraFlow": Family(AURA, Text(32, least=12)),
    "HunyuanImage21": Family(HUNYUAN_IMAGE, Text(32), down=32, later=NEW_HUNYUAN),
    "HunyuanImage21Refiner": Family(
        HUNYUAN_IMAGE | {"in_channels": 128, "patch_size": [1, 1, 1], "axes_dim": [8, 12, 12], "guidance_embed": True},
        Text(32),
        down=16,
        later=NEW_HUNYUAN,
    ),
    "NewBie": Family(LUMINA | {"clip_text_dim": 24}, Text(32, pooled=24, mask=True), of="Lumina2", new=True),
    "Ovis": Family(OVIS, Text(32), of="FluxSchnell", new=True),
    "HiDream": Family(HIDREAM, Text(32, pooled=24, least=12, extra=llama)),
    "Omnigen2": Family(OMNIGEN2 | {"text_feat_dim": 32}, Text(32, mask=True)),
    "Omnigen2Edit": Family(OMNIGEN2 | {"text_feat_dim": 32}, Text(32, mask=True), of="Omnigen2", conditions=reference),
    "Boogu": Family(
        OMNIGEN2 | {"image_model": "boogu", "num_double_stream_layers": 1, "instruction_feat_dim": 32},
        Text(32, mask=True),
    ),
    "MageFlow": Family(QWEN | {"image_model": "mage_flow", "in_channels": 128}, Text(32), down=16),
    "JoyImage": Family(JOY, Text(32, mask=True)),
    "JoyImageEdit": Family(JOY, Text(32, mask=True), of="JoyImage", conditions=reference),
    "Ideogram4": Family(IDEOGRAM, Text(32), down=16),
    "Krea2": Family(KREA, Text(64, sees=True)),
    "Krea2Edit": Family(KREA, Text(64), of="Krea2", conditions=told_reference),
    "Lens": Family(LENS, Text(32, mask=True), down=16),
    "Kandinsky5Image": Family(KANDINSKY | {"visual_embed_dim": 64}, Text(32, pooled=24, mask=True)),
    "Anima": Family(ANIMA, Text(32, extra=t5_tokens), smaller=small_adapter),
    "ErnieImage": Family(ERNIE, Text(32), down=16),
    "PixelDiTT2I": Family(PIXEL_DIT, Text(32, least=12, mask=True), down=1),
    "PiD": Family(
        PIXEL_DIT | {"image_model": "pid", "lq_hidden_dim": 16, "lq_num_res_blocks": 1},
        Text(32, least=12, mask=True),
        down=1,
        conditions=degraded,
    ),
}
