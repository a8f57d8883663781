"""ImageReward: BLIP, whose text encoder looks at the picture, and a head on its first token."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..networks import RewardError, preprocess
from ..networks.network import Network
from ..networks.published import ALL, Published, scoring_head, transformers_class
from .base import NetworkReward

FILE = Published("ImageReward", "ImageReward.pt", "1.8 GB", "THUDM/ImageReward")
CONFIG = Published("ImageReward's text configuration", "med_config.json", "about 500 bytes", "THUDM/ImageReward")
TOKENIZER = Published("BERT's tokenizer", ALL, "only its tokenizer: 0.7 MB", "google-bert/bert-base-uncased")
MEAN, STD = 0.16717362830052426, 1.0333394966054072  # of the raw score over the authors' data
TOKENS = 35
HEAD_WIDTH = 64  # of an attention head of BLIP's picture encoder, which cannot be read off its tensors

_VISION, _TEXT = "blip.visual_encoder.", "blip.text_encoder."
# timm's names in BLIP's picture encoder to those of BlipVisionModel, in this order. Text keeps its names.
_VISION_NAMES = (
    ("cls_token", "embeddings.class_embedding"),
    ("pos_embed", "embeddings.position_embedding"),
    ("patch_embed.proj", "embeddings.patch_embedding"),
    ("blocks.", "encoder.layers."),
    ("attn.proj", "self_attn.projection"),
    ("attn.qkv", "self_attn.qkv"),
    ("norm1", "layer_norm1"),
    ("norm2", "layer_norm2"),
    ("norm.", "post_layernorm."),
)


def vision_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    renamed = {}
    for key, tensor in _under(_VISION, state).items():
        for name, layer in _VISION_NAMES:
            key = key.replace(name, layer)
        renamed[key] = tensor
    return renamed


def text_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: tensor for key, tensor in _under(_TEXT, state).items() if key != "embeddings.position_ids"}


def _under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): tensor for key, tensor in state.items() if key.startswith(prefix)}


class Blip(Network):
    """Both encoders and the head of the published file.

    Args:
        path: ImageReward.pt.
        config: med_config.json.
        tokenizer: the folder of bert-base-uncased's.
    """

    def __init__(self, path: Path, device: torch.device, dtype: torch.dtype, config: Path, tokenizer: Path):
        super().__init__(path, device, dtype)
        state = FILE.read(path)
        FILE.check(
            path, state, [_VISION + name for name in ("pos_embed", "patch_embed.proj.weight", "blocks.0.mlp.fc1.bias")]
        )
        vision = _vision_config(state)
        text = _text_config(config, vision.hidden_size)
        looking, reading = transformers_class("BlipVisionModel"), transformers_class("BlipTextModel")
        self.vision = FILE.filled(lambda: looking(vision), vision_state(state), path, dtype)
        self.text = FILE.filled(lambda: reading(text, add_pooling_layer=False), text_state(state), path, dtype)
        self.head = scoring_head(FILE, path, state, "mlp.layers.")
        self.tokenizer = transformers_class("BertTokenizerFast").from_pretrained(tokenizer, local_files_only=True)
        if len(self.tokenizer) > text.vocab_size:
            raise RewardError(
                f"the tokenizer in {tokenizer} has {len(self.tokenizer)} tokens where {path} knows {text.vocab_size}. "
                f"Fix: use the tokenizer of {TOKENIZER.source}"
            )
        self.settle(device)

    def _networks(self) -> list[torch.nn.Module]:
        return [self.vision, self.text]

    def scores(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        """[B]: of each picture and its prompt, in standard deviations."""
        return self._judged(preprocess.centre_crop(images, self.vision.config.image_size), prompts)

    def scores_with_gradient(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        """The same with a gradient in the pictures, which may be on any device."""
        return self._judged(preprocess.centre_crop_with_gradient(images, self.vision.config.image_size), prompts)

    def _judged(self, pixels: Tensor, prompts: Sequence[str]) -> Tensor:
        hidden = self.vision(pixel_values=pixels.to(self.device, self.dtype)).last_hidden_state
        words = self.tokenizer(
            list(prompts), padding="max_length", max_length=TOKENS, truncation=True, return_tensors="pt"
        ).to(self.device)
        read = self.text(
            input_ids=words.input_ids,
            attention_mask=words.attention_mask,
            encoder_hidden_states=hidden,
            encoder_attention_mask=torch.ones(hidden.shape[:2], dtype=torch.long, device=self.device),
        ).last_hidden_state
        return (self.head(read[:, 0].float().cpu())[:, 0] - MEAN) / STD


def _vision_config(state: Mapping[str, Tensor]):
    positions, patch = state[_VISION + "pos_embed"], state[_VISION + "patch_embed.proj.weight"]
    width = positions.shape[-1]
    return transformers_class("BlipVisionConfig")(
        hidden_size=width,
        intermediate_size=len(state[_VISION + "blocks.0.mlp.fc1.bias"]),
        num_hidden_layers=sum(key.startswith(_VISION) and key.endswith("norm1.bias") for key in state),
        num_attention_heads=width // HEAD_WIDTH,
        image_size=patch.shape[-1] * math.isqrt(positions.shape[1] - 1),
        patch_size=patch.shape[-1],
        hidden_act="gelu",
        layer_norm_eps=1e-6,
    )


def _text_config(path: Path, picture_width: int):
    content = json.loads(path.read_text(encoding="utf-8"))
    names = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "max_position_embeddings", "hidden_act", "layer_norm_eps", "pad_token_id",
    )  # fmt: skip
    missing = [name for name in names if name not in content]
    if missing:
        raise CONFIG.misfit(path, f"has no {missing[0]!r}")
    # A decoder in name only: so it gets cross-attention, and is then run as the encoder that it is.
    return transformers_class("BlipTextConfig")(
        **{name: content[name] for name in names}, encoder_hidden_size=picture_width, is_decoder=True
    )


class ImageReward(NetworkReward):
    """(head(BLIP) − mean) / std (Xu et al., 2304.05977); mostly between −2 and 2.

    Args:
        path: ImageReward.pt, by its path or by its published name.
        config: med_config.json, likewise.
        tokenizer: a folder with bert-base-uncased's tokenizer, the name of one, or a hub id in the local cache.
    """

    network: Blip

    def __init__(
        self, name: str = "image_reward", *, path: str = "", config: str = "", tokenizer: str = TOKENIZER.source, **use
    ):
        folder = TOKENIZER.find_folder(tokenizer, "tokenizer_config.json")
        super().__init__(name, Blip, FILE.find(path), {"config": CONFIG.find(config), "tokenizer": folder}, **use)

    def score(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        return self.in_batches(self.network.scores, images, prompts)

    def differentiable(self, images: Tensor, prompts: Sequence[str]) -> Tensor:
        return self.in_batches(self.network.scores_with_gradient, images, prompts)
