"""Run by ComfyUI's own interpreter, in its folder: puts LoRA files on models of their families by the stock LoraLoader.

Each line of the input is JSON [LoRA file, transformer's config.json]; the answer is a line {"modules": …, "patches": …,
"largest": …, "error": …, "log": [...]}.
"""

import dataclasses
import json
import logging
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path.cwd()))
answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # whatever ComfyUI prints while it is imported is no answer

import comfy.cli_args  # noqa: E402

comfy.cli_args.args.cpu = True

import comfy.model_patcher  # noqa: E402
import comfy.sd  # noqa: E402
import comfy.supported_models  # noqa: E402
import comfy.utils  # noqa: E402
import torch  # noqa: E402
from comfy.ldm.flux.model import FluxParams  # noqa: E402


def flux(config: dict):
    """ComfyUI's Flux with a diffusers transformer's shapes."""
    unet = {
        "image_model": "flux",
        "patch_size": 2,
        "in_channels": config["in_channels"] // 4,  # diffusers counts them after packing 2 x 2 pixels into one
        "out_channels": config["in_channels"] // 4,
        "vec_in_dim": config["pooled_projection_dim"],
        "context_in_dim": config["joint_attention_dim"],
        "hidden_size": config["num_attention_heads"] * config["attention_head_dim"],
        "mlp_ratio": 4.0,
        "num_heads": config["num_attention_heads"],
        "depth": config["num_layers"],
        "depth_single_blocks": config["num_single_layers"],
        "axes_dim": config["axes_dims_rope"],
        "theta": 10000,
        "qkv_bias": True,
        "guidance_embed": config["guidance_embeds"],
    }
    if "txt_ids_dims" in {field.name for field in dataclasses.fields(FluxParams)}:
        unet["txt_ids_dims"] = []
    model = comfy.supported_models.Flux(unet)
    model.set_inference_dtype(torch.float32, None)
    return model.get_model({}, "", device="cpu")


def stable_diffusion_3(config: dict):
    """ComfyUI's MMDiT, whose width is 64 · depth, as it detects it from a checkpoint."""
    width = config["num_attention_heads"] * config["attention_head_dim"]
    unet = {
        "in_channels": config["in_channels"],
        "out_channels": config["out_channels"],
        "patch_size": config["patch_size"],
        "depth": config["num_layers"],
        "input_size": None,
        "adm_in_channels": config["pooled_projection_dim"],
        "context_size": config["joint_attention_dim"],
        "context_embedder_config": {
            "target": "torch.nn.Linear",
            "params": {"in_features": config["joint_attention_dim"], "out_features": width},
        },
        "num_patches": config["pos_embed_max_size"] ** 2,
        "pos_embed_max_size": config["pos_embed_max_size"],
        "pos_embed_scaling_factor": None,
        "qk_norm": "rms",
        "x_block_self_attn_layers": list(config["dual_attention_layers"]),
    }
    model = comfy.supported_models.SD3(unet)
    model.set_inference_dtype(torch.float32, None)
    return model.get_model({}, "", device="cpu")


def wan(config: dict):
    unet = {
        "image_model": "wan2.1",
        "model_type": "t2v",
        "patch_size": tuple(config["patch_size"]),
        "in_dim": config["in_channels"],
        "out_dim": config["out_channels"],
        "dim": config["num_attention_heads"] * config["attention_head_dim"],
        "ffn_dim": config["ffn_dim"],
        "freq_dim": config["freq_dim"],
        "text_dim": config["text_dim"],
        "num_heads": config["num_attention_heads"],
        "num_layers": config["num_layers"],
    }
    model = comfy.supported_models.WAN21_T2V(unet)
    model.set_inference_dtype(torch.float32, None)
    return model.get_model({}, "", device="cpu")


def z_image(config: dict):
    unet = {
        "image_model": "lumina2",
        "patch_size": 2,
        "in_channels": config["in_channels"],
        "dim": config["dim"],
        "cap_feat_dim": config["cap_feat_dim"],
        "n_layers": config["n_layers"],
        "n_refiner_layers": config["n_refiner_layers"],
        "qk_norm": True,
        "n_heads": config["n_heads"],
        "n_kv_heads": config["n_kv_heads"],
        "axes_dims": config["axes_dims"],
        "axes_lens": config["axes_lens"],
        "rope_theta": config["rope_theta"],
        "ffn_dim_multiplier": 8.0 / 3.0,
        "multiple_of": 1,  # its feed-forward layers are rounded up to 256, where the real ones are anyway
        "z_image_modulation": True,
        "time_scale": 1000.0,
        "pad_tokens_multiple": 32,
    }
    model = comfy.supported_models.ZImage(unet)
    model.set_inference_dtype(torch.float32, None)
    return model.get_model({}, "", device="cpu")


