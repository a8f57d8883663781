"""The embedded model as ComfyUI's own objects: a MODEL, a CLIP and a VAE from a diffusers folder in assets/.

ComfyUI's loaders know networks by their published sizes, and this model is tiny. So its sizes are read from the folder, and
ComfyUI's own networks are built with them: Flux, CLIP and T5. Only the autoencoder is a network of this module, since ComfyUI's
has normalizations of 32 groups, more than this one has channels. Nothing here needs diffusers, nor transformers 5.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from pathlib import Path

import comfy.latent_formats
import comfy.model_detection
import comfy.model_management
import comfy.model_patcher
import comfy.sd
import comfy.supported_models
import comfy.supported_models_base
import torch
from comfy.ldm.models.autoencoder import AutoencoderKL as StandIn
from comfy.sd1_clip import SDClipModel
from comfy.text_encoders.flux import FluxClipModel
from comfy.text_encoders.t5 import T5
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.nn import functional

from ...host.json_files import read_json
from ...host.paths import ASSETS
from ..families.sizes import RULES, Checkpoint, Config
from ..types import SamplerSettings

FAMILY = "FluxPipeline"
MOST_TOKENS = 512  # of T5, where its tokenizer sets no lower limit; as the diffusers family has it


def load(name: str) -> tuple[comfy.model_patcher.ModelPatcher, comfy.sd.CLIP, comfy.sd.VAE]:
    """MODEL, CLIP and VAE of an embedded FLUX model: what stock nodes such as KSampler and VAEDecode take.

    Call it outside `torch.inference_mode`, so that the weights are plain tensors.
    """
    folder = ASSETS / name
    return model(folder), clip(folder), vae(folder)


# -- MODEL --------------------------------------------------------------------------------------------------------------------


def model(folder: Path) -> comfy.model_patcher.ModelPatcher:
    """ComfyUI's Flux with the folder's weights, its latents' scale and shift, and the timestep shift of its own size."""
    transformer, autoencoder = _config(folder, "transformer"), _config(folder, "vae")
    weights = comfy_weights(folder)
    settings = comfy.supported_models.Flux(
        comfy.model_detection.detect_unet_config(weights, "") | _sizes_taken_for_granted(transformer)
    )
    # FLUX's format of latents with the numbers of this autoencoder, and without previews, which exist for the real
    # one
    latents = comfy.latent_formats.Flux()
    latents.scale_factor, latents.shift_factor = autoencoder["scaling_factor"], autoencoder["shift_factor"]
    latents.latent_channels, latents.spacial_downscale_ratio = autoencoder["latent_channels"], _pixels(autoencoder)
    latents.latent_rgb_factors = latents.latent_rgb_factors_bias = latents.taesd_decoder_name = None
    settings.latent_format = latents
    # μ of ModelSamplingFlux at the size that the model was trained with: its noise levels are shifted by e^μ
    scheduler, side = read_json(folder / "scheduler" / "scheduler_config.json"), autoencoder["sample_size"]
    checkpoint = Checkpoint(FAMILY, {}, scheduler, autoencoder, transformer)
    settings.sampling_settings = {"shift": math.log(checkpoint.shift(SamplerSettings(width=side, height=side)))}
    device, types = comfy.model_management.get_torch_device(), settings.supported_inference_dtypes
    dtype = comfy.model_management.unet_dtype(supported_dtypes=types)
    settings.set_inference_dtype(dtype, comfy.model_management.unet_manual_cast(dtype, device, types))
    network = settings.get_model({}, "")
    network.load_model_weights(weights, "")
    return _patcher(network, device, comfy.model_management.unet_offload_device())


def comfy_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The transformer's weights by the names that ComfyUI's Flux has for them."""
    file = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    return comfy.model_detection.convert_diffusers_mmdit(load_file(file), "")


def _sizes_taken_for_granted(config: Config) -> dict:
    """The sizes that ComfyUI does not read from weights, since all published FLUX models have it alike."""
    heads = config["num_attention_heads"]
    return {
        "out_channels": config["in_channels"] // 4,  # diffusers counts them after packing 2 x 2 positions into one
        "context_in_dim": config["joint_attention_dim"],
        "hidden_size": heads * config["attention_head_dim"],
        "num_heads": heads,
        "axes_dim": config["axes_dims_rope"],
    }


def _patcher(network: torch.nn.Module, device: torch.device, offload_device: torch.device):
    """ComfyUI's handle on a network. Not the kind that streams weights: there are few."""
    return comfy.model_patcher.ModelPatcher(network.to(offload_device), device, offload_device)


# -- CLIP ---------------------------------------------------------------------------------------------------------------------


