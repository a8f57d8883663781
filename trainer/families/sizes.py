"""Sizes that a family can make, its noise schedule and its guidance, by its configuration alone.

The loaded model and the checks of a graph before anything is loaded ask the same functions: `config` is what a component's
config.json holds, whether diffusers has read it or not. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..schedule import noise_levels
from ..workflow.problem import Misfit

if TYPE_CHECKING:
    from ..types import SamplerSettings

Config = Mapping[str, Any]
PATCH = 2  # latent positions a side of one token of most families


@dataclass(frozen=True)
class LatentGrid:
    """How a family's latents lie over the pixels.

    Attributes:
        channels: C.
        scale: pixels a side of one latent position.
        patch: latent positions a side of one token.
        tokens: a side has a multiple of so many.
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
    tokens: int = 1

    @property
    def unit(self) -> int:
        """Pixels of which a side has a multiple."""
        return self.scale * self.patch * self.tokens

    def misfits(self, height: int, width: int, frames: int = 1) -> Iterator[Misfit]:
        for name, pixels in (("width", width), ("height", height)):
            if pixels % self.unit or pixels <= 0:
                message = f"width {width} and height {height} must be multiples of {self.unit} for this model"
                yield Misfit(name, message, f"for example {max(1, round(pixels / self.unit)) * self.unit}")
            elif pixels // (self.scale * self.patch) > self.most:
                most = self.most * self.scale * self.patch
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


# FLUX Kontext's (width, height): those that it was trained with, by its makers' code.
KONTEXT_SIZES = (
    *((672, 1568), (688, 1504), (720, 1456), (752, 1392), (800, 1328), (832, 1248), (880, 1184), (944, 1104)),
    (1024, 1024),
    *((1104, 944), (1184, 880), (1248, 832), (1328, 800), (1392, 752), (1456, 720), (1504, 688), (1568, 672)),
)


def kontext_size(width: int, height: int, area: int, unit: int) -> tuple[int, int]:
    """(width, height) of a picture that FLUX Kontext works on: the nearest of KONTEXT_SIZES in shape, scaled to that area.

    `area`: of what is sampled; at 1024 x 1024 it is one of KONTEXT_SIZES itself.
    `unit`: pixels, of which a side has a multiple.
    """
    _, *nearest = min((abs(width / height - across / down), across, down) for across, down in KONTEXT_SIZES)
    scale = math.sqrt(area) / 1024
    across, down = (max(1, round(side * scale / unit)) * unit for side in nearest)
    return across, down


def area_size(width: int, height: int, area: int, unit: int = 32) -> tuple[int, int]:
    """(width, height) of a picture scaled to an area, as Qwen-Image-Edit's pipelines reckon it."""
    across = math.sqrt(area * (width / height))
    down = across / (width / height)
    return max(1, round(across / unit)) * unit, max(1, round(down / unit)) * unit


def flux(vae: Config, transformer: Config) -> LatentGrid:
    return LatentGrid(vae["latent_channels"], _scale(vae), PATCH)


def flux2(vae: Config, transformer: Config) -> LatentGrid:
    """A patch of the autoencoder's latents is one position, and one token."""
    side = vae.get("patch_size", (PATCH, PATCH))[0]
    return LatentGrid(vae["latent_channels"] * side**2, _scale(vae) * side, patch=1)


def stable_diffusion_3(vae: Config, transformer: Config) -> LatentGrid:
    return LatentGrid(vae["latent_channels"], _scale(vae), PATCH, most=transformer.get("pos_embed_max_size", 96))


def wan(vae: Config, transformer: Config) -> LatentGrid:
    scale, most = vae.get("scale_factor_spatial", 8), transformer.get("rope_max_seq_len", 1024)
    time = vae.get("scale_factor_temporal", 4)
    return LatentGrid(vae.get("z_dim", 16), scale, transformer["patch_size"][1], most, time, most)


def qwen_image(vae: Config, transformer: Config) -> LatentGrid:
    return LatentGrid(vae["z_dim"], 2 ** len(vae["temperal_downsample"]), PATCH)


