"""Checkpoints of every family with random weights, a second to make: for tests and benchmarks of the real loading code.

Tokenizers are those of shapes-flux; pictures are noise.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

FLUX = Path(__file__).resolve().parents[2] / "assets" / "shapes-flux"

# What a tiny checkpoint can sample, by its family.
PICTURE = {"width": 32, "height": 32}
VIDEO = {"width": 32, "height": 16, "frames": 5}
SIZES = {
    "sd3": PICTURE,
    "wan21": VIDEO,
    "wan22": VIDEO,
    "wan22-5b": {"width": 64, "height": 32, "frames": 5},
    "z-image": PICTURE,
    "qwen-image": PICTURE,
    "flux2-klein-base": PICTURE,
    "flux2-dev": PICTURE,
    "qwen-image-2.1": {"width": 64, "height": 64},
    "krea2": PICTURE,
}


def make(family: str, folder: Path, seed: int = 0) -> Path:
    """Saves a tiny diffusers pipeline, one of FAMILIES, as `folder`. A process makes each once, and copies it afterwards."""
    shutil.copytree(_made(family, seed), folder, dirs_exist_ok=True)
    return folder


@functools.cache
def _made(family: str, seed: int) -> Path:
    place = Path(tempfile.mkdtemp(prefix="tiny-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        FAMILIES[family]().save_pretrained(place)
    return place


def stable_diffusion_3(with_t5: bool = True):
    from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline
    from transformers import CLIPTextModelWithProjection

    t5, t5_tokenizer = _t5()
    transformer = SD3Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=8,
        num_layers=2,
        attention_head_dim=64,  # in ComfyUI the width of SD3 is 64 · depth
        num_attention_heads=2,
        joint_attention_dim=64,  # T5's width; the two CLIPs side by side are padded to it
        caption_projection_dim=128,
        pooled_projection_dim=32,
        out_channels=8,
        pos_embed_max_size=16,
        dual_attention_layers=(0,),
        qk_norm="rms_norm",
    )
    return StableDiffusion3Pipeline(
        transformer=_awake(transformer),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=_vae(),
        text_encoder=CLIPTextModelWithProjection(_clip_config()).eval(),
        tokenizer=_clip_tokenizer(),
        text_encoder_2=CLIPTextModelWithProjection(_clip_config()).eval(),
        tokenizer_2=_clip_tokenizer(),
        text_encoder_3=t5 if with_t5 else None,  # pyright: ignore[reportArgumentType]  # optional, says its documentation
        tokenizer_3=t5_tokenizer if with_t5 else None,
    )


def wan(experts: int = 1):
    shape = dict(base_dim=3, z_dim=16, num_res_blocks=1)
    return _wan_pipeline(shape, experts, boundary_ratio=0.875 if experts == 2 else None)


def wan_5b():
    """The model of 2.2 that takes a timestep for each token, and whose autoencoder packs patches too."""
    mean, std = (torch.rand(12) - 0.5).tolist(), (torch.rand(12) + 0.5).tolist()
    shape = dict(base_dim=4, decoder_base_dim=4, z_dim=12, num_res_blocks=1, latents_mean=mean, latents_std=std)
    packs = dict(is_residual=True, in_channels=12, out_channels=12, patch_size=2, scale_factor_spatial=16)
    return _wan_pipeline(shape | packs, 1, expand_timesteps=True)


def wan_i2v():
    shape = dict(base_dim=3, z_dim=16, num_res_blocks=1)
    return _wan_pipeline(shape, 2, "WanImageToVideoPipeline", more_channels=20, boundary_ratio=0.875)


def _wan_pipeline(vae: dict, experts: int, pipeline: str = "WanPipeline", more_channels: int = 0, **more):
    import diffusers
    from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, WanTransformer3DModel
    from transformers import UMT5Config, UMT5EncoderModel

    tokenizer = _t5_tokenizer()
    encoder = UMT5EncoderModel(
        UMT5Config(vocab_size=len(tokenizer), d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=4)
    )
    networks = [
        _awake(
            WanTransformer3DModel(
                patch_size=(1, 2, 2),
                num_attention_heads=2,
                attention_head_dim=12,
                in_channels=vae["z_dim"] + more_channels,
                out_channels=vae["z_dim"],
                text_dim=32,
                freq_dim=16,
                ffn_dim=32,
                num_layers=2,
                cross_attn_norm=True,
                qk_norm="rms_norm_across_heads",
                rope_max_seq_len=32,
            )
        )
        for _ in range(experts)
    ]
    return getattr(diffusers, pipeline)(
        tokenizer=tokenizer,
        text_encoder=encoder.eval(),
        transformer=networks[0],
        transformer_2=networks[1] if experts == 2 else None,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=AutoencoderKLWan(dim_mult=[1, 1, 1, 1], temperal_downsample=[False, True, True], **vae).eval(),
        **more,
    )


def z_image(turbo: bool = False):
    from diffusers import FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel

    encoder, tokenizer = _qwen3()
    transformer = ZImageTransformer2DModel(
        in_channels=8,
        dim=48,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=32,
        axes_dims=[8, 8, 8],
        axes_lens=[192, 16, 16],
    )
    return ZImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0 if turbo else 6.0),
        vae=_vae(),
        text_encoder=encoder,
        tokenizer=tokenizer,
        transformer=_awake(transformer, by=0.02),  # its time's layer is wide
    )


def qwen_image(image_token: str = ""):
    from diffusers import FlowMatchEulerDiscreteScheduler, QwenImagePipeline, QwenImageTransformer2DModel
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    tokenizer = _qwen_tokenizer(**({"extra_special_tokens": {"image_token": image_token}} if image_token else {}))
    places = {}
    if image_token:
        places = {
            "image_token_id": tokenizer.image_token_id,
            "vision_start_token_id": tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        }
    text = _qwen_config(tokenizer, rope_scaling={"type": "mrope", "mrope_section": [2, 3, 3]})
    vision = dict(
        depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32, fullatt_block_indexes=[0]
    )
    encoder = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=vision, **places))
    transformer = QwenImageTransformer2DModel(
        in_channels=32,
        out_channels=8,
        num_layers=2,
        attention_head_dim=24,
        num_attention_heads=2,
        joint_attention_dim=32,
        axes_dims_rope=(8, 8, 8),
    )
    return QwenImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(
            use_dynamic_shifting=True, base_shift=0.5, max_shift=0.9, max_image_seq_len=8192, shift_terminal=0.02
        ),
        vae=_qwen_vae(),
        text_encoder=encoder.eval(),
        tokenizer=tokenizer,
        transformer=_awake(transformer),
    )


def qwen_image_edit(plus: bool = False):
    """Qwen-Image, whose text encoder sees pictures."""
    import diffusers
    from transformers import PaddleOCRVLProcessor, Qwen2VLImageProcessorPil

    parts = qwen_image(image_token="<|image_pad|>").components
    tokenizer = parts["tokenizer"]
    tokenizer.model_max_length = 4096  # a token for every byte of the pipeline's message
    # The real one, Qwen2VLProcessor, needs torchvision; of texts and pictures this one makes the same.
    looks = Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=28 * 28 * 64)
    pipeline = diffusers.QwenImageEditPlusPipeline if plus else diffusers.QwenImageEditPipeline
    return pipeline(**parts, processor=PaddleOCRVLProcessor(looks, tokenizer))  # pyright: ignore[reportArgumentType]


def qwen_image_21(**settings):
    from diffusers import (
        AutoencoderKLQwenImage21,
        FlowMatchEulerDiscreteScheduler,
        QwenImage21Pipeline,
        QwenImage21Transformer2DModel,
    )
    from transformers import LlavaProcessor, Qwen2VLImageProcessorPil, Qwen3VLConfig, Qwen3VLForConditionalGeneration

    # The real one, Qwen3VLProcessor, needs torchvision; of text this one makes the same.
    tokenizer = _qwen_tokenizer(CHAT.replace("message.content", "message.content[0].text"))
    tokenizer.add_tokens(
        ["<|image_pad|>", *(f" {word}" for word in "Comprehend and analyze the provided prompt.".split())]
    )
    processor = LlavaProcessor(Qwen2VLImageProcessorPil(), tokenizer, chat_template=tokenizer.chat_template)
    text, vision = _qwen3_vl(tokenizer)
    encoder = Qwen3VLForConditionalGeneration(Qwen3VLConfig(text_config=text, vision_config=vision))
    transformer = QwenImage21Transformer2DModel(
        in_channels=8,
        out_channels=8,
        num_layers=2,
        attention_head_dim=24,
        num_attention_heads=2,
        context_in_dim=32,
        axes_dims_rope=(8, 8, 8),
    )
    vae = AutoencoderKLQwenImage21(
        base_dim=4,
        decoder_base_dim=4,
        z_dim=8,
        dim_mult=[1, 1, 1, 1, 1],
        num_res_blocks=1,
        latents_mean=(torch.rand(8) - 0.5).tolist(),
        latents_std=(torch.rand(8) + 0.5).tolist(),
    )
    return QwenImage21Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        vae=vae.eval(),
        text_encoder=encoder.eval(),
        processor=processor,  # pyright: ignore[reportArgumentType]  # see above
        transformer=_awake(transformer),
        **settings,
    )


def krea2(distilled: bool = False):
    from diffusers import FlowMatchEulerDiscreteScheduler, Krea2Pipeline, Krea2Transformer2DModel
    from transformers import Qwen3VLConfig, Qwen3VLModel

    tokenizer = _qwen_tokenizer()
    text, vision = _qwen3_vl(tokenizer)
    transformer = Krea2Transformer2DModel(
        in_channels=32,
        num_layers=2,
        attention_head_dim=24,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=128,
        timestep_embed_dim=32,
        text_hidden_dim=32,
        num_text_layers=3,
        text_num_attention_heads=2,
        text_num_key_value_heads=2,
        text_intermediate_size=128,
        axes_dims_rope=(12, 6, 6),
    )
    return Krea2Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, max_image_seq_len=6400),
        vae=_qwen_vae(),
        text_encoder=Qwen3VLModel(Qwen3VLConfig(text_config=text, vision_config=vision)).eval(),
        tokenizer=tokenizer,
        transformer=_awake(transformer),
        text_encoder_select_layers=(1, 2, 3),
        is_distilled=distilled,
    )


def flux2(distilled: bool = False):
    from diffusers import Flux2KleinPipeline
    from transformers import Qwen3Config, Qwen3ForCausalLM

    tokenizer = _qwen_tokenizer()
    config = _qwen_config(tokenizer, num_hidden_layers=27)  # of which the pipeline takes three
    encoder = Qwen3ForCausalLM(Qwen3Config(**config, head_dim=16)).eval()
    return Flux2KleinPipeline(
        **_flux2_parts(guidance=False), text_encoder=encoder, tokenizer=tokenizer, is_distilled=distilled
    )


def flux2_dev():
    from diffusers import Flux2Pipeline
    from transformers import Mistral3Config, Mistral3ForConditionalGeneration

    # The real one is a processor of pictures too, which needs torchvision.
    tokenizer = _qwen_tokenizer("{% for message in messages %}{{ message.content[0].text[-60:] }}{% endfor %}")
    text = _qwen_config(tokenizer, model_type="mistral", num_hidden_layers=30, head_dim=16)
    vision = dict(
        model_type="pixtral", hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1
    )
    encoder = Mistral3ForConditionalGeneration(Mistral3Config(text_config=text, vision_config=vision))
    return Flux2Pipeline(**_flux2_parts(guidance=True), text_encoder=encoder.eval(), tokenizer=tokenizer)


def _flux2_parts(guidance: bool) -> dict:
    from diffusers import AutoencoderKLFlux2, FlowMatchEulerDiscreteScheduler, Flux2Transformer2DModel

    vae = AutoencoderKLFlux2(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(8, 8),
        layers_per_block=1,
        norm_num_groups=4,
        latent_channels=4,
        sample_size=32,
    )
    vae.bn.running_mean, vae.bn.running_var = torch.rand(16) - 0.5, torch.rand(16) + 0.5
    transformer = Flux2Transformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=96,
        timestep_guidance_channels=32,
        axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds=guidance,
    )
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    return {"vae": vae.eval(), "transformer": _awake(transformer), "scheduler": scheduler}


def flux_dev():
    """The embedded model, but as FLUX.1-dev its transformer takes the guidance as an embedding."""
    from diffusers import FluxPipeline, FluxTransformer2DModel

    config = dict(FluxTransformer2DModel.load_config(FLUX / "transformer"))
    transformer = FluxTransformer2DModel.from_config(config, guidance_embeds=True).eval()
    return FluxPipeline.from_pretrained(FLUX, transformer=transformer, torch_dtype=torch.float32)


def flux_kontext():
    """The embedded model's transformer with guidance, as the one that sees a picture."""
    from diffusers import FluxKontextPipeline

    return FluxKontextPipeline(**{**flux_dev().components, "image_encoder": None, "feature_extractor": None})


