"""What tiny families are made of: their tables, a text encoder of one table and an autoencoder of one matrix, both in ComfyUI's
own CLIP and VAE."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import comfy.model_patcher
import comfy.sd
import comfy.supported_models_base
import torch

WORDS = 997  # a prime: words seldom meet in one row


@dataclass(frozen=True)
class Text:
    """The form in which a family's text encoder hands a prompt on."""

    width: int
    pooled: int | None = None  # width of pooled_output, None where the encoder gives none
    least: int = 0  # shorter prompts are filled up to this many tokens, as T5's min_length does
    mask: bool = False  # an attention_mask rides along, 0 at the filling
    zeros: bool = False  # the filling's embeddings are zero, as Wan's text encoder makes them
    extra: Callable | None = None  # (embeddings, token ids) -> further keys of the cond
    sees: bool = False  # it takes pictures too


@dataclass(frozen=True)
class Family:
    """A tiny network of one class of comfy.supported_models, its text and its latents."""

    network: dict
    text: Text
    height: int = 64
    width: int = 64
    frames: int = 1
    down: int = 8  # pixels to a latent, along height and width
    down_time: int = 4  # frames to a latent of a video
    of: str = ""  # class in comfy.supported_models, where this is a variant of it
    conditions: Callable | None = (
        None  # (shape of the latent, seeded random numbers of a shape) -> further keys of a cond
    )
    channels: int = 0  # of the latent, where they are not those of ComfyUI's latent format
    buffers: Callable | None = None  # (network, seeded random numbers of a shape): fill what a checkpoint would fill
    smaller: Callable | None = None  # a context in which a part of fixed size is built smaller
    later: tuple[str, ...] = ()  # keys of the network's config that ComfyUI 0.3 does not know yet
    new: bool = False  # a variant of a class that ComfyUI 0.3 has without it
    batch: int = 2  # samples that the network takes in one call: 1 or any number
    is_made_flow: bool = False  # trained as a flow, which its class is not: ComfyUI is told by ModelSamplingSD3


def tiny_clip(form: Text, seed: int) -> comfy.sd.CLIP:
    tokenizer = SeeingTokenizer if form.sees else TinyTokenizer
    target = comfy.supported_models_base.ClipTarget(tokenizer, TinyEncoder)
    target.params = {"form": form, "seed": seed}
    return comfy.sd.CLIP(target)


class TinyTokenizer:
    """A token is a word; 1 begins a prompt, 2 ends it, 0 fills up."""

    def __init__(self, embedding_directory=None, tokenizer_data=None):
        pass

    def tokenize_with_weights(self, text, return_word_ids=False, **options):
        words = [3 + zlib.crc32(word.encode()) % (WORDS - 3) for word in text.split()]
        return {"tiny": [[(token, 1.0) for token in (1, *words, 2)]]}


class SeeingTokenizer(TinyTokenizer):
    """As the tokenizers of vision-language models: a picture stands where the text has a place for it, else before the text."""

    PLACE = "<|image_pad|>"

    def tokenize_with_weights(self, text, return_word_ids=False, images=(), llama_template=None, **options):
        left = list(images)
        words = (llama_template or "{}").format(text).split()
        if left and not any(self.PLACE in word for word in words):
            words = [self.PLACE] * len(left) + words
        tokens = []
        for word in words:
            [[_, (token, _), _]] = super().tokenize_with_weights(word)["tiny"]
            tokens.append((left.pop(0) if self.PLACE in word and left else token, 1.0))
        return {"tiny": [[(1, 1.0), *tokens, (2, 1.0)]]}


