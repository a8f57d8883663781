"""HPSv2.1: an open_clip ViT-H/14 fine-tuned on human preferences, as a transformers CLIPModel."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ...host import extras, paths
from ..networks import RewardError, preprocess
from ..networks.features import VIT_L, Clip
from ..networks.network import Network
from ..networks.published import ALL, Published, transformers_class
from .clip import ClipReward

FILE = Published("HPSv2.1", "HPS_v2.1_compressed.pt", "3.9 GB", "xswu/HPSv2")
TOKENIZER = Published("CLIP's tokenizer", ALL, "only its tokenizer: 4 MB", VIT_L.source)
HEADS = 16  # in both towers of ViT-H/14; the only number that cannot be read off its tensors

# open_clip's names to those of CLIPModel; a `.weight` or `.bias` that follows stays.
_NAMES = {
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.conv1": "vision_model.embeddings.patch_embedding",
    "visual.ln_pre": "vision_model.pre_layrnorm",
    "visual.ln_post": "vision_model.post_layernorm",
    "visual.proj": "visual_projection.weight",
    "visual.transformer.resblocks": "vision_model.encoder.layers",
    "token_embedding": "text_model.embeddings.token_embedding",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "transformer.resblocks": "text_model.encoder.layers",
    "ln_final": "text_model.final_layer_norm",
    "text_projection": "text_projection.weight",
    "logit_scale": "logit_scale",
}
_IN_BLOCK = {
    "attn.out_proj": "self_attn.out_proj",
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
_TRANSPOSED = ("visual.proj", "text_projection")
_MEASURED = (  # what clip_config reads
    "visual.positional_embedding",
    "visual.conv1.weight",
    "visual.proj",
    "visual.transformer.resblocks.0.mlp.c_fc.weight",
    "positional_embedding",
    "token_embedding.weight",
    "transformer.resblocks.0.mlp.c_fc.weight",
)
_BLOCK = re.compile(r"((?:visual\.)?transformer\.resblocks)\.(\d+)\.(.+?)(?:[._](weight|bias))")


def as_clip_model(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """open_clip's tensors under CLIPModel's names; attention's three projections, one tensor there, are three here."""
    renamed = {}
    for key, tensor in state.items():
        if block := _BLOCK.fullmatch(key):
            tower, number, part, kind = block.groups()
            name = f"{_NAMES[tower]}.{number}."
            if part == "attn.in_proj":
                for projection, rows in zip("qkv", tensor.chunk(3), strict=True):
                    renamed[f"{name}self_attn.{projection}_proj.{kind}"] = rows
            else:
                renamed[f"{name}{_IN_BLOCK[part]}.{kind}"] = tensor
        else:
            kind = next((end for end in (".weight", ".bias") if key.endswith(end)), "")
            part = key.removesuffix(kind)
            renamed[_NAMES[part] + kind] = tensor.T if part in _TRANSPOSED else tensor
    return renamed


def clip_config(state: Mapping[str, Tensor]):
    """Sizes of both towers, read off open_clip's tensors."""
    pixels, patch = state["visual.positional_embedding"], state["visual.conv1.weight"]
    words, positions = state["token_embedding.weight"], state["positional_embedding"]
    projection = state["visual.proj"].shape[1]

    def tower(prefix: str, width: int) -> dict:
        return dict(
            hidden_size=width,
            intermediate_size=len(state[f"{prefix}transformer.resblocks.0.mlp.c_fc.weight"]),
            num_hidden_layers=sum(key.startswith(f"{prefix}tr") and key.endswith("ln_1.bias") for key in state),
            num_attention_heads=HEADS,
            projection_dim=projection,
            hidden_act="gelu",
        )

    vision = tower("visual.", pixels.shape[1]) | dict(
        patch_size=patch.shape[-1], image_size=patch.shape[-1] * math.isqrt(len(pixels) - 1)
    )
    text = tower("", words.shape[1]) | dict(
        vocab_size=len(words),
        max_position_embeddings=len(positions),
        eos_token_id=len(words) - 1,  # open_clip reads the text at its largest token, the last of the vocabulary
        bos_token_id=len(words) - 2,
        pad_token_id=len(words) - 1,
    )
    config = transformers_class("CLIPConfig")
    return config(text_config=text, vision_config=vision, projection_dim=projection)


