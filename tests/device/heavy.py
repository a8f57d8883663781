"""What the pretend device holds while our own code trains, counted by its allocations; and models of 50 MB and more to train.

The counter knows nothing of trainer/memory: it follows the memory of the tensors that say they are on the device.
"""

from __future__ import annotations

import contextlib
import copy
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode

from comfyui_otca.host.access import permissions
from comfyui_otca.tests.device import pretend
from comfyui_otca.tests.device.conftest import judged
from comfyui_otca.tests.tiny import models as tiny
from comfyui_otca.tests.tiny import rewards
from comfyui_otca.trainer import gradient, grpo, rollout
from comfyui_otca.trainer.families.base import EXAMPLE
from comfyui_otca.trainer.families.options import LoadOptions
from comfyui_otca.trainer.flow import load_flow_model
from comfyui_otca.trainer.memory import blueprint
from comfyui_otca.trainer.memory.case import (
    DECODING,
    ENCODING,
    JUDGING,
    SAMPLING,
    SCORING,
    UNDECODING,
    UPDATE,
    Iteration,
    Judge,
    Pull,
)
from comfyui_otca.trainer.memory.meta import META, TOKEN, Live, as_on_a_gpu, there_and_back
from comfyui_otca.trainer.memory.rehearsal import PipelineCase
from comfyui_otca.trainer.policy.adapters import Adapter
from comfyui_otca.trainer.rewards.base import score_stack
from comfyui_otca.trainer.rewards.clip import ClipT
from comfyui_otca.trainer.types import VIDEO_FRAMES, GradientSettings, Prompt, Prompts, SamplerSettings, UpdateSettings

RANK = 8
# Signs alone are as many tokens to the tiny tokenizers, which take bytes, as to the estimate, which takes words and signs.
LONG = "!" * len(TOKEN.findall(EXAMPLE))
PROMPTS = Prompts((LONG[1:] + "?", LONG[1:] + "."), (0, 1))
SIZES = {
    "flux": (96, 96, 1),
    "sd3": (64, 64, 1),
    "wan": (128, 128, 9),
    "wan-5b": (256, 256, 9),
    "wan-i2v": (128, 128, 9),
    "z-image": (64, 64, 1),
    "qwen-image": (128, 128, 1),
    "flux2-klein": (64, 64, 1),
    "flux2-dev": (64, 64, 1),
    "krea2": (128, 128, 1),
}
# Kinds of training: fields of `Training`.
CASES = {
    "LoRA": {},
    "checkpointing": {"load": {"gradient_checkpointing": True}},
    "batch 1": {"update": {"batch_size": 1}, "sampling_batch": 1},
    "batch 3": {"update": {"batch_size": 3}, "sampling_batch": 4},
    "kept graph": {"keep_graph": True},
    "all weights": {"load": {"training": "full"}},
    "moving average": {"update": {"ema_decay": 0.9}},
    "streaming": {"load": {"memory": "low"}},
    "encoders offloaded": {"load": {"offload_encoders": True}},
}
PHASES = (ENCODING, SAMPLING, DECODING, UPDATE)
# The same by the rewards' gradient, with CLIP-T and with a decoder that takes its part: fields of `GradientSettings`.
PULLS = {
    "one_call": {"mode": "one_call"},
    "last_steps": {"mode": "last_steps"},
    "leap": {"mode": "leap", "steps": 1},
    "one_call in tiles": {"mode": "one_call", "tile": 16},
    "last_steps, batch 1": {"mode": "last_steps", "batch_size": 1},
}
PULLED = (JUDGING, UPDATE)  # the first is the larger one of JUDGING and UNDECODING


class Allocated(TorchDispatchMode):
    """Follows the memory of tensors on the pretend device; `peaks`: the most of each phase, in bytes."""

    def __init__(self, model, *judges):
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.now = 0
        self.phase, self.peaks = "", {}
        policy = model.policy
        tensors = [t for n in (*model.components().values(), *judges) for t in (*n.parameters(), *n.buffers())]
        tensors += [
            t for state in (policy.optimizer.state if policy.optimizer else {}).values() for t in state.values()
        ]
        tensors += [*policy._originals, *(policy.ema.shadow_params if policy.ema else ())]
        tensors += [buffer for buffer, _ in (model.blocks_out.there.values() if model.blocks_out else ())]
        tensors += [t.grad for t in tensors if t.grad is not None]
        for tensor in tensors:
            self._follow(tensor)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in pretend._tensors(result):
            self._follow(tensor)
        self.peaks[self.phase] = max(self.peaks.get(self.phase, 0), self.now)
        return result

    def _follow(self, tensor) -> None:
        if not isinstance(tensor, pretend.Pretend):
            return
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address and address not in self.sizes:
            self.sizes[address] = storage.nbytes()
            self.now += storage.nbytes()
            weakref.finalize(storage, self._freed, address)

    def _freed(self, address: int) -> None:
        self.now -= self.sizes.pop(address)