def qwen_image_21(vae: Config, transformer: Config) -> LatentGrid:
    """A position is a token, and the language model's picture has one for 2 x 2 of them."""
    return LatentGrid(vae["z_dim"], 2 ** len(vae["temperal_downsample"]), patch=1, tokens=2)


def _scale(vae: Config) -> int:
    return 2 ** (len(vae["block_out_channels"]) - 1)


@dataclass(frozen=True)
class Guidance:
    """How a family's classifier-free guidance g is meant: the velocity is v⁻ + w·(v - v⁻) with w = g + 1 - off.

    Attributes:
        off: the highest g at which the network is called only once, with w = 1.
        keeps_norm: each token is scaled to the norm that it has in v, which has a gradient too.
    """

    off: float
    keeps_norm: bool = False

    def weight(self, guidance: float) -> float:
        return guidance + 1 - self.off


SCALE = Guidance(off=1.0)  # Ho and Salimans' w, of most families
STRENGTH = Guidance(off=0.0)  # v + g·(v - v⁻)


@dataclass(frozen=True)
class Checkpoint:
    """The facts of a model's folder by its configuration files.

    Attributes:
        index: model_index.json, or the loaded pipeline's own configuration.
    """

    family: str
    index: Config
    scheduler: Config
    vae: Config
    transformer: Config

    @property
    def grid(self) -> LatentGrid:
        return self._rules.grid(self.vae, self.transformer)

    @property
    def guidance(self) -> Guidance | None:
        """None: guidance is a number that the network takes."""
        return self._rules.guidance

    @property
    def is_distilled(self) -> bool:
        """Whether it was made to need few steps and no guidance."""
        return self._rules.distilled(self)

    @property
    def takes_pictures(self) -> bool:
        """Whether a prompt's picture may be the first frame of its video: the network takes a timestep for each token."""
        return bool(self.index.get("expand_timesteps"))

    @property
    def needs_pictures(self) -> bool:
        """Whether it makes videos of pictures, and of nothing else."""
        return self._rules.needs_pictures

    @property
    def edits(self) -> int:
        """How many pictures a prompt may name that the network works on."""
        return self._rules.edits

    @property
    def terminal(self) -> float:
        """The last noise level before 0 of its own schedule; 0: wherever the shift puts it."""
        return self.scheduler.get("shift_terminal") or 0.0

    @property
    def levels(self) -> tuple[float, ...]:
        """The noise levels that it was distilled to, before the shift and without the 0 at the end; none: evenly spaced ones."""
        levels = self.index.get("sample_sigmas")
        return tuple(levels) if isinstance(levels, list | tuple) else ()

    @property
    def _rules(self) -> Family:
        return RULES[self.family]

    def tokens(self, height: int, width: int) -> int:
        """How many tokens one frame of that size has, which it can make."""
        *_, rows, columns = self.grid.shape(height, width)
        return rows * columns // self.grid.patch**2

    def shift(self, settings: SamplerSettings) -> float:
        """The timestep shift that it asks for at a size that it can make.

        Raises:
            ValueError: what its scheduler's configuration says is not a shift at this size; a stranger may have written it.
        """
        height, width = settings.height, settings.width
        try:
            shift = self._rules.asked(self, self.tokens(height, width), settings.steps)
            if not 0 < shift < math.inf:
                raise ValueError(f"it is {shift}")
            if not 0 <= self.terminal < 1:
                raise ValueError(f"its shift_terminal is {self.terminal}")
            if not 0 <= (least := self._least(settings.steps, shift)) <= 1:
                raise ValueError(f"its last level before 0 is {least}")
        except (TypeError, ValueError, ArithmeticError) as error:
            message = f"its scheduler_config.json gives no timestep shift at {width}x{height} ({error})"
            raise ValueError(f"{message}. Fix: copy that file again, or set shift on SDE Sampler") from error
        if flag := next(filter(self.scheduler.get, OTHER_LEVELS), None):
            message = f"its scheduler_config.json sets {flag}, which makes noise levels that are not computed here"
            raise ValueError(f"{message}. Fix: set {flag} to false there, or set shift on SDE Sampler")
        if any(not 1 >= level > after for level, after in pairwise((*self.levels, 0))):
            message = f"the sample_sigmas {list(self.levels)} of its model_index.json do not fall from 1 towards 0"
            raise ValueError(f"{message}. Fix: copy that file again, or set shift on SDE Sampler")
        return shift

    def sigmas(self, settings: SamplerSettings) -> tuple[float, ...]:
        """T+1 noise levels from 1 to 0, see `schedule.noise_levels`. Raises ValueError as `shift`."""
        if settings.shift:
            return noise_levels(settings, settings.shift, least=self._least(settings.steps, settings.shift))
        shift = self.shift(settings)
        return noise_levels(settings, shift, self.terminal, self.levels, self._least(settings.steps, shift))

    def _least(self, steps: int, shift: float) -> float:
        """The last u before 0 where its pipeline leaves the levels to its scheduler; Euler's has shifted it once already."""
        if self._rules.gives_levels:
            return 0.0
        least = 1 / self.scheduler.get("num_train_timesteps", 1000)
        if self.scheduler.get("use_flow_sigmas"):  # UniPC, which leaves out the last of one level more
            return least + (1 - least) / steps
        return least if self.scheduler.get("use_dynamic_shifting") else shift * least / (1 + (shift - 1) * least)

    def misfits(self, settings: SamplerSettings) -> Iterator[Misfit]:
        """The settings that it cannot sample with."""
        yield from self.grid.misfits(settings.height, settings.width, settings.frames)
        for name in ("guidance", "guidance_2"):
            value = getattr(settings, name)
            if self.guidance and self.is_distilled and value > self.guidance.off:
                message = f"{name} {value:g}: this checkpoint is distilled, and was made to be sampled without guidance"
                yield Misfit(name, message, f"set {name} to {self.guidance.off if name == 'guidance' else 0:g}")


