"""The embedded model as ComfyUI's own objects: a MODEL, a CLIP and a VAE from a diffusers folder in assets/.

ComfyUI's loaders know networks by their published sizes, and this model is tiny. So its sizes are read from the folder, and
ComfyUI's own networks are built with them: Flux, CLIP and T5. Only the autoencoder stays diffusers' network, since ComfyUI's
has normalizations of 32 groups, more than this one has channels.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

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

from ...host.json_files import read_json
from ...host.paths import ASSETS
from ..families.folder import library_class, read_index
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
    settings.latent_format = _latent_format(autoencoder)
    settings.sampling_settings = {"shift": _timestep_shift(folder, autoencoder, transformer)}
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
    """What ComfyUI does not read from weights, since all published FLUX models have it alike."""
    heads = config["num_attention_heads"]
    return {
        "out_channels": config["in_channels"] // 4,  # diffusers counts them after packing 2 x 2 positions into one
        "context_in_dim": config["joint_attention_dim"],
        "hidden_size": heads * config["attention_head_dim"],
        "num_heads": heads,
        "axes_dim": config["axes_dims_rope"],
    }


def _latent_format(config: Config) -> comfy.latent_formats.LatentFormat:
    """FLUX's format of latents with the numbers of this autoencoder, and without previews, which exist for the real one."""
    latents = comfy.latent_formats.Flux()
    latents.scale_factor, latents.shift_factor = config["scaling_factor"], config["shift_factor"]
    latents.latent_channels, latents.spacial_downscale_ratio = config["latent_channels"], _pixels(config)
    latents.latent_rgb_factors = latents.latent_rgb_factors_bias = latents.taesd_decoder_name = None
    return latents


def _timestep_shift(folder: Path, autoencoder: Config, transformer: Config) -> float:
    """μ of ModelSamplingFlux at the size that the model was trained with: its noise levels are shifted by e^μ."""
    scheduler, side = read_json(folder / "scheduler" / "scheduler_config.json"), autoencoder["sample_size"]
    checkpoint = Checkpoint(FAMILY, {}, scheduler, autoencoder, transformer)
    return math.log(checkpoint.shift(SamplerSettings(width=side, height=side)))


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
        words = self.clip_l.operations.Embedding(
            config["vocab_size"], config["hidden_size"], device=device, dtype=dtype
        )
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
        index = read_index(folder)
        self.tokenizers = {
            name: library_class(folder / part, *index[part]).from_pretrained(folder / part, local_files_only=True)
            for name, part in self.PARTS.items()
        }

    def tokenize_with_weights(self, text: str, return_word_ids: bool = False, **_) -> dict[str, list[list[tuple]]]:
        """For each encoder one row of (token, weight 1), and the number of its word if asked."""
        rows = {}
        for name, tokenizer in self.tokenizers.items():
            length = min(MOST_TOKENS, tokenizer.model_max_length)
            encoded = tokenizer(text, padding="max_length", max_length=length, truncation=True)
            words = [0 if word is None else word + 1 for word in encoded.word_ids()]
            row = zip(encoded.input_ids, [1.0] * length, words, strict=True)
            rows[name] = [[entry if return_word_ids else entry[:2] for entry in row]]
        return rows

    def state_dict(self) -> dict:
        """Nothing that a saved checkpoint would have to hold."""
        return {}


# -- VAE ----------------------------------------------------------------------------------------------------------------------


class Autoencoder(torch.nn.Module):
    """diffusers' autoencoder, asked as ComfyUI asks its own: without scale and shift, which its latent format has."""

    def __init__(self, network: Any):
        super().__init__()
        self.network = network

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.network.encode(pixels).latent_dist.mode()

    def decode(self, latents: torch.Tensor, **_) -> torch.Tensor:
        return self.network.decode(latents, return_dict=False)[0]


def vae(folder: Path) -> comfy.sd.VAE:
    """ComfyUI's VAE around the folder's autoencoder.

    ComfyUI's class builds its network itself. It gets a small one of its own kind, so that it sets up everything else as this
    version of ComfyUI does, and the embedded network then takes that one's place.
    """
    from diffusers import AutoencoderKL

    config = _config(folder, "vae")
    network = AutoencoderKL.from_pretrained(folder / "vae", local_files_only=True, use_safetensors=True)
    sizes = {
        "double_z": True,
        "z_channels": 1,
        "resolution": 32,
        "in_channels": 3,
        "out_ch": 3,
        "ch": 32,
        "ch_mult": [1],
    }
    sizes |= {"num_res_blocks": 1, "attn_resolutions": [], "dropout": 0.0}
    parameters = {"ddconfig": sizes, "embed_dim": 1}
    loaded = comfy.sd.VAE(sd=StandIn(**parameters).state_dict(), config={"params": parameters})
    loaded.first_stage_model = Autoencoder(network).to(loaded.vae_dtype).eval().requires_grad_(False)
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
