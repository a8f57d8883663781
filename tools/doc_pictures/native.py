"""The nodes between ComfyUI's own: what of a model they train, and its pictures before and after."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from PIL import Image

from ...trainer.pictures.figures import new_figure, rendered
from ...trainer.policy.files import read_tensors
from .drawing import COLORS
from .sources import ROOT, workplace


@functools.cache
def _native_run() -> Path:
    """The folder of a training of the quickstart with ComfyUI's own nodes, by the newest ComfyUI that is there: 20 minutes."""
    from ...tests.comfyui.server import installations

    comfyui, folder = installations()[-1], workplace() / "native"
    workflow = ROOT / "workflows" / "api" / "quickstart_comfyui.json"
    command = [comfyui.python, ROOT, "train", workflow, "--comfyui", comfyui.folder, "--output", folder]
    subprocess.run(command, check=True)
    return folder


def native_layers() -> np.ndarray:
    """The way of a MODEL through the graph; below it how far a training moved each layer that got the adapter."""
    figure = new_figure(7.4, 4.2)
    chain, bars = figure.subplots(2, 1, height_ratios=(1, 3))
    _draw_chain(chain)
    _draw_layers(bars)
    return rendered(figure)


def native_before_after() -> np.ndarray:
    """The run's own pictures: three of eight columns."""
    picture = np.asarray(Image.open(_native_run() / "samples.png").convert("RGB"))
    return picture[:, : picture.shape[1] * 3 // 8]


def _draw_chain(axis: Axes) -> None:
    axis.axis("off")
    nodes = ("Loaders", "Make\nTrainable", "SDE Sampler\n… GRPO Step", "Tuned\nModel", "KSampler")
    edges = ("MODEL\nCLIP, VAE", "OTCA_MODEL", "OTCA_MODEL", "MODEL")
    for place, name in enumerate(nodes):
        color = COLORS[0] if name.startswith(("Make", "Tuned")) else "#666666"
        box = {"boxstyle": "round,pad=0.5", "facecolor": color, "edgecolor": "none"}
        axis.text(place, 0.4, name, ha="center", va="center", fontsize=8, color="white", bbox=box)
    for place, name in enumerate(edges):
        arrow = {"arrowstyle": "->", "color": "#444444"}
        axis.annotate("", (place + 0.68, 0.4), (place + 0.36, 0.4), arrowprops=arrow)
        axis.text(place + 0.51, 0.95, name, ha="center", va="bottom", fontsize=7)
    axis.set(xlim=(-0.4, len(edges) + 0.4), ylim=(0, 1.5))


def _draw_layers(axis: Axes) -> None:
    tensors = read_tensors(_native_run() / "lora.safetensors")
    layers = [key.removesuffix(".lora_A.weight") for key in tensors if key.endswith(".lora_A.weight")]
    moved = [float((tensors[f"{n}.lora_B.weight"] @ tensors[f"{n}.lora_A.weight"]).norm()) for n in layers]
    names = [layer.removeprefix("diffusion_model.").replace("_blocks.", " ") for layer in layers]
    colors = [COLORS[0] if "attn" in name else COLORS[1] if "mlp" in name else COLORS[2] for name in names]
    axis.bar(range(len(names)), moved, color=colors)
    axis.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axis.set_ylabel("‖ΔW‖ after training", fontsize=8)
    kinds = ("attention", "feed-forward", "both in one layer (single blocks)")
    axis.legend([Patch(color=color) for color in COLORS[:3]], kinds, fontsize=8, ncols=3, loc="upper left")
    axis.set_ylim(0, max(moved) * 1.25)  # leaves room for the legend
    axis.tick_params(axis="y", labelsize=8)
    axis.set_title("shapes-flux: the layers that get the adapter", fontsize=9)