def clip(folder: Path) -> comfy.sd.CLIP:
    """ComfyUI's CLIP around the folder's two text encoders."""
    target = comfy.supported_models_base.ClipTarget(functools.partial(Tokenizers, folder), TextEncoders)
    target.params = {"folder": folder}
    loaded = comfy.sd.CLIP(target)
    pooled, tokens = (load_file(folder / name / "model.safetensors") for name in ("text_encoder", "text_encoder_2"))
    # ComfyUI's CLIP ends in a projection, which FLUX does not use.
    pooled["text_projection.weight"] = torch.eye(_config(folder, "text_encoder")["hidden_size"])
    loaded.load_sd(pooled)
    loaded.load_sd(tokens)
    return loaded


class TextEncoders(FluxClipModel):
    """ComfyUI's pair of text encoders for FLUX at the folder's sizes: the pooled vector from CLIP, the sequence from T5."""

    def __init__(self, folder: Path, device="cpu", dtype=None, model_options=None):
        torch.nn.Module.__init__(self)  # and not its parent's, which knows the published sizes only
        config = _config(folder, "text_encoder")
        options = {"device": device, "dtype": dtype, "model_options": model_options or {}}
        end = config["eos_token_id"]
        self.clip_l = SDClipModel(
            textmodel_json_config=config,
            special_tokens={"start": config["bos_token_id"], "end": end, "pad": config["pad_token_id"]},
            return_projected_pooled=False,
            **options,
        )
        sizes = config["vocab_size"], config["hidden_size"]
        words = self.clip_l.operations.Embedding(*sizes, device=device, dtype=dtype)
        self.clip_l.transformer.set_input_embeddings(words)
        config = _config(folder, "text_encoder_2")
        self.t5xxl = SDClipModel(
            textmodel_json_config={**config, "dense_act_fn": "gelu_pytorch_tanh"},  # ComfyUI's name of gelu_new
            special_tokens={"end": config["eos_token_id"], "pad": config["pad_token_id"]},
            model_class=T5,
            **options,
        )
        self.dtypes = {dtype}


class Tokenizers:
    """The folder's two tokenizers with ComfyUI's interface, cut and padded as diffusers does for FLUX.

    A prompt is taken as it stands: brackets are not weights here, since this model's words know none.
    """

    PARTS = {"l": "tokenizer", "t5xxl": "tokenizer_2"}  # by ComfyUI's names, which its node CLIPTextEncodeFlux uses

    def __init__(self, folder: Path, **_):
        self.tokenizers = {name: _tokenizer(folder / part) for name, part in self.PARTS.items()}

    def tokenize_with_weights(self, text: str, return_word_ids: bool = False, **_) -> dict[str, list[list[tuple]]]:
        """For each encoder one row of (token, weight 1), and the number of its word if asked."""
        rows = {}
        for name, tokenizer in self.tokenizers.items():
            encoded = tokenizer.encode(text)
            words = [0 if word is None else word + 1 for word in encoded.word_ids]
            row = zip(encoded.ids, [1.0] * len(words), words, strict=True)
            rows[name] = [[entry if return_word_ids else entry[:2] for entry in row]]
        return rows

    def state_dict(self) -> dict:
        """Nothing that a saved checkpoint would have to hold."""
        return {}


def _tokenizer(folder: Path) -> Tokenizer:
    """By the library below transformers, whose classes before version 5 do not read these files."""
    settings = read_json(folder / "tokenizer_config.json")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    length, padding = min(MOST_TOKENS, settings["model_max_length"]), settings["pad_token"]
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(pad_id=tokenizer.token_to_id(padding), pad_token=padding, length=length)
    return tokenizer


# -- VAE ----------------------------------------------------------------------------------------------------------------------


