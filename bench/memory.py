"""Memory: the estimate against what is allocated, its counts, and whether a long training grows. Findings: bench/memory.md.

    python bench/memory.py allocations [--families FAMILY …] [--cases CASE …]
    python bench/memory.py gradients [--families FAMILY …] [--cases CASE …] [--side PIXELS]
    python bench/memory.py templates [--families TEMPLATE …]
    python bench/memory.py judges
    python bench/memory.py growth [--iterations N] [--every N] [--output DIR]
    ~/comfy/ComfyUI/.venv/bin/python bench/memory.py native ~/comfy/ComfyUI
    ~/comfy/ComfyUI/.venv/bin/python bench/memory.py architectures ~/comfy/ComfyUI
    ~/comfy/ComfyUI/.venv/bin/python bench/memory.py decoders ~/comfy/ComfyUI

`allocations`: our own rollout, decoding and update run on the pretend device, with random weights of 50 MB and more in bfloat16.
What tensors have on it is counted by their allocations, phase by phase (tests/device/heavy.py). The estimate is made beforehand,
from the configurations of the same folder.

`gradients`: the same for Reward Gradient Step, with a decoder of 64 channels (of videos 32) in its last level, CLIP-T by a
CLIP of 20 MB, and 4 samples; with `--side`, at that size and one at a time, by a decoder that makes 8 pixels of a latent
position.

`templates`: the estimate of each template of a large model, which its note and its light show, against a rehearsal of the same
training by the same network of diffusers, at its true size on the meta device. Both hold the same files.

`judges`, `decoders`: what rewards and ComfyUI's autoencoders take with a gradient, for trainer/memory/case.py and native.py, by
their own classes in the published sizes. Judges in float32 on the meta device, decoders in bfloat16 on a CPU.

`architectures`: the counts in trainer/memory/native.py, made on ComfyUI's own classes: parameters, trained parameters for each
unit of LoRA rank (all Linear layers of the blocks but the modulation), and what autograd keeps of one more block for its backward
pass, in vectors of the model's width for each token, with an adapter on these layers and all else frozen, in bfloat16. The last
is counted at width 512 on a CPU, whose attention keeps what FlashAttention keeps. `native`: the estimate by those counts against
the bytes of tensors that are alive while Make Trainable's model computes, a FLUX of random weights with six blocks of width 512.

`growth` trains a very small workflow through the real loop, with a checkpoint and an evaluation now and then, and reads the
resident set after every `--every` iterations, with garbage collected and freed pages given back to the system. The slope is that
of a straight line through the second half: the first one fills caches.

No GPU is used, and none was measured; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path

import psutil
import torch

from comfyui_otca.bench import common
from comfyui_otca.trainer.families.options import LoadOptions
from comfyui_otca.trainer.memory import needs
from comfyui_otca.trainer.memory.blueprint import published as published_blueprints
from comfyui_otca.trainer.memory.case import GB, UPDATE, Held
from comfyui_otca.trainer.memory.meta import META, Live, as_on_a_gpu, there_and_back
from comfyui_otca.trainer.memory.native import NativeCase
from comfyui_otca.trainer.memory.rehearsal import PipelineCase
from comfyui_otca.trainer.policy.adapters import Adapter
from comfyui_otca.trainer.types import MAKE_NODE

# --- templates against a rehearsal -------------------------------------------------------------------------------------

API = Path(__file__).resolve().parents[1] / "workflows" / "api"
COUNTERPARTS = {  # template: the same network in diffusers
    "z_image": "Tongyi-MAI/Z-Image-Turbo",
    "qwen_image": "Qwen/Qwen-Image",
    "krea2": "krea/Krea-2-Raw",
    "flux2_klein": "black-forest-labs/FLUX.2-klein-4B",
    "flux1": "black-forest-labs/FLUX.1-dev",
    "wan22_5b": "Wan-AI/Wan2.2-TI2V-5B-Diffusers",
    "wan22_14b": "Wan-AI/Wan2.2-T2V-A14B-Diffusers",
}


@dataclass(frozen=True)
class Rehearsed(PipelineCase):
    """A rehearsal that holds what the template's files hold, and lets them come and go as ComfyUI does."""

    files: Held = field(kw_only=True)

    def held(self) -> Held:
        names = ("weights", "encoders", "vae", "encoders_visit", "vae_visit", "steps_aside")
        return replace(super().held(), **{name: getattr(self.files, name) for name in names})


