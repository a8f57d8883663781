"""`python -m comfyui_otca.tools.configurations`: folders that describe published models whose weights are single files.

They hold what a diffusers folder says of a model's architecture, from `trainer/memory/published.py`, and nothing of its
makers': no weights, and no tokenizer, which is that of the user's ComfyUI (`trainer/families/tokenizers.py`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..trainer.memory.published import PUBLISHED

FOLDER = Path(__file__).resolve().parents[1] / "assets" / "configurations"
CLIP_AND_T5 = {"tokenizer": "clip_l", "tokenizer_2": "t5"}
THREE = {"tokenizer": "clip_l", "tokenizer_2": "clip_g", "tokenizer_3": "t5"}
TOKENIZERS = {"clip_l": "CLIPTokenizer", "clip_g": "CLIPTokenizer", "t5": "T5TokenizerFast", "qwen": "Qwen2Tokenizer"}
# By the folder's name: what it is published as, and the kinds of its tokenizers.
MODELS = {
    "FLUX.1-dev": ("black-forest-labs/FLUX.1-dev", CLIP_AND_T5),
    "FLUX.1-schnell": ("black-forest-labs/FLUX.1-schnell", CLIP_AND_T5),
    "SD3.5-large": ("stabilityai/stable-diffusion-3.5-large", THREE),
    "SD3.5-medium": ("stabilityai/stable-diffusion-3.5-medium", THREE),
    "Z-Image": ("Tongyi-MAI/Z-Image", {"tokenizer": "qwen"}),
    "Z-Image-Turbo": ("Tongyi-MAI/Z-Image-Turbo", {"tokenizer": "qwen"}),
    "Qwen-Image": ("Qwen/Qwen-Image", {"tokenizer": "qwen"}),
}
# A picture model needs no head that gives words, and ComfyUI's files may lack it.
HEADLESS = {"Qwen2_5_VLForConditionalGeneration": "Qwen2_5_VLModel"}


def contents(name: str) -> dict[str, dict]:
    """A model's files, by their paths in its folder."""
    published, tokenizers = MODELS[name]
    model = PUBLISHED[published]
    kind, levels = model.scheduler
    index: dict[str, Any] = {"_class_name": model.pipeline, **model.settings, "scheduler": ["diffusers", kind]}
    files: dict[str, dict] = {"scheduler/scheduler_config.json": {"_class_name": kind, **levels}}
    for component, (library, whole, config) in model.parts.items():
        kind = HEADLESS.get(whole, whole)
        index[component] = [library, kind]
        named = {"_class_name": kind} if library == "diffusers" else {"architectures": [kind]}
        files[f"{component}/config.json"] = {**named, **config}
    for component, kind in tokenizers.items():
        index[component] = ["transformers", TOKENIZERS[kind]]
        files[f"{component}/comfyui.json"] = {"kind": kind}
    return {"model_index.json": index, **files}


def main() -> None:
    for name in MODELS:
        for path, content in contents(name).items():
            file = FOLDER / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
            print(file)


if __name__ == "__main__":
    main()
