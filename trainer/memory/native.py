"""Memory that the training of a model of ComfyUI needs on the GPU, counted by its blocks. Imports neither torch nor ComfyUI.

    one vector               = rows · tokens · width · 2 bytes
    a block                  = saved vectors, which autograd keeps
    kept for the backward    = blocks · a block;  with checkpointing one vector a block, and those outside of blocks
    the backward pass adds   = gradients inside a block;  with checkpointing the block that is computed again, too

With checkpointing the last blocks of a call may keep theirs, with which the backward pass begins. One costs nothing at the peak:
that comes when another block is computed again, and what the last one kept is gone by then.

A row is one sample in one forward pass; with classifier-free guidance a sample has two. `bench/memory.py` makes the counts of the
published models below on ComfyUI's own classes. A model that is not listed is counted by its weights, see `needs` and `fitting`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..types import MAKE_NODE
from .case import (
    ANY_GPU,
    DECODING,
    ENCODING,
    GB,
    JUDGING,
    RESERVE,
    SAMPLING,
    SCORING,
    TILE,
    UNDECODING,
    UPDATE,
    Case,
    Choice,
    Graph,
    Held,
    Iteration,
    Machine,
    Size,
    Way,
    most,
    with_halo,
)

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

RANK = 16
ENCODER_LAYERS = 24  # the fewest of the text encoders that are listed, T5's: what has to be there of one
COMPUTE_BYTES = 2  # activations are bfloat16, ComfyUI's choice on a GPU that has it
FLOAT32_BYTES = 4  # and on a CPU
WEIGHT_BYTES = {"bfloat16": 2, "fp8": 1}
# For a model that is not listed below: vectors of its width that autograd keeps for each token and block. The most of those that
# are listed.
SAVED = 35.0
# Vectors outside of blocks, and of gradients inside a block: counted on a FLUX by `native` in bench/memory.md, taken for all.
OUTSIDE, GRADIENTS = 2, 10


@dataclass(frozen=True)
class Autoencoder:
    """A VAE.

    Attributes:
        bytes: of its file.
        decode: values that decoding takes for each pixel of a frame, of a picture and of a video.
        keeps: values that autograd keeps of it for each pixel of all frames, likewise.
        beside: values that there are besides for each pixel of a frame, likewise.
        again: both for a picture, where its blocks are computed again in the backward pass.
        scale: pixels of a side of one latent position.
    """

    bytes: int
    decode: tuple[int, int]
    keeps: tuple[int, int] = (0, 0)
    beside: tuple[int, int] = (0, 0)
    again: tuple[int, int] = (0, 0)
    scale: int = 8

    def decoding(self, size: Size, tiled: bool) -> int:
        width, height, frames = size
        pixels = min(width, TILE) * min(height, TILE) if tiled else width * height
        return self.decode[frames > 1] * pixels * COMPUTE_BYTES

    def with_gradient(self, size: Size, tile: int, again: bool) -> Graph:
        width, height, frames = with_halo(size, tile, self.scale)
        pixels = width * height * COMPUTE_BYTES
        kept, beside = pixels * frames * self.keeps[frames > 1], pixels * self.beside[frames > 1]
        if again and frames == 1 and any(self.again):
            kept, beside = (pixels * values for values in self.again)
        return Graph(kept, kept + beside, beside)


# Values a pixel: memory_used_decode in comfy/sd.py of ComfyUI 0.33, per latent pixel there. Videos are decoded piece by piece,
# so their number of frames does not count; with a gradient it does: `decoders` in bench/memory.md. Sizes: the files' pages on
# huggingface.co.
FLUX_VAE = Autoencoder(335_000_000, (2178, 2178), (5700, 5700), (131, 131), (1403, 899))
FLUX2_VAE = Autoencoder(336_000_000, (2178, 2178), (5700, 5700), (131, 131), (1403, 899), scale=16)
WAN21_VAE = Autoencoder(
    254_000_000, (2200, 7000), (3825, 4480), (291, 2556), (897, 677)
)  # Qwen-Image's and Krea 2's are of this kind
WAN22_VAE = Autoencoder(1_410_000_000, (8000, 8000), (2856, 3039), (875, 2180), scale=16)


@dataclass(frozen=True)
class Architecture:
    """A model.

    Attributes:
        title: its name in docs/models.md.
        files: how the names of its files begin, in ComfyUI's templates and repositories.
        image_model: what comfy/model_detection.py calls its kind.
        params: of one network; `networks` of them.
        width, layers: of the blocks; streams of two kinds count as the blocks that they are.
        saved: vectors of the model's width that autograd keeps for each token and block.
        lora: trained parameters for each unit of rank, with an adapter on all Linear layers of the blocks but the modulation.
        pixels: of a side of one token; a video's token also spans `time` frames.
        values: numbers of a latent that one token stands for.
        text_tokens: that stand in one sequence with those of the picture.
        seen_tokens: more of the text's for each picture that a prompt works on, if the text encoder sees it.
        rows: of a sample in one forward pass as its template samples, 2 with classifier-free guidance.
        embeds_guidance: guidance is an input of the network, and takes no second row.
        encoder_bytes: the file or files that ComfyUI's template loads.
        weights: kinds that are published or that UNETLoader makes, best first.
        sizes: width, height, frames, largest first.
    """

    title: str
    params: int
    width: int
    layers: int
    lora: int
    encoder_bytes: int
    vae: Autoencoder
    files: tuple[str, ...] = ()
    image_model: str = ""
    saved: float = SAVED
    pixels: int = 16
    time: int = 4
    values: int = 64
    text_tokens: int = 256
    seen_tokens: int = 0
    rows: int = 1
    embeds_guidance: bool = False
    networks: int = 1
    weights: tuple[str, ...] = ("bfloat16", "fp8")
    sizes: tuple[Size, ...] = ((1024, 1024, 1), (768, 768, 1), (512, 512, 1))

    def picture_tokens(self, width: int, height: int, frames: int = 1) -> int:
        return (width // self.pixels) * (height // self.pixels) * ((frames - 1) // self.time + 1)

    def tokens(self, width: int, height: int, frames: int = 1, references: int = 0) -> int:
        """References are scaled to about the area of what is sampled, and stand beside it in the sequence; a video begins with
        its picture instead."""
        beside = references * (self.picture_tokens(width, height) + self.seen_tokens) if frames == 1 else 0
        return self.picture_tokens(width, height, frames) + self.text_tokens + beside


# Widths and blocks: the configurations that comfy/model_detection.py (0.33) reads off each file, klein's those of
# black-forest-labs/flux2 (Klein4BParams, Klein9BParams). params, lora, saved: bench/memory.py counts them on ComfyUI's own
# classes. Text tokens: prompts are padded to 256 (FLUX.1) or 512 (klein) by comfy/text_encoders/flux.py; others are as long as
# the prompt, taken as 256; Wan's stand in no sequence with the video's. A text encoder that sees pictures sees 384 x 384 of each,
# a token for 28 x 28 (Qwen-Image) or 32 x 32 (Krea 2). Encoders: sizes of the files on huggingface.co that ComfyUI's templates
# name.
KLEIN: dict[str, Any] = {"values": 128, "text_tokens": 512}
QWEN3_4B, UMT5 = 8_044_982_048, 6_740_000_000  # qwen_3_4b, umt5_xxl_fp8_e4m3fn_scaled
ARCHITECTURES = {  # title, params, width, layers, lora, encoder_bytes, vae; files, image_model, saved
    "z_image": Architecture(  # its layers are 30, and 2 for the picture alone
        *("Z-Image", 6_154_908_736, 3840, 32, 2_219_520, QWEN3_4B, FLUX_VAE), ("z_image",), "lumina2", saved=34.2
    ),
    "krea2": Architecture(  # its encoder is qwen3vl_4b_fp8_scaled
        *("Krea 2", 12_820_073_036, 6144, 28, 3_354_624, 5_200_000_000, WAN21_VAE),
        *(("krea2",), "krea2", 29.8),
        rows=2,
        seen_tokens=144,
    ),
    "qwen_image": Architecture(  # qwen_2.5_vl_7b_fp8_scaled
        *("Qwen-Image", 20_430_401_088, 3072, 60, 6_635_520, 9_380_000_000, WAN21_VAE),
        *(("qwen_image",), "qwen_image", 24.4),
        rows=2,
        seen_tokens=196,
    ),
    "flux2_klein_4b": Architecture(
        *("FLUX.2 klein 4B", 3_875_544_576, 3072, 25, 1_443_840, QWEN3_4B, FLUX2_VAE),
        *(("flux-2-klein-4b", "flux-2-klein-base-4b"), "flux2", 27.0),
        **KLEIN,
    ),
    "flux2_klein_9b": Architecture(  # qwen_3_8b_fp8mixed
        *("FLUX.2 klein 9B", 9_078_581_248, 4096, 32, 2_588_672, 8_700_000_000, FLUX2_VAE),
        *(("flux-2-klein-9b", "flux-2-klein-base-9b"), "flux2", 27.0),
        **KLEIN,
    ),
    "flux1": Architecture(  # t5xxl_fp16 and clip_l
        *("FLUX.1", 11_901_408_320, 3072, 57, 3_502_080, 9_790_000_000 + 246_144_152, FLUX_VAE),
        *(("flux1", "flux_dev", "flux_schnell"), "flux", 22.9),
        embeds_guidance=True,
    ),
    "wan22_5b": Architecture(
        *("Wan 2.2 5B", 4_999_787_712, 3072, 30, 2_519_040, UMT5, WAN22_VAE),
        *(("wan2.2_ti2v_5B",), "wan2.1", 30.0),
        pixels=32,
        values=192,
        text_tokens=0,
        rows=2,
        sizes=((1280, 704, 121), (1280, 704, 49), (832, 480, 49), (640, 352, 49), (416, 256, 33)),
    ),
    "wan22_14b": Architecture(
        *("Wan 2.2 14B", 14_288_491_584, 5120, 40, 4_792_320, UMT5, WAN21_VAE),
        *(
            ("wan2.2_t2v_high_noise_14B", "wan2.2_t2v_low_noise_14B"),
            "wan2.1",
            30.0,
        ),  # counted at the 5B's MLP, which is wider
        text_tokens=0,
        rows=2,
        networks=2,
        sizes=((832, 480, 81), (832, 480, 49), (640, 352, 49), (416, 240, 53)),
    ),
}


def architecture_of(file_name: str) -> Architecture | None:
    """The published model that a file's name belongs to, or None."""
    name = file_name.replace("\\", "/").rsplit("/", 1)[-1].lower()
    return next(
        (model for model in ARCHITECTURES.values() if name.startswith(tuple(map(str.lower, model.files)))), None
    )