def prompts(family: str, folder: Path) -> Prompts:
    """Of a model that makes videos of pictures, each with one, which lies in the folder."""
    if family != "wan-i2v":
        return PROMPTS
    width, height, _ = SIZES[family]
    Image.fromarray(np.zeros((height, width, 3), np.uint8)).save(folder / "first.png")
    os.environ.setdefault(permissions.FOLDERS, str(folder))
    pictured = {"image": str(folder / "first.png")}
    return Prompts(tuple(Prompt(text, pictured) for text in PROMPTS.texts), PROMPTS.positions)


@dataclass(frozen=True)
class Training:
    """Settings of one comparison."""

    family: str
    load: dict = field(default_factory=dict)
    update: dict = field(default_factory=dict)
    keep_graph: bool = False
    sampling_batch: int = 2
    group_size: int = 2
    pull: dict | None = None
    size: tuple[int, int, int] | None = None  # instead of that in SIZES

    @property
    def samples(self) -> int:
        return 2 * self.group_size


def make(family: str, folder: Path, decoder: int = 0, levels: int = 2) -> Path:
    """A checkpoint of the family with random weights, 50 MB and more in bfloat16; `decoder`: channels of each of its levels."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        pipeline = WIDER[family]()
        if decoder:
            old = pipeline.vae
            wider = {"base_dim": decoder}
            if "base_dim" not in old.config:
                blocks = {f"{way}_block_types": old.config[f"{way}_block_types"][:1] * levels for way in ("down", "up")}
                wider = {"block_out_channels": (decoder,) * levels, **blocks}
            pipeline.register_modules(vae=type(old)(**{**old.config, **wider}).eval())
        pipeline.to(torch.bfloat16)
    pipeline.save_pretrained(folder)
    return folder


def judge(folder: Path, device: str = "pretend:0") -> ClipT:
    """CLIP-T by a CLIP of 20 MB with random weights, which lies in the folder."""
    os.environ.setdefault(permissions.FOLDERS, str(folder.parent))
    made = rewards.clip(folder / "judge", vision=(256, 6, 4), patch=14, image=112)
    return ClipT(model=str(made), device=device)


def judging(clip: ClipT) -> Judge:
    """What it takes, for a picture, on the meta device."""
    network = copy.deepcopy(clip.network.model).to(META)
    pixels = torch.empty(1, 3, 112, 112, device=META, requires_grad=True)
    with as_on_a_gpu(), Live([*network.parameters(), *network.buffers()]) as live:
        kept, over, back = there_and_back(live, lambda: network.get_image_features(pixel_values=pixels).pooler_output)
    return Judge(sum(p.nbytes for p in network.parameters()), graph=kept + max(over, back))


def counted(folder: Path, training: Training) -> dict[str, int]:
    """The most that each phase of an iteration had on the device; the second one's, since the optimizer begins with the first."""
    usual = {"lora_rank": RANK, "lora_alpha": 8.0, "dtype": "bfloat16", "device": "pretend:0"}
    model = load_flow_model(folder, **usual | training.load)
    width, height, frames = training.size or SIZES[training.family]
    settings = SamplerSettings(
        kind="dance_sde", eta=0.5, steps=3, shift=1.0, guidance=3.5, width=width, height=height, frames=frames,
        batch_size=training.sampling_batch, negative_prompt=LONG,
    )  # fmt: skip
    one = {"group_size": training.group_size, "keep_graph": training.keep_graph}
    update = UpdateSettings(**{"learning_rate": 1e-3, **training.update})
    asked = prompts(training.family, folder)
    taken = rollout.sample(model, asked, settings, seed=0, **one)
    clip = judge(folder) if training.pull else None

    def updated(live) -> None:
        if clip is None:
            return grpo.update(model, taken, _judged(taken), update)
        scores = score_stack([clip], taken.images, taken.prompts, taken.groups)
        live.phase = UPDATE
        return gradient.update(model, taken, scores, GradientSettings(learning_rate=1e-3, **training.pull))

    updated(SimpleNamespace())  # nobody counts yet
    del taken
    model.policy.forget_gradients()
    for embeddings in filter(None, (model._embeddings, getattr(model, "_pictures", None))):
        embeddings._rows.clear()
    judges = [clip.network.model] if clip else []
    with Allocated(model, *judges) as live, _noting_decoding(model, live), fused_attention():
        live.phase = ENCODING
        model.condition(asked.texts, settings)
        live.phase = SAMPLING
        taken = rollout.sample(model, asked, settings, seed=1, **one)
        live.phase = SCORING if clip else UPDATE
        updated(live)
    return {phase: live.peaks[phase] for phase in (PULLED if clip else PHASES)}