class Autoencoder(torch.nn.Module):
    """The folder's AutoencoderKL (LDM, 2112.10752), asked as ComfyUI asks its own: without scale and shift, which its latent
    format has. To the bit the numbers of diffusers' network, of which it has the calls in their order.
    """

    def __init__(self, weights: Mapping[str, torch.Tensor], groups: int, blocks: int, layers: int):
        """Weights by diffusers' names, groups of each normalization, and blocks of either half with as many layers each."""
        super().__init__()
        self.groups, self.blocks, self.layers = groups, blocks, layers
        for name, weight in weights.items():
            self.register_parameter(name.replace(".", "/"), torch.nn.Parameter(weight, requires_grad=False))

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        """The mean of the latents [B, C, h, w] of pictures [B, 3, H, W] in [-1, 1]."""
        x = self._convolved("encoder.conv_in", pixels)
        for block in range(self.blocks):
            for layer in range(self.layers):
                x = self._residual(f"encoder.down_blocks.{block}.resnets.{layer}", x)
            if block < self.blocks - 1:
                padded = functional.pad(x, (0, 1, 0, 1))
                x = self._convolved(f"encoder.down_blocks.{block}.downsamplers.0.conv", padded, stride=2, padding=0)
        x = self._normal("encoder.conv_norm_out", self._middle("encoder.mid_block", x))
        return self._convolved("encoder.conv_out", functional.silu(x)).chunk(2, 1)[0]

    def decode(self, latents: torch.Tensor, **_) -> torch.Tensor:
        """Pictures [B, 3, H, W] in about [-1, 1] of latents [B, C, h, w]."""
        x = self._middle("decoder.mid_block", self._convolved("decoder.conv_in", latents))
        for block in range(self.blocks):
            for layer in range(self.layers + 1):
                x = self._residual(f"decoder.up_blocks.{block}.resnets.{layer}", x)
            if block < self.blocks - 1:
                x = x.contiguous() if len(x) >= 64 else x  # as diffusers, which the layout's last bits follow
                larger = functional.interpolate(x, scale_factor=2.0)
                x = self._convolved(f"decoder.up_blocks.{block}.upsamplers.0.conv", larger)
        return self._convolved("decoder.conv_out", functional.silu(self._normal("decoder.conv_norm_out", x)))

    def _of(self, layer: str) -> tuple[torch.Tensor, torch.Tensor]:
        weight, bias = (self.get_parameter(f"{layer}.{part}".replace(".", "/")) for part in ("weight", "bias"))
        return weight, bias

    def _convolved(self, layer: str, x: torch.Tensor, stride: int = 1, padding: int = 1) -> torch.Tensor:
        return functional.conv2d(x, *self._of(layer), stride, padding)

    def _normal(self, layer: str, x: torch.Tensor) -> torch.Tensor:
        return functional.group_norm(x, self.groups, *self._of(layer), 1e-6)

    def _residual(self, block: str, x: torch.Tensor) -> torch.Tensor:
        inner = self._convolved(f"{block}.conv1", functional.silu(self._normal(f"{block}.norm1", x)))
        inner = self._convolved(f"{block}.conv2", functional.silu(self._normal(f"{block}.norm2", inner)))
        if f"{block}.conv_shortcut.weight".replace(".", "/") in self._parameters:
            x = self._convolved(f"{block}.conv_shortcut", x, padding=0)
        return x + inner

    def _middle(self, block: str, x: torch.Tensor) -> torch.Tensor:
        """Two residual blocks, and attention of one head over all positions between them."""
        x, attention = self._residual(f"{block}.resnets.0", x), f"{block}.attentions.0"
        rows = self._normal(f"{attention}.group_norm", x.flatten(2)).transpose(1, 2)
        query, key, value = (functional.linear(rows, *self._of(f"{attention}.to_{name}"))[:, None] for name in "qkv")
        hidden = functional.scaled_dot_product_attention(query, key, value)[:, 0]
        hidden = functional.linear(hidden, *self._of(f"{attention}.to_out.0"))
        return self._residual(f"{block}.resnets.1", hidden.transpose(1, 2).reshape(x.shape) + x)


def vae(folder: Path) -> comfy.sd.VAE:
    """ComfyUI's VAE around the folder's autoencoder.

    ComfyUI's class builds its network itself. It gets a small one of its own kind, so that it sets up everything else as this
    version of ComfyUI does, and the embedded network then takes that one's place.
    """
    config, weights = _config(folder, "vae"), load_file(folder / "vae" / "diffusion_pytorch_model.safetensors")
    blocks, layers = len(config["block_out_channels"]), config["layers_per_block"]
    network = Autoencoder(weights, config["norm_num_groups"], blocks, layers)
    sizes = {"double_z": True, "z_channels": 1, "resolution": 32, "in_channels": 3, "out_ch": 3, "ch": 32}
    sizes |= {"ch_mult": [1], "num_res_blocks": 1, "attn_resolutions": [], "dropout": 0.0}
    parameters = {"ddconfig": sizes, "embed_dim": 1}
    loaded = comfy.sd.VAE(sd=StandIn(**parameters).state_dict(), config={"params": parameters})
    loaded.first_stage_model = network.to(loaded.vae_dtype).train(False)
    offload_device = comfy.model_management.vae_offload_device()
    loaded.patcher = _patcher(loaded.first_stage_model, loaded.device, offload_device)
    loaded.size = None  # ComfyUI measures it again
    loaded.latent_channels = config["latent_channels"]
    loaded.downscale_ratio = loaded.upscale_ratio = _pixels(config)
    return loaded


def _pixels(autoencoder: Config) -> int:
    """Pixels a side of one latent position."""
    return RULES[FAMILY].grid(autoencoder, {}).scale


def _config(folder: Path, component: str) -> Config:
    return read_json(folder / component / "config.json")
