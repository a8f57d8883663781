"""Files of published models as headers alone: of the true size, but no block on the disk holds a number."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

BYTES = {"BF16": 2, "F8_E4M3": 1, "F32": 4}
# comfy/ldm/lumina/model.py with Z-Image's numbers: 30 layers and 2 for the picture alone, of width 3840.
WIDTH, LAYERS, PARAMS = 3840, 32, 6_154_908_736
BLOCK = {"attention.qkv": (3 * WIDTH, WIDTH), "attention.out": (WIDTH, WIDTH), "feed_forward.w1": (10240, WIDTH)}


def write(path: Path, shapes: dict[str, tuple[int, ...]], kind: str = "BF16") -> Path:
    """A safetensors file of tensors with these shapes, all of that kind."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + BYTES[kind] * prod(shape)
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [begin, end]}
    written = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(len(written).to_bytes(8, "little") + written)
        file.truncate(8 + len(written) + end)
    return path


def z_image(folder: Path) -> dict[str, Path]:
    """{folder of ComfyUI's models: file} of the files that the template z_image names, in `folder`."""
    blocks = {f"layers.{layer}.{name}.weight": shape for layer in range(LAYERS) for name, shape in BLOCK.items()}
    rest = PARAMS - sum(map(prod, blocks.values()))
    files = {
        "diffusion_models": ("z_image_turbo_bf16", {**blocks, "others": (rest,)}),
        "text_encoders": ("qwen_3_4b", {"model.embed_tokens.weight": (4_022_468_096,)}),
        "vae": ("ae", {"decoder.conv_in.weight": (167_000_000,)}),
    }
    return {kind: write(folder / kind / f"{name}.safetensors", shapes) for kind, (name, shapes) in files.items()}
