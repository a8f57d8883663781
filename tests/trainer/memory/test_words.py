"""What stands for a tokenizer makes as many tokens as the real ones do."""

from __future__ import annotations

from comfyui_otca.trainer.memory.words import Words

BEFORE = 34  # tokens of the template before the prompt, by Qwen's tokenizer: diffusers' pipeline drops as many


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