def of_template(name: str) -> tuple[NativeCase, Rehearsed]:
    """A template's training, counted and rehearsed."""
    graph = json.loads((API / f"{name}.json").read_text(encoding="utf-8"))
    case, _ = needs.read(graph)
    assert isinstance(case, NativeCase), "it has a Make Trainable"
    rank = needs.the_only(graph, "Make Trainable", MAKE_NODE)["inputs"]["lora_rank"]
    return case, Rehearsed(
        blueprint=published_blueprints()[COUNTERPARTS[name]],
        adapter=Adapter(rank, float(rank), ""),
        options=LoadOptions(gradient_checkpointing=case.checkpointing, vae_tiling=case.tiling),
        dtype=torch.bfloat16,
        iteration=case.iteration,
        files=case.held(),
    )


def templates(families: list[str]) -> None:
    """GB, estimated / rehearsed = their ratio; prints a table."""
    print(common.table(["template", "needs", "in", "the update", "all phases, least and most"], []), flush=True)
    for name in families or COUNTERPARTS:
        counted, rehearsed = (case.needs for case in of_template(name))
        phases = counted.totals.keys() & rehearsed.totals.keys()
        ratios = [counted.totals[phase] / rehearsed.totals[phase] for phase in phases]
        both = [
            f"{ours / GB:.1f} / {theirs / GB:.1f} = {ours / theirs:.2f}"
            for ours, theirs in ((counted.total, rehearsed.total), (counted.totals[UPDATE], rehearsed.totals[UPDATE]))
        ]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"| {name} | {both[0]} | {counted.phase} | {both[1]} | {spread} |", flush=True)


# --- against allocations -----------------------------------------------------------------------------------------------


def allocations(families: list[str], cases: list[str]) -> None:
    """MB, estimated / counted = their ratio; prints a table."""
    from comfyui_otca.tests.device import heavy, pretend

    pretend.register()
    print(common.table(["family", "training", *heavy.PHASES], []), flush=True)
    ratios = []
    for family in families or heavy.SIZES:
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = heavy.make(family, Path(folder) / family)
            for name in cases or heavy.CASES:
                training = heavy.Training(family, **heavy.CASES[name])
                estimated = heavy.estimated(checkpoint, training)
                with pretend.active():
                    counted = heavy.counted(checkpoint, training)
                pairs = [(estimated[phase], counted[phase]) for phase in heavy.PHASES]
                ratios += [ours / theirs for ours, theirs in pairs]
                print(f"| {family} | {name} | {' | '.join(_ratio(*pair) for pair in pairs)} |", flush=True)
    print(f"{len(ratios)} ratios from {min(ratios):.2f} to {max(ratios):.2f}")


