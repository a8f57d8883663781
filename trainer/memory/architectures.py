"""The published models for which memory is estimated: shapes, counts and sizes, each with its source.

Imports neither torch nor ComfyUI.
"""

from __future__ import annotations

from dataclasses import dataclass

COMPUTE_BYTES = 2  # activations are bfloat16, ComfyUI's choice on a GPU that has it
TILE = 512  # pixels of a side; ComfyUI's own size of tiles (VAEDecodeTiled in nodes.py)
# Of a model that is not listed below: vectors of its width that autograd keeps for each token and block. The most of those that
# are, for which bench/architectures.py counted them.
SAVED = 35.0


@dataclass(frozen=True)
class Autoencoder:
    """A VAE.

    Attributes:
        bytes: of its file.
        decode: values that decoding takes for each pixel of a frame, of a picture and of a video.
    """

    bytes: int
    decode: tuple[int, int]

    def needs(self, width: int, height: int, frames: int, tiled: bool) -> int:
        pixels = min(width, TILE) * min(height, TILE) if tiled else width * height
        return self.bytes + self.decode[frames > 1] * pixels * COMPUTE_BYTES


# Values a pixel: memory_used_decode in comfy/sd.py of ComfyUI 0.33, per latent pixel there. Videos are decoded piece by piece,
# so their number of frames does not count. Sizes: the files' pages on huggingface.co.
FLUX_VAE = Autoencoder(335_000_000, (2178, 2178))
FLUX2_VAE = Autoencoder(336_000_000, (2178, 2178))
WAN21_VAE = Autoencoder(254_000_000, (2200, 7000))  # Qwen-Image's and Krea 2's are of this kind
WAN22_VAE = Autoencoder(1_410_000_000, (8000, 8000))