def _judged(taken):
    """Advantages of which none is 0: else nothing would be computed for that sample and step."""
    advantages = judged(taken)
    return replace(advantages, step_advantage=torch.ones_like(advantages.step_advantage))


@contextlib.contextmanager
def fused_attention() -> Iterator[None]:
    """Within it attention on the pretend device keeps no matrix of tokens by tokens, as no kernel of a GPU does."""
    usual = torch.nn.functional.scaled_dot_product_attention

    def fused(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, **more):
        if not isinstance(query, pretend.Pretend):
            return usual(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **more)
        dtype = torch.get_autocast_dtype(pretend.NAME) if torch.is_autocast_enabled(pretend.NAME) else query.dtype
        query, key, value = (x.to(dtype) for x in (query, key, value))
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=dtype).masked_fill(~attn_mask, -torch.inf)
        if more.get("enable_gqa"):
            key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
        attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return attend(query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale)[0]

    torch.nn.functional.scaled_dot_product_attention = fused
    try:
        yield
    finally:
        torch.nn.functional.scaled_dot_product_attention = usual


@contextlib.contextmanager
def _noting_decoding(model, live: Allocated) -> Iterator[None]:
    decode = model.decode

    def noted(*args):
        before, live.phase = live.phase, DECODING
        try:
            return decode(*args)
        finally:
            live.phase = before

    decoder = model.decoder

    @contextlib.contextmanager
    def pulled(*args):
        before, live.phase = live.phase, JUDGING
        with decoder(*args) as decode:
            yield decode
        live.phase = before

    model.decode, model.decoder = noted, pulled
    try:
        yield
    finally:
        del model.decode, model.decoder


def estimated(folder: Path, training: Training) -> dict[str, int]:
    """The same by trainer/memory, without the reserve, which stands for what no tensor has."""
    samples, pull, clip = training.samples, None, ()
    if training.pull:
        pull = Pull(training.pull["mode"] == "one_call", training.pull.get("tile", 0))
        seen = min((training.size or SIZES[training.family])[2], VIDEO_FRAMES)
        one = judging(judge(folder, "cpu"))
        clip = (replace(one, graph=seen * one.graph),)
    options = {name: value for name, value in training.load.items() if name != "training"}
    case = PipelineCase(
        blueprint=blueprint.of_folder(folder),
        adapter=None if training.load.get("training") == "full" else Adapter(RANK, 8.0),
        options=LoadOptions(**options),
        dtype=torch.bfloat16,
        iteration=Iteration(
            size=training.size or SIZES[training.family],
            samples=samples,
            alike=training.group_size,
            prompts=2,
            steps=3,
            trained_steps=2,
            batch=(training.pull or training.update).get("batch_size") or samples,
            sampling_batch=training.sampling_batch,
            guided=True,
            kept_calls=2 * training.keep_graph,
            copies=1 if training.update.get("ema_decay") else 0,
            pulled=bool(training.pull),
            rewards=clip,
            pull=pull,
        ),
    )
    found = case.decided.estimate(room=float("inf"))
    totals = {phase: total - found.phases[phase]["reserve"] for phase, total in found.totals.items()}
    if pull:
        return {JUDGING: max(totals[JUDGING], totals[UNDECODING]), UPDATE: totals[UPDATE]}
    return {phase: totals[phase] for phase in PHASES}