def gradients(families: list[str], cases: list[str], side: int) -> None:
    """The same along the rewards' gradient: of rewards and decoder together, and of the calls of the network."""
    from comfyui_otca.tests.device import heavy, pretend

    pretend.register()
    print(common.table(["family", "mode", *heavy.PULLED], []), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for family in families or ("sd3", "flux", "wan"):
            of_decoder = {"decoder": 32 if "wan" in family else 64, "levels": 4 if side else 2}
            checkpoint = heavy.make(family, Path(folder) / family, **of_decoder)
            for name in cases or heavy.PULLS:
                one = {"sampling_batch": 1, "size": (side, side, 1)} if side else {}
                pull = heavy.PULLS[name] | ({"batch_size": 1} if side else {})
                training = heavy.Training(family, pull=pull, **one)
                estimated = heavy.estimated(checkpoint, training)
                with pretend.active():
                    counted = heavy.counted(checkpoint, training)
                pairs = [_ratio(estimated[phase], counted[phase]) for phase in heavy.PULLED]
                print(f"| {family} | {name} | {' | '.join(pairs)} |", flush=True)


def _ratio(ours: float, counted: float) -> str:
    return f"{ours / 1e6:.0f} / {counted / 1e6:.0f} = {ours / counted:.2f}"


def native(comfyui: Path) -> None:
    """The same for what ComfyUI loaded, without weights: MB alive in a call of the rollout and of the update."""
    from comfyui_otca.bench import native as route
    from comfyui_otca.host import headless_comfyui
    from comfyui_otca.trainer.memory import fitting
    from comfyui_otca.trainer.types import SamplerSettings

    headless_comfyui.load(comfyui, "cpu")
    import comfy.ldm.flux.math
    from comfy.ldm.modules.attention import attention_pytorch

    vars(comfy.ldm.flux.math)["optimized_attention"] = (
        attention_pytorch  # as on a GPU: it keeps no matrix of tokens by tokens
    )
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = route.wider(512, Path(folder))
        for checkpointing, samples, size in product((False, True), (1, 4), (128, 256)):
            model = route.native_route(path, "on" if checkpointing else "off", targets="")
            for expert in model.wrapped.values():  # as on a GPU that has bfloat16
                expert.network.to(torch.bfloat16).dtype = model.dtype = torch.bfloat16
                expert.core.manual_cast_dtype = None
            settings = SamplerSettings("dance_sde", 0.5, 4, size, size, shift=1.6, guidance=1.0, batch_size=samples)
            case = fitting.case_of(model, settings, checkpointing)
            [[tokens, _]] = model.clip.encode_from_tokens_scheduled(model.clip.tokenize(route.PROMPTS.texts[0]))
            case = replace(
                case, model=replace(case.model, text_tokens=tokens.shape[1])
            )  # padded to fewer than FLUX's 256
            condition = model.condition([route.PROMPTS.texts[0]] * samples, settings)
            x = torch.randn(samples, *model.latent_shape(size, size))
            for p in (parameters := model.policy.trainable_parameters()):
                p.grad = torch.zeros_like(p)
            held = [t for n in model.experts.values() for t in (*n.parameters(), *n.buffers())]
            held += [t for p in parameters for t in (p, p.grad)]
            with Live(held) as live, torch.no_grad():
                model.velocity(x, 0.5, condition, 1.0)
            forward = live.peak
            with Live(held) as live:
                velocity = model.velocity(x, 0.5, condition, 1.0)
                kept = live.now
                velocity.sum().backward()
            graph = case.graph(samples)
            pairs = (case.forward(samples), forward), (graph.kept, kept), (graph.peak, live.peak)
            rows.append(["on" if checkpointing else "off", samples, f"{size} px", *(_ratio(*pair) for pair in pairs)])
    print(
        common.table(["checkpointing", "samples", "size", "rollout", "kept for backward", "forward and backward"], rows)
    )


# --- the counts of ComfyUI's models ---------------------------------------------------------------------------------------

BLOCKS = r"(double_blocks|single_blocks|transformer_blocks|blocks|layers|noise_refiner|context_refiner)\.\d+\."
MODULATION = ("mod", "adaLN")
RANK, WIDTH, SIDE, TEXT = 4, 512, 32, 256

FLUX = dict(image_model="flux", in_channels=16, out_channels=16, mlp_ratio=4.0, axes_dim=[16, 56, 56], theta=10000)
FLUX |= dict(patch_size=2, qkv_bias=True, guidance_embed=True, txt_ids_dims=[])
KLEIN = dict(image_model="flux2", in_channels=128, out_channels=128, vec_in_dim=None, mlp_ratio=3.0, axes_dim=[32] * 4)
KLEIN |= dict(theta=2000, patch_size=1, qkv_bias=False, guidance_embed=False, global_modulation=True, mlp_silu_act=True)
KLEIN |= dict(ops_bias=False, txt_ids_dims=[3])
LUMINA = dict(patch_size=2, in_channels=16, qk_norm=True, axes_dims=[32, 48, 48], axes_lens=[1536, 512, 512])
LUMINA |= dict(rope_theta=256.0, ffn_dim_multiplier=8 / 3, z_image_modulation=True, time_scale=1000.0)
WAN = dict(model_type="t2v", patch_size=(1, 2, 2))


def _flux(width, heads, double, single, **more):
    from comfy.ldm.flux.model import Flux

    return Flux(hidden_size=width, num_heads=heads, depth=double, depth_single_blocks=single, **more)


def published(**how):
    """The models as they are published."""
    from comfy.ldm.krea2.model import SingleStreamDiT
    from comfy.ldm.lumina.model import NextDiT
    from comfy.ldm.qwen_image.model import QwenImageTransformer2DModel
    from comfy.ldm.wan.model import WanModel

    klein = partial(_flux, **KLEIN, **how)
    wan = partial(WanModel, **WAN, **how)
    return {
        "FLUX.1": lambda: _flux(3072, 24, 19, 38, vec_in_dim=768, context_in_dim=4096, **FLUX, **how),
        "FLUX.2 klein 4B": lambda: klein(3072, 24, 5, 20, context_in_dim=7680),
        "FLUX.2 klein 9B": lambda: klein(4096, 32, 8, 24, context_in_dim=12288),
        "Qwen-Image": lambda: QwenImageTransformer2DModel(**how),
        "Krea 2": lambda: SingleStreamDiT(**how),
        "Z-Image": lambda: NextDiT(
            dim=3840, cap_feat_dim=2560, n_layers=30, n_heads=30, n_kv_heads=30, pad_tokens_multiple=32, **LUMINA, **how
        ),
        "Wan 2.2 5B": lambda: wan(in_dim=48, out_dim=48, dim=3072, ffn_dim=14336, num_heads=24, num_layers=30),
        "Wan 2.2 14B": lambda: wan(in_dim=16, out_dim=16, dim=5120, ffn_dim=13824, num_heads=40, num_layers=40),
    }


def narrow(**how):
    """{kind of block: (tokens, one block, two blocks, how to call)} at width 512."""
    from comfy.ldm.krea2.model import SingleStreamDiT
    from comfy.ldm.lumina.model import NextDiT
    from comfy.ldm.qwen_image.model import QwenImageTransformer2DModel
    from comfy.ldm.wan.model import WanModel

    x = torch.randn(1, 16, SIDE, SIDE, dtype=torch.bfloat16)
    packed = torch.randn(1, 128, SIDE // 2, SIDE // 2, dtype=torch.bfloat16)
    text, pooled, layers = (
        torch.randn(shape, dtype=torch.bfloat16) for shape in ((1, TEXT, 64), (1, 64), (1, TEXT, 128))
    )
    time, guidance, picture = torch.tensor([0.5]), torch.tensor([3.5]), (SIDE // 2) ** 2
    one = partial(_flux, WIDTH, 4, vec_in_dim=64, context_in_dim=64, **FLUX, **how)
    klein = partial(_flux, WIDTH, 4, context_in_dim=64, **KLEIN, **how)
    small = dict(n_heads=4, n_kv_heads=4, n_refiner_layers=1, **LUMINA, **how)
    qwen = partial(
        QwenImageTransformer2DModel, num_attention_heads=4, attention_head_dim=128, joint_attention_dim=64, **how
    )
    krea = partial(
        SingleStreamDiT, features=WIDTH, heads=4, kvheads=1, txtdim=64, txtlayers=2, txtheads=2, txtkvheads=2
    )
    wan = dict(in_dim=16, out_dim=16, dim=WIDTH, ffn_dim=2384, num_heads=4, text_dim=64, **WAN, **how)
    both = picture + TEXT

    def call_flux(m):
        return m(x, time, text, pooled, guidance)

    return {
        "FLUX.1 double": (both, one(1, 1), one(2, 1), call_flux),
        "FLUX.1 single": (both, one(1, 1), one(1, 2), call_flux),
        "klein double": (both, klein(1, 1), klein(2, 1), lambda m: m(packed, time, text, None, None)),
        "klein single": (both, klein(1, 1), klein(1, 2), lambda m: m(packed, time, text, None, None)),
        "Z-Image": (
            both,
            *(NextDiT(dim=WIDTH, cap_feat_dim=64, n_layers=n, **small) for n in (1, 2)),
            lambda m: m(x, time, text, TEXT),
        ),
        "Qwen-Image": (both, qwen(num_layers=1), qwen(num_layers=2), lambda m: m(x[:, :, None], time, text)),
        "Krea 2": (both, krea(layers=1, tdim=64, **how), krea(layers=2, tdim=64, **how), lambda m: m(x, time, layers)),
        "Wan 2.2": (
            picture,
            WanModel(num_layers=1, **wan),
            WanModel(num_layers=2, **wan),
            lambda m: m(x[:, :, None], time, text[:, :8]),
        ),
    }


def adapted(model):
    """The Linear layers of the blocks but the modulation."""
    for name, module in model.named_modules():
        if (
            isinstance(module, torch.nn.Linear)
            and re.match(BLOCKS, name)
            and not any(word in name for word in MODULATION)
        ):
            yield module


def kept_bytes(model, call) -> int:
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter.requires_grad_(False), std=0.02)
    held = [*model.parameters(), *model.buffers()]
    for layer in adapted(model):
        shapes = (RANK, layer.in_features), (layer.out_features, RANK)
        pair = [torch.randn(shape, dtype=torch.bfloat16, requires_grad=True) for shape in shapes]
        layer.forward = partial(_with_adapter, layer.forward, *pair)
        held += pair
    with Live(held) as live, torch.enable_grad():
        result = call(model)
        kept = live.now
    del result
    return kept


def _with_adapter(frozen, a, b, x):
    return frozen(x) + torch.nn.functional.linear(torch.nn.functional.linear(x, a), b)


def architectures(comfyui: Path) -> None:
    from comfyui_otca.host import headless_comfyui

    headless_comfyui.load(comfyui, "cpu")
    import comfy.model_management
    import comfy.ops

    how = dict(dtype=torch.bfloat16, operations=comfy.ops.disable_weight_init)
    for name, build in published(device="meta", **how).items():
        model = build()
        per_rank = sum(layer.in_features + layer.out_features for layer in adapted(model))
        print(f"{name}: {sum(p.numel() for p in model.parameters()):,} parameters, {per_rank:,} for each unit of rank")
    comfy.model_management.in_training = True
    for name, (tokens, one, two, call) in narrow(device="cpu", **how).items():
        vectors = (kept_bytes(two, call) - kept_bytes(one, call)) / (tokens * WIDTH * 2)
        print(f"{name}: {vectors:.1f} vectors a token and block")


# --- rewards and decoders with a gradient -----------------------------------------------------------------------------------


def judges() -> None:
    """MB that a pass with a gradient takes for a picture, in float32, by networks of the published sizes."""
    import transformers

    def sizes(width, layers, heads, **more):
        sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers}
        return sizes | {"num_attention_heads": heads} | more

    def clip(width, layers, act):
        config = transformers.CLIPVisionConfig(**sizes(width, layers, 16, patch_size=14, hidden_act=act))
        network = transformers.CLIPVisionModelWithProjection._from_config(config)
        return network, lambda pixels: network(pixel_values=pixels).image_embeds

    def blip():
        looking = transformers.BlipVisionModel._from_config(
            transformers.BlipVisionConfig(**sizes(1024, 24, 16, image_size=224, hidden_act="gelu"))
        )
        words = transformers.BlipTextConfig(**sizes(768, 12, 12, encoder_hidden_size=1024, is_decoder=True))
        reading = transformers.BlipTextModel(words, add_pooling_layer=False)
        tokens = torch.zeros(1, 35, dtype=torch.long, device=META)

        def call(pixels):
            seen = looking(pixel_values=pixels).last_hidden_state
            ids = tokens.expand(len(pixels), -1)
            beside = {"encoder_attention_mask": torch.ones(seen.shape[:2], dtype=torch.long, device=META)}
            mask = torch.ones_like(ids)
            return reading(ids, mask, encoder_hidden_states=seen, **beside).last_hidden_state[:, 0]

        return torch.nn.ModuleList([looking, reading]), call

    made = {
        "CLIP ViT-L/14": lambda: clip(1024, 24, "quick_gelu"),
        "CLIP ViT-H/14": lambda: clip(1280, 32, "gelu"),
        "ImageReward's BLIP": blip,
    }
    for name, build in made.items():
        with torch.device(META):
            network, call = build()
        network.train(False).requires_grad_(False)
        one, three = (_taken(network, call, torch.empty(count, 3, 224, 224, device=META)) for count in (1, 3))
        print(f"{name}: {(three[1] - one[1]) / 2:,.0f} bytes a picture, of one alone {one[1]:,}")


def decoders(comfyui: Path) -> None:
    """What decoding with a gradient keeps and has beside, by ComfyUI's own autoencoders: values a pixel of all frames, of one."""
    from comfyui_otca.host import headless_comfyui

    headless_comfyui.load(comfyui, "cpu")
    import comfy.ldm.modules.diffusionmodules.model as blocks
    from comfy.ldm.models.autoencoder import AutoencoderKL
    from comfy.ldm.wan import vae as wan21
    from comfy.ldm.wan import vae2_2 as wan22

    from comfyui_otca.trainer.native import frozen
    from comfyui_otca.trainer.native.checkpointing import Mutable

    for module in (blocks, wan21, wan22):  # as on a GPU
        vars(module)["vae_attention"] = lambda: blocks.pytorch_attention
    sizes = dict(double_z=True, resolution=256, in_channels=3, out_ch=3, ch=128, ch_mult=[1, 2, 4, 4], num_res_blocks=2)
    sizes |= dict(attn_resolutions=[], dropout=0.0)
    wan = dict(
        dim_mult=[1, 2, 4, 4], num_res_blocks=2, attn_scales=[], temperal_downsample=[False, True, True], dropout=0.0
    )
    made = {
        "FLUX.1": (lambda: AutoencoderKL(ddconfig=sizes | {"z_channels": 16}, embed_dim=16), 16, 8, (1,)),
        "FLUX.2": (
            lambda: AutoencoderKL(ddconfig=sizes | {"z_channels": 32, "batch_norm_latent": True}, embed_dim=32),
            *(128, 16, (1,)),
        ),
        "Wan 2.1": (lambda: wan21.WanVAE(dim=96, z_dim=16, **wan), 16, 8, (1, 9, 17)),
        "Wan 2.2": (lambda: wan22.WanVAE(dim=160, z_dim=48, **wan), 48, 16, (1, 9, 17)),
    }
    for name, (build, channels, scale, frames) in made.items():
        network = build().to(torch.bfloat16).train(False).requires_grad_(False)
        for count in frames:
            axis = ((count - 1) // 4 + 1,) if "Wan" in name else ()
            for side in (32, 64, 128):
                with (
                    frozen.training(),
                    Mutable(),
                ):  # which knows memory by its address: there is none on the meta device
                    shape = (1, channels, *axis, side // scale, side // scale)
                    kept, most = _taken(network, network.decode, torch.zeros(shape, dtype=torch.bfloat16))
                pixels = 2 * side * side
                figures = f"keeps {kept / pixels / count:,.0f}, {(most - kept) / pixels:,.0f} besides"
                print(f"{name}, {side} × {side}, {count} frames: {figures}", flush=True)


def _taken(network, call, x: torch.Tensor) -> tuple[int, int]:
    """Bytes beside the weights that are kept for the backward pass, and the most of both passes."""
    x.requires_grad_()
    with as_on_a_gpu(), Live([*network.parameters(), *network.buffers()]) as live:
        kept, over, back = there_and_back(live, lambda: call(x))
    return kept, kept + max(over, back)


# --- does a long training grow? ----------------------------------------------------------------------------------------

SMALL = {
    "OTCA_LoadFlowModel.lora_rank": 2,
    "OTCA_PromptDataset.prompts_per_iteration": 1,
    "OTCA_SDESampler.group_size": 2,
    "OTCA_SDESampler.steps": 2,
    "OTCA_GRPOStep.ema_decay": 0.9,
    "OTCA_TrainingRun.checkpoint_every": 100,
    "OTCA_TrainingRun.evaluate_every": 200,
    "OTCA_TrainingRun.evaluation_prompts": "a red circle on a blue background\na green square on a white background",
    "OTCA_TrainingRun.evaluation_seeds": 1,
}


def growth(iterations: int, every: int, output: Path | None) -> None:
    from comfyui_otca.commands.options import quiet_libraries
    from comfyui_otca.nodes import NODE_CLASS_MAPPINGS
    from comfyui_otca.tests.training import train
    from comfyui_otca.trainer.workflow.running import Workflow

    quiet_libraries()
    workflow = Workflow.load(common.WORKFLOW, NODE_CLASS_MAPPINGS)
    for address, value in {**SMALL, "OTCA_TrainingRun.iterations": iterations}.items():
        workflow.set(address, value)
    readings: list[tuple[int, float]] = []

    def say(line: str) -> None:
        head, _, rest = line.partition("/")
        if head.startswith("iteration ") and (iteration := int(head.split()[1])) % every == 0:
            common.give_back()
            readings.append((iteration, psutil.Process().memory_info().rss / 1e6))
            print(f"iteration {iteration}: {readings[-1][1]:.1f} MB", flush=True)

    with tempfile.TemporaryDirectory() as temporary:
        train(workflow, output or Path(temporary) / "run", say=say)
    later = [(x, y) for x, y in readings if x > iterations / 2]
    slope = statistics.linear_regression(*zip(*later, strict=True)).slope * 1000
    print(
        f"slope of the second half: {slope:+.2f} MB per 1000 iterations, in which the run holds 1000 lines of metrics"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    of_allocations = kinds.add_parser("allocations")
    of_gradients = kinds.add_parser("gradients")
    of_gradients.add_argument("--side", type=int, default=0, metavar="PIXELS")
    for parser_of in (of_allocations, of_gradients):
        parser_of.add_argument("--families", nargs="+", default=[], metavar="FAMILY")
        parser_of.add_argument("--cases", nargs="+", default=[], metavar="CASE", help="kinds of training")
    kinds.add_parser("templates").add_argument("--families", nargs="+", default=[], metavar="TEMPLATE")
    kinds.add_parser("judges")
    for name in ("native", "architectures", "decoders"):
        kinds.add_parser(name).add_argument("comfyui", type=Path)
    of_growth = kinds.add_parser("growth")
    of_growth.add_argument("--iterations", type=int, default=2000)
    of_growth.add_argument("--every", type=int, default=100, metavar="N", help="iterations between two readings")
    of_growth.add_argument("--output", type=Path, help="keep the run's folder there (default: a temporary one)")
    given = vars(parser.parse_args())
    torch.set_num_threads(1)
    routes = {"native": native, "architectures": architectures, "decoders": decoders}
    kind = {"allocations": allocations, "gradients": gradients, "judges": judges, "growth": growth} | routes
    kind |= {"templates": templates}
    kind[given.pop("kind")](**given)


if __name__ == "__main__":
    main()
