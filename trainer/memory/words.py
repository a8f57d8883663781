"""Stands for a tokenizer where only the number of tokens counts: a published model is known here without its own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import BatchEncoding

# What makes a token of English: a mark of a template, a word, a sign, a new line. Of Qwen-Image's template it makes as many as
# Qwen's own tokenizer.
TOKEN = re.compile(r"<\|.*?\|>|\w+|[^\w\s]|\n")


class Words:
    """A token for each word and each sign of a text; all tokens are number 0.

    Attributes:
        model_max_length: the most of a text.
        added_tokens_encoder: tokens that stand for learned embeddings; there are none.
    """

    def __init__(self, model_max_length: int):
        self.model_max_length = model_max_length
        self.added_tokens_encoder: dict[str, int] = {}

    def tokenize(self, text: str) -> list[str]:
        return TOKEN.findall(text)

    def __call__(
        self, texts: str | Sequence[str], padding: bool | str = False, max_length: int = 0, **more: Any
    ) -> BatchEncoding:
        most = max_length or self.model_max_length
        rows = [texts] if isinstance(texts, str) else texts
        counts = torch.tensor([min(most, len(self.tokenize(text))) for text in rows])
        mask = torch.arange(max_length if padding == "max_length" else int(counts.max())) < counts[:, None]
        return BatchEncoding({"input_ids": torch.zeros_like(mask, dtype=torch.int64), "attention_mask": mask.long()})

    def apply_chat_template(
        self, messages: Sequence, tokenize: bool = True, add_generation_prompt: bool = False, **more: Any
    ) -> str | BatchEncoding:
        chats = messages if isinstance(messages[0], list) else [messages]
        end = "<|im_start|>assistant\n" * add_generation_prompt
        texts = ["".join(map(_message, chat)) + end for chat in chats]
        return self(texts, **more) if tokenize else texts[0]


def _message(message: dict) -> str:
    return f"<|im_start|>{message['role']}\n{' '.join(_texts(message['content']))}<|im_end|>\n"


def _texts(content: Any) -> Iterator[str]:
    """Of a message's content, which may be a list of parts."""
    if isinstance(content, str):
        yield content
    else:
        yield from (part["text"] for part in content if "text" in part)
