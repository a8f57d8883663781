"""Checkpoints of reward models in their published layouts, tiny and random: for tests and benchmarks of the real loading code.

Each function takes the folder or file to write and returns it. Sizes may be given, up to those of the published models.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path

import torch

from comfyui_otca.trainer.networks.published import pillow_processor

SHAPES_CLIP = Path(__file__).resolve().parents[2] / "assets" / "shapes-clip"
IMAGE = 32


def clip(
    folder: Path,
    projection: int = 768,
    text: tuple[int, int, int] = (32, 2, 2),
    vision: tuple[int, int, int] = (32, 2, 2),
    patch: int = 8,
    image: int = IMAGE,
    vocabulary: int | None = None,
    processor: bool = True,
) -> Path:
    """A transformers CLIP folder, with the tokenizer of shapes-clip; `text` and `vision` are width, layers and heads."""
    from transformers import CLIPConfig, CLIPModel

    count = vocabulary or _vocabulary()
    tokens = dict(vocab_size=count, bos_token_id=count - 2, eos_token_id=count - 1, pad_token_id=count - 1)
    text_config = _tower(*text, projection) | tokens
    vision_config = _tower(*vision, projection) | dict(image_size=image, patch_size=patch)
    with _seeded():
        model = CLIPModel(CLIPConfig(text_config=text_config, vision_config=vision_config, projection_dim=projection))
        for parameter in model.parameters():  # fresh weights are so small that all pictures look alike to them
            parameter.data += torch.randn_like(parameter) / max(parameter.shape[-1:] or [400]) ** 0.5 / 4
    model.save_pretrained(folder)
    if processor:
        clip_tokenizer(folder, count)
        crop = {"height": image, "width": image}
        pillow_processor("CLIPImageProcessor")(size={"shortest_edge": image}, crop_size=crop).save_pretrained(folder)
    return folder


def _tower(width: int, layers: int, heads: int, projection: int) -> dict:
    return dict(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        projection_dim=projection,
    )


def clip_tokenizer(folder: Path, vocabulary: int | None = None) -> Path:
    """The tokenizer of shapes-clip. With `vocabulary` (CLIP's own: 49,408), of that size; start and end stay the last tokens."""
    content = json.loads((SHAPES_CLIP / "tokenizer.json").read_text())
    words = content["model"]["vocab"]
    ends = [token["content"] for token in content["added_tokens"]]
    for name in ends:
        del words[name]
    count = vocabulary or _vocabulary()
    words |= {f"unused {number}": number for number in range(len(words), count - len(ends))}
    for token in content["added_tokens"]:
        words[token["content"]] = token["id"] = count - len(ends) + ends.index(token["content"])
    content["post_processor"] |= {part: [name, words[name]] for part, name in zip(("cls", "sep"), ends, strict=True)}
    content["padding"] |= {"pad_id": words[ends[-1]]}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    shutil.copy(SHAPES_CLIP / "tokenizer_config.json", folder)
    return folder


def pickscore(folder: Path, **size) -> Path:
    """A CLIP folder without tokenizer and preprocessor_config.json, as the authors' own code expects it."""
    return clip(folder, **{"projection": 64, "processor": False, **size})


def aesthetic(file: Path, inputs: int = 768) -> Path:
    with _seeded():
        torch.save(_head("layers.", inputs), file)
    return file


def hps(
    file: Path,
    width: int = 64,
    text_width: int = 32,
    layers: int = 2,
    text_layers: int = 2,
    projection: int = 48,
    patch: int = 8,
    image: int = IMAGE,
    vocabulary: int | None = None,
) -> Path:
    """open_clip's layout under `state_dict`."""
    with _seeded():
        state = {
            "logit_scale": torch.tensor(4.6),
            "visual.class_embedding": _random(width),
            "visual.positional_embedding": _random((image // patch) ** 2 + 1, width),
            "visual.conv1.weight": _random(width, 3, patch, patch),
            "visual.proj": _random(width, projection),
            "token_embedding.weight": _random(vocabulary or _vocabulary(), text_width),
            "positional_embedding": _random(77, text_width),
            "text_projection": _random(text_width, projection),
            **_norm("visual.ln_pre", width),
            **_norm("visual.ln_post", width),
            **_norm("ln_final", text_width),
        }
        for tower, size, depth in (("visual.", width, layers), ("", text_width, text_layers)):
            for number in range(depth):
                block = f"{tower}transformer.resblocks.{number}."
                state |= {
                    **_norm(block + "ln_1", size),
                    **_norm(block + "ln_2", size),
                    block + "attn.in_proj_weight": _random(3 * size, size),
                    block + "attn.in_proj_bias": _random(3 * size),
                    **_linear(block + "attn.out_proj", size, size),
                    **_linear(block + "mlp.c_fc", size, 4 * size),
                    **_linear(block + "mlp.c_proj", 4 * size, size),
                }
    torch.save({"state_dict": state}, file)
    return file


def image_reward(
    folder: Path,
    width: int = 128,
    layers: int = 2,
    text_layers: int = 2,
    inner: int = 256,
    patch: int = 8,
    image: int = IMAGE,
    vocabulary: int = 0,
) -> Path:
    """ImageReward.pt, med_config.json, and a tokenizer in `bert-base-uncased`. The text is as wide as the head reads."""
    tokenizer = bert_tokenizer(folder / "bert-base-uncased", vocabulary)
    count = len((tokenizer / "vocab.txt").read_text().splitlines()) + 2  # [DEC] and [ENC], which BLIP adds
    text_width, positions = 768, 512
    config = _med_config(text_width, inner, positions, text_layers, count)
    (folder / "med_config.json").write_text(json.dumps(config))
    vision, text = "blip.visual_encoder.", "blip.text_encoder."
    with _seeded():
        state = {
            vision + "cls_token": _random(1, 1, width),
            vision + "pos_embed": _random(1, (image // patch) ** 2 + 1, width),
            vision + "patch_embed.proj.weight": _random(width, 3, patch, patch),
            vision + "patch_embed.proj.bias": _random(width),
            **_norm(vision + "norm", width),
            text + "embeddings.position_ids": torch.arange(positions)[None],
            text + "embeddings.word_embeddings.weight": _random(count, text_width),
            text + "embeddings.position_embeddings.weight": _random(positions, text_width),
            **_norm(text + "embeddings.LayerNorm", text_width),
            **_linear("blip.vision_proj", width, 256),
            **_linear("blip.text_proj", text_width, 256),
            **_head("mlp.layers.", text_width),
        }
        for number in range(layers):
            state |= _blip_vision_block(f"{vision}blocks.{number}.", width)
        for number in range(text_layers):
            state |= _blip_text_block(f"{text}encoder.layer.{number}.", text_width, width, inner)
    torch.save(state, folder / "ImageReward.pt")
    return folder


def _med_config(width: int, inner: int, positions: int, layers: int, vocabulary: int) -> dict:
    """Of BLIP's text encoder."""
    return dict(
        architectures=["BertModel"],
        attention_probs_dropout_prob=0.1,
        hidden_act="gelu",
        hidden_dropout_prob=0.1,
        hidden_size=width,
        intermediate_size=inner,
        layer_norm_eps=1e-12,
        max_position_embeddings=positions,
        num_attention_heads=12,
        num_hidden_layers=layers,
        pad_token_id=0,
        vocab_size=vocabulary,
        encoder_width=768,
        add_cross_attention=True,
    )


def _blip_vision_block(block: str, width: int) -> dict[str, torch.Tensor]:
    return {
        **_norm(block + "norm1", width),
        **_norm(block + "norm2", width),
        **_linear(block + "attn.qkv", width, 3 * width),
        **_linear(block + "attn.proj", width, width),
        **_linear(block + "mlp.fc1", width, 4 * width),
        **_linear(block + "mlp.fc2", 4 * width, width),
    }


def _blip_text_block(block: str, width: int, vision_width: int, inner: int) -> dict[str, torch.Tensor]:
    state = {}
    for attention, seen in (("attention", width), ("crossattention", vision_width)):
        state |= _linear(f"{block}{attention}.self.query", width, width)
        state |= _linear(f"{block}{attention}.self.key", seen, width)
        state |= _linear(f"{block}{attention}.self.value", seen, width)
        state |= _linear(f"{block}{attention}.output.dense", width, width)
        state |= _norm(f"{block}{attention}.output.LayerNorm", width)
    state |= _linear(block + "intermediate.dense", width, inner)
    state |= _linear(block + "output.dense", inner, width)
    state |= _norm(block + "output.LayerNorm", width)
    return state


def bert_tokenizer(folder: Path, vocabulary: int = 0) -> Path:
    """WordPiece over letters and a few words, and at least `vocabulary` tokens, in the files of bert-base-uncased."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"a an red green blue circle square on background".split()]
    words = list(dict.fromkeys([*words, *letters, *("##" + letter for letter in letters)]))
    words += [f"[unused{number}]" for number in range(vocabulary - len(words))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    settings = {"do_lower_case": True, "model_max_length": 512, "tokenizer_class": "BertTokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@contextlib.contextmanager
def _seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def _vocabulary() -> int:
    tokenizer = json.loads((SHAPES_CLIP / "tokenizer.json").read_text())
    return len(tokenizer["model"]["vocab"])


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape) / max(shape[-1], 4) ** 0.5


def _linear(name: str, inputs: int, outputs: int) -> dict[str, torch.Tensor]:
    return {f"{name}.weight": _random(outputs, inputs), f"{name}.bias": 0.1 * torch.randn(outputs)}


def _norm(name: str, width: int) -> dict[str, torch.Tensor]:
    return {f"{name}.weight": 1 + 0.1 * torch.randn(width), f"{name}.bias": 0.1 * torch.randn(width)}


def _head(prefix: str, inputs: int) -> dict[str, torch.Tensor]:
    state = {}
    widths = {0: (inputs, 1024), 2: (1024, 128), 4: (128, 64), 6: (64, 16), 7: (16, 1)}  # between them is dropout
    for layer, pair in widths.items():
        state |= _linear(f"{prefix}{layer}", *pair)
    return state
