"""What sizes a family can make and which timestep shift it asks for, by its configuration alone.

The loaded model and whoever checks a graph before anything is loaded ask the same functions: `config` is what a component's
config.json holds, whether diffusers has read it or not. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..workflow.problem import Misfit

Config = Mapping[str, Any]
PATCH = 2  # latent positions a side of one token of FLUX and SD3


@dataclass(frozen=True)
class LatentGrid:
    """How a family's latents lie over the pixels.

    Attributes:
        channels: C.
        scale: pixels a side of one latent position.
        patch: latent positions a side of one token.
        most: tokens a side that the network has positions for.
        time: frames of one latent frame after the first; None: pictures only.
        most_frames: latent frames that the network has positions for.
    """

    channels: int
    scale: int
    patch: int
    most: float = math.inf
    time: int | None = None
    most_frames: float = math.inf

    def misfits(self, height: int, width: int, frames: int = 1) -> Iterator[Misfit]:
        unit = self.scale * self.patch
        for name, pixels in (("width", width), ("height", height)):
            if pixels % unit or pixels <= 0:
                message = f"width {width} and height {height} must be multiples of {unit} for this model"
                yield Misfit(name, message, f"for example {max(1, round(pixels / unit)) * unit}")
            elif pixels // unit > self.most:
                most = self.most * unit
                yield Misfit(name, f"{name} {pixels}: this model makes at most {most} pixels a side", f"at most {most}")
        if self.time is None:
            if frames != 1:
                message = f"frames {frames}: this model makes pictures"
                yield Misfit("frames", message, "set frames to 1, or load a video model")
        elif (frames - 1) % self.time:
            message = f"frames {frames} must be {self.time}·k + 1 for this model"
            yield Misfit("frames", message, f"for example {(frames - 1) // self.time * self.time + 1}")
        elif self._latent_frames(frames) > self.most_frames:
            most = (self.most_frames - 1) * self.time + 1
            yield Misfit("frames", f"frames {frames}: this model makes at most {most} frames", f"at most {most}")

    def shape(self, height: int, width: int, frames: int = 1) -> tuple[int, ...]:
        """[C, h, w], or [C, F, h, w] of a video. Raises ValueError for a size that cannot be made."""
        if misfit := next(self.misfits(height, width, frames), None):
            raise ValueError(str(misfit))
        side = height // self.scale, width // self.scale
        return (self.channels, *side) if self.time is None else (self.channels, self._latent_frames(frames), *side)

    def _latent_frames(self, frames: int) -> int:
        assert self.time is not None, "a model of pictures has no frames"
        return (frames - 1) // self.time + 1


def flux(vae: Config, transformer: Config) -> LatentGrid:
    return LatentGrid(vae["latent_channels"], _scale(vae), PATCH)


def stable_diffusion_3(vae: Config, transformer: Config) -> LatentGrid:
    return LatentGrid(vae["latent_channels"], _scale(vae), PATCH, most=transformer.get("pos_embed_max_size", 96))


def wan(vae: Config, transformer: Config) -> LatentGrid:
    scale, most = vae.get("scale_factor_spatial", 8), transformer.get("rope_max_seq_len", 1024)
    time = vae.get("scale_factor_temporal", 4)
    return LatentGrid(vae.get("z_dim", 16), scale, transformer["patch_size"][1], most, time, most)


def _scale(vae: Config) -> int:
    return 2 ** (len(vae["block_out_channels"]) - 1)


def image_shift(scheduler: Config, grid: LatentGrid, height: int, width: int) -> float:
    """FLUX.1-dev and SD3.5: e^μ, where μ rises with the number of tokens; else one for every size."""
    if not scheduler.get("use_dynamic_shifting"):
        return scheduler.get("shift", 1.0)
    _, rows, columns = grid.shape(height, width)
    least, most = scheduler.get("base_image_seq_len", 256), scheduler.get("max_image_seq_len", 4096)
    low, high = scheduler.get("base_shift", 0.5), scheduler.get("max_shift", 1.15)
    slope = (high - low) / (most - least)
    return math.exp(rows * columns // grid.patch**2 * slope + (low - slope * least))


def video_shift(scheduler: Config, grid: LatentGrid, height: int, width: int) -> float:
    return scheduler.get("flow_shift") or scheduler.get("shift") or 1.0


@dataclass(frozen=True)
class Family:
    """The rules of one row of FAMILIES."""

    grid: Callable[[Config, Config], LatentGrid]
    asked: Callable[[Config, LatentGrid, int, int], float]

    def shift(self, scheduler: Config, grid: LatentGrid, height: int, width: int) -> float:
        """The timestep shift that a checkpoint asks for at a size that it can make.

        Raises:
            ValueError: what its scheduler's configuration says is no shift at this size; a stranger may have written it.
        """
        try:
            shift = self.asked(scheduler, grid, height, width)
            if not 0 < shift < math.inf:
                raise ValueError(f"it is {shift}")
        except (TypeError, ValueError, ArithmeticError) as error:
            message = f"its scheduler_config.json gives no timestep shift at {width}x{height} ({error})"
            raise ValueError(f"{message}. Fix: copy that file again, or set shift on the SDE Sampler") from error
        return shift


RULES = {
    "FluxPipeline": Family(flux, image_shift),
    "StableDiffusion3Pipeline": Family(stable_diffusion_3, image_shift),
    "WanPipeline": Family(wan, video_shift),
}
