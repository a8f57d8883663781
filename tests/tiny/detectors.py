"""Checkpoints of open-vocabulary detectors in their published layouts, tiny and random: for tests and benchmarks.

Each function takes the folder to write and returns it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from ...trainer.networks.published import pillow_processor
from .rewards import SHAPES_CLIP, bert_tokenizer

TEXT_LENGTH = 16  # tokens that OWLv2 reads


def owlv2(folder: Path, width: int = 32, layers: int = 2, patch: int = 8, image: int = 48) -> Path:
    """A transformers OWLv2 folder, with the tokenizer of shapes-clip."""
    from transformers import Owlv2Config, Owlv2ForObjectDetection

    words = json.loads((SHAPES_CLIP / "tokenizer.json").read_text())["model"]["vocab"]
    count = len(words)
    tower: dict[str, Any] = dict(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=max(width // 32, 2),
    )
    text = tower | dict(vocab_size=count, max_position_embeddings=TEXT_LENGTH)
    text |= dict(bos_token_id=count - 2, eos_token_id=count - 1, pad_token_id=count - 1)
    config = Owlv2Config(
        text_config=text, vision_config=tower | dict(image_size=image, patch_size=patch), projection_dim=width
    )
    _saved(Owlv2ForObjectDetection, config, folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(SHAPES_CLIP / name, folder)
    pillow_processor("Owlv2ImageProcessor")(size={"height": image, "width": image}).save_pretrained(folder)
    return folder


def grounding_dino(
    folder: Path, width: int = 32, layers: int = 2, image: int = 64, backbone: int = 8, queries: int = 12
) -> Path:
    """A transformers Grounding DINO folder: Swin and BERT beneath it, as in the published ones."""
    from transformers import BertConfig, GroundingDinoConfig, GroundingDinoForObjectDetection, SwinConfig

    words = len((bert_tokenizer(folder) / "vocab.txt").read_text().splitlines())
    text = BertConfig(
        vocab_size=words, hidden_size=width, num_hidden_layers=1, num_attention_heads=2, intermediate_size=2 * width
    )
    swin: dict[str, Any] = dict(
        embed_dim=backbone, depths=[1] * 4, num_heads=[1] * 4, window_size=4, image_size=image, out_indices=[2, 3, 4]
    )
    config = GroundingDinoConfig(
        backbone_config=SwinConfig(**swin),
        text_config=text,
        d_model=width,
        num_queries=queries,
        max_text_len=32,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=2 * width,
        decoder_ffn_dim=2 * width,
    )
    _saved(GroundingDinoForObjectDetection, config, folder)
    size = {"shortest_edge": image, "longest_edge": 2 * image}
    pillow_processor("GroundingDinoImageProcessor")(size=size).save_pretrained(folder)
    return folder


def _saved(kind, config, folder: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kind(config)
    model.save_pretrained(folder)
