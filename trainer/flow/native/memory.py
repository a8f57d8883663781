"""What training a model that ComfyUI loaded needs on the GPU: an estimate, by arithmetic. Nothing of it was measured on a GPU.

    one block's activations  = rows · tokens · width · saved · 2 bytes
    all activations          = blocks · that;  with checkpointing: blocks · rows · tokens · width · 2 bytes, and one block's
    adapter and optimizer    = 16 bytes a trained parameter
    needed                   = the largest phase of an iteration, since its phases come one after another

All constants of the estimate are here and, of the models, in architectures.py, each with its source. A row is one sample in one
forward pass; with classifier-free guidance a sample has two. Imports neither torch nor ComfyUI.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .architectures import ARCHITECTURES, COMPUTE_BYTES, SAVED, Architecture

GB = 10**9  # as the sizes of files are given; a GPU's GB are larger (2^30), which leaves 7 % of room

# --- constants of the estimate ---------------------------------------------------------------------------------------

WEIGHT_BYTES = {"bfloat16": 2, "fp8": 1}

ADAPTER_BYTES = 4  # the adapter is float32
OPTIMIZER_BYTES = 12  # its gradient and AdamW's two moments, float32
AVERAGE_BYTES = 4  # the update's ema_decay; and as much for Matching Step's old policy
# CUDA's context, the allocator's gaps and one layer's weights while they are cast. ComfyUI keeps 0.8 GB and its own reserve
# free for the same (minimum_inference_memory in comfy/model_management.py).
RESERVE = 1 * GB

# Parts that are on the GPU together. Text encoder and VAE have it for themselves, since ComfyUI lets the model leave then.
ALWAYS = ("adapter", "optimizer", "reserve")
PHASES = {
    "encoding prompts": ("text encoder", *ALWAYS),
    "sampling": ("weights", "sampling", "kept graph", *ALWAYS),
    "decoding": ("VAE", "kept graph", *ALWAYS),
    "scoring": ("weights", "rewards", "kept graph", *ALWAYS),
    "the update": ("weights", "activations", "kept graph", *ALWAYS),
}
WITH_WEIGHTS = tuple(phase for phase, names in PHASES.items() if "weights" in names)

# Files of the rewards that have a network (docs/rewards.md), by node.
REWARDS = {
    "OTCA_RewardClipT": 1_700_000_000,
    "OTCA_RewardAesthetic": 1_700_000_000,
    "OTCA_RewardPickScore": 3_900_000_000,
    "OTCA_RewardHPSv2": 3_900_000_000,
    "OTCA_RewardImageReward": 1_800_000_000,
    "OTCA_RewardObjects": 2_300_000_000,  # OWLv2 and the CLIP of its colors
    "OTCA_RewardVideoAlign": 5_030_000_000,
    "OTCA_RewardVideoScore": 17_000_000_000,
}
# The largest of those in the templates: with `offload` each is on the GPU alone.
PICTURE_REWARD, VIDEO_REWARD = REWARDS["OTCA_RewardPickScore"], REWARDS["OTCA_RewardVideoAlign"]


@dataclass(frozen=True)
class Estimate:
    """Bytes on the GPU.

    Attributes:
        parts: by name, as in PHASES; a part that is not needed has 0.
        total: of the largest phase.
        phase: which that is.
    """

    parts: Mapping[str, int]
    total: int
    phase: str


def estimate(
    *,
    weights_bytes: int,
    params: int,
    tokens: int,
    width: int,
    layers: int,
    batch: int,
    checkpointing: bool,
    kept_steps: int = 0,
    sampling_batch: int = 1,
    saved: float = SAVED,
    average: bool = False,
    old_policy: bool = False,
    text_encoder_bytes: int = 0,
    vae_bytes: int = 0,
    reward_bytes: int = 0,
) -> Estimate:
    """What one iteration needs.

    Args:
        weights_bytes: the frozen weights that are on the GPU, all experts together.
        params: trained parameters.
        tokens: of one sample, picture or video and text together.
        width: of a block's input.
        layers: blocks.
        batch: rows of a forward and backward pass of the update.
        checkpointing: blocks are computed again in the backward pass.
        kept_steps: rows times steps whose graph the rollout keeps for the update (SDE Sampler's keep_graph).
        sampling_batch: rows of a forward pass of the rollout.
        saved: vectors of the model's width that autograd keeps for each token and block.
        average: the update's ema_decay is above 0.
        old_policy: another policy than the trained one samples.
        text_encoder_bytes: its weights.
        vae_bytes: its weights and what decoding takes.
        reward_bytes: the largest judge, or all of them where they stay on the GPU.
    """
    row = tokens * width * COMPUTE_BYTES
    block = round(row * saved)
    graph = layers * (row if checkpointing else block)
    again = block if checkpointing else 0  # one block at a time is computed again
    parts = {
        "weights": weights_bytes,
        "adapter": params * (ADAPTER_BYTES + AVERAGE_BYTES * (average + old_policy)),
        "optimizer": params * OPTIMIZER_BYTES,
        "activations": batch * (again if kept_steps else graph + again),
        "kept graph": kept_steps * graph,
        "sampling": sampling_batch * block,
        "text encoder": text_encoder_bytes,
        "VAE": vae_bytes,
        "rewards": reward_bytes,
        "reserve": RESERVE,
    }
    needs = {phase: sum(parts[name] for name in names) for phase, names in PHASES.items()}
    phase = max(needs, key=lambda name: needs[name])
    return Estimate(parts, needs[phase], phase)


# --- recipes ---------------------------------------------------------------------------------------------------------

RANK = 16
SMALLEST_SHARE = (
    0.25  # of the weights, the least that has to stay: with less, an iteration waits mostly for main memory
)


@dataclass(frozen=True)
class Recipe:
    """Settings that fit.

    Attributes:
        size: width, height, frames.
        weights: a key of WEIGHT_BYTES.
        checkpointing: Make Trainable's.
        tiling: Make Trainable's vae_tiling.
        streamed: bytes of the weights that stay in main memory and come when they are needed, which is slow.
        needs: the estimate.
    """

    size: tuple[int, int, int]
    weights: str
    checkpointing: bool
    tiling: bool
    streamed: int
    needs: Estimate


def recipe(total_gpu_bytes: int, model: Architecture, rank: int = RANK) -> Recipe | None:
    """The largest picture or video that fits, then the finest weights, then no checkpointing, one sample to a pass.

    Where not even the smallest fits, its weights stay in main memory as far as needed. None where that is nearly all.
    """
    for size in model.sizes:
        for weights in model.weights:
            for checkpointing in (False, True):
                found = _recipe(model, size, weights, checkpointing, rank, total_gpu_bytes)
                if found.needs.total <= total_gpu_bytes:
                    return found
    smallest = _recipe(model, model.sizes[-1], model.weights[-1], True, rank, total_gpu_bytes)
    parts = smallest.needs.parts
    missing = max(sum(parts[name] for name in PHASES[phase]) for phase in WITH_WEIGHTS) - total_gpu_bytes
    if missing > parts["weights"] * (1 - SMALLEST_SHARE):
        return None
    found = _recipe(model, smallest.size, smallest.weights, True, rank, total_gpu_bytes, missing)
    return found if found.needs.total <= total_gpu_bytes else None


def _recipe(model, size, weights, checkpointing, rank, total, streamed=0) -> Recipe:
    def needs(tiling: bool) -> Estimate:
        return estimate(
            weights_bytes=model.networks * model.params * WEIGHT_BYTES[weights] - streamed,
            params=model.networks * model.lora * rank,
            tokens=model.tokens(*size),
            width=model.width,
            layers=model.layers,
            batch=model.rows,
            checkpointing=checkpointing,
            sampling_batch=model.rows,
            saved=model.saved,
            text_encoder_bytes=model.encoder_bytes,
            vae_bytes=model.vae.needs(*size, tiling),
            reward_bytes=VIDEO_REWARD if size[2] > 1 else PICTURE_REWARD,
        )

    whole = needs(False)
    tiling = sum(whole.parts[name] for name in PHASES["decoding"]) > total
    return Recipe(size, weights, checkpointing, tiling, streamed, needs(True) if tiling else whole)


GPUS = (12, 16, 24, 48)  # GB
RECIPES = ("z_image", "krea2", "qwen_image", "flux2_klein_4b", "flux2_klein_9b", "flux1", "wan22_5b")


def recipes_table() -> str:
    """The recipes of docs/models.md, in Markdown."""
    lines = ["| model | " + " | ".join(f"{gpu} GB" for gpu in GPUS) + " |", "|---" * (1 + len(GPUS)) + "|"]
    for name in RECIPES:
        cells = [_cell(recipe(gpu * GB, ARCHITECTURES[name])) for gpu in GPUS]
        lines.append(f"| {ARCHITECTURES[name].title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(found: Recipe | None) -> str:
    if found is None:
        return "does not fit"
    width, height, frames = found.size
    size = f"{width} × {height}" + (f", {frames} frames" if frames > 1 else "")
    words = [size, found.weights, "checkpointing on" if found.checkpointing else "checkpointing off"]
    words += ["VAE tiling"] if found.tiling else []
    words += [f"{found.streamed / GB:.1f} GB of weights in main memory"] if found.streamed else []
    return "; ".join(words) + f": {found.needs.total / GB:.1f} GB"