FAMILIES = {
    "flux-dev": flux_dev,
    "flux-kontext": flux_kontext,
    "sd3": stable_diffusion_3,
    "sd3-without-t5": lambda: stable_diffusion_3(with_t5=False),
    "wan21": wan,
    "wan22": lambda: wan(experts=2),
    "wan22-5b": wan_5b,
    "wan22-i2v": wan_i2v,
    "z-image": z_image,
    "z-image-turbo": lambda: z_image(turbo=True),
    "qwen-image": qwen_image,
    "qwen-image-edit": qwen_image_edit,
    "qwen-image-edit-plus": lambda: qwen_image_edit(plus=True),
    "qwen-image-2.1": qwen_image_21,
    "qwen-image-2.1-turbo": lambda: qwen_image_21(sample_sigmas=[1.0, 0.9, 0.7, 0.3]),
    "flux2-klein-base": flux2,
    "flux2-klein": lambda: flux2(distilled=True),
    "flux2-dev": flux2_dev,
    "krea2": krea2,
    "krea2-turbo": lambda: krea2(distilled=True),
}


def _vae():
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,  # pyright: ignore[reportArgumentType]  # the library's tuple[str] has any length
        up_block_types=("UpDecoderBlock2D",) * 2,  # pyright: ignore[reportArgumentType]  # the library's tuple[str] has any length
        block_out_channels=(8, 8),  # pyright: ignore[reportArgumentType]  # the library's tuple[int] has any length
        layers_per_block=1,
        norm_num_groups=4,
        latent_channels=8,
        sample_size=32,
        use_quant_conv=False,
        use_post_quant_conv=False,
        scaling_factor=1.5,
        shift_factor=0.1,
    ).eval()


