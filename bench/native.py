"""An iteration through ComfyUI's path against the diffusers route, on the same FLUX weights.

    PYTHON bench/native.py COMFYUI [--rounds N] [--width W] [--size PIXELS]      (PYTHON: the one that starts ComfyUI)

A rollout and an update of 2 prompts x 4 samples, 4 steps, both routes taking turns in one process, so that whatever else the
machine does weighs on both alike. The adapter is on the layers that both layouts have as one: where diffusers has to_q, to_k and
to_v apart, ComfyUI has one layer. `--width 0` takes the embedded model as it is; another width makes a FLUX with random weights
beside its encoders. The figures are medians of each route's seconds and of their ratio in each round; the guard's seconds come
once a training.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch

from comfyui_otca.host import headless_comfyui
from comfyui_otca.host.paths import ASSETS
from comfyui_otca.trainer import grpo, rollout
from comfyui_otca.trainer.advantages import fuse
from comfyui_otca.trainer.credit import tcd
from comfyui_otca.trainer.flow import load_flow_model
from comfyui_otca.trainer.policy.adapters import Adapter
from comfyui_otca.trainer.rewards import reward_class
from comfyui_otca.trainer.rewards.base import score_stack
from comfyui_otca.trainer.types import Prompts, SamplerSettings, UpdateSettings

SHAPES = ASSETS / "shapes-flux"
TARGETS = {
    "diffusers": "attn.to_out.0, ff.net.2, attn.to_add_out, ff_context.net.2, proj_out",
    "native": "img_attn.proj, img_mlp.2, txt_attn.proj, txt_mlp.2, linear2",
}
PROMPTS = Prompts(("a red circle on a blue background", "a green square on a black background"), (0, 1))
UPDATE = UpdateSettings(learning_rate=1e-4, clip_range=1e-4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comfyui", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--size", type=int, default=64)
    arguments = parser.parse_args()
    headless_comfyui.load(arguments.comfyui, "cpu")
    with tempfile.TemporaryDirectory() as folder:
        path = wider(arguments.width, Path(folder)) if arguments.width else SHAPES
        models = {"diffusers": diffusers_route(path), "native": native_route(path)}
        settings = SamplerSettings("dance_sde", 0.5, 4, arguments.size, arguments.size, shift=1.6, guidance=1.0)
        guard = guarded(models["native"], settings)
        for model in models.values():
            iteration(model, settings, 0)
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
        for number in range(arguments.rounds):
            order = list(models.items())[:: 1 if number % 2 else -1]
            for name, model in order:
                seconds[name].append(iteration(model, settings, number))
    print(f"width {arguments.width or 'of shapes-flux'}, {arguments.size} px, {arguments.rounds} rounds")
    for name, taken in seconds.items():
        sample, update = (statistics.median(part) for part in zip(*taken, strict=True))
        print(f"{name:10} rollout {sample:.3f} s  update {update:.3f} s  together {sample + update:.3f} s")
    pairs = zip(seconds["native"], seconds["diffusers"], strict=True)
    ratios = [sum(ours) / sum(theirs) for ours, theirs in pairs]
    print(f"native / diffusers: {statistics.median(ratios):.3f} (rounds {', '.join(f'{r:.3f}' for r in ratios)})")
    print(f"the guard, once: {guard:.3f} s")


def diffusers_route(path: Path):
    return load_flow_model(path, device="cpu", dtype="float32", lora_rank=16, lora_targets=TARGETS["diffusers"])


def native_route(path: Path, checkpointing: str = "off", targets: str = TARGETS["native"]):
    from comfyui_otca.trainer.native import embedded
    from comfyui_otca.trainer.native.loading import make_trainable

    adapter = Adapter(16, 16.0, targets)
    return make_trainable(
        embedded.model(path),
        embedded.clip(path),
        embedded.vae(path),
        adapter,
        checkpointing=checkpointing,
        check_gradients=False,
    )


def wider(width: int, folder: Path) -> Path:
    """The embedded pipeline with a random transformer of that width: 2 double and 4 single blocks, heads of 64."""
    from diffusers import FluxPipeline, FluxTransformer2DModel

    pipeline = FluxPipeline.from_pretrained(SHAPES, local_files_only=True)
    config = dict(pipeline.transformer.config)
    torch.manual_seed(0)
    config |= {"num_layers": 2, "num_single_layers": 4, "attention_head_dim": 64, "num_attention_heads": width // 64}
    config |= {"axes_dims_rope": (16, 24, 24)}
    pipeline.transformer = FluxTransformer2DModel.from_config(config)
    pipeline.save_pretrained(folder)
    return folder


def iteration(model, settings: SamplerSettings, seed: int) -> tuple[float, float]:
    """Seconds of a rollout and of an update."""
    started = time.perf_counter()
    trajectories = rollout.sample(model, PROMPTS, settings, group_size=4, seed=seed)
    sampled = time.perf_counter()
    grpo.update(model, trajectories, advantages(trajectories), UPDATE)
    return sampled - started, time.perf_counter() - sampled


def guarded(model, settings: SamplerSettings) -> float:
    from comfyui_otca.trainer.native import guard

    trajectories = rollout.sample(model, PROMPTS, settings, group_size=2, seed=0)
    started = time.perf_counter()
    guard.check(model, trajectories)
    return time.perf_counter() - started


def advantages(trajectories):
    """By colourfulness alone, every trained step alike: all samples pull."""
    rewards = [reward_class("colorfulness")()]
    scores = score_stack(rewards, trajectories.images, trajectories.prompts, trajectories.groups)
    credit = tcd(trajectories.latents, trajectories.final, trajectories.trained, w_min=0.5)
    return fuse(scores, credit, "weighted_advantages")


if __name__ == "__main__":
    main()
