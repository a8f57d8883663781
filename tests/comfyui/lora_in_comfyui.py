"""Run by ComfyUI's own interpreter, in its folder: puts a LoRA file on a Flux model by the stock LoraLoader.

python lora_in_comfyui.py LORA TRANSFORMER_CONFIG  ->  JSON {"patched": [...], "log": [...], "wrong": [...]}
"""

import dataclasses
import json
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path.cwd()))

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


class Log(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def main(lora_file: str, config_file: str) -> None:
    log = Log()
    logging.getLogger().addHandler(log)
    model = flux(json.loads(Path(config_file).read_text()))
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    cpu = torch.device("cpu")
    patcher = comfy.model_patcher.ModelPatcher(model, cpu, cpu)
    lora = comfy.utils.load_torch_file(lora_file, safe_load=True)
    patched, _ = comfy.sd.load_lora_for_models(patcher, None, lora, 1.0, 0.0)
    patched.patch_model()
    weights = patched.model.state_dict()
    # A diffusers module whose place in ComfyUI's Flux needs no table: its weight must be B·A and nothing else.
    module = "transformer.single_transformer_blocks.0.attn.to_q"
    expected = lora[f"{module}.lora_B.weight"] @ lora[f"{module}.lora_A.weight"]
    rows = expected.shape[0]
    found = weights["diffusion_model.single_blocks.0.linear1.weight"][:rows]
    print(
        json.dumps(
            {
                "modules": len({key.rsplit(".lora_", 1)[0] for key in lora}),
                "patches": sum(len(patches) for patches in patched.patches.values()),
                "largest": float(expected.abs().max()),
                "error": float((found - expected).abs().max()),
                "log": log.lines,
            }
        )
    )


main(*sys.argv[1:])