def _clip_tokenizer():
    from transformers import CLIPTokenizer

    return CLIPTokenizer.from_pretrained(FLUX / "tokenizer", local_files_only=True)


def _clip_config():
    from transformers import CLIPTextConfig

    tokenizer = _clip_tokenizer()
    return CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=32,
        projection_dim=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def _t5():
    """(encoder, tokenizer) of width 64."""
    from transformers import T5Config, T5EncoderModel

    tokenizer = _t5_tokenizer()
    config = T5Config(vocab_size=len(tokenizer), d_model=64, d_kv=16, d_ff=64, num_layers=2, num_heads=4)
    return T5EncoderModel(config).eval(), tokenizer


def _t5_tokenizer():
    # transformers 5 makes this name when it is imported.
    from transformers import T5TokenizerFast  # pyright: ignore[reportAttributeAccessIssue]

    return T5TokenizerFast.from_pretrained(FLUX / "tokenizer_2", local_files_only=True)


CHAT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Words of the pipelines' own messages, of which they drop as many tokens as Qwen's tokenizer makes.
WORDS = "the image by detailing color shape size texture quantity text spatial relationships of objects and background"


def _qwen_tokenizer(chat: str = CHAT, **more: Any) -> Any:
    """Qwen's with a token for every byte, and so much of its template for chats as is used here."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Tokenizer

    letters = {letter: number for number, letter in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Qwen2Tokenizer(vocab=letters, merges=[], chat_template=chat, model_max_length=96, **more)
    tokenizer.add_tokens(["system", "user", "assistant", "Describe", *(f" {word}" for word in WORDS.split())])
    marks = ["<|im_start|>", "<|im_end|>", *(["<|vision_start|>", "<|vision_end|>"] if more else [])]
    special = {"additional_special_tokens": marks, "pad_token": "<|endoftext|>"}
    tokenizer.add_special_tokens(special)
    return tokenizer


def _qwen3():
    """(encoder, tokenizer) of width 32."""
    from transformers import Qwen3Config, Qwen3Model

    tokenizer = _qwen_tokenizer()
    return Qwen3Model(Qwen3Config(**_qwen_config(tokenizer, head_dim=16))).eval(), tokenizer


def _qwen3_vl(tokenizer) -> tuple[dict, dict]:
    """Configurations for text and for pictures."""
    rope = {"rope_type": "default", "mrope_section": [4, 2, 2]}
    vision = dict(
        depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32, deepstack_visual_indexes=[0]
    )
    return _qwen_config(tokenizer, head_dim=16, rope_scaling=rope), vision


def _qwen_config(tokenizer, **more: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "pad_token_id": tokenizer.pad_token_id,
        **more,
    }


def _qwen_vae():
    from diffusers import AutoencoderKLQwenImage

    return AutoencoderKLQwenImage(
        base_dim=4,
        z_dim=8,
        dim_mult=[1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=(torch.rand(8) - 0.5).tolist(),
        latents_std=(torch.rand(8) + 0.5).tolist(),
    ).eval()


def _awake(network, by: float = 0.05):
    """Fresh networks end in zeros, so that they would predict nothing; this one predicts something."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += by * torch.randn_like(parameter)
    return network.eval()
