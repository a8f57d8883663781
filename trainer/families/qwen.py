"""Qwen-Image: Qwen2.5-VL gives sequences of different length; guidance keeps each token's norm.

In Qwen-Image 2.1 text and picture are one sequence, in which the text sees nothing but the text before it. So the pipeline
computes the text once and keeps it from step to step. In training it is a part of every call, in the rollout as in the update: an
adapter changes it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor

from ...host import devices
from . import given
from .condition import Condition
from .edits import EditModel, resized, with_sources
from .latents import NormalizedModel, packed, unpacked
from .sizes import area_size

if TYPE_CHECKING:
    from ..types import SamplerSettings

SEEN = 384  # pixels of a side of a square picture, as the text encoder of Edit Plus sees it


class QwenImage(NormalizedModel):
    """`diffusers.QwenImagePipeline`."""

    PIPELINE = "QwenImagePipeline"
    COMPONENTS = ("transformer", "vae", "text_encoder")
    LORA_TARGETS = (
        *("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"),
        *("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out"),
        *("img_mlp.net.0.proj", "img_mlp.net.2", "txt_mlp.net.0.proj", "txt_mlp.net.2"),
    )

    def embed(self, texts: Sequence[str], device: torch.device) -> Condition:
        tokens, mask = self.pipeline.encode_prompt(list(texts), device, max_sequence_length=self.max_sequence_length)
        return Condition.masked("tokens", tokens, mask)

    def predict(self, x: Tensor, levels: Tensor, condition: Condition, guidance: float) -> Tensor:
        height, width = x.shape[-2:]
        sources = condition.sizes[0] if condition.sizes else ()
        with self.autocast():
            tokens = self.transformer(
                hidden_states=with_sources(packed(x.to(self.dtype)), condition),
                timestep=self.times(levels),
                encoder_hidden_states=condition.tensors["tokens"].to(self.dtype),
                encoder_hidden_states_mask=condition.mask("tokens"),
                img_shapes=[[(1, height // 2, width // 2), *((1, *size) for size in sources)]] * len(x),
                return_dict=False,
            )[0]
        return unpacked(tokens[:, : height * width // 4], height, width).float()


class QwenImageEdit(EditModel, QwenImage):
    """`diffusers.QwenImageEditPipeline`: the text encoder sees the picture as it is encoded."""

    PIPELINE = "QwenImageEditPipeline"

    def call(self, x: Tensor, levels: Tensor, condition: Condition, guidance: float) -> Tensor:
        return QwenImage.predict(self, x, levels, condition, guidance)

    def source_size(self, width: int, height: int, settings: SamplerSettings) -> tuple[int, int]:
        return area_size(width, height, settings.width * settings.height)

    def seen_size(self, width: int, height: int, settings: SamplerSettings) -> tuple[int, int]:
        """(width, height) at which the text encoder sees a picture."""
        return self.source_size(width, height, settings)

    def condition(self, texts: Sequence[str], settings: SamplerSettings) -> Condition:
        for text in texts:
            if not given.named(text):
                raise given.missing(text, "edits pictures")
        return super().condition(texts, settings)

    def text_condition(self, texts: Sequence[str], pictures: Sequence[tuple], settings: SamplerSettings) -> Condition:
        keys = [self._key(text, group, settings) for text, group in zip(texts, pictures, strict=True)]
        condition = self.embeddings(keys)
        if self.guides(settings.guidance, settings.guidance_2):  # the negative prompt is about the same pictures
            away = [self._key(settings.negative_prompt, group, settings) for group in pictures]
            return condition.beside(self.embeddings(away))
        return condition

    def _key(self, text: str, pictures: tuple, settings: SamplerSettings) -> Seen:
        sizes = [self.seen_size(picture.pixels.shape[1], picture.pixels.shape[0], settings) for picture in pictures]
        return Seen(text, tuple(zip(pictures, sizes, strict=True)))

    def embed(self, texts: Sequence[str], device: torch.device) -> Condition:
        rows = []
        for text in texts:  # one by one, since their pictures are of different size
            # A text without pictures is a stand-in, of which only the length counts.
            shown = text.shown if isinstance(text, Seen) else ((given.grey(SEEN, SEEN), (SEEN, SEEN)),)
            views = [Image.fromarray(resized(picture.pixels.numpy(), *size)) for picture, size in shown]
            tokens, _ = self.pipeline.encode_prompt(image=self._shown(views), prompt=[str.__str__(text)], device=device)
            rows.append(tokens[0])
        return Condition.of_rows("tokens", rows)

    def _shown(self, pictures: list[Image.Image]) -> Any:
        """The pictures as the pipeline hands them to its processor."""
        return pictures[0]


class QwenImageEditPlus(QwenImageEdit):
    """`diffusers.QwenImageEditPlusPipeline`, of 2509 and 2511: several pictures, which the text encoder sees in a small size."""

    PIPELINE = "QwenImageEditPlusPipeline"

    def seen_size(self, width: int, height: int, settings: SamplerSettings) -> tuple[int, int]:
        return area_size(width, height, SEEN * SEEN)

    def _shown(self, pictures: list[Image.Image]) -> Any:
        return pictures


class Seen(str):
    """A text and the pictures that the text encoder sees with it, each with its size there: a key of its embedding."""

    shown: tuple[tuple[given.Picture, tuple[int, int]], ...]

    def __new__(cls, text: str, shown: tuple) -> Seen:
        key = super().__new__(cls, text)
        key.shown = shown
        return key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Seen) and str.__eq__(self, other) and self.shown == other.shown

    def __hash__(self) -> int:
        return hash((str.__hash__(self), self.shown))


class QwenImage21(NormalizedModel):
    """`diffusers.QwenImage21Pipeline`, from text alone."""

    PIPELINE = "QwenImage21Pipeline"
    COMPONENTS = ("transformer", "vae", "text_encoder")
    LORA_TARGETS = (
        *("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"),
        *("img_mlp.proj", "img_mlp.gate_layer", "img_mlp.out"),
    )

    def __init__(self, *parts):
        super().__init__(*parts)
        self.transformer.set_attn_processor(_Attention(self.transformer.pos_embed))

    def embed(self, texts: Sequence[str], device: torch.device) -> Condition:
        tokens, mask, _ = self.pipeline.encode_prompt(list(texts), device=device)
        # Its tokenizer does not cut.
        rows = Condition.masked("tokens", tokens, mask).ragged("tokens")
        return Condition.of_rows("tokens", [row[: self.max_sequence_length] for row in rows])

    def predict(self, x: Tensor, levels: Tensor, condition: Condition, guidance: float) -> Tensor:
        height, width = x.shape[-2:]
        text = condition.tensors["tokens"].to(self.dtype)
        # In the language model's sequence the picture has a place for every 2 x 2 of its tokens.
        places = torch.arange(text.shape[1] + height * width // 4) >= text.shape[1]
        with self.autocast():
            tokens = self.transformer(
                hidden_states=x.to(self.dtype).flatten(2).mT,
                timestep=self.times(levels),
                encoder_hidden_states=text,
                encoder_hidden_states_mask=condition.mask("tokens"),
                img_shapes=[[(1, height, width)]] * len(x),
                img_mask=devices.upload(places[None], x.device),
                return_dict=False,
            )[0]
        return tokens[:, -height * width :].mT.unflatten(-1, (height, width)).float()

    def decode_latents(self, latents: Tensor) -> Tensor:
        """Decodes latents; transparent places are white, as in the pictures that the text encoder was trained with."""
        colours, opaque = super().decode_latents(latents).clamp(0, 1).split([3, 1], -1)
        return colours * opaque + (1 - opaque)

    def encode_images(self, images: Tensor) -> Tensor:
        return super().encode_images(torch.cat([images, torch.ones_like(images[..., :1])], -1))


class _Attention:
    """Diffusers' attention, but for where a picture stands: right behind its own text, however long the batch's longest is.

    Diffusers' pipeline moves it behind the padding, so that a picture would depend on the prompts beside it.
    """

    _attention_backend = None  # where diffusers puts the one that was chosen

    def __init__(self, positions: Any):
        """`positions`: the network's table of angles."""
        self.positions = positions

    def __call__(self, attn, hidden_states, *, rotary_emb, segments, key_valid=None, **_) -> Tensor:
        from diffusers.models.attention_dispatch import dispatch_attention_fn

        [(_, end, _)] = segments  # the text's tokens, and then the picture's
        query, key, value = (
            layer(hidden_states).unflatten(-1, (attn.heads, -1)) for layer in (attn.to_q, attn.to_k, attn.to_v)
        )
        angles = rotary_emb[None] if key_valid is None else self._behind_its_text(rotary_emb, key_valid, end)
        query, key = (
            _turned(norm(of).to(value.dtype), angles) for norm, of in ((attn.norm_q, query), (attn.norm_k, key))
        )
        valid = None if key_valid is None else key_valid[:, None, None]
        # Padding is at the end, where no token of the text looks.
        text = dispatch_attention_fn(
            query[:, :end], key[:, :end], value[:, :end], is_causal=True, backend=self._attention_backend
        )
        picture = dispatch_attention_fn(query[:, end:], key, value, attn_mask=valid, backend=self._attention_backend)
        joint = torch.cat([text, picture], 1).flatten(2).type_as(query)
        return attn.to_out[1](attn.to_out[0](joint))

    def _behind_its_text(self, angles: Tensor, valid: Tensor, end: int) -> Tensor:
        """[B, S, D/2] of [S, D/2]: of a picture's tokens, the first of the three axes counts how long the text was."""
        of_frames = self.positions.freqs[0]
        own = angles.expand(len(valid), -1, -1).clone()
        own[:, end:, : of_frames.shape[1]] = of_frames[valid[:, :end].sum(1)][:, None]
        return own


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    """[B, S, H, D], pairs of whose numbers are turned by complex numbers [B, S, D/2]."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * angles[:, :, None]).flatten(-2).type_as(x)
