"""Pictures from latents and back by ComfyUI's VAE, in a core's scale of latents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .expert import ordinary

if TYPE_CHECKING:
    from comfy.model_base import BaseModel
    from comfy.sd import VAE
    from torch import Tensor

# Under inference_mode, as ComfyUI's nodes are: some of its autoencoders write over what they have computed.


def decoded(vae: VAE, core: BaseModel, latents: Tensor, tiled: bool) -> Tensor:
    """What the VAE makes of latents [B, C, (F,) h, w], in [0, 1] on the CPU; pictures may have an axis of one frame."""
    with torch.inference_mode():
        plain = core.process_latent_out(latents.float())
        made = vae.decode_tiled(plain) if tiled else vae.decode(plain)
    return ordinary(made)[..., :3].float().clamp(0, 1).cpu()


def encoded(vae: VAE, core: BaseModel, image: Tensor, has_frames: bool, tiled: bool) -> Tensor:
    """Latents [1, C, (F,) h, w] on the CPU, of one picture [H, W, 3] or one video [F, H, W, 3].

    Of one alone: to some of ComfyUI's autoencoders a batch of pictures is a video.

    Args:
        has_frames: whether the core's latents have an axis of frames, as those of pictures may too.
    """
    frames = image if image.ndim == 4 else image.unsqueeze(0)
    with torch.inference_mode():
        made = vae.encode_tiled(frames) if tiled else vae.encode(frames)
        made = made.unsqueeze(2) if has_frames and made.ndim == 4 else made
        latents = core.process_latent_in(made.float())
    return ordinary(latents).float().cpu()
