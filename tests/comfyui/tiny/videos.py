"""Families that make videos."""

from __future__ import annotations

import torch

from . import pictures
from .parts import Family, Text

WAN = {
    "image_model": "wan2.1",
    "model_type": "t2v",
    "dim": 64,
    "in_dim": 16,
    "out_dim": 16,
    "num_heads": 2,
    "ffn_dim": 128,
    "num_layers": 2,
    "text_dim": 32,
    "freq_dim": 32,
    "patch_size": (1, 2, 2),
    "window_size": (-1, -1),
    "qk_norm": True,
    "cross_attn_norm": True,
    "eps": 1e-6,
}
UMT5 = Text(32, least=12, zeros=True)
LLAMA_AND_CLIP = Text(32, pooled=24)

HUNYUAN = pictures.HUNYUAN

LTX = {
    "image_model": "ltxv",
    "in_channels": 128,
    "num_layers": 2,
    "attention_head_dim": 32,
    "num_attention_heads": 2,
    "cross_attention_dim": 64,
    "caption_channels": 32,
}

HUNYUAN15 = HUNYUAN | {
    "in_channels": 65,
    "out_channels": 32,
    "patch_size": [1, 1, 1],
    "vec_in_dim": None,
    "guidance_embed": False,
    "use_cond_type_embedding": True,
    "vision_in_dim": 24,
    "meanflow_sum": True,
}
MOCHI = {
    "image_model": "mochi_preview",
    "depth": 2,
    "patch_size": 2,
    "num_heads": 2,
    "hidden_size_x": 64,
    "hidden_size_y": 32,
    "mlp_ratio_x": 192.0,  # the network insists on 12288 hidden units
    "mlp_ratio_y": 2.0,
    "learn_sigma": False,
    "in_channels": 12,
    "qk_norm": True,
    "qkv_bias": False,
    "out_bias": True,
    "attn_drop": 0.0,
    "patch_embed_bias": True,
    "posenc_preserve_area": True,
    "timestep_mlp_bias": True,
    "attend_to_padding": False,
    "timestep_scale": 1000.0,
    "use_t5": True,
    "t5_feat_dim": 32,
    "t5_token_length": 12,
    "rope_theta": 10000.0,
}
KANDINSKY = pictures.KANDINSKY | {"visual_embed_dim": 132, "rope_scale_factor": (1.0, 2.0, 2.0)}
LTX_AV = LTX | {
    "image_model": "ltxav",
    "audio_cross_attention_dim": 32,
    "audio_attention_head_dim": 16,
    "audio_num_attention_heads": 2,
    "connector_attention_head_dim": 16,
    "connector_num_attention_heads": 2,
    "connector_num_layers": 1,
}
MINIMAX = {
    "image_model": "minimax_h3",
    "hidden_size": 64,
    "num_layers": 2,
    "token_refiner_num_layers": 1,
    "num_attention_heads": 2,
    "attention_head_dim": 32,
    "ffn_hidden_size": 128,
    "text_dim": 32,
    "timestep_input_dim": 32,
    "time_embed_hidden_size": 64,
    "time_embed_dim": 32,
    "rope_inv_freq_len": 4,
}
SEEDVR = {
    "image_model": "seedvr2",
    "vid_dim": 64,
    "heads": 2,
    "head_dim": 32,
    "num_layers": 2,
    "mm_layers": 1,
    "norm_eps": 1e-5,
    "mlp_type": "swiglu",
    "vid_out_norm": True,
    "txt_in_dim": 32,
    "rope_dim": 24,
}


def first_frame(shape, random) -> dict:
    """The picture that an image-to-video model begins with, and where it is."""
    mask = torch.ones(1, 4, *shape[1:])
    mask[:, :, :1] = 0
    return {"concat_latent_image": random(1, *shape), "concat_mask": mask}


def seen(random, width: int = 1280):
    """A picture as a vision encoder sees it."""
    import comfy.clip_vision

    output = comfy.clip_vision.Output()
    output.penultimate_hidden_states = output.last_hidden_state = random(1, 9, width)
    return output