class HPSv2Clip(Clip):
    """The published file, and a CLIP tokenizer: open_clip's vocabulary is OpenAI's.

    Attention is causal: what follows the end of a text (zeros in open_clip, end tokens here) changes nothing.
    """

    def __init__(self, path: Path, device: torch.device, dtype: torch.dtype, tokenizer: Path):
        Network.__init__(self, path, device, dtype)
        state = read_checkpoint(path)
        config, kind = clip_config(state), transformers_class("CLIPModel")
        self.model = FILE.filled(lambda: kind(config), as_clip_model(state), path, dtype)
        self._speak(tokenizer)
        self.settle(device)

    def _pixels(self, images: Tensor) -> Tensor:
        return preprocess.letterbox(images, self.model.config.vision_config.image_size)

    _pixels_with_gradient = _pixels

    def _cleaned(self, text: str) -> str:
        return clean(text)


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """Its tensors, in open_clip's layout."""
    content = FILE.read(path)
    state = content.get("state_dict", content)
    own = {key: tensor for key, tensor in state.items() if key.startswith(tuple(_NAMES))}
    FILE.check(path, own, _MEASURED)
    return own


def clean(text: str) -> str:
    """Cleans a text as open_clip does before its tokenizer, but for spaces and capitals, which the tokenizer sees to.

    Raises:
        MissingPackage: ftfy is not here, and might change this text: it has other than printable ASCII letters, or an &.
    """
    if not text.isascii() or not text.isprintable() or "&" in text:
        extras.check(f"Reward: HPSv2.1, to read the prompt {text!r},", "rewards", "ftfy")
        import ftfy

        text = ftfy.fix_text(text)
    return html.unescape(html.unescape(text)).strip()


def is_comfyuis(tokenizer: str) -> bool:
    """Whether every ComfyUI brings the tokenizer of that name."""
    return tokenizer == TOKENIZER.source


def find_tokenizer(name: str) -> Path:
    """The folder of a CLIP tokenizer, as `search.model` finds it. Raises FileNotFoundError."""
    folders = paths.clip_tokenizers() if is_comfyuis(name) else []
    return TOKENIZER.find_folder(name, "tokenizer_config.json", *folders)


class HPSv2Package(Network):
    """The authors' own `hpsv2` package instead of transformers, kept in memory and asked for a batch at once.

    Its base weights are not needed and not downloaded: the published file holds all of the network.
    """

    def __init__(self, path: Path, device: torch.device, dtype: torch.dtype):
        super().__init__(path, device, dtype)
        try:
            from hpsv2.src.open_clip import create_model_and_transforms, get_tokenizer
        except Exception as error:  # whatever it needs, or lacks: its release on PyPI is without its own vocabulary
            raise RewardError(
                f"provider 'hpsv2': the package cannot be used ({type(error).__name__}: {error}). Fix: set provider to "
                "transformers, which needs no package and gives the same scores, or pip install --no-deps hpsv2, and put "
                "bpe_simple_vocab_16e6.txt.gz of its repository into hpsv2/src/open_clip"
            ) from error
        # With light_augmentation the package's own score pads the shorter side; without it the picture would be cropped.
        self.model, _, self.transform = create_model_and_transforms(
            "ViT-H-14", None, device="cpu", output_dict=True, light_augmentation=True
        )
        state = read_checkpoint(path)
        self.side = clip_config(state).vision_config.image_size
        self.model.load_state_dict(state)
        self.model.train(False).requires_grad_(False).to(dtype)
        self.tokenizer = get_tokenizer("ViT-H-14")
        self.settle(device)

    def pictures(self, images: Tensor) -> Tensor:
        return self._seen(torch.stack([self.transform(picture) for picture in preprocess.pil(images)]))

    def pictures_with_gradient(self, images: Tensor) -> Tensor:
        return self._seen(preprocess.letterbox(images, self.side))

    def _seen(self, pixels: Tensor) -> Tensor:
        return self.model.encode_image(pixels.to(self.device, self.dtype)).float()

    def texts(self, prompts: Sequence[str]) -> Tensor:
        return self.model.encode_text(self.tokenizer(list(prompts)).to(self.device)).float()


class HPSv2(ClipReward):
    """cos(image, text), unscaled (Wu et al., 2306.09341); mostly between 0.20 and 0.35.

    Args:
        path: HPS_v2.1_compressed.pt, by its path or by its published name.
        tokenizer: a folder with a CLIP tokenizer, the name of one, or a hub id in the local cache.
        provider: one of types.HPS_PROVIDERS.
    """

    def __init__(
        self,
        name: str = "hpsv2",
        *,
        path: str = "",
        tokenizer: str = TOKENIZER.source,
        provider: str = "transformers",
        **use,
    ):
        file = FILE.find(path)
        if provider == "hpsv2":
            super().__init__(name, HPSv2Package, file, **use)
        else:
            super().__init__(name, HPSv2Clip, file, {"tokenizer": find_tokenizer(tokenizer)}, **use)

    def of(self, features: Tensor, prompts: Sequence[str]) -> Tensor:
        return self.cosine(features, prompts)
