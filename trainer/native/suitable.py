"""Which of ComfyUI's models can be trained, by what they say of themselves; the others are refused by name and reason."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..families.options import FlowModelError
from ..families.sizes import LatentGrid
from . import foreign

if TYPE_CHECKING:
    from comfy.model_patcher import ModelPatcher
    from comfy.sd import VAE

# Models of pictures whose latents have an axis of frames all the same, which is 1 long.
PICTURES_WITH_FRAMES = ("QwenImage", "Krea2", "HunyuanImage21Refiner")
# Models whose network takes the latents of a video and those of its sound, and never one without the other.
NEEDS_SOUND = ("MiniMaxH3",)
# How the names of models begin that make sound or solids, or only look at pictures, though they say that they are flows.
NO_PICTURES = ("ACE", "StableAudio", "Hunyuan3D", "TripoSplat", "Trellis", "RT_DETR", "SAM3", "DepthAnything")
# Classes of weights that can be read as numbers; GGMLTensor is that of ComfyUI-GGUF, whose layers unpack theirs themselves.
READABLE = ("Tensor", "Parameter", "QuantizedTensor", "GGMLTensor")


def check(model: ModelPatcher, name: str = "model") -> None:
    """Raises FlowModelError for a MODEL that is not a flow-matching model of pictures or videos as we can sample it."""
    kind, sampling = type(model.model).__name__, model.get_model_object("model_sampling")
    if problem := _of_sampling(sampling):
        own = model.object_patches_backup.get("model_sampling", model.model.model_sampling)
        if sampling is not own and not _of_sampling(own):
            put = foreign.Function("object_patches", sampling)  # of ComfyUI's own class, which any node may have taken
            node = "a node in front" if put.inner.__module__.startswith("comfy.") else put.node
            raise FlowModelError(f"{name}: behind {node} {kind} {problem}. Fix: connect the MODEL from before it")
        raise _refused(name, kind, problem)
    dimensions = model.model.latent_format.latent_dimensions
    if dimensions not in (2, 3) or "audio" in kind.lower() or kind.startswith(NO_PICTURES):
        raise _refused(name, kind, "makes no pictures and no videos")
    if kind in NEEDS_SOUND:
        raise _refused(name, kind, "makes sound along with its video, which nothing here samples")
    # A gradient is computed with the weights as numbers, and an unknown class may not give them
    network = model.model.diffusion_model
    for key, weight in network.named_parameters():
        stored = type(weight.data).__name__
        if stored not in READABLE:
            raise FlowModelError(
                f"{name}: the weights of {kind} are stored as {stored} ({key}), which cannot be read here. Fix: load a file in "
                "bfloat16 or fp8, or in a quantized format that ComfyUI's own loader knows"
            )
    if around := [function for function in foreign.functions(model, "") if function.kind in foreign.AROUND_SAMPLING]:
        raise FlowModelError(
            f"{name}: {foreign.titles(around)} works around a whole sampling, as where a step reuses what an earlier one has "
            "computed, and training takes single steps. Fix: connect the MODEL from before it; a KSampler after Tuned Model may "
            "have it"
        )


def _of_sampling(sampling: Any) -> str | None:
    """Why a ModelSampling is not ours; None where it is."""
    import comfy.model_sampling

    turns_pictures = getattr(comfy.model_sampling, "IMG_TO_IMG_FLOW", ())
    if isinstance(sampling, getattr(comfy.model_sampling, "COSMOS_RFLOW", ())):
        return "is a flow in another parametrisation, whose noise levels and velocities mean something else"
    if not isinstance(sampling, comfy.model_sampling.CONST) or isinstance(sampling, turns_pictures):
        return "does no flow matching: it predicts noise or turns pictures into pictures"
    scale = float(getattr(sampling, "noise_scale", 1.0) or 1.0)
    if not math.isclose(scale, 1.0):
        return f"starts from noise {scale:g} times as strong, which the SDE's steps do not know"
    return None


def check_vae(model: ModelPatcher, vae: VAE, name: str = "vae") -> None:
    """Raises FlowModelError for a VAE whose latents are not those of the MODEL."""
    import torch

    form, channels = model.model.latent_format, getattr(vae, "latent_channels", None)
    # Of the latents that the VAE takes: some models fold two frames into the channels of one.
    wanted = form.process_out(torch.zeros(1, form.latent_channels, *[1] * form.latent_dimensions)).shape[1]
    if makes_videos(model) and getattr(vae, "latent_dim", 3) == 2:
        raise FlowModelError(
            f"{name}: it decodes pictures, and {type(model.model).__name__} makes videos. Fix: load a VAE of videos that belongs "
            "to the model"
        )
    if channels != wanted:
        raise FlowModelError(
            f"{name}: its latents have {channels} channels, and those of {type(model.model).__name__} have {wanted}. Fix: load "
            "one that belongs to the model"
        )


def grid(model: ModelPatcher, vae: VAE) -> LatentGrid:
    """How the latents lie over the pixels."""
    core = model.model
    patch = getattr(core.diffusion_model, "patch_size", 1)
    if isinstance(patch, list | tuple):
        patch = patch[-1]
    time = vae.temporal_compression_decode() if makes_videos(model) else None
    return LatentGrid(
        core.latent_format.latent_channels, int(vae.spacial_compression_decode()), int(patch or 1), time=time
    )


def has_frames(model: ModelPatcher) -> bool:
    """Whether latents have an axis of frames, [C, F, h, w]."""
    return model.model.latent_format.latent_dimensions == 3


def makes_videos(model: ModelPatcher) -> bool:
    return has_frames(model) and type(model.model).__name__ not in PICTURES_WITH_FRAMES


def embeds_guidance(core: Any) -> bool:
    """Whether the guidance is an input of the network, as in distilled models."""
    return bool(core.model_config.unet_config.get("guidance_embed"))


def _refused(name: str, kind: str, reason: str) -> FlowModelError:
    return FlowModelError(
        f"{name}: {kind} {reason}. Fix: connect a flow-matching model of pictures or videos, such as FLUX, Z-Image, Qwen-Image, "
        "SD3 or Wan"
    )