def seen_frame(shape, random) -> dict:
    return first_frame(shape, random) | {"clip_vision_output": seen(random)}


def control(shape, random) -> dict:
    """A control video beside the first frame."""
    return {"concat_latent_image": random(1, 2 * shape[0], *shape[1:]), "clip_vision_output": seen(random)}


def vace(shape, random) -> dict:
    frames, mask = random(1, 2 * shape[0], *shape[1:]), torch.ones(1, 64, *shape[1:])
    return {"vace_frames": [frames], "vace_mask": [mask], "vace_strength": [1.0]}


def camera(shape, random) -> dict:
    """A camera's path: 24 numbers a pixel and latent frame."""
    path = random(1, 24, shape[1], shape[2] * 8, shape[3] * 8)
    return {"concat_latent_image": random(1, *shape), "camera_conditions": path}


def seen_camera(shape, random) -> dict:
    return camera(shape, random) | {"clip_vision_output": seen(random)}


def speaker(shape, random) -> dict:
    """Speech from the 25 layers of an audio encoder, the speaker's picture and a video of poses."""
    one = (1, shape[0], 1, *shape[2:])
    speech = random(1, 25, 32, 4 * shape[1])
    return {"audio_embed": speech, "reference_latents": [random(*one)], "control_video": random(1, *shape)}


def human(shape, random) -> dict:
    one = (1, shape[0], 1, *shape[2:])
    return {"audio_embed": random(1, shape[1], 8, 5, 1280), "reference_latents": [random(*one)]}


def posed(shape, random) -> dict:
    return seen_frame(shape, random) | {"pose_video_latent": random(1, *shape)}


def posed_later(shape, random) -> dict:
    """The first latent is a picture of the person, so that the poses are one shorter."""
    poses = random(1, shape[0], shape[1] - 1, *shape[2:])
    return seen_frame(shape, random) | {"pose_video_latent": poses, "clip_vision_output_pose": seen(random)}


def poses(shape, random) -> dict:
    one = (1, shape[0], 1, *shape[2:])
    return {
        "reference_latents": [random(*one)],
        "pose_video_latent": random(1, *shape),
        "clip_vision_output": seen(random),
    }


def masked_poses(shape, random) -> dict:
    masks = {
        "driving_mask_28ch": random(1, shape[1], 28, *shape[2:]),
        "ref_mask_28ch": random(1, shape[1] + 1, 28, *shape[2:]),
    }
    return poses(shape, random) | masks


def music(shape, random) -> dict:
    return seen_frame(shape, random) | {
        "clip_vision_output_ref": seen(random),
        "audio_embed": random(1, 5, 35),
        "fps": 30,
    }


def one_mask(shape, random) -> dict:
    return {"concat_latent_image": random(1, *shape), "concat_mask": torch.ones(1, 1, *shape[1:])}


def picture(shape, random) -> dict:
    return {"concat_latent_image": random(1, *shape)}


def seen_by_siglip(shape, random) -> dict:
    return one_mask(shape, random) | {"clip_vision_output": seen(random, 24)}


def coarse_video(shape, random) -> dict:
    """A small video, enlarged, with the masks of both of its parts."""
    return {"concat_latent_image": random(1, 2 * shape[0] + 2, *shape[1:])}


def whole_video(shape, random) -> dict:
    return {"condition": random(1, shape[0] + 1, *shape[1:])}


def unprocessed(embeddings, ids) -> dict:
    return {"unprocessed_ltxav_embeds": True}


def rotation(network, random) -> None:
    """MiniMax's checkpoint holds the frequencies of its rotary embedding."""
    count = len(network.rope.inv_freq)
    network.rope.inv_freq.copy_(10000.0 ** -(torch.arange(count) / count))


def prompts(network, random) -> None:
    """SeedVR2's checkpoint holds the embeddings of its only two prompts."""
    for buffer in (network.positive_conditioning, network.negative_conditioning):
        buffer.copy_(random(*buffer.shape))


