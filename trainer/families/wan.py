"""Wan 2.1 and 2.2: video latents [C, F, h, w]; UMT5 gives the sequence; guidance is classifier-free.

Wan 2.2-A14B has two networks of one shape: `transformer` denoises down to the boundary noise level, `transformer_2` below it.
Prompts of Wan 2.2-TI2V-5B may give the first frame: it is a part of the condition then, and latents are those of the others.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ...host import devices
from ..types import SamplerSettings
from . import given
from .base import EXAMPLE
from .condition import NEGATIVE, Condition, Embeddings
from .latents import NormalizedModel
from .pipeline import PipelineModel

FIRST = "first"  # latents of the first frame, where a picture gives it


class Wan(NormalizedModel):
    """`diffusers.WanPipeline`."""

    PIPELINE = "WanPipeline"
    COMPONENTS = ("transformer", "transformer_2", "vae", "text_encoder")
    EXPERTS = ("transformer", "transformer_2")
    LORA_TARGETS = ("to_q", "to_k", "to_v", "to_out.0", "ffn.net.0.proj", "ffn.net.2")
    LORA_PREFIX = "diffusion_model."

    def __init__(self, *parts):
        super().__init__(*parts)
        self._pictures = Embeddings(self._encode_pictures)

    def embed(self, texts: Sequence[str], device: torch.device) -> Condition:
        tokens, _ = self.pipeline.encode_prompt(
            list(texts), do_classifier_free_guidance=False, max_sequence_length=self.max_sequence_length, device=device
        )
        return Condition({"tokens": tokens})

    def expert(self, sigma: float) -> torch.nn.Module:
        """The network for that noise level."""
        return self.pipeline.transformer_2 if self._is_low_noise(sigma) else self.pipeline.transformer

    def _is_low_noise(self, sigma: float) -> bool:
        boundary = self.pipeline.config["boundary_ratio"]
        return boundary is not None and sigma < boundary

    def guidance_at(self, sigma: float, settings: SamplerSettings) -> float:
        return settings.guidance_2 if settings.guidance_2 and self._is_low_noise(sigma) else settings.guidance

    def same_network(self, sigma: float, other: float) -> bool:
        return self._is_low_noise(sigma) == self._is_low_noise(other)

    def predict(self, x: Tensor, levels: Tensor, condition: Condition, guidance: float) -> Tensor:
        latents = self._seen(x, condition)
        first_frames = latents.shape[2] - x.shape[2]
        with self.autocast():
            velocity = self.expert(float(levels[0]))(
                hidden_states=latents.to(self.dtype),
                timestep=self._timestep(latents, levels, first_frames),
                encoder_hidden_states=condition.tensors["tokens"].to(self.dtype),
                return_dict=False,
            )[0].float()
        return velocity[:, :, first_frames:]

    def _seen(self, x: Tensor, condition: Condition) -> Tensor:
        """The frames that the network sees: those that prompts give, and then those that are made."""
        return torch.cat([condition.tensors[FIRST], x], 2) if FIRST in condition.tensors else x

    def _timestep(self, x: Tensor, levels: Tensor, known: int) -> Tensor:
        steps = self.pipeline.scheduler.config.num_train_timesteps
        values = devices.upload((levels * steps).float(), x.device)
        if not self.checkpoint.takes_pictures:
            return values
        _, _, frames, height, width = x.shape  # the 5 B model of 2.2 takes one timestep for every token
        _, patch_height, patch_width = self.transformer.config.patch_size
        of_frames = values[:, None].repeat(1, frames)
        of_frames[:, :known] = 0  # what is given has no noise
        return of_frames.repeat_interleave((height // patch_height) * (width // patch_width), 1)

    # -- the first frame, where prompts give it ---------------------------------------------------------------------------

    def sample_shape(self, texts: Sequence[str], settings: SamplerSettings) -> tuple[int, ...]:
        channels, frames, height, width = super().sample_shape(texts, settings)
        first_frame = bool(self._pictures_of(texts))
        if frames == first_frame:
            raise ValueError(f"frames {settings.frames}: the prompts give the first one. Fix: 5 or more")
        return channels, frames - first_frame, height, width

    def condition(self, texts: Sequence[str], settings: SamplerSettings) -> Condition:
        condition = super().condition(texts, settings)
        names = self._pictures_of(texts)
        if not names:
            return condition
        return _beside_both(condition, self._first_frames(names, settings.height, settings.width))

    def decode(self, latents: Tensor, batch_size: int = 0, texts: Sequence[str] = ()) -> Tensor:
        return super().decode(self._whole(latents, texts), batch_size)

    @contextlib.contextmanager
    def decoder(self, texts: Sequence[str]) -> Iterator[Callable[[Tensor], Tensor]]:
        with super().decoder(texts) as decode:
            yield lambda latents: decode(self._whole(latents, texts))

    def _whole(self, latents: Tensor, texts: Sequence[str]) -> Tensor:
        if names := self._pictures_of(texts):
            scale = self.latent_grid.scale
            first = self._first_frames(names, latents.shape[-2] * scale, latents.shape[-1] * scale)
            latents = torch.cat([first.to(latents), latents], 2)
        return latents

    def _pictures_of(self, texts: Sequence[str]) -> list[str]:
        return given.names(texts) if self.checkpoint.takes_pictures else []

    def _first_frames(self, names: Sequence[str], height: int, width: int) -> Tensor:
        """Latents [P, C, 1, h, w] of pictures by their names, on the model's device; made once for each picture and size."""
        keys = [json.dumps([name, width, height]) for name in names]
        return self._pictures.of(keys, self.device).tensors[FIRST]

    def _encode_pictures(self, keys: Sequence[str]) -> Condition:
        pictures = np.stack([given.picture(*json.loads(key)) for key in keys])
        return Condition({FIRST: self.encode(torch.from_numpy(pictures).float() / 255, batch_size=1)})

    def lora_key(self, name: str) -> str:
        """ComfyUI's LoraLoader knows Wan's own names and not diffusers', whose loader knows both."""
        layer, dot, end = name.partition(".lora_")
        return super().lora_key(self._published.get(layer, layer) + dot + end)

    @functools.cached_property
    def _published(self) -> dict[str, str]:
        return {rows[0].layer: name for name, rows in self.layers("transformer").names.items()}