def flux2(config: dict):
    width = config["num_attention_heads"] * config["attention_head_dim"]
    unet = {
        "image_model": "flux2",
        "patch_size": 1,
        "in_channels": config["in_channels"],
        "out_channels": config["in_channels"],
        "vec_in_dim": None,
        "context_in_dim": config["joint_attention_dim"],
        "hidden_size": width,
        "mlp_ratio": config["mlp_ratio"],
        "num_heads": config["num_attention_heads"],
        "depth": config["num_layers"],
        "depth_single_blocks": config["num_single_layers"],
        "axes_dim": config["axes_dims_rope"],
        "theta": config["rope_theta"],
        "qkv_bias": False,
        "ops_bias": False,
        "global_modulation": True,
        "mlp_silu_act": True,
        "guidance_embed": config["guidance_embeds"],
        "txt_ids_dims": [3],
    }
    model = comfy.supported_models.Flux2(unet)
    model.set_inference_dtype(torch.float32, None)
    return model.get_model({}, "", device="cpu")


def krea2(config: dict):
    unet = {
        "image_model": "krea2",
        "features": config["num_attention_heads"] * config["attention_head_dim"],
        "tdim": config["timestep_embed_dim"],
        "txtdim": config["text_hidden_dim"],
        "heads": config["num_attention_heads"],
        "kvheads": config["num_key_value_heads"],
        "layers": config["num_layers"],
        "patch": 2,
        "channels": config["in_channels"] // 4,
        "txtlayers": config["num_text_layers"],
        "txtheads": config["text_num_attention_heads"],
        "txtkvheads": config["text_num_key_value_heads"],
    }
    model = comfy.supported_models.Krea2(unet)
    model.set_inference_dtype(torch.float32, None)
    return model.get_model({}, "", device="cpu")


def qwen_image(config: dict):
    names = ("num_layers", "num_attention_heads", "attention_head_dim", "joint_attention_dim", "out_channels")
    unet = {name: config[name] for name in names} | {"image_model": "qwen_image", "in_channels": config["in_channels"]}
    model = comfy.supported_models.QwenImage(unet | {"axes_dims_rope": tuple(config["axes_dims_rope"])})
    model.set_inference_dtype(torch.float32, None)
    return model.get_model({}, "", device="cpu")


# By diffusers' name: the model in ComfyUI, and a module whose place in it needs no table, with that place's weight. The
# first rows of that weight must be B·A and nothing else.
FAMILIES = {
    "FluxTransformer2DModel": (
        flux,
        "transformer.single_transformer_blocks.0.attn.to_q",
        "single_blocks.0.linear1.weight",
    ),
    "SD3Transformer2DModel": (
        stable_diffusion_3,
        "transformer.transformer_blocks.0.attn.to_q",
        "joint_blocks.0.x_block.attn.qkv.weight",
    ),
    "WanTransformer3DModel": (
        wan,
        "diffusion_model.blocks.0.self_attn.q",
        "blocks.0.self_attn.q.weight",
    ),
    "Flux2Transformer2DModel": (
        flux2,
        "transformer.transformer_blocks.0.attn.to_q",
        "double_blocks.0.img_attn.qkv.weight",
    ),
    "Krea2Transformer2DModel": (
        krea2,
        "transformer.transformer_blocks.0.attn.to_q",
        "blocks.0.attn.wq.weight",
    ),
    "ZImageTransformer2DModel": (
        z_image,
        "transformer.layers.0.attention.to_q",
        "layers.0.attention.qkv.weight",
    ),
    "QwenImageTransformer2DModel": (
        qwen_image,
        "transformer.transformer_blocks.0.attn.to_q",
        "transformer_blocks.0.attn.to_q.weight",
    ),
}


class Log(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def put(lora_file: str, config_file: str) -> dict:
    log = Log()
    logging.getLogger().addHandler(log)
    config = json.loads(Path(config_file).read_text())
    build, module, place = FAMILIES[config["_class_name"]]
    model = build(config)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    cpu = torch.device("cpu")
    patcher = comfy.model_patcher.ModelPatcher(model, cpu, cpu)
    lora = comfy.utils.load_torch_file(lora_file, safe_load=True)
    patched, _ = comfy.sd.load_lora_for_models(patcher, None, lora, 1.0, 0.0)
    patched.patch_model()
    weights = patched.model.state_dict()
    expected = lora[f"{module}.lora_B.weight"] @ lora[f"{module}.lora_A.weight"]
    rows = expected.shape[0]
    found = weights[f"diffusion_model.{place}"][:rows]
    logging.getLogger().removeHandler(log)
    return {
        "modules": len({key.rsplit(".lora_", 1)[0] for key in lora}),
        "patches": sum(len(patches) for patches in patched.patches.values()),
        "largest": float(expected.abs().max()),
        "error": float((found - expected).abs().max()),
        "log": log.lines,
    }


for line in sys.stdin:
    print(json.dumps(put(*json.loads(line))), file=answers)