NEW_HUNYUAN = pictures.NEW_HUNYUAN


def wan(kind: str, channels: int = 16, **more) -> dict:
    return WAN | {"model_type": kind, "in_dim": channels} | more


FAMILIES: dict[str, Family] = {
    "WAN21_T2V": Family(WAN, UMT5, frames=5),
    "WAN22_T2V": Family(wan("t2v", 48, out_dim=48), UMT5, frames=5, down=16),
    "WAN21_I2V": Family(wan("i2v", 36), UMT5, frames=5, conditions=seen_frame),
    "WAN22_14B_I2V": Family(wan("t2v", 36), UMT5, frames=5, of="WAN21_T2V", conditions=first_frame),
    "WAN21_FunControl2V": Family(wan("i2v", 48), UMT5, frames=5, conditions=control),
    "WAN21_Vace": Family(wan("vace", vace_layers=1, vace_in_dim=96), UMT5, frames=5, conditions=vace),
    "WAN21_Camera": Family(wan("camera", 32), UMT5, frames=5, conditions=seen_camera),
    "WAN22_Camera": Family(wan("camera_2.2", 36), UMT5, frames=5, conditions=camera),
    "WAN22_S2V": Family(wan("s2v", audio_dim=32, audio_inject_layers=[0]), UMT5, frames=5, conditions=speaker),
    "WAN21_HuMo": Family(wan("humo"), UMT5, frames=5, conditions=human),
    "WAN22_Animate": Family(wan("animate", 36, motion_encoder_dim=32), UMT5, frames=5, conditions=posed),
    "WAN_Animate2": Family(wan("animate2", 36), UMT5, frames=5, conditions=posed_later),
    "WAN21_CausalAR_T2V": Family(WAN, UMT5, frames=5),
    "WAN21_SCAIL": Family(wan("scail", 20), UMT5, frames=5, conditions=poses),
    "WAN21_SCAIL2": Family(wan("scail2", 20), UMT5, frames=5, conditions=masked_poses),
    "WAN22_WanDancer": Family(wan("wandancer", 36), UMT5, frames=5, conditions=music),
    "HunyuanVideo": Family(HUNYUAN, LLAMA_AND_CLIP, frames=5, later=NEW_HUNYUAN),
    "HunyuanVideoI2V": Family(
        HUNYUAN | {"in_channels": 33}, Text(32, pooled=24), frames=5, conditions=one_mask, later=NEW_HUNYUAN
    ),
    "HunyuanVideoSkyreelsI2V": Family(
        HUNYUAN | {"in_channels": 32}, Text(32, pooled=24), frames=5, conditions=picture, later=NEW_HUNYUAN
    ),
    "HunyuanVideo15": Family(HUNYUAN15, Text(32), frames=5, down=16),
    "HunyuanVideo15_I2V": Family(
        HUNYUAN15, Text(32), frames=5, down=16, of="HunyuanVideo15", conditions=seen_by_siglip
    ),
    "HunyuanVideo15_SR_Distilled": Family(
        HUNYUAN15 | {"in_channels": 98, "meanflow": True}, Text(32), frames=5, down=16, conditions=coarse_video
    ),
    "Kandinsky5": Family(KANDINSKY, Text(32, pooled=24, mask=True), frames=5),
    "GenmoMochi": Family(MOCHI, Text(32, least=12, mask=True), frames=7, down_time=6),
    "LTXV": Family(LTX, Text(32, least=12, mask=True), frames=9, down=32, down_time=8),
    "LTXAV": Family(LTX_AV, Text(32, extra=unprocessed), frames=9, down=32, down_time=8),
    "MiniMaxH3": Family(MINIMAX, Text(32), frames=5, down=16, channels=24, buffers=rotation, batch=1),
    "SeedVR2": Family(SEEDVR, Text(32), frames=5, conditions=whole_video, buffers=prompts),
}
