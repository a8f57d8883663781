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


@dataclasses.dataclass
class Family:
    """ComfyUI's model of a diffusers transformer, and a module whose place in it needs no table, with that place's weight.

    The first rows of that weight must be B·A and nothing else. `read` says which of ComfyUI's sizes is which of diffusers' (with
    `width`, heads times their size, and `latents`, channels before 2 x 2 pixels are packed into one); `fixed` the latter lack.
    """

    model: str
    read: str
    fixed: dict
    module: str
    place: str

    def build(self, config: dict):
        known = {name: tuple(value) if isinstance(value, list) else value for name, value in config.items()}
        if "attention_head_dim" in config:
            known["width"] = config["num_attention_heads"] * config["attention_head_dim"]
        known["latents"] = config["in_channels"] // 4
        pairs = (pair.partition("=") for pair in self.read.split())
        unet = self.fixed | {name: known[other or name] for name, _, other in pairs}
        if self.model == "SD3":
            size = config["joint_attention_dim"]
            parameters = {"in_features": size, "out_features": known["width"]}
            unet["context_embedder_config"] = {"target": "torch.nn.Linear", "params": parameters}
            unet["num_patches"] = config["pos_embed_max_size"] ** 2
        model = getattr(comfy.supported_models, self.model)(unet)
        model.set_inference_dtype(torch.float32, None)
        return model.get_model({}, "", device="cpu")


FAMILIES = {
    "SD3Transformer2DModel": Family(
        "SD3",  # whose width is 64 · depth, as it detects it from a checkpoint
        "in_channels out_channels patch_size depth=num_layers adm_in_channels=pooled_projection_dim "
        "context_size=joint_attention_dim pos_embed_max_size x_block_self_attn_layers=dual_attention_layers",
        {"input_size": None, "pos_embed_scaling_factor": None, "qk_norm": "rms"},
        "transformer.transformer_blocks.0.attn.to_q",
        "joint_blocks.0.x_block.attn.qkv.weight",
    ),
    "WanTransformer3DModel": Family(
        "WAN21_T2V",
        "patch_size in_dim=in_channels out_dim=out_channels dim=width ffn_dim freq_dim text_dim num_heads=num_attention_heads "
        "num_layers",
        {"image_model": "wan2.1", "model_type": "t2v"},
        "diffusion_model.blocks.0.self_attn.q",
        "blocks.0.self_attn.q.weight",
    ),
    "Flux2Transformer2DModel": Family(
        "Flux2",
        "in_channels out_channels=in_channels context_in_dim=joint_attention_dim hidden_size=width mlp_ratio "
        "num_heads=num_attention_heads depth=num_layers depth_single_blocks=num_single_layers axes_dim=axes_dims_rope "
        "theta=rope_theta guidance_embed=guidance_embeds",
        {
            **{"image_model": "flux2", "patch_size": 1, "vec_in_dim": None, "qkv_bias": False, "ops_bias": False},
            **{"global_modulation": True, "mlp_silu_act": True, "txt_ids_dims": [3]},
        },
        "transformer.transformer_blocks.0.attn.to_q",
        "double_blocks.0.img_attn.qkv.weight",
    ),
    "Krea2Transformer2DModel": Family(
        "Krea2",
        "features=width tdim=timestep_embed_dim txtdim=text_hidden_dim heads=num_attention_heads kvheads=num_key_value_heads "
        "layers=num_layers channels=latents txtlayers=num_text_layers txtheads=text_num_attention_heads "
        "txtkvheads=text_num_key_value_heads",
        {"image_model": "krea2", "patch": 2},
        "transformer.transformer_blocks.0.attn.to_q",
        "blocks.0.attn.wq.weight",
    ),
    "ZImageTransformer2DModel": Family(
        "ZImage",
        "in_channels dim cap_feat_dim n_layers n_refiner_layers n_heads n_kv_heads axes_dims axes_lens rope_theta",
        {
            **{"image_model": "lumina2", "patch_size": 2, "qk_norm": True, "ffn_dim_multiplier": 8.0 / 3.0},
            "multiple_of": 1,  # its feed-forward layers are rounded up to 256, where the real ones are anyway
            **{"z_image_modulation": True, "time_scale": 1000.0, "pad_tokens_multiple": 32},
        },
        "transformer.layers.0.attention.to_q",
        "layers.0.attention.qkv.weight",
    ),
    "QwenImageTransformer2DModel": Family(
        "QwenImage",
        "in_channels out_channels num_layers num_attention_heads attention_head_dim joint_attention_dim axes_dims_rope",
        {"image_model": "qwen_image"},
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
    config = json.loads(Path(config_file).read_text(encoding="utf-8"))
    family = FAMILIES[config["_class_name"]]
    model = family.build(config)
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    cpu = torch.device("cpu")
    patcher = comfy.model_patcher.ModelPatcher(model, cpu, cpu)
    lora = comfy.utils.load_torch_file(lora_file, safe_load=True)
    patched, _ = comfy.sd.load_lora_for_models(patcher, None, lora, 1.0, 0.0)
    patched.patch_model()
    weights = patched.model.state_dict()
    expected = lora[f"{family.module}.lora_B.weight"] @ lora[f"{family.module}.lora_A.weight"]
    rows = expected.shape[0]
    found = weights[f"diffusion_model.{family.place}"][:rows]
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
