"""The model nodes: samples of the embedded model, what a model's memory goes to, which file is which network."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.transforms import Bbox

from ...trainer import rollout
from ...trainer.families.loading import bytes_held
from ...trainer.flow import SINGLE_FILES, LoadOptions
from ...trainer.pictures import grids
from ...trainer.pictures.figures import new_figure, rendered
from .drawing import COLORS
from .sources import CAPTIONS, SETTINGS, shapes_flux


def embedded_model() -> np.ndarray:
    images = rollout.generate(shapes_flux(), list(CAPTIONS), SETTINGS, [0, 1, 2, 3])
    return grids.sample_grid(images, CAPTIONS)


def model_memory() -> np.ndarray:
    """What weights, gradients and optimizer of FLUX.1-dev take, by how it is loaded and trained."""
    counts = _parameters_of_flux()
    cases = {
        "adapter, encoders offloaded, 4bit": ("lora", LoadOptions(offload_encoders=True, quantize="4bit")),
        "adapter, encoders offloaded, 8bit": ("lora", LoadOptions(offload_encoders=True, quantize="8bit")),
        "adapter, encoders offloaded": ("lora", LoadOptions(offload_encoders=True)),
        "adapter": ("lora", LoadOptions()),
        "full": ("full", LoadOptions()),
    }
    sizes = [
        bytes_held(counts, ("transformer",), options, training, torch.bfloat16) / 1e9
        for training, options in cases.values()
    ]
    colors = [COLORS[4] if training == "full" else COLORS[0] for training, _ in cases.values()]
    figure = new_figure(5.6, 2.6)
    axis = figure.subplots()
    bars = axis.barh(list(cases), sizes, color=colors)
    axis.bar_label(bars, [f"{size:.0f} GB" for size in sizes], padding=3, fontsize=9)
    axis.set_xlim(0, max(sizes) * 1.25)  # leaves room for the labels
    axis.set_xlabel("GB, before activations", fontsize=9)
    axis.tick_params(labelsize=9)
    axis.set_title(f"FLUX.1-dev: {counts['transformer'] / 1e9:.1f} billion parameters, in bfloat16", fontsize=10)
    return rendered(figure)


def _parameters_of_flux() -> dict[str, int]:
    """How many parameters each network of FLUX.1-dev has: all are built without memory, and counted."""
    from diffusers import AutoencoderKL, FluxTransformer2DModel
    from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

    t5 = T5Config(d_model=4096, d_ff=10240, d_kv=64, num_heads=64, num_layers=24, feed_forward_proj="gated-gelu")
    clip = CLIPTextConfig(hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12)
    with torch.device("meta"):
        networks = {
            "transformer": FluxTransformer2DModel(guidance_embeds=True),
            "text_encoder": CLIPTextModel(clip),
            "text_encoder_2": T5EncoderModel(t5),
            "vae": AutoencoderKL(
                block_out_channels=(128, 256, 512, 512),  # pyright: ignore[reportArgumentType]  # the library's tuple[int] has any length
                down_block_types=("DownEncoderBlock2D",) * 4,  # pyright: ignore[reportArgumentType]  # the library's tuple[str] has any length
                up_block_types=("UpDecoderBlock2D",) * 4,  # pyright: ignore[reportArgumentType]  # the library's tuple[str] has any length
                layers_per_block=2,
                latent_channels=16,
            ),
        }
    return {name: sum(p.numel() for p in network.parameters()) for name, network in networks.items()}


def model_files() -> np.ndarray:
    """Which file of ComfyUI's usual downloads is which network."""
    columns = {
        "FLUX.1-dev": ["flux1-dev", "", "clip_l", "t5xxl_fp16", "", "ae"],
        "SD3.5-medium": ["sd3.5_medium", "", "clip_l", "clip_g", "t5xxl_fp16", "(folder's own)"],
        "Wan 2.2 T2V-A14B": [
            "wan2.2_t2v_high_noise_14B_fp16",
            "wan2.2_t2v_low_noise_14B_fp16",
            "umt5_xxl_fp16",
            "",
            "",
            "wan_2.1_vae",
        ],
    }
    figure = new_figure(7.4, 2.2)
    axis = figure.subplots()
    axis.axis("off")
    table = axis.table(
        cellText=[[name or "–" for name in row] for row in zip(*columns.values(), strict=True)],
        rowLabels=list(SINGLE_FILES),
        colLabels=list(columns),
        colWidths=[0.16, 0.22, 0.44],
        cellLoc="center",
        bbox=Bbox.from_bounds(0.16, 0, 0.84, 1),
    )
    table.auto_set_font_size(False)
    table.set_fontsize(8.5)
    for (row, column), cell in table.get_celld().items():
        cell.set_edgecolor("#cccccc")
        if row == 0 or column < 0:
            cell.set_text_props(weight="bold")
            cell.set_facecolor("#eef3f8")
    return rendered(figure)
