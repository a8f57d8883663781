"""Checkpoints of the video rewards with random weights, in the layouts in which they are published: for tests of the real
loading code. A second to make."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parents[2] / "assets"
RANK, ALPHA = 4, 8
FIGURES = {"VQ_mean": 0.5, "VQ_std": 2.0, "MQ_mean": -0.25, "MQ_std": 0.5, "TA_mean": 0.125, "TA_std": 4.0}
ADAPTED = [
    f"model.layers.{layer}.{part}"
    for layer in range(2)
    for part in ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")
]
PEFT = "base_model.model."  # how peft's names begin

# How Qwen2 cuts a text into words.
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def video_align(folder: Path, *, layout: str = "full", output_dim: int = 1, seed: int = 0) -> Path:
    """KlingTeam/VideoReward as `folder`/VideoReward, and the Qwen2-VL that it was trained from as `folder`/Qwen2-VL.

    `layout`: full (checkpoint-N/model.pth, as peft names its parts), adapter (checkpoint-N/adapter_model.safetensors and
        non_lora_state_dict.pth), or merged (one folder with everything, as transformers names it now).
    `output_dim`: rows of rm_head: 1, or 3 of which the diagonal counts.

    Returns:
        The checkpoint's folder.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _video_align(folder, layout, output_dim)


def _video_align(folder: Path, layout: str, output_dim: int) -> Path:
    from transformers import Qwen2VLConfig, Qwen2VLModel

    checkpoint, base = folder / "VideoReward", folder / "Qwen2-VL"
    model_folder = checkpoint if layout == "merged" else base
    tokenizer = _qwen_tokenizer(model_folder)
    config = _qwen_config(tokenizer)
    (model_folder / "config.json").write_text(json.dumps(config))
    network = _awake(Qwen2VLModel(Qwen2VLConfig(**config)))
    weights = {_published(name): tensor for name, tensor in network.state_dict().items()}
    kept = tokenizer.get_vocab_size() + 3  # the reference cuts the embedding to the tokenizer's words and its own three
    trained = {
        "rm_head.weight": torch.randn(output_dim, config["hidden_size"]),
        "model.embed_tokens.weight": weights["model.embed_tokens.weight"][:kept] + 0.1,
        "visual.merger.mlp.2.bias": weights["visual.merger.mlp.2.bias"] + 0.1,
    }
    lora = {}
    for name in ADAPTED:
        out, into = weights[f"{name}.weight"].shape
        lora[f"{name}.lora_A"], lora[f"{name}.lora_B"] = torch.randn(RANK, into) * 0.2, torch.randn(out, RANK) * 0.2

    checkpoint.mkdir(exist_ok=True, parents=True)
    (checkpoint / "model_config.json").write_text(json.dumps(_video_align_settings(output_dim)))
    if layout == "merged":
        merged = _with_lora(weights | trained, lora)
        _save({_since_4_52(name): tensor for name, tensor in merged.items()}, checkpoint / "model.safetensors")
        return checkpoint
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    _save(weights, base / "model.safetensors")
    step = checkpoint / "checkpoint-11352"
    step.mkdir(exist_ok=True)
    (checkpoint / "checkpoint-900").mkdir(exist_ok=True)  # an earlier one, to be passed over
    if layout == "adapter":
        adapter = {f"{PEFT}{name}.weight": tensor for name, tensor in lora.items()}
        _save(adapter, step / "adapter_model.safetensors")
        torch.save({PEFT + name: tensor for name, tensor in trained.items()}, step / "non_lora_state_dict.pth")
    else:
        whole = weights | trained | {"lm_head.weight": trained["model.embed_tokens.weight"].clone()}
        torch.save(_as_peft_names(whole, lora), step / "model.pth")
    return checkpoint


def _video_align_settings(output_dim: int) -> dict:
    """As model_config.json holds them."""
    return {
        "data_config": {
            "max_frame_pixels": 448 * 448,
            "num_frames": None,
            "fps": 2.0,
            "eval_dim": ["VQ", "MQ", "TA"],
            "prompt_template_type": "detailed_special",
            "sample_type": "uniform",
        },
        "model_config": {"output_dim": output_dim, "use_special_tokens": True, "reward_token": "special"},
        "peft_lora_config": {"lora_enable": True, "lora_r": RANK, "lora_alpha": ALPHA, "use_rslora": False},
        "inference_config": FIGURES,
    }


