"""Makes the files of a template of a real model: true shapes and layouts, seeded random weights, from ComfyUI's own classes.

    PYTHON -m comfyui_otca.tools.true_size COMFYUI FOLDER TEMPLATE … [--blocks N] [--encoder-layers N]
        (PYTHON: the one that starts COMFYUI)

FOLDER becomes what ComfyUI takes as `--base-directory`. A template is the name of one of workflows/api that has ComfyUI's
loaders. `--blocks 3` makes diffusion models of the same width with three blocks, which a small machine can train.
`--encoder-layers 4` makes text encoders of which the other layers are zero: they take as much memory, and no disk. What is there
already stays. All of klein are 20 GB, and the largest tensor is what it takes of memory, but for HPSv2.1: 4 GB.
"""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path

import torch

from ...host import headless_comfyui
from ...host.paths import ASSETS
from ...tests.tiny import rewards
from .networks import ENCODERS, FILES, Weights, empty
from .writing import Entry, entries, write

API = ASSETS.parent / "workflows" / "api"
HPS = "HPS_v2.1_compressed.pt"
HPS_SIZES = dict(width=1280, text_width=1024, layers=32, text_layers=24, projection=1024, patch=14, image=224)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m comfyui_otca.tools.true_size", description=__doc__, formatter_class=raw)
    parser.add_argument("comfyui", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("templates", nargs="+")
    parser.add_argument("--blocks", type=int)
    parser.add_argument("--encoder-layers", type=int)
    args = parser.parse_args()
    headless_comfyui.load(args.comfyui, "cpu")
    for name in [name for template in args.templates for name in named(template)]:
        path = make(name, args.folder / "models", args.blocks, args.encoder_layers)
        print(f"{path}: {path.stat().st_size:,} bytes", flush=True)


def named(template: str) -> list[str]:
    """The files that a template names and this tool makes."""
    graph = json.loads((API / f"{template}.json").read_text(encoding="utf-8"))
    values = [value for node in graph.values() for value in node["inputs"].values() if isinstance(value, str)]
    return [value for value in values if value in FILES or value == HPS]


def make(name: str, models: Path, blocks: int | None = None, layers: int | None = None) -> Path:
    """A file of FILES, or HPSv2.1, in ComfyUI's folder of models."""
    if name == HPS:
        path = models / "otca_rewards" / HPS
        path.parent.mkdir(parents=True, exist_ok=True)
        return path if path.exists() else rewards.hps(path, **HPS_SIZES, vocabulary=49408)
    weights = FILES[name]
    path = models / weights.folder / name
    if not path.exists():
        network = empty(weights, blocks)
        few = layers if weights.folder == ENCODERS else None
        write(path, [*entries(network, weights, layers=few), *_tokenizer(weights)])
    return path


def _tokenizer(weights: Weights) -> list[Entry]:
    """UMT5's file brings its tokenizer along: here one of the letters and some words of our prompts."""
    if weights.name != "UMT5-XXL":
        return []
    import sentencepiece

    lines = (ASSETS / "prompts" / "general.txt").read_text(encoding="utf-8").splitlines()
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=500, pad_id=0, eos_id=1, unk_id=2, bos_id=-1
    )
    content = torch.frombuffer(bytearray(model.getvalue()), dtype=torch.uint8)
    return [Entry("spiece_model", torch.uint8, tuple(content.shape), lambda: content)]


if __name__ == "__main__":
    main()
