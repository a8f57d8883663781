"""The reference architectures of the image rewards, written out on their published tensors with torch's functions alone.

A second opinion for tests and bench/rewards.py: nothing here uses transformers' models or this package's rewards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

MEAN = torch.tensor([0.48145466, 0.4578275, 0.40821073]).view(3, 1, 1)
STD = torch.tensor([0.26862954, 0.26130258, 0.27577711]).view(3, 1, 1)

State = Mapping[str, torch.Tensor]


def letterbox(picture: Image.Image, size: int) -> torch.Tensor:
    """[3, size, size]: each channel resized in floating point by Pillow, put on black, normalised."""
    scale = size / max(picture.size)
    width, height = (round(side * scale) for side in picture.size)
    sheet = torch.zeros(3, size, size)
    left, top = (size - width) // 2, (size - height) // 2
    for channel, plane in enumerate(picture.split()):
        resized = plane.convert("F").resize((width, height), Image.Resampling.BICUBIC)
        sheet[channel, top : top + height, left : left + width] = torch.from_numpy(np.array(resized)) / 255
    return (sheet - MEAN) / STD


def centre_crop(picture: Image.Image, size: int) -> torch.Tensor:
    """[3, size, size]: short side to size, the middle, normalised."""
    scale = size / min(picture.size)
    resized = picture.resize([int(side * scale + 1e-6) for side in picture.size], Image.Resampling.BICUBIC)
    left, top = (round((side - size) / 2) for side in resized.size)
    middle = torch.from_numpy(np.array(resized)).permute(2, 0, 1)[:, top : top + size, left : left + size]
    return (middle / 255 - MEAN) / STD


def open_clip(state: State, pixels: torch.Tensor, tokens: Sequence[Sequence[int]], heads: int = 16):
    """(picture features, text features) of open_clip's ViT CLIP with GELU, not normalised.

    `tokens`: of each text, from its start token to its end token; zeros follow up to 77.
    """
    x = F.conv2d(pixels, state["visual.conv1.weight"], stride=state["visual.conv1.weight"].shape[-1])
    x = x.flatten(2).transpose(1, 2)
    x = torch.cat([state["visual.class_embedding"].expand(len(x), 1, -1), x], 1) + state["visual.positional_embedding"]
    x = _norm(state, "visual.ln_pre", x)
    x = _open_clip_blocks(state, "visual.transformer.", x, heads)
    pictures = _norm(state, "visual.ln_post", x[:, 0]) @ state["visual.proj"]

    ids = torch.zeros(len(tokens), 77, dtype=torch.long)
    for row, text in enumerate(tokens):
        ids[row, : len(text)] = torch.tensor(text)
    x = state["token_embedding.weight"][ids] + state["positional_embedding"]
    x = _open_clip_blocks(state, "transformer.", x, heads, torch.full((77, 77), -torch.inf).triu(1))
    x = _norm(state, "ln_final", x)[torch.arange(len(ids)), ids.argmax(1)]
    return pictures, x @ state["text_projection"]


def _open_clip_blocks(state, tower, x, heads, mask=None):
    x = x.transpose(0, 1)
    number = 0
    while f"{tower}resblocks.{number}.ln_1.weight" in state:
        block = f"{tower}resblocks.{number}."
        normed = _norm(state, block + "ln_1", x)
        attended, _ = F.multi_head_attention_forward(
            *(normed, normed, normed, x.shape[-1], heads),
            *(state[block + "attn.in_proj_weight"], state[block + "attn.in_proj_bias"], None, None, False, 0.0),
            *(state[block + "attn.out_proj.weight"], state[block + "attn.out_proj.bias"]),
            training=False,
            need_weights=False,
            attn_mask=mask,
        )
        x = x + attended
        hidden = F.gelu(_linear(state, block + "mlp.c_fc", _norm(state, block + "ln_2", x)))
        x = x + _linear(state, block + "mlp.c_proj", hidden)
        number += 1
    return x.transpose(0, 1)


def image_reward(state: State, pixels: torch.Tensor, tokens: Sequence[Sequence[int]], text_heads: int = 12):
    """[B] of BLIP's picture encoder, its text encoder with cross-attention, and ImageReward's head.

    `tokens`: of each text, from [CLS] to [SEP], at most 35. Texts go through one by one, without padding.
    """
    rows = [_image_reward(state, pixels[row : row + 1], tokens[row], text_heads) for row in range(len(tokens))]
    return torch.stack(rows)


def _image_reward(state, pixels, tokens, text_heads):
    vision, text = "blip.visual_encoder.", "blip.text_encoder."
    patch = state[vision + "patch_embed.proj.weight"]
    x = (
        F.conv2d(pixels, patch, state[vision + "patch_embed.proj.bias"], stride=patch.shape[-1])
        .flatten(2)
        .transpose(1, 2)
    )
    x = torch.cat([state[vision + "cls_token"], x], 1) + state[vision + "pos_embed"]
    number = 0
    while f"{vision}blocks.{number}.norm1.weight" in state:
        block = f"{vision}blocks.{number}."
        query, key, value = _linear(state, block + "attn.qkv", _norm(state, block + "norm1", x, 1e-6)).chunk(3, -1)
        x = x + _linear(state, block + "attn.proj", _attention(query, key, value, x.shape[-1] // 64))
        hidden = F.gelu(_linear(state, block + "mlp.fc1", _norm(state, block + "norm2", x, 1e-6)))
        x = x + _linear(state, block + "mlp.fc2", hidden)
        number += 1
    seen = _norm(state, vision + "norm", x, 1e-6)

    ids = torch.tensor(tokens)
    x = state[text + "embeddings.word_embeddings.weight"][ids]
    x = x + state[text + "embeddings.position_embeddings.weight"][: len(ids)]
    x = _norm(state, text + "embeddings.LayerNorm", x[None], 1e-12)
    number = 0
    while f"{text}encoder.layer.{number}.output.dense.weight" in state:
        block = f"{text}encoder.layer.{number}."
        for name, source in (("attention", None), ("crossattention", seen)):
            layer = f"{block}{name}."
            read = x if source is None else source
            query = _linear(state, layer + "self.query", x)
            key, value = (_linear(state, layer + "self." + part, read) for part in ("key", "value"))
            attended = _linear(state, layer + "output.dense", _attention(query, key, value, text_heads))
            x = _norm(state, layer + "output.LayerNorm", x + attended, 1e-12)
        hidden = F.gelu(_linear(state, block + "intermediate.dense", x))
        x = _norm(state, block + "output.LayerNorm", x + _linear(state, block + "output.dense", hidden), 1e-12)
        number += 1
    return (head(state, x[0, 0], "mlp.layers.") - 0.16717362830052426) / 1.0333394966054072


def head(state: State, features: torch.Tensor, prefix: str = "layers.") -> torch.Tensor:
    """[…] of features […, 768]."""
    for layer in (0, 2, 4, 6, 7):
        features = _linear(state, f"{prefix}{layer}", features)
    return features[..., 0]


def _attention(query, key, value, heads):
    query, key, value = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (query, key, value))
    weights = (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(-1)
    return (weights @ value).transpose(1, 2).flatten(2)


def _linear(state, name, x):
    return F.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])


def _norm(state, name, x, eps=1e-5):
    return F.layer_norm(x, x.shape[-1:], state[f"{name}.weight"], state[f"{name}.bias"], eps)
