"""Families that make pictures."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from unittest import mock

import torch

from .networks import (
    ANIMA,
    AURA,
    CHROMA,
    CHROMA_RADIANCE,
    ERNIE,
    FLUX,
    FLUX2,
    HIDREAM,
    HUNYUAN_IMAGE,
    IDEOGRAM,
    JOY,
    KANDINSKY,
    KREA,
    LENS,
    LONG_CAT,
    LUMINA,
    OMNIGEN2,
    OVIS,
    PIXEL_DIT,
    QWEN,
    SD3,
    Z_IMAGE,
    Z_PIXELS,
)
from .shapes import Family, Text


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
    "LongCatImage": Family(LONG_CAT, Text(32)),
    "Flux2": Family(FLUX2, Text(32), down=16),
    "Flux2Edit": Family(FLUX2, Text(32), down=16, of="Flux2", conditions=reference),
    "SD3": Family(SD3, Text(32, pooled=24, least=12), buffers=places),
    "QwenImage": Family(QWEN, Text(32)),
    "QwenImageEdit": Family(QWEN, Text(32), of="QwenImage", conditions=reference),
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
    "Krea2": Family(KREA, Text(64)),
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