def _beside_both(condition: Condition, pictures: Tensor) -> Condition:
    """With pictures' latents for the prompts, and for the negative prompt the same."""
    keys = [FIRST] if condition.negative() is None else [FIRST, NEGATIVE + FIRST]
    return replace(condition, tensors=condition.tensors | dict.fromkeys(keys, pictures))


class WanImageToVideo(Wan):
    """`diffusers.WanImageToVideoPipeline` of Wan 2.2: the network sees the picture in channels of its own, beside all frames."""

    PIPELINE = "WanImageToVideoPipeline"
    REFUSED = ("image_encoder",)  # of Wan 2.1

    def condition(self, texts: Sequence[str], settings: SamplerSettings) -> Condition:
        names = given.names(texts)
        if not names:
            raise given.missing(texts[0])
        keys = [json.dumps([name, settings.width, settings.height, settings.frames]) for name in names]
        pictures = self._pictures.of(keys, self.device).tensors[FIRST]
        return _beside_both(PipelineModel.condition(self, texts, settings), pictures)

    def example(self, settings: SamplerSettings) -> Condition:
        made, *size = self.latent_shape(settings.height, settings.width, settings.frames)
        pictures = torch.zeros((1, self.transformer.config.in_channels - made, *size), device=self.device)
        return _beside_both(PipelineModel.condition(self, [EXAMPLE], settings), pictures)

    def _encode_pictures(self, keys: Sequence[str]) -> Condition:
        """A video that begins with the picture and is grey after it, and before its channels which frames are known."""
        encoded = []
        for key in keys:
            name, width, height, frames = json.loads(key)
            video = torch.full((1, frames, height, width, 3), 0.5)
            video[0, 0] = torch.from_numpy(given.picture(name, width, height)).float() / 255
            latents = self.encode(video)
            mask = latents.new_zeros((1, self.latent_grid.time or 1, *latents.shape[2:]))
            mask[:, :, 0] = 1
            encoded.append(torch.cat([mask, latents], 1))
        return Condition({FIRST: torch.cat(encoded)})

    def _seen(self, x: Tensor, condition: Condition) -> Tensor:
        return torch.cat([x, condition.tensors[FIRST]], 1)
