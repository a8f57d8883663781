"""Tokenizers that the user's ComfyUI has, for folders that only describe a model (`assets/configurations`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...host import comfyui
from .options import FlowModelError

NOTE = "comfyui.json"  # in a tokenizer's folder: its `kind`, of KINDS, is all that there is
# As Z-Image's pipeline asks for it. Qwen-Image's writes its own, and ComfyUI's file has one that adds a system prompt.
QWEN_CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# By kind: where ComfyUI has it, a file of it, the class in transformers and what that is told.
KINDS: dict[str, tuple[str, str, str, dict]] = {
    "clip_l": ("comfy/sd1_tokenizer", "vocab.json", "CLIPTokenizer", {"model_max_length": 77}),
    "clip_g": ("comfy/sd1_tokenizer", "vocab.json", "CLIPTokenizer", {"model_max_length": 77, "pad_token": "!"}),
    "t5": ("comfy/text_encoders/t5_tokenizer", "tokenizer.json", "T5TokenizerFast", {"model_max_length": 512}),
    "qwen": ("comfy/text_encoders/qwen25_tokenizer", "vocab.json", "Qwen2Tokenizer", {"chat_template": QWEN_CHAT}),
}


def is_comfyuis(folder: Path) -> bool:
    return (folder / NOTE).is_file()


def find(folder: Path) -> tuple[Path, str, dict]:
    """ComfyUI's folder for a tokenizer's, the class and its options. Raises FlowModelError where it is not there."""
    try:
        kind = json.loads((folder / NOTE).read_text(encoding="utf-8"))["kind"]
        place, file, name, options = KINDS[kind]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise FlowModelError(
            f"{folder / NOTE} names none of {', '.join(KINDS)}. Fix: copy that folder again"
        ) from error
    own = comfyui.folder()
    if own is None or not (own / place / file).is_file():
        where = "no ComfyUI was found" if own is None else f"{own / place} lacks {file}"
        raise FlowModelError(
            f"{folder.parent.name} takes its {folder.name} from ComfyUI, and {where}. Fix: set COMFYUI_PATH to the folder of a "
            f"whole ComfyUI, or use the model's own diffusers folder"
        )
    return own / place, name, options


def load(folder: Path) -> Any:
    """The tokenizer that a folder's note names, from ComfyUI's files."""
    import transformers

    place, name, options = find(folder)
    return getattr(transformers, name).from_pretrained(place, local_files_only=True, trust_remote_code=False, **options)