@dataclass(frozen=True)
class NativeCase(Case):
    """A training of what ComfyUI loaded.

    Attributes:
        weights_bytes: the frozen weights, all networks together.
        trained: parameters of the adapter.
        checkpointing: blocks are computed again in the backward pass. None: decided by memory.
        is_low_memory: all weights but a block's stay in main memory; else as far as they do not fit.
        tiling: pictures are decoded in tiles.
        encoder_bytes, vae_bytes: of the text encoders' and the autoencoder's weights.
        compute_bytes: of one number in the blocks.
        encoder_stays: text encoders stay in main memory; else their weights are pages of their files. None: decided by memory.
        kept_blocks: with checkpointing, so many last blocks of a network are not computed again. None: decided by memory.
    """

    model: Architecture
    weights_bytes: int
    trained: int
    iteration: Iteration
    checkpointing: bool | None = None
    is_low_memory: bool = False
    tiling: bool = False
    encoder_bytes: int = 0
    vae_bytes: int = 0
    compute_bytes: int = COMPUTE_BYTES
    machine: Machine = ANY_GPU
    encoder_stays: bool | None = None
    kept_blocks: int | None = 0

    @property
    def title(self) -> str:
        return self.model.title

    @cached_property
    def streamed(self) -> int:
        """Bytes of the weights that stay in main memory while the network computes, and come to it at every call.

        One of two networks computes; the other leaves for it.
        """
        computing = (self.needs.phases[phase].get("weights", 0) for phase in (SAMPLING, UPDATE))
        return max(0, self.weights_bytes // self.model.networks - min(computing))

    @property
    def travelling(self) -> str:
        """For a human: what is streamed, and how often; "" where nothing is."""
        # `frozen` fetches a weight for its call, when that is computed again, and for the gradient.
        words = (
            "of the weights stay in main memory: each call of the network brings them to the GPU, a trained one 3 times"
        )
        return f"{self.streamed / GB:.1f} GB {words}" if self.streamed else ""

    def stays_with(self, way: Way) -> bool:
        """Whether a change that leaves size and gradient as they are has all weights stay where they compute."""
        changed = self._with(way)
        return not (
            {"size", "pull"} & way.iteration.keys() or changed.streamed or changed.needs.total > self.machine.has
        )

    @property
    def loaded(self) -> int:
        """Bytes of what ComfyUI's loaders put into main memory, where it is while it is not on the GPU."""
        return self.weights_bytes + self.encoder_bytes + self.vae_bytes

    @property
    def ram(self) -> int:
        """Bytes of main memory that the training takes; on a GPU those of all weights."""
        if not self.machine.device:
            return self.needs.total
        return self.loaded + sum(judge.bytes for judge in self.iteration.rewards)

    def open(self) -> Iterator[Choice]:
        if self.encoder_stays is None and not self.machine.device:  # on a GPU it visits
            stays, goes = (Way("", case={"encoder_stays": stays}) for stays in (True, False))
            yield stays, goes, "text encoder"
        if self.checkpointing is None:
            off, on = (Way("", case={"checkpointing": on}) for on in (False, True))
            yield off, on, "activations"

    def filled(self) -> Self:
        if self.kept_blocks is not None:
            return self
        ways = [replace(self, kept_blocks=count) for count in range(self.model.layers if self.checkpointing else 1)]
        return most(ways, "activations", "kept graph")

    def held(self) -> Held:
        visit, block = bool(self.machine.device), self.weights_bytes // (self.model.networks * self.model.layers)
        return Held(
            weights=block if visit and self.is_low_memory else self.weights_bytes,
            trained=self.trained,
            encoders=0
            if self.encoder_stays is False
            else self.encoder_bytes,  # pages of its files make way for anything
            vae=self.vae_bytes,
            loading=self.weights_bytes + self.encoder_bytes + RESERVE if self.encoder_stays is False else 0,
            encoders_visit=visit,
            vae_visit=visit,
            # What needs room asks ComfyUI for it, which lets others leave, and computes with what is not there layer by layer.
            steps_aside=(ENCODING, DECODING) if visit else (),
            streams={
                ENCODING: ("text encoder", self.encoder_bytes // ENCODER_LAYERS),
                **dict.fromkeys((SAMPLING, UPDATE), ("weights", block)),
                **dict.fromkeys((SCORING, JUDGING, UNDECODING), ("weights", 0)),
            }
            if visit
            else {},
        )

    def latent(self) -> int:
        return 4 * self.model.values * self.model.picture_tokens(*self.iteration.size)

    def forward(self, samples: int) -> int:
        return self._vectors(samples * self._rows, self.model.saved + OUTSIDE)

    def graph(self, samples: int) -> Graph:
        rows, saved, layers = samples * (self._rows if self.iteration.both else 1), self.model.saved, self.model.layers
        again, whole = self.checkpointing is not False, self.kept_blocks or 0
        kept = self._vectors(rows, layers - whole + whole * saved + OUTSIDE if again else layers * saved)
        backward = self._vectors(rows, GRADIENTS + (saved if again and not whole else 0))
        return Graph(kept, kept + backward, backward)

    def decoding(self, samples: int) -> int:
        return self.model.vae.decoding(self.iteration.size, self.tiling)  # one after another, if there is little room

    def decoder(self, samples: int, tile: int) -> Graph:
        sample = self.model.vae.with_gradient(self.iteration.size, tile, self.checkpointing is not False)
        return Graph(samples * sample.kept, samples * sample.peak, samples * sample.backward)

    def decoding_at_once(self, samples: int) -> int:
        return samples * self.model.vae.decoding(self.iteration.size, tiled=False)

    @property
    def _rows(self) -> int:
        return 2 if self.iteration.guided else 1

    def _vectors(self, rows: int, count: float) -> int:
        tokens = self.model.tokens(*self.iteration.size, self.iteration.references)
        return round(rows * tokens * self.model.width * self.compute_bytes * count)

    def ways(self) -> Iterator[Way]:
        it, fp8 = self.iteration, self.model.networks * self.model.params
        make = (MAKE_NODE,)
        has_gpu = bool(self.machine.device)
        yield from it.ways(has_gpu)
        checkpointing = ((make, "checkpointing", "on"),)
        yield Way("Make Trainable checkpointing on", case={"checkpointing": True, "kept_blocks": 0}, sets=checkpointing)
        yield Way("Make Trainable vae_tiling on", case={"tiling": True}, sets=((make, "vae_tiling", True),))
        if fp8:
            kind = (("UNETLoader",), "weight_dtype", "fp8_e4m3fn")
            yield Way("fp8 weights", case={"weights_bytes": min(self.weights_bytes, fp8)}, sets=(kind,))
        yield from it.elsewhere() if has_gpu else ()
        yield from it.smaller(self.model.sizes)
