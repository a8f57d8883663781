"""`python -m comfyui_otca.tools.recipes` prints the table of docs/models.md: what fits on GPUs of 12 to 48 GB."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

from ..trainer.memory.case import DECODING, GB, REWARDS, SAMPLING, SCORING, UPDATE, Iteration, Judge, Size, in_words
from ..trainer.memory.native import ARCHITECTURES, RANK, WEIGHT_BYTES, Architecture, NativeCase

WITH_WEIGHTS = (SAMPLING, SCORING, UPDATE)  # phases in which they cannot step aside
# The least of the weights that has to stay on the GPU: with less, an iteration waits mostly for main memory.
SMALLEST_SHARE = 0.25
GPUS = (12, 16, 24, 48)  # GB
RECIPES = ("z_image", "krea2", "qwen_image", "flux2_klein_4b", "flux2_klein_9b", "flux1", "wan22_5b")


@dataclass(frozen=True)
class Recipe:
    """Settings that fit.

    Attributes:
        weights: a key of WEIGHT_BYTES.
        streamed: bytes of the weights that stay in main memory and come when they are needed, which is slow.
    """

    case: NativeCase
    weights: str
    streamed: int = 0


def recipe(total_gpu_bytes: int, model: Architecture, rank: int = RANK) -> Recipe | None:
    """The largest picture or video that fits, then the finest weights, then no checkpointing, one sample to a pass.

    If not even the smallest fits, its weights stay in main memory as far as needed. None if that is nearly all of them.
    """
    for size, weights, checkpointing in product(model.sizes, model.weights, (False, True)):
        case = _tiled(_usual(model, size, weights, checkpointing, rank), total_gpu_bytes)
        if case.needs.total <= total_gpu_bytes:
            return Recipe(case, weights)
    smallest = _usual(model, model.sizes[-1], model.weights[-1], True, rank)
    missing = max(smallest.needs.totals[phase] for phase in WITH_WEIGHTS) - total_gpu_bytes
    if missing > smallest.weights_bytes * (1 - SMALLEST_SHARE):
        return None
    case = _tiled(replace(smallest, weights_bytes=smallest.weights_bytes - missing), total_gpu_bytes)
    return Recipe(case, model.weights[-1], missing) if case.needs.total <= total_gpu_bytes else None


def _usual(model: Architecture, size: Size, weights: str, checkpointing: bool, rank: int) -> NativeCase:
    """With the largest of the rewards in the templates, which is on the GPU alone."""
    reward = REWARDS["OTCA_RewardVideoAlign" if size[2] > 1 else "OTCA_RewardPickScore"]
    return NativeCase(
        model,
        model.networks * model.params * WEIGHT_BYTES[weights],
        model.networks * model.lora * rank,
        Iteration(size, guided=model.rows > 1, rewards=(Judge(reward, True),)),
        checkpointing,
        encoder_bytes=model.encoder_bytes,
        vae_bytes=model.vae.bytes,
    )


def _tiled(case: NativeCase, total: int) -> NativeCase:
    return replace(case, tiling=True) if case.needs.totals[DECODING] > total else case


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
    case = found.case
    words = [in_words(case.iteration.size), found.weights, f"checkpointing {'on' if case.checkpointing else 'off'}"]
    words += ["VAE tiling"] if case.tiling else []
    words += [f"{found.streamed / GB:.1f} GB of weights in main memory"] if found.streamed else []
    return "; ".join(words) + f": {case.needs.total / GB:.1f} GB"


if __name__ == "__main__":
    print(recipes_table())
