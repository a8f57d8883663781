"""Second implementations of the published image rewards, on the same weights, to compare ours with.

CLIP-T, Aesthetic and PickScore: transformers' CLIPModel and the checkpoint's own processor, a picture at a time, as the authors'
example does; the aesthetic head is written out. HPSv2.1 and ImageReward: the architecture written out on the published tensors
with torch's functions alone, preprocessing with Pillow, no padding, a picture at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..tools import reference_rewards
from ..trainer.networks import clip
from ..trainer.rewards import aesthetic, hps, image_reward

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

Implementation = Callable[[Sequence["Image.Image"], Sequence[str]], "Tensor"]


def reference(kind: str, network: Any, head: Path | None = None) -> tuple[str, Implementation]:
    """(name, scores [B] of B pictures and prompts), in float32 on the CPU.

    Args:
        kind: clip_t, aesthetic, pickscore, hpsv2 or image_reward.
        network: that of a reward of that kind: its files and tokenizer are taken.
        head: the aesthetic head's file.
    """
    if kind == "hpsv2":
        return "open_clip, written out", functools.partial(_open_clip, network, hps.read_checkpoint(network.path))
    if kind == "image_reward":
        return "BLIP, written out", functools.partial(_blip, network, image_reward.FILE.read(network.path))
    state = aesthetic.FILE.read(head) if head else None
    return "CLIPModel, one by one", functools.partial(_clip_model, kind, network, state)


def _clip_model(kind: str, network: clip.Clip, head, pictures, prompts) -> Tensor:
    from transformers import CLIPModel

    model = CLIPModel.from_pretrained(network.path, dtype=torch.float32, local_files_only=True).eval()
    rows = []
    for picture, prompt in zip(pictures, prompts, strict=True):
        pixels = network.processor(picture, return_tensors="pt")
        out = model(**pixels, **network.tokenizer(prompt, truncation=True, max_length=77, return_tensors="pt"))
        if kind == "aesthetic":
            rows.append(reference_rewards.head(head, out.image_embeds)[0])
        else:
            cosine = out.text_embeds @ out.image_embeds.T
            rows.append((model.logit_scale.exp() * cosine if kind == "pickscore" else cosine)[0, 0])
    return torch.stack(rows)


def _open_clip(network: clip.Clip, state, pictures, prompts) -> Tensor:
    size = network.model.config.vision_config.image_size
    state = {name: tensor.float() for name, tensor in state.items()}
    rows = []
    for picture, prompt in zip(pictures, prompts, strict=True):
        tokens = network.tokenizer([hps.clean(prompt)], truncation=True, max_length=77).input_ids
        pixels = reference_rewards.letterbox(picture, size)[None]
        rows.append(torch.cosine_similarity(*reference_rewards.open_clip(state, pixels, tokens))[0])
    return torch.stack(rows)


def _blip(network: image_reward.Blip, state, pictures, prompts) -> Tensor:
    size = network.vision.config.image_size
    pixels = torch.stack([reference_rewards.centre_crop(picture, size) for picture in pictures])
    tokens = network.tokenizer(list(prompts), truncation=True, max_length=image_reward.TOKENS).input_ids
    heads = network.text.config.num_attention_heads
    return reference_rewards.image_reward(state, pixels, tokens, heads)
