"""Features of pictures and of their patches, by CLIP or any other image encoder in transformers' layout, such as DINOv2."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...host import search
from . import RewardError, preprocess
from .network import Network, shared
from .published import ALL, Published, from_folder, pillow_processor, readable, transformers_class

MARKER = "preprocessor_config.json"  # of a folder that holds all that CLIP needs, and not just weights
VIT_L = Published("CLIP ViT-L/14", ALL, "1.7 GB", "openai/clip-vit-large-patch14")


class Clip(Network):
    """A CLIP checkpoint; each prompt is encoded once.

    Args:
        path: the folder.
        processor: a folder with tokenizer and preprocessor_config.json; None: the same.
    """

    def __init__(self, path: Path, device: torch.device, dtype: torch.dtype, processor: Path | None = None):
        super().__init__(path, device, dtype)
        self.model = from_folder(transformers_class("CLIPModel"), path, dtype)
        self.processor = pillow_processor("CLIPImageProcessor").from_pretrained(
            processor or path, local_files_only=True
        )
        self._speak(processor or path)
        self.settle(device)

    def _speak(self, tokenizer: Path) -> None:
        self.tokenizer = transformers_class("CLIPTokenizerFast").from_pretrained(tokenizer, local_files_only=True)
        self._texts: dict[str, Tensor] = {}
        knows, speaks = self.model.config.text_config.vocab_size, len(self.tokenizer)
        if tokenizer != self.path and knows != speaks:
            raise RewardError(
                f"the tokenizer in {tokenizer} has {speaks} tokens where {self.path} knows {knows}. Fix: use the tokenizer "
                "that belongs to this checkpoint"
            )

    def pictures(self, images: Tensor) -> Tensor:
        """[B, D] float32: pictures in the common space, not normalised."""
        return self._seen(self._pixels(images))

    def pictures_with_gradient(self, images: Tensor) -> Tensor:
        """The same with a gradient in the pictures, which may be on any device."""
        return self._seen(self._pixels_with_gradient(images))

    def _seen(self, pixels: Tensor) -> Tensor:
        pixels = pixels.to(self.device, self.dtype)
        return _pooled(self.model.get_image_features(pixel_values=pixels)).float()

    def texts(self, prompts: Sequence[str]) -> Tensor:
        """[B, D] float32: prompts in the common space, not normalised."""
        new = [text for text in dict.fromkeys(prompts) if text not in self._texts]
        if new:
            tokens = self.tokenizer(
                [self._cleaned(text) for text in new],
                padding="max_length",
                max_length=77,
                truncation=True,
                return_tensors="pt",
            )
            features = _pooled(self.model.get_text_features(**tokens.to(self.device)))
            self._texts.update(zip(new, features.float().cpu(), strict=True))
        return torch.stack([self._texts[text] for text in prompts]).to(self.device)

    def _pixels(self, images: Tensor) -> Tensor:
        return preprocess.prepared(self.processor, images)

    def _pixels_with_gradient(self, images: Tensor) -> Tensor:
        return preprocess.with_gradient(self.processor, images)

    def _cleaned(self, text: str) -> str:
        return text


def _pooled(output) -> Tensor:
    return getattr(output, "pooler_output", output)  # transformers before 5 returns the tensor itself


KNOWN = "DINOv2, SigLIP (SigLIP 2 of a fixed size), ViT, BEiT, AIMv2 or CLIP"  # asked for both in the tests of transformers 5
ANY_PICTURE = torch.full((1, 32, 32, 3), 0.5)
AT_ONCE = 32  # pictures to one forward pass, where each has many patches


def find(name: str) -> Path:
    """The folder of an encoder, by its path or name. Raises FileNotFoundError, and FlowModelError for damaged files."""
    return readable(search.model(name, MARKER))


def load(name: str, device: str = "auto") -> Encoder | Clip:
    """The encoder in a folder, found by its path or name, on the accelerator if there is one; shared with rewards that use it.

    Raises:
        FileNotFoundError: it was not found.
        RewardError: its weights cannot be read.
    """
    folder = find(name)
    return shared(kind_of(folder), folder, device)


def kind_of(folder: Path) -> type[Encoder | Clip]:
    """The class that reads the encoder in a folder."""
    kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    return Clip if kind == "clip" else Encoder


def of_layers(
    network: Encoder | Clip, images: Tensor, prepare: Callable[[Any, Tensor], Tensor] = preprocess.prepared
) -> Tensor:
    """[B, D] float32 on the CPU: means over all tokens at a third, two thirds and the end of the layers, and the pooled output.

    The last layer describes what a picture shows. Taste is also about how it is shown (colours, size, softness), which
    earlier layers still hold. They have a gradient in the pictures if `prepare` is `preprocess.with_gradient`.
    """
    tower = getattr(network.model, "vision_model", network.model)
    pixels = prepare(network.processor, images)
    output = tower(pixel_values=pixels.to(network.device, network.dtype), output_hidden_states=True)
    layers = output.hidden_states
    chosen = {round((len(layers) - 1) * part / 3) for part in (1, 2, 3)}
    # Tokens [B, N, D] of a transformer, or maps [B, D, h, w] of a convolutional network.
    means = [
        layer.mean(1) if layer.ndim == 3 else layer.mean((2, 3)) for layer in map(layers.__getitem__, sorted(chosen))
    ]
    return torch.cat([*means, output.pooler_output.flatten(1)], 1).float().cpu()


class _Vision(Network):
    """A network that transformers' AutoModel loads from a folder with config.json, weights and preprocessor_config.json."""

    def __init__(self, path: Path, device: torch.device, dtype: torch.dtype):
        super().__init__(path, device, dtype)
        network = from_folder(transformers_class("AutoModel"), path, dtype)
        self.model = getattr(network, "vision_model", network)  # of a model of pictures and texts
        self.preprocessor = json.loads((path / MARKER).read_text(encoding="utf-8"))

    @contextlib.contextmanager
    def _asked_for(self, what: str) -> Iterator[None]:
        """Within it the network is asked once: some classes that AutoModel loads want more than pixels, or give other things."""
        try:
            yield
        except ImportError as error:
            raise RewardError(f"{self.path} cannot prepare its pictures ({error}). Fix: install torchvision") from error
        except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
            name = type(self.model).__name__
            raise RewardError(
                f"{self.path} holds a {name}, which gives no {what} ({type(error).__name__}: {error}). Fix: choose {KNOWN}"
            ) from error


