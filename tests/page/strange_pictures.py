"""Files as strangers make them, that end like pictures: the same each time."""

from __future__ import annotations

import functools
import io
import json
import random
import struct
import zlib

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

SCRIPT = '<img src=x onerror="window.hacked = 1"><script>window.hacked = 1</script>'


def graph(prompt="a cat", seed=7, **more):
    """A graph of ComfyUI's nodes in API form, and what a Save Image needs."""
    nodes = {
        "3": (
            "KSampler",
            {"seed": seed, "model": ["10", 0], "positive": ["6", 0], "negative": ["7", 0], "latent_image": ["5", 0]},
        ),
        "4": ("CheckpointLoaderSimple", {"ckpt_name": "base.safetensors"}),
        "5": ("EmptyLatentImage", {"width": 64, "height": 64, "batch_size": 1}),
        "6": ("CLIPTextEncode", {"text": prompt, "clip": ["4", 1]}),
        "7": ("CLIPTextEncode", {"text": "blurry", "clip": ["4", 1]}),
        "8": ("VAEDecode", {"samples": ["3", 0], "vae": ["4", 2]}),
        "9": ("SaveImage", {"filename_prefix": "x", "images": ["8", 0]}),
        "10": ("LoraLoaderModelOnly", {"lora_name": "style.safetensors", "strength_model": 0.8, "model": ["4", 0]}),
    }
    return {name: {"class_type": kind, "inputs": inputs} for name, (kind, inputs) in (nodes | more).items()}


def png(texts=None, seed=0, side=24, pixels=None):
    info = PngInfo()
    for key, text in (texts or {}).items():
        info.add_text(key, text)
    if pixels is None:
        pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    written = io.BytesIO()
    Image.fromarray(pixels).save(written, "PNG", pnginfo=info)
    return written.getvalue()


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def with_chunk(kind, content, seed=0):
    """A PNG with one more chunk before its pixels."""
    whole = png(seed=seed)
    return whole[:33] + chunk(kind, content) + whole[33:]


@functools.cache
def bomb(kind=b"zTXt", size=64 * 1024**2):
    """A text that unpacks to so many bytes."""
    head = b"prompt\0\0" if kind == b"zTXt" else b"prompt\0\1\0\0\0"
    return with_chunk(kind, head + zlib.compress(b" " * size))


def huge():
    """A PNG that says it has 100,000 x 100,000 pixels."""
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0))
        + chunk(b"IDAT", b"")
    )


def animated():
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "green")]
    written = io.BytesIO()
    frames[0].save(written, "WEBP", save_all=True, append_images=frames[1:], duration=100)
    return written.getvalue()


def by_exif(format, tags):
    exif = Image.Exif()
    for tag, text in tags.items():
        exif[tag] = text
    written = io.BytesIO()
    Image.new("RGB", (16, 16), "red").save(written, format, exif=exif)
    return written.getvalue()


VALUES = [
    None,
    True,
    -1,
    2**70,
    1e308,
    "",
    "\ud800",
    "\0",
    SCRIPT,
    [],
    ["3", 0],
    [["3"]],
    {},
    {"lora": 5},
    "x" * 10_000,
    ["3"],
    ["nowhere", 0],
]


def strange(number):
    """(name, content) of the file of that number."""
    chance = random.Random(number)
    kind = number % 12
    if kind == 0:  # wrong types anywhere in the graph
        made = graph()
        for _ in range(chance.randrange(1, 8)):
            node = chance.choice(list(made.values()))
            part = chance.choice([node, node["inputs"]] if isinstance(node.get("inputs"), dict) else [node])
            part[chance.choice([*part, "text", "positive", "x"])] = chance.choice(VALUES)
        content = png({"prompt": json.dumps(made)}, number)
    elif kind == 1:
        content = png({"prompt": json.dumps(graph(SCRIPT)), "parameters": SCRIPT, "workflow": SCRIPT}, number)
    elif kind == 2:
        content = png({"prompt": chance.choice(["[", '{"a":']) * chance.choice([99, 101, 100_000])}, number)
    elif kind == 3:  # cut short
        whole = png({"prompt": json.dumps(graph())}, number)
        content = whole[: chance.randrange(len(whole))]
    elif kind == 4:  # bytes exchanged
        whole = bytearray(
            chance.choice(
                [
                    png({"prompt": json.dumps(graph())}, number),
                    by_exif("JPEG", {0x0110: "prompt:" + json.dumps(graph())}),
                    animated(),
                ]
            )
        )
        for _ in range(chance.randrange(1, 20)):
            whole[chance.randrange(len(whole))] = chance.randrange(256)
        content = bytes(whole)
    elif kind == 5:
        content = bomb(chance.choice([b"zTXt", b"iTXt"]), 64 * 1024**2)
    elif kind == 6:
        content = chance.choice(
            [b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8", b"RIFF\0\0\0\0WEBP", huge(), b"<svg onload=alert(1)>", b"GIF89a"]
        )
    elif kind == 7:
        content = by_exif(
            chance.choice(["WEBP", "JPEG"]),
            {
                chance.choice([0x010E, 0x010F, 0x0110]): chance.choice(
                    ["prompt:" + json.dumps(graph()), "prompt:{", "Workflow:" + "[" * 500, SCRIPT]
                )
            },
        )
    elif kind == 8:
        content = png(
            {
                "parameters": f"{SCRIPT} <lora:{'x' * chance.randrange(1000)}:1>\nNegative prompt: n\n"
                f"Steps: 20, Seed: {'9' * chance.randrange(1, 60)}, Model: {SCRIPT}"
            },
            number,
        )
    elif kind == 9:
        content = animated()
    elif kind == 10:  # links in a ring, and to nodes that are not there
        ring = {
            str(one): {
                "class_type": "CLIPTextEncode",
                "inputs": {"text": [str((one + 1) % 50), 0], "positive": [str(one - 1), 0]},
            }
            for one in range(50)
        }
        content = png(
            {"prompt": json.dumps(graph() | ring | {"6": {"class_type": "X", "inputs": {"text": ["7", 0]}}})}, number
        )
    else:
        content = with_chunk(
            b"tEXt",
            b"prompt\0"
            + json.dumps(
                {"1": {"class_type": "x", "inputs": {"text": "y" * chance.choice([100, 5 * 1024**2])}}}
            ).encode(),
            number,
        )
    names = [
        f"{number}.png",
        f"{number} 花 'x'.png",
        f"{number}&amp;<b>.webp",
        f"{number}\u202egnp.jpg",
        f"{number}#%2e.jpeg",
    ]
    return names[number % 5], content
