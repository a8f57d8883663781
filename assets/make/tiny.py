"""Checkpoints of every family with random weights, a second to make: for tests and benchmarks of the real loading code.

Tokenizers are those of shapes-flux; pictures are noise.
"""

from __future__ import annotations

from pathlib import Path

import torch

FLUX = Path(__file__).resolve().parents[1] / "shapes-flux"


def make(family: str, folder: Path, seed: int = 0) -> Path:
    """Saves a tiny diffusers pipeline, one of FAMILIES, as `folder`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        pipeline = FAMILIES[family]()
    pipeline.save_pretrained(folder)
    return folder


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
    from diffusers import AutoencoderKLWan, FlowMatchEulerDiscreteScheduler, WanPipeline, WanTransformer3DModel
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
                in_channels=16,
                out_channels=16,
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
    return WanPipeline(
        tokenizer=tokenizer,
        text_encoder=encoder.eval(),
        transformer=networks[0],
        transformer_2=networks[1] if experts == 2 else None,
        boundary_ratio=0.875 if experts == 2 else None,
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=AutoencoderKLWan(
            base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
        ).eval(),
    )


FAMILIES = {
    "sd3": stable_diffusion_3,
    "sd3-without-t5": lambda: stable_diffusion_3(with_t5=False),
    "wan21": wan,
    "wan22": lambda: wan(experts=2),
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


def _awake(network):
    """Fresh networks end in zeros, so that they would predict nothing; this one predicts something."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return network.eval()
