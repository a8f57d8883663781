"""A vision-language model so small that it is trained in seconds, and answers as large ones do: for tests and the benchmark.

It looks at pictures of one shade. Asked how bright one is, it answers with a number from 0 to 10; asked anything else it
answers in prose.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

IMAGE, PATCH = 16, 8
LEVELS = (0, 5, 10)  # the tenths of brightness that it learns
NUMBERS = [str(number) for number in range(11)]
PROSE = "this is a picture"
WORDS = ["<pad>", "<s>", "</s>", "<unk>", "<image>", "bright", "?", "answer", *PROSE.split(), *NUMBERS]
QUESTIONS = ("How bright is it?", "What is it?")
TEMPLATE = (
    "{{ '<s>' }}{% for message in messages %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %} answer{% endif %}"
)


def answer(question: str, level: int) -> str:
    """What it learns to say of a picture whose brightness is `level` tenths."""
    return NUMBERS[level] if question == QUESTIONS[0] else PROSE


def shade(level: int):
    """A picture of that brightness."""
    from PIL import Image

    return Image.new("RGB", (IMAGE, IMAGE), (round(level * 25.5),) * 3)


def vlm(folder: Path, instruction: str, steps: int = 120) -> Path:
    """A LLaVA folder in transformers' layout. `instruction`: what follows every question, as the judge writes it."""
    processor = _processor()
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = _model()
        pairs = [(question, level) for question in QUESTIONS for level in LEVELS]
        batch = _batch(processor, pairs, instruction)
        # The tower normalises what it sees, so a shade shows only beside positions of like size.
        embeddings = model.model.vision_tower.embeddings
        torch.nn.init.normal_(embeddings.position_embedding.weight)
        torch.nn.init.normal_(embeddings.patch_embedding.weight, std=1 / 14)
        optimizer = torch.optim.AdamW(model.parameters(), 4e-3)
        for _ in range(steps):
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    model.eval().save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def _processor():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import CLIPImageProcessorPil, LlavaProcessor, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    names: dict[str, Any] = dict(pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    size = {"height": IMAGE, "width": IMAGE}
    return LlavaProcessor(
        CLIPImageProcessorPil(size={"shortest_edge": IMAGE}, crop_size=size),
        PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, **names, additional_special_tokens=["<image>"], padding_side="left"
        ),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
        num_additional_image_tokens=1,
    )


def _model():
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    size: dict[str, Any] = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
    ends: dict[str, Any] = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
    model = LlavaForConditionalGeneration(
        LlavaConfig(
            vision_config=CLIPVisionConfig(**size, image_size=IMAGE, patch_size=PATCH),
            text_config=LlamaConfig(**size, vocab_size=len(WORDS), **ends),
            image_token_index=WORDS.index("<image>"),
            vision_feature_layer=-1,
            **ends,
        )
    )
    for name, value in ends.items():
        setattr(model.generation_config, name, value)
    return model


def _batch(processor, pairs, instruction: str) -> dict[str, torch.Tensor]:
    """Every question about every picture, with its answer; only the answer's tokens are learned."""
    asked, whole = [], []
    for question, level in pairs:
        content = [{"type": "image"}, {"type": "text", "text": f"{question}\n{instruction}"}]
        text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
        asked.append(text)
        whole.append(f"{text} {answer(question, level)} </s>")
    pictures = [shade(level) for _, level in pairs]
    batch = processor(images=pictures, text=whole, padding=True, return_tensors="pt")
    labels = batch["input_ids"].clone()
    answers = [len(processor.tokenizer(answer(*pair)).input_ids) + 1 for pair in pairs]
    for row, count in zip(labels, answers, strict=True):
        row[: len(row) - count] = -100
    return {**batch, "labels": labels}
