"""Every family is rehearsed by its own methods: prompts of known length become embeddings of known shape.

What stands for a tokenizer makes as many tokens as the real ones do.
"""

from __future__ import annotations

import pytest
import torch

from comfyui_otca.tests.tiny import models as tiny
from comfyui_otca.trainer.memory import blueprint
from comfyui_otca.trainer.memory.meta import Words
from comfyui_otca.trainer.memory.rehearsal import Call, Rehearsal
from comfyui_otca.trainer.policy.adapters import Adapter

BEFORE = 34  # tokens of the template before the prompt, by Qwen's tokenizer: diffusers' pipeline drops as many
LIMIT = 24  # tokens, fewer than the usual prompt has
# Of one row, by hand: SD3 has CLIP's 77 tokens before; FLUX.2 and Krea 2 take three layers of the encoder, whose width is 32.
TOKENS = {
    "sd3": (77 + LIMIT, 64),
    "wan22": (LIMIT, 32),
    "wan22-5b": (LIMIT, 32),
    "wan22-i2v": (LIMIT, 32),
    "z-image": (LIMIT, 32),
    "qwen-image": (LIMIT, 32),
    "flux2-klein-base": (LIMIT, 3 * 32),
    "flux2-dev": (LIMIT, 3 * 32),
    "krea2": (LIMIT, 3, 32),
}


@pytest.fixture
def rehearsal(tiny_folder):
    def of(family, **options):
        folder = tiny_folder(family)
        return Rehearsal(blueprint.of_folder(folder), torch.float32, Adapter(2, 2.0), **options)

    return of


@pytest.mark.parametrize("family", TOKENS)
def test_every_family_embeds_prompts_on_the_meta_device(rehearsal, family):
    found = rehearsal(family, max_sequence_length=LIMIT)
    call = Call(2, 64, 64, 5 if "wan" in family else 1, guided=found.rules.guidance is not None)
    tensors = found._condition(call).tensors
    assert tensors["tokens"].shape == (2, *TOKENS[family]) and tensors["tokens"].is_meta
    assert ("negative_tokens" in tensors) == (family != "flux2-dev"), "whose guidance is a number"
    assert found.encoding(2) > found.encoding(1) > 0
    if family == "wan22-i2v":  # 4 channels of a mask and 16 of the picture, for each of its two latent frames
        assert tensors["first"].shape == (2, 20, 2, 8, 8)
    # its picture is a video of five frames to the autoencoder, three numbers of float32 a pixel
    assert (found.pictures(call) > 5 * 64 * 64 * 3 * 4) == (family == "wan22-i2v")


def test_a_block_more_is_a_block_more(rehearsal, monkeypatch):
    """Of blocks of one kind three are called at most: five keep what four keep and what the fifth keeps, to the byte."""
    made = tiny.z_image

    def deeper(layers):
        def pipeline():
            made_one = made()
            config = dict(made_one.transformer.config) | {"n_layers": layers}
            made_one.register_modules(transformer=type(made_one.transformer).from_config(config))
            return made_one

        return pipeline

    kept = []
    for layers in (2, 3, 5):
        monkeypatch.setitem(tiny.FAMILIES, f"z-image-{layers}", deeper(layers))
        kept.append(rehearsal(f"z-image-{layers}").graph(Call(1, 32, 32)).kept)
    assert kept[2] - kept[1] == 2 * (kept[1] - kept[0]) > 0


def test_the_template_of_qwen_image_has_its_34_tokens():
    before = (
        "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
        "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n"
    )
    assert Words(100)(before)["input_ids"].shape == (1, BEFORE)


def test_rows_are_padded_and_cut():
    made = Words(5)(["one, two", "a b c d e f g"])
    assert made["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], "the longest, and 5 at most"
    made = Words(77)("one, two", padding="max_length", max_length=4, truncation=True, return_tensors="pt")
    assert made.input_ids.shape == (1, 4) and made.attention_mask.tolist() == [[1, 1, 1, 0]]


def test_chats():
    chat = [{"role": "user", "content": "one two"}]
    text = Words(77).apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>user\none two<|im_end|>\n<|im_start|>assistant\n"
    parts = [{"role": "user", "content": [{"type": "text", "text": "one two"}]}]
    made = Words(77).apply_chat_template([parts, parts], padding="max_length", max_length=9)
    assert made["attention_mask"].sum(1).tolist() == [7, 7], "start, user, line, one, two, end, line"