def image_shift(checkpoint: Checkpoint, tokens: int, steps: int, most: int = 4096) -> float:
    """FLUX.1-dev, SD3.5 and others: e^μ, where μ rises with the number of tokens; else one for every size."""
    scheduler = checkpoint.scheduler
    if not scheduler.get("use_dynamic_shifting"):
        return scheduler.get("shift", 1.0)
    least, most = scheduler.get("base_image_seq_len", 256), scheduler.get("max_image_seq_len", most)
    low, high = scheduler.get("base_shift", 0.5), scheduler.get("max_shift", 1.15)
    slope = (high - low) / (most - least)
    return _shift(scheduler, tokens * slope + (low - slope * least))


def krea2_shift(checkpoint: Checkpoint, tokens: int, steps: int) -> float:
    """The shift of `image_shift`, with more tokens for its usual; Turbo's is one for every size."""
    if checkpoint.is_distilled and checkpoint.scheduler.get("use_dynamic_shifting"):
        return _shift(checkpoint.scheduler, 1.15)
    return image_shift(checkpoint, tokens, steps, most=6400)


def empirical_shift(checkpoint: Checkpoint, tokens: int, steps: int) -> float:
    """FLUX.2: e^μ, where μ is linear in the steps, between those of 10 and of 200, which are linear in the tokens."""
    if not checkpoint.scheduler.get("use_dynamic_shifting"):
        return checkpoint.scheduler.get("shift", 1.0)
    many = 0.00016927 * tokens + 0.45666666
    few = many if tokens > 4300 else 8.73809524e-05 * tokens + 1.89833333
    return _shift(checkpoint.scheduler, many + (many - few) / 190 * (steps - 200))


def video_shift(checkpoint: Checkpoint, tokens: int, steps: int) -> float:
    return checkpoint.scheduler.get("flow_shift") or checkpoint.scheduler.get("shift") or 1.0


def _shift(scheduler: Config, mu: float) -> float:
    return mu if scheduler.get("time_shift_type") == "linear" else math.exp(mu)