def _flux():
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
    from transformers import CLIPTextModel

    encoder, tokenizer = _t5()
    transformer = FluxTransformer2DModel(
        in_channels=32,
        num_layers=3,
        num_single_layers=5,
        attention_head_dim=64,
        num_attention_heads=6,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=32,
        guidance_embeds=True,
        axes_dims_rope=(16, 24, 24),
    )
    return FluxPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=tiny._vae(),
        text_encoder=CLIPTextModel(tiny._clip_config()).eval(),
        tokenizer=tiny._clip_tokenizer(),
        text_encoder_2=encoder,
        tokenizer_2=tokenizer,
        transformer=tiny._awake(transformer),
    )


def _wide(pipeline, changes, width=512):
    """With wider networks, which `changes` of their configurations make, and with a language model of so much width."""
    for name in ("transformer", "transformer_2"):
        if old := getattr(pipeline, name, None):
            options = {key: value for key, value in old.config.items() if not key.startswith("_")}
            by = {"by": 0.02} if type(old).__name__.startswith("ZImage") else {}
            pipeline.register_modules(**{name: tiny._awake(type(old)(**options | changes), **by)})
    name = "text_encoder_3" if hasattr(pipeline, "text_encoder_3") else "text_encoder"
    encoder = getattr(pipeline, name)
    config = encoder.config
    if hasattr(config, "d_model"):
        config = type(config)(vocab_size=config.vocab_size, **T5)
    else:
        language = getattr(config, "text_config", config)
        language.hidden_size, language.intermediate_size = width, 3 * width
        language.num_attention_heads, language.num_key_value_heads = width // 16, width // 32
        if hasattr(getattr(config, "vision_config", None), "out_hidden_size"):
            config.vision_config.out_hidden_size = width
    pipeline.register_modules(**{name: type(encoder)(config).eval()})
    return pipeline


WIDTH = 512
T5 = {"d_model": WIDTH, "d_kv": 64, "d_ff": 2048, "num_layers": 4, "num_heads": 8}


def _t5():
    from transformers import T5Config, T5EncoderModel

    tokenizer = tiny._t5_tokenizer()
    return T5EncoderModel(T5Config(vocab_size=len(tokenizer), **T5)).eval(), tokenizer


HEADS = {"attention_head_dim": 64, "num_attention_heads": 6}
AXES = (16, 24, 24)
SD3 = HEADS | {
    "sample_size": 32,
    "num_layers": 6,
    "joint_attention_dim": WIDTH,
    "caption_projection_dim": 384,
    "pos_embed_max_size": 32,
    "dual_attention_layers": (0, 1),
}
WAN = HEADS | {"text_dim": WIDTH, "freq_dim": 64, "ffn_dim": 1536, "num_layers": 11, "rope_max_seq_len": 64}
Z_IMAGE = {
    **{"dim": 384, "n_layers": 12, "n_refiner_layers": 2, "n_heads": 6, "n_kv_heads": 6, "cap_feat_dim": WIDTH},
    **{"axes_dims": list(AXES), "axes_lens": [192, 48, 48]},
}
QWEN_IMAGE = HEADS | {"num_layers": 5, "joint_attention_dim": WIDTH, "axes_dims_rope": AXES}
FLUX2 = HEADS | {
    **{"num_layers": 3, "num_single_layers": 8, "joint_attention_dim": 3 * 192, "axes_dims_rope": (16,) * 4},
    "timestep_guidance_channels": 256,
}
KREA2 = HEADS | {
    **{"num_layers": 14, "num_key_value_heads": 2, "intermediate_size": 1024, "timestep_embed_dim": 64},
    **{"text_hidden_dim": WIDTH, "num_text_layers": 3, "text_num_attention_heads": 8, "text_num_key_value_heads": 8},
    **{"text_intermediate_size": 1024, "axes_dims_rope": AXES},
}
WIDER = {
    "flux": _flux,
    "sd3": lambda: _wide(tiny.stable_diffusion_3(), SD3),
    "wan": lambda: _wide(tiny.wan(), WAN),
    "wan-5b": lambda: _wide(tiny.wan_5b(), WAN),
    "wan-i2v": lambda: _wide(tiny.wan_i2v(), WAN),
    "z-image": lambda: _wide(tiny.z_image(), Z_IMAGE),
    "qwen-image": lambda: _wide(tiny.qwen_image(), QWEN_IMAGE),
    "flux2-klein": lambda: _wide(tiny.flux2(), FLUX2, 192),
    "flux2-dev": lambda: _wide(tiny.flux2_dev(), FLUX2, 192),
    "krea2": lambda: _wide(tiny.krea2(), KREA2),
}
