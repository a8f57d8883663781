"""Small tokenizers of the two kinds that FLUX uses, with one token for each word of a world.

Letters and bytes are in the vocabularies too, so any other prompt is still spelled out rather than lost.
"""

from __future__ import annotations

import json
import string

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import CLIPTokenizer, T5Tokenizer

from .worlds import CLIP_TOKENS, World


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