class Encoder(_Vision):
    """An image encoder; the picture's point is its pooled output."""

    def __init__(self, path: Path, device: torch.device, dtype: torch.dtype):
        super().__init__(path, device, dtype)
        name = self.preprocessor["image_processor_type"].removesuffix("Fast").removesuffix("Pil")
        with self._asked_for("point of a picture"), torch.no_grad():
            self.processor = pillow_processor(name).from_pretrained(path, local_files_only=True)
            self.settle(device)
            self.pictures(ANY_PICTURE)

    def pictures(self, images: Tensor) -> Tensor:
        """[B, D] float32."""
        return self._seen(preprocess.prepared(self.processor, images))

    def pictures_with_gradient(self, images: Tensor) -> Tensor:
        """The same with a gradient in the pictures, which may be on any device."""
        return self._seen(preprocess.with_gradient(self.processor, images))

    def _seen(self, pixels: Tensor) -> Tensor:
        return self.model(pixel_values=pixels.to(self.device, self.dtype)).pooler_output.float()


class PatchFeatures(_Vision):
    """A vision transformer (DINOv2, CLIP …), asked for what it sees in every patch.

    Raises:
        RewardError: the folder holds another kind of model, or weights that cannot be read.
    """

    def __init__(self, path: Path, device: torch.device, dtype: torch.dtype):
        super().__init__(path, device, dtype)
        with self._asked_for("patches"):
            config = self.model.config
            self.patch, self.size = config.patch_size, _side(self.preprocessor, config.image_size) // config.patch_size
            self.mean, self.std = (
                torch.tensor(self.preprocessor[name]).view(1, 3, 1, 1) for name in ("image_mean", "image_std")
            )
            self.settle(device)
            self.patches(ANY_PICTURE)

    @torch.no_grad()
    def patches(self, images: Tensor) -> Tensor:
        """[B, n, n, D] float32 on the CPU, n patches a side, of pictures [B, H, W, 3], which are squeezed into its square."""
        self.come_back()
        side = self.size * self.patch
        patches = []
        for part in images.split(AT_ONCE):
            small = torch.nn.functional.interpolate(
                part.permute(0, 3, 1, 2).float(), (side, side), mode="bicubic", antialias=True
            )
            pixels = (small.clamp(0, 1) - self.mean) / self.std
            tokens = self.model(pixel_values=pixels.to(self.device, self.dtype)).last_hidden_state
            # Before the patches come a class token and, of some, registers.
            patches.append(tokens[:, -(self.size**2) :].float().cpu().unflatten(1, (self.size, self.size)))
        return torch.cat(patches)


def _side(preprocessor: dict, image_size: int) -> int:
    """The side that pictures are prepared to, which older and newer preprocessor files say differently."""
    for name in ("crop_size", "size"):
        size = preprocessor.get(name)
        if isinstance(size, int):
            return size
        if isinstance(size, dict) and (side := size.get("height") or size.get("shortest_edge")):
            return side
    return image_size