def _with_lora(weights: dict[str, torch.Tensor], lora: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    merged = dict(weights)
    for name in ADAPTED:
        change = ALPHA / RANK * lora[f"{name}.lora_B"] @ lora[f"{name}.lora_A"]
        merged[f"{name}.weight"] = merged[f"{name}.weight"] + change
    return merged


def _as_peft_names(weights: dict[str, torch.Tensor], lora: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The weights and biases of adapted modules move into a `base_layer`, beside which the adapter stands."""
    named = {}
    for name, tensor in weights.items():
        module, _, part = name.rpartition(".")
        named[f"{PEFT}{module}.base_layer.{part}" if module in ADAPTED else PEFT + name] = tensor
    return named | {f"{PEFT}{name}.default.weight": tensor for name, tensor in lora.items()}


def _qwen_config(tokenizer: Tokenizer) -> dict:
    """The flat config.json of Qwen2-VL-2B-Instruct, made small."""
    return {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        "bos_token_id": tokenizer.token_to_id("<|endoftext|>"),
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
        "vision_start_token_id": tokenizer.token_to_id("<|vision_start|>"),
        "vision_end_token_id": tokenizer.token_to_id("<|vision_end|>"),
        "image_token_id": tokenizer.token_to_id("<|image_pad|>"),
        "video_token_id": tokenizer.token_to_id("<|video_pad|>"),
        "vocab_size": tokenizer.get_vocab_size() + 20,  # larger than the tokenizer's, as there
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
        "use_sliding_window": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vision_config": {
            "depth": 2,
            "embed_dim": 32,
            "mlp_ratio": 2,
            "num_heads": 2,
            "in_chans": 3,
            "hidden_size": 32,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
    }


def _qwen_tokenizer(folder: Path) -> Tokenizer:
    words = "endoftext im_start im_end vision_start vision_end vision_pad image_pad video_pad".split()
    tokenizer = _byte_level("video_align.txt")
    tokenizer.add_special_tokens([AddedToken(f"<|{word}|>", special=True, normalized=False) for word in words])
    settings = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return _saved(tokenizer, folder, settings)


def video_score(folder: Path, *, seed: int = 0) -> Path:
    """TIGER-Lab/VideoScore-v1.1 as `folder`/VideoScore-v1.1: two shards, `model.…` and `score.…`. Returns it."""
    from transformers import Idefics2Config, Idefics2Model

    checkpoint = folder / "VideoScore-v1.1"
    config = _idefics2_config(_mistral_tokenizer(checkpoint))
    (checkpoint / "config.json").write_text(json.dumps(config))
    (checkpoint / "preprocessor_config.json").write_text(json.dumps(IDEFICS2_IMAGES))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = _awake(Idefics2Model(Idefics2Config.from_pretrained(checkpoint)))
        weights = {f"model.{name}": tensor for name, tensor in network.state_dict().items()}
        weights |= {"score.weight": torch.randn(5, 32), "score.bias": torch.randn(5)}
    names = sorted(weights)
    for number, half in enumerate((names[::2], names[1::2]), start=1):
        _save({name: weights[name] for name in half}, checkpoint / f"model-0000{number}-of-00002.safetensors")
    return checkpoint


def _mistral_tokenizer(folder: Path) -> Tokenizer:
    words = ["<s>", "</s>", "<unk>", "<fake_token_around_image>", "<image>", "<end_of_utterance>"]
    tokenizer = _byte_level("video_score.txt")
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in words])
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<unk>",
        "padding_side": "left",
    }
    return _saved(tokenizer, folder, settings)


def _idefics2_config(tokenizer: Tokenizer) -> dict:
    """The config.json of VideoScore-v1.1, made small."""
    return {
        "architectures": ["Idefics2ForSequenceClassification"],
        "model_type": "idefics2",
        "image_token_id": tokenizer.token_to_id("<image>"),
        "pad_token_id": tokenizer.token_to_id("<unk>"),
        "num_labels": 5,
        "problem_type": "regression",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vision_config": {
            "model_type": "idefics2",
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "image_size": 70,
            "patch_size": 14,
        },
        "perceiver_config": {
            "model_type": "idefics2",
            "hidden_size": 32,
            "resampler_n_latents": 4,
            "resampler_depth": 1,
            "resampler_n_heads": 2,
            "resampler_head_dim": 16,
            "num_key_value_heads": 1,
        },
        "text_config": {
            "model_type": "mistral",
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "pad_token_id": tokenizer.token_to_id("<unk>"),
            "sliding_window": 4096,
        },
    }


IDEFICS2_IMAGES = {  # VideoScore's preprocessor_config.json, made small
    "image_processor_type": "Idefics2ImageProcessor",
    "processor_class": "Idefics2Processor",
    "do_convert_rgb": True,
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_pad": True,
    "do_image_splitting": False,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "resample": 2,
    "rescale_factor": 1 / 255,
    "size": {"longest_edge": 70, "shortest_edge": 28},
}


def _byte_level(prompt: str) -> Tokenizer:
    """Merges learned on the prompt, so that it is a few hundred tokens; any other text is spelled out."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    text = (ROOT / "reward_prompts" / prompt).read_text(encoding="utf-8")
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def _saved(tokenizer: Tokenizer, folder: Path, settings: dict) -> Tokenizer:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer.model.save(str(folder))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer


def _published(name: str) -> str:
    """As transformers before 4.52 called Qwen2-VL's parts, and the published files still do."""
    return name.replace("language_model.", "model.", 1)


def _since_4_52(name: str) -> str:
    if name.startswith("visual."):
        return f"model.{name}"
    return name.replace("model.", "model.language_model.", 1)


def _awake(network):
    """Networks whose norms and biases say something, and whose outputs differ."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return network.eval()


def _save(tensors: dict[str, torch.Tensor], file: Path) -> None:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file, {"format": "pt"})
