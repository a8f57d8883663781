"""Tiny random models of the flow families that ComfyUI has, as the real objects that its loader nodes return.

It runs inside ComfyUI's interpreter, after comfy.cli_args.args.cpu was set.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import comfy.supported_models
import torch

from . import pictures, videos
from .parts import Family, TinyVAE, tiny_clip
from .weights import NEW, seeded, tiny_model

FAMILIES: dict[str, Family] = pictures.FAMILIES | videos.FAMILIES

# The classes of comfy.supported_models that are not in these tables, and why.
NO_FLOW = "no flow matching"
COSMOS = "flow matching in another parametrisation: its noise level runs to 80 and its velocity is scaled"
SOUND = "makes sound"
SOLID = "makes 3D shapes"
SEES = "looks at pictures, makes none"

NOT: dict[str, str] = {
    **dict.fromkeys(
        (
            *("LotusD", "Stable_Zero123", "SD15_instructpix2pix", "SD15", "SD20", "SD21UnclipL", "SD21UnclipH"),
            *("SDXL_instructpix2pix", "SDXLRefiner", "SSD1B", "KOALA_700M", "KOALA_1B", "Segmind_Vega"),
            *("SD_X4Upscaler", "Stable_Cascade_C", "Stable_Cascade_B", "SV3D_u", "SV3D_p", "SVD_img2vid"),
            *("PixArtAlpha", "PixArtSigma", "HunyuanDiT", "HunyuanDiT1", "CosmosT2V", "CosmosI2V"),
            *("CogVideoX_T2V", "CogVideoX_I2V", "CogVideoX_Inpaint"),
        ),
        NO_FLOW,
    ),
    **dict.fromkeys(("CosmosT2IPredict2", "CosmosI2VPredict2"), COSMOS),
    "WAN21_FlowRVS": "a flow from a picture to a picture, not from noise",
    **dict.fromkeys(("StableAudio", "StableAudio3", "ACEStep", "ACEStep15", "MiniMaxMusic3"), SOUND),
    **dict.fromkeys(("Hunyuan3Dv2mini", "Hunyuan3Dv2", "Hunyuan3Dv2_1", "TripoSplat", "Trellis2"), SOLID),
    "HiDreamO1": "its noise is scaled by 8 (noise_scale)",
    **dict.fromkeys(("RT_DETR_v4", "SAM3", "SAM31", "DepthAnything3"), SEES),
}


@dataclass(frozen=True)
class Tiny:
    """A MODEL, a CLIP and a VAE of one family, and a size that it takes."""

    name: str
    model: object
    clip: object
    vae: object
    height: int
    width: int
    frames: int
    extra: dict = field(default_factory=dict)  # further keys that every cond needs
    shape: tuple = ()  # of the latent of one sample
    batch: int = 2  # samples that the network takes in one call: 1 or any number

    def conditioning(self, text: str) -> list:
        """A CONDITIONING, as a text node and the family's own nodes would make it."""
        tokens = self.clip.tokenize(text)
        return [[cond, keys | self.extra] for cond, keys in self.clip.encode_from_tokens_scheduled(tokens)]

    def noise(self, batch: int = 1, seed: int = 0) -> torch.Tensor:
        """Seeded noise of the latent's form."""
        return seeded((batch, *self.shape), seed)


def families() -> list[str]:
    """The families that this ComfyUI has."""
    classes = {cls.__name__ for cls in comfy.supported_models.models}
    return [name for name, family in FAMILIES.items() if (family.of or name) in classes and (NEW or not family.new)]


def build(name: str, seed: int = 0, dtype: torch.dtype = torch.float32, quantized: str | None = None) -> Tiny:
    """`dtype` float8_e4m3fn is what the loader's weight_dtype does; `quantized` is a format of comfy.quant_ops."""
    family = FAMILIES[name]
    model = tiny_model(family, name, seed, dtype, quantized)
    latents = model.model.latent_format
    frames = (family.frames - 1) // family.down_time + 1
    time = (frames,) if latents.latent_dimensions == 3 else ()
    channels = family.channels or latents.latent_channels
    shape = (channels, *time, family.height // family.down, family.width // family.down)
    decoded = latents.process_out(torch.zeros(1, *shape)).shape[1]  # some formats fold frames into channels
    return Tiny(
        name=name,
        model=model,
        clip=tiny_clip(family.text, seed + 1),
        vae=TinyVAE(decoded, latents.latent_dimensions, family.down, family.down_time, seed + 2),
        height=family.height,
        width=family.width,
        frames=family.frames,
        extra=family.conditions(shape, lambda *size: seeded(size, seed + 3)) if family.conditions else {},
        batch=family.batch,
        shape=shape,
    )
