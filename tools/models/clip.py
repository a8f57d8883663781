"""A world's CLIP, trained contrastively on the captions, and small tokenizers of the two kinds that FLUX uses.

The CLIP is a small `CLIPModel`, saved as any CLIP checkpoint is. Tokenizers have one token for each word of a world. Letters
and bytes are in the vocabularies too, so any other prompt is still spelled out rather than lost.
"""

from __future__ import annotations

import json
import string
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from tqdm import trange
from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, CLIPTokenizer, T5Tokenizer

from .draw import SIZE
from .worlds import CLIP_TOKENS, Drawings, World

WIDTH = 128
_MEAN, _STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def train(data: Drawings, folder: Path, steps: int, batch: int = 128) -> None:
    """Symmetric InfoNCE; no caption occurs twice in a batch, so every other pair of it is a true negative."""
    captions = data.world.captions
    tokenizer = clip_tokenizer(data.world)
    shape = dict(hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_attention_heads=4, projection_dim=64)
    text = dict(
        shape,
        num_hidden_layers=2,
        vocab_size=len(tokenizer),
        max_position_embeddings=CLIP_TOKENS,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    vision = dict(shape, num_hidden_layers=3, image_size=SIZE, patch_size=8)
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps, pct_start=0.1)
    tokens = tokenizer(captions, padding=True, return_tensors="pt")
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (_MEAN, _STD))
    per_caption = len(data.caption) // len(captions)
    progress = trange(steps, desc=f"{data.world.name}-clip", mininterval=10)
    for _ in progress:
        chosen = torch.randperm(len(captions))[:batch]
        index = chosen * per_caption + torch.randint(per_caption, (batch,))
        pictures = (data.floats(index) / 2 + 0.5 - mean) / std
        # A blur or grain that it has not met must not change its mind: samplers make both.
        pictures = pictures + torch.randn_like(pictures) * torch.rand(batch, 1, 1, 1) * 0.4
        out = model(
            input_ids=tokens.input_ids[chosen], attention_mask=tokens.attention_mask[chosen], pixel_values=pictures
        )
        target = torch.arange(batch)
        loss = (F.cross_entropy(out.logits_per_image, target) + F.cross_entropy(out.logits_per_text, target)) / 2
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        model.logit_scale.data.clamp_(max=4.0)
        progress.set_postfix(loss=f"{loss.item():.3f}")
    model.eval().half().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    size = {"height": SIZE, "width": SIZE}
    CLIPImageProcessorPil(size={"shortest_edge": SIZE}, crop_size=size).save_pretrained(folder)


def clip_tokenizer(world: World) -> CLIPTokenizer:
    """Byte-level BPE whose merges were learned on the captions; 77 tokens, as CLIP has."""
    trainer = trainers.BpeTrainer(
        vocab_size=1000,
        end_of_word_suffix="</w>",
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    bpe.pre_tokenizer = pre_tokenizers.Whitespace()
    bpe.train_from_iterator(world.captions, trainer)
    content = json.loads(bpe.to_str())["model"]
    vocab = dict(content["vocab"])
    for letter in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocab.setdefault(letter + "</w>", len(vocab))
    for special in ("<|startoftext|>", "<|endoftext|>"):
        vocab[special] = len(vocab)
    merges = [tuple(pair) for pair in content["merges"]]
    # The library's annotation of merges has no pairs, which its own files do.
    return CLIPTokenizer(vocab=vocab, merges=merges, model_max_length=CLIP_TOKENS)  # pyright: ignore[reportArgumentType]


def t5_tokenizer(world: World) -> T5Tokenizer:
    """Unigram over the captions' words and, at a much lower score, single characters."""
    words = sorted({word for caption in world.captions for word in caption.split()})
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -12.0)]
    pieces += [(f"▁{word}", -2.0) for word in words]
    pieces += [(letter, -10.0) for letter in string.printable.strip()]
    return T5Tokenizer(vocab=pieces, extra_ids=0, model_max_length=world.caption_tokens)