class TinyEncoder(torch.nn.Module):
    """A token's embedding is its row of a table plus its position's; the pooled output is their mean, projected.

    A picture's token is a fixed map of its colours on a grid of 3 x 3, and of its size.
    """

    def __init__(self, form: Text, seed: int, dtype=None, device=None, model_options=None):
        super().__init__()
        self.form = form
        self.dtypes = {torch.float32}
        random = torch.Generator().manual_seed(seed)
        self.table = parameter(torch.randn(WORDS, form.width, generator=random))
        self.positions = parameter(torch.randn(512, form.width, generator=random) * 0.3)
        if form.sees:
            self.eye = parameter(torch.randn(29, form.width, generator=torch.Generator().manual_seed(seed + 1)) * 0.5)
        if form.pooled:
            self.pool = parameter(torch.randn(form.width, form.pooled, generator=random) / form.width**0.5)

    def reset_clip_options(self):
        """Nothing here has options."""

    def set_clip_options(self, options):
        """Nothing here has options."""

    def encode_token_weights(self, tokens):
        given = [token for token, _ in tokens["tiny"][0]]
        ids = torch.tensor([0 if torch.is_tensor(token) else token for token in given])
        words = len(ids)
        ids = torch.nn.functional.pad(ids, (0, max(0, self.form.least - words)))
        mask = (torch.arange(len(ids)) < words).long()[None]
        embeddings = (self.table[ids] + self.positions[: len(ids)])[None]
        for place, picture in enumerate(given):
            if torch.is_tensor(picture):
                seen = torch.nn.functional.adaptive_avg_pool2d(picture[0].movedim(-1, 0), 3).flatten()
                size = torch.tensor(picture.shape[1:3]) / 400
                embeddings[:, place] += torch.cat([seen, size]) @ self.eye
        if self.form.zeros:
            embeddings = embeddings * mask[..., None]
        pooled = embeddings[:, :words].mean(1) @ self.pool if self.form.pooled else None
        extra = {"attention_mask": mask} if self.form.mask else {}
        if self.form.extra:
            extra |= self.form.extra(embeddings, ids)
        return embeddings, pooled, extra


def parameter(values: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(values, requires_grad=False)


class TinyVAE(comfy.sd.VAE):
    """Every pixel is a fixed linear map of its latent."""

    def __init__(self, channels: int, dimensions: int, down: int, down_time: int, seed: int):
        # ComfyUI's smallest VAE, which has no network, sets everything up; then its network is replaced.
        super().__init__(sd={"pixel_space_vae": torch.tensor(1.0)}, dtype=torch.float32)
        self.first_stage_model = Linear(channels, down, down_time, seed).eval()
        self.patcher = comfy.model_patcher.ModelPatcher(
            self.first_stage_model, load_device=self.device, offload_device=self.patcher.offload_device
        )
        self.latent_channels, self.latent_dim = channels, dimensions
        self.downscale_ratio = self.upscale_ratio = down
        if dimensions == 3:
            self.upscale_ratio = (lambda frames: max(0, frames * down_time - down_time + 1), down, down)
            self.upscale_index_formula = (down_time, down, down)
            self.downscale_ratio = (lambda frames: max(0, (frames + down_time - 1) // down_time), down, down)
            self.downscale_index_formula = (down_time, down, down)


class Linear(torch.nn.Module):
    def __init__(self, channels: int, down: int, down_time: int, seed: int):
        super().__init__()
        self.down, self.down_time = down, down_time
        random = torch.Generator().manual_seed(seed)
        weight = torch.randn(3, channels, generator=random) * 0.3 / channels**0.5
        self.weight = torch.nn.Parameter(weight, requires_grad=False)

    def decode(self, latents: torch.Tensor, **options) -> torch.Tensor:
        pixels = torch.einsum("dc,bc...->bd...", self.weight.to(latents), latents)
        pixels = pixels.repeat_interleave(self.down, -1).repeat_interleave(self.down, -2)
        if pixels.ndim == 5:  # the first latent is one frame, every other down_time frames
            later = pixels[:, :, 1:].repeat_interleave(self.down_time, 2)
            pixels = torch.cat([pixels[:, :, :1], later], 2)
        return pixels

    def encode(self, pixels: torch.Tensor, **options) -> torch.Tensor:
        """The shortest latent that decodes to the mean of its pixels."""
        frames = pixels if pixels.ndim == 5 else pixels.unsqueeze(2)
        blocks = frames.unflatten(-1, (-1, self.down)).mean(-1).unflatten(-2, (-1, self.down)).mean(-2)
        later = blocks[:, :, 1:].unflatten(2, (-1, self.down_time)).mean(3) if blocks.shape[2] > 1 else blocks[:, :, 1:]
        latents = torch.einsum(
            "cd,bd...->bc...", torch.linalg.pinv(self.weight).to(pixels), torch.cat([blocks[:, :, :1], later], 2)
        )
        return latents if pixels.ndim == 5 else latents.squeeze(2)