@dataclass(frozen=True)
class Family:
    """A family, by its pipeline's name in diffusers: where its class is, and its rules.

    Attributes:
        model: its class in this folder.
        grid: of its latents, by the configuration of its autoencoder and its network.
        asked: the shift that a checkpoint asks for, for so many tokens of a picture and so many steps.
        guidance, distilled: see `Checkpoint`.
        tokenizer: the folder of the one of its longest text encoder.
        most_tokens: of a prompt, the most that it was trained for.
        needs_pictures: prompts have to name a picture each.
        edits: the most pictures of a prompt that the network works on.
        gives_levels: its pipeline gives its scheduler evenly spaced noise levels, and not only how many there are.
        parts: what its index names beside SCHEDULER and NETWORKS; a checkpoint may say that it does without one.
    """

    model: str
    grid: Callable[[Config, Config], LatentGrid]
    asked: Callable[[Checkpoint, int, int], float]
    guidance: Guidance | None = SCALE
    distilled: Callable[[Checkpoint], bool] = lambda checkpoint: bool(checkpoint.index.get("is_distilled"))
    tokenizer: str = "tokenizer"
    most_tokens: int = 512
    needs_pictures: bool = False
    edits: int = 0
    gives_levels: bool = True
    parts: tuple[str, ...] = ("text_encoder", "tokenizer")


# Settings of a scheduler that replace the levels that it is given.
OTHER_LEVELS = ("use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "use_lu_lambdas", "invert_sigmas")
SCHEDULER, NETWORKS = "scheduler", ("transformer", "vae")  # which no checkpoint does without
TWO = ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2")
RULES = {
    "FluxPipeline": Family("flux.Flux", flux, image_shift, guidance=None, tokenizer="tokenizer_2", parts=TWO),
    "FluxKontextPipeline": Family(
        "flux.FluxKontext", flux, image_shift, guidance=None, tokenizer="tokenizer_2", edits=1, parts=TWO
    ),
    "Flux2Pipeline": Family("flux.Flux2", flux2, empirical_shift, guidance=None),
    "Flux2KleinPipeline": Family("flux.Flux2Klein", flux2, empirical_shift),
    "StableDiffusion3Pipeline": Family(
        "sd3.StableDiffusion3",
        stable_diffusion_3,
        image_shift,
        tokenizer="tokenizer_3",
        most_tokens=256,
        gives_levels=False,
        parts=(*TWO, "text_encoder_3", "tokenizer_3"),
    ),
    "WanPipeline": Family("wan.Wan", wan, video_shift, gives_levels=False),
    "WanImageToVideoPipeline": Family("wan.WanImageToVideo", wan, video_shift, needs_pictures=True, gives_levels=False),
    "QwenImagePipeline": Family(
        "qwen.QwenImage", qwen_image, image_shift, Guidance(off=1.0, keeps_norm=True), most_tokens=1024
    ),
    **{
        f"QwenImageEdit{kind}Pipeline": Family(
            f"qwen.QwenImageEdit{kind}",
            qwen_image,
            image_shift,
            Guidance(off=1.0, keeps_norm=True),
            most_tokens=1024,
            needs_pictures=True,
            edits=most,
            parts=("text_encoder", "tokenizer", "processor"),
        )
        for kind, most in (("", 1), ("Plus", 3))
    },
    # It has no limit of its own but the positions of its tokens, and only Turbo brings noise levels.
    "QwenImage21Pipeline": Family(
        "qwen.QwenImage21",
        qwen_image_21,
        image_shift,
        distilled=lambda checkpoint: bool(checkpoint.levels),
        tokenizer="processor",
        most_tokens=8192,
        parts=("text_encoder", "processor"),
    ),
    "Krea2Pipeline": Family("krea2.Krea2", qwen_image, krea2_shift, STRENGTH),
    # Nothing in Z-Image's folder says that it is Turbo's, nor does diffusers ask. But Turbo alone has a shift of 3: the base
    # model's is 6. A scheduler that somebody has changed deceives this.
    "ZImagePipeline": Family(
        "zimage.ZImage", flux, image_shift, STRENGTH, lambda checkpoint: checkpoint.scheduler.get("shift") == 3
    ),
}