@dataclass(frozen=True)
class Architecture:
    """A published model.

    Attributes:
        title: its name in docs/models.md.
        files: how the names of its files begin, in ComfyUI's templates and repositories.
        params: of one network; `networks` of them.
        width, layers: of the blocks; streams of two kinds count as the blocks that they are.
        saved: as in `estimate`.
        lora: trained parameters for each unit of rank, with an adapter on all Linear layers of the blocks but the modulation.
        pixels: of a side of one token; a video's token also spans four frames.
        text_tokens: that stand in one sequence with those of the picture.
        rows: of a sample in one forward pass as its template samples, 2 with classifier-free guidance.
        embeds_guidance: guidance is an input of the network, and takes no second row.
        encoder_bytes: the file or files that ComfyUI's template loads.
        weights: kinds that are published or that UNETLoader makes, best first.
        sizes: width, height, frames, largest first.
    """

    title: str
    files: tuple[str, ...]
    params: int
    width: int
    layers: int
    lora: int
    encoder_bytes: int
    vae: Autoencoder
    saved: float = SAVED
    pixels: int = 16
    text_tokens: int = 256
    rows: int = 1
    embeds_guidance: bool = False
    networks: int = 1
    weights: tuple[str, ...] = ("bfloat16", "fp8")
    sizes: tuple[tuple[int, int, int], ...] = ((1024, 1024, 1), (768, 768, 1), (512, 512, 1))

    def tokens(self, width: int, height: int, frames: int = 1) -> int:
        frames_of_tokens = (frames - 1) // 4 + 1
        return (width // self.pixels) * (height // self.pixels) * frames_of_tokens + self.text_tokens


# Widths and blocks: the configurations that comfy/model_detection.py (0.33) reads off each file, klein's those of
# black-forest-labs/flux2 (Klein4BParams, Klein9BParams). params, lora, saved: bench/architectures.py counts them on ComfyUI's own
# classes. Text tokens: prompts are padded to 256 (FLUX.1) or 512 (klein) by comfy/text_encoders/flux.py; others are as long as
# the prompt, taken as 256; Wan's stand in no sequence with the video's. Encoders: sizes of the files on huggingface.co that
# ComfyUI's templates name.
ARCHITECTURES = {
    "z_image": Architecture(
        title="Z-Image",
        files=("z_image",),
        params=6_154_908_736,
        width=3840,
        layers=32,  # 30, and 2 for the picture alone
        lora=2_219_520,
        encoder_bytes=8_044_982_048,  # qwen_3_4b
        vae=FLUX_VAE,
        saved=34.2,
    ),
    "krea2": Architecture(
        title="Krea 2",
        files=("krea2",),
        params=12_820_073_036,
        width=6144,
        layers=28,
        lora=3_354_624,
        encoder_bytes=5_200_000_000,  # qwen3vl_4b_fp8_scaled
        vae=WAN21_VAE,
        saved=29.8,
        rows=2,
    ),
    "qwen_image": Architecture(
        title="Qwen-Image",
        files=("qwen_image",),
        params=20_430_401_088,
        width=3072,
        layers=60,
        lora=6_635_520,
        encoder_bytes=9_380_000_000,  # qwen_2.5_vl_7b_fp8_scaled
        vae=WAN21_VAE,
        saved=24.4,
        rows=2,
    ),
    "flux2_klein_4b": Architecture(
        title="FLUX.2 klein 4B",
        files=("flux-2-klein-4b", "flux-2-klein-base-4b"),
        params=3_875_544_576,
        width=3072,
        layers=25,
        lora=1_443_840,
        encoder_bytes=8_044_982_048,  # qwen_3_4b
        vae=FLUX2_VAE,
        saved=27.0,
        text_tokens=512,
    ),
    "flux2_klein_9b": Architecture(
        title="FLUX.2 klein 9B",
        files=("flux-2-klein-9b", "flux-2-klein-base-9b"),
        params=9_078_581_248,
        width=4096,
        layers=32,
        lora=2_588_672,
        encoder_bytes=8_700_000_000,  # qwen_3_8b_fp8mixed
        vae=FLUX2_VAE,
        saved=27.0,
        text_tokens=512,
    ),
    "flux1": Architecture(
        title="FLUX.1",
        files=("flux1", "flux_dev", "flux_schnell"),
        params=11_901_408_320,
        width=3072,
        layers=57,
        lora=3_502_080,
        encoder_bytes=9_790_000_000 + 246_144_152,  # t5xxl_fp16, clip_l
        vae=FLUX_VAE,
        saved=22.9,
        embeds_guidance=True,
    ),
    "wan22_5b": Architecture(
        title="Wan 2.2 5B",
        files=("wan2.2_ti2v_5B",),
        params=4_999_787_712,
        width=3072,
        layers=30,
        lora=2_519_040,
        encoder_bytes=6_740_000_000,  # umt5_xxl_fp8_e4m3fn_scaled
        vae=WAN22_VAE,
        saved=30.0,
        pixels=32,
        text_tokens=0,
        rows=2,
        sizes=((1280, 704, 121), (1280, 704, 49), (832, 480, 49), (640, 352, 49), (416, 256, 33)),
    ),
    "wan22_14b": Architecture(
        title="Wan 2.2 14B",
        files=("wan2.2_t2v_high_noise_14B", "wan2.2_t2v_low_noise_14B"),
        params=14_288_491_584,
        width=5120,
        layers=40,
        lora=4_792_320,
        encoder_bytes=6_740_000_000,  # umt5_xxl_fp8_e4m3fn_scaled
        vae=WAN21_VAE,
        saved=30.0,  # counted at the 5B's MLP, which is wider
        text_tokens=0,
        rows=2,
        networks=2,
        sizes=((832, 480, 81), (832, 480, 49), (640, 352, 49), (416, 240, 53)),
    ),
}


def architecture_of(file_name: str) -> Architecture | None:
    """The published model that a file's name belongs to, None where it is none of those."""
    name = file_name.replace("\\", "/").rsplit("/", 1)[-1].lower()
    return next(
        (model for model in ARCHITECTURES.values() if name.startswith(tuple(map(str.lower, model.files)))),
        None,
    )
