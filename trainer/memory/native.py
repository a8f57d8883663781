"""What training a model that ComfyUI loaded needs on the GPU: from counts of its blocks. Nothing of it was measured on a GPU.

    one block's activations  = rows · tokens · width · saved · 2 bytes
    all activations          = blocks · that;  with checkpointing: blocks · rows · tokens · width · 2 bytes, and one block's

What is on the GPU together says `trainer/memory/estimate.py`, as for models of diffusers. The counts of each model are in
architectures.py, each with its source. A row is one sample in one forward pass; with classifier-free guidance a sample has two.
Imports neither torch nor ComfyUI.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .architectures import ARCHITECTURES, COMPUTE_BYTES, SAVED, Architecture
from .case import Case
from .estimate import DECODING, ENCODING, GB, SAMPLING, SCORING, UPDATE, Estimate, Held, Work
from .estimate import estimate as together
from .iteration import REWARDS, Iteration

WEIGHT_BYTES = {"bfloat16": 2, "fp8": 1}
WITH_WEIGHTS = (SAMPLING, SCORING, UPDATE)  # phases in which they cannot step aside
# The largest of those in the templates: with `offload` each is on the GPU alone.
PICTURE_REWARD, VIDEO_REWARD = REWARDS["OTCA_RewardPickScore"], REWARDS["OTCA_RewardVideoAlign"]


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
    copies: int = 0,
    text_encoder_bytes: int = 0,
    vae_bytes: int = 0,
    reward_bytes: int = 0,
    room: float = 0,
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
        copies, room: as in memory/estimate.py.
        text_encoder_bytes: its weights.
        vae_bytes: its weights and what decoding takes.
        reward_bytes: the largest judge, or all of them where they stay on the GPU.
    """
    row = tokens * width * COMPUTE_BYTES
    block = round(row * saved)
    graph = layers * (row if checkpointing else block)
    again = block if checkpointing else 0  # one block at a time is computed again
    held = Held(
        weights=weights_bytes,
        trained=params,
        copies=copies,
        encoders=text_encoder_bytes,
        vae=vae_bytes,
        encoders_visit=True,
        vae_visit=True,
        steps_aside=(ENCODING, DECODING),  # ComfyUI lets the model leave where they need its room
    )
    work = Work(
        sampling=sampling_batch * block,
        kept=kept_steps * graph,
        rewards=reward_bytes,
        update=batch * (again if kept_steps else graph + again),
    )
    return together(held, work, room)


@dataclass(frozen=True)
class NativeCase(Case):
    """A training of what ComfyUI loaded. Fields are as in `estimate`, or as the inputs of Make Trainable."""

    model: Architecture
    weights_bytes: int
    rank: int
    checkpointing: bool
    is_low_memory: bool
    tiling: bool
    encoder_bytes: int
    vae_file_bytes: int
    iteration: Iteration

    @property
    def title(self) -> str:
        return self.model.title

    def estimate(self, room: float = 0) -> Estimate:
        it, rows = self.iteration, 2 if self.iteration.guided else 1
        vae = replace(self.model.vae, bytes=self.vae_file_bytes)
        return estimate(
            weights_bytes=self.weights_bytes // self.model.layers if self.is_low_memory else self.weights_bytes,
            params=self.model.networks * self.model.lora * self.rank,
            tokens=self.model.tokens(*it.size),
            width=self.model.width,
            layers=self.model.layers,
            batch=it.batch * rows,
            checkpointing=self.checkpointing,
            kept_steps=it.samples * it.trained_steps * rows if it.keep_graph else 0,
            sampling_batch=it.sampling_batch * rows,
            saved=self.model.saved,
            copies=it.copies,
            text_encoder_bytes=self.encoder_bytes,
            vae_bytes=vae.needs(*it.size, self.tiling),
            reward_bytes=it.reward_bytes,
            room=room,
        )

    def ways(self) -> Iterator[tuple[str, dict, dict]]:
        it, fp8 = self.iteration, self.model.networks * self.model.params
        yield from ((words, fields, {}) for words, fields in it.cheap_changes())
        yield "Make Trainable checkpointing on", {}, {"checkpointing": True}
        yield "Make Trainable vae_tiling on", {}, {"tiling": True}
        yield "fp8 weights", {}, {"weights_bytes": min(self.weights_bytes, fp8)}
        yield "device cpu on every reward (slow)", {"rewards": ()}, {}
        yield from ((words, fields, {}) for words, fields in it.smaller(self.model.sizes))
        yield "Make Trainable memory low (slow)", {}, {"is_low_memory": True}


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
    missing = max(smallest.needs.totals[phase] for phase in WITH_WEIGHTS) - total_gpu_bytes
    if missing > smallest.needs.parts["weights"] * (1 - SMALLEST_SHARE):
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
    tiling = whole.totals[DECODING] > total
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
